"""The explorer of notebook 01: what RMSNorm and LayerNorm do to an arrow."""

import math

import torch
from torch.nn import functional as F

from helpers.explorers.base import GREY, Explorer, arc, new_figure, slider
from helpers.model import RMSNorm
from helpers.plots import HIDDEN, INK

SCALES = torch.logspace(-4, 1, 61)  # of x, along the curves of the lengths


def explore_rms_norm() -> Explorer:
    """What RMSNorm and LayerNorm do to a vector of two numbers: the angle each turns it by, and its length after.

    The vector is scale * ((1, -1) + offset * (1, 1)), so `offset` is mean / standard deviation.
    """
    # What is fixed: a plane with the circle of length √2 and the line of mean 0; axes for the lengths.
    figure, (plane, lengths) = new_figure(2, width_ratios=[1, 1.15])
    plane.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xlabel="coordinate 0", ylabel="coordinate 1")
    plane.plot(*arc(0, 2 * math.pi, math.sqrt(2)), color=HIDDEN, lw=1)
    plane.plot([-3, 3], [3, -3], color=HIDDEN, lw=1, ls=":")
    plane.text(-2.25, 1.35, "mean = 0", color=GREY, rotation=-45, fontsize=9)
    lengths.set(xscale="log", xlim=(1e-4, 10), ylim=(0, 3.2), xlabel="scale of x", ylabel="length")

    # What moves: the vector before and after each norm, and the scale at which eps takes over.
    before = _Vector("x", plane, lengths, color="#B0B0B0", tip="#B0B0B0", width=6)
    by_rms = _Vector("RMSNorm(x)", plane, lengths, color=INK, tip=INK, arc_radius=1.75)
    by_layer = _Vector("LayerNorm(x)", plane, lengths, color=INK, tip="white", style="--", arc_radius=2.3)
    root = lengths.axvline(1, color=INK, lw=1, ls=":", label="root of eps")
    figure.legend(loc="outside lower center", ncols=4)

    def draw(scale, offset, eps, gain):
        rows = torch.cat((torch.tensor([scale]), SCALES))  # the first for the arrow, the others for the curve
        x = rows[:, None] * (torch.tensor([1.0, -1.0]) + offset)
        norm = RMSNorm(2, eps).requires_grad_(False)
        norm.weight[1] = gain
        length, _ = before.move(x, x, scale)
        rms_length, rms_angle = by_rms.move(x, norm(x), scale)
        layer_length, layer_angle = by_layer.move(x, F.layer_norm(x, (2,), norm.weight, None, eps), scale)
        root.set_xdata([math.sqrt(eps)] * 2)
        plane.set_title(f"RMSNorm turns x by {rms_angle},\nLayerNorm by {layer_angle}")
        lengths.set_title(f"RMSNorm: length {length} → {rms_length}")
        return (
            f"x has length {length}. RMSNorm turns it by {rms_angle} and gives length {rms_length}; "
            f"LayerNorm turns it by {layer_angle} and gives length {layer_length}."
        )

    # Which controls.
    controls = {
        "scale": slider("scale of x", 1.0, -4, 1, 0.1, log=True),
        "offset": slider("mean offset", 0.5, -2.0, 2.0, 0.1),
        "eps": slider("eps", 1e-5, -8, 0, 0.5, log=True),
        "gain": slider("gain of coordinate 1", 1.0, 0.1, 2.0, 0.1),
    }
    alt = "Left: arrows of x, RMSNorm(x) and LayerNorm(x) in the plane, with the angle each norm turned x by. "
    return Explorer(figure, draw, controls, alt + "Right: the three lengths against the scale of x.")


class _Vector:
    """One vector in both pictures: an arrow with the angle it was turned by, and the curve of its length with a dot."""

    def __init__(self, name, plane, lengths, color, tip, width=2.2, style="-", arc_radius=0.0):
        line, mark = {"color": color, "lw": width, "ls": style}, {"color": color, "mfc": tip, "ms": 3 * width, "ls": ""}
        (self.shaft,) = plane.plot([], [], **line)
        (self.tip,) = plane.plot([0], [0], marker=(3, 0, 0), **mark)
        (self.arc,) = plane.plot([], [], color=INK, lw=1)
        box = {"fc": "white", "ec": "none", "pad": 0.5}
        self.degrees = plane.text(0, 0, "", ha="center", va="center", fontsize=9, bbox=box)
        (self.curve,) = lengths.plot(SCALES, SCALES, label=name, **line)
        (self.dot,) = lengths.plot([], [], "o", **mark, clip_on=False)
        self.arc_radius = arc_radius

    def move(self, x, vectors, scale):
        """Show what became of x at each scale, (62, 2); return the length and the angle of the arrow, in words."""
        start, end = (math.atan2(second, first) for first, second in (x[0].tolist(), vectors[0].tolist()))
        turned = math.remainder(end - start, 2 * math.pi)
        length, *along_curve = vectors.norm(dim=-1).tolist()
        self.shaft.set_data(*zip((0, 0), vectors[0].tolist(), strict=True))
        self.tip.set(xdata=vectors[0, :1], ydata=vectors[0, 1:], marker=(3, 0, math.degrees(end) - 90))
        self.arc.set_data(arc(start, start + turned, self.arc_radius))
        middle, away = start + turned / 2, self.arc_radius + 0.45
        self.degrees.set(x=away * math.cos(middle), y=away * math.sin(middle))
        self.degrees.set_text(f"{math.degrees(abs(turned)):.0f}°" if abs(turned) > 0.1 else "")
        self.curve.set_ydata(along_curve)
        self.dot.set_data([scale], [min(length, 3.2)])
        return f"{length:.3g}", f"{abs(math.degrees(turned)):.1f}°"
