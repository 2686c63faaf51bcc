"""The explorers of notebook 02: clock hands, and which coordinates a layout pairs."""

import math

import numpy as np
import torch
from matplotlib.patches import Circle, Polygon, Rectangle
from torch.nn import functional as F

from helpers.explorers.base import GREY, Explorer, arc, bare, choice, new_figure, slider
from helpers.model import apply_rope, rope_angles, rope_inv_freq
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
    hands, tips = {}, {}
    for name, (color, marker, style) in looks.items():
        hands[name] = [ax.plot([], [], color=color, ls=style, lw=1.8)[0] for ax in (clocks, large)]
        tips[name] = [ax.plot([], [], marker, color=color, ms=4 if ax is clocks else 8)[0] for ax in (clocks, large)]
        large.plot([], [], color=color, ls=style, marker=marker, label=name)
    large.legend(loc="lower center", ncols=2, fontsize=9)

    def draw(position, distance, base, pair, scaling, factor):
        positions = torch.tensor([position, max(position - distance, 0)])
        distance = position - positions[1].item()
        kind = None if scaling == "none" else {"type": scaling, "factor": factor}
        speeds = rope_inv_freq(head_dim, base, kind)
        angles = rope_angles(positions, speeds).numpy()
        for name, row in zip(looks, angles, strict=True):
            ends = np.stack((np.cos(row), np.sin(row)), axis=-1)
            hands[name][0].set_data(np.stack((centres, centres + ends, np.nan * ends), axis=1).reshape(-1, 2).T)
            tips[name][0].set_data((centres + ends).T)
            hands[name][1].set_data(*np.stack(((0, 0), ends[pair])).T)
            tips[name][1].set_data(ends[[pair]].T)
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
        "position": slider("position of the query", 20, 0, 512, unit="token"),
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


def explore_rope_layout() -> Explorer:
    """Which coordinates of a head of 16 form a pair in each layout, and which rows of q_proj they come from."""
    head_dim, n_pairs, head, layouts = 16, 8, 1, ("halves", "interleaved")
    pairs = {layout: [_mixed_by(pair, head_dim, layout) for pair in range(n_pairs)] for layout in layouts}
    speeds = rope_inv_freq(head_dim).tolist()

    # What is fixed: a box for each coordinate, with its number and its row of q_proj below.
    figure, ax = new_figure(1)
    bare(ax, (-3.6, head_dim - 0.4), (-2.6, 2.6))
    ax.set(aspect="auto")
    for y, text in ((0, "coordinate\nof the head"), (-1.1, "row of q_proj"), (-2.1, "its row in the\nother layout")):
        ax.text(-0.8, y, text, ha="right", va="center", fontsize=9)
    for i in range(head_dim):
        ax.add_patch(Rectangle((i - 0.42, -0.4), 0.84, 0.8, fill=False, ec=GREY, lw=1))
        for y, number in ((0, i), (-1.1, head * head_dim + i)):
            ax.text(i, y, number, ha="center", va="center", fontsize=9)

    # What moves: the arcs that join pairs, the frames around the chosen pair, the rows of the other layout.
    others = [ax.text(i, -2.1, "", ha="center", va="center", fontsize=9) for i in range(head_dim)]
    arcs = [ax.plot([], [])[0] for _ in range(n_pairs)]
    marks = [ax.add_patch(Rectangle((0, -2.5), 0.9, 2.95, fill=False, ec=INK, lw=2.5)) for _ in range(2)]

    def draw(layout, pair):
        other = layouts[layout == layouts[0]]
        for index, (first, second) in enumerate(pairs[layout]):
            wide, chosen = (second - first) / 2, index == pair
            across, up = arc(0, math.pi, 1)
            arcs[index].set_data((first + second) / 2 + wide * across, 0.45 + (0.6 + 0.3 * wide) * up)
            arcs[index].set(color=INK if chosen else HIDDEN, lw=2.5 if chosen else 1.2, zorder=3 if chosen else 2)
        first, second = pairs[layout][pair]
        rows = {here: head * head_dim + there for here, there in zip((first, second), pairs[other][pair], strict=True)}
        for here, text in enumerate(others):
            text.set_text(rows.get(here, ""))
        for mark, i in zip(marks, (first, second), strict=True):
            mark.set_x(i - 0.45)
        ax.set_title(f"Layout {layout}: pair {pair} is coordinates {first} and {second}")
        return (
            f"Layout {layout}: pair {pair} of head {head} is coordinates {first} and {second}, made by rows "
            f"{head * head_dim + first} and {head * head_dim + second} of q_proj, and turns by {speeds[pair]:.3g} "
            f"rad/token. In layout {other} these rows are {rows[first]} and {rows[second]}."
        )

    # Which controls.
    controls = {"layout": choice("layout", layouts), "pair": slider("pair index", 2, 0, n_pairs - 1)}
    alt = (
        "Sixteen numbered boxes, the coordinates of a head; arcs join the two of each pair, the chosen pair is framed. "
    )
    return Explorer(figure, draw, controls, alt + "Below: rows of q_proj; for the chosen two, their other rows.")


def _mixed_by(pair, head_dim, layout):
    # Asked of apply_rope itself: turn this one pair by a quarter and see which two coordinates change.
    quarter = F.one_hot(torch.tensor([pair]), head_dim // 2).float()
    unit = torch.eye(head_dim)[None, :, None]  # (1, h, 1, h): head i holds the i-th unit vector
    changed = (apply_rope(unit, 1 - quarter, quarter, layout) != unit).any(dim=-1)
    return changed.flatten().nonzero().flatten().tolist()
