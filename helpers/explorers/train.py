"""The explorer of notebook 06: what each token of a text costs."""

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import Rectangle

from helpers.checkpoint import load_checkpoint
from helpers.explorers.base import Explorer, bare, choice, new_figure, readable, slider
from helpers.model import Llama
from helpers.plots import INK
from helpers.text import TINY_LLAMA, encode, excerpt, load_tokenizer

COLUMNS, MOST_BITS = 76, 12
SHADES = LinearSegmentedColormap.from_list("bits", ["#FFFFFF", "#FDC38D", "#E8702A"])  # ink can be read on all of them


def explore_losses(stages: dict[int, Llama] | None = None, tokenizer=None, text="", before="") -> Explorer:
    """What each token of a text costs a model [bit], painted on the text, at several stages of its training.

    Args:
        stages: the model after so many steps; without them, the bundled model, and one of its shape without training.
        tokenizer: of these models.
        text: what is painted, a few hundred characters.
        before: what stands before it; read, but not painted.
    """
    if stages is None:
        trained = load_checkpoint(TINY_LLAMA)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stages = {0: Llama(trained.config), 1400: trained}
        tokenizer, text, before = load_tokenizer(), excerpt()[200:600], excerpt()[:200]
    known, shown = encode(tokenizer, before), encode(tokenizer, text)
    judged = {step: _costs(model, known, shown) for step, model in stages.items()}
    words, boxes, column, row = [tokenizer.decode([token]) for token in shown.tolist()], [], 0, 0
    words = [
        "".join("↵" if one == "\n" else one if ord(one) < 0x530 or 0x2000 < ord(one) < 0x2200 else "□" for one in word)
        for word in words
    ]
    for word in words:  # one after the other, a new row where one would not fit
        column, row = (0, row + 1) if column + len(word) > COLUMNS else (column, row)
        boxes.append((column, row, len(word)))
        column += len(word)

    # What is fixed: where each token stands, and the scale.
    figure, page = new_figure(1)
    bare(page, (-0.5, COLUMNS + 0.5), (row + 1.6, -0.6))
    page.set_aspect("auto")
    figure.colorbar(ScalarMappable(Normalize(0, MOST_BITS), SHADES), ax=page, label="cost [bit]", aspect=40)

    # What moves: the shades, the words on them, and a frame around one token.
    corners = [[(x, y - 0.42), (x + n - 0.12, y - 0.42), (x + n - 0.12, y + 0.42), (x, y + 0.42)] for x, y, n in boxes]
    patches = page.add_collection(PolyCollection(corners, lw=0.4, ec="#BBBBBB"))
    style = {"family": "monospace", "size": 9, "va": "center", "ha": "center", "parse_math": False, "zorder": 3}
    labels = [page.text(x + (n - 0.12) / 2, y, word, **style) for (x, y, n), word in zip(boxes, words, strict=True)]
    frame = page.add_patch(Rectangle((0, 0), 1, 1, fill=False, ec=INK, lw=2, zorder=2))

    def draw(step, token):
        costs, (likeliest, shares) = judged[step]
        patches.set_facecolors(SHADES(costs.numpy() / MOST_BITS))
        for label in labels:
            label.set_color(INK)  # touched in every drawing: what moves is drawn above what stays
        x, y, n = boxes[token]
        frame.set(xy=(x - 0.1, y - 0.47), width=n + 0.08, height=0.94)
        tenth = costs.sort(descending=True).values[: max(1, len(costs) // 10)].sum() / costs.sum()
        page.set_title(f"Step {step}: {costs.mean():.1f} bits per token")
        best = [f"“{readable(tokenizer, one)}” {p:.2f}" for one, p in zip(likeliest[token], shares[token], strict=True)]
        return (
            f"After step {step} a token costs {costs.mean():.2f} bits on average; the costliest tenth of them takes "
            f"{tenth:.0%} of the whole. Token {token}, “{words[token]}”, costs {costs[token]:.1f} bits. The likeliest "
            f"there, with their probabilities: {', '.join(best)}."
        )

    # Which controls.
    controls = {"step": choice("after step", sorted(stages, reverse=True))}
    controls["token"] = slider("framed token", int(judged[max(stages)][0].argmax()), 0, len(words) - 1)
    alt = "A passage of text, token by token in boxes, each shaded by its cost in bits: white for nothing, "
    return Explorer(figure, draw, controls, alt + "dark orange for 12 and more. One token is framed.")


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
