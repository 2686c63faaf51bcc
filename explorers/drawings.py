"""Two drawings that one notebook each shows: the map of a LLaMA (00), and which query head reads which KV head (04)."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from helpers.plots import HALF, INK, KEY, QUERY, VALUE


def plot_head_wiring(n_heads: int, n_kv_heads: int, *, ax=None, title=None) -> Axes:
    """Which query head reads which key/value head: query heads above, key/value heads below, joined by lines."""
    if not 0 < n_kv_heads <= n_heads or n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} is not a multiple of n_kv_heads={n_kv_heads}: choose one of its divisors.")
    ax = plt.subplots(figsize=HALF)[1] if ax is None else ax
    n_rep = n_heads // n_kv_heads
    middle = [(n_rep - 1) / 2 + n_rep * j for j in range(n_kv_heads)]
    for i in range(n_heads):
        ax.plot([i, middle[i // n_rep]], [1, 0.17], color=INK, lw=1.2, zorder=1)
        ax.plot(i, 1, "o", color=QUERY, ms=13)
        ax.text(i, 1.2, str(i), ha="center", va="bottom")
    for j, x in enumerate(middle):
        ax.plot(x - 0.2, 0, "s", color=KEY, ms=10)
        ax.plot(x + 0.2, 0, "^", color=VALUE, ms=10)
        ax.text(x, -0.2, str(j), ha="center", va="top")
    ax.set(xlim=(-0.6, n_heads - 0.4), ylim=(-0.55, 1.55), title=title, xticks=[])
    ax.set_yticks([0, 1], ["key/value\nhead", "query\nhead"])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def plot_llama_map(*, shapes=("(B, T)", "(B, T, D)", "(B, T, V)"), title=None) -> Axes:
    """One LLaMA from token ids to logits, with the shapes of ids, stream and logits as texts at its arrows."""
    _, ax = plt.subplots(figsize=(8.0, 4.2))

    def box(x, y, text):
        ax.add_patch(Rectangle((x - 0.75, y - 0.25), 1.5, 0.5, fc="white", ec=INK, lw=1.2, zorder=3))
        ax.text(x, y, text, ha="center", va="center", fontsize=9, zorder=4)

    def go(*points, says=shapes[1]):
        ax.plot(*zip(*points, strict=True), color=INK, lw=1.6)
        ax.annotate("", points[-1], points[-2], arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.6, "shrinkB": 0})
        x, y = np.mean(points[-2:], axis=0)
        ax.text(x, y + 0.06, says, ha="center", va="bottom", fontsize=9)

    ax.add_patch(Rectangle((0.1, 0.85), 7.8, 2.5, fc="#F4F4F4", ec=INK, lw=1, ls="--", zorder=0))
    ax.plot([1.3, 1.3], [3.9, 0.2], color=INK, lw=1.6)
    for x, text in ((0.4, "one block, n_layers times"), (1.0, "residual stream")):
        ax.text(x, 2.1, text, rotation=90, ha="center", va="center", fontsize=9)
    for y in (3.62, 0.63):
        ax.text(1.4, y, shapes[1], va="center", fontsize=9)
    for y, part in ((3.0, "attention 04\nRoPE 02"), (1.9, "SwiGLU\n03")):
        go((1.3, y), (2.0, y), says="")
        go((3.5, y), (4.7, y))
        go((6.2, y), (6.5, y), (6.5, y - 0.75), (1.43, y - 0.75))
        box(2.75, y, "RMSNorm\n01")
        box(5.45, y, part)
        ax.plot(1.3, y, "o", color=INK, ms=4)
        ax.plot(1.3, y - 0.75, "o", mfc="white", mec=INK, ms=14, zorder=3)
        ax.text(1.3, y - 0.77, "+", ha="center", va="center", zorder=4)
    go((3.1, 4.15), (2.05, 4.15), says=shapes[0])
    go((1.3, 0.2), (2.0, 0.2), says="")
    go((3.5, 0.2), (4.7, 0.2))
    go((6.2, 0.2), (7.9, 0.2), says=f"logits {shapes[2]}")
    for x, y, text in ((1.3, 4.15, "embedding"), (2.75, 0.2, "RMSNorm\n01"), (5.45, 0.2, "lm_head")):
        box(x, y, text)
    ax.set(xlim=(0, 8), ylim=(-0.1, 4.95), title=title)
    ax.axis("off")
    return ax
