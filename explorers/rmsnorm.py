"""The explorers of notebook 01: what two norms do to an arrow, and thirteen norms of a trained LLaMA."""

import functools
import math

import numpy as np
import torch
from matplotlib.patches import Rectangle
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, arc, bundled, new_figure, slider, switch, within
from helpers.interventions import held_out_windows, replaced
from helpers.model import RMSNorm
from helpers.plots import HIDDEN, INK

LENGTHS = torch.logspace(-4, 1, 61)  # of x, along the curves


def explore_rms_norm() -> Explorer:
    """What RMSNorm and LayerNorm do to an arrow of two numbers: the angle each turns it by, and its length after."""
    # What is fixed: a plane with the circle of length √2 and the line of mean 0; axes for the lengths.
    figure, (plane, lengths) = new_figure(2, width_ratios=[1.1, 1])
    plane.set(xlim=(-2.7, 2.7), ylim=(-2.7, 2.7), aspect="equal", xlabel="coordinate 0", ylabel="coordinate 1")
    plane.plot(*arc(0, 2 * math.pi, math.sqrt(2)), color=HIDDEN, lw=1.2)
    plane.plot([-2.7, 2.7], [2.7, -2.7], color=HIDDEN, lw=1.2, ls=":")
    plane.text(-2.3, 1.35, "mean = 0", color=GREY, rotation=-45, fontsize=9)
    lengths.set(xscale="log", yscale="log", xlim=(1e-4, 10), ylim=(1e-4, 10), xlabel="length of x")
    lengths.set_ylabel("length after the norm")
    lengths.plot(LENGTHS, LENGTHS, color=PALE, lw=1, zorder=1)
    lengths.text(0.3, 0.06, "no norm", color=GREY, fontsize=9)

    # What moves: x, and its mean taken away; what each norm makes of it; the length at which eps takes over.
    before = _Arrow("x", plane, lengths, color=PALE, tip=PALE, width=6)
    (gone,) = plane.plot([], [], color=INK, lw=1.2, ls=":", label="mean taken away")
    by_rms = _Arrow("RMSNorm(x)", plane, lengths, color=INK, tip=INK, arc_radius=1.7)
    by_layer = _Arrow("LayerNorm(x)", plane, lengths, color=INK, tip="white", style="--", arc_radius=2.1)
    root = lengths.axvline(1, color=INK, lw=1, ls=":")
    says = lengths.text(1, 6, "√(2·eps)", fontsize=9, va="center", ha="right")
    figure.legend(*plane.get_legend_handles_labels(), loc="outside lower center", ncols=4)

    def draw(direction, length, eps, gain):
        rows = torch.cat((torch.tensor([length]), LENGTHS))  # the first for the arrow, the others for the curve
        angle = torch.tensor(math.radians(direction))
        x = rows[:, None] * torch.stack((angle.cos(), angle.sin()))
        norm = RMSNorm(2, eps).requires_grad_(False)
        norm.weight[1] = gain
        before.move(x, x, length)
        rms_angle, rms_length = by_rms.move(x, norm(x), length)
        layer_angle, layer_length = by_layer.move(x, F.layer_norm(x, (2,), norm.weight, None, eps), length)
        gone.set_data(*torch.stack((x[0], x[0] - x[0].mean())).T.tolist())
        root.set_xdata([math.sqrt(2 * eps)] * 2)
        says.set_x(0.8 * math.sqrt(2 * eps))
        turn, words = f"by {layer_angle:.0f}°", f"turns it by {layer_angle:.1f}° and gives length {layer_length:.3g}"
        if layer_length < 1e-5:
            turn, words = "to 0", "leaves nothing of it"
        plane.set_title(f"RMSNorm turns x by {rms_angle:.0f}°, LayerNorm {turn}")
        lengths.set_title(f"RMSNorm: length {length:.3g} → {rms_length:.3g}")
        return (
            f"x has length {length:.3g}. RMSNorm turns it by {rms_angle:.1f}° and gives length {rms_length:.3g}; "
            f"LayerNorm {words}."
        )

    controls = {
        "direction": slider("direction of x", -15, -180, 180, unit="degree"),
        "length": slider("length of x", 2.5, -4, 1, 0.1, log=True),
        "eps": slider("eps", 1e-5, -8, 0, 0.5, log=True),
        "gain": slider("second gain", 1.0, 0.1, 2.0, 0.1),
    }
    alt = "Left: arrows of x, RMSNorm(x) and LayerNorm(x) in the plane, with the angle each norm turned x by. "
    return Explorer(figure, draw, controls, alt + "Right: length after each norm against the length of x.")


class _Arrow:
    """A vector in both pictures: an arrow with the angle it was turned by, and the curve of its length with a dot."""

    def __init__(self, name, plane, lengths, color, tip, width=2.2, style="-", arc_radius=0.0):
        line, mark = {"color": color, "lw": width, "ls": style}, {"color": color, "mfc": tip, "ms": 3 * width, "ls": ""}
        (self.shaft,) = plane.plot([], [], label=name, **line)
        (self.tip,) = plane.plot([0], [0], marker=(3, 0, 0), **mark)
        (self.arc,) = plane.plot([], [], color=INK, lw=1)
        box = {"fc": "white", "ec": "none", "pad": 0.5}
        self.degrees = plane.text(0, 0, "", ha="center", va="center", fontsize=9, bbox=box)
        self.arc_radius, self.curve = arc_radius, None
        if arc_radius:
            (self.curve,) = lengths.plot(LENGTHS, LENGTHS, **line)
            (self.dot,) = lengths.plot([], [], "o", **mark, clip_on=False)

    def move(self, x, vectors, length):
        """Show what became of x at each length, (62, 2); return the arrow's angle [degree] and length."""
        start, end = (math.atan2(second, first) for first, second in (x[0].tolist(), vectors[0].tolist()))
        after, *along_curve = vectors.norm(dim=-1).tolist()
        turned = math.remainder(end - start, 2 * math.pi) if after > 1e-5 else 0
        self.shaft.set_data(*zip((0, 0), vectors[0].tolist(), strict=True))
        self.tip.set(xdata=vectors[0, :1], ydata=vectors[0, 1:], marker=(3, 0, math.degrees(end) - 90))
        self.arc.set_data(arc(start, start + turned, self.arc_radius))
        middle, away = start + turned / 2, self.arc_radius + 0.35
        self.degrees.set(x=away * math.cos(middle), y=away * math.sin(middle))
        self.degrees.set_text(f"{math.degrees(abs(turned)):.0f}°" if abs(turned) > 0.1 else "")
        if self.curve:
            self.curve.set_ydata(along_curve)
            self.dot.set_data([length], [min(max(after, 1e-4), 10)])
        return abs(math.degrees(turned)), after


TEXTS, LENGTH = [2, 8], 225  # of the held-out texts; losses near those of all, but where one number runs away
DOES = {  # what a norm makes of tokens: (its gain, x, the division by the rms, the usual rms there, a random direction)
    "normalise": lambda g, x, unit, usual, drawn: g * unit(x),
    "pass on what arrives": lambda g, x, unit, usual, drawn: x,
    "divide all tokens by one number": lambda g, x, unit, usual, drawn: g * x / usual,
    "take the mean away": lambda g, x, unit, usual, drawn: g * unit(x - x.mean(dim=-1, keepdim=True)),
    "take a random direction away": lambda g, x, unit, usual, drawn: g * unit(x - (x @ drawn)[..., None] * drawn),
    "leave the gain out": lambda g, x, unit, usual, drawn: unit(x),
    "gain: its mean everywhere": lambda g, x, unit, usual, drawn: g.mean() * unit(x),
    "gain: in another order": lambda g, x, unit, usual, drawn: g[drawn.argsort()] * unit(x),
}


def explore_norms() -> Explorer:
    """How large tokens reach and leave each norm of the bundled model, while one or all do something else."""
    run = _thirteen_norms()
    places = ["all 13", *(f"block {i}, {part}" for i in range(6) for part in ("attention", "feed-forward")), "final"]
    short = ["all 13", *(f"{i} {part}" for i in range(6) for part in ("att.", "ffn")), "final"]
    trained, spans = run(0, "normalise", 1.0, 1e-5)

    # What is fixed: an axis with the thirteen norms, the sizes that leave them as trained; an axis for the loss.
    figure, (ax, scale) = new_figure(2, width_ratios=[7, 1])
    at = np.arange(13) + np.arange(13) // 2 * 0.5
    ax.set(yscale="log", ylim=(0.002, 100), xlim=(-0.7, at[-1] + 0.7), ylabel="rms of a token")
    ax.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    ax.set_xticks(at, 6 * ["att.", "ffn"] + ["final"], fontsize=9)
    ax.tick_params(axis="x", length=0)
    for block in range(6):
        ax.axvspan(2.5 * block - 0.55, 2.5 * block + 1.55, color="#F4F4F4", zorder=0)
        ax.text(2.5 * block + 0.5, 60, f"block {block}", ha="center", va="center", fontsize=9, color=GREY)
    scale.set(xlim=(0, 1), ylim=(3, 9), xticks=[], ylabel="loss [nat/token]")
    scale.yaxis.set(label_position="right", ticks_position="right")
    scale.spines[["left", "bottom"]].set_visible(False)
    scale.spines["right"].set_visible(True)
    for loss, text in ((trained, "as trained"), (math.log(1024), "a guess")):
        scale.axhline(loss, color=HIDDEN, lw=1.2, zorder=1)
        scale.text(-0.1, loss, text, ha="right", va="center", fontsize=9, color=GREY)

    # What moves: bars from the 5th to the 95th percentile, dots at the median beside fixed rings, eps, the loss.
    thick = {"color": PALE, "lw": 9, "solid_capstyle": "butt", "zorder": 1.5}
    arrives = [ax.plot([i, i], [1, 1], label="" if i else "arrives (9 of 10 tokens)", **thick)[0] for i in at]
    ax.plot(at, spans[:, 1, 1], "o", mfc="white", mec=INK, ms=10, mew=1.2, label="leaves, as trained", zorder=2)
    (dots,) = ax.plot(at, at + 1, "o", color=INK, ms=5, label="leaves now", zorder=3)
    root = ax.axhline(1, color=INK, lw=1, ls=":", label="root of eps")
    frame = ax.add_patch(Rectangle((0, 0.0022), 1, 34, fill=False, ec=INK, lw=1, zorder=2.5))
    (bar,) = scale.plot([0.5, 0.5], [3, 3], color=INK, lw=18, solid_capstyle="butt", zorder=3)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=4)

    def draw(place, does, factor, eps):
        loss, now = run(place, does, round(factor, 3), float(f"{eps:.2g}"))
        for line, (low, _, high) in zip(arrives, now[:, 0].tolist(), strict=True):
            line.set_ydata([low, high])
        dots.set_ydata(now[:, 1, 1])
        root.set_ydata([math.sqrt(eps)] * 2)
        first, last = at[[0, -1]] if place == 0 else at[[place - 1] * 2]
        frame.set(x=first - 0.47, width=last - first + 0.94)
        bar.set_ydata([trained - 0.06, min(max(loss, trained + 0.06), 9)])
        said = f"{loss:.2f}" if loss < 100 else "> 100"
        scale.set_title(said, loc="center", fontsize=13, fontweight="bold")
        what = f"{places[place]}: {does}" + (f", times {factor:.2g}" if round(factor, 3) != 1 else "")
        ax.set_title(what)
        worst = abs(np.log(ratios := now[:, 1, 1] / spans[:, 1, 1])).argmax()
        leaves = f"is farthest from the trained one at {places[worst + 1]}: times {ratios[worst]:.2g}"
        if abs(ratios[worst] - 1) < 0.05:
            leaves = "is that of training everywhere"
        return f"{what.capitalize()}. Loss {said}, as trained {trained:.2f}. The size that leaves {leaves}."

    controls = {
        "place": switch("norm", [(name, place) for place, name in enumerate(short)]),
        "does": switch("what it does", DOES),
        "factor": slider("times", 1.0, -1.5, 1.5, 0.1, log=True),
        "eps": slider("eps", 1e-5, -5, 0, 0.25, log=True),
    }
    parts = {("place", i): within(ax, x - 0.47, 0.002, x + 0.47, 35) for i, x in enumerate(at.tolist(), 1)}
    alt = "Thirteen norms side by side, log axis: sizes of tokens that arrive (grey bars), that leave (black dots) and "
    return Explorer(figure, draw, controls, alt + "that left as trained (rings). Right: the loss as a bar.", parts)


def _thirteen_norms():
    # A function (place, what it does, factor, eps) -> loss, and percentiles 5, 50, 95 of rms (13, before and after, 3).
    model, windows = bundled(), held_out_windows()[TEXTS, :LENGTH]
    norms, usual = [part for part in model.modules() if isinstance(part, RMSNorm)], {}
    drawn = F.normalize(torch.randn(model.config.dim, generator=torch.Generator().manual_seed(0)), dim=0)

    @functools.lru_cache(400)
    def run(place, does, factor, eps):
        sizes = torch.empty(13, 2, windows[:, 1:].numel())

        def forward(norm, x):
            i = norms.index(norm)
            changed = place in (0, i + 1)

            def unit(x):
                return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + (eps if changed else norm.eps))

            y = factor * DOES[does](norm.weight, x, unit, usual.get(i), drawn) if changed else norm.weight * unit(x)
            sizes[i] = torch.stack([x, y]).pow(2).mean(dim=-1).sqrt().flatten(1)
            return y

        with replaced(RMSNorm, forward), torch.inference_mode():
            loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).item()
        if not usual:  # the first run is as trained
            usual.update(enumerate(sizes[:, 0].pow(2).mean(dim=-1).sqrt()))
        return loss, sizes.quantile(torch.tensor([0.05, 0.5, 0.95]), dim=-1).permute(1, 2, 0).clamp(2.2e-3, 35).numpy()

    return run
