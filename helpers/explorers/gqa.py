"""Explorers of notebook 04: masks, and what heads share."""

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.patches import Rectangle

from helpers import masks
from helpers.explorers.base import GREY, Explorer, bare, choice, new_figure, slider
from helpers.plots import HIDDEN, INK, KEY, QUERY

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


def explore_heads() -> Explorer:
    """Which key/value head each query head reads, and what the cache of a model like Llama 3 8B then needs."""
    n_layers, head_dim, sizes = 32, 128, {"float32": 4, "bfloat16": 2, "int8": 1}

    # What is fixed: room for two rows of heads, and a scale of memory with the sizes of common devices.
    figure, (wires, memory) = new_figure(2, width_ratios=[1.3, 1])
    bare(wires, (-0.6, 10.6), (-0.75, 1.4))
    wires.set(aspect="auto")
    memory.set(xscale="log", xlim=(0.01, 1000), ylim=(-0.6, 1.6), yticks=(0, 1), yticklabels=("chosen", "as MHA"))
    memory.set(xlabel="cache [GB]", xticks=(0.01, 0.1, 1, 10, 100, 1000))
    memory.grid(axis="x", lw=0.4)
    for size in (8, 24, 80):
        memory.axvline(size, color=GREY, lw=1, ls=":")
        memory.text(size, 1.62, size, ha="center", fontsize=9)

    # What moves: the heads, the lines that join who reads whom, and a point for each cache.
    (lines,) = wires.plot([], [], color=GREY, lw=1)
    (queries,) = wires.plot([], [], "o", color=QUERY, ms=7, label="query heads")
    (keys,) = wires.plot([], [], "s", color=KEY, ms=8, label="key/value heads")
    wires.legend(loc="lower center", ncols=2)
    (points,) = memory.plot([], [], "D", color=INK, ms=9)

    def draw(n_heads, n_kv_heads, context, dtype):
        shared = min(n_kv_heads, n_heads)
        group = n_heads // shared
        top = np.linspace(0, 10, n_heads)
        bottom = top.reshape(shared, group).mean(axis=1)
        ends = np.stack((top, np.repeat(bottom, group), np.full(n_heads, np.nan)), axis=1)
        lines.set_data(ends.reshape(-1), np.tile((1, 0, np.nan), n_heads))
        queries.set_data(top, np.ones(n_heads))
        keys.set_data(bottom, np.zeros(shared))
        gigabytes = [2 * n_layers * heads * head_dim * context * sizes[dtype] / 1e9 for heads in (shared, n_heads)]
        points.set_data(gigabytes, (0, 1))
        kind = "MHA" if shared == n_heads else "MQA" if shared == 1 else "GQA"
        heads = "query head" if group == 1 else "query heads"
        wires.set_title(f"{kind}: {group} {heads} per key/value head")
        memory.set_title(f"{context:,.0f} tokens: {gigabytes[0]:.3g} GB\n")
        clipped = f" There cannot be {n_kv_heads} key/value heads." if shared < n_kv_heads else ""
        return (
            f"{n_heads} query heads read {shared} key/value heads.{clipped} Cache: 2 × {n_layers} layers × {shared} × "
            f"{head_dim} × {context:,.0f} tokens × {sizes[dtype]} bytes = {gigabytes[0]:.3g} GB; with a key/value head "
            f"for each query head {gigabytes[1]:.3g} GB. Dotted: 8, 24 and 80 GB."
        )

    # Which controls.
    controls = {
        "n_heads": choice("query heads", (32, 16, 8, 4)),
        "n_kv_heads": choice("key/value heads", (8, 4, 2, 1, 16, 32)),
        "context": slider("context", 8192.0, 3, 6, 0.1, unit="token", log=True),
        "dtype": choice("numbers", ("bfloat16", "float32", "int8")),
    }
    alt = "Left: query heads above, key/value heads below, lines join who reads whom. Right: the cache in GB, "
    return Explorer(figure, draw, controls, alt + "chosen and as MHA, logarithmic, with lines at 8, 24 and 80 GB.")
