"""The explorers of notebook 02: clock hands, the hands of a trained head, and what breaks a long text."""

import functools
import math

import numpy as np
import torch
from matplotlib.patches import Circle, Polygon, Rectangle
from torch.nn import functional as F

from explorers.base import PALE, Explorer, arc, bare, bundled, new_figure, slider, strokes, switch, within
from helpers.interventions import held_out_tokens, held_out_windows, outputs_of
from helpers.model import attention_weights, causal_visible, rope_angles, rope_inv_freq
from helpers.plots import HATCH, HIDDEN, INK, KEY, QUERY

PALE_KEY = "#F6C6A0"  # a key that is always 1 back


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


def explore_hands() -> Explorer:
    """Three previous-token heads of the bundled model: mean weight against distance while some hands stand still."""
    model, windows, farthest = bundled(), held_out_windows()[:2, :256], 160
    heads, speeds, visible = {"4.0": (4, 0), "4.3": (4, 3), "5.2": (5, 2)}, model.inv_freq, causal_visible(256, 256)
    reads = outputs_of(model, ["layers.4.attention_norm", "layers.5.attention_norm"], [windows])

    @functools.lru_cache(500)
    def by_distance(head, still):
        layer, index = heads[head]
        slowed = speeds.clone()
        slowed[list(still)] = 0
        angles = rope_angles(torch.arange(256), slowed)
        attention, read = model.layers[layer].attention, reads[f"layers.{layer}.attention_norm"]
        q, k, _ = attention.rotated_qkv(read, angles.cos(), angles.sin())
        weights = attention_weights(q[:, [index]], k[:, [index // 2]], visible).mean(dim=(0, 1))
        far = weights.tril(-64)[64:].sum(dim=-1).mean().item()
        return np.array([weights.diagonal(-back).mean().item() for back in range(farthest + 1)]), far

    # What is fixed: sixteen clocks, and where hand 0 is back after one, two, three turns.
    figure, (clocks, ax) = new_figure(2, width_ratios=[1, 1.9])
    centres = draw_clocks(clocks)
    turns = [ax.axvline(1 + 2 * math.pi * turn, color=HIDDEN, lw=1, ymax=0.8, zorder=0) for turn in range(26)]
    turns.append(ax.text(159, 0.3, "thin lines: hand 0 stands as at 1 back", ha="right", va="top", fontsize=9))
    ax.set(xlim=(0, farthest), ylim=(0.002, 0.6), yscale="log", xlabel="tokens back", ylabel="mean weight (log scale)")
    ax.set_yticks([0.01, 0.1, 0.5], ["0.01", "0.1", "0.5"])
    ax.set_xticks(range(0, farthest + 1, 32))
    ax.minorticks_off()

    # What moves: hands at 1 back and at the chosen distance, grey over those that stand still, the curves, a dot.
    (marks,) = clocks.plot([], [], "o", color=HIDDEN, ms=34, mew=0, zorder=1)
    (ones,) = clocks.plot([], [], color=PALE_KEY, lw=4)
    (tips,) = clocks.plot([], [], color=KEY, lw=1.6)
    back = np.arange(farthest + 1)
    (usual,) = ax.plot(back, back + 1, color=PALE, lw=4, label="as trained")
    (curve,) = ax.plot(back, back + 1, color=INK, lw=1.8, label="now")
    (dot,) = ax.plot([], [], "o", color=KEY, ms=7)
    ax.legend(loc="upper right", ncols=2)

    def draw(which, head, distance, clicked):
        stands = are_clicked(clicked) == (which == "stand still")
        still = tuple(np.flatnonzero(stands).tolist())
        weights, far = by_distance(head, still)
        moving = speeds.numpy() * ~stands
        for artist in turns:  # they would answer the question before it is tried
            artist.set_visible(which != "stand still" and bool(moving[0]))
        strokes(ones, (*centres.T, np.cos(moving), np.sin(moving)))
        strokes(tips, (*centres.T, np.cos(moving * distance), np.sin(moving * distance)))
        marks.set_data(*centres[stands].T)
        usual.set_ydata(by_distance(head, ())[0])
        curve.set_ydata(weights)
        dot.set_data([distance], [weights[distance]])
        clocks.set_title(f"Click hands. Orange: {distance} back,\npale: 1 back")
        ax.set_title(f"Head {head}: {weights[distance]:.3f} on the token {distance} back")
        peaks = [n for n in range(2, 64) if weights[n] > max(*weights[n - 2 : n], *weights[n + 1 : n + 3], 0.012)]
        again = f"peaks again at {', '.join(map(str, peaks))} back." if peaks else "has no second peak."
        return (
            f"Head {head}, {len(still)} of 16 hands stand still: weight {weights[1]:.2f} on the token 1 back, "
            f"{weights[2]:.2f} on 2, {weights[distance]:.3f} on {distance}, {far:.2f} on all that are 64 "
            f"and more back. Nearer than 64 it {again}"
        )

    controls = {
        "which": switch("the clicked hands", ("stand still", "alone turn")),
        "head": switch("head", list(heads)),
        "distance": slider("tokens back", 7, 0, farthest, says="orange hands at {} back"),
    }
    alt = "Sixteen clocks with the hands at 1 back and at the chosen distance, grey where they stand still; "
    alt += "mean weight of a head against distance, as trained and now."
    return Explorer(figure, draw, controls, alt, clock_parts(clocks, centres), several=True)


def explore_reach() -> Explorer:
    """The bundled model reads twice its trained length: its 16 hands, its mask, and what each token costs more."""
    model, length, trained, smooth = bundled(), 512, 256, 48
    changes = {"2 times slower": 2.0, "3 times slower": 3.0, "stand still": math.inf}
    tokens, speeds, at = held_out_tokens(), model.inv_freq, torch.arange(length)
    text = tokens.unfold(0, length + 1, len(tokens) // 8)[4]

    @functools.lru_cache(500)
    def read(hands, by, width):  # each token's loss, these hands slowed, keys at most width - 1 back
        slowed = speeds.clone()
        slowed[list(hands)] /= by
        return losses(model, text[None], rope_angles(at, slowed), width if width < length else None)[0]

    pieces = losses(model, text.unfold(0, trained + 1, 64), rope_angles(at[:trained], speeds))  # each read alone
    alone = torch.cat((pieces[0], pieces[1:, -64:].flatten()))

    def smoothed(gaps):
        window = np.ones(smooth)
        return np.convolve(gaps, window, mode="same") / np.convolve(np.ones(length), window, mode="same")

    # What is fixed: clocks with the angles met in training, the curve of the model as trained, a row of the mask.
    figure, (clocks, cost) = new_figure(2, width_ratios=[1, 1.5])
    centres, limits = draw_clocks(clocks), np.minimum(speeds.numpy() * (trained - 1), 2 * math.pi)
    for centre, limit in zip(centres, limits, strict=True):
        clocks.add_patch(Polygon(slice_of(0, limit, 0.92) + centre, fc=HIDDEN, ec="none"))
    cost.plot(smoothed(read((), 1, length) - alone), color=PALE, lw=4, label="as trained")
    cost.plot([trained, trained], [-0.35, 3], color=INK, lw=1, ls=":")
    cost.text(trained + 6, -0.3, "trained length", fontsize=9)
    cost.add_patch(Rectangle((0, -1.15), length, 0.32, fc=HIDDEN, ec=HATCH, hatch="////", lw=0))
    cost.text(0, -0.77, "what the last token sees (white)", fontsize=9)
    cost.set(xlim=(0, length), ylim=(-1.3, 3), xticks=range(0, length + 1, 128), xlabel="position [token]")
    cost.set_yticks(range(4))
    cost.set_ylabel("costs more than in a short text [nat]")

    # What moves: the arcs around the clocks, frames around the clicked ones, the white part of the row, a curve.
    (frames,) = clocks.plot([], [], "s", mfc="none", mec=INK, ms=45, mew=0.9)
    fresh = [clocks.plot([], [], color=INK, lw=3.5, solid_capstyle="round")[0] for _ in centres]
    white = cost.add_patch(Rectangle((0, -1.15), length, 0.32, fc="white", ec=INK, lw=0.8))
    (curve,) = cost.plot(at, at, color=INK, lw=1.8, label="now")
    cost.legend(loc="upper left")

    def draw(change, window, clicked):
        chosen, width = are_clicked(clicked), length if window == "all" else int(window)
        hands, slow = tuple(np.flatnonzero(chosen).tolist()), np.where(chosen, changes[change], 1)
        asked = np.minimum(speeds.numpy() * (width - 1) / slow, 2 * math.pi)
        for new, centre, seen, end in zip(fresh, centres, limits, asked, strict=True):
            end = max(end, seen + 0.02) if end > 1.01 * seen else seen  # a slow hand has a dot
            new.set_data(*(centre[:, None] + arc(seen, end, 1.05)) if end > seen else ([], []))
        frames.set_data(*(centres - (0, 0.28))[chosen].T)
        clocks.set_title(f"Clicked hands: {change}\nGrey: angles in training, black: new")
        white.set(x=length - width, width=width)
        gaps = (read(hands, changes[change], width) - alone).numpy()
        curve.set_ydata(smoothed(gaps))
        before, after = (round(gaps[part].mean(), 2) + 0.0 for part in (slice(0, trained), slice(trained, None)))
        cost.set_title(f"A token after the first 256 costs {after:+.2f} nat")
        new = [i for i in range(16) if asked[i] > 1.01 * limits[i]]
        met = f"{len(new)} hands meet new angles ({new[0]} to {new[-1]})" if new else "no hand meets a new angle"
        done = f"Hands {', '.join(map(str, hands))} {change}" if hands else "All hands as trained"
        return f"{done}: {met}. A token costs {before:+.2f} nat up to 256, {after:+.2f} after."

    controls = {
        "change": switch("the clicked hands", list(changes)),
        "window": switch("newest keys that a query sees", ("all", "256", "128", "32", "8")),
    }
    alt = "Sixteen clocks with the angles met in training and the new ones; what each token of a long text costs more "
    alt += "than in a short one, against its position; which keys the last token sees."
    return Explorer(figure, draw, controls, alt, clock_parts(clocks, centres), several=True)


def clock_parts(ax, centres):
    """The parts of an Explorer for sixteen clocks at these centres: {"hand i": where}."""
    return {f"hand {i}": within(ax, x - 1.3, y - 1.8, x + 1.3, y + 1.15) for i, (x, y) in enumerate(centres)}


def are_clicked(clicked):
    """Which of sixteen hands are clicked, (16,) bool."""
    return np.array([f"hand {i}" in clicked for i in range(16)])


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
