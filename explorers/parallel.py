"""The explorers of 09: sums that a split model needs, how a ring adds up, when devices pay, where ranks start."""

import functools

import numpy as np
import torch
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.patches import Rectangle
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, bare, bundled, new_figure, slider, switch, toggle
from helpers.checkpoint import load_checkpoint
from helpers.interventions import held_out_tokens, held_out_windows
from helpers.model import PRESETS, count_parameters, rope_angles
from helpers.plots import HIDDEN, INK, KEY, QUERY, VALUE
from helpers.text import TINY_LLAMA

FAR = LinearSegmentedColormap.from_list("off", ["#FBE3D6", KEY])  # the farther off, the fuller
ORDER = "attention_norm", "q_proj", "k_proj", "v_proj", "o_proj", "ffn_norm", "gate_proj", "up_proj", "down_proj"
SUMS = {"o": (4.55, False), "down": (9.55, False), "attention": (1.3, True), "ffn": (5.95, True)}  # where; going back?


def explore_sums() -> Explorer:
    """The bundled model on two ranks: which of a block's four sums do its logits need, and which its gradients?"""
    names = [name for name, _ in _models()[0].named_parameters()]
    figure, (block, grid) = new_figure(2, width_ratios=[1.35, 1])
    for ax, x, y in ((block, (-0.3, 10.7), (-2.9, 2.6)), (grid, (-0.1, 9.1), (8.1, -0.1))):
        bare(ax, x, y)
        ax.set_aspect("auto")
    for rank, y in enumerate((1.4, -1.4)):
        block.annotate("", (10.7, y), (-0.3, y), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.2}, zorder=0)
        block.text(-0.3, y + 0.75, f"rank {rank}", weight="bold")
        for left, half, name in ((2.0, 0, "q, k, v"), (3.3, 1, "o"), (6.7, 0, "gate, up"), (8.25, 1, "down")):
            block.add_patch(Rectangle((left, y - 0.4), 0.8, 0.8, fc="#EEEEEE", ec=INK, lw=0.8))
            corner = (left + 0.4 * rank, y - 0.4) if half else (left, y - 0.4 * rank)
            block.add_patch(Rectangle(corner, *((0.4, 0.8) if half else (0.8, 0.4)), fc="#777777"))
            block.text(left + 0.4, y + 0.55, name, ha="center", fontsize=9)
        for at in (0.55, 5.2):
            block.plot(at, y, "o", mfc="white", mec=INK, ms=7)
            block.text(at, y - 0.3, "norm", ha="center", va="top", fontsize=9)
    for row, name in enumerate(("embedding", *(f"block {layer}" for layer in range(6)), "final norm")):
        grid.text(-0.15, row + 0.5, name, ha="right", va="center", fontsize=9)
    for column, name in enumerate(("norm", "q", "k", "v", "o", "norm", "gate", "up", "down")):
        grid.text(column + 0.5, 8.1, name, ha="center", va="top", fontsize=9, rotation=60)

    # What moves: the sums, and a cell for each weight, the fuller the farther off its gradient is.
    sums, cells = {}, {}
    for key, (at, back) in SUMS.items():
        (line,) = block.plot((at, at), (1.4, -1.4), marker="<" if back else ">", ms=8, ls="--" if back else "-")
        ring = {"boxstyle": "circle,pad=0.3", "fc": "white"}
        sums[key] = line, block.text(at, 0, "+", ha="center", va="center", fontsize=12, weight="bold", bbox=ring)
        block.text(at, -2.6, "back" if back else "forward", ha="center", fontsize=9)
    for name in names:
        (left, top), width = _place(name)
        cells[name] = grid.add_patch(Rectangle((left, top), width, 1, ec="white", lw=1.5))

    def draw(**on):
        off, gaps, copies = _compare(**on)
        for key, (line, plus) in sums.items():
            line.set(color=INK if on[key] else PALE, lw=2 if on[key] else 0.8)
            plus.set_color(INK if on[key] else PALE)
            plus.get_bbox_patch().set_edgecolor(INK if on[key] else PALE)
        for cell, gap in zip(cells.values(), gaps.values(), strict=True):
            cell.set_facecolor(FAR(min(1.0, gap)) if gap >= 1e-5 else QUERY)
        wrong, n = [gap for gap in gaps.values() if gap >= 1e-5], len(gaps)
        says, color = ("Logits right", QUERY) if off < 1e-5 else (f"Logits off by {off:.0%}", KEY)
        block.set_title(says, color=color, weight="bold")
        grid.set_title(f"Gradients: {n - len(wrong)} of {n} right")
        far = f", the others off by {min(wrong):.0%} to {max(wrong):.0%}" if wrong else ""
        agree = f"For the embedding both ranks get {'the same gradient' if copies < 1e-5 else 'different gradients'}."
        return f"{says}. Gradients: {n - len(wrong)} of {n} right{far}. {agree}"

    labels = "forward, after o", "forward, after down", "back, into attention's norm", "back, into the other norm"
    controls = {key: toggle(label, not SUMS[key][1]) for key, label in zip(SUMS, labels, strict=True)}
    alt = "Left: a block on two ranks, its four sums, pale where switched off. Right: a cell for each weight, blue if "
    return Explorer(figure, draw, controls, alt + "its gradient is the whole model's, else orange.")


def _place(name):
    # Upper left corner and width of a weight's cell: the embedding, six blocks of nine weights, the last norm.
    if "layers" not in name:
        return (0, 7 if "norm" in name else 0), 9
    _, layer, *_, part, _ = name.split(".")
    return (ORDER.index(part), int(layer) + 1), 1


@functools.cache
def _models():
    whole, *ranks = (load_checkpoint(TINY_LLAMA) for _ in range(3))
    for rank, model in enumerate(ranks):
        for name, part in model.layers.named_modules():
            if isinstance(part, torch.nn.Linear):  # as notebook 09 cuts it
                dim = int(name.endswith(("o_proj", "down_proj")))
                part.weight = torch.nn.Parameter(part.weight.detach().chunk(2, dim)[rank].clone())
    tokens = held_out_tokens()[None, :49]
    logits = whole(tokens[:, :-1])
    F.cross_entropy(logits[0], tokens[0, 1:]).backward()
    return whole, ranks, tokens, logits.detach()


@functools.cache
def _compare(**on):
    # With these sums: how far rank 0's logits and gradients are off, and both ranks' gradients of the embedding apart.
    (whole, ranks, tokens, wanted), (cos, sin, _) = _models(), _models()[0].rotation_and_mask(48)
    streams = [rank.tok_embeddings(tokens[:, :-1]) for rank in ranks]
    for blocks in zip(*(rank.layers for rank in ranks), strict=True):
        for norm, branch, turn, forward, back in (
            ("attention_norm", "attention", (cos, sin), on["o"], on["attention"]),
            ("ffn_norm", "feed_forward", (), on["down"], on["ffn"]),
        ):
            read = [getattr(block, norm)(x) for block, x in zip(blocks, streams, strict=True)]
            if back:  # adds 0, and lets both ranks' gradients through
                read = [own + other - other.detach() for own, other in (read, read[::-1])]
            write = [getattr(block, branch)(x, *turn) for block, x in zip(blocks, read, strict=True)]
            if forward:  # the other's part comes as mere numbers: autograd knows nothing of them
                write = [own + other.detach() for own, other in (write, write[::-1])]
            streams = [x + y for x, y in zip(streams, write, strict=True)]
    found = [rank.lm_head(rank.final_norm(x)) for rank, x in zip(ranks, streams, strict=True)]
    for rank in ranks:
        rank.zero_grad()
    sum(F.cross_entropy(logits[0], tokens[0, 1:]) for logits in found).backward()
    gaps = {}
    for (name, right), mine in zip(whole.named_parameters(), ranks[0].parameters(), strict=True):
        gaps[name] = _gap(mine.grad, right.grad[tuple(map(slice, mine.shape))])
    copies = _gap(*(rank.tok_embeddings.weight.grad for rank in ranks))
    return ((found[0] - wanted).abs().max() / wanted.abs().max()).item(), gaps, copies


def _gap(one, other):
    return ((one - other).norm() / other.norm()).item()


COLORS, RANKS = np.array([to_rgb(c) for c in (QUERY, KEY, VALUE, "#9A6FB0", "#C9A227", "#7A7A7A")]), 6


def explore_ring() -> Explorer:
    """A ring all-reduce, step by step: whose numbers are in which piece on which rank."""
    figure, (table, count) = new_figure(2, width_ratios=[2.1, 1])
    bare(table, (0, 1), (1.08, -0.08))
    table.set(aspect="auto", xlabel="a box: a piece of the tensor; its stripes: ranks that are in it")
    n = np.arange(2, RANKS + 1)
    count.set(xlim=(1.6, RANKS + 0.4), ylim=(0, 2.15), xticks=n, xlabel="ranks", ylabel="sent by a rank [tensors]")
    count.plot(n, 2 * (n - 1) / n, "o-", color=PALE)
    count.text(1.7, 2.03, "two tensors", color=GREY, va="bottom", fontsize=9)
    count.axhline(2, color=INK, lw=1, ls=":")
    count.set_title("black: so far; grey: in all")

    # What moves: the map, arrows to the next rank with this step, the names of rows, what a rank has sent.
    picture = table.imshow(np.ones((2, 2, 3)), extent=(0, 1, 1, 0), aspect="auto")
    arrows = table.add_collection(LineCollection([], colors=INK, lw=2.5, clip_on=False))
    (heads,) = table.plot([], [], "v", color=INK, ms=9, clip_on=False)
    names = [table.text(-0.01, 0, "", ha="right", va="center") for _ in range(RANKS)]
    (sent,) = count.plot([], [], color=INK, lw=5, solid_capstyle="butt")

    def draw(n, step):
        last = 2 * (n - 1)
        step, has = min(step, last), np.eye(n, dtype=bool)[:, None].repeat(n, 1)  # rank, piece, whose numbers
        for s in range(step):
            before = has.copy()
            for rank in range(n):  # all at once: each sends one piece, and the next rank adds it or takes it over
                has[(rank + 1) % n, (rank - s) % n] |= before[rank, (rank - s) % n]
        shown = np.where(has[..., None], COLORS[:n], 0.96)  # rank, piece, stripe, colour
        cells = np.ones((n, 20, n, n + 2, 3))
        cells[:, 3:17, :, 1:-1] = shown[:, None]
        picture.set_data(cells.reshape(20 * n, n * (n + 2), 3))
        places = [((rank - step + 1) % n + 0.5, rank) for rank in range(n)] if step else []
        wraps = [(x, -1) for x, rank in places if rank == n - 1]  # from the last rank to the first
        lines = [((x, rank + 0.75), (x, rank + 1.05)) for x, rank in [*places, *wraps]]
        arrows.set_segments((np.array(lines) / n).clip(-0.07, 1.07) if lines else [])
        heads.set_data([x / n for x, _ in places], [((rank + 1) % n + 0.08) / n for _, rank in places])
        for rank, name in enumerate(names):
            name.set(text=f"rank {rank}" if rank < n else "", y=(rank + 0.5) / n)
        sent.set_data([n, n], [0, step / n])
        half, whole = "adds up" if step < n else "hands out", has.all(-1).sum()
        table.set_title(f"Step {step} of {last} {half}: {whole} of {n * n} pieces are sums of all ranks")
        return (
            f"A row is a rank, a box one of the {n} pieces of its tensor, a stripe a rank whose numbers are in it. "
            f"Each rank has sent {step / n:.2f} of the tensor."
        )

    controls = {"n": slider("ranks", 4, 2, RANKS), "step": slider("step", 1, 0, 2 * (4 - 1))}
    controls["n"].observe(lambda change: setattr(controls["step"], "max", 2 * (change["new"] - 1)), names="value")
    alt = "Left: ranks down, pieces across, a stripe for each rank whose numbers are in, arrows to the next rank. "
    return Explorer(figure, draw, controls, alt + "Right: what each rank sends, against the number of ranks.")


HALF, WRONG = 128, "#B00020"  # tokens of each of two ranks; the colour of a position that is off
FIRSTS = (*range(0, 113, 16), 120, 124, *range(126, 131), 132, 136, 144, *range(160, 385, 32))  # of the curves


@functools.cache
def _second_half():
    # Rank 1's half of four texts against the whole model, by its first position: change of loss [nat/token], largest
    # change of a logit, share of tokens whose loss falls by more than rounding.
    model, windows = bundled(), held_out_windows()[::4]
    cache, own = model.new_cache(len(windows), 2 * HALF), model.rotation_and_mask
    with torch.no_grad():
        whole = model(windows[:, :-1])[:, HALF:]
        model(windows[:, :HALF], cache)  # rank 0's keys, in their places

    def read(first):
        angles, visible = rope_angles(first + torch.arange(HALF), model.inv_freq), own(HALF, HALF)[2]
        cache.length, model.rotation_and_mask = HALF, lambda *_, **__: (angles.cos(), angles.sin(), visible)
        with torch.no_grad():
            return model(windows[:, HALF:-1], cache)

    loss = functools.partial(F.cross_entropy, target=windows[:, HALF + 1 :], reduction="none")

    @functools.cache
    def measured(first):
        logits = read(first)
        cost = loss(logits.mT) - loss(whole.mT)
        return cost.mean().item(), (logits - whole).abs().max().item(), (cost < -1e-4).float().mean().item()

    return measured


def explore_drag() -> Explorer:
    """Two ranks share a text of 256 tokens, and rank 1 counts its half from any position: what shows that it is off?"""
    measured = _second_half()
    figure, axes = new_figure(2)
    strip = figure.add_axes((0.02, 0.74, 0.96, 0.25))
    figure.set_layout_engine("none")
    bare(strip, (-58, 526), (-1.7, 1.5), "auto")
    strip.fill_between([0, HALF], -0.35, 0.35, color=FAR(0.35), lw=0)
    strip.text(-6, 0, "rank 0", color=KEY, ha="right", va="center")
    strip.plot([0, 515], [-0.6, -0.6], color=GREY, lw=1)
    for at in (0, 128, 256, 384, 512):
        strip.text(at, -0.75, at, ha="center", va="top", fontsize=9)
    strip.plot([HALF, HALF], [-0.7, 1.1], color=INK, lw=1, ls="--")
    names = "loss of rank 1's half, change [nat/token]", "largest change of a logit"
    tops, curves = (1.5, 18), np.array([measured(first)[:2] for first in FIRSTS]).T
    for column, (ax, name, top, curve) in enumerate(zip(axes, names, tops, curves, strict=True)):
        ax.set_position((0.07 + 0.5 * column, 0.13, 0.41, 0.49))
        ax.plot(FIRSTS, curve, color=PALE, lw=1.5)
        ax.set(xlim=(-6, 390), ylim=(-0.05 * top, top), xticks=[0, 128, 256, 384], xlabel="rank 1's first position")
        ax.set_title(name, fontsize=10, loc="left")
        ax.axvline(HALF, color=INK, lw=1, ls="--")

    # What moves: rank 1's tokens, and a dot on each curve.
    block = strip.add_collection(PolyCollection([], fc=QUERY, alpha=0.7))
    label = strip.text(0, 0.75, "", color=QUERY, va="center")
    dots = [ax.plot([], [], "o", color=WRONG, ms=8, clip_on=False)[0] for ax in axes]
    box = {"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none"}
    words = [ax.text(0, 0, "", color=WRONG, ha="center", va="bottom", weight="bold", bbox=box) for ax in axes]

    def draw(first):
        cost, gap, lower = measured(first)
        block.set_verts([[(first, 0.4), (first + HALF, 0.4), (first + HALF, 1.1), (first, 1.1)]])
        left = first < 230  # where its name has room
        label.set(text=f"rank 1, from {first}", x=first + (134 if left else -6), ha="left" if left else "right")
        for dot, word, value, top, says in zip(dots, words, (cost, gap), tops, ("{:+.3f}", "{:.1f}"), strict=True):
            dot.set_data([first], [value])
            word.set(text=says.format(value), x=min(max(first, 36), 348), y=min(value + 0.08 * top, 0.88 * top))
        off = "where it belongs" if first == HALF else f"{abs(first - HALF)} too {'low' if first < HALF else 'high'}"
        return (
            f"Rank 1 counts from {first}, {off}. The loss on its half changes by {cost:+.4f} and falls for {lower:.0%} "
            f"of the tokens. One logit changes by {gap:.2g}, the largest change."
        )

    controls = {"first": slider("rank 1's first position", 0, 0, 384, says="rank 1 counts from {}")}
    alt = "Above, rank 1's tokens as a bar on the positions. Below, against its first position: change of the loss, "
    return Explorer(figure, draw, controls, alt + "flat around 128, and the largest of a logit, a sharp notch at 128.")


def explore_devices() -> Explorer:
    """The time of a call on 1 to 8 devices (no model here has more KV heads): which number is best?"""
    models, devices, top = {"1B": "llama-3.2-1b", "8B": "llama-3-8b", "70B": "llama-2-70b"}, 2 ** np.arange(4), 1.3
    sizes = {name: 2 * count_parameters(PRESETS[preset]) for name, preset in models.items()}  # bytes; FLOPs of a token
    figure, ax = new_figure(1)
    ax.set(xlim=(-0.6, 3.6), ylim=(0, top), xlabel="devices", ylabel="time of a call (one device: 1)")
    ax.set_xticks(range(4), devices)
    ax.axhline(1, color=INK, lw=1, ls=":")

    # What moves: what each bar is made of, how many times as fast it is, what the last bar's parts are.
    bars = [ax.bar(range(4), [0] * 4, width=0.62, fc=color) for color in (QUERY, HIDDEN, KEY)]
    box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
    faster = [ax.text(at, 0, "", ha="center", va="bottom", weight="bold", bbox=box) for at in range(4)]
    works = ax.text(0, 0.5, "", color="white", ha="center", va="center")
    notes = [ax.text(3.35, 0, text, color=color, va="center") for text, color in (("waits", GREY), ("sends", KEY))]

    def draw(model, tokens, wait):
        config, reads, computes = PRESETS[models[model]], sizes[model] / 3.35e9, sizes[model] * tokens / 989e9  # [ms]
        n_exchanges, one = 2 * config.n_layers + 2, max(reads, computes)
        sends = n_exchanges * 2 * (1 - 1 / devices) * tokens * 2 * config.dim / 450e6  # in a ring, 2 bytes a number
        parts = np.stack([one / devices, n_exchanges * wait * 1e-3 * (devices > 1), sends])
        tops, times = parts.cumsum(0) / one, parts.sum(0) / one
        for piece, height, high in zip(sum(bars, ()), (parts / one).flat, tops.flat, strict=True):
            piece.set(y=high - height, height=height)
        for text, time in zip(faster, times, strict=True):
            text.set(y=min(time, top - 0.12) + 0.02, text=f"{1 / time:.1f}×")
        works.set_text("reads\nweights" if reads > computes else "computes")
        for note, part, high in zip(notes, parts[1:, -1] / one, tops[1:, -1], strict=True):
            note.set(y=min(top - 0.05, high - part / 2), visible=bool(part > 0.04))
        best = devices[times.argmin()]
        are = f"{best} devices are best, {1 / min(times):.1f} times as fast as one" if best > 1 else "1 device is best"
        ax.set_title(f"Llama {model}: {are}")
        told = ", ".join("{}: {:.2f} + {:.2f} + {:.2f}".format(*row) for row in zip(devices, *parts, strict=True))
        what = "Reading" if reads > computes else "Computing"
        return f"{n_exchanges} exchanges. {what} + waiting + sending [ms] on {told}. Llama {model}: {are}."

    tokens, wait = slider("tokens at once", 1, 0, 4, 0.5, log=True), slider("an exchange takes", 15, 1, 100, unit="µs")
    controls = {"model": switch("model", list(models)[::-1]), "tokens": tokens, "wait": wait}
    alt = "A bar for each of 1, 2, 4 and 8 devices, the time of a call: reading or computing below, then waiting, then "
    return Explorer(figure, draw, controls, alt + "sending. A dotted line is one device.")
