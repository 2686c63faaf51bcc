"""The explorers of notebook 02: clock hands, and what breaks a long text."""

import functools
import math

import numpy as np
import torch
from matplotlib.patches import Circle, Polygon
from torch.nn import functional as F

from explorers.base import PALE, Explorer, arc, bare, bundled, new_figure, slider, strokes, within
from helpers.interventions import held_out_tokens
from helpers.model import causal_visible, rope_angles, rope_inv_freq
from helpers.plots import HIDDEN, INK, KEY, QUERY


@torch.no_grad()
def losses(model, texts, angles, window=None):
    """What each token of texts (B, T + 1) costs [nat], (B, T), if RoPE turns by these angles, (T, h/2) [rad].

    A query sees the `window` newest keys, its own among them; None: all before it.
    """
    device, at = model.lm_head.weight.device, torch.arange(len(angles))
    texts, angles = texts.to(device), angles.to(device)
    visible = (causal_visible(len(at), len(at)) & (at[:, None] - at < window)).to(device) if window else None
    x = model.tok_embeddings(texts[:, :-1])
    for block in model.layers:
        x = block(x, angles.cos(), angles.sin(), visible)
    logits = model.lm_head(model.final_norm(x))
    return F.cross_entropy(logits.mT, texts[:, 1:], reduction="none").cpu()


def explore_rope(position=20, distance=3, pair=2) -> Explorer:
    """Clock hands of the eight pairs of a head of 16, for a query and a key that move along a text."""
    head_dim, n_pairs, farthest = 16, 8, 100

    # What is fixed: a ruler of positions, eight clocks below it, and one large clock.
    figure, (clocks, large) = new_figure(2, width_ratios=[1.9, 1])
    bare(clocks, (-1.5, 10.5), (-5.7, 3.2))
    bare(large, (-1.5, 1.5), (-1.7, 1.5))
    centres = np.array([(3 * (pair % 4), -3.6 * (pair // 4)) for pair in range(n_pairs)], dtype=float)
    for i, (x, y) in enumerate(centres):
        clocks.add_patch(Circle((x, y), 1, fill=False, ec=HIDDEN, lw=1.2))
        clocks.text(x, y - 1.2, f"pair {i}", ha="center", va="top", fontsize=9)
    clocks.plot([-1, 10], [1.9, 1.9], color=HIDDEN, lw=2)
    for tick in range(0, farthest + 1, 20):
        clocks.text(-1 + 11 * tick / farthest, 1.75, tick, ha="center", va="top", fontsize=9)
    clocks.set_title("Position on the ruler; below each clock: tokens for one full turn")
    large.add_patch(Circle((0, 0), 1, fill=False, ec=HIDDEN, lw=1.5))

    # What moves: two marks on the ruler, the hands, the wedges between them, the ring around the chosen clock, texts.
    wedges = [ax.add_patch(Polygon([(0, 0)], fc=HIDDEN, ec="none")) for ax in (clocks,) * n_pairs + (large,)]
    chosen = clocks.add_patch(Circle((0, 0), 1.15, fill=False, ec=INK, lw=1.5))
    waves = [clocks.text(x, y - 1.6, "", ha="center", va="top", fontsize=9) for x, y in centres]
    sign = large.text(0, 0, "", ha="center", va="center")
    hands, marks = [], []
    for name, color, marker, style in (("query", QUERY, "o", "-"), ("key", KEY, "s", "--")):
        look = {"color": color, "ls": style, "marker": marker, "markevery": (1, 3)}  # a hand's end is its second point
        hands.append([ax.plot([], [], lw=1.8, ms=size, **look)[0] for ax, size in ((clocks, 4), (large, 8))])
        marks.append(clocks.plot([], [], color=color, marker=marker, ms=9)[0])
        large.plot([], [], color=color, ls=style, marker=marker, label=name)
    large.legend(loc="lower center", ncols=2, fontsize=9)

    def draw(position, distance, base, pair):
        places = position, max(position - distance, 0)
        distance, speeds = position - places[1], rope_inv_freq(head_dim, base)
        angles = rope_angles(torch.tensor(places), speeds).numpy()
        for (small, enlarged), mark, row, place in zip(hands, marks, angles, places, strict=True):
            ends = np.stack((np.cos(row), np.sin(row)), axis=-1)
            strokes(small, (*centres.T, *ends.T))
            enlarged.set_data(*np.stack(((0, 0), ends[pair])).T)
            mark.set_data([-1 + 11 * place / farthest], [2.3])
        turns, rests = np.divmod(distance * speeds.numpy(), 2 * math.pi)
        for i, (wedge, rest) in enumerate(zip(wedges, [*rests, rests[pair]], strict=True)):
            start, centre, size = (angles[1, i], centres[i], 0.9) if i < n_pairs else (angles[1, pair], (0, 0), 0.6)
            wedge.set_xy(slice_of(start, start + rest, size) + centre)
        chosen.center = centres[pair]
        for text, wavelength in zip(waves, (2 * math.pi / speeds).tolist(), strict=True):
            text.set_text(f"{wavelength:,.1f}" if wavelength < 100 else f"{wavelength:,.0f}")
        speed, middle = speeds[pair].item(), angles[1, pair] + rests[pair] / 2
        degrees = f"{math.degrees(rests[pair]):.1f}°"
        sign.set(text=degrees, x=1.3 * math.cos(middle), y=1.3 * math.sin(middle))
        angle = f"{turns[pair]:.0f} turns + {degrees}" if turns[pair] else degrees
        large.set_title(f"Pair {pair}: {angle} apart")
        return (
            f"Query at {position}, key at {places[1]}: pair {pair} differs by {distance} × {speed:.3g} "
            f"= {distance * speed:.3g} rad ({angle}). It turns once in {waves[pair].get_text()} tokens."
        )

    controls = {
        "position": slider("position of the query", position, 0, farthest, says="query at {}"),
        "distance": slider("key: how far back", distance, 0, 50, says="key {} back"),
        "base": slider("base", 10_000.0, 2, 6, 0.1, log=True),
        "pair": slider("enlarged pair", pair, 0, n_pairs - 1),
    }
    parts = {("pair", i): within(clocks, x - 1.2, y - 2.4, x + 1.2, y + 1.2) for i, (x, y) in enumerate(centres)}
    alt = "A ruler with a query and a key; eight clocks, one per pair, with a solid blue query hand and a dashed "
    alt += "vermillion key hand; one clock enlarged with the angle between them."
    return Explorer(figure, draw, controls, alt, parts)


def explore_reach() -> Explorer:
    """The bundled model reads twice its trained length: its 16 clocks, and what each token costs more."""
    model, length, trained, smooth = bundled(), 512, 256, 48
    tokens, speeds, at = held_out_tokens(), model.inv_freq, torch.arange(length)
    text = tokens.unfold(0, length + 1, len(tokens) // 8)[4]

    @functools.lru_cache(500)
    def read(pairs):  # each token's loss, if these pairs turn at half speed
        slowed = speeds.clone()
        slowed[list(pairs)] /= 2
        return losses(model, text[None], rope_angles(at, slowed))[0]

    pieces = losses(model, text.unfold(0, trained + 1, 64), rope_angles(at[:trained], speeds))  # each read alone
    alone = torch.cat((pieces[0], pieces[1:, -64:].flatten()))

    def smoothed(gaps):
        window = np.ones(smooth)
        return np.convolve(gaps, window, mode="same") / np.convolve(np.ones(length), window, mode="same")

    # What is fixed: clocks with the angles met in training, the curve of the model as trained.
    figure, (clocks, cost) = new_figure(2, width_ratios=[1, 1.5])
    centres, limits = draw_clocks(clocks), np.minimum(speeds.numpy() * (trained - 1), 2 * math.pi)
    for centre, limit in zip(centres, limits, strict=True):
        clocks.add_patch(Polygon(slice_of(0, limit, 0.92) + centre, fc=HIDDEN, ec="none"))
    clocks.set_title("Click a clock: half speed. Grey:\nangles in training, black: new ones")
    cost.plot(smoothed(read(()) - alone), color=PALE, lw=4, label="as trained")
    cost.axvline(trained, color=INK, lw=1, ls=":")
    cost.text(trained + 6, -0.2, "trained length", fontsize=9)
    cost.set(xlim=(0, length), ylim=(-0.3, 3), xticks=range(0, length + 1, 128), xlabel="position [token]")
    cost.set_ylabel("extra loss [nat]")

    # What moves: the arcs around the clocks, frames around the clicked ones, a curve.
    (frames,) = clocks.plot([], [], "s", mfc="none", mec=INK, ms=45, mew=0.9)
    fresh = [clocks.plot([], [], color=INK, lw=3.5, solid_capstyle="round")[0] for _ in centres]
    (curve,) = cost.plot(at, at, color=INK, lw=1.8, label="now")
    cost.legend(loc="upper left")

    def draw(clicked):
        chosen = np.array([f"pair {i}" in clicked for i in range(16)])
        pairs = tuple(np.flatnonzero(chosen).tolist())
        asked = np.minimum(speeds.numpy() * (length - 1) / np.where(chosen, 2, 1), 2 * math.pi)
        for new, centre, seen, end in zip(fresh, centres, limits, asked, strict=True):
            end = max(end, seen + 0.02) if end > 1.01 * seen else seen  # a slow pair has a dot
            new.set_data(*(centre[:, None] + arc(seen, end, 1.05)) if end > seen else ([], []))
        frames.set_data(*(centres - (0, 0.28))[chosen].T)
        gaps = (read(pairs) - alone).numpy()
        curve.set_ydata(smoothed(gaps))
        after = round(gaps[trained:].mean(), 2) + 0.0
        cost.set_title(f"Extra loss of a token after the first 256: {after:+.2f} nat")
        new = [i for i in range(16) if asked[i] > 1.01 * limits[i]]
        done = f"Pairs at half speed: {', '.join(map(str, pairs))}" if pairs else "All pairs turn as trained"
        met = f"{len(new)} pairs meet new angles ({new[0]} to {new[-1]})" if new else "No pair meets a new angle"
        return f"{done}. {met}. Extra loss after the first 256 tokens: {after:+.2f} nat."

    alt = "Sixteen clocks with the angles met in training and the new ones; the extra loss of each token of a long "
    alt += "text against its position, as trained and now."
    parts = {f"pair {i}": within(clocks, x - 1.3, y - 1.8, x + 1.3, y + 1.15) for i, (x, y) in enumerate(centres)}
    return Explorer(figure, draw, {}, alt, parts, several=True)


def draw_clocks(ax):
    """Draw sixteen numbered clocks; returns their centres, (16, 2) in the data of the axes."""
    bare(ax, (-1.5, 10.5), (-11.2, 1.5))
    centres = np.array([(3 * (i % 4), -3 * (i // 4)) for i in range(16)], dtype=float)
    for i, (x, y) in enumerate(centres):
        ax.add_patch(Circle((x, y), 1.05, fill=False, ec=HIDDEN, lw=0.8))
        ax.text(x, y - 1.26, str(i), ha="center", va="top", fontsize=8)
    return centres


def slice_of(start, end, radius):
    """Corners of a slice of a clock between two angles [rad]."""
    return np.vstack(((0, 0), np.transpose(arc(start, end, radius))))
