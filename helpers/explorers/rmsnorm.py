"""The explorer of notebook 01: what RMSNorm and LayerNorm do to an arrow."""

import math

import torch
from torch.nn import functional as F

from helpers.explorers.base import GREY, Explorer, arc, new_figure, slider
from helpers.model import RMSNorm
from helpers.plots import HIDDEN, INK


def explore_rms_norm() -> Explorer:
    """What RMSNorm and LayerNorm do to a vector of two numbers: the angle each turns it by, and its length after.

    The vector is scale * ((1, -1) + offset * (1, 1)), so `offset` is mean / standard deviation.
    """
    figure, (plane, lengths) = new_figure(2, width_ratios=[1, 1.15])
    plane.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xlabel="coordinate 0 [1]", ylabel="coordinate 1 [1]")
    plane.plot(*arc(0, 2 * math.pi, math.sqrt(2)), color=HIDDEN, lw=1)
    plane.plot([-3, 3], [3, -3], color=HIDDEN, lw=1, ls=":")
    plane.text(-2.25, 1.35, "mean = 0", color=GREY, rotation=-45, fontsize=9)
    scales = torch.logspace(-4, 1, 61)
    looks = {"x": (GREY, GREY, 4, "-"), "RMSNorm(x)": (INK, INK, 1.8, "-"), "LayerNorm(x)": (INK, "white", 1.8, "--")}
    sign = {"ha": "center", "va": "center", "fontsize": 9, "bbox": {"fc": "white", "ec": "none", "pad": 0.5}}
    shafts, tips, arcs, signs, curves, dots = ({} for _ in range(6))
    for name, (color, face, width, style) in looks.items():
        line, tip = {"color": color, "lw": width, "ls": style}, {"color": color, "mfc": face, "ms": width + 5, "ls": ""}
        (shafts[name],), (tips[name],) = plane.plot([], [], **line), plane.plot([0], [0], marker=(3, 0, 0), **tip)
        (arcs[name],), signs[name] = plane.plot([], [], color=INK, lw=1), plane.text(0, 0, "", **sign)
        (curves[name],) = lengths.plot(scales, scales, label=name, **line)
        (dots[name],) = lengths.plot([], [], "o", **tip, clip_on=False)
    root = lengths.axvline(1, color=INK, lw=1, ls=":", label="root of eps")
    lengths.set(xscale="log", xlim=(1e-4, 10), ylim=(0, 3.2), xlabel="scale of x [1]", ylabel="length [1]")
    figure.legend(loc="outside lower center", ncols=4)

    def draw(scale, offset, eps, gain):
        x = torch.cat((torch.tensor([scale]), scales))[:, None] * (torch.tensor([1.0, -1.0]) + offset)
        norm = RMSNorm(2, eps).requires_grad_(False)
        norm.weight[1] = gain
        length, angle = {}, {}
        results = (x, norm(x), F.layer_norm(x, (2,), norm.weight, None, eps))
        for name, vectors, radius in zip(looks, results, (0, 1.75, 2.3), strict=True):
            all_lengths = vectors.norm(dim=-1).tolist()  # row 0 is the arrow, the others the curve
            start, end = (math.atan2(*reversed(rows[0].tolist())) for rows in (x, vectors))
            turned = math.remainder(end - start, 2 * math.pi)
            shafts[name].set_data(*zip((0, 0), vectors[0].tolist(), strict=True))
            tips[name].set(xdata=vectors[0, :1], ydata=vectors[0, 1:], marker=(3, 0, math.degrees(end) - 90))
            arcs[name].set_data(arc(start, start + turned, radius))
            signs[name].set(x=(radius + 0.45) * math.cos(start + turned / 2))
            signs[name].set(y=(radius + 0.45) * math.sin(start + turned / 2))
            signs[name].set_text(f"{math.degrees(abs(turned)):.0f}°" if abs(turned) > 0.1 else "")
            curves[name].set_ydata(all_lengths[1:])
            dots[name].set_data([scale], [min(all_lengths[0], 3.2)])
            length[name], angle[name] = f"{all_lengths[0]:.3g}", f"{abs(math.degrees(turned)):.1f}°"
        root.set_xdata([math.sqrt(eps)] * 2)
        _, rms, layer = looks
        plane.set_title(f"RMSNorm turns x by {angle[rms]},\nLayerNorm by {angle[layer]}")
        lengths.set_title(f"RMSNorm: length {length['x']} → {length[rms]}")
        return (
            f"x has length {length['x']}. RMSNorm turns it by {angle[rms]} and gives length {length[rms]}; "
            f"LayerNorm turns it by {angle[layer]} and gives length {length[layer]}."
        )

    controls = {
        "scale": slider("scale of x", 1.0, -4, 1, 0.1, log=True),
        "offset": slider("mean offset", 0.5, -2.0, 2.0, 0.1),
        "eps": slider("eps", 1e-5, -8, 0, 0.5, log=True),
        "gain": slider("gain of coordinate 1", 1.0, 0.1, 2.0, 0.1),
    }
    alt = "Left: arrows of x, RMSNorm(x) and LayerNorm(x) in the plane, with the angle each norm turned x by. "
    return Explorer(figure, draw, controls, alt + "Right: the three lengths against the scale of x.")
