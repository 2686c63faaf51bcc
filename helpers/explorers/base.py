"""One small base for all explorers: a persistent picture, sliders and menus around it, a caption with the values."""

import base64
import html
import io
import traceback
from pathlib import Path

import ipywidgets
import numpy as np
from IPython import get_ipython
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from helpers.plots import FULL

SIZE = {"style": {"description_width": "175px"}, "layout": {"width": "420px"}}  # of a control
GREY = "#767676"  # what goes in, before anything is done to it
_made = {}  # by cell of the notebook: its last run, and the explorers that this run made


class Explorer:
    """Controls around one persistent picture; shows itself as the last line of a cell.

    A cell's output also holds the picture as PNG and its description as text: they stand in wherever no kernel runs
    (GitHub, a website, an untrusted notebook). An error in `draw` appears under the picture, in words; the first
    drawing raises like any other code.

    Args:
        figure: drawn once by the caller. Layout, axes and whatever `draw` leaves alone are fixed from then on.
        draw: takes the controls' values by name, moves artists (not limits or ticks), returns the finding in words.
            What it moves is drawn above what stays.
        controls: by name, made with `slider` or `choice`.
        alt: what the picture shows, whatever the values, in under 40 words.
    """

    def __init__(self, figure: Figure, draw, controls: dict, alt: str):
        self.figure, self.draw, self.controls, self.alt = figure, draw, controls, alt
        self._canvas, self._moving, self._background = FigureCanvasAgg(figure), set(), None
        draw(**self.values)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        self._artists = figure.findobj(lambda artist: not artist.get_children())
        self._take_picture()
        self.picture = ipywidgets.HTML(self._page())
        row = ipywidgets.Layout(display="flex", flex_flow="row wrap")
        self.box = ipywidgets.VBox([ipywidgets.Box(list(controls.values()), layout=row), self.picture])
        self.box.add_class("course-explorer")
        for control in controls.values():
            control.observe(self.redraw, names="value")
        _replace_former(self)

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
        """Take the explorer off the page and free its memory; its words stay, for IPython's `Out` still names it."""
        for control in self.controls.values():
            control.unobserve_all()
        for widget in (*self.controls.values(), *self.box.children, self.box):
            for part in (widget, widget.layout, getattr(widget, "style", widget)):
                part.close()
        self.figure = self.draw = self._canvas = self._background = None
        self._artists, self._moving, self.png, self.picture.value = [], set(), "", ""

    def _take_picture(self):
        for artist in self._artists:  # somebody else, such as savefig, may have touched them all
            artist.stale = False
        finding = self.draw(**self.values)
        touched = {artist for artist in self._artists if artist.stale}
        if self._background is None or not touched <= self._moving:  # what `draw` leaves alone is drawn only once
            self._moving |= touched
            for artist in touched:
                artist.set_animated(True)  # matplotlib leaves it out of the background
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(self.figure.bbox)
        self._canvas.restore_region(self._background)
        for artist in sorted(self._artists, key=lambda artist: artist.zorder):
            if artist in self._moving:
                artist.draw(self._canvas.get_renderer())
        file = io.BytesIO()
        Image.fromarray(np.asarray(self._canvas.buffer_rgba())).convert("RGB").save(file, "PNG", compress_level=3)
        self.finding, self.png = finding, base64.b64encode(file.getvalue()).decode()
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


def _replace_former(explorer):
    # A run of a cell closes what the cell's former run made: its output is no longer shown, and it holds 4 MB and more.
    message = getattr(get_ipython(), "get_parent", dict)()  # what the notebook sent; empty where there is none
    cell = message.get("metadata", {}).get("cellId") or message.get("content", {}).get("code")
    if cell:
        run, made = message["header"]["msg_id"], _made.get(cell, ("", []))
        if made[0] != run:
            for former in made[1]:
                former.close()
            _made[cell] = run, []
        _made[cell][1].append(explorer)


def slider(label: str, value, low, high, step=1, unit="", log=False):
    """A slider "label [unit]" that answers while it moves; one arrow key is one step.

    With step 1 its values are integers; with log, low, high and step are exponents of ten. A remark for the reader may
    follow the label in parentheses.
    """
    kind = ipywidgets.FloatLogSlider if log else ipywidgets.IntSlider if step == 1 else ipywidgets.FloatSlider
    form = "d" if step == 1 else ".1f" if not log else ".1e" if low < 0 else ",.0f"
    description = f"{label} [{unit}]" if unit else label
    return kind(value, min=low, max=high, step=step, description=description, readout_format=form, **SIZE)


def choice(label: str, options):
    """A labelled drop-down list; the first option is the default."""
    return ipywidgets.Dropdown(options=list(options), description=label, **SIZE)


def _as_words(control):
    # "length [token]" at 8 becomes "length 8 token"; "top-k (0 keeps all)" at 5 becomes "top-k 5 (0 keeps all)".
    value, (name, _, unit) = control.value, control.description.rstrip("]").partition(" [")
    name, bracket, remark = name.partition(" (")
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{name} {value} {unit}".rstrip() + bracket + remark


def new_figure(columns, **gridspec):
    """An empty figure of the course's size, and its axes side by side, that only an Explorer shows."""
    # A Figure of its own canvas: pyplot never hears of it, so nothing is shown twice or left open.
    figure = Figure(figsize=FULL, dpi=110, layout="constrained", facecolor="white")
    return figure, figure.subplots(1, columns, gridspec_kw=gridspec)


def bare(ax, x, y):
    """Take ticks and frame off the axes and fix their limits."""
    ax.set(xlim=x, ylim=y, aspect="equal", anchor="N", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def arc(start, end, radius):
    """Points of an arc around the origin, x and y, from one angle [rad] to another."""
    turn = np.linspace(start, end, 60)
    return radius * np.cos(turn), radius * np.sin(turn)


def readable(tokenizer, token):
    """A token id as a word for an axis; white space alone is shown quoted."""
    text = tokenizer.decode([token])
    return text.strip() or repr(text)
