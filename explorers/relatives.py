"""The explorers of notebook 08: where a port differs from its reference, and who feels a swap if nothing turns.

Families are imported inside functions: the notebooks before 08 load this file, too.
"""

import functools
from copy import deepcopy

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

from explorers.base import GREY, Explorer, bare, new_figure, slider, switch
from helpers.interventions import outputs_of
from helpers.plots import HATCH, HIDDEN, INK, QUERY

RIGHT, N, RTOL = "nothing: a right port", 16, 1e-5  # tokens; what a part may be off, as in exercise 3
GREEN, AS_BEFORE = "#CFE5D8", "#EBEBEB"  # equal to the reference; as before
RED = LinearSegmentedColormap.from_list("off", ["#F6C9C4", "#D9534F", "#C00000", "#7A0016"])
PARTS = [f"layers.{layer}.{part}" for layer in range(3) for part in ("attention", "feed_forward")]
PARTS = {"embedding": "tok_embeddings"} | {f"layer {p[7]}: {p[9:].replace('_', '-')}": p for p in PARTS}
PARTS |= {"logits": "lm_head"}


def explore_ports(*bugs: str) -> Explorer:
    """Ports with a bug each: which part, at which token, returns something else than that of transformers?

    Args:
        bugs: those to choose from, with large weights; none: all of `beyond.families.bugs`, also with new weights.
    """
    from beyond.families.bugs import BUGS

    for family in {BUGS[bug][0] for bug in bugs or BUGS}:  # now, so that no choice waits for its models
        _pair(family, True), bugs or _pair(family, False)
    # What is fixed: a row for each part, a column for each token.
    figure, ax = new_figure(1)
    ax.set(xlim=(0, N), ylim=(len(PARTS), 0), xlabel="position [token]")
    ax.set_xticks(np.arange(N) + 0.5, range(N))
    ax.set_yticks(np.arange(len(PARTS)) + 0.5, PARTS)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)

    # What moves: the cells, and a ring around the first that differs.
    look = {"cmap": RED.with_extremes(under=GREEN, bad="#F8F8F8"), "norm": LogNorm(RTOL, 1), "edgecolors": "white"}
    cells = ax.pcolormesh(np.ones((len(PARTS), N)), lw=2, **look)
    ring = ax.add_patch(Rectangle((0, 0), 1, 1, fill=False, ec=INK, lw=2.6, zorder=5))
    bar = figure.colorbar(cells, ax=ax, label="off by, of the part's largest", pad=0.015, aspect=30, extend="min")
    bar.ax.minorticks_off()

    def draw(bug, n_tokens, reading, weights="large"):
        off = _gaps(bug, weights == "large", reading == "one by one")[:, :n_tokens]
        wrong, shown = off > RTOL, np.full((len(PARTS), N), np.nan)
        shown[:, :n_tokens] = np.where(wrong, off, RTOL / 10)
        cells.set_array(shown)
        rows, places = np.nonzero(wrong)
        ring.set_visible(len(rows) > 0)
        length = f"{n_tokens} token{'s' * (n_tokens > 1)} {reading}"
        if not len(rows):
            ax.set_title(f"{length}: nothing differs, the port passes")
            return "All parts return what those of transformers return. This test sees nothing wrong."
        place = places[rows == rows[0]].min()
        ring.set_xy((place, rows[0]))
        part = list(PARTS)[rows[0]].replace(":", "'s").replace("embedding", "the embedding")
        passed = not wrong[-1].any()
        ax.set_title(f"{length}: {part} differs first, at token {place}{'; the logits agree' * passed}")
        verdict = "Yet the logits agree: passed" if passed else "The logits differ: refused"
        return f"{len(rows)} of {off.size} outputs are wrong, first {part} at token {place}. {verdict}."

    controls = {
        "bug": switch("what is wrong", [*(bugs or BUGS), RIGHT]),
        "n_tokens": slider("text", 12, 1, N, unit="token"),
        "reading": switch("the port reads", ["at once", "one by one"]),
        **({} if bugs else {"weights": switch("weights", ["large", "new"])}),
    }
    alt = "A grid, parts of a model down and tokens across. Green cells equal those of transformers, red ones do not; "
    return Explorer(figure, draw, controls, alt + "the first part that differs has a ring.")


@functools.cache
@torch.no_grad()
def _pair(family, large):
    # What transformers' parts return, in the order of PARTS, and the right port.
    from beyond.families import load_checkpoint
    from beyond.families.reference import TOKENS, part_names, save_random

    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        (theirs, folder), names = save_random(family, large), part_names(3)
        wanted = outputs_of(theirs.cpu(), names.values(), (TOKENS[:, :N],))
        return [wanted[names[name]] for name in PARTS.values()], load_checkpoint(folder)


@functools.cache
@torch.inference_mode()
def _gaps(bug, large, cached):
    # How far each part is off at each token, (parts, N). No token feels a later one: fewer tokens are fewer columns.
    from beyond.families.bugs import BUGS
    from beyond.families.reference import TOKENS

    family, change = BUGS.get(bug, ("mistral", lambda model: None))
    wanted, right = _pair(family, large)
    change(ours := deepcopy(right))
    pieces, cache = (TOKENS[:, :N].split(1, 1), (ours.new_cache(1),)) if cached else ((TOKENS[:, :N],), ())
    made = outputs_of(ours, PARTS.values(), pieces, *cache)
    off = [(made[name] - want).abs()[0] / want.abs().max() for name, want in zip(PARTS.values(), wanted, strict=True)]
    return torch.stack([one.amax(-1) for one in off]).numpy()


MASKED = {"no layer": (), "all layers": (0, 1, 2), "layer 0": (0,), "layer 1": (1,), "layer 2": (2,)}
WORDS, SWAPPED = "abfdecghijklmn", (2, 5)  # of the text: a letter for each of 14 tokens, two of which are swapped


def explore_order() -> Explorer:
    """Three layers of random weights, no RoPE: whose numbers change, after which layer, if two tokens are swapped?"""
    n = len(WORDS)
    figure, ax = new_figure(1)
    bare(ax, (-0.05, n + 2), (-0.75, 4.5), "auto")
    ax.set(yticks=np.arange(4) + 0.5, xticks=np.arange(n) + 0.5, xlabel="position [token]")
    ax.set_yticklabels(["the text", *(f"after layer {layer}" for layer in range(3))])
    ax.set_xticklabels(range(n))
    ax.tick_params(length=0)
    ax.text(n + 1.25, 4.1, "its mask", ha="center", fontsize=9)
    for y in (1, 2, 3):  # what each layer sees, queries down and keys across: hatched, and white on it
        ax.add_patch(Rectangle((n + 0.75, y + 0.1), 1, 0.8, fc=HIDDEN, ec=HATCH, hatch="/////", lw=0))

    colors = LinearSegmentedColormap.from_list("felt", [AS_BEFORE, QUERY])
    look = {"cmap": colors, "vmin": 0, "vmax": 1, "edgecolors": "white", "lw": 7}
    ax.pcolormesh(range(n + 1), [0, 1], np.isin(range(n), SWAPPED)[None], **look)
    for x, letter in enumerate(WORDS):
        color, weight = ("white", "bold") if x in SWAPPED else (GREY, "normal")
        ax.text(x + 0.5, 0.5, letter, ha="center", va="center_baseline", fontsize=12, color=color, fontweight=weight)
    arrow = {"arrowstyle": "<->", "lw": 2, "color": INK, "mutation_scale": 16, "connectionstyle": "arc3,rad=0.29"}
    ax.add_patch(FancyArrowPatch((SWAPPED[0] + 0.5, 0), (SWAPPED[1] + 0.5, 0), **arrow))

    # What moves: the cells, and what each layer's mask shows. The last token, which speaks, is framed.
    cells = ax.pcolormesh(range(n + 1), range(1, 5), np.zeros((3, n)), **look)
    masks = [ax.add_patch(Polygon([(0, 0)] * 4, fc="white", ec=INK, lw=1.5)) for _ in range(3)]
    nones = [ax.text(n + 1.25, y, "", ha="center", va="center", fontsize=9, color=GREY) for y in (1.5, 2.5, 3.5)]
    last = ax.add_patch(Rectangle((n - 0.92, 3.08), 0.84, 0.84, fill=False, lw=2.4, zorder=5))

    def draw(masked):
        felt = _felt(MASKED[masked])
        cells.set_array(felt)
        last.set_edgecolor(INK)  # so that it is drawn anew, above the cells
        for layer, mask in enumerate(masks):  # a triangle, or all of the square
            left, low, sees_all = n + 0.75, layer + 1.1, layer not in MASKED[masked]
            mask.set_xy([(left, low + 0.8), (left + sees_all, low + 0.8), (left + 1, low), (left, low)])
            nones[layer].set_text("none" * sees_all)
        notices = "notices" if felt[-1, -1] else "does not notice"
        ax.set_title(f"The last token {notices} that c and f have changed places")
        return f"Blue: other numbers than before. After the three layers, {felt[-1].sum():.0f} of {n} tokens have some."

    controls = {"masked": switch("a causal mask in", MASKED)}
    alt = "A text of 14 letters, two of which have changed places, and the tokens after each of three layers: blue "
    return Explorer(figure, draw, controls, alt + "where this changes their numbers. Right: each layer's mask.")


@functools.cache
@torch.no_grad()
def _felt(masked):
    # Whether each token after each layer is another one since the swap, (3, 14).
    from beyond.families import load_checkpoint
    from beyond.families.reference import TOKENS, save_random

    with torch.random.fork_rng(devices=[]):
        model = load_checkpoint(save_random("smollm3", no_rope_layers=[0] * 3)[1])
    n, found = len(WORDS), []
    texts = TOKENS[:, :n].repeat(2, 1)
    texts[1, [*SWAPPED]] = texts[0, [*SWAPPED[::-1]]]
    cos, sin, _ = model.rotation_and_mask(n)
    masks, x = [None if layer in masked else torch.ones(n, n) > 0 for layer in range(3)], model.tok_embeddings(texts)
    for layer, block in enumerate(model.layers):
        x = block(x, cos, sin, masks, None, layer)
        found.append((x[0] - x[1]).abs().amax(-1) > 1e-4 * x.abs().max())
    return torch.stack(found).numpy()
