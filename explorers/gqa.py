"""The explorer of notebook 04: rules make a mask, a program applies it; six blocks later, who is moved by whom?"""

import functools

import numpy as np
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb

from explorers.base import Explorer, bare, bundled, new_figure, readable, slider, switch
from helpers import masks
from helpers.model import repeat_kv
from helpers.plots import HATCH, HIDDEN, INK, KEY, QUERY
from helpers.text import encode, load_tokenizer

AGAINST, N, AT = "#C00000", 12, torch.arange(12)  # the colour of what the rule forbids; tokens; their positions
RULES = {"two texts": (0.16, 0.9, 0.32, 1), "filler of 2": (0.34, 0.9, 0.5, 1), "prefix of 4": (0.52, 0.9, 0.68, 1)}


def _hide(scores, seen):
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


WAYS = {  # how a program hides keys: scores (..., T, S), visible (T, S), tokens in the cache -> weights
    "scores → −∞ (textbook)": lambda scores, seen, _: _hide(scores, seen),
    "scores × 0": lambda scores, seen, _: (scores * seen).softmax(-1),
    "weights × 0": lambda scores, seen, _: scores.softmax(-1) * seen,
    "scores → −∞, empty rows 0 (SDPA)": lambda scores, seen, _: _hide(scores, seen).nan_to_num(0),
    "scores → −∞, all see themselves": lambda scores, seen, _: _hide(scores, seen | torch.eye(N).bool()),
    "is_causal=True behind a cache": lambda scores, seen, n: _hide(scores, seen & ((AT[:, None] - n) % N >= AT)),
    "no mask while the cache is filled": lambda scores, seen, n: _hide(scores, seen | (n > AT) & (AT[:, None] < n)),
    "1 and 0, added to the scores": lambda scores, seen, _: (scores + seen.float()).softmax(-1),
    "inverted: True = hidden": lambda scores, seen, _: _hide(scores, ~seen).nan_to_num(0),
}


def explore_masks(window=0, rules=(), cached=0, way="scores → −∞ (textbook)") -> Explorer:
    """Left the weights of one trained head under a mask; right, after six blocks, which token moves whose logits."""
    (run, words), look = _model(), {"color": AGAINST, "weight": "bold", "va": "center", "ha": "center"}
    figure, (near, sums, far) = new_figure(3, width_ratios=[1, 0.3, 1])
    figure.set_size_inches(8.0, 4.0)
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.9))
    for ax, across, down in ((near, "key", "query"), (far, "token that is replaced", "token whose logits move")):
        bare(ax, (-0.5, N - 0.5), (N - 0.5, -0.5))
        ax.set(xticks=AT, yticks=AT, xlabel=across, ylabel=down)
        ax.tick_params(length=0)
    near.set_yticks(AT, [f"{word}  {t}" for t, word in enumerate(words)])
    sums.set(box_aspect=1 / 0.3, anchor="N", xlim=(0, 1.15), ylim=(N - 0.5, -0.5), yticks=[], xlabel="sum of weights")
    sums.axvline(1, color=INK, lw=1, ls=":")
    figure.text(0.02, 0.95, "causal, and …", va="center")
    box, middle = {"boxstyle": "round,pad=0.4", "ec": INK}, {"va": "center", "ha": "center"}
    at = {"transform": figure.transFigure, "in_layout": False, "bbox": box, **middle}
    chips = {name: near.text((x0 + x1) / 2, 0.95, name, **at) for name, (x0, _, x1, _) in RULES.items()}

    # What moves: cells, the outline of what the rule allows, bars, the border of the cache, NaN where there is one.
    cells = [ax.imshow(np.ones((2, 2, 3)), extent=(-0.5, N - 0.5, N - 0.5, -0.5)) for ax in (near, far)]
    outlines = [ax.add_collection(LineCollection([], colors=INK, lw=1.6, clip_on=False)) for ax in (near, far)]
    bars = [sums.add_collection(LineCollection([], colors=color, lw=11, capstyle="butt")) for color in (QUERY, AGAINST)]
    border = near.axhline(-0.5, color=KEY, lw=2.5, clip_on=False)
    nans = [sums.text(0.3, t, "", fontsize=9, **look) for t in AT] + [far.text(5.5, 5.5, "", fontsize=20, **look)]

    def draw(window, cached, way, clicked):
        rule = masks.causal(AT, AT) | masks.prefix(AT, AT, 4 * ("prefix of 4" in clicked))
        rule &= masks.sliding_window(AT, AT, window or N) & masks.left_padding(AT, AT, 2 * ("filler of 2" in clicked))
        rule &= masks.same_document(AT, AT, (AT >= 7).long() * ("two texts" in clicked))
        weights, moved = run(rule, cached, way)
        may = rule | torch.eye(N).bool() if "themselves" in way else rule
        reach = torch.linalg.matrix_power(may.double() + torch.eye(N).double(), 6) > 0  # through six blocks
        for image, outline, sizes, allowed in zip(cells, outlines, (weights, moved), (may, reach), strict=True):
            image.set_data(_picture(sizes, allowed))
            outline.set_segments([] if sizes.isnan().all() else _outline(allowed))
        for name, chip in chips.items():
            chip.set_color(INK)  # so that it is drawn anew
            chip.get_bbox_patch().set_facecolor("#CFE3F1" if name in clicked else "white")
        border.set_ydata([cached - 0.5 if cached else np.nan] * 2)
        empty, (seen, leak) = weights.isnan().any(-1), ((weights * part).sum(-1).nan_to_num(0) for part in (may, ~may))
        for bar, start, end in zip(bars, (0 * seen, seen), (seen, seen + leak), strict=True):
            bar.set_segments([((a, t), (b, t)) for a, b, t in zip(start, end, AT, strict=True) if b > a])
        for nan, there in zip(nans, [*empty, empty.any()], strict=True):
            nan.set_text("NaN" if there else "")
        after = f"{((moved > 0) & ~reach).sum()} leak, {((moved == 0) & reach).sum()} lost"
        near.set_title(f"One head: {may.sum()} of 144 pairs allowed")
        far.set_title(f"After six blocks: {'all is NaN' if empty.any() else after}")
        if empty.any():
            return f"{empty.sum()} of 12 queries see no key: 0 / 0 is NaN. After six blocks all is NaN."
        says = f"Rows sum to {(seen + leak).min():.2f} at least, hidden keys get {leak.max():.2f} at most. "
        return f"{says}After six blocks: {after}; token 11 is moved from up to {11 - int(moved[11].nonzero()[0])} back."

    controls = {
        "window": slider("window (0: none)", window, 0, N - 1),
        "cached": slider("tokens in the cache (above the line)", cached, 0, N - 1),
        "way": switch("how the program hides", WAYS),
    }
    alt = "Left: query down, key across, weights of one head, hidden cells hatched; bars of their sums. Right: which "
    alt += "token, if replaced, moves whose logits. Red: against the rule."
    explorer = Explorer(figure, draw, controls, alt, RULES, several=True)
    controls["way"].value, explorer.controls["clicked"].value = way, tuple(rules)
    return explorer


@functools.cache
def _model():
    # A function (rule, tokens in the cache, way) -> weights, and how far logits move (T, replaced token); the words.
    model, tokenizer = bundled(), load_tokenizer()
    tokens = encode(tokenizer, "The list is sorted. A name is bound.")
    others = torch.where(torch.eye(N + 1, N).roll(1, 0).bool(), (tokens + 400) % 1024, tokens)
    cos, sin, _ = model.rotation_and_mask(N)

    @torch.inference_mode()
    def run(rule, cached, way):
        x, kept = model.tok_embeddings(others), []  # row 0: the text; row 1 + s: with another token at s
        for block in model.layers:
            q, k, v = block.attention.rotated_qkv(block.attention_norm(x), cos, sin)
            kept.append(WAYS[way](q @ repeat_kv(k, 2).mT / 32**0.5, rule, cached))
            x = x + block.attention.o_proj((kept[-1] @ repeat_kv(v, 2)).transpose(1, 2).flatten(-2))
            x = x + block.feed_forward(block.ffn_norm(x))
        logits = model.lm_head(model.final_norm(x))
        moved = ((logits[1:] - logits[0]).norm(dim=-1) / logits[0].norm(dim=-1)).T  # (T, s)
        return kept[0][0, 1], torch.where(moved < 1e-6, 0, moved)

    return run, [readable(tokenizer, token) for token in tokens.tolist()]


def _picture(sizes, allowed):
    # Cells of 14 pixels, white to blue where the rule allows it; else hatched, grey, or red where something is.
    hue, least = torch.tensor([to_rgb(AGAINST), to_rgb(QUERY)])[allowed.long()], torch.where(allowed, 0.1, 0.5)
    color = 1 - (least + (1 - least) * sizes.nan_to_num(0).clamp(0, 1).sqrt())[..., None] * (1 - hue)
    color[sizes == 0], color[sizes.isnan()] = torch.tensor(to_rgb(HIDDEN)), torch.tensor(to_rgb("#F6D5D5"))
    hatched = ((sizes == 0) | ~allowed & ~sizes.isnan())[..., None]
    pixels, lines = (y.numpy().repeat(14, 0).repeat(14, 1) for y in (color, hatched))
    row, column = np.indices((14 * N, 14 * N, 1))[:2] % 14
    pixels = np.where(lines & ((row + column) % 5 == 0), to_rgb(HATCH), pixels)
    return (255 * np.where((row < 13) & (column < 13), pixels, 1)).astype(np.uint8)


def _outline(allowed):
    inside = np.pad(allowed.numpy(), 1)  # an edge stands where neighbours differ
    upright = [((s - 0.5, t - 1.5), (s - 0.5, t - 0.5)) for t, s in np.argwhere(inside[:, 1:] != inside[:, :-1])]
    return upright + [((s - 1.5, t - 0.5), (s - 0.5, t - 0.5)) for t, s in np.argwhere(inside[1:] != inside[:-1])]
