"""The explorers of notebook 03: what bending the opening of a trained model's gates costs, and one gate at work."""

import numpy as np
import torch
from matplotlib.patches import Polygon
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, bundled, new_figure, slider, switch
from helpers.interventions import held_out_windows, replaced
from helpers.model import SwiGLU
from helpers.plots import HIDDEN, INK

TEXT, TOKENS = 9, 128  # of the held-out windows: one where half open, open and shut gates cost about the mean of all
RANGES = {"low gates": (-torch.inf, -1), "middle gates": (-1, 1), "high gates": (1, torch.inf)}
TOP = 0.3  # [nat/token], the added loss at which a bar is full


def explore_shut() -> Explorer:
    """The opening as the reader bends it, and what it costs to bend it for the gates of one range alone."""
    cost, g = _cost(), torch.linspace(-4, 4, 161)
    figure, parts = new_figure(1)
    parts.remove()
    figure.set_size_inches(8.0, 4.2)
    curve, bars = figure.subplots(2, 1, height_ratios=[1.1, 1], sharex=True)

    # What is fixed: the opening as trained; three ranges and their names.
    curve.plot(g, torch.sigmoid(g), color=GREY, ls="--", zorder=2)
    curve.text(3.95, 0.84, "as trained", color=GREY, ha="right", va="top")
    curve.set(xlim=(-4, 4), ylim=(-0.08, 1.35), ylabel="opening")
    curve.set_yticks((0, 0.5, 1), ("0, shut", "½", "1, open"))
    curve.tick_params(axis="x", length=0, labelbottom=False)
    bars.set(ylim=(0, 1.25), yticks=[], xlabel="gate g")
    bars.set_title("Added loss [nat/token], if only this range gets your curve")
    curve.spines["bottom"].set_visible(False)
    bars.spines["left"].set_visible(False)
    for ax in (curve, bars):
        for edge in (-1, 1):
            ax.axvline(edge, color=PALE, lw=1, zorder=0)
    for at, name in zip((-3.9, -0.9, 1.1), RANGES, strict=True):
        curve.text(at, 1.33, name, color=GREY, va="top")

    # What moves: the opening, and what lies between it and the trained one; three bars and their numbers.
    area = curve.add_patch(Polygon([(0, 0)], fc="#F3D3D3", ec="none", zorder=1))
    (ours,) = curve.plot(g, g, color=INK, lw=2.6, zorder=3)
    solid = bars.bar((-2.5, 0, 2.5), 1.0, width=0.8, color="#C00000")
    numbers = [bars.text(at, 0, "", ha="center", va="bottom") for at in (-2.5, 0, 2.5)]

    def draw(left, right):
        def opening(gate):
            return left + (right - left) * torch.sigmoid(gate)

        found, new = cost(opening), opening(g)
        ours.set_ydata(new)
        area.set_xy(np.concatenate((np.stack((g, torch.sigmoid(g)), 1), np.stack((g, new), 1)[::-1])))
        said = [f"{loss:+z.2f}".replace("-", "−") for loss in found]
        for bar, number, loss, words in zip(solid, numbers, found, said, strict=True):
            bar.set_height(height := min(max(loss / TOP, 0.008), 1))
            number.set(text=words + " ↑" * (loss > TOP), y=height + 0.02)
        each = ", ".join(f"{name} {words}" for name, words in zip(RANGES, said, strict=True))
        return f"Added loss in nat per token, if one range alone gets your curve: {each}."

    controls = {
        "left": slider("left end of the curve", 0.0, 0.0, 1.0, 0.05),
        "right": slider("right end of the curve", 1.0, 0.0, 1.2, 0.05),
    }
    alt = "Above: the opening against the gate, yours black, as trained dashed. Below: bars for the added loss, if "
    return Explorer(figure, draw, controls, alt + "only low (under −1), middle or high gates (over 1) get your curve.")


def _cost():
    # A function: opening -> for each range, what the loss rises by if its gates alone get this opening.
    model, text = bundled(), held_out_windows()[TEXT, : TOKENS + 1]
    over, upto = torch.tensor(list(RANGES.values())).T[..., None, None]  # (3, 1, 1) each: row r bends range r

    @torch.inference_mode()
    def losses(opening):
        def forward(layer, x):
            g, u = layer.gate_proj(x), layer.up_proj(x)
            opened = torch.where((g > over) & (g <= upto), opening(g), torch.sigmoid(g))
            return layer.down_proj(opened * g * u)

        with replaced(SwiGLU, forward):
            logits = model(text[None, :-1].expand(3, -1))
        return F.cross_entropy(logits.mT, text[1:].expand(3, -1), reduction="none").mean(dim=1)

    trained = losses(torch.sigmoid)
    return lambda opening: (losses(opening) - trained).tolist()


def explore_swiglu() -> Explorer:
    """One hidden unit of a gated layer: activation(g) * u against the gate, a line for each up value, and its slope."""
    activations = {"SiLU": F.silu, "GELU": F.gelu, "ReLU": F.relu, "sigmoid": torch.sigmoid, "none": torch.clone}
    gates, others = torch.linspace(-6, 6, 121), (-4, -2, 2, 4)

    # What is fixed: the axes.
    figure, (fan, steep) = new_figure(2, width_ratios=[1.5, 1])
    fan.set(xlim=(-6, 6), ylim=(-16, 16), xlabel="gate g", ylabel="hidden value: activation(g) · u")
    steep.set(xlim=(-6, 6), ylim=(-6, 6), xlabel="gate g", ylabel="slope in g")
    for ax in (fan, steep):
        ax.axhline(0, color=HIDDEN, lw=1, zorder=0)

    # What moves: a grey line for each of four up values; the chosen one and its slope in black, a dot; rings at slope 0
    lines = [fan.plot(gates, gates, color=PALE, lw=1.2)[0] for _ in others]
    look = {"color": GREY, "fontsize": 9, "ha": "right", "va": "center", "zorder": 4}
    box = {"fc": "white", "ec": "none", "pad": 0.5}  # the black line may pass behind a name
    names = [fan.text(0, 0, "", bbox=box, **look) for _ in others]
    (value,), (slope,) = (ax.plot(gates, gates, color=INK, lw=2.4) for ax in (fan, steep))
    rings = [ax.plot([], [], "o", mfc="white", mec=INK, mew=1.5, ms=8)[0] for ax in (fan, steep)]
    dots = [ax.plot([], [], "o", color=INK, mec="white", ms=9, clip_on=False)[0] for ax in (fan, steep)]

    def draw(g, u, activation):
        bend, here = activations[activation], torch.tensor(float(g))
        for line, name, up in zip(lines, names, others, strict=True):
            line.set_ydata(up * bend(gates))
            at = gates[(up * bend(gates)).abs() < 13][-1].item()  # the last place inside the picture
            name.set(x=min(at, 5.8) - 0.25, y=up * bend(torch.tensor(at)).item(), text=f"u = {up}".replace("-", "−"))
        value.set_ydata(u * bend(gates))
        slope.set_ydata(rise := u * _slope(bend, gates))
        flat = rise[:-1] * rise[1:] <= 0
        for ring, height in zip(rings, (u * bend(gates), 0 * rise), strict=True):
            ring.set(data=(gates[:-1][flat], height[:-1][flat]), markevery=max(1, int(flat.sum()) // 15))
        opened, rising = bend(here).item(), u * _slope(bend, here).item()
        for dot, height, limit in zip(dots, (opened * u, rising), (16, 6), strict=True):
            dot.set_data(([g], [height]) if abs(height) <= limit else ([], []))
        name = "g" if activation == "none" else f"{activation}(g)"
        fan.set_title(f"{name} · u = {opened * u:z.2f} at u = {u:.1f}".replace("-", "−"))
        steep.set_title(f"Slope {rising:z.2f}; rings: slope 0".replace("-", "−"))
        text = f"Gate g = {g:.1f} gives {name} = {opened:z.3f}; times u = {u:.1f} that is {opened * u:z.3f}. "
        return (text + f"Its slope in g is {rising:z.2f}.").replace("-", "−")

    controls = {
        "g": slider("gate g", 1.0, -6.0, 6.0, 0.1),
        "u": slider("up u", 3.0, -5.0, 5.0, 0.1),
        "activation": switch("activation", activations),
    }
    alt = "Left: activation(g) times u against the gate g, grey lines for four up values, the chosen one black. "
    return Explorer(figure, draw, controls, alt + "Right: the slope of the black line. Rings: where it is 0.")


def _slope(activation, gates):
    return torch.func.vmap(torch.func.grad(activation))(gates.reshape(-1)).reshape(gates.shape)
