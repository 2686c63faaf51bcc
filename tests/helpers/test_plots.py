"""The figures keep the course's promises: colours that stay apart, units on every axis, descriptions in words."""

import base64
import inspect
import io
import itertools
import re
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from helpers import plots
from helpers.model import RMSNorm, causal_visible

LINES = {"query": plots.QUERY, "key": plots.KEY, "value": plots.VALUE, "ink": plots.INK}

# Linear RGB as seen by dichromats: Machado, Oliveira and Fernandes 2009, severity 1.
SEEN_WITH = {
    "normal": np.eye(3),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881],
    ]),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998],
    ]),
}  # fmt: skip
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # sRGB, D65


@pytest.fixture(autouse=True)
def course_style():
    """The course's style, and nothing of it left behind."""
    options = torch._tensor_str.PRINT_OPTS
    before = {name: getattr(options, name) for name in ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")}
    with plt.rc_context():
        plots.use_course_style()
        yield
    plt.close("all")
    torch.set_printoptions(**before)


# ----------------------------------------------------------------------------------------------- colours


def linear(color):
    """Linear RGB of "#rrggbb", 0 to 1."""
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(color, sight):
    """CIE L*a*b* of a colour as seen with this sight."""
    xyz = TO_XYZ @ np.clip(SEEN_WITH[sight] @ linear(color), 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(a, b, sight):
    """CIE76 colour distance."""
    return float(np.linalg.norm(lab(a, sight) - lab(b, sight)))


def contrast_on_white(color):
    return 1.05 / (float(TO_XYZ[1] @ linear(color)) + 0.05)


def smallest_distance(colors):
    return min(distance(a, b, sight) for a, b in itertools.combinations(colors, 2) for sight in SEEN_WITH)


def test_line_colours_stay_apart_for_colour_blind_readers():
    assert round(smallest_distance(LINES.values())) >= 42


def test_hidden_grey_comes_closest_to_teal_which_is_why_it_is_hatched():
    nearest = {name: min(distance(color, plots.HIDDEN, sight) for sight in SEEN_WITH) for name, color in LINES.items()}
    assert min(nearest, key=nearest.get) == "value"
    assert 24 <= nearest["value"] < 42


def test_the_common_green_purple_grey_would_not_stay_apart():
    assert smallest_distance(["#009E73", "#CC79A7", "#999999"]) < 19


@pytest.mark.parametrize(("name", "published"), [("query", 5.2), ("key", 3.9), ("value", 3.6), ("ink", 15.9)])
def test_contrast_on_white(name, published):
    assert contrast_on_white(LINES[name]) == pytest.approx(published, abs=0.05)
    assert published >= 3  # WCAG 1.4.11, graphics


# ------------------------------------------------------------------------------------------- every plot_*

VISIBLE = causal_visible(3, 5)
SCORES = torch.tensor([[1.0, -2, 9, 0, 0], [0, 1, 2, -3, 0], [1, 1, 1, 1, 1]])
ANGLES = torch.arange(6.0)[:, None] * torch.tensor([1.0, 0.1])

EXAMPLES = {
    "plot_vectors": lambda ax: plots.plot_vectors(
        [[1.0, 2], [0, -1]], labels=["q", "k"], colors=[plots.QUERY, plots.KEY], styles=["-", "--"], ax=ax
    ),
    "plot_rotation_angles": lambda ax: plots.plot_rotation_angles(ANGLES, ax=ax),
    "plot_clock_hands": lambda ax: plots.plot_clock_hands(ANGLES[:, 0], ax=ax),
    "plot_turning": lambda ax: plots.plot_turning(torch.rand(3, 20) * 90, ax=ax),
    "plot_visible": lambda ax: plots.plot_visible(VISIBLE, ax=ax),
    "plot_attention": lambda ax: plots.plot_attention(SCORES.softmax(-1), visible=VISIBLE, ax=ax),
    "plot_scores": lambda ax: plots.plot_scores(SCORES, visible=VISIBLE, ax=ax),
    "plot_head_wiring": lambda ax: plots.plot_head_wiring(8, 2, ax=ax),
    "plot_llama_map": lambda ax: plots.plot_llama_map(ax=ax),
    "plot_norm_sphere": lambda ax: plots.plot_norm_sphere(torch.eye(3), ax=ax, plane=True),
    "plot_by_token": lambda ax: plots.plot_by_token(torch.randn(4, 3), ["a", " b", "c"], ax=ax),
}
THREE_D = {"plot_norm_sphere"}
PLOTS = [name for name, thing in vars(plots).items() if name.startswith("plot_") and inspect.isfunction(thing)]


def new_axes(name):
    """An Axes of a figure that pyplot does not know."""
    return Figure(layout="constrained").add_subplot(projection="3d" if name in THREE_D else None)


def test_every_plot_has_an_example_here():
    assert sorted(EXAMPLES) == sorted(PLOTS)


@pytest.mark.parametrize("name", PLOTS)
def test_an_axes_comes_in_and_goes_out(name):
    ax = new_axes(name)
    assert EXAMPLES[name](ax) is ax
    assert plt.get_fignums() == []  # no figure of its own when an Axes is given


@pytest.mark.parametrize("name", PLOTS)
def test_without_an_axes_one_figure_is_made(name):
    ax = EXAMPLES[name](None)
    assert isinstance(ax, Axes)
    assert plt.get_fignums() == [ax.figure.number]


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_can_be_titled_with_its_finding(name):
    assert inspect.signature(getattr(plots, name)).parameters["title"].kind is inspect.Parameter.KEYWORD_ONLY


def axes_without_unit(figure):
    """Every axis that shows ticks, but neither a label with a unit in brackets nor names for its ticks."""
    faults = []
    for ax in figure.axes:
        for side in ("x", "y", "z") if ax.name == "3d" else ("x", "y"):
            axis = getattr(ax, f"{side}axis")
            if not (ax.axison and axis.get_visible()) or len(axis.get_ticklocs()) == 0:
                continue
            if ax.get_label() == "<colorbar>" and not axis.get_label_text() and not axis.get_ticklabels():
                continue
            label = axis.get_label_text()
            names = [text.get_text() for text in axis.get_ticklabels()]
            named = all(name and not name.lstrip("−-").replace(".", "").isdigit() for name in names)
            unit = "[" in label and label.index("[") < label.index("]") if "]" in label else False
            if not unit and not (named and (label or all("[" in name for name in names))):
                faults.append(f"{side} axis: {label!r}, ticks {names}")
    return faults


@cache
def drawn(name):
    """The example's figure, drawn once for the tests that look at its texts."""
    ax = EXAMPLES[name](None)
    ax.set_title("finding")
    ax.figure.canvas.draw()
    return ax.figure


@pytest.mark.parametrize("name", PLOTS)
def test_every_axis_has_a_unit(name):
    assert axes_without_unit(drawn(name)) == []


def test_an_axis_without_unit_is_noticed():
    _, ax = plt.subplots()
    ax.set(xlabel="position", ylabel="loss [nat/token]")
    assert [fault[:6] for fault in axes_without_unit(ax.figure)] == ["x axis"]


def shown_texts(figure):
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("name", PLOTS)
def test_smallest_text_is_9_points(name):
    sizes = {text.get_text(): text.get_fontsize() for text in shown_texts(drawn(name))}
    assert "finding" in sizes
    assert {text: size for text, size in sizes.items() if size < 9} == {}


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_leaves_the_settings_alone(name):
    before = dict(plt.rcParams)
    EXAMPLES[name](None)
    assert dict(plt.rcParams) == before


# ------------------------------------------------------------------------------------------ attention pictures

ATTENTION = ["plot_visible", "plot_attention", "plot_scores"]


@pytest.mark.parametrize("name", ATTENTION)
def test_query_goes_down_and_key_across_from_the_top_left(name):
    ax = EXAMPLES[name](new_axes(name))
    assert ax.get_ylabel() == "query position [token]"
    assert ax.get_xlabel() == "key position [token]"
    assert ax.get_xlim() == (-0.5, 4.5)  # 5 keys, the first at the left
    assert ax.get_ylim() == (2.5, -0.5)  # 3 queries, the first on top
    assert all(float(tick).is_integer() for tick in [*ax.get_xticks(), *ax.get_yticks()])


def hatched_cells(ax):
    """(query, key) of each cell whose middle and corners, or nearly, are hatched."""
    places = [(query, key) for query in range(-1, 5) for key in range(-1, 7)]
    points = [(0, 0), (-0.45, -0.45), (0.45, -0.45), (0.45, 0.45), (-0.45, 0.45)]
    return {
        (query, key)
        for query, key in places
        for patch in ax.patches
        if patch.get_hatch() and patch.get_path().contains_points([(key + x, query + y) for x, y in points]).all()
    }


@pytest.mark.parametrize("name", ATTENTION)
def test_exactly_the_hidden_cells_are_hatched(name):
    ax = EXAMPLES[name](new_axes(name))
    assert hatched_cells(ax) == {(0, 3), (0, 4), (1, 4)}
    assert {patch.get_hatch() for patch in ax.patches} == {"///"}
    assert {patch.get_facecolor()[:3] for patch in ax.patches} == {
        tuple(int(plots.HIDDEN[1:3], 16) / 255 for _ in "rgb")
    }


@pytest.mark.parametrize("name", ["plot_attention", "plot_scores"])
def test_what_is_hidden_shows_no_value(name):
    ax = EXAMPLES[name](new_axes(name))
    shown = np.ma.masked_invalid(ax.images[0].get_array())
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), ~VISIBLE.numpy())


def test_without_a_mask_nothing_is_hatched():
    assert hatched_cells(plots.plot_attention(SCORES.softmax(-1), ax=new_axes("plot_attention"))) == set()


def test_weights_have_a_fixed_scale_from_0_to_1():
    image = plots.plot_attention(torch.full((2, 2), 0.25), ax=new_axes("plot_attention")).images[0]
    assert (image.norm.vmin, image.norm.vmax, image.get_cmap().name) == (0, 1, "viridis")


@pytest.mark.parametrize("limit", [None, 3.0])
def test_scores_are_centred_at_0(limit):
    image = plots.plot_scores(SCORES, limit=limit, ax=new_axes("plot_scores")).images[0]
    assert image.get_cmap().name == "RdBu_r"
    assert image.norm.vmax == -image.norm.vmin == (limit or 9)
    assert image.norm(0.0) == 0.5


def test_tokens_can_label_rows_and_columns():
    ax = plots.plot_attention(torch.eye(2), labels=["the", "cat"], ax=new_axes("plot_attention"))
    assert [text.get_text() for text in ax.get_xticklabels()] == ["the", "cat"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["the", "cat"]


# ------------------------------------------------------------------------------------------------ angles


def test_angles_are_wrapped_to_one_turn_on_a_cyclic_map():
    angles = torch.tensor([[0.0, 3.0], [4.0, -4.0], [100.0, -100.0]])
    ax = plots.plot_rotation_angles(angles, ax=new_axes("plot_rotation_angles"))
    shown = np.asarray(ax.images[0].get_array())
    assert shown.shape == (2, 3)  # pair down, position across
    assert np.abs(shown).max() <= np.pi
    turns = (angles.numpy().T - shown) / (2 * np.pi)
    np.testing.assert_allclose(turns, turns.round(), atol=1e-5)
    assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (-np.pi, np.pi)
    ends = ax.images[0].get_cmap()([0.0, 1.0])
    assert np.abs(ends[0] - ends[1]).max() < 0.02  # the two ends of a cyclic map look alike


def test_clock_hands_point_where_the_angle_says():
    angles = [0.0, np.pi / 2, 2.0]
    ax = plots.plot_clock_hands(angles, ax=new_axes("plot_clock_hands"))
    hands = [line.get_xydata() for line in ax.lines if len(line.get_xydata()) == 2]
    directions = [np.arctan2(*(hand[1] - hand[0])[::-1]) for hand in hands]
    np.testing.assert_allclose(directions, angles, atol=1e-12)


def test_turning_shows_the_median_of_each_layer():
    angles = torch.tensor([[10.0, 20, 90], [1, 2, 3]])
    ax = plots.plot_turning(angles, first=1, ax=new_axes("plot_turning"))
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[1, 20], [2, 2]])


def test_arrows_end_at_the_vectors_and_lie_inside():
    ax = plots.plot_vectors([[3.0, 4], [-5, 0]], ax=new_axes("plot_vectors"))
    assert [text.xy for text in ax.texts] == [(3.0, 4.0), (-5.0, 0.0)]
    assert min(ax.get_xlim()[1], ax.get_ylim()[1], -ax.get_xlim()[0], -ax.get_ylim()[0]) > 5


def test_an_arc_has_the_radius_and_the_angles_given():
    ax = new_axes("arc")
    plots.draw_arc(ax, np.pi / 2, 0.0, 0.5, "90°")
    (arc,) = ax.patches
    assert (arc.theta1, arc.theta2, arc.width, arc.height) == (0, 90, 1, 1)
    assert [text.get_text() for text in ax.texts] == ["90°"]


def test_each_query_head_is_joined_to_its_key_head():
    ax = plots.plot_head_wiring(4, 2, ax=new_axes("plot_head_wiring"))
    ends = [line.get_xdata().tolist() for line in ax.lines if len(line.get_xdata()) == 2]
    assert ends == [[0, 0.5], [1, 0.5], [2, 2.5], [3, 2.5]]


def test_points_of_the_sphere_picture_are_the_points_given():
    points = torch.tensor([[1.0, 0, 0], [0, 1, -1]])
    ax = plots.plot_norm_sphere(points, ax=new_axes("plot_norm_sphere"))
    (scatter,) = [thing for thing in ax.collections if isinstance(thing, PathCollection)]
    np.testing.assert_allclose(np.transpose(scatter._offsets3d), points.numpy())


@pytest.mark.parametrize("values", [[1.0, 2.0], np.array([1.0, 2.0]), torch.tensor([1.0, 2.0], requires_grad=True)])
def test_lists_arrays_and_tensors_are_all_accepted(values):
    np.testing.assert_array_equal(plots.to_numpy(values), [1.0, 2.0])


def test_bfloat16_is_accepted():
    np.testing.assert_array_equal(plots.to_numpy(torch.tensor([1.5], dtype=torch.bfloat16)), [1.5])


# -------------------------------------------------------------------------------------------------- show

ALT = "A line from 0 to 1. Axes: position and loss. It rises."


@pytest.fixture
def displayed(monkeypatch):
    """What is handed to IPython's display: (object, keyword arguments)."""
    calls = []
    monkeypatch.setattr("IPython.display.display", lambda thing, **settings: calls.append((thing, settings)))
    return calls


def test_show_stores_the_description_prints_it_and_closes_the_figure(displayed, capsys):
    fig, ax = plt.subplots()
    ax.plot([0, 1])
    plots.show(fig, alt=ALT)
    ((data, settings),) = displayed
    assert settings == {"raw": True, "metadata": {"image/png": {"alt": ALT, "width": 880}}}  # 8 inch at 110 dpi
    assert capsys.readouterr() == (f"Figure: {ALT}\n", "")
    assert plt.get_fignums() == []
    picture = imread(io.BytesIO(base64.b64decode(data["image/png"])))
    assert picture.shape[:2] == (2 * 396, 2 * 880)  # two pixels of the file for one of the page, in each direction
    assert picture[0, 0].tolist() == [1, 1, 1, 1]  # white, not transparent: ink must show in a dark theme


def test_show_gives_the_same_bytes_every_time(displayed):
    for _ in range(2):
        fig, ax = plt.subplots(figsize=(1, 1))
        ax.plot([0, 1])
        plots.show(fig, alt=ALT)
    (first, _), (second, _) = displayed
    assert first == second


@pytest.mark.parametrize(("alt", "count"), [("", 0), ("  \n", 0), ("word " * 40, 40)])
def test_show_rejects_a_description_of_no_or_too_many_words(displayed, alt, count):
    fig, _ = plt.subplots()
    with pytest.raises(ValueError, match=f"alt has {count} words: describe the figure in 1 to 39 words"):
        plots.show(fig, alt=alt)
    assert displayed == []


def test_show_accepts_39_words(displayed):
    plots.show(plt.figure(figsize=(1, 1)), alt="word " * 39)
    assert len(displayed) == 1


@pytest.mark.parametrize("thing", [RMSNorm, causal_visible])
def test_show_source_shows_the_source_of_today(displayed, thing):
    plots.show_source(thing)
    ((shown, _),) = displayed
    assert shown.data == f"```python\n{inspect.getsource(thing).rstrip()}\n```"


# ------------------------------------------------------------------------------------------------- style


def test_style_is_the_same_whatever_was_set_before():
    before = dict(plt.rcParams)
    plt.rcParams["axes.titlesize"] = 3
    plt.rcParams["lines.linestyle"] = ":"
    plots.use_course_style()
    assert dict(plt.rcParams) == before


def test_tensors_print_three_decimals():
    assert re.findall(r"[\d.]+", str(torch.tensor([0.12345, 1000.0]))) == ["0.123", "1000.000"]


def test_spines_of_top_and_right_are_off_and_the_background_is_white():
    fig, ax = plt.subplots()
    assert not ax.spines["top"].get_visible()
    assert not ax.spines["right"].get_visible()
    assert fig.get_facecolor() == (1, 1, 1, 1)
    assert fig.get_layout_engine() is not None
