"""One small base for all explorers: a persistent picture, controls around it and on it, a caption with the values."""

import base64
import html
import io
import traceback
from pathlib import Path

import ipywidgets
import numpy as np
from IPython import get_ipython
from IPython.display import display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Polygon
from matplotlib.text import Text
from PIL import Image

from helpers.checkpoint import load_checkpoint
from helpers.model import Llama
from helpers.plots import FULL, HATCH, HIDDEN, as_png, on_card
from helpers.text import TINY_LLAMA

COUNTED = ("token", "step", "degree", "byte")  # units that take an s
CELL = "1 / 1 / 2 / 2"  # of a grid: the picture's, and that of the buttons on it
# A part that can be clicked is seen under the mouse, and when a key has reached it.
CSS = """.course-explorer img { border-radius: 8px }
.course-explorer .course-part { outline-offset: -2px; cursor: pointer; box-shadow: none }
.course-explorer .course-part:hover { outline: 1px solid #767676 }
.course-explorer .course-part:focus-visible { outline: 3px solid #0072B2 }
.course-explorer .widget-toggle-buttons { flex-wrap: wrap }
.course-explorer .widget-toggle-buttons .widget-label { margin-right: 8px; flex: none }
.course-explorer .widget-toggle-buttons > div { max-width: 100% }
"""
LIVE = ".course-explorer:not(.jupyter-widgets-disconnected)"  # JupyterLab marks so what a restart has cut off
# An explorer is three outputs: its picture, the controls, its words. Where the controls live, the other two are hidden;
# where their kernel has gone, JupyterLab's "Error displaying widget" is. (Names of JupyterLab, notebook 6, VS Code.)
for output in (".jp-OutputArea-child", ".output_area", ".output_container"):
    CSS += f"""{output}:has(+ {output} {LIVE}):has(+ {output} + {output} .course-still),
{output}:has({LIVE}) + {output}:has(.course-still),
{output}:has(+ {output} .course-still):not(:has({LIVE})) {{ display: none }}
"""
# On a narrow page the picture slides sideways. Its words stand still: they are as wide as the window on it.
# (What is stretched may be such a container. Of the picture itself, which is not, the width would be 0.)
NARROW = """.course-explorer .widget-gridbox { container-type: inline-size }
.course-explorer figcaption, .course-explorer [role=alert] { position: sticky; left: 0; max-width: 100cqw }
"""
LEAST = 660  # width [pixel of the page] at which a picture of 880 can still be read, and all its parts be clicked
UNWRITTEN = "\0"  # put into every text to find out which texts `draw` writes
GREY = "#767676"  # the input, before anything is done to it
PALE = "#B0B0B0"  # what the model does as trained, and whatever is behind what moves
_made = {}  # by cell of the notebook: its last run, and the explorers that this run made


class Explorer:
    """Controls around one persistent picture; shows itself as the last line of a cell.

    A cell's output also holds the first picture as PNG and its words: they stand wherever no kernel runs, also in a
    notebook that was saved and is opened again. Seen in JupyterLab and in nbconvert's HTML; GitHub shows stored PNGs.
    Not tried: VS Code, whose source names the outputs as below, and Colab: live controls may stand under the picture.
    An error in `draw` appears under the picture, in words; the first drawing raises like any other code.

    Args:
        figure: drawn once by the caller. Layout, axes and whatever `draw` leaves alone are fixed from then on.
        draw: takes the controls' values by name, moves artists (not limits or ticks), returns the finding in words.
            What it moves is drawn above what stays.
        controls: by name, made with `slider`, `switch` or `toggle`.
        alt: what the picture shows, whatever the values, in under 40 words.
        parts: what on the picture can be clicked, and reached by Tab, {what: where}. Where is (x0, y0, x1, y1) in
            fractions of the figure, from its lower left corner, or a function giving it once the layout stands, such
            as `within(ax, …)`. What is a name: draw gets that of the last part clicked as `clicked`, "" at first and
            when the part is clicked again. Or it is (a control's name, a value): a click gives it this value.
        several: clicks add and take away; `clicked` is then the tuple of all names, in the order of parts.

    A screen reader hears the parts' names and all controls' labels, but of sliders: ipywidgets gives their handles
    none, so the caption repeats the settings.
    """

    def __init__(self, figure: Figure, draw, controls: dict, alt: str, parts: dict | None = None, several=False):
        self.figure, self.draw, self.controls, self.alt = figure, draw, dict(controls), alt
        names = [(part, part) for part in parts or {} if isinstance(part, str)]
        if names:  # a control that is never shown holds what was clicked
            kind = ipywidgets.SelectMultiple if several else ipywidgets.Select
            self.controls["clicked"] = _named(kind(options=names if several else [("nothing", ""), *names]), "clicked")
        self._canvas, self._moving, self._background = FigureCanvasAgg(figure), set(), None
        draw(**self.values)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        self._artists = figure.findobj(lambda artist: not artist.get_children())
        self._take_picture()
        self.picture = ipywidgets.HTML(self._page())
        self.buttons = [self._button(part, place) for part, place in (parts or {}).items()]
        _align(controls.values())
        row = ipywidgets.Box(list(controls.values()), layout={"flex_flow": "row wrap", "align_items": "center"})
        style = ipywidgets.HTML(f"<style>{CSS}{NARROW}</style>", layout={"display": "none"})
        self.box = ipywidgets.VBox([row, self._window(), style])
        self.box.add_class("course-explorer")
        for control in self.controls.values():
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
            where = f"{Path(place.filename).name}, line {place.lineno}"
            problem = f"This setting could not be drawn: {type(error).__name__}: {error} ({where}). "
            problem += "The picture still shows the last setting that worked: move the control back."
        self.picture.value = self._page(problem)

    def close(self):
        """Take the explorer off the page and free its memory; its words stay, for IPython's `Out` still names it."""
        for control in self.controls.values():
            control.unobserve_all()
        for widget in (*self.controls.values(), *self.buttons, self.picture, *self.box.children, self.box):
            for part in (widget, widget.layout, getattr(widget, "style", widget)):
                part.close()
        self.figure = self.draw = self._canvas = self._background = None
        self._artists, self._moving, self.png, self.picture.value = [], set(), "", ""

    def _take_picture(self):
        for artist in self._artists:  # somebody else, such as savefig, may have touched them all
            artist.stale = False
        arrays = {artist: artist.get_array() for artist in self._artists if hasattr(artist, "get_array")}
        texts = [text for text in self._artists if isinstance(text, Text)] if self._background is None else []
        texts = {text: text.get_text() for text in texts}
        for text in texts:  # which words does `draw` write? The same ones again would mark nothing stale
            text.set_text(UNWRITTEN)
            text.stale = False
        finding = self.draw(**self.values)
        for text in (text for text in texts if text.get_text() == UNWRITTEN):
            moved = text.stale  # by its colour, for example
            text.set_text(texts[text])
            text.stale = moved
        touched = {artist for artist in self._artists if artist.stale}
        touched |= {artist for artist, old in arrays.items() if artist.get_array() is not old}  # set_array marks none
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
        picture = Image.fromarray(np.asarray(self._canvas.buffer_rgba())).convert("RGB")
        self.finding, self.png = finding, as_png(picture, compress_level=3)
        self.settings = f"Settings: {', '.join(_as_words(control) for control in self.controls.values())}."

    def _button(self, part, place):
        # A transparent button. Its place is in percent of the picture's width, as CSS measures margin and padding.
        corners = np.reshape(place() if callable(place) else place, (2, 2))
        (left, low), (right, high) = corners.min(0), corners.max(0)
        left, top, width, height = 100 * np.array([left, 1 - high, right - left, high - low])
        ratio = self.figure.bbox.height / self.figure.bbox.width
        layout = {"grid_area": CELL, "width": f"{width:.3f}%", "height": "0", "padding": f"0 0 {ratio * height:.3f}%"}
        layout["margin"] = f"{ratio * top:.3f}% 0 0 {left:.3f}%"
        name = part if isinstance(part, str) else _as_words(self.controls[part[0]], part[1])
        unseen = {"button_color": "transparent", "font_size": "0"}
        button = ipywidgets.Button(description=name, tooltip=name, style=unseen, layout=layout)
        button.add_class("course-part")
        button.on_click(lambda _: self.press(part))
        return button

    def press(self, part):
        """Do what a click on this part of the picture does."""
        name, value = part if isinstance(part, tuple) else ("clicked", part)
        control = self.controls[name]
        if isinstance(control, ipywidgets.SelectMultiple):
            control.value = tuple(one for one, _ in control.options if (one in control.value) != (one == part))
        else:
            control.value = "" if name == "clicked" and value == control.value else value

    def _window(self):
        self.picture.layout.grid_area, self.picture.layout.margin = CELL, "0"
        columns = f"minmax({min(LEAST, int(self.figure.bbox.width))}px, 1fr)"
        grid = {"grid_template_columns": columns, "align_items": "flex-start", "justify_items": "flex-start"}
        width = {"width": f"{int(self.figure.bbox.width)}px", "max_width": "100%"}
        return ipywidgets.GridBox([self.picture, *self.buttons], layout={**grid, **width})

    def _page(self, problem=""):
        width, height = (int(side) for side in self.figure.bbox.size)
        warning = f'<p role="alert" style="color:#B00020"><b>{html.escape(problem)}</b></p>' if problem else ""
        return (
            f'<figure style="margin:0"><img decoding="sync" alt="{html.escape(self.alt)}" width="{width}" '
            f'height="{height}" style="max-width:100%;height:auto" src="data:image/png;base64,{self.png}">'
            f'<figcaption style="line-height:1.4">{html.escape(self.finding)}<br>'
            f"<small>{html.escape(self.settings)}</small></figcaption></figure>{warning}"
        )

    def _ipython_display_(self):
        for part, (data, metadata) in enumerate(self._outputs()):
            display(data, metadata=metadata, raw=True, display_id=f"{self.box.model_id}-{part}")

    def keep(self):
        """Store the present picture in the cell's output, in place of the first: it is seen where no kernel runs."""
        for part, (data, metadata) in enumerate(self._outputs()):
            if part != 1:  # the widget shows it already
                display(data, metadata=metadata, raw=True, display_id=f"{self.box.model_id}-{part}", update=True)

    def _outputs(self):
        words, settings, shown = html.escape(self.finding), html.escape(self.settings), {"image/png": {"alt": self.alt}}
        text = f"{self.alt} {self.finding} {self.settings}"
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        below = f'<style>{CSS}</style><div class="course-still">{words}<br><small>{settings} Run this cell to move it.'
        still = as_png(on_card(Image.open(io.BytesIO(base64.b64decode(self.png))), 0, 8))
        yield {"image/png": still, "text/plain": text}, shown
        yield {"application/vnd.jupyter.widget-view+json": view}, {}
        yield {"text/html": f"{below}</small></div>"}, {}


def _replace_former(explorer):
    # A run of a cell closes what the cell's former run made: its output is no longer shown, and it holds 4 MB and more.
    message = getattr(get_ipython(), "get_parent", dict)()  # what the notebook sent; empty where there is none
    cell = message.get("metadata", {}).get("cellId") or message.get("content", {}).get("code")
    if cell:
        run, (former_run, formers) = message["header"]["msg_id"], _made.get(cell, ("", []))
        if former_run != run:
            for former in formers:
                former.close()
            _made[cell] = run, []
        _made[cell][1].append(explorer)


def slider(label: str, value, low, high, step=1, unit="", log=False, says=""):
    """A slider "label [unit]" that answers while it moves; one arrow key is one step.

    With step 1 its values are integers; with log, low, high and step are exponents of ten. A remark for the reader may
    follow the label in parentheses.

    Args:
        says: what the caption says of it, such as "query at {}", where label, value and unit would be no sentence.
    """
    kind, form = ipywidgets.FloatSlider, ".1f"
    if log:
        kind, form = ipywidgets.FloatLogSlider, ".1e" if low < 0 else ",.0f"
    elif step == 1:
        kind, form = ipywidgets.IntSlider, "d"
    description = f"{label} [{unit}]" if unit else label
    return _named(kind(value, min=low, max=high, step=step, readout_format=form), description, says)


def switch(label: str, options, says=""):
    """Rows of buttons, one of them down, for labels or pairs (label, value); the first option is the default.

    A drop-down list would lose its arrow keys to the notebook (JupyterLab 4.6: they select another cell).
    """
    pairs = [option if isinstance(option, tuple) else (str(option), option) for option in options]
    return _named(ipywidgets.ToggleButtons(options=pairs, style={"button_width": "auto"}), label, says)


def toggle(label: str, value=False):
    """A box to tick; its value is True or False."""
    return _named(ipywidgets.Checkbox(value, indent=False), label, f"{label}: {{}}")


def within(ax, x0, y0, x1, y1):
    """Where a part of an Explorer's picture is: this rectangle, in the data of the axes."""
    return lambda: ax.figure.transFigure.inverted().transform(ax.transData.transform([(x0, y0), (x1, y1)]))


def _named(control, label, says=""):
    control.description = control.tooltip = label  # the tooltip of a control that has none is "null"
    control.says = says
    return control


def _align(controls):
    # Labels in full, all as wide as the longest, so that the controls stand in columns; rows of buttons and boxes flow.
    flowing = ipywidgets.ToggleButtons | ipywidgets.Checkbox
    longest = max((len(control.description) for control in controls if not isinstance(control, flowing)), default=0)
    width = f"{1 + 0.9 * longest:.0f}ch"  # few letters are as wide as a digit
    row = {"width": "auto", "display": "flex", "align_items": "center", "margin": "2px 16px 2px 8px"}
    for control in controls:
        flows = isinstance(control, flowing)
        layout = row if flows else {"width": f"calc({width} + 220px)"}
        for name, value in {"max_width": "100%", **layout}.items():
            setattr(control.layout, name, value)
        control.style.description_width = "max-content" if flows else width


def _as_words(control, value=None):
    # "length [token]" at 8 becomes "length 8 tokens"; "top-k (0 keeps all)" at 5 becomes "top-k 5 (0 keeps all)".
    value = control.value if value is None else value
    if hasattr(control, "options"):
        chosen = value if isinstance(control, ipywidgets.SelectMultiple) else [value]
        words = ", ".join(label for label, option in control.options if option in chosen) or "nothing"
    elif isinstance(value, bool):
        words = "yes" if value else "no"
    elif isinstance(value, float):
        words = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}".replace("e-0", "e-")
    else:
        words = str(value)
    if control.says:
        return control.says.replace("{}", words)
    name, _, unit = control.description.rstrip("]").partition(" [")
    name, bracket, remark = name.partition(" (")
    units = f"{unit}s" if unit in COUNTED and value != 1 else unit
    return f"{name} {words} {units}".rstrip() + bracket + remark


def new_figure(columns, **gridspec):
    """An empty figure of the course's size, and its axes side by side, that only an Explorer shows."""
    # A Figure of its own canvas: pyplot never hears of it, so nothing is shown twice or left open.
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # [inch]; the picture's corners are round
    figure = Figure(figsize=FULL, dpi=110, layout=layout, facecolor="white")
    return figure, figure.subplots(1, columns, gridspec_kw=gridspec)


def bare(ax, x, y, aspect="equal"):
    """Take ticks and frame off the axes and fix their limits."""
    ax.set(xlim=x, ylim=y, aspect=aspect, anchor="N", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def hide_future(ax, n, zorder=1):
    """Grey and hatch, on a map of n queries by n keys, the keys that come after their query."""
    stairs = [(x + 0.5 - side, x - 0.5) for x in range(n) for side in (1, 0)]
    ax.add_patch(Polygon([*stairs, (n - 0.5, -0.5)], fc=HIDDEN, ec=HATCH, hatch="///", lw=0, zorder=zorder))


def arc(start, end, radius):
    """Points of an arc around the origin, x and y, from one angle [rad] to another."""
    turn = np.linspace(start, end, 60)
    return radius * np.cos(turn), radius * np.sin(turn)


def strokes(line, *groups):
    """Draw many strokes as one line: groups of (x, y, dx, dy), arrays of where strokes start and how far they go."""
    ends = [np.broadcast_arrays(x, x + dx, np.nan, y, y + dy, np.nan) for x, y, dx, dy in groups]
    ends = np.concatenate([np.stack(one, -1).reshape(-1, 6) for one in ends])
    line.set_data(ends[:, :3].ravel(), ends[:, 3:].ravel())


def bundled(name=TINY_LLAMA.name) -> Llama:
    """A model that the course brings along, to be read only."""
    return load_checkpoint(TINY_LLAMA.with_name(name)).requires_grad_(False)


def readable(tokenizer, token):
    """A token id as a word for an axis; white space alone is quoted, a piece of a letter is called so."""
    text = tokenizer.decode([token])
    return "(part of a character)" if "\ufffd" in text else text.strip() or repr(text)
