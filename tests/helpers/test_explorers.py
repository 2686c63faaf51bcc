"""Explorers: every control moves the picture, the numbers are the model's, faults are said, nothing leaks."""

import base64
import html
import io
import math
import re

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch.nn import functional as F

from helpers import explorers, plots
from helpers.checkpoint import interleaved_to_halves
from helpers.explorers import Explorer, choice, slider
from helpers.model import PRESETS, KVCache, RMSNorm, count_parameters, rope_inv_freq

EXPLORE = {name: make for name, make in vars(explorers).items() if name.startswith("explore_")}
CASES = [(name, control) for name, make in EXPLORE.items() for control in make().controls]


@pytest.fixture(autouse=True)
def style():
    """The notebook's setup cell; afterwards matplotlib and torch print as before."""
    with matplotlib.rc_context():
        plots.use_course_style()
        yield
    torch.set_printoptions(profile="default")


def move(control):
    """Give a control another value, as one key press or choice would."""
    if hasattr(control, "options"):
        control.value = control.options[-1]
    elif hasattr(control, "base"):
        control.value = control.value * control.base**control.step
    else:
        control.value = control.value + control.step


def pixels(explorer):
    return imread(io.BytesIO(base64.b64decode(explorer.png)))


def broken_explorer(message="the message"):
    """One slider whose drawing works at 0 and raises at 1."""
    figure = Figure(figsize=(2, 1), layout="constrained")
    (line,) = figure.subplots().plot([], [])

    def draw(level):
        line.set_data([0, 1], [0, level])
        if level == 1:
            raise RuntimeError(message)
        return f"The level is {level}."

    return Explorer(figure, draw, {"level": slider("level", 0, 0, 5)}, 'a <line> & its "level"')


@pytest.mark.parametrize("name", EXPLORE)
def test_default_state_is_drawn_and_described(name):
    explorer = EXPLORE[name]()
    picture = pixels(explorer)
    assert picture.shape[:2] == (396, 880)
    assert (picture[..., :3].min(axis=-1) < 0.5).mean() > 0.01
    assert len(explorer.alt.split()) < 40
    assert f'alt="{explorer.alt}"' in explorer.picture.value
    assert html.escape(explorer.finding) in explorer.picture.value


@pytest.mark.parametrize(("name", "control"), CASES)
def test_every_control_changes_the_picture_and_the_caption(name, control):
    explorer = EXPLORE[name]()
    if explorer.controls[control].disabled:
        move(next(other for other in explorer.controls.values() if hasattr(other, "options")))
    assert not explorer.controls[control].disabled
    picture, page = explorer.png, explorer.picture.value
    move(explorer.controls[control])
    assert explorer.png != picture
    assert re.sub("base64,[^>]*", "", explorer.picture.value) != re.sub("base64,[^>]*", "", page)
    assert 'role="alert"' not in explorer.picture.value


@pytest.mark.parametrize("name", EXPLORE)
def test_all_controls_at_either_end_still_draw(name):
    explorer = EXPLORE[name]()
    ends = []
    for control in explorer.controls.values():
        if hasattr(control, "options"):
            ends.append((control.options[0], control.options[-1]))
        else:
            power = (lambda x, b=control.base: b**x) if hasattr(control, "base") else lambda x: x
            ends.append((power(control.min), power(control.max)))
    for side in (0, 1):
        for control, values in zip(explorer.controls.values(), ends, strict=True):
            control.value = values[side]
            assert 'role="alert"' not in explorer.picture.value


@pytest.mark.parametrize("name", EXPLORE)
def test_going_back_restores_the_picture_exactly(name):
    explorer = EXPLORE[name]()
    picture, values = explorer.png, explorer.values
    for control in explorer.controls.values():
        move(control)
    assert explorer.png != picture
    for key, value in values.items():
        explorer.controls[key].value = value
    assert explorer.png == picture


@pytest.mark.parametrize("name", EXPLORE)
def test_quick_redraw_equals_drawing_the_whole_figure(name):
    explorer = EXPLORE[name]()
    for control in explorer.controls.values():
        move(control)
    whole = io.BytesIO()
    explorer.figure.savefig(whole, format="png", dpi="figure")
    whole.seek(0)
    different = abs(imread(whole)[..., :3] - pixels(explorer)[..., :3]).max(axis=-1) > 0.5
    assert different.mean() < 0.002  # lines may pass over the ticks of the axes instead of under them


@pytest.mark.parametrize("name", EXPLORE)
def test_notebook_output_holds_widget_picture_and_words(name):
    explorer = EXPLORE[name]()
    data, metadata = explorer._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.box.model_id
    assert data["text/plain"] == f"{explorer.alt} {explorer.finding} {explorer.settings}"
    assert metadata["image/png"]["alt"] == explorer.alt
    for control in explorer.controls.values():
        assert control.description.split(" [")[0] in data["text/plain"]
    again = EXPLORE[name]()._repr_mimebundle_()[0]
    assert again["text/plain"] == data["text/plain"]
    assert again["image/png"] == data["image/png"]


def test_error_in_the_drawing_is_said_in_the_widget_and_goes_away():
    explorer = broken_explorer("1 < 2 is <b>")
    picture = explorer.png
    explorer.controls["level"].value = 1
    page = explorer.picture.value
    assert 'role="alert"' in page
    assert "could not be drawn: RuntimeError: 1 &lt; 2 is &lt;b&gt; (test_explorers.py, line " in page
    assert explorer.png == picture
    assert "The level is 0." in page
    explorer.controls["level"].value = 2
    assert 'role="alert"' not in explorer.picture.value
    assert "The level is 2." in explorer.picture.value
    assert explorer.png != picture


def test_error_in_the_first_drawing_is_raised():
    with pytest.raises(ZeroDivisionError):
        Explorer(Figure(), lambda level: 1 / level, {"level": slider("level", 0, 0, 5)}, "nothing")


def test_alt_text_is_escaped():
    assert 'alt="a &lt;line&gt; &amp; its &quot;level&quot;"' in broken_explorer().picture.value


def test_artist_that_first_moves_later_is_drawn():
    figure = Figure(figsize=(2, 1), layout="constrained")
    first, second = (figure.subplots(1, 2)[i].plot([0, 1], [0, 1])[0] for i in range(2))

    def draw(level):
        first.set_ydata([0, level / 5])
        if level > 2:
            second.set_ydata([1, 0])
        return ""

    explorer = Explorer(figure, draw, {"level": slider("level", 1, 0, 5)}, "two lines")
    right = pixels(explorer)[:, 110:]
    explorer.controls["level"].value = 2
    assert (pixels(explorer)[:, 110:] == right).all()
    explorer.controls["level"].value = 3
    assert (pixels(explorer)[:, 110:] != right).any()


@pytest.mark.parametrize("name", EXPLORE)
def test_redraws_make_no_figure_and_leave_pyplot_alone(name, monkeypatch):
    before = dict(matplotlib.rcParams)
    explorer = EXPLORE[name]()
    artists = len(explorer.figure.findobj())

    def refuse(*_, **__):
        raise AssertionError("a redraw made a new figure")

    monkeypatch.setattr(Figure, "__init__", refuse)
    for control in explorer.controls.values():
        move(control)
    assert 'role="alert"' not in explorer.picture.value
    assert len(explorer.figure.findobj()) == artists
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_closing_frees_the_widgets_and_the_figure():
    explorer = broken_explorer()
    explorer.close()
    assert explorer.box.comm is None
    assert explorer.figure.axes == []
    explorer.controls["level"].value = 2  # no callback is left that could draw


def test_slider_says_its_unit_and_answers_while_it_moves():
    position, eps = slider("position", 20, 0, 512, unit="token"), slider("eps", 1e-5, -8, 0, 0.5, log=True)
    assert position.description == "position [token]"
    assert position.continuous_update
    assert position.step == 1
    assert eps.value == 1e-5
    assert choice("layout", ("halves", "interleaved")).value == "halves"


def test_rms_norm_explorer_tells_the_angle_and_length_of_the_model():
    explorer = explorers.explore_rms_norm()
    explorer.controls["offset"].value = 1.0
    assert "RMSNorm turns it by 0.0° and gives length 1.41" in explorer.finding
    assert "LayerNorm turns it by 45.0° and gives length 1.41" in explorer.finding
    explorer.controls["eps"].value = 1.0
    length = RMSNorm(2, 1.0)(torch.tensor([2.0, 0.0])).norm().item()
    assert f"RMSNorm turns it by 0.0° and gives length {length:.3g}" in explorer.finding


@pytest.mark.parametrize("name", ["SiLU", "GELU", "ReLU", "sigmoid", "none"])
def test_swiglu_explorer_tells_the_hidden_value_and_its_slope(name):
    activation = {"SiLU": F.silu, "GELU": F.gelu, "ReLU": F.relu, "sigmoid": torch.sigmoid, "none": torch.clone}[name]
    explorer = explorers.explore_swiglu()
    explorer.controls["activation"].value = name
    explorer.controls["u"].value = -2.0
    gate = torch.tensor(-1.0, requires_grad=True)
    value = activation(gate) * -2.0
    (slope,) = torch.autograd.grad(value, gate)
    finding = explorer.finding.replace("−", "-")
    assert f"times u = -2.0 that is {value.item():z.3f}." in finding
    assert f"Its slope in g is {slope.item():z.2f}." in finding


@pytest.mark.parametrize("scaling", ["none", "linear", "ntk", "llama3"])
def test_rope_explorer_tells_the_angle_of_the_model(scaling):
    explorer = explorers.explore_rope()
    explorer.controls["scaling"].value = scaling
    explorer.controls["pair"].value = 7
    assert explorer.controls["factor"].disabled == (scaling == "none")
    speed = rope_inv_freq(16, 10_000.0, None if scaling == "none" else {"type": scaling, "factor": 8})[7].item()
    assert f"3 token × {speed:.3g} rad/token = {3 * speed:.3g} rad" in explorer.finding
    assert f"turns once in {2 * math.pi / speed:,.0f} tokens" in explorer.finding


def test_rope_explorer_never_puts_the_key_before_the_first_token():
    explorer = explorers.explore_rope()
    explorer.controls["position"].value = 2
    assert "Query at 2, key at 0: pair 2 differs by 2 token" in explorer.finding


def test_rope_layout_explorer_moves_rows_as_the_checkpoint_reader_does():
    rows = torch.arange(32.0)[:, None]
    meta_rows = interleaved_to_halves(rows, 16).flatten().int().tolist()  # at place i: the row of Meta's file
    explorer = explorers.explore_rope_layout()
    for pair in range(8):
        explorer.controls["pair"].value = pair
        assert f"coordinates {pair} and {pair + 8}, made by rows {16 + pair} and {24 + pair}" in explorer.finding
        assert f"these rows are {meta_rows[16 + pair]} and {meta_rows[24 + pair]}." in explorer.finding
    explorer.controls["layout"].value = "interleaved"
    assert "coordinates 14 and 15" in explorer.finding


def test_sampling_explorer_draws_the_probabilities_that_generate_draws_from():
    explorer = explorers.explore_sampling()
    explorer.controls["top_p"].value = 1.0
    assert "1024 of 1,024 tokens can be drawn" in explorer.finding
    explorer.controls["top_k"].value = 5
    assert "5 of 1,024 tokens can be drawn" in explorer.finding
    explorer.controls["temperature"].value = 0.0
    assert "probability 1.00" in explorer.finding
    assert "1 of 1,024 tokens can be drawn; the draw is as open as one among 1.0 " in explorer.finding


def test_memory_explorer_counts_what_a_cache_takes():
    explorer = explorers.explore_memory()
    for control, value in {"model": "llama-3-8b", "sequences": 3, "context": 2}.items():
        explorer.controls[control].value = value
    model = PRESETS["llama-3-8b"]
    with torch.device("meta"):
        cache = KVCache(model, 3, 2048, torch.bfloat16, "meta")
        weights = 2 * count_parameters(model)
    held = cache.k.nbytes + cache.v.nbytes
    assert f"each holds {weights / 8e9:.1f} GB of weights and {held / 8e9:.1f} GB of keys" in explorer.finding
    assert "fits on one of 80 GB" in explorer.figure.axes[0].get_title(loc="left")
    *_, both = explorer.figure.axes[0].lines[:3]
    last = weights / 32e9 + held / 8e9  # 8 key/value heads: on 32 devices each is copied 4 times
    assert both.get_ydata()[-1] == pytest.approx(last)
