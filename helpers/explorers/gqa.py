"""Explorer of notebook 04: masks."""

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.patches import Rectangle

from helpers import masks
from helpers.explorers.base import Explorer, choice, new_figure, slider
from helpers.plots import HIDDEN, INK

RULES = {
    "causal": ("key ≤ query", lambda q, k, size: masks.causal(q, k)),
    "sliding window": (
        "key ≤ query and key > query − {size}",
        lambda q, k, size: masks.causal(q, k) & masks.sliding_window(q, k, size),
    ),
    "left padding": (
        "key ≤ query and key ≥ {size}",
        lambda q, k, size: masks.causal(q, k) & masks.left_padding(q, k, size),
    ),
    "packed documents": (
        "key ≤ query and both in one document of {size}",
        lambda q, k, size: masks.causal(q, k) & masks.same_document(q, k, torch.arange(16) // size),
    ),
    "prefix": ("key ≤ query or key < {size}", lambda q, k, size: masks.causal(q, k) | masks.prefix(q, k, size)),
}


def explore_mask() -> Explorer:
    """A mask for up to 8 new tokens after up to 8 cached ones, and the weights that one set of scores gets under it."""
    # What is fixed: hatching under both pictures, which shows wherever a key is hidden.
    scores = 2 * torch.randn(8, 16, generator=torch.Generator().manual_seed(3))
    figure, axes = new_figure(2)
    for ax in axes:
        ax.add_patch(Rectangle((-0.5, -0.5), 16, 8, fc=HIDDEN, ec="#8A8A8A", hatch="////", lw=0, zorder=-2))
        ax.set(xticks=range(0, 16, 2), yticks=range(0, 8, 2), xlabel="key position [token]")
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("new token")
    figure.colorbar(ScalarMappable(cmap="viridis"), ax=axes, label="weight", shrink=0.6)

    # What moves: the cells of both pictures, transparent where a key is hidden, and a frame around them.
    cells = {"aspect": "auto", "interpolation": "nearest", "zorder": -1}
    pictures = [ax.imshow(np.ones((8, 16, 4), dtype=np.uint8), **cells) for ax in axes]
    border = {"fill": False, "ec": INK, "lw": 1.5, "clip_on": False}
    frames = [ax.add_patch(Rectangle((-0.5, -0.5), 1, 1, **border)) for ax in axes]

    def draw(rule, new, cached, size):
        key = torch.arange(cached + new)
        query, (words, visible_by) = key[cached:], RULES[rule]
        visible = visible_by(query, key, size)
        weights = scores[:new, : len(key)].masked_fill(~visible, -torch.inf).softmax(dim=-1)  # nan: an empty row
        by_weight = colormaps["viridis"](weights.numpy(), bytes=True)
        for picture, colors in zip(pictures, (np.full((new, len(key), 4), 255), by_weight), strict=True):
            whole = np.full((8, 16, 4), 255, dtype=np.uint8)
            whole[:new, : len(key)] = colors
            whole[:new, : len(key), 3] = 255 * visible.numpy()  # hidden cells show the hatching below
            picture.set_data(whole)
        for frame in frames:
            frame.set(width=len(key), height=new)
        empty = int((~visible.any(dim=1)).sum())
        axes[0].set_title(f"{rule}: {int(visible.sum())} of {visible.numel()} pairs")
        axes[1].set_title("one set of scores, its weights")
        warning = f" New tokens that see no key at all: {empty}; their softmax is nan." if empty else ""
        return (
            f"{new} new tokens at positions {cached} to {cached + new - 1}, after {cached} cached ones. "
            f"Rule: {words.format(size=size)}. Visible: {int(visible.sum())} of {visible.numel()} pairs.{warning}"
        )

    # Which controls.
    controls = {
        "rule": choice("rule", RULES),
        "new": slider("new tokens", 7, 1, 8),
        "cached": slider("cached before", 4, 0, 8, unit="token"),
        "size": slider("size in the rule", 6, 1, 8, unit="token"),
    }
    controls["size"].disabled = True  # the causal rule has no size
    controls["rule"].observe(lambda change: setattr(controls["size"], "disabled", change.new == "causal"), "value")
    alt = "Left: which key each new token may see, white yes, hatched no, framed. Right: attention weights under it. "
    return Explorer(figure, draw, controls, alt + "New tokens down, key positions across.")
