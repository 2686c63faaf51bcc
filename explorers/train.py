"""The second explorer of notebook 06: what each token of a text costs, and what the model would have written."""

import textwrap

import torch
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from explorers.base import Explorer, bare, bundled, readable, slider, switch
from helpers.generate import generate
from helpers.model import Llama
from helpers.plots import INK, KEY
from helpers.text import encode, excerpt, load_tokenizer

COLUMNS, MOST_BITS = 84, 12
KINDS = {"a word's first token": INK, "what follows inside it": KEY}


def explore_losses(stages: dict[int, Llama] | None = None, tokenizer=None, text="", before="") -> Explorer:
    """What each token of a text costs a model [bit], painted on the text, at several stages of its training.

    Args:
        stages: the model after so many steps; without them, the bundled model, and one of its shape without training.
        tokenizer: of these models.
        text: what is painted, a few hundred characters.
        before: what stands before it; read, but not painted. Its end is what the models continue.
    """
    if stages is None:
        trained = bundled()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stages = {0: Llama(trained.config), 1400: trained}
        tokenizer, text, before = load_tokenizer(), excerpt()[200:600], excerpt()[:200]
    known, shown = encode(tokenizer, before), encode(tokenizer, text)
    steps, judged = sorted(stages), {step: _costs(model, known, shown) for step, model in stages.items()}
    own = {step: _written(model, tokenizer, known, shown) for step, model in stages.items()}
    words, boxes, column, row = [_readable(tokenizer.decode([token])) for token in shown.tolist()], [], 0, 0
    for word in words:  # one after the other, a new row where one would not fit
        column, row = (0, row + 1) if column + len(word) > COLUMNS else (column, row)
        boxes.append((column, row, len(word)))
        column += len(word)
    inside = [a[-1:].isalpha() and b[:1].isalpha() for a, b in zip(["", *words], words, strict=False)]
    inside, begins = torch.tensor(inside), torch.tensor([word.lstrip()[:1].isalpha() for word in words])
    means = {
        name: [judged[step][0][which].mean().item() for step in steps]
        for name, which in zip(KINDS, (begins & ~inside, inside), strict=True)
    }

    # What is fixed: the words, and what both kinds of tokens cost at each stage.
    figure = Figure(figsize=(8.4, 4.9), dpi=110, facecolor="white", layout="none")
    page, ax = figure.add_axes((0.02, 0.47, 0.96, 0.45)), figure.add_axes((0.075, 0.11, 0.28, 0.25))
    bare(page, (-0.5, COLUMNS + 0.5), (row + 0.6, -0.6), "auto")
    style = {"family": "monospace", "size": 9, "va": "center", "ha": "center", "parse_math": False}
    for (x, y, n), word in zip(boxes, words, strict=True):
        page.text(x + (n - 0.12) / 2, y, word, **style)
    for (name, color), bits in zip(KINDS.items(), means.values(), strict=True):
        ax.plot(range(len(steps)), bits, color=color)
        ax.text(len(steps) - 0.9, bits[-1], name, color=color, va="center", fontsize=9)
    ax.set(
        xlim=(-0.2, len(steps) - 0.8), ylim=(0, 1.1 * max(map(max, means.values()))), xlabel="step", yticks=(0, 3, 6, 9)
    )
    ax.set_xticks(range(len(steps)), steps)
    ax.set_title("Bits per token", fontsize=9.5)
    figure.text(0.59, 0.385, "What it writes in place of this text", fontsize=9.5, va="center")

    # What moves: the shades over the words, a frame around one token, a dot on each line, the model's own text.
    corners = [[(x, y - 0.42), (x + n - 0.12, y - 0.42), (x + n - 0.12, y + 0.42), (x, y + 0.42)] for x, y, n in boxes]
    patches = page.add_collection(PolyCollection(corners, lw=0.4, ec="#BBBBBB", zorder=4))
    frame = page.add_patch(Rectangle((0, 0), 1, 1, fill=False, ec=INK, lw=2, zorder=5))
    dots = [ax.plot([], [], "o", color=color)[0] for color in KINDS.values()]
    own_style = {**style, "size": 8.5, "va": "top", "ha": "left", "linespacing": 1.4}
    writing = ax.text(0.59, 0.345, "", transform=figure.transFigure, **own_style)

    def draw(step, token):
        costs, (likeliest, shares) = judged[step]
        patches.set_facecolors([(0.91, 0.38, 0.05, min(0.55, 0.55 * bits / MOST_BITS)) for bits in costs.tolist()])
        x, y, n = boxes[token]
        frame.set(xy=(x - 0.1, y - 0.47), width=n + 0.08, height=0.94)
        for dot, bits in zip(dots, means.values(), strict=True):
            dot.set_data([steps.index(step)], [bits[steps.index(step)]])
        writing.set_text(textwrap.fill(own[step], 42, max_lines=6, placeholder=" …"))
        page.set_title(f"After {step} steps a token of this text costs {costs.mean():.1f} bits (darker: more)")
        first, later = (bits[steps.index(step)] for bits in means.values())
        best = [f"“{readable(tokenizer, one)}” {p:.2f}" for one, p in zip(likeliest[token], shares[token], strict=True)]
        return (
            f"After step {step} a token costs {costs.mean():.2f} bits on average, a word's first one {first:.1f}, what "
            f"follows inside it {later:.1f}. Token {token}, “{words[token]}”, costs {costs[token]:.1f} bits. The "
            f"likeliest there, with their probabilities: {', '.join(best)}."
        )

    controls = {"step": switch("after step", sorted(stages, reverse=True))}
    controls["token"] = slider("framed token", int(judged[max(stages)][0].argmax()), 0, len(words) - 1)
    alt = "A text, each token shaded by its cost in bits, one framed. Below, the cost of first and later tokens of "
    return Explorer(figure, draw, controls, alt + "words against the step, and what the model writes.")


def _readable(text):
    shown = "".join(c if c.isprintable() else "□" for c in text.replace("\n", "↵"))
    return "".join(c if ord(c) < 0x530 or 0x2000 < ord(c) < 0x2200 or c == "□" else "□" for c in shown)


def _written(model, tokenizer, known, shown):
    start = known[-16:] if len(known) else shown[:1]
    tokens = generate(model, start[None], min(60, model.config.max_seq_len - len(start)), temperature=0.7, seed=0)
    return _readable(" ".join(tokenizer.decode(tokens[0, len(start) :].tolist()).split()))


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
