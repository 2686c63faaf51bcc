"""The explorer of notebook 00: one word on its way through a LLaMA."""

import functools
import math

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from explorers.base import GREY, PALE, Explorer, arc, bare, bundled, slider, switch, within
from helpers.model import attention_weights, causal_visible, repeat_kv
from helpers.plots import FULL, HATCH, HIDDEN, INK, KEY, QUERY
from helpers.text import encode, load_tokenizer

SENTENCES = (  # of ten tokens each, every one a whole word
    "The function is called with the arguments of the function",
    "The class is called with the arguments of the class",
    "The name of a local variable is bound in the",
    "The type of the object must be a class object",
    "The value of the variable is the value of the",
    "In Python a function is an object that can be",
)
N, SHOWN = 10, 5


def explore_start() -> Explorer:
    """Whom a word reads in a block of the bundled model, how far the block turns it, which words are likeliest next."""
    model, tokenizer = bundled(), load_tokenizer()
    cos, sin, _ = model.rotation_and_mask(N)

    @functools.cache
    def run(sentence, skipped):  # of each block: attention (N, N), angles (N,) [rad]; probabilities (N, V)
        x, reads, turns = model.tok_embeddings(encode(tokenizer, sentence)[None]), [], []
        for i, block in enumerate(model.layers):
            q, k, _ = block.attention.rotated_qkv(block.attention_norm(x), cos, sin)
            reads.append(attention_weights(q, repeat_kv(k, model.config.n_rep), causal_visible(N, N))[0].mean(0))
            before, x = x, x if i == skipped else block(x, cos, sin)
            turns.append(torch.nn.functional.cosine_similarity(before, x, dim=-1)[0].clamp(-1, 1).arccos())
        return reads, turns, model.lm_head(model.final_norm(x))[0].softmax(-1)

    # What is fixed: a line for the words, a dial, an axis for probabilities.
    figure = Figure(figsize=FULL, dpi=110, layout="constrained", facecolor="white")
    places = [["text", "text"], ["dial", "after"]]
    text, dial, after = figure.subplot_mosaic(places, width_ratios=[1, 2], height_ratios=[1.1, 1]).values()
    bare(text, (-0.5, N - 0.5), (-0.75, 2.3), "auto")
    bare(dial, (-0.5, 1.45), (-0.05, 1.3))
    dial.plot(*arc(0, 2 * math.pi / 3, 1), color=HIDDEN, lw=1)
    for degree in range(0, 121, 30):
        (x, *_), (y, *_) = arc(math.radians(degree), 0, 1.17)
        dial.text(x, y, f"{degree}°", ha="center", va="center", fontsize=8, color=GREY)
    dial.plot([0, 0.95], [0, 0], color=PALE, lw=5, solid_capstyle="butt")
    after.set(xlim=(0, 1), ylim=(SHOWN - 0.4, -0.6), yticks=[], xlabel="probability; grey: with all blocks")

    # What moves: words, arcs to what is read, a curtain over what is hidden; the needle; bars with their words.
    curtain = text.add_patch(Rectangle((0, -0.75), N, 3.05, fc=HIDDEN, ec=HATCH, hatch="///", lw=0, zorder=1))
    words = [text.text(i, -0.2, "", ha="center", va="center", zorder=4) for i in range(N)]
    shares = [text.text(i, -0.58, "", ha="center", va="center", fontsize=8, color=KEY, zorder=4) for i in range(N)]
    arcs = [text.plot([], [], color=KEY, solid_capstyle="butt", zorder=2)[0] for _ in range(N)]
    (needle,), (turn,) = dial.plot([], [], color=INK, lw=2.5), dial.plot([], [], color=INK, lw=1)
    trained = after.barh(range(SHOWN), [0] * SHOWN, height=0.8, color=HIDDEN)
    bars = after.barh(range(SHOWN), [0] * SHOWN, height=0.45, color=INK)
    names = [after.text(0, i, "", va="center", fontsize=10) for i in range(SHOWN)]

    def draw(sentence, token, block, work):
        off = work == "is skipped"
        reads, turns, probabilities = run(sentence, block if off else None)
        weights, usual, said = reads[block][token].tolist(), run(sentence, None)[2][token], sentence.split()
        for i, (word, share, line) in enumerate(zip(words, shares, arcs, strict=True)):
            weight = 0 if off else weights[i]
            color, weigh = (QUERY, "bold") if i == token else (INK if i < token else GREY, "normal")
            word.set(text=said[i], color=color, fontweight=weigh)
            share.set_text(f"{weight:.0%}" if i <= token and not off else "")
            (x, y), half = arc(0, math.pi, 1), (token - i) / 2
            line.set_data(i + half + half * x, 0.05 + 2.1 * (max(half, 0) / 4) ** 0.6 * y)
            line.set(lw=12 * weight, alpha=min(1, 0.25 + 2 * weight) if i < token and weight else 0)
        curtain.set_x(token + 0.5)
        angle, strongest = turns[block][token].item(), weights.index(max(weights))
        needle.set_data([0, math.cos(angle)], [0, math.sin(angle)])
        turn.set_data(*arc(0, angle, 0.5))
        values, ids = probabilities[token].topk(SHOWN)
        likely = [_name(tokenizer.decode([one])) for one in ids.tolist()]
        for i, (value, own) in enumerate(zip(values.tolist(), usual[ids].tolist(), strict=True)):
            bars[i].set_width(value)
            trained[i].set_width(own)
            names[i].set(text=f"{likely[i]}  {value:.2f}", x=max(value, own) + 0.02)
        degrees = f"{math.degrees(angle):.0f}°"
        mostly = "nothing" if off else "mostly itself" if strongest == token else f"mostly “{said[strongest]}”"
        text.set_title(f"In block {block} “{said[token]}” reads {mostly}")
        dial.set_title(f"Block {block} turns it by {degrees}")
        after.set_title(f"After “{said[token]}” may come")
        return (
            f"Block {block} {work}. “{said[token]}” may read {token + 1} of {N} words, reads {mostly}, and is turned "
            f"by {degrees}. Likeliest next: “{likely[0]}”, probability {values[0]:.2f}."
        )

    controls = {
        "sentence": switch("text", SENTENCES, says="text “{}”"),
        "token": slider("position", 8, 0, N - 1),
        "block": slider("block", 2, 0, model.config.n_layers - 1),
        "work": switch("this block", ("works", "is skipped")),
    }
    parts = {("token", i): within(text, i - 0.5, -0.75, i + 0.5, 2.3) for i in range(N)}
    alt = "Ten words, arcs from one to those it reads, later ones behind a curtain; a dial with the block's turn; "
    return Explorer(figure, draw, controls, alt + "bars with the five likeliest next words.", parts)


def _name(text):
    return text.strip() or ("(space)" if "\n" not in text else "(new line)" if text == "\n" else "(new line, indented)")
