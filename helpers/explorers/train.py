"""The explorer of notebook 06: which angles a longer text brings, and what each scaling of RoPE does about them."""

import math

import torch
from matplotlib.patches import Rectangle

from helpers.explorers.base import Explorer, choice, new_figure, slider
from helpers.model import rope_angles, rope_inv_freq
from helpers.plots import INK

HEAD_DIM, TRAINED, LONGEST = 16, 64, 512
SCALINGS = {
    "as trained": None,
    "linear": {"type": "linear"},
    "NTK": {"type": "ntk"},
    "llama3": {
        "type": "llama3", "low_freq_factor": 0.25, "high_freq_factor": 1.0, "original_max_position_embeddings": TRAINED,
    },
}  # fmt: skip


def explore_context() -> Explorer:
    """Which angles of a longer text a model trained on 64 tokens has met, and by how much each scaling slows its pairs.

    A pair has met an angle if it turned at least that far in training, or full circle.
    """
    # What is fixed: a row per pair in both pictures; positions on the left, speeds compared with training on the right.
    own_speeds, n_pairs = rope_inv_freq(HEAD_DIM), HEAD_DIM // 2
    reached = (TRAINED - 1) * own_speeds[:, None] * (1 + 1e-6)  # the largest angle of each pair in training [rad]
    full_circle = reached >= 2 * math.pi
    figure, (angles, turns) = new_figure(2, width_ratios=[1.7, 1])
    angles.set(xlim=(-1, LONGEST), xticks=range(0, LONGEST + 1, TRAINED), xlabel="position [token]")
    turns.set(xlim=(0, 1.1), xticks=(0, 0.25, 0.5, 0.75, 1), xlabel="turn per token, training = 1")
    turns.axvline(1, color=INK, lw=1, ls=":")
    for ax in (angles, turns):
        ax.set(ylim=(n_pairs - 0.5, -0.5), yticks=range(n_pairs), ylabel="pair")
        ax.spines[:].set_visible(False)

    # What moves: a frame around the text, grey where a pair meets new angles, and a bar for the speed of each pair.
    unmet = angles.barh(range(n_pairs), [1] * n_pairs, height=1, color="#AAAAAA")
    trained = angles.axvline(0, color=INK, lw=1, ls=":")
    frame = angles.add_patch(Rectangle((-0.5, -0.5), 1, n_pairs, fill=False, ec=INK, lw=1.5, clip_on=False))
    bars = turns.barh(range(n_pairs), [1] * n_pairs, height=0.5, color=INK)

    def draw(scaling, factor, length):
        speeds = rope_inv_freq(HEAD_DIM, scaling=SCALINGS[scaling] and SCALINGS[scaling] | {"factor": factor})
        met = full_circle | (reached >= rope_angles(torch.arange(length), speeds).T)
        for bar, known in zip(unmet, met.sum(dim=1).tolist(), strict=True):  # a pair's known angles come first
            bar.set(x=known - 0.5, width=length - known)
        trained.set_xdata([TRAINED - 0.5] * 2)  # touched in every drawing: what moves is drawn above what stays
        frame.set_width(length)
        kept = speeds / own_speeds
        for bar, width in zip(bars, kept.tolist(), strict=True):
            bar.set_width(width)
        share, (fastest, *_, slowest) = f"{met.float().mean():.0%}", (1 / kept).tolist()
        name = scaling if scaling == "as trained" else f"{scaling} × {factor}"
        angles.set_title(f"{name}: {share} of the angles were met in training (white)")
        turns.set_title(f"The fastest pair {_speed(fastest)}")
        return (
            f"Of the angles in a text of {length} tokens, {share} were met in training on {TRAINED}. The fastest pair "
            f"{_speed(fastest)}, the slowest {_speed(slowest)}; {int((kept > 0.999).sum())} of {n_pairs} pairs keep "
            "the angle between two neighbouring tokens."
        )

    # Which controls.
    controls = {
        "scaling": choice("scaling", SCALINGS),
        "factor": slider("scaling factor", 4, 1, 8),
        "length": slider("length of the text", 256, 16, LONGEST, unit="token"),
    }
    controls["factor"].disabled = True  # as trained there is nothing to scale
    controls["scaling"].observe(lambda now: setattr(controls["factor"], "disabled", now.new == "as trained"), "value")
    alt = "Left: pair against position in a framed text, white where training met the angle, else grey, line at 63.5. "
    return Explorer(figure, draw, controls, alt + "Right: each pair's turn per token, training = 1.")


def _speed(slowed):
    return f"is {slowed:.0f} times slower" if slowed > 1.001 else "keeps its speed"
