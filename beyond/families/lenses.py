"""Both lenses of whole models in one picture, for notebook 08."""

import math

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from helpers.plots import HATCH, HIDDEN, INK, to_numpy


def plot_layers(lenses, *, n_tokens=8192, after=1000, ax=None, title=None) -> Axes:
    """Both lenses of several models, a row each: for every layer a clock with a hand for each pair, and its mask.

    Lenses are {name: (speeds, windows)}; speeds (n_layers, h/2) [rad/token], of which 16 pairs are drawn, as they stand
    after some tokens: dark before a full turn, pale behind it; none where a pair stands still (0). Windows: tokens that
    each layer sees; None: all. Masks are to scale, for n_tokens.
    """
    n_layers = max(len(windows) for _, windows in lenses.values())
    ax, right = (
        ax or plt.subplots(figsize=(8.0, 0.62 * len(lenses) + 0.9))[1],
        2.3 * n_layers + 1.2,
    )  # where masks begin
    for row, (speeds, windows) in enumerate(lenses.values()):
        for layer, (all_pairs, window) in enumerate(zip(to_numpy(speeds), windows, strict=True)):
            x, y, pairs = 2.3 * layer, 2.3 * row, all_pairs[:: max(1, len(all_pairs) // 16)]
            still = {"fc": HIDDEN, "ec": HATCH, "hatch": "////", "lw": 0}
            ax.add_patch(plt.Circle((x, y), 1, **{"fc": "white", "ec": HIDDEN, "lw": 1.2} if pairs.any() else still))
            for angle in pairs[pairs > 0] * after:
                pale = angle > 2 * math.pi
                look = {"color": "#B0B0B0", "lw": 0.6} if pale else {"color": INK, "lw": 1.1, "zorder": 3}
                ax.plot([x, x + math.cos(angle)], [y, y - math.sin(angle)], **look)
            ax.add_patch(Rectangle((right + x - 1, y - 1), 2, 2, **still))
            seen = 2 * min(window or n_tokens, n_tokens) / n_tokens  # of a side of 2, from the diagonal down
            corners = np.add([(0, 0), (2, 2), (2 - seen, 2), (0, seen)], (right + x - 1, y - 1))
            ax.add_patch(plt.Polygon(corners, fc="white", ec=INK, lw=0.8))
    ticks = 2.3 * np.arange(n_layers)
    ax.set(xlim=(-1.2, right + ticks[-1] + 1.1), ylim=(2.3 * len(lenses) - 1.2, -1.9), aspect="equal", title=title)
    ax.text(-1, -1.3, f"angle lens: 16 pairs after {after:,} tokens")
    ax.text(right - 1, -1.3, f"mask lens: {n_tokens:,} tokens")
    ax.set_xticks([*ticks, *right + ticks], 2 * [*range(n_layers)])
    ax.set_yticks(2.3 * np.arange(len(lenses)), lenses)
    ax.set(xlabel="layer")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax
