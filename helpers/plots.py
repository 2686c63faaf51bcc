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
from matplotlib.patches import PathPatch
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


def _square(ax: Axes | None, labels=(), shape=()) -> Axes:
    for some, n in zip(labels, shape, strict=True):  # before a figure is made, which would stay open
        if some is not None and len(some) != n:
            raise ValueError(f"{len(some)} labels for {n} positions, {list(some)[:9]}: pass one text for each.")
    return plt.subplots(figsize=SQUARE)[1] if ax is None else ax


# --------------------------------------------------------------------------------------------- mask lens


def plot_visible(visible, *, ax=None, title=None, query_labels=None, key_labels=None) -> Axes:
    """Which key each query may see: visible cells white, hidden cells grey and hatched.

    Args:
        visible: (T, S) bool, True = may attend.
        query_labels, key_labels: texts for the rows and columns; default: positions.
    """
    visible = _mask("plot_visible", visible)
    ax = _square(ax, (query_labels, key_labels), visible.shape)
    _hatch_hidden(ax, visible)
    ax.set_xticks(np.arange(visible.shape[1] + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(visible.shape[0] + 1) - 0.5, minor=True)
    ax.grid(which="minor", color=INK, lw=0.4)
    ax.tick_params(which="minor", length=0)
    return _query_key_axes(ax, visible.shape, title, query_labels, key_labels)


def plot_attention(weights, *, visible=None, ax=None, title=None, vmax=1.0) -> Axes:
    """Attention weights as a heat map from 0 to vmax; hidden cells are hatched.

    Args:
        weights: (T, S), rows sum to 1.
        visible: (T, S) bool, or None for no hatching.
    """
    seen = True if visible is None else _mask("plot_attention", visible)
    if visible is not None and seen.shape != np.shape(weights):
        raise ValueError(f"visible has shape {seen.shape}, weights {tuple(np.shape(weights))}: pass one for each.")
    weights = _grid("plot_attention", weights, lambda w: (w >= 0) & (w < np.inf), "of weights from 0 on", seen)
    ax = _square(ax)
    if visible is not None:
        weights = np.where(seen, weights, np.nan)
        _hatch_hidden(ax, seen)
    ax.imshow(weights, cmap="Blues", norm=Normalize(0, vmax))
    return _query_key_axes(ax, weights.shape, title)


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


def _query_key_axes(ax, shape, title, query_labels=None, key_labels=None):
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
