"""Explorers: sliders around one picture that answers at once. The only file that imports ipywidgets.

Each `explore_*` draws its figure once and then only moves what is on it, so a redraw takes a few hundredths of a
second. The maths is that of `helpers.model`; colours and their meanings are those of `helpers.plots`.
"""

import base64
import html
import math
import struct
import traceback
import zlib
from pathlib import Path

import ipywidgets
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon, Rectangle
from torch.nn import functional as F

from helpers.checkpoint import load_checkpoint
from helpers.model import RMSNorm, apply_rope, attention_weights, causal_visible, repeat_kv, rope_angles, rope_inv_freq
from helpers.plots import FULL, HIDDEN, INK, KEY, QUERY
from helpers.text import TINY_LLAMA, encode, load_tokenizer

GREY = "#767676"  # what goes in, before anything is done to it
SIZE = {"style": {"description_width": "175px"}, "layout": {"width": "420px"}}  # of a control


class Explorer:
    """Controls around one persistent picture; shows itself as the last line of a cell.

    A cell's output also holds the picture as PNG and its description as text: they stand in wherever no kernel runs
    (GitHub, a website, an untrusted notebook). An error in `draw` appears under the picture, in words; the first
    drawing raises like any other code.

    Args:
        figure: drawn once by the caller. Layout, axes and whatever `draw` leaves alone are fixed from then on.
        draw: takes the controls' values by name, moves artists (not limits or ticks), returns the finding in words.
        controls: by name, made with `slider` or `choice`.
        alt: what the picture shows, whatever the values, in under 40 words.
    """

    def __init__(self, figure: Figure, draw, controls: dict, alt: str):
        self.figure, self.draw, self.controls, self.alt = figure, draw, controls, alt
        self._canvas, self._moving = FigureCanvasAgg(figure), set()
        draw(**self.values)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        self._artists = figure.findobj(lambda artist: not artist.get_children())
        for artist in self._artists:
            artist.stale = False
        self._take_picture()
        self.picture = ipywidgets.HTML(self._page())
        row = ipywidgets.Layout(display="flex", flex_flow="row wrap")
        self.box = ipywidgets.VBox([ipywidgets.Box(list(controls.values()), layout=row), self.picture])
        self.box.add_class("course-explorer")
        for control in controls.values():
            control.observe(self.redraw, names="value")

    @property
    def values(self) -> dict:
        """The controls' present values, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def redraw(self, change=None):
        """Draw the present values, or say why that failed and keep the last picture that worked."""
        problem = ""
        try:
            self._take_picture()
        except Exception as error:  # an exception in a callback would otherwise vanish in the kernel's log
            place = traceback.extract_tb(error.__traceback__)[-1]
            problem = (
                f"This setting could not be drawn: {type(error).__name__}: {error} ({Path(place.filename).name}, "
                f"line {place.lineno}). The picture still shows the last setting that worked: move the control back."
            )
        self.picture.value = self._page(problem)

    def close(self):
        """Take the explorer off the page and free its memory."""
        for control in self.controls.values():
            control.unobserve_all()
        for widget in (*self.controls.values(), *self.box.children, self.box):
            widget.close()
        self.figure.clear()

    def _take_picture(self):
        finding = self.draw(**self.values)
        touched = {artist for artist in self._artists if artist.stale}
        if not touched <= self._moving:  # the ground, everything that `draw` leaves alone, is drawn only once
            self._moving |= touched
            for artist in touched:
                artist.set_animated(True)  # left out of the ground
            self._canvas.draw()
            self._ground = self._canvas.copy_from_bbox(self.figure.bbox)
        self._canvas.restore_region(self._ground)
        for artist in sorted(self._artists, key=lambda artist: artist.zorder):
            if artist in self._moving:
                artist.draw(self._canvas.get_renderer())
            artist.stale = False
        self.finding, self.png = finding, base64.b64encode(_png(np.asarray(self._canvas.buffer_rgba()))).decode()
        # The caption repeats the settings: a slider's handle has no name that a screen reader could say.
        self.settings = f"Settings: {', '.join(_as_words(control) for control in self.controls.values())}."

    def _page(self, problem=""):
        width, height = (int(side) for side in self.figure.bbox.size)
        warning = f'<p role="alert" style="color:#B00020"><b>{html.escape(problem)}</b></p>' if problem else ""
        return (
            f'<figure style="margin:0"><img decoding="sync" alt="{html.escape(self.alt)}" width="{width}" '
            f'height="{height}" style="max-width:100%;height:auto" src="data:image/png;base64,{self.png}">'
            f'<figcaption style="max-width:{width}px;line-height:1.4">{html.escape(self.finding)}<br>'
            f"<small>{html.escape(self.settings)}</small></figcaption></figure>{warning}"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        text = f"{self.alt} {self.finding} {self.settings}"
        data = {"application/vnd.jupyter.widget-view+json": view, "image/png": self.png, "text/plain": text}
        return data, {"image/png": {"alt": self.alt}}


def slider(label: str, value, low, high, step=1, unit="1", log=False):
    """A slider "label [unit]" that answers while it moves; one arrow key is one step.

    An integer step makes an integer slider; with log, low, high and step are exponents of ten.
    """
    kind = ipywidgets.FloatLogSlider if log else ipywidgets.IntSlider if step == 1 else ipywidgets.FloatSlider
    form = "d" if step == 1 else ".1f" if not log else ".1e" if low < 0 else ",.0f"
    description = f"{label} [{unit}]"
    return kind(value, min=low, max=high, step=step, description=description, readout_format=form, **SIZE)


def choice(label: str, options):
    """A labelled drop-down list; the first option is the default."""
    return ipywidgets.Dropdown(options=list(options), description=label, **SIZE)


def _as_words(control):
    value, (name, _, unit) = control.value, control.description.rstrip("]").partition(" [")
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{name} {value}" + (f" {unit}" if unit not in ("", "1") else "")


def _png(pixels):
    # Of (height, width, 4) bytes. In a third of the time of a general writer, which tries out filters on every row.
    height, width, _ = pixels.shape
    rows = np.pad(pixels[..., :3].reshape(height, -1), ((0, 0), (1, 0)))  # a row starts with its filter: 0, none
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = (b"IHDR" + header, b"IDAT" + zlib.compress(rows, 3), b"IEND")
    parts = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _new_figure(columns, **gridspec):
    # A Figure of its own canvas: pyplot never hears of it, so nothing is shown twice or left open.
    figure = Figure(figsize=FULL, dpi=110, layout="constrained", facecolor="white")
    return figure, figure.subplots(1, columns, gridspec_kw=gridspec)


def _bare(ax, x, y):
    ax.set(xlim=x, ylim=y, aspect="equal", anchor="N", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def _arc(start, end, radius):
    turn = np.linspace(start, end, 60)
    return radius * np.cos(turn), radius * np.sin(turn)


# -------------------------------------------------------------------------------------------- RMSNorm


def explore_rms_norm() -> Explorer:
    """What RMSNorm and LayerNorm do to a vector of two numbers: the angle each turns it by, and its length after.

    The vector is scale * ((1, -1) + offset * (1, 1)), so `offset` is mean / standard deviation.
    """
    figure, (plane, lengths) = _new_figure(2, width_ratios=[1, 1.15])
    plane.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xlabel="coordinate 0 [1]", ylabel="coordinate 1 [1]")
    plane.plot(*_arc(0, 2 * math.pi, math.sqrt(2)), color=HIDDEN, lw=1)
    plane.plot([-3, 3], [3, -3], color=HIDDEN, lw=1, ls=":")
    plane.text(-2.25, 1.35, "mean = 0", color=GREY, rotation=-45, fontsize=9)
    scales = torch.logspace(-4, 1, 61)
    looks = {"x": (GREY, GREY, 4, "-"), "RMSNorm(x)": (INK, INK, 1.8, "-"), "LayerNorm(x)": (INK, "white", 1.8, "--")}
    sign = {"ha": "center", "va": "center", "fontsize": 9, "bbox": {"fc": "white", "ec": "none", "pad": 0.5}}
    shafts, tips, arcs, signs, curves, dots = ({} for _ in range(6))
    for name, (color, face, width, style) in looks.items():
        line, tip = {"color": color, "lw": width, "ls": style}, {"color": color, "mfc": face, "ms": width + 5, "ls": ""}
        (shafts[name],), (tips[name],) = plane.plot([], [], **line), plane.plot([0], [0], marker=(3, 0, 0), **tip)
        (arcs[name],), signs[name] = plane.plot([], [], color=INK, lw=1), plane.text(0, 0, "", **sign)
        (curves[name],) = lengths.plot(scales, scales, label=name, **line)
        (dots[name],) = lengths.plot([], [], "o", **tip, clip_on=False)
    root = lengths.axvline(1, color=INK, lw=1, ls=":", label="root of eps")
    lengths.set(xscale="log", xlim=(1e-4, 10), ylim=(0, 3.2), xlabel="scale of x [1]", ylabel="length [1]")
    figure.legend(loc="outside lower center", ncols=4)

    def draw(scale, offset, eps, gain):
        x = torch.cat((torch.tensor([scale]), scales))[:, None] * (torch.tensor([1.0, -1.0]) + offset)
        norm = RMSNorm(2, eps).requires_grad_(False)
        norm.weight[1] = gain
        length, angle = {}, {}
        results = (x, norm(x), F.layer_norm(x, (2,), norm.weight, None, eps))
        for name, vectors, radius in zip(looks, results, (0, 1.75, 2.3), strict=True):
            all_lengths = vectors.norm(dim=-1).tolist()  # row 0 is the arrow, the others the curve
            start, end = (math.atan2(*reversed(rows[0].tolist())) for rows in (x, vectors))
            turned = math.remainder(end - start, 2 * math.pi)
            shafts[name].set_data(*zip((0, 0), vectors[0].tolist(), strict=True))
            tips[name].set(xdata=vectors[0, :1], ydata=vectors[0, 1:], marker=(3, 0, math.degrees(end) - 90))
            arcs[name].set_data(_arc(start, start + turned, radius))
            signs[name].set(x=(radius + 0.45) * math.cos(start + turned / 2))
            signs[name].set(y=(radius + 0.45) * math.sin(start + turned / 2))
            signs[name].set_text(f"{math.degrees(abs(turned)):.0f}°" if abs(turned) > 0.1 else "")
            curves[name].set_ydata(all_lengths[1:])
            dots[name].set_data([scale], [min(all_lengths[0], 3.2)])
            length[name], angle[name] = f"{all_lengths[0]:.3g}", f"{abs(math.degrees(turned)):.1f}°"
        root.set_xdata([math.sqrt(eps)] * 2)
        _, rms, layer = looks
        plane.set_title(f"RMSNorm turns x by {angle[rms]},\nLayerNorm by {angle[layer]}")
        lengths.set_title(f"RMSNorm: length {length['x']} → {length[rms]}")
        return (
            f"x has length {length['x']}. RMSNorm turns it by {angle[rms]} and gives length {length[rms]}; "
            f"LayerNorm turns it by {angle[layer]} and gives length {length[layer]}."
        )

    controls = {
        "scale": slider("scale of x", 1.0, -4, 1, 0.1, log=True),
        "offset": slider("mean offset", 0.5, -2.0, 2.0, 0.1),
        "eps": slider("eps", 1e-5, -8, 0, 0.5, log=True),
        "gain": slider("gain of coordinate 1", 1.0, 0.1, 2.0, 0.1),
    }
    alt = "Left: arrows of x, RMSNorm(x) and LayerNorm(x) in the plane, with the angle each norm turned x by. "
    return Explorer(figure, draw, controls, alt + "Right: the three lengths against the scale of x.")


# ----------------------------------------------------------------------------------------------- RoPE


def explore_rope() -> Explorer:
    """Clock hands of the eight pairs of a head of 16, for a query and a key, and one pair enlarged."""
    head_dim, n_pairs, looks = 16, 8, {"query": (QUERY, "o", "-"), "key": (KEY, "s", "--")}
    figure, (clocks, large) = _new_figure(2, width_ratios=[1.7, 1])
    _bare(clocks, (-1.5, 10.5), (-5.6, 1.3))
    _bare(large, (-1.5, 1.5), (-1.7, 1.5))
    centres = np.array([(3 * (pair % 4), -3.6 * (pair // 4)) for pair in range(n_pairs)])
    for i, (x, y) in enumerate(centres):
        clocks.add_patch(Circle((x, y), 1, fill=False, ec=HIDDEN, lw=1.2))
        clocks.text(x, y - 1.25, f"pair {i}", ha="center", va="top", fontsize=9)
    clocks.set_title("Below each pair: tokens for one full turn")
    chosen = clocks.add_patch(Circle((0, 0), 1.15, fill=False, ec=INK, lw=1.5))
    waves = [clocks.text(x, y - 1.65, "", ha="center", va="top", fontsize=9) for x, y in centres]
    large.add_patch(Circle((0, 0), 1, fill=False, ec=HIDDEN, lw=1.5))
    wedge = large.add_patch(Polygon([(0, 0)], fc=HIDDEN, ec=INK, lw=1, alpha=0.6))
    sign = large.text(0, 0, "", ha="center", va="center")
    hands, tips = {}, {}
    for name, (color, marker, style) in looks.items():
        hands[name] = [ax.plot([], [], color=color, ls=style, lw=1.8)[0] for ax in (clocks, large)]
        tips[name] = [ax.plot([], [], marker, color=color, ms=4 if ax is clocks else 8)[0] for ax in (clocks, large)]
        large.plot([], [], color=color, ls=style, marker=marker, label=name)
    large.legend(loc="lower center", ncols=2, fontsize=9)

    def draw(position, distance, base, pair, scaling, factor):
        positions = torch.tensor([position, max(position - distance, 0)])
        distance = position - positions[1].item()
        kind = None if scaling == "none" else {"type": scaling, "factor": factor}
        speeds = rope_inv_freq(head_dim, base, kind)
        angles = rope_angles(positions, speeds).numpy()
        for name, row in zip(looks, angles, strict=True):
            ends = np.stack((np.cos(row), np.sin(row)), axis=-1)
            hands[name][0].set_data(np.stack((centres, centres + ends, np.nan * ends), axis=1).reshape(-1, 2).T)
            tips[name][0].set_data((centres + ends).T)
            hands[name][1].set_data(*np.stack(((0, 0), ends[pair])).T)
            tips[name][1].set_data(ends[[pair]].T)
        chosen.center = centres[pair]
        for text, wavelength in zip(waves, (2 * math.pi / speeds).tolist(), strict=True):
            text.set_text(f"{wavelength:,.1f}" if wavelength < 100 else f"{wavelength:,.0f}")
        speed, start = speeds[pair].item(), angles[1, pair].item()
        turns, rest = divmod(distance * speed, 2 * math.pi)
        wedge.set_xy(np.vstack(((0, 0), np.transpose(_arc(start, start + rest, 0.5)))))
        degrees = f"{math.degrees(rest):.1f}°"
        sign.set(text=degrees, x=1.25 * math.cos(start + rest / 2), y=1.25 * math.sin(start + rest / 2))
        angle = f"{turns:.0f} turns + {degrees}" if turns else degrees
        large.set_title(f"Pair {pair}: {angle} apart")
        return (
            f"Query at {position}, key at {positions[1]}: pair {pair} differs by {distance} token × {speed:.3g} "
            f"rad/token = {distance * speed:.3g} rad ({angle}). It turns once in {waves[pair].get_text()} tokens."
        )

    controls = {
        "position": slider("position of the query", 20, 0, 512, unit="token"),
        "distance": slider("distance to the key", 3, 0, 512, unit="token"),
        "base": slider("base", 10_000.0, 2, 6, 0.1, log=True),
        "pair": slider("pair index", 2, 0, n_pairs - 1),
        "scaling": choice("scaling", ("none", "linear", "ntk", "llama3")),
        "factor": slider("scaling factor", 8, 1, 32),
    }
    controls["factor"].disabled = True
    controls["scaling"].observe(lambda change: setattr(controls["factor"], "disabled", change.new == "none"), "value")
    alt = "Eight clocks, one per pair of coordinates, with a solid blue query hand and a dashed vermillion key hand, "
    return Explorer(figure, draw, controls, alt + "and one clock enlarged with the angle between its hands.")


def explore_rope_layout() -> Explorer:
    """Which coordinates of a head of 16 form a pair in each layout, and which rows of q_proj they come from."""
    head_dim, n_pairs, head, layouts = 16, 8, 1, ("halves", "interleaved")
    pairs = {layout: [_mixed_by(pair, head_dim, layout) for pair in range(n_pairs)] for layout in layouts}
    speeds = rope_inv_freq(head_dim).tolist()
    figure, ax = _new_figure(1)
    _bare(ax, (-3.6, head_dim - 0.4), (-2.6, 2.6))
    ax.set(aspect="auto")
    for y, text in ((0, "coordinate\nof the head"), (-1.1, "row of q_proj"), (-2.1, "its row in the\nother layout")):
        ax.text(-0.8, y, text, ha="right", va="center", fontsize=9)
    for i in range(head_dim):
        ax.add_patch(Rectangle((i - 0.42, -0.4), 0.84, 0.8, fill=False, ec=GREY, lw=1))
        for y, number in ((0, i), (-1.1, head * head_dim + i)):
            ax.text(i, y, number, ha="center", va="center", fontsize=9)
    others = [ax.text(i, -2.1, "", ha="center", va="center", fontsize=9) for i in range(head_dim)]
    arcs = [ax.plot([], [])[0] for _ in range(n_pairs)]
    marks = [ax.add_patch(Rectangle((0, -2.5), 0.9, 2.95, fill=False, ec=INK, lw=2.5)) for _ in range(2)]

    def draw(layout, pair):
        other, rows = layouts[layout == layouts[0]], {}
        for index, (first, second) in enumerate(pairs[layout]):
            wide, chosen = (second - first) / 2, index == pair
            across, up = _arc(0, math.pi, 1)
            arcs[index].set_data((first + second) / 2 + wide * across, 0.45 + (0.6 + 0.3 * wide) * up)
            arcs[index].set(color=INK if chosen else HIDDEN, lw=2.5 if chosen else 1.2, zorder=3 if chosen else 2)
            for here, there in zip((first, second), pairs[other][index], strict=True):
                rows[here] = head * head_dim + there
                others[here].set_text(rows[here])
        first, second = pairs[layout][pair]
        for mark, i in zip(marks, (first, second), strict=True):
            mark.set_x(i - 0.45)
        ax.set_title(f"Layout {layout}: pair {pair} is coordinates {first} and {second}")
        return (
            f"Layout {layout}: pair {pair} of head {head} is coordinates {first} and {second}, made by rows "
            f"{head * head_dim + first} and {head * head_dim + second} of q_proj, and turns by {speeds[pair]:.3g} "
            f"rad/token. In layout {other} these rows are {rows[first]} and {rows[second]}."
        )

    controls = {"layout": choice("layout", layouts), "pair": slider("pair index", 2, 0, n_pairs - 1)}
    alt = "Sixteen numbered boxes, the coordinates of a head; arcs join the two of each pair, the chosen pair is "
    return Explorer(
        figure, draw, controls, alt + "framed. Below each: its row of q_proj in this layout and in the other."
    )


def _mixed_by(pair, head_dim, layout):
    # Asked of apply_rope itself: turn this one pair by a quarter and see which two coordinates change.
    quarter = F.one_hot(torch.tensor([pair]), head_dim // 2).float()
    unit = torch.eye(head_dim)[None, :, None]  # (1, h, 1, h): head i holds the i-th unit vector
    changed = (apply_rope(unit, 1 - quarter, quarter, layout) != unit).any(dim=-1)
    return changed.flatten().nonzero().flatten().tolist()


# ----------------------------------------------------------------------------------------- full model


def explore_full_model() -> Explorer:
    """Inside the bundled model: where a head looks, how far each block turned the stream, which word it would say."""
    words, attention, angles, best = _look_inside("The name of a local variable is bound in the block")
    n_layers, n_heads, n_tokens, _ = attention.shape
    figure, (looks, turns, guesses) = _new_figure(3, width_ratios=[1.5, 1, 1])
    bars = looks.barh(range(n_tokens), [0] * n_tokens, color=QUERY)
    looks.set_yticks(range(n_tokens), words)
    looks.set(xlim=(0, 1), xlabel="attention weight [1]")
    looks.invert_yaxis()
    here = looks.axhline(0, color=INK, lw=1, ls=":")
    (line,) = turns.plot(range(n_layers), [0] * n_layers, "o-", color=INK)
    (dot,) = turns.plot([], [], "o", ms=11, mfc="none", mec=INK, mew=1.5, clip_on=False)
    turns.set(xlim=(-0.4, n_layers - 0.6), ylim=(0, 90), yticks=range(0, 91, 15), xticks=range(n_layers))
    turns.set(xlabel="block [1]", ylabel="block turns the stream by [degree]")
    odds = guesses.barh(range(5), [0] * 5, color=HIDDEN)
    labels = [guesses.text(0, rank, "", va="center") for rank in range(5)]
    guesses.set(xlim=(0, 1), xlabel="probability [1]", xticks=(0, 0.5, 1), yticks=[], ylim=(4.6, -0.6))

    def draw(token, layer, head):
        row = attention[layer, head, token]
        for bar, weight in zip(bars, row.tolist(), strict=True):
            bar.set_width(weight)
        here.set_ydata([token] * 2)
        line.set_ydata(angles[:, token])
        dot.set_data([layer], angles[[layer], token])
        tokens, probabilities = best[layer][token]
        for bar, label, text, probability in zip(odds, labels, tokens, probabilities, strict=True):
            bar.set_width(probability)
            label.set(x=min(probability, 0.6) + 0.03, text=text)  # moved too: what moves is drawn above what stays
        strongest, turn = row.argmax().item(), f"{angles[layer, token]:.0f}°"
        looks.set_title(f"Where “{words[token]}” looks")
        turns.set_title(f"Block {layer} turns it {turn}")
        guesses.set_title("Next word after this block")
        return (
            f"Token {token}, “{words[token]}”: head {head} of block {layer} looks most at “{words[strongest]}” (weight "
            f"{row[strongest]:.2f}). The block turns its stream by {turn}. Read out here, the model would go on with "
            f"“{tokens[0]}” (probability {probabilities[0]:.2f})."
        )

    controls = {
        "token": slider("position of the token", 8, 0, n_tokens - 1, unit="token"),
        "layer": slider("block", 1, 0, n_layers - 1),
        "head": slider("query head", 0, 0, n_heads - 1),
    }
    alt = "Left: bars, attention of the chosen token to each word. Middle: the angle by which each block turns it. "
    return Explorer(figure, draw, controls, alt + "Right: the five likeliest next words after the chosen block.")


@torch.no_grad()
def _look_inside(text):
    # Words; attention (layers, H, T, T); angles (layers, T) [degree]; for each layer and token the 5 likeliest words.
    model, tokenizer = load_checkpoint(TINY_LLAMA), load_tokenizer()
    tokens = encode(tokenizer, text)
    cos, sin, _ = model.rotation_and_mask(len(tokens))
    visible = causal_visible(len(tokens), len(tokens))
    stream, attention, angles, best = model.tok_embeddings(tokens)[None], [], [], []
    for block in model.layers:
        q, k, _ = block.attention.project(block.attention_norm(stream), cos, sin)
        attention.append(attention_weights(q, repeat_kv(k, model.config.n_rep), visible)[0])
        after = block(stream, cos, sin)
        angles.append(F.cosine_similarity(stream, after, dim=-1)[0].clamp(-1, 1).arccos().rad2deg())
        stream = after
        top = model.lm_head(model.final_norm(stream))[0].softmax(dim=-1).topk(5)
        named = [[_readable(tokenizer, token) for token in row] for row in top.indices.tolist()]
        best.append(list(zip(named, top.values.tolist(), strict=True)))
    words = [_readable(tokenizer, token) for token in tokens.tolist()]
    return words, torch.stack(attention), torch.stack(angles), best


def _readable(tokenizer, token):
    text = tokenizer.decode([token])
    return text.strip() or repr(text)
