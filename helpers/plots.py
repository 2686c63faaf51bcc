"""The course's figures. Arrays in, Axes out; titles state the finding; nothing here knows the model.

One colour has one meaning through the whole course: QUERY, KEY, VALUE, INK (angles, arcs, "ours"), HIDDEN (masked).
Attention pictures have the query position down and the key position across, with the origin at the top left.
"""

import base64
import inspect
import io
import math
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from PIL import Image, ImageDraw

QUERY, KEY, VALUE, INK, HIDDEN, HATCH = "#0072B2", "#D55E00", "#009988", "#222222", "#D0D0D0", "#909090"
FULL, HALF, SQUARE = (8.0, 3.6), (4.4, 3.2), (4.4, 4.4)  # figure sizes [inch]


def use_course_style():
    """Set matplotlib and torch's printing for a notebook: sizes, fonts, white background, three decimals."""
    plt.rcParams.update(plt.rcParamsDefault)
    plt.rcParams.update({
        "figure.figsize": FULL, "figure.dpi": 110, "figure.constrained_layout.use": True,
        "figure.facecolor": "white", "savefig.facecolor": "white",
        "font.family": "DejaVu Sans", "font.size": 10, "axes.titlesize": 10, "axes.titlelocation": "left",
        "axes.labelsize": 9, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9, "figure.titlesize": 10,
        "axes.spines.top": False, "axes.spines.right": False, "axes.labelcolor": INK, "text.color": INK,
        "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "legend.frameon": False,
        "hatch.linewidth": 0.6, "lines.linewidth": 1.8, "image.interpolation": "nearest",
    })  # fmt: skip
    torch.set_printoptions(precision=3, sci_mode=False)


def show(fig: Figure, alt: str):
    """Display a figure with its description as alt text and in print, and close it.

    It is printed because JupyterLab drops the alt text of images; nbval then compares it, too.

    Args:
        fig: the figure.
        alt: what is drawn, the axes, and the one thing to see, in under 40 words.
    """
    from IPython.display import display

    if not alt.strip() or len(alt.split()) >= 40:
        raise ValueError(f"alt has {len(alt.split())} words: describe the figure in 1 to 39 words.")
    file = io.BytesIO()
    fig.savefig(file, format="png", dpi=2 * fig.dpi)  # sharp on a fine screen too
    plt.close(fig)
    picture = on_card(Image.open(file), 16, 16)
    display(_Shown(as_png(picture), {"alt": alt, "width": picture.width // 2}))
    print(printed(alt))


def on_card(picture: Image.Image, margin: int, radius: int) -> Image.Image:
    """The picture on a white card with round corners, sizes in pixels: it is seen on a dark page, too."""
    card = Image.new("RGB", (picture.width + 2 * margin, picture.height + 2 * margin), "white")
    card.paste(picture, (margin, margin))
    corners = Image.new("1", card.size)
    ImageDraw.Draw(corners).rounded_rectangle((0, 0, card.width - 1, card.height - 1), radius, fill=1)
    card.putalpha(corners.convert("L"))
    return card


def as_png(picture: Image.Image, **options) -> str:
    """The picture as PNG, in base64; options are Pillow's."""
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return base64.b64encode(file.getvalue()).decode()


class _Shown:
    """A picture for a notebook, its description for tools without pictures; a terminal prints `<figure>`."""

    def __init__(self, png, metadata):
        self.png, self.metadata = png, metadata

    def __repr__(self):
        return "<figure>"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"image/png": self.png, "text/plain": self.metadata["alt"]}, {"image/png": self.metadata}


def printed(alt: str) -> str:
    """A description as `show` prints it: lines of at most 100 letters, for JupyterLab breaks longer ones anywhere."""
    return textwrap.fill(f"Figure: {alt}", 100)


def show_source(thing):
    """Show the source of a function or class of the course, as it stands in `helpers`."""
    from IPython.display import Markdown, display

    display(Markdown(f"```python\n{inspect.getsource(thing).rstrip()}\n```"))


def to_numpy(values) -> np.ndarray:
    """A numpy array: of a tensor on any device as float32, of a list or an array as numpy has it."""
    return values.detach().float().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _axes(ax: Axes | None, size=FULL, labels=(), shape=()) -> Axes:
    for some, n in zip(labels, shape, strict=True):  # before a figure is made, which would stay open
        if some is not None and len(some) != n:
            raise ValueError(f"{len(some)} labels for {n} positions, {list(some)[:9]}: pass one text for each.")
    return plt.subplots(figsize=size)[1] if ax is None else ax


# --------------------------------------------------------------------------------------------- mask lens


def plot_visible(visible, *, ax=None, title=None, query_labels=None, key_labels=None) -> Axes:
    """Which key each query may see: visible cells white, hidden cells grey and hatched.

    Args:
        visible: (T, S) bool, True = may attend.
        query_labels, key_labels: texts for the rows and columns; default: positions.
    """
    visible = _mask("plot_visible", visible)
    ax = _axes(ax, SQUARE, (query_labels, key_labels), visible.shape)
    _hatch_hidden(ax, visible)
    ax.set_xticks(np.arange(visible.shape[1] + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(visible.shape[0] + 1) - 0.5, minor=True)
    ax.grid(which="minor", color=INK, lw=0.4)
    ax.tick_params(which="minor", length=0)
    return _query_key_axes(ax, visible.shape, title, query_labels, key_labels)


def plot_attention(weights, *, visible=None, ax=None, title=None, labels=None, colorbar=True, vmax=1.0) -> Axes:
    """Attention weights as a heat map from 0 to vmax; hidden cells are hatched.

    Args:
        weights: (T, S), rows sum to 1.
        visible: (T, S) bool, or None for no hatching.
        labels: texts of the tokens, for rows and columns; default: positions.
    """
    seen = True if visible is None else _mask("plot_attention", visible)
    if visible is not None and seen.shape != np.shape(weights):
        raise ValueError(f"visible has shape {seen.shape}, weights {tuple(np.shape(weights))}: pass one for each.")
    weights = _grid("plot_attention", weights, lambda w: (w >= 0) & (w < np.inf), "of weights from 0 on", seen)
    ax = _axes(ax, SQUARE, (labels, labels), weights.shape)
    if visible is not None:
        weights = np.where(seen, weights, np.nan)
        _hatch_hidden(ax, seen)
    image = ax.imshow(weights, cmap="viridis", norm=Normalize(0, vmax))
    if colorbar:
        ax.figure.colorbar(image, ax=ax, label="weight", shrink=0.8)
    return _query_key_axes(ax, weights.shape, title, labels, labels)


def _grid(name, values, allowed, instead, seen=True):
    values = to_numpy(values)
    if values.ndim != 2 or not values.size:
        problem = f"shape {values.shape}"
    elif (wrong := values[seen & ~allowed(values)]).size:
        problem = f"{wrong[0]:.3g}"
    else:
        return values
    raise ValueError(f"{name} cannot draw {problem}: pass (queries, keys), at least one of each, {instead}.")


def _mask(name, visible):
    return _grid(name, visible, lambda v: (v == 0) | (v == 1), "True where a query may attend").astype(bool)


def _hatch_hidden(ax, visible):
    hidden = np.pad(~visible, ((0, 0), (1, 1))).astype(int)
    rows, edges = np.nonzero(np.diff(hidden))  # of each run of hidden cells in a row its beginning, then its end
    (left, right), top = edges.reshape(-1, 2).T - 0.5, rows[::2] - 0.5
    runs = np.array([(left, top), (right, top), (right, top + 1), (left, top + 1), (left, top)]).transpose(2, 0, 1)
    if len(runs):  # all in one patch, and a run of cells as one rectangle: cells by themselves take far longer to draw
        path = Path.make_compound_path_from_polys(runs)
        ax.add_patch(PathPatch(path, fc=HIDDEN, ec=HATCH, hatch="///", lw=0, zorder=0.5))


def _query_key_axes(ax, shape, title, query_labels, key_labels):
    n_query, n_key = shape
    ax.set(xlim=(-0.5, n_key - 0.5), ylim=(n_query - 0.5, -0.5), aspect="equal", title=title)
    ax.set(xlabel="key position [token]", ylabel="query position [token]")
    for axis, size, labels in ((ax.xaxis, n_key, key_labels), (ax.yaxis, n_query, query_labels)):
        if labels is None:
            axis.set_ticks(range(0, size, 2 ** max(0, math.ceil(math.log2(size / 10)))))  # at most ten
        else:
            axis.set_ticks(range(size), [str(label) for label in labels])
    if key_labels is not None and max(len(str(label)) for label in key_labels) > 2:
        ax.tick_params(axis="x", rotation=90)
    ax.spines[["top", "right"]].set_visible(True)
    return ax


def plot_head_wiring(n_heads: int, n_kv_heads: int, *, ax=None, title=None) -> Axes:
    """Which query head reads which key/value head: query heads above, key/value heads below, joined by lines."""
    if not 0 < n_kv_heads <= n_heads or n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} is not a multiple of n_kv_heads={n_kv_heads}: choose one of its divisors.")
    ax = _axes(ax, HALF)
    n_rep = n_heads // n_kv_heads
    middle = [(n_rep - 1) / 2 + n_rep * j for j in range(n_kv_heads)]
    for i in range(n_heads):
        ax.plot([i, middle[i // n_rep]], [1, 0.17], color=INK, lw=1.2, zorder=1)
        ax.plot(i, 1, "o", color=QUERY, ms=13)
        ax.text(i, 1.2, str(i), ha="center", va="bottom")
    for j, x in enumerate(middle):
        ax.plot(x - 0.2, 0, "s", color=KEY, ms=10)
        ax.plot(x + 0.2, 0, "^", color=VALUE, ms=10)
        ax.text(x, -0.2, str(j), ha="center", va="top")
    ax.set(xlim=(-0.6, n_heads - 0.4), ylim=(-0.55, 1.55), title=title, xticks=[])
    ax.set_yticks([0, 1], ["key/value\nhead", "query\nhead"])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def plot_llama_map(*, shapes=("(B, T)", "(B, T, D)", "(B, T, V)"), ax=None, title=None) -> Axes:
    """One LLaMA from token ids to logits, with the shapes of ids, stream and logits as texts at its arrows."""
    ax = _axes(ax, (8.0, 4.2))

    def box(x, y, text):
        ax.add_patch(Rectangle((x - 0.75, y - 0.25), 1.5, 0.5, fc="white", ec=INK, lw=1.2, zorder=3))
        ax.text(x, y, text, ha="center", va="center", fontsize=9, zorder=4)

    def go(*points, says=shapes[1]):
        ax.plot(*zip(*points, strict=True), color=INK, lw=1.6)
        ax.annotate("", points[-1], points[-2], arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.6, "shrinkB": 0})
        x, y = np.mean(points[-2:], axis=0)
        ax.text(x, y + 0.06, says, ha="center", va="bottom", fontsize=9)

    ax.add_patch(Rectangle((0.1, 0.85), 7.8, 2.5, fc="#F4F4F4", ec=INK, lw=1, ls="--", zorder=0))
    ax.plot([1.3, 1.3], [3.9, 0.2], color=INK, lw=1.6)
    for x, text in ((0.4, "one block, n_layers times"), (1.0, "residual stream")):
        ax.text(x, 2.1, text, rotation=90, ha="center", va="center", fontsize=9)
    for y in (3.62, 0.63):
        ax.text(1.4, y, shapes[1], va="center", fontsize=9)
    for y, part in ((3.0, "attention 04\nRoPE 02"), (1.9, "SwiGLU\n03")):
        go((1.3, y), (2.0, y), says="")
        go((3.5, y), (4.7, y))
        go((6.2, y), (6.5, y), (6.5, y - 0.75), (1.43, y - 0.75))
        box(2.75, y, "RMSNorm\n01")
        box(5.45, y, part)
        ax.plot(1.3, y, "o", color=INK, ms=4)
        ax.plot(1.3, y - 0.75, "o", mfc="white", mec=INK, ms=14, zorder=3)
        ax.text(1.3, y - 0.77, "+", ha="center", va="center", zorder=4)
    go((3.1, 4.15), (2.05, 4.15), says=shapes[0])
    go((1.3, 0.2), (2.0, 0.2), says="")
    go((3.5, 0.2), (4.7, 0.2))
    go((6.2, 0.2), (7.9, 0.2), says=f"logits {shapes[2]}")
    for x, y, text in ((1.3, 4.15, "embedding"), (2.75, 0.2, "RMSNorm\n01"), (5.45, 0.2, "lm_head")):
        box(x, y, text)
    ax.set(xlim=(0, 8), ylim=(-0.1, 4.95), title=title)
    ax.axis("off")
    return ax
