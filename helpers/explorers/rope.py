"""The explorer of notebook 02: clock hands."""

import math

import numpy as np
import torch
from matplotlib.patches import Circle, Polygon

from helpers.explorers.base import Explorer, arc, bare, choice, new_figure, slider
from helpers.model import rope_angles, rope_inv_freq
from helpers.plots import HIDDEN, INK, KEY, QUERY


def explore_rope() -> Explorer:
    """Clock hands of the eight pairs of a head of 16, for a query and a key, and one pair enlarged."""
    head_dim, n_pairs, looks = 16, 8, {"query": (QUERY, "o", "-"), "key": (KEY, "s", "--")}

    # What is fixed: eight clocks on the left and one large clock on the right.
    figure, (clocks, large) = new_figure(2, width_ratios=[1.7, 1])
    bare(clocks, (-1.5, 10.5), (-5.6, 1.3))
    bare(large, (-1.5, 1.5), (-1.7, 1.5))
    centres = np.array([(3 * (pair % 4), -3.6 * (pair // 4)) for pair in range(n_pairs)])
    for i, (x, y) in enumerate(centres):
        clocks.add_patch(Circle((x, y), 1, fill=False, ec=HIDDEN, lw=1.2))
        clocks.text(x, y - 1.25, f"pair {i}", ha="center", va="top", fontsize=9)
    clocks.set_title("Below each pair: tokens for one full turn")
    large.add_patch(Circle((0, 0), 1, fill=False, ec=HIDDEN, lw=1.5))

    # What moves: the hands with their tips, the ring around the chosen clock, the wedge between its hands, the texts.
    chosen = clocks.add_patch(Circle((0, 0), 1.15, fill=False, ec=INK, lw=1.5))
    waves = [clocks.text(x, y - 1.65, "", ha="center", va="top", fontsize=9) for x, y in centres]
    wedge = large.add_patch(Polygon([(0, 0)], fc=HIDDEN, ec=INK, lw=1, alpha=0.6))
    sign = large.text(0, 0, "", ha="center", va="center")
    hands = []
    for name, (color, marker, style) in looks.items():
        look = {"color": color, "ls": style, "marker": marker, "markevery": (1, 3)}  # a hand's end is its second point
        hands.append([ax.plot([], [], lw=1.8, ms=size, **look)[0] for ax, size in ((clocks, 4), (large, 8))])
        large.plot([], [], color=color, ls=style, marker=marker, label=name)
    large.legend(loc="lower center", ncols=2, fontsize=9)

    def draw(position, distance, base, pair, scaling, factor):
        positions = torch.tensor([position, max(position - distance, 0)])
        distance = position - positions[1].item()
        kind = None if scaling == "none" else {"type": scaling, "factor": factor}
        if scaling == "llama3":
            kind["original_max_position_embeddings"] = 256  # as the model of the notebook was trained
        speeds = rope_inv_freq(head_dim, base, kind)
        angles = rope_angles(positions, speeds).numpy()
        for (small, enlarged), row in zip(hands, angles, strict=True):
            ends = np.stack((np.cos(row), np.sin(row)), axis=-1)
            small.set_data(np.stack((centres, centres + ends, np.nan * ends), axis=1).reshape(-1, 2).T)
            enlarged.set_data(*np.stack(((0, 0), ends[pair])).T)
        chosen.center = centres[pair]
        for text, wavelength in zip(waves, (2 * math.pi / speeds).tolist(), strict=True):
            text.set_text(f"{wavelength:,.1f}" if wavelength < 100 else f"{wavelength:,.0f}")
        speed, start = speeds[pair].item(), angles[1, pair].item()
        turns, rest = divmod(distance * speed, 2 * math.pi)
        wedge.set_xy(np.vstack(((0, 0), np.transpose(arc(start, start + rest, 0.5)))))
        degrees = f"{math.degrees(rest):.1f}°"
        sign.set(text=degrees, x=1.25 * math.cos(start + rest / 2), y=1.25 * math.sin(start + rest / 2))
        angle = f"{turns:.0f} turns + {degrees}" if turns else degrees
        large.set_title(f"Pair {pair}: {angle} apart")
        return (
            f"Query at {position}, key at {positions[1]}: pair {pair} differs by {distance} token × {speed:.3g} "
            f"rad/token = {distance * speed:.3g} rad ({angle}). It turns once in {waves[pair].get_text()} tokens."
        )

    # Which controls.
    controls = {
        "position": slider("position of the query", 20, 0, 512, says="query at {}"),
        "distance": slider("distance to the key", 3, 0, 512, unit="token"),
        "base": slider("base", 10_000.0, 2, 6, 0.1, log=True),
        "pair": slider("pair index", 2, 0, n_pairs - 1),
        "scaling": choice("scaling", ("none", "linear", "ntk", "llama3")),
        "factor": slider("scaling factor", 8, 1, 32),
    }
    controls["factor"].disabled = True
    controls["scaling"].observe(lambda change: setattr(controls["factor"], "disabled", change.new == "none"), "value")
    alt = "Eight clocks, one per pair of coordinates, with a solid blue query hand and a dashed vermillion key hand, "
    return Explorer(figure, draw, controls, alt + "and one clock enlarged with the angle between its hands.")
