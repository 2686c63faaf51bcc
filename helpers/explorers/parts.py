"""Explorers of notebooks 01 to 03: RMSNorm, RoPE, SwiGLU."""

import math

import numpy as np
import torch
from matplotlib.patches import Circle, Polygon, Rectangle
from torch.nn import functional as F

from helpers.explorers.base import GREY, Explorer, arc, bare, choice, new_figure, slider
from helpers.model import RMSNorm, apply_rope, rope_angles, rope_inv_freq
from helpers.plots import HIDDEN, INK, KEY, QUERY

# -------------------------------------------------------------------------------------------- RMSNorm


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


# ----------------------------------------------------------------------------------------------- RoPE


def explore_rope() -> Explorer:
    """Clock hands of the eight pairs of a head of 16, for a query and a key, and one pair enlarged."""
    head_dim, n_pairs, looks = 16, 8, {"query": (QUERY, "o", "-"), "key": (KEY, "s", "--")}
    figure, (clocks, large) = new_figure(2, width_ratios=[1.7, 1])
    bare(clocks, (-1.5, 10.5), (-5.6, 1.3))
    bare(large, (-1.5, 1.5), (-1.7, 1.5))
    centres = np.array([(3 * (pair % 4), -3.6 * (pair // 4)) for pair in range(n_pairs)])
    for i, (x, y) in enumerate(centres):
        clocks.add_patch(Circle((x, y), 1, fill=False, ec=HIDDEN, lw=1.2))
        clocks.text(x, y - 1.25, f"pair {i}", ha="center", va="top", fontsize=9)
    clocks.set_title("Below each pair: tokens for one full turn")
    chosen = clocks.add_patch(Circle((0, 0), 1.15, fill=False, ec=INK, lw=1.5))
    waves = [clocks.text(x, y - 1.65, "", ha="center", va="top", fontsize=9) for x, y in centres]
    large.add_patch(Circle((0, 0), 1, fill=False, ec=HIDDEN, lw=1.5))
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
    figure, ax = new_figure(1)
    bare(ax, (-3.6, head_dim - 0.4), (-2.6, 2.6))
    ax.set(aspect="auto")
    for y, text in ((0, "coordinate\nof the head"), (-1.1, "row of q_proj"), (-2.1, "its row in the\nother layout")):
        ax.text(-0.8, y, text, ha="right", va="center", fontsize=9)
    for i in range(head_dim):
        ax.add_patch(Rectangle((i - 0.42, -0.4), 0.84, 0.8, fill=False, ec=GREY, lw=1))
        for y, number in ((0, i), (-1.1, head * head_dim + i)):
            ax.text(i, y, number, ha="center", va="center", fontsize=9)
    others = [ax.text(i, -2.1, "", ha="center", va="center", fontsize=9) for i in range(head_dim)]
    arcs = [ax.plot([], [])[0] for _ in range(n_pairs)]
    marks = [ax.add_patch(Rectangle((0, -2.5), 0.9, 2.95, fill=False, ec=INK, lw=2.5)) for _ in range(2)]

    def draw(layout, pair):
        other, rows = layouts[layout == layouts[0]], {}
        for index, (first, second) in enumerate(pairs[layout]):
            wide, chosen = (second - first) / 2, index == pair
            across, up = arc(0, math.pi, 1)
            arcs[index].set_data((first + second) / 2 + wide * across, 0.45 + (0.6 + 0.3 * wide) * up)
            arcs[index].set(color=INK if chosen else HIDDEN, lw=2.5 if chosen else 1.2, zorder=3 if chosen else 2)
            for here, there in zip((first, second), pairs[other][index], strict=True):
                rows[here] = head * head_dim + there
                others[here].set_text(rows[here])
        first, second = pairs[layout][pair]
        for mark, i in zip(marks, (first, second), strict=True):
            mark.set_x(i - 0.45)
        ax.set_title(f"Layout {layout}: pair {pair} is coordinates {first} and {second}")
        return (
            f"Layout {layout}: pair {pair} of head {head} is coordinates {first} and {second}, made by rows "
            f"{head * head_dim + first} and {head * head_dim + second} of q_proj, and turns by {speeds[pair]:.3g} "
            f"rad/token. In layout {other} these rows are {rows[first]} and {rows[second]}."
        )

    controls = {"layout": choice("layout", layouts), "pair": slider("pair index", 2, 0, n_pairs - 1)}
    alt = "Sixteen numbered boxes, the coordinates of a head; arcs join the two of each pair, the chosen pair is "
    return Explorer(
        figure, draw, controls, alt + "framed. Below each: its row of q_proj in this layout and in the other."
    )


def _mixed_by(pair, head_dim, layout):
    # Asked of apply_rope itself: turn this one pair by a quarter and see which two coordinates change.
    quarter = F.one_hot(torch.tensor([pair]), head_dim // 2).float()
    unit = torch.eye(head_dim)[None, :, None]  # (1, h, 1, h): head i holds the i-th unit vector
    changed = (apply_rope(unit, 1 - quarter, quarter, layout) != unit).any(dim=-1)
    return changed.flatten().nonzero().flatten().tolist()


# --------------------------------------------------------------------------------------------- SwiGLU


def explore_swiglu() -> Explorer:
    """One hidden unit of a gated layer: activation(g) * u over gate and up value, and the slice at one u."""
    activations = {"SiLU": F.silu, "GELU": F.gelu, "ReLU": F.relu, "sigmoid": torch.sigmoid, "none": torch.clone}
    gates, ups = torch.linspace(-6, 6, 121), torch.linspace(-3, 3, 61)
    maps = {name: (ups[:, None] * f(gates)).numpy() for name, f in activations.items()}
    bent = {name: f(gates) for name, f in activations.items()}
    slopes = {name: _slope(f, gates) for name, f in activations.items()}
    figure, (surface, cut) = new_figure(2, width_ratios=[1.1, 1])
    picture = surface.imshow(
        maps["SiLU"], extent=(-6, 6, -3, 3), origin="lower", aspect="auto", cmap="RdBu_r", clim=(-18, 18)
    )
    figure.colorbar(picture, ax=surface, label="activation(g) · u [1]")
    surface.set(xlabel="gate g [1]", ylabel="up u [1]")
    level = surface.axhline(0, color=INK, lw=1, ls=":")
    dots = [ax.plot([], [], "o", color=INK, mec="white", ms=9, clip_on=False)[0] for ax in (surface, cut)]
    (value,) = cut.plot(gates, gates, color=INK, label="activation(g) · u")
    (slope,) = cut.plot(gates, gates, color=GREY, ls="--", label="its slope in g")
    cut.set(xlabel="gate g [1]", ylabel="value [1]", xlim=(-6, 6), ylim=(-18, 18))
    cut.axhline(0, color=HIDDEN, lw=1, zorder=0)
    figure.legend(loc="outside lower center", ncols=2)
    figure.get_layout_engine().set(wspace=0.06)

    def draw(g, u, activation):
        picture.set_data(maps[activation])
        here = torch.tensor(float(g))
        opened, steep = activations[activation](here).item(), u * _slope(activations[activation], here).item()
        level.set_ydata([u, u])
        value.set_ydata(u * bent[activation])
        slope.set_ydata(u * slopes[activation])
        for dot, height in zip(dots, (u, opened * u), strict=True):
            dot.set_data([g], [height])
        name = "g" if activation == "none" else f"{activation}(g)"
        surface.set_title(f"{name} · u = {opened * u:z.2f}".replace("-", "−"))
        cut.set_title(f"Slice at u = {u:.1f}".replace("-", "−"))
        text = f"Gate g = {g:.1f} gives {name} = {opened:z.3f}; times u = {u:.1f} that is {opened * u:z.3f}. "
        return (text + f"Its slope in g is {steep:z.2f}.").replace("-", "−")

    controls = {
        "g": slider("gate g", -1.0, -6.0, 6.0, 0.1),
        "u": slider("up u", 2.0, -3.0, 3.0, 0.1),
        "activation": choice("activation", activations),
    }
    alt = "Left: map of activation(g) times u over gate g and up value u, with the chosen point. "
    return Explorer(figure, draw, controls, alt + "Right: the slice at the chosen u, solid, and its slope, dashed.")


def _slope(activation, gates):
    return torch.func.vmap(torch.func.grad(activation))(gates.reshape(-1)).reshape(gates.shape)
