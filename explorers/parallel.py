"""The explorers of 09: how many GPUs hold a model, what its gradients need, when devices pay, where ranks start."""

import functools

import numpy as np
import torch
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap
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
SUMS = {"attention": 1.3, "ffn": 5.95}  # where gradients are summed


GPU, N_GPUS = 80, 16  # GB of one; drawn at most
JOBS = {"write text": (2, 0, 0), "train": (4, 4, 8)}  # bytes a weight: itself, its gradient, AdamW's two means of it


def explore_fit() -> Explorer:
    """The memory that a model takes, filled into GPUs of 80 GB: how many does it need to write, how many to train?"""
    figure, ax = new_figure(1)
    bare(ax, (-0.75, 7.85), (-0.3, 2.85), "auto")
    places = [(n % 8, 1.4 * (n < 8)) for n in range(N_GPUS)]
    names = [ax.text(x + 0.4, y - 0.07, f"GPU {n}", ha="center", va="top") for n, (x, y) in enumerate(places, 1)]
    ax.text(-0.1, 1.9, "80 GB", ha="right", va="center")

    # What moves: how full each GPU is, which of them are needed, and what fills them.
    colors = QUERY, KEY, VALUE
    fills = [[ax.add_patch(Rectangle(place, 0.8, 0, fc=color)) for place in places] for color in colors]
    frames = [ax.add_patch(Rectangle(place, 0.8, 1, fc="none", lw=1.5)) for place in places]
    parts = zip((0, 1.3, 2.65), ("weights", "gradients", "AdamW's two running means"), colors, strict=True)
    parts = [ax.text(x, 2.65, part, color=color, weight="bold", va="center") for x, part, color in parts]

    def draw(billions, job):
        ends = np.cumsum([0, *JOBS[job]]) * billions  # GB
        total, needed = ends[-1], -(-ends[-1] // GPU)
        edges = (ends[:, None] / GPU - np.arange(N_GPUS)).clip(0, 1)
        for row, low, high in zip(fills, edges[:-1], edges[1:], strict=True):
            for fill, (_, bottom), start, end in zip(row, places, low, high, strict=True):
                fill.set(y=bottom + start, height=end - start)
        for n, (frame, name) in enumerate(zip(frames, names, strict=True)):
            frame.set_edgecolor(INK if n < needed else PALE)
            name.set_color(INK if n < needed else PALE)
        for part in parts[1:]:
            part.set_visible(job == "train")
        need = f"at least {needed} GPU{'s' if needed > 1 else ''}"
        ax.set_title(f"{billions} billion weights take {total:,} GB to {job}: {need}")
        return f"To {job}, {billions} billion weights take {total:,} GB, so {need} of 80 GB."

    start = round(count_parameters(PRESETS["llama-2-70b"]) / 1e9)
    controls = {"billions": slider("weights", start, 1, GPU, unit="billion"), "job": switch("to", list(JOBS))}
    alt = "Sixteen boxes, each a GPU of 80 GB, filled from the first on by a model's weights, "
    return Explorer(figure, draw, controls, alt + "and in training also by gradients and AdamW's two running means.")


def explore_sums() -> Explorer:
    """The bundled model on two ranks, its logits right: which sums do its gradients need on their way back?"""
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

    ring = {"boxstyle": "circle,pad=0.3", "fc": "white"}

    def add_sum(at, mark, style, word):
        (line,) = block.plot((at, at), (1.4, -1.4), color=INK, marker=mark, ms=8, ls=style, lw=2)
        block.text(at, -2.6, word, ha="center", fontsize=9)
        return line, block.text(at, 0, "+", ha="center", va="center", fontsize=12, weight="bold", bbox=ring)

    for at in (4.55, 9.55):
        add_sum(at, ">", "-", "forward")

    # What moves: the sums on the way back, and a cell for each weight, the fuller the farther off its gradient is.
    sums, cells = {key: add_sum(at, "<", "--", "back") for key, at in SUMS.items()}, {}
    for name in names:
        (left, top), width = _place(name)
        cells[name] = grid.add_patch(Rectangle((left, top), width, 1, ec="white", lw=1.5))

    def draw(**on):
        gaps = _gaps(**on)
        for key, (line, plus) in sums.items():
            line.set(color=INK if on[key] else PALE, lw=2 if on[key] else 0.8)
            plus.set_color(INK if on[key] else PALE)
            plus.get_bbox_patch().set_edgecolor(INK if on[key] else PALE)
        for cell, gap in zip(cells.values(), gaps.values(), strict=True):
            cell.set_facecolor(FAR(min(1.0, gap)) if gap >= 1e-5 else QUERY)
        wrong, n = [gap for gap in gaps.values() if gap >= 1e-5], len(gaps)
        grid.set_title(f"Gradients: {n - len(wrong)} of {n} right")
        far = f", the others off by {min(wrong):.0%} to {max(wrong):.0%}" if wrong else ""
        return f"Gradients: {n - len(wrong)} of {n} right{far}."

    labels = "back, at attention's norm", "back, at the feed-forward norm"
    controls = {key: toggle(label) for key, label in zip(SUMS, labels, strict=True)}
    alt = "Left: a block on two ranks, its sums forward and, pale where switched off, back. Right: a cell for each "
    return Explorer(figure, draw, controls, alt + "weight, blue if its gradient is the whole model's, else orange.")


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
    F.cross_entropy(whole(tokens[:, :-1])[0], tokens[0, 1:]).backward()
    return whole, ranks, tokens


@functools.cache
def _gaps(**on):
    # With these sums: how far rank 0's gradients are off.
    (whole, ranks, tokens), (cos, sin, _) = _models(), _models()[0].rotation_and_mask(48)
    streams = [rank.tok_embeddings(tokens[:, :-1]) for rank in ranks]
    for blocks in zip(*(rank.layers for rank in ranks), strict=True):
        for norm, branch, turn, back in (
            ("attention_norm", "attention", (cos, sin), on["attention"]),
            ("ffn_norm", "feed_forward", (), on["ffn"]),
        ):
            read = [getattr(block, norm)(x) for block, x in zip(blocks, streams, strict=True)]
            if back:  # adds 0, and lets both ranks' gradients through
                read = [own + other - other.detach() for own, other in (read, read[::-1])]
            write = [getattr(block, branch)(x, *turn) for block, x in zip(blocks, read, strict=True)]
            # the other's part comes as mere numbers: autograd knows nothing of them
            write = [own + other.detach() for own, other in (write, write[::-1])]
            streams = [x + y for x, y in zip(streams, write, strict=True)]
    for rank in ranks:
        rank.zero_grad()
    found = [rank.lm_head(rank.final_norm(x)) for rank, x in zip(ranks, streams, strict=True)]
    sum(F.cross_entropy(logits[0], tokens[0, 1:]) for logits in found).backward()
    gaps = {}
    for (name, right), mine in zip(whole.named_parameters(), ranks[0].parameters(), strict=True):
        wanted = right.grad[tuple(map(slice, mine.shape))]
        gaps[name] = ((mine.grad - wanted).norm() / wanted.norm()).item()
    return gaps


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
        ax.axvline(HALF, ymin=0.92, color=INK, lw=1)

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
    """The time to write a token on 1 to 8 devices (no model here has more KV heads): which number is best?"""
    models, devices, top = {"1B": "llama-3.2-1b", "8B": "llama-3-8b", "70B": "llama-2-70b"}, 2 ** np.arange(4), 1.3
    reads = {name: 2 * count_parameters(PRESETS[preset]) / 3.35e9 for name, preset in models.items()}  # [ms] on one
    figure, ax = new_figure(1)
    ax.set(xlim=(-0.6, 3.6), ylim=(0, top), xlabel="devices", ylabel="time to write a token (one device: 1)")
    ax.set_xticks(range(4), devices)
    ax.axhline(1, color=INK, lw=1, ls=":")
    ax.text(3.35, 0.5 / 8, "reads", color=QUERY, va="center")

    # What moves: what each bar is made of, how many times as fast it is, where the last bar waits.
    bars = [ax.bar(range(4), [0] * 4, width=0.62, fc=color) for color in (QUERY, HIDDEN)]
    box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
    faster = [ax.text(at, 0, "", ha="center", va="bottom", weight="bold", bbox=box) for at in range(4)]
    waits = ax.text(3.35, 0, "waits", color=GREY, va="center")

    def draw(model, wait):
        n_exchanges = 2 * PRESETS[models[model]].n_layers + 2
        parts = np.stack([reads[model] / devices, n_exchanges * wait * 1e-3 * (devices > 1)])
        tops, times = parts.cumsum(0) / reads[model], parts.sum(0) / reads[model]
        for piece, height, high in zip(sum(bars, ()), (parts / reads[model]).flat, tops.flat, strict=True):
            piece.set(y=high - height, height=height)
        for text, time in zip(faster, times, strict=True):
            text.set(y=min(time, top - 0.12) + 0.02, text=f"{1 / time:.1f}×")
        waits.set_y(min(top - 0.05, (tops[0, -1] + tops[1, -1]) / 2))
        best = devices[times.argmin()]
        are = f"{best} devices are best, {1 / min(times):.1f} times as fast as one" if best > 1 else "1 device is best"
        ax.set_title(f"Llama {model}: {are}")
        told = ", ".join("{}: {:.2f} + {:.2f}".format(*row) for row in zip(devices, *parts, strict=True))
        return f"{n_exchanges} exchanges. Reading + waiting [ms] on {told}. Llama {model}: {are}."

    wait = slider("an exchange takes", 15, 1, 100, unit="µs")
    controls = {"model": switch("model", list(models)[::-1]), "wait": wait}
    alt = "A bar for each of 1, 2, 4 and 8 devices, the time to write a token: reading below, then waiting. "
    return Explorer(figure, draw, controls, alt + "A dotted line is one device.")
