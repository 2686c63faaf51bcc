"""The second explorer of notebook 06: what each token of a text costs."""

import torch
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from explorers.base import Explorer, bare, bundled, readable, slider, switch
from helpers.model import Llama
from helpers.plots import INK
from helpers.text import encode, excerpt, load_tokenizer

COLUMNS, MOST_BITS = 70, 12


def explore_losses(stages: dict[int, Llama] | None = None, tokenizer=None, text="", before="") -> Explorer:
    """What each token of a text costs a model [bit], painted on the text, at several stages of its training.

    Args:
        stages: the model after so many steps; without them, the bundled model, and one of its shape without training.
        tokenizer: of these models.
        text: what is painted, a few hundred characters.
        before: what stands before it; read, but not painted.
    """
    if stages is None:
        trained = bundled()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stages = {0: Llama(trained.config), 1400: trained}
        tokenizer, text, before = load_tokenizer(), excerpt()[200:600], excerpt()[:200]
    known, shown = encode(tokenizer, before), encode(tokenizer, text)
    judged = {step: _costs(model, known, shown) for step, model in stages.items()}
    words, boxes, column, row = [_readable(tokenizer.decode([token])) for token in shown.tolist()], [], 0, 0
    for word in words:  # one after the other, a new row where one would not fit
        column, row = (0, row + 1) if column + len(word) > COLUMNS else (column, row)
        boxes.append((column, row, len(word)))
        column += len(word)
    inside = [a[-1:].isalpha() and b[:1].isalpha() for a, b in zip(["", *words], words, strict=False)]
    inside, begins = torch.tensor(inside), torch.tensor([word.lstrip()[:1].isalpha() for word in words])

    # What is fixed: the words.
    figure = Figure(figsize=(8.4, 3.7), dpi=110, facecolor="white", layout="none")
    page = figure.add_axes((0.02, 0.02, 0.96, 0.88))
    bare(page, (-0.5, COLUMNS + 0.5), (row + 0.6, -0.6), "auto")
    style = {"family": "monospace", "size": 10.5, "va": "center", "ha": "center", "parse_math": False}
    for (x, y, n), word in zip(boxes, words, strict=True):
        page.text(x + (n - 0.12) / 2, y, word, **style)

    # What moves: the shades over the words, a frame around one token.
    corners = [[(x, y - 0.42), (x + n - 0.12, y - 0.42), (x + n - 0.12, y + 0.42), (x, y + 0.42)] for x, y, n in boxes]
    patches = page.add_collection(PolyCollection(corners, lw=0.4, ec="#BBBBBB", zorder=4))
    frame = page.add_patch(Rectangle((0, 0), 1, 1, fill=False, ec=INK, lw=2, zorder=5))

    def draw(step, token):
        costs, (likeliest, shares) = judged[step]
        patches.set_facecolors([(0.91, 0.38, 0.05, min(0.55, 0.55 * bits / MOST_BITS)) for bits in costs.tolist()])
        x, y, n = boxes[token]
        frame.set(xy=(x - 0.1, y - 0.47), width=n + 0.08, height=0.94)
        page.set_title(f"After {step} steps a token of this text costs {costs.mean():.1f} bits (darker: more)")
        first, later = costs[begins & ~inside].mean(), costs[inside].mean()
        best = [f"“{readable(tokenizer, one)}” {p:.2f}" for one, p in zip(likeliest[token], shares[token], strict=True)]
        return (
            f"After step {step} a token costs {costs.mean():.2f} bits on average, a word's first one {first:.1f}, what "
            f"follows inside it {later:.1f}. Token {token}, “{words[token]}”, costs {costs[token]:.1f} bits. The "
            f"likeliest there, with their probabilities: {', '.join(best)}."
        )

    controls = {"step": switch("after step", sorted(stages, reverse=True))}
    controls["token"] = slider("framed token", int(judged[max(stages)][0].argmax()), 0, len(words) - 1)
    alt = "A text, each token shaded by its cost in bits, one framed."
    return Explorer(figure, draw, controls, alt)


def _readable(text):
    shown = "".join(c if c.isprintable() else "□" for c in text.replace("\n", "↵"))
    return "".join(c if ord(c) < 0x530 or 0x2000 < ord(c) < 0x2200 or c == "□" else "□" for c in shown)


@torch.no_grad()
def _costs(model, known, shown):
    # Of each shown token the bits, (T,); of each place the 3 likeliest tokens and their probabilities, lists of lists.
    known = known[-model.config.max_seq_len :] if len(known) else shown[:1]  # a first token stands for itself
    tokens = torch.cat([known, shown])[:-1]
    n = min(model.config.max_seq_len, len(tokens))
    windows = tokens.unfold(0, n, 1).to(model.tok_embeddings.weight.device)  # one ends at each place from n on
    logits = torch.cat([model(windows[:1])[0, :-1], model(windows, last_only=True)[:, -1]])[len(known) - 1 :]
    shares = logits.float().softmax(dim=-1).cpu()
    best = shares.topk(3)
    return -shares[range(len(shown)), shown].log2(), (best.indices.tolist(), best.values.tolist())
