"""The figures keep the course's promises: colours that stay apart, a label on every axis, descriptions in words."""

import base64
import inspect
import io
import itertools
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from explorers import drawings
from helpers import plots
from helpers.model import causal_visible


@pytest.fixture(autouse=True)
def no_figure_left_open(course_style):
    yield
    plt.close("all")


VISIBLE = causal_visible(3, 5)

EXAMPLES = {
    "plot_visible": lambda **to: plots.plot_visible(VISIBLE, **to),
    "plot_attention": lambda **to: plots.plot_attention(torch.rand(3, 5), visible=VISIBLE, **to),
    "plot_head_wiring": lambda **to: drawings.plot_head_wiring(8, 2, **to),
    "plot_llama_map": lambda **to: drawings.plot_llama_map(**to),
}


def new_axes():
    """An Axes of a figure that pyplot does not know."""
    return Figure(layout="constrained").add_subplot()


DRAWN = [*inspect.getmembers(plots, inspect.isfunction), *inspect.getmembers(drawings, inspect.isfunction)]
PLOTS = [name for name, _ in DRAWN if name.startswith("plot_")]


@pytest.mark.parametrize("name", PLOTS)  # a new one needs its example above
def test_one_figure_is_made_with_title_and_a_label_on_every_axis_with_numbers(name, monkeypatch):
    monkeypatch.setitem(plt.rcParams, "figure.figsize", (3, 2))
    ax = EXAMPLES[name](title="finding")
    ax.figure.canvas.draw()
    assert plt.get_fignums() == [ax.figure.number]
    assert ax.figure.get_figwidth() > 4  # inches, the plot's own
    assert "finding" in {text.get_text() for text in ax.figure.findobj(Text)}
    for axis in (axis for ax in ax.figure.axes if ax.axison for axis in (ax.xaxis, ax.yaxis)):
        names = [text.get_text() for text in axis.get_ticklabels()]
        numbers = any(names) and all(re.fullmatch(r"[−\d.]*", name) for name in names)
        assert axis.get_label_text() or not numbers, names


def hatched_cells(ax):
    """(query, key) of each cell whose middle is hatched."""
    hatched = [patch.get_path() for patch in ax.patches if patch.get_hatch()]
    cells = itertools.product(range(-1, 5), range(-1, 7))
    return {(query, key) for query, key in cells if any(path.contains_point((key, query)) for path in hatched)}


@pytest.mark.parametrize("name", ["plot_visible", "plot_attention"])
def test_query_goes_down_and_key_across_and_exactly_the_hidden_cells_are_hatched_and_show_no_value(name):
    ax = EXAMPLES[name](ax=new_axes())
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("query position [token]", "key position [token]")
    assert ax.get_xlim() == (-0.5, 4.5)  # 5 keys, the first at the left
    assert ax.get_ylim() == (2.5, -0.5)  # 3 queries, the first on top
    assert hatched_cells(ax) == {(0, 3), (0, 4), (1, 4)}
    assert {patch.get_facecolor()[:3] for patch in ax.patches} == {to_rgb(plots.HIDDEN)}
    for image in ax.images:
        np.testing.assert_array_equal(np.ma.getmaskarray(np.ma.masked_invalid(image.get_array())), ~VISIBLE.numpy())


def test_weights_have_a_fixed_scale():
    weights = plots.plot_attention(torch.full((2, 2), 0.25), ax=new_axes())
    assert (weights.images[0].norm.vmin, weights.images[0].norm.vmax) == (0, 1)
    assert hatched_cells(weights) == set()  # without a mask
    many = plots.plot_visible(torch.ones(3, 12) > 0, ax=new_axes())
    assert (many.get_xticks().tolist(), many.get_yticks().tolist()) == ([0, 2, 4, 6, 8, 10], [0, 1, 2])


def test_wires_end_where_the_numbers_say():
    wires = drawings.plot_head_wiring(4, 2, ax=new_axes()).lines
    joined = [line.get_xdata().tolist() for line in wires if len(line.get_xdata()) == 2]
    assert joined == [[0, 0.5], [1, 0.5], [2, 2.5], [3, 2.5]]


def test_the_style_takes_back_what_was_set_before():
    plt.rcParams["axes.grid"] = True
    plots.use_course_style()
    assert not plt.rcParams["axes.grid"]


def test_show_stores_the_description_prints_it_and_closes_the_figure(monkeypatch, capsys):
    alt = "A line from 0 to 1. Axes: position and loss. It rises. A printed line ends before these words."
    displayed = []
    monkeypatch.setattr("IPython.display.display", lambda thing: displayed.append(thing._repr_mimebundle_()))
    for _ in range(2):
        fig, ax = plt.subplots()
        ax.plot([0, 1])
        plots.show(fig, alt=alt)
    (first, again) = displayed
    assert first == again  # the same bytes every time
    data, metadata = first
    assert metadata["image/png"]["alt"] == alt
    assert capsys.readouterr() == (f"Figure: {alt[:87]}\n{alt[88:]}\n" * 2, "")  # broken at a space
    assert plt.get_fignums() == []
    picture = imread(io.BytesIO(base64.b64decode(data["image/png"])))
    assert picture.shape[1] == 2 * metadata["image/png"]["width"]
    assert {*picture[0, ::2, 3], *picture[:, 0, 3]} == {0, 1}  # round corners, else white: ink shows in a dark theme
    assert picture[0, 40:-40].min() == picture[40:-40, 0].min() == 1
    assert picture[0, 0, 3] == picture[-1, -1, 3] == 0


def test_show_prints_no_picture_where_no_notebook_is(capsys):
    plots.show(drawings.plot_head_wiring(2, 1).figure, alt="Two wires.")
    assert capsys.readouterr() == ("<figure>\nFigure: Two wires.\n", "")
