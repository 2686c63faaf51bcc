"""The explorers of notebook 01: what two norms do to an arrow, and how long vectors may be in a trained LLaMA."""

import math

import numpy as np
import torch
from matplotlib.colors import to_rgb
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, arc, bare, new_figure, slider, switch, within
from helpers.assets import stored_result
from helpers.model import RMSNorm
from helpers.plots import HIDDEN, INK

AGAINST = "#C00000"
EPS = 1e-5  # of both norms


def explore_rms_norm() -> Explorer:
    """What RMSNorm and LayerNorm do to an arrow of two numbers: the angle each turns it by, and its length after."""
    # What is fixed: a plane with the circle of length √2 and the line of mean 0.
    figure, plane = new_figure(1)
    plane.set(xlim=(-2.7, 2.7), ylim=(-2.7, 2.7), aspect="equal", xlabel="coordinate 0", ylabel="coordinate 1")
    plane.plot(*arc(0, 2 * math.pi, math.sqrt(2)), color=HIDDEN, lw=1.2)
    plane.text(0, 1.54, "length √2", color=GREY, fontsize=9, ha="center")
    plane.plot([-2.7, 2.7], [2.7, -2.7], color=HIDDEN, lw=1.2, ls=":")
    plane.text(2.75, -2.6, "mean = 0", color=GREY, fontsize=9, clip_on=False)  # where no arrow comes

    # What moves: x, and its mean taken away; what each norm makes of it.
    before = _Arrow("x", plane, color=PALE, tip=PALE, width=6)
    (gone,) = plane.plot([], [], color=INK, lw=1.2, ls=":", label="mean taken away")
    by_rms = _Arrow("RMSNorm(x)", plane, color=INK, tip=INK, arc_radius=1.7, side=-0.35)
    by_layer = _Arrow("LayerNorm(x)", plane, color=INK, tip="white", style="--", arc_radius=2.1, side=0.5)
    plane.legend(loc="center left", bbox_to_anchor=(1.1, 0.5))

    def draw(direction, length, gain):
        angle = torch.tensor(math.radians(direction))
        x = length * torch.stack((angle.cos(), angle.sin()))
        norm = RMSNorm(2, EPS).requires_grad_(False)
        norm.weight[1] = gain
        before.move(x, x)
        rms_angle, rms_length = by_rms.move(x, norm(x))
        layer_angle, layer_length = by_layer.move(x, F.layer_norm(x, (2,), norm.weight, None, EPS))
        gone.set_data(*torch.stack((x, x - x.mean())).T.tolist())
        turn, words = f"by {layer_angle:.0f}°", f"turns it by {layer_angle:.1f}° and gives length {layer_length:.3g}"
        if layer_length < 1e-5:
            turn, words = "to 0", "leaves nothing of it"
        plane.set_title(f"RMSNorm turns x by {rms_angle:.0f}°, LayerNorm {turn}")
        return (
            f"x has length {length:.3g}. RMSNorm turns it by {rms_angle:.1f}° and gives length {rms_length:.3g}; "
            f"LayerNorm {words}."
        )

    controls = {
        "direction": slider("direction of x", -15, -180, 180, unit="degree"),
        "length": slider("length of x", 2.5, 0.1, 2.7, 0.1),
        "gain": slider("second gain", 1.0, 0.1, 2.0, 0.1),
    }
    alt = "Arrows of x, RMSNorm(x) and LayerNorm(x) in the plane, with the angle each norm turned x by."
    return Explorer(figure, draw, controls, alt)


class _Arrow:
    """A vector in the picture: an arrow with the angle it was turned by."""

    def __init__(self, name, plane, color, tip, width=2.2, style="-", arc_radius=0.0, side=0.0):
        (self.shaft,) = plane.plot([], [], label=name, color=color, lw=width, ls=style)
        (self.tip,) = plane.plot([0], [0], color=color, mfc=tip, ms=3 * width, ls="", marker=(3, 0, 0))
        (self.arc,) = plane.plot([], [], color=INK, lw=1)
        box = {"fc": "white", "ec": "none", "pad": 0.5}
        self.degrees = plane.text(0, 0, "", ha="center", va="center", fontsize=9, bbox=box)
        self.arc_radius, self.side = arc_radius, side

    def move(self, x, vector):
        """Show what became of x; return the arrow's angle [degree] and length."""
        start, end = (math.atan2(second, first) for first, second in (x.tolist(), vector.tolist()))
        after = vector.norm().item()
        turned = math.remainder(end - start, 2 * math.pi) if after > 1e-5 else 0
        self.shaft.set_data(*zip((0, 0), vector.tolist(), strict=True))
        self.tip.set(xdata=vector[:1], ydata=vector[1:], marker=(3, 0, math.degrees(end) - 90))
        self.arc.set_data(arc(start, start + turned, self.arc_radius))
        middle, away = start + turned / 2, self.arc_radius + self.side
        self.degrees.set(x=away * math.cos(middle), y=away * math.sin(middle))
        self.degrees.set_text(f"{math.degrees(abs(turned)):.0f}°" if abs(turned) > 0.1 else "")
        return abs(math.degrees(turned)), after


PLACES = [f"block {i}, {part}" for i in range(6) for part in ("att.", "ffn")] + ["final norm"]
TICKS = {1 / 8: "⅛", 1 / 4: "¼", 1 / 2: "½", 1: "1", 2: "2", 4: "4", 8: "8"}
HIGHEST = 6.2  # of the axis of the loss


def explore_dose() -> Explorer:
    """What it costs the bundled model if the vectors that leave one of its 13 norms are too short or too long."""
    stored = stored_result("dose")  # benchmarks/experiments/dose.py measured it, on all held-out texts
    factors, rise, removed = (np.array(stored[name]) for name in ("factors", "rise", "removed"))

    # What is fixed: names beside a map of the norms; an axis for the curve of the chosen one.
    figure, (tiles, curves) = new_figure(2, width_ratios=[1, 1.9])
    bare(tiles, (-1.35, 1.55), (6.85, -1.05), "auto")
    at = [(i % 2, i // 2) for i in range(12)] + [(0, 6.3)]
    for row, name in enumerate([f"block {i}" for i in range(6)] + ["final norm"]):
        tiles.text(-0.6, at[-1][1] if row == 6 else row, name, ha="right", va="center", color=GREY)
    for column, name in enumerate(("att.", "ffn")):
        tiles.text(column, -0.75, name, ha="center", va="center", color=GREY)
    curves.set(xscale="log", xlim=(0.115, 8.7), ylim=(-0.15, HIGHEST), ylabel="the loss rises by [nat/token]")
    curves.set(xlabel="the vectors that leave this norm are this many times as long")
    curves.set_xticks(list(TICKS), list(TICKS.values()))
    curves.minorticks_off()

    # What moves: tiles with their numbers, the frame of the chosen one; its curve with a dot; its branch removed.
    fills = [tiles.fill_between([x - 0.45, x + 0.45], y - 0.4, y + 0.4, color="white", lw=0) for x, y in at]
    numbers = [tiles.text(x, y, "", ha="center", va="center", fontsize=9, zorder=3) for x, y in at]
    (frame,) = tiles.plot([], [], color=INK, lw=2.4, solid_joinstyle="miter", zorder=4)
    (line,) = curves.plot([], [], color=INK, lw=1.4, ls="--", zorder=2)
    says = curves.text(8.5, 0, "", ha="right", fontsize=9)
    (ours,) = curves.plot([], [], color=INK, lw=2.6, zorder=3)
    (dot,) = curves.plot([], [], "o", color=INK, ms=10, mec="white", mew=1.5, zorder=6, clip_on=False)

    def draw(place, factor):
        now = int(abs(np.log(factors / factor)).argmin())
        for fill, number, cost in zip(fills, numbers, rise[:, now].tolist(), strict=True):
            depth = math.sqrt(min(max(cost, 0), 4) / 4)
            fill.set_color(tuple(1 - depth * (1 - np.array(to_rgb(AGAINST)))))
            number.set(text=_signed(cost), color="white" if depth > 0.55 else INK)
        (x, y), cost, gone = at[place], rise[place, now], removed[place]
        frame.set_data(x + 0.47 * np.array([-1, 1, 1, -1, -1]), y + 0.43 * np.array([-1, -1, 1, 1, -1]))
        ours.set_data(factors, rise[place])
        dot.set_data([factors[now]], [min(cost, HIGHEST)])
        line.set_data([0.115, 8.7], [gone, gone] if place < 12 else [np.nan, np.nan])  # the last norm has no branch
        says.set(text=f"removed: {_signed(gone)}" if place < 12 else "", y=gone + 0.12)
        tiles.set_title(f"Cost of each norm at times {factors[now]:.3g}")
        curves.set_title(f"{PLACES[place].capitalize()}, times {factors[now]:.3g}: {_signed(cost)}")
        worse, told = int((rise[:12, now] > removed[:12]).sum()), f", with its branch removed by {_signed(gone)}"
        return (
            f"{PLACES[place].capitalize()}: what leaves the norm is {factors[now]:.3g} times as long. The loss rises "
            f"by {_signed(cost)}{told if place < 12 else ''}. At this length {worse} of the 12 branches cost more "
            "than if they were removed."
        )

    step = math.log10(2) / 2
    controls = {
        "place": switch("norm", [(name, place) for place, name in enumerate(PLACES)]),
        "factor": slider("times", 2.0, -6 * step, 6 * step, step, log=True),
    }
    controls["factor"].readout_format = ".3g"
    parts = {("place", i): within(tiles, x - 0.46, y - 0.42, x + 0.46, y + 0.42) for i, (x, y) in enumerate(at)}
    alt = (
        "Left: for each of 13 norms the cost, the redder the higher, if what leaves it is as long as the slider says. "
    )
    alt += "Right: cost against length for one norm, and a line: removed."
    return Explorer(figure, draw, controls, alt, parts)


def _signed(cost):
    return f"{cost:+z.2f}".replace("-", "−")
