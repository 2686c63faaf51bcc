"""The explorer of notebook 03: a gate that opens and closes."""

import torch
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import LinearLocator
from torch.nn import functional as F

from helpers.explorers.base import GREY, Explorer, choice, new_figure, slider
from helpers.plots import HIDDEN, INK


def explore_swiglu() -> Explorer:
    """One hidden unit of a gated layer: activation(g) * u over gate and up value, and the slice at one u."""
    activations = {"SiLU": F.silu, "GELU": F.gelu, "ReLU": F.relu, "sigmoid": torch.sigmoid, "none": torch.clone}
    gates, ups = torch.linspace(-6, 6, 121), torch.linspace(-5, 5, 101)
    maps = {name: (ups[:, None] * f(gates)).numpy() for name, f in activations.items()}
    bent = {name: f(gates) for name, f in activations.items()}
    slopes = {name: _slope(f, gates) for name, f in activations.items()}

    # What is fixed: the axes of the map and of the slice.
    figure, (surface, cut) = new_figure(2, width_ratios=[1.1, 1])
    surface.set(xlabel="gate g", ylabel="up u")
    cut.set(xlabel="gate g", ylabel="value", xlim=(-6, 6))
    ticks = (-30, -10, -2, -1, 0, 1, 2, 10, 30)
    cut.yaxis.set_major_locator(LinearLocator(5))
    cut.axhline(0, color=HIDDEN, lw=1, zorder=0)

    # What moves: the map of the chosen activation, the chosen point, and the slice through it with its slope.
    norm, extent = SymLogNorm(2, vmin=-30, vmax=30), (-6, 6, -5, 5)
    picture = surface.imshow(maps["SiLU"], extent=extent, origin="lower", aspect="auto", cmap="RdBu_r", norm=norm)
    figure.colorbar(picture, ax=surface, label="activation(g) · u", ticks=ticks).ax.set_yticklabels(ticks)
    level = surface.axhline(0, color=INK, lw=1, ls=":")
    dots = [ax.plot([], [], "o", color=INK, mec="white", ms=9, clip_on=False)[0] for ax in (surface, cut)]
    (value,) = cut.plot(gates, gates, color=INK, label="activation(g) · u")
    (slope,) = cut.plot(gates, gates, color=GREY, ls="--", label="its slope in g")
    figure.legend(loc="outside lower center", ncols=2)
    figure.get_layout_engine().set(wspace=0.06)

    def draw(g, u, activation):
        picture.set_data(maps[activation])
        here = torch.tensor(float(g))
        opened, steep = activations[activation](here).item(), u * _slope(activations[activation], here).item()
        level.set_ydata([u, u])
        value.set_ydata(u * bent[activation])
        slope.set_ydata(u * slopes[activation])
        low, high = (times * max(abs(u), 0.5) for times in (-6 if activation == "none" else -2, 6))
        cut.set_ylim(*((low, high) if u >= 0 else (-high, -low)))  # a straight scale: a squeezed one bends lines
        for dot, height in zip(dots, (u, opened * u), strict=True):
            dot.set_data([g], [height])
        name = "g" if activation == "none" else f"{activation}(g)"
        surface.set_title(f"{name} · u = {opened * u:z.2f}".replace("-", "−"))
        cut.set_title(f"Slice at u = {u:.1f}".replace("-", "−"))
        text = f"Gate g = {g:.1f} gives {name} = {opened:z.3f}; times u = {u:.1f} that is {opened * u:z.3f}. "
        return (text + f"Its slope in g is {steep:z.2f}.").replace("-", "−")

    # Which controls.
    controls = {
        "g": slider("gate g", 1.0, -6.0, 6.0, 0.1),
        "u": slider("up u", 1.5, -5.0, 5.0, 0.1),
        "activation": choice("activation", activations),
    }
    alt = "Left: map of activation(g) times u over gate g and up value u, with the chosen point. "
    return Explorer(figure, draw, controls, alt + "Right: the slice at the chosen u, solid, and its slope, dashed.")


def _slope(activation, gates):
    return torch.func.vmap(torch.func.grad(activation))(gates.reshape(-1)).reshape(gates.shape)
