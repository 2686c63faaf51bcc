"""The explorers of notebook 03: what bending the opening of a trained model's gates costs, and one gate at work."""

import numpy as np
import torch
from matplotlib.patches import Polygon
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, bundled, new_figure, slider, switch, toggle
from helpers.interventions import held_out_windows, replaced
from helpers.model import SwiGLU
from helpers.plots import HIDDEN, INK, VALUE

TEXT, TOKENS = 4, 128  # of the held-out windows: one that, half opened, costs about the mean of all 16 in each range
RANGES = {"below −1": (-torch.inf, -1), "between −1 and 1": (-1, 1), "above 1": (1, torch.inf)}
BARS = {"gates": (GREY, PALE), "write": ("#00695E", VALUE), "cost": ("#C00000", "#C00000")}  # ink, fill
TOP = 0.3  # [nat/token], the cost that is drawn as high as 100 %


def explore_shut() -> Explorer:
    """The opening as the reader bends it; for each range of gates how many, what they write, and what bending costs."""
    run, g = _ranges(), torch.linspace(-4, 4, 161)
    figure, parts = new_figure(1)
    parts.remove()
    figure.set_size_inches(8.0, 4.4)
    curve, bars = figure.subplots(2, 1, height_ratios=[1, 1.2], sharex=True)

    # What is fixed: the opening as trained; three ranges with three bars each, and their names.
    curve.plot(g, torch.sigmoid(g), color=GREY, ls="--", zorder=2)
    curve.text(3.95, 0.84, "as trained", color=GREY, ha="right", va="top")
    curve.set(xlim=(-4, 4), ylim=(-0.12, 1.25), ylabel="opening")
    curve.set_yticks((0, 0.5, 1), ("0, shut", "½", "1, open"))
    curve.tick_params(axis="x", length=0, labelbottom=False)
    bars.set(ylim=(-0.15, 1.12), yticks=[], xlabel="gate g")
    bars.axhline(0, color=INK, lw=0.8)
    curve.spines["bottom"].set_visible(False)
    bars.spines["left"].set_visible(False)
    for ax in (curve, bars):
        for edge in (-1, 1):
            ax.axvline(edge, color=PALE, lw=1, zorder=0)
    places = [-3.4, -2.5, -1.6, -0.65, 0, 0.65, 1.6, 2.5, 3.4]
    for at, (name, (ink, _)) in zip(places, 3 * list(BARS.items()), strict=True):
        bars.text(at, -0.04, name, ha="center", va="top", color=ink, fontsize=9)

    # What moves: the opening, and what lies between it and the trained one; nine bars, three outlines, nine numbers.
    area = curve.add_patch(Polygon([(0, 0)], fc="#F3D3D3", ec="none", zorder=1))
    (ours,) = curve.plot(g, g, color=INK, lw=2.6, zorder=3)
    solid = bars.bar(places, 1.0, width=0.5, color=3 * [fill for _, fill in BARS.values()])
    dotted = bars.bar(places[1::3], 1.0, width=0.5, fc="none", ec="#00695E", lw=1.4, ls=":")
    numbers = [bars.text(at, 0, "", ha="center", va="bottom") for at in places]

    def draw(low, high, steep, at_random):
        def opening(gate):
            return low + (high - low) * torch.sigmoid(steep * gate)

        found, new = run(opening, at_random), opening(g)
        ours.set_ydata(new)
        area.set_xy(np.concatenate((np.stack((g, torch.sigmoid(g)), 1), np.stack((g, new), 1)[::-1])))
        for part, (many, wrote, writes, cost) in enumerate(found):
            dotted[part].set_height(min(writes, 1))
            tops = many, max(wrote, min(writes, 1)), min(max(cost / TOP, 0), 1)
            changed = f" → {writes:.0%}" if part != 1 and round(wrote, 2) != round(writes, 2) else ""
            said = f"{many:.0%}", f"{wrote:.0%}{changed}", f"{cost:+z.2f}".replace("-", "−") + " ↑" * (cost > TOP)
            for bar, height in zip(solid[3 * part :], (many, wrote, tops[2]), strict=False):
                bar.set_height(max(height, 0.006))
            for number, top, words in zip(numbers[3 * part :], tops, said, strict=False):
                number.set(text=words, y=top + 0.02)
        bars.set_title("As many gates as in each range, drawn at random" if at_random else "Each range bent alone")
        each = (
            f"{name}: {many:.0%} of the gates write {wrote:.0%}, with your opening {writes:.0%}; cost {cost:+z.2f}"
            for name, (many, wrote, writes, cost) in zip(RANGES, found, strict=True)
        )
        who = "As many gates as in each range, drawn at random. " if at_random else "Each range bent alone. "
        return (who + ". ".join(each) + ".").replace("+-", "−").replace(" -", " −")

    controls = {
        "low": slider("opening when shut", 0.0, 0.0, 1.0, 0.05),
        "high": slider("opening when open", 1.0, 0.0, 1.2, 0.05),
        "steep": slider("steepness", 1.0, 0.0, 8.0, 0.25),
        "at_random": toggle("as many gates, drawn at random"),
    }
    alt = "Above: the opening against the gate, yours black, as trained dashed. Below, for gates under −1, between and "
    return Explorer(figure, draw, controls, alt + "over 1: bars for how many, what they write, and the added loss.")


def _ranges():
    # A function: opening, at random -> for each range its share of the gates and of what is written (squares), that
    # share with the new opening, and what the loss rises by if this range alone gets it.
    model, text = bundled(), held_out_windows()[TEXT, : TOKENS + 1]
    layers, rows = [block.feed_forward for block in model.layers], text[None, :-1].expand(3, -1)
    over, upto = torch.tensor(list(RANGES.values())).T[..., None, None]  # (3, 1, 1) each: row r bends range r
    gates, sizes = [], []  # of each layer, as trained: g, and the square of what g · u adds

    def watch(layer, x):
        g, u = layer.gate_proj(x), layer.up_proj(x)
        gates.append(g[0])
        sizes.append((g * u * layer.down_proj.weight.norm(dim=0))[0].square())
        sizes[-1] /= (sizes[-1] * torch.sigmoid(g[0]).square()).sum() * len(layers)
        return layer.down_proj(F.silu(g) * u)

    @torch.inference_mode()
    def losses(forward, rows):
        with replaced(SwiGLU, forward):
            logits = model(rows)
        return F.cross_entropy(logits.mT, text[1:].expand(len(rows), -1), reduction="none").mean(dim=1)

    trained = losses(watch, rows[:1])
    gates, sizes = torch.stack(gates), torch.stack(sizes)
    own = (gates > over[:, None]) & (gates <= upto[:, None])  # (range, layer, T, unit)
    order = torch.randperm(gates.numel(), generator=torch.Generator().manual_seed(0))
    drawn = own.flatten(1)[:, order].view_as(own)
    wrote = sizes * torch.sigmoid(gates).square()

    def run(opening, at_random):
        def forward(layer, x):
            g = layer.gate_proj(x)
            bent = drawn[:, layers.index(layer)] if at_random else (g > over) & (g <= upto)
            return layer.down_proj(torch.where(bent, opening(g), torch.sigmoid(g)) * g * layer.up_proj(x))

        members, cost = (drawn if at_random else own).flatten(1).float(), losses(forward, rows) - trained
        written = torch.stack([wrote, sizes * opening(gates).square()]).flatten(1)
        return torch.cat([members.mean(1, keepdim=True), members @ written.T, cost[:, None]], dim=1).tolist()

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
