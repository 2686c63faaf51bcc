"""The explorer of notebook 00: one word on its way through a LLaMA."""

import functools
import math

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, arc, bare, bundled, slider, switch, within
from helpers.device import set_seed
from helpers.model import TransformerBlock, attention_weights, causal_visible, repeat_kv
from helpers.plots import FULL, HATCH, HIDDEN, INK, KEY, QUERY
from helpers.text import encode, load_tokenizer

SENTENCE = "The {0} is called with the arguments of the {0}"  # of ten tokens, every one a whole word
NOUNS = ("function", "class", "name", "object", "module", "string", "value", "type", "method")
N, SHOWN = 10, 5


def explore_start() -> Explorer:
    """Whom a word reads in a block of the bundled model, how far the block turns it, which words are likeliest next."""
    model, tokenizer = bundled(), load_tokenizer()
    cos, sin, _ = model.rotation_and_mask(N)

    @functools.cache
    def run(noun, skipped):  # of each block: attention (N, N), angles (N,) [rad]; probabilities (N, V)
        x, reads, turns = model.tok_embeddings(encode(tokenizer, SENTENCE.format(noun))[None]), [], []
        for i, block in enumerate(model.layers):
            q, k, _ = block.attention.rotated_qkv(block.attention_norm(x), cos, sin)
            reads.append(attention_weights(q, repeat_kv(k, model.config.n_rep), causal_visible(N, N))[0].mean(0))
            before, x = x, x if i == skipped else block(x, cos, sin)
            turns.append(F.cosine_similarity(before, x, dim=-1)[0].clamp(-1, 1).arccos())
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

    def draw(noun, token, block, work):
        off, said = work == "is skipped", SENTENCE.format(noun).split()
        reads, turns, probabilities = run(noun, block if off else None)
        weights, usual = reads[block][token].tolist(), run(noun, None)[2][token]
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
        most = "itself" if strongest == token else f"“{said[strongest]}”"
        most = "reads nothing" if off else f"reads {most} most ({max(weights):.0%})"
        text.set_title(f"In block {block} “{said[token]}” {most}")
        dial.set_title(f"Block {block} turns it by {degrees}")
        after.set_title(f"After “{said[token]}”, “{likely[0]}” is likeliest")
        return (
            f"Block {block} {work}. “{said[token]}” may read {token + 1} of {N} words, {most}, and is turned "
            f"by {degrees}. Likeliest next: “{likely[0]}”, probability {values[0]:.2f}."
        )

    controls = {
        "noun": switch("noun", NOUNS),
        "token": slider("position", 8, 0, N - 1),
        "block": slider("block", 2, 0, model.config.n_layers - 1),
        "work": switch("this block", ("works", "is skipped")),
    }
    parts = {("token", i): within(text, i - 0.5, -0.75, i + 0.5, 2.3) for i in range(N)}
    alt = "Ten words, arcs from one to those it reads, later ones behind a curtain; a dial with the block's turn; "
    return Explorer(figure, draw, controls, alt + "bars with the five likeliest next words.", parts)


def _name(text):
    if "\ufffd" in text:  # one token of several that make a letter
        return "(part of a character)"
    return text.strip() or ("(space)" if "\n" not in text else "(new line)" if text == "\n" else "(new line, indented)")


def _keeps(keep):
    """For a block that makes y of x: of keep(x, y) the direction of each first vector and the length of each second."""
    return lambda block, x, *rest: _as_long(*keep(x, TransformerBlock.forward(block, x, *rest)))


def random_turn(block, x, *rest):
    """Each vector turned by the block's angle and made as long as the block makes it, but off to a random side."""
    y, noise = TransformerBlock.forward(block, x, *rest), torch.randn(x.shape, generator=set_seed(1)).to(x.device)
    unit = F.normalize(x, dim=-1)
    y_along, noise_along = ((v * unit).sum(dim=-1, keepdim=True) * unit for v in (y, noise))
    return y_along + _as_long(noise - noise_along, y - y_along)


def _as_long(vectors, others):
    return F.normalize(vectors, dim=-1) * others.norm(dim=-1, keepdim=True)


HALVES = {  # stand-ins of notebook 00, 0.4
    "only its turn": _keeps(lambda x, y: (y, x)),
    "its turn, one factor": _keeps(lambda x, y: (y, x * (y.norm(dim=-1).mean() / x.norm(dim=-1).mean()))),
    "only its length": _keeps(lambda x, y: (x, y)),
    "a random turn": random_turn,
}
