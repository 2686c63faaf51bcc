"""The explorers of notebook 03: the opening of a trained model's gates, and one gate that opens and closes."""

import numpy as np
import torch
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, bundled, new_figure, slider, switch, within
from helpers.interventions import held_out_windows, replaced
from helpers.model import SwiGLU
from helpers.plots import HIDDEN, INK, VALUE

TEXT = 11  # of the held-out windows: that whose losses, under changes like these, are near the mean of all 16
OPENINGS = {  # the factor of g · u, from the gate, its level at 0 and its rise
    "level, or a line": lambda g, level, rise: level + rise * g,
    "line held between 0 and 1": lambda g, level, rise: (level + rise * g).clamp(0, 1),
    "three steps: 0, ½, 1": lambda g, *_: ((g > -1).float() + (g > 1).float()) / 2,
    "step at 0 (ReLU)": lambda g, *_: (g > 0).float(),
    "Φ(g) (GELU)": lambda g, *_: (1 + torch.erf(g / 2**0.5)) / 2,
}
WHERE = {  # which gates get the new opening; the others keep σ(g)
    "all gates": lambda g: g == g,
    "gates between −1 and 1": lambda g: g.abs() < 1,
    "gates beyond −1 and 1": lambda g: g.abs() >= 1,
    "as many as beyond, at random": lambda g: torch.rand(g.shape, generator=torch.Generator().manual_seed(0)) < 0.157,
    "gates below −1": lambda g: g <= -1,
    "gates above 1": lambda g: g >= 1,
}


def explore_opening() -> Explorer:
    """The opening against the gate, over how many gates there are and what they write; beside it the model's loss."""
    run = _feed_forwards()
    (trained, gates, wrote), (none, *_) = run(torch.sigmoid), run(torch.zeros_like)
    g, edges, shown = torch.linspace(-4, 4, 401), np.linspace(-4, 4, 33), gates.clamp(-3.99, 3.99)
    many, much = (np.histogram(shown, edges, weights=w)[0] for w in (torch.full_like(gates, 1 / len(gates)), wrote))

    # What is fixed: how many gates, what they write, the trained opening; an axis for the loss.
    figure, (curve, scale) = new_figure(2, width_ratios=[5, 1])
    curve.stairs(many / many.max() / 2, edges, fill=True, color=HIDDEN)
    curve.stairs(much / many.max() / 2, edges, fill=True, color=VALUE, alpha=0.4)
    curve.plot(g, torch.sigmoid(g), color=GREY, ls="--")
    curve.set(xlim=(-4, 4), ylim=(-0.3, 1.3), yticks=(0, 0.5, 1), xlabel="gate g", ylabel="opening: factor of g · u")
    look = {"ha": "right", "va": "center", "fontsize": 9}
    curve.text(0.1, -0.08, "how many gates", color=GREY, **look)
    curve.text(3.0, -0.08, "how much they write", color="#00695E", **look)
    curve.text(3.9, 0.88, "as trained: σ(g)", color=GREY, **look)
    scale.set(xlim=(0, 1), ylim=(0, 2), xticks=[], yticks=(0, 0.5, 1, 1.5, 2), ylabel="added loss [nat/token]")
    scale.yaxis.set(label_position="right", ticks_position="right")
    scale.spines[["left", "bottom"]].set_visible(False)
    scale.spines["right"].set_visible(True)

    # What moves: the opening, drawn thick where it is bent, and the loss.
    (thin,) = curve.plot(g, g, color=INK, lw=1)
    (ours,) = curve.plot(g, g, color=INK, lw=3)
    (bar,) = scale.plot([0.5, 0.5], [0, 1], color=INK, lw=26, solid_capstyle="butt")

    def draw(shape, level, rise, where):
        def opening(g):
            return torch.where(WHERE[where](g), OPENINGS[shape](g, level, rise), torch.sigmoid(g))

        cost, bent = run(opening)[0] - trained, WHERE[where](gates).float()
        at_random, new = "random" in where, OPENINGS[shape](g, level, rise)
        thin.set_ydata(torch.full_like(g, torch.nan) if at_random else opening(g))
        ours.set_ydata(new if at_random else new.where(WHERE[where](g), torch.nan))
        bar.set_ydata([0, min(max(cost, 0.01), 2)])
        said = f"{cost:+.2f}".replace("-", "−")
        shares = f"{bent.mean():.0%} of the gates, which write {(bent * wrote).sum():.0%}"
        curve.set_title(f"Thick: yours, for {shares} of what is added")
        scale.set_title(said, loc="center", fontsize=13, fontweight="bold")
        return (
            f"Bent are {shares} of what the feed-forwards add. The loss goes from {trained:.2f} to "
            f"{trained + cost:.2f} ({said}); without any feed-forward it is {none:.2f}."
        )

    controls = {
        "shape": switch("opening", OPENINGS),
        "where": switch("for", WHERE),
        "level": slider("level at g = 0", 0.5, 0.0, 1.0, 0.05),
        "rise": slider("rise per 1 of g", 0.0, 0.0, 0.5, 0.05),
    }
    sides = {"gates below −1": (-4, -1), "gates between −1 and 1": (-1, 1), "gates above 1": (1, 4)}
    parts = {("where", name): within(curve, left, -0.3, right, 1.3) for name, (left, right) in sides.items()}
    alt = "Left: the opening against the gate, bent (thick) and as trained (dashed), over how many gates there are and "
    return Explorer(figure, draw, controls, alt + "how much they write. Right: the added loss as a bar.", parts)


def _feed_forwards():
    # A function: opening -> loss of the text, all gates, and the share of each in what the feed-forwards add (squares).
    model, text = bundled(), held_out_windows()[TEXT]

    def run(opening):
        gates, wrote = [], []

        def forward(layer, x):
            gates.append(layer.gate_proj(x))
            hidden = opening(gates[-1]) * gates[-1] * layer.up_proj(x)
            part = (hidden * layer.down_proj.weight.norm(dim=0)).square()
            wrote.append(part / part.sum() / len(model.layers))
            return layer.down_proj(hidden)

        with replaced(SwiGLU, forward), torch.inference_mode():
            loss = F.cross_entropy(model(text[None, :-1])[0], text[1:]).item()
        return loss, torch.cat(gates).flatten(), torch.cat(wrote).flatten()

    return run


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
    names = [
        fan.text(0, 0, f"u = {u}".replace("-", "−"), color=GREY, fontsize=9, ha="right", va=("bottom", "top")[u < 0])
        for u in others
    ]
    (value,), (slope,) = (ax.plot(gates, gates, color=INK, lw=2.4) for ax in (fan, steep))
    rings = [ax.plot([], [], "o", mfc="white", mec=INK, mew=1.5, ms=8)[0] for ax in (fan, steep)]
    dots = [ax.plot([], [], "o", color=INK, mec="white", ms=9, clip_on=False)[0] for ax in (fan, steep)]

    def draw(g, u, activation):
        bend, here = activations[activation], torch.tensor(float(g))
        for line, name, up in zip(lines, names, others, strict=True):
            line.set_ydata(up * bend(gates))
            at = gates[(up * bend(gates)).abs() < 13][-1].item()  # the last place inside the picture
            name.set(x=min(at, 5.8) - 0.25, y=up * bend(torch.tensor(at)).item())
        value.set_ydata(u * bend(gates))
        slope.set_ydata(rise := u * _slope(bend, gates))
        flat = rise[:-1] * rise[1:] <= 0
        for ring, height in zip(rings, (u * bend(gates), 0 * rise), strict=True):
            ring.set(data=(gates[:-1][flat], height[:-1][flat]), markevery=max(1, int(flat.sum()) // 15))
        opened, rising = bend(here).item(), u * _slope(bend, here).item()
        for dot, height, limit in zip(dots, (opened * u, rising), (16, 6), strict=True):
            dot.set_data([g], [max(-limit, min(height, limit))])
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
