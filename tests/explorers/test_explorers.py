"""Explorers: every control moves the picture, the numbers are the model's, faults are said, nothing leaks."""

import base64
import html
import io
import json
import re
import shutil
from functools import cache
from unittest import mock

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from jupyter_client.manager import start_new_kernel
from matplotlib.figure import Figure
from matplotlib.image import imread
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

import explorers
from checks.full_model import BUGS, with_bug
from explorers import Explorer, base, circuit, film, slider, switch, toggle, within
from explorers.full_model import SIZES, run
from explorers.gqa import WAYS
from explorers.start import HALVES
from helpers.checkpoint import load_checkpoint
from helpers.interventions import attention_by_layer, replaced, without_heads
from helpers.model import PRESETS, Llama, count_parameters
from helpers.text import TINY_LLAMA, encode, load_tokenizer
from tests.support.course import ROOT

VIEW = "application/vnd.jupyter.widget-view+json"
EXPLORE = {name: getattr(explorers, name) for name in explorers.FILE_OF if name.startswith("explore_")}

pytestmark = pytest.mark.usefixtures("course_style")


@cache
def made(name):
    """An explorer, made once, the values that its controls start with, and its picture while it is fresh."""
    given = {"explore_training": {"steps": 2, "every": 2}, "explore_masks": {"leaks": True}}
    explorer = EXPLORE[name](**given.get(name, {}))
    if name == "explore_training":
        explorer.learn()
        put_back(explorer, {"step": 0})
    return explorer, explorer.values, explorer.png


@pytest.fixture(params=EXPLORE)
def explorer(request):
    return as_at_first(request.param)


def as_at_first(name):
    explorer, values, picture = made(name)
    if (explorer.values, explorer.png) != (values, picture):
        put_back(explorer, values)
    is_fresh = explorer.png == picture
    assert is_fresh, "it is not as when it was made: what resets what a control has moved?"
    return explorer


def put_back(explorer, values):
    """Give controls these values, and draw once."""
    set_without_a_picture(explorer, values)
    explorer.redraw()


def set_without_a_picture(explorer, values):
    with mock.patch.object(explorer, "_take_picture"):
        for name, value in values.items():
            explorer.controls[name].value = value


def move(control):
    """Give a control another value, as one key press or choice would."""
    if hasattr(control, "options"):
        if isinstance(control.index, tuple):
            control.index = () if control.index else (0,)
        else:
            control.index = (control.index or len(control.options)) - 1
    elif hasattr(control, "base"):
        control.value = control.value * control.base**control.step
    elif isinstance(control.value, bool):
        control.value = not control.value
    else:
        control.value = control.value + control.step


def choices(control):
    """What a walk gives a control: of a slider both ends and its present value, of others all there is."""
    if hasattr(control, "options"):
        values = [value for _, value in control.options]
        return [(), *zip(values), (values[0], values[-1])] if isinstance(control.value, tuple) else values
    if isinstance(control.value, bool):
        return [False, True]
    low, high = [control.base**end if hasattr(control, "base") else end for end in (control.min, control.max)]
    return [low, control.value, high]


def pixels(png):
    return imread(io.BytesIO(base64.b64decode(png)))[..., :3]


def caption(explorer):
    return re.sub("base64,[^>]*", "", explorer.picture.value)


def assert_answers(explorer, control):
    """One move of the control changes the picture and the caption, and nothing goes wrong."""
    picture, words = explorer.png, caption(explorer)
    move(control)
    assert explorer.png != picture, control.description
    assert caption(explorer) != words, control.description
    assert 'role="alert"' not in explorer.picture.value


def outputs_of(explorer):
    """What a cell that shows the explorer stores."""
    return [new_output("display_data", data, metadata=metadata) for data, metadata in explorer._outputs()]


def test_default_state_is_drawn_and_described_with_and_without_a_kernel(explorer):
    for words in (f'alt="{html.escape(explorer.alt)}"', html.escape(explorer.finding), html.escape(explorer.settings)):
        assert words in explorer.picture.value
    picture, view, words = outputs_of(explorer)
    inner = slice(8, -8), slice(8, -8)  # within the round corners
    assert np.array_equal(pixels(picture.data["image/png"])[inner], pixels(explorer.png)[inner])
    assert picture.data["text/plain"] == f"{explorer.alt} {explorer.finding} {explorer.settings}"
    assert picture.metadata["image/png"]["alt"] == explorer.alt
    assert view.data == {VIEW: {"version_major": 2, "version_minor": 0, "model_id": explorer.box.model_id}}
    assert html.escape(explorer.finding) in words.data["text/html"]
    assert html.escape(explorer.settings) in words.data["text/html"]
    for control in explorer.controls.values():
        assert (control.says.partition("{}")[0] or re.split(r" [\[(]", control.description)[0]) in explorer.settings


@pytest.mark.filterwarnings("ignore:Your element with mimetype:UserWarning")  # the controls, without their state
@pytest.mark.parametrize("with_state", [False, True])
def test_a_saved_notebook_as_html_shows_the_picture_and_its_words(with_state):
    explorer = as_at_first("explore_swiglu")
    notebook = new_notebook(cells=[new_code_cell("show()", outputs=(outputs := outputs_of(explorer)))])
    if with_state:
        notebook.metadata["widgets"] = {VIEW.replace("view", "state"): ipywidgets.Widget.get_manager_state()}
    page, _ = HTMLExporter().from_notebook_node(notebook)
    page = page[page.index("jp-OutputArea-child") :]
    assert f'src="data:image/png;base64,{outputs[0].data["image/png"]}"' in page.replace("\n", "")
    assert html.escape(explorer.finding) in page.partition("course-still")[2]
    assert (explorer.box.model_id in page) == with_state


def test_06s_film_trains_as_without_a_picture():
    explorer, reported = explorers.explore_training(steps=4, every=2, common=0.16), []
    explorer.learn(report=lambda *at: reported.append(at))
    assert reported == [(at, loss) for at, (loss, _) in explorer.stages.items()]
    for step, model in circuit.learn_to_repeat(4, 2, 0, "cpu", 0.16):
        weights = explorer.stages[step][1]
        assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())


def test_a_film_that_is_stopped_says_no_time_that_is_left_and_keeps_its_last_picture(monkeypatch):
    explorer, kept = explorers.explore_training(steps=3, every=1), []
    monkeypatch.setattr(film.time, "perf_counter", iter(range(0, 10**6, 100)).__next__)  # each look at it: 100 s later
    monkeypatch.setattr(explorer, "keep", lambda: kept.append(explorer.png))

    def stop(step, loss):
        if step == 1:
            assert "s left" in explorer.page.get_title("left")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explorer.learn(report=stop)
    assert explorer.page.get_title("left").endswith("for the right letter in the copy")
    assert kept == [explorer.png]


def test_a_choice_in_07s_explorer_does_not_write_its_text_anew(monkeypatch):
    """Its 26 calls of the model took over 100 ms: all settings' texts are written before the first picture."""
    explorer, calls, forward = as_at_first("explore_writing"), [], Llama.forward
    monkeypatch.setattr(Llama, "forward", lambda *given, **named: calls.append(1) or forward(*given, **named))
    put_back(explorer, {"temperature": 2.0})
    assert 'role="alert"' not in explorer.picture.value
    assert len(calls) <= 2


def test_the_words_of_a_text_run_down_the_picture():
    explorer = as_at_first("explore_losses")
    page, height = explorer.figure.axes[0], explorer.figure.bbox.height
    heights = [page.transData.transform(word.get_position())[1] for word in page.texts]
    assert sorted((height, *heights, 0), reverse=True) == [height, *heights, 0]


def test_the_cuts_and_faults_of_05s_x_ray_are_those_of_the_course():
    model, text = load_checkpoint(TINY_LLAMA).requires_grad_(False), "The name of a local variable"
    rows = encode(load_tokenizer(), text).repeat(2, 1)
    torch.testing.assert_close(attention_by_layer(model, rows), torch.stack(run(model, rows)[1]))
    with without_heads(model, [(1, 0), (4, 3)]), replaced(model.layers[2].feed_forward, lambda _, x: 0 * x):
        wanted = [({"cut": ("head 0 of block 1", "head 3 of block 4", "feed-forward of block 2")}, model(rows))]
    wanted += [({"fault": letter}, with_bug(model, bug)(rows)) for letter, bug in zip("ABCD", BUGS[3:7], strict=True)]
    for change, logits in wanted:
        torch.testing.assert_close(model.lm_head(model.final_norm(run(model, rows, **change)[0][-1])), logits)


def test_05s_x_ray_takes_a_folder_and_a_text_and_shows_the_blocks_and_heads_that_are_asked_for(tmp_path):
    folder = shutil.copytree(TINY_LLAMA, tmp_path / "own")
    explorer = explorers.explore_xray(folder, "one two", blocks=(1, 4), heads=(3,))
    assert explorer.values["clicked"] == ()
    assert len(explorer.buttons) == 4
    explorer.controls["clicked"].value = ("head 3 of block 4",)
    assert "It changes from attention of block 4 and token 0 on" in explorer.finding
    for control in explorer.controls.values():
        assert_answers(explorer, control)


def test_05s_plain_x_ray_has_parts_to_ablate_and_nothing_else():
    explorer = explorers.explore_xray(plain=True)
    assert [*explorer.controls] == ["clicked"]
    assert "It changes from feed-forward of block 2 and token 0 on" in explorer.finding
    assert_answers(explorer, explorer.controls["clicked"])


def test_05s_bars_count_the_parameters_of_the_presets():
    for config in PRESETS.values():
        assert sum(count(config) for count in SIZES.values()) == count_parameters(config)


def test_the_ways_to_hide_keys_that_the_explorer_of_04_calls_torchs_are_torchs():
    q, k = torch.randn(2, 1, 1, 12, 8, generator=torch.Generator().manual_seed(0))
    scores, v, at = q @ k.mT / 8**0.5, torch.eye(12)[None, None], torch.arange(12)
    attend, seen = torch.nn.functional.scaled_dot_product_attention, at <= at[:, None]
    for cached in (1, 7):
        weights = WAYS["is_causal=True with a cache"](scores, seen, cached)[:, :, cached:]
        torch.testing.assert_close(weights, attend(q[:, :, cached:], k, v, is_causal=True))
    for way, visible in {"scores → −∞, empty rows 0 (SDPA)": seen & (at > 1), "inverted: True = hidden": seen}.items():
        mask = ~visible if "inverted" in way else visible
        torch.testing.assert_close(WAYS[way](scores, visible, 0), attend(q, k, v, mask))
    added = WAYS["1 and 0, added to the scores"](scores, seen, 0)
    torch.testing.assert_close(added, attend(q, k, v, seen.float()))


def test_the_mask_of_04_tells_the_weights_of_the_last_query_or_of_the_first_behind_a_cache():
    alone = explorers.explore_masks()
    assert [*alone.controls] == ["window"]
    assert_answers(alone, alone.controls["window"])
    alone.controls["window"].value = 3
    assert alone.finding == "Query 11 sees 3 of 12 keys, with weights 48, 23, 29 %."
    behind = explorers.explore_masks(cached=7, way="is_causal=True with a cache")
    assert behind.finding == "Query 7 sees 1 of 12 keys, with weights 100 %."


def test_a_rule_that_is_chosen_on_the_mask_of_04_is_seen_to_be():
    explorer = as_at_first("explore_masks")
    height = pixels(explorer.png).shape[0] // 10  # where the rules' names are
    before = pixels(explorer.png)[:height]
    put_back(explorer, {"clicked": ("packing",)})
    assert (pixels(explorer.png)[:height] != before).any()


def test_a_sliders_number_shows_what_a_step_changes():
    given = (20, 1, 30), (2, 1, 3, 0.1), (20, 1, 3, 0.1, "", True), (1e-5, -6, 0, 0.1, "", True)
    assert [slider("", *numbers).readout_format for numbers in given] == ["d", ".1f", ",.0f", ".1e"]


def of_all_kinds(several=False):
    """An explorer with each kind of control, and what it drew last."""
    figure, drawn = Figure(figsize=(4, 2), layout="constrained"), {}
    left, right = figure.subplots(1, 2)
    left.set(xlim=(0, 10), ylim=(2, 0))  # as a mask is drawn: downwards
    bars = left.barh([0, 1], [0, 0])

    def draw(**values):
        drawn.update(values)
        for bar, control in zip(bars, ("at", "far"), strict=True):
            bar.set_width(np.sum(values[control]))
        left.set_title(" ".join(map(str, values.values())), fontsize=5)
        return "drawn"

    controls = {
        "at": slider("position of the query", 3, 0, 10, unit="token", says="query at {}"),
        "far": slider("distance [token]", 1, 0, 10),
        "eps": slider("eps", 1e-5, -8, 0, 0.5, log=True),
        "rule": switch("rule", [("causal", 0), ("a window of four tokens behind the query", 4)]),
        "block": switch("block", [1, 2, 3]),
        "mask": toggle("causal mask"),
    }
    parts = {"left half": (0, 0, 0.5, 1), "bar 1": within(left, 0, 0.5, 10, 1.5)}
    parts |= {("at", 7): within(right, 0, 0, 1, 1), ("rule", 4): (0, 0, 1, 0.1)}
    return Explorer(figure, draw, controls, "Two bars.", parts, several), drawn


def test_labels_are_whole_no_tooltip_is_null_and_the_caption_says_settings_as_a_person_does():
    explorer, drawn = of_all_kinds()
    for control in explorer.controls.values():
        assert control.tooltip == control.description
        if isinstance(control, ipywidgets.IntSlider):
            assert control.style.description_width == "27ch"  # 1 + 0.9 × 29 letters of "position of the query [token]"
    said = "query at 3, distance 1 token, eps 1e-5, rule causal, block 1, causal mask: no"
    assert explorer.settings == f"Settings: {said}, clicked nothing."
    assert drawn == explorer.values == {
        "at": 3, "far": 1, "eps": 1e-5, "rule": 0, "block": 1, "mask": False, "clicked": ""
    }  # fmt: skip
    put_back(explorer, {"far": 2, "rule": 4, "mask": True, "block": 3, "clicked": "bar 1"})
    said = "distance 2 tokens, eps 1e-5, rule a window of four tokens behind the query, block 3, "
    assert f"{said}causal mask: yes, clicked bar 1." in explorer.settings


def test_a_click_on_a_part_is_drawn_like_a_controls_move():
    explorer, drawn = of_all_kinds()
    left, bar, query, rule = explorer.buttons
    tooltips = ["left half", "bar 1", "query at 7", "rule a window of four tokens behind the query"]
    assert [button.tooltip for button in explorer.buttons] == tooltips
    assert left.layout.width == "50.000%"
    assert (left.layout.margin, left.layout.padding) == ("0.000% 0 0 0.000%", "0 0 50.000%")  # of a width of 4, not 2
    assert (rule.layout.margin, rule.layout.padding) == ("45.000% 0 0 0.000%", "0 0 5.000%")
    picture = explorer.png
    for button, clicked in ((left, "left half"), (bar, "bar 1"), (bar, "")):
        button.click()
        assert drawn["clicked"] == explorer.values["clicked"] == clicked
    assert explorer.png == picture
    query.click()
    rule.click()
    assert (drawn["at"], drawn["rule"], drawn["clicked"]) == (7, 4, "")
    assert explorer.png != picture
    widgets = [explorer.picture, *explorer.buttons, *explorer.box.children]
    explorer.close()
    assert explorer.picture.value == ""
    assert not any(part.comm for widget in widgets for part in (widget, widget.layout))


def test_a_click_on_a_word_of_00_follows_this_word():
    explorer = as_at_first("explore_start")
    explorer.buttons[3].click()
    assert explorer.values["token"] == 3
    assert "“called” may read 4 of 10 words" in explorer.finding


def test_the_control_of_00_turns_each_vector_by_the_blocks_angle_and_makes_it_as_long():
    model = load_checkpoint(TINY_LLAMA).requires_grad_(False)
    block, (cos, sin, _), x = model.layers[4], model.rotation_and_mask(9), model.tok_embeddings(torch.arange(9)[None])
    whole, made = block(x, cos, sin), {name: half(block, x, cos, sin) for name, half in HALVES.items()}
    asked = {"only its turn": (whole, x), "only its length": (x, whole), "a random turn": (whole, whole)}
    asked["its turn, one factor"] = (whole, x * whole.norm(dim=-1).mean() / x.norm(dim=-1).mean())
    for name, (turned, long) in asked.items():
        torch.testing.assert_close(made[name].norm(dim=-1), long.norm(dim=-1))
        angles = [torch.cosine_similarity(x, one, dim=-1) for one in (made[name], turned)]
        torch.testing.assert_close(*angles, atol=1e-5, rtol=0)
    assert min(torch.cosine_similarity(made[name], whole, dim=-1).min() for name in made if "its turn" in name) > 0.9999
    assert torch.cosine_similarity(made["a random turn"], whole, dim=-1).max() < 0.99


def test_what_can_be_clicked_is_large_enough_where_the_page_is_narrow(explorer):
    for button in explorer.buttons:
        sides = [float(side.rstrip("%")) for side in (button.layout.width, button.layout.padding.split()[-1])]
        assert min(sides) / 100 * min(base.LEAST, explorer.figure.bbox.width) >= 24, button.description


def test_several_parts_stay_clicked_until_they_are_clicked_again():
    explorer, drawn = of_all_kinds(several=True)
    left, bar, *_ = explorer.buttons
    for button, clicked in ((bar, ("bar 1",)), (left, ("left half", "bar 1")), (bar, ("left half",))):
        button.click()
        assert drawn["clicked"] == clicked
    assert explorer.settings.endswith("clicked left half.")
    for control in explorer.controls.values():
        assert_answers(explorer, control)


def test_every_control_changes_the_picture_and_the_caption_and_back_again_all_is_as_before(explorer):
    picture, values, artists, whole = explorer.png, explorer.values, set(explorer.figure.findobj()), io.BytesIO()
    for control in explorer.controls.values():
        assert not isinstance(control, ipywidgets.Dropdown)  # arrows leave it
        assert_answers(explorer, control)
        put_back(explorer, values)
        assert explorer.png == picture, control.description
    assert set(explorer.figure.findobj()) == artists
    assert plt.get_fignums() == []
    explorer.figure.savefig(whole, format="png", dpi="figure")
    different = abs(imread(io.BytesIO(whole.getvalue()))[..., :3] - pixels(explorer.png)).max(axis=-1) > 0.5
    assert different.mean() < 0.002  # lines may pass over the ticks of the axes instead of under them
    put_back(explorer, values)
    assert explorer.png == picture  # savefig, too, left nothing behind


@pytest.mark.slow
def test_a_walk_through_all_choices_and_back_meets_the_same_pictures(explorer):
    """Each setting is then reached from two others, and the first in the end: what is not reset is seen."""
    settings, given = [explorer.values], {name: choices(control) for name, control in explorer.controls.items()}
    for name, values in given.items():  # its last value stays
        settings += [settings[-1] | {name: value} for value in values]
    for turns in ((0, 0), (0, -1), (-1, -1), (-1, 0)):  # ends, of every other control, and of those between
        settings.append({name: values[turns[at % 2]] for at, (name, values) in enumerate(given.items())})
    seen = [explorer.png]
    for values in settings[1:]:
        put_back(explorer, values)
        assert 'role="alert"' not in explorer.picture.value
        assert not re.search(r"\b(nan|inf)\b", caption(explorer).replace("their softmax is nan", ""))
        seen.append(explorer.png)
    for values, picture in zip(settings[::-1], seen[::-1], strict=True):
        put_back(explorer, values)
        as_before = explorer.png == picture
        assert as_before, values


@pytest.mark.parametrize("written", ["same", "never"])
def test_words_that_are_written_again_and_again_stand_above_what_moves(written):
    figure, ax = base.new_figure(1)
    (line,), words = ax.plot([0, 1], [0, 1], lw=30, zorder=1), ax.text(0.5, 0.5, "same", zorder=2)

    def draw(level):
        line.set_ydata([0, level])
        if written == "same":
            words.set_text("same")
        return "A line."

    explorer = Explorer(figure, draw, {"level": slider("level", 1, 0, 5)}, "A line.")
    assert words.get_text() == "same"
    assert (words in explorer._moving) == (written == "same")


def test_what_begins_to_move_later_leaves_the_background_and_is_drawn_where_it_went():
    def at(start):
        figure, ax = base.new_figure(1)
        dot = ax.plot([0], [0], "o")[0]
        ax.set(xlim=(-1, 9), ylim=(-1, 9))

        def draw(place):
            if place:  # at 0 it is left alone
                dot.set_data([place], [place])
            return f"The dot is at {place}."

        return Explorer(figure, draw, {"place": slider("place", start, 0, 8)}, "A dot.")

    moved, fresh = at(0), at(5)
    moved.controls["place"].value = 5
    is_fresh = moved.png == fresh.png  # no diff of two pictures
    assert is_fresh


def test_an_error_is_raised_at_first_and_later_said_in_the_widget_until_it_goes_away():
    figure = Figure(figsize=(2, 1), layout="constrained")
    (line,) = figure.subplots().plot([], [])

    def draw(level):
        line.set_data([0, 1], [0, level])
        if level == 1:
            raise RuntimeError("1 < 2 is <b>")
        return f"The level is {level}."

    with pytest.raises(ZeroDivisionError):
        Explorer(Figure(), lambda level: 1 / level, {"level": slider("level", 0, 0, 5)}, "nothing")
    explorer = Explorer(figure, draw, {"level": slider("level", 0, 0, 5)}, 'a <line> & its "level"')
    assert 'alt="a &lt;line&gt; &amp; its &quot;level&quot;"' in explorer.picture.value
    picture = explorer.png
    explorer.controls["level"].value = 1
    page = explorer.picture.value
    assert "RuntimeError: 1 &lt; 2 is &lt;b&gt; (test_explorers.py, line " in page.partition('role="alert"')[2]
    assert "The level is 0." in page
    assert explorer.png == picture
    explorer.controls["level"].value = 2
    assert 'role="alert"' not in explorer.picture.value
    assert "The level is 2." in explorer.picture.value
    assert explorer.png != picture


SHOW = """
import gc, weakref
from explorers import explore_rms_norm

made, figures = [], []

def show():
    made.append(explore_rms_norm())
    figures.append(weakref.ref(made[-1].figure))
    return made[-1]
"""
ALIVE = "(gc.collect(), [n for n, of in enumerate(made) if figures[n]() or of.box.comm or of.box.layout.comm])[1]"


@pytest.mark.slow
def test_a_cell_run_again_closes_its_former_explorer_and_no_other():
    """Of 4.3 MB a run, 0.1 stay. Two cells, or two lines of one, may show the same explorer beside each other."""
    manager, kernel = start_new_kernel()

    def run(code, **metadata):
        content = {"code": code, "silent": False, "user_expressions": {"alive": ALIVE}, "allow_stdin": False}
        sent = kernel.session.msg("execute_request", content, metadata=metadata)
        kernel.shell_channel.send(sent)
        while (reply := kernel.get_shell_msg(timeout=120))["parent_header"]["msg_id"] != sent["header"]["msg_id"]:
            pass
        return json.loads(reply["content"]["user_expressions"]["alive"]["data"]["text/plain"])

    try:
        assert run(SHOW) == []
        assert [run("show()", cellId="A") for _ in range(3)] == [[0], [1], [2]]
        assert run("show()", cellId="B") == [2, 3]
        assert [run("show(), show()", cellId="C") for _ in range(2)] == [[2, 3, 4, 5], [2, 3, 6, 7]]
        assert [run("show()") for _ in range(2)] == [[2, 3, 6, 7, 8], [2, 3, 6, 7, 9]]  # no id: by its code
        assert run("made[3].close(); show()", cellId="B") == [2, 6, 7, 9, 10]
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


def test_the_explorer_of_contributing_answers_to_its_controls():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"^#+ An explorer of your own\n.*?^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found, "CONTRIBUTING.md needs a heading 'An explorer of your own' with a python block: put it back"
    names = {}
    exec(found[1], names)
    (explorer,) = (make() for name, make in names.items() if name.startswith("explore_"))
    for control in explorer.controls.values():
        assert_answers(explorer, control)


FOUND = [  # explorer, its controls, words of what it tells; what it tells at first is in its notebook
    ("rms_norm", {"direction": 0}, "RMSNorm turns it by 0.0° and gives length 1.41; LayerNorm turns it by 45.0°"),
    ("rms_norm", {"direction": 45, "gain": 0.5}, "RMSNorm turns it by 18.4° and gives length 1.12"),  # 45° - atan(1/2)
    ("rms_norm", {"direction": 45}, "LayerNorm leaves nothing of it"),  # it is all mean
    ("dose", {"place": 1, "factor": 1 / 8}, "rises by +4.11, with its branch removed by +4.19. At this length 0 of"),
    ("dose", {"place": 0, "factor": 2.0}, "rises by +2.83, with its branch removed by +0.02. At this length 10 of"),
    ("shut", {"left": 0.5, "right": 0.5}, "low gates +0.16, middle gates +0.01, high gates +0.21."),
    ("shut", {"left": 1.0}, "low gates +1.42, middle gates +0.24, high gates"),
    ("swiglu", {"g": -1.0, "u": -2.0}, "times u = −2.0 that is 0.538. Its slope in g is −0.14."),
    ("swiglu", {"g": -1.0, "u": -2.0, "activation": "GELU"}, "that is 0.317. Its slope in g is 0.17."),
    ("rope", {"pair": 7, "base": 10**5.7}, "by 3 × 1.03e-05 = 3.09e-05 rad (0.0°). It turns once in 610,4"),
    ("rope", {"pair": 7, "position": 2}, "Query at 2, key at 0: pair 7 differs by 2 ×"),
    ("reach", {"clicked": ("pair 5", "pair 6")}, "(7 to 15). Extra loss after the first 256 tokens: +0.06 nat."),
    ("reach", {"clicked": tuple(f"pair {i}" for i in range(16))}, "No pair meets a new angle. Extra loss after the"),
    ("masks", {"window": 3}, "token 11 is moved from up to 11 back."),  # through six blocks of 2 each
    ("masks", {"window": 3}, "By more than 1 % it is moved from up to 6 back."),
    ("cache", {"tokens": 3}, "Its query is turned by 36°, and its row has 3 weights."),
    ("masks", {"clicked": ("padding of 2",)}, "2 of 12 queries see no key: 0 / 0 is NaN. After six blocks all is NaN."),
    ("masks", {"way": "weights × 0"}, "Rows sum to 0.04 at least, hidden keys get 0.00 at most. After six blocks: 66 "),
    ("masks", {"cached": 7, "way": "is_causal=True with a cache"}, "six blocks: 0 leaks; token 11 is moved from"),
    ("masks", {"cached": 7, "way": "no mask while the cache is filled"}, "six blocks: 21 leaks; token"),
    ("masks", {"window": 4, "clicked": ("packing",)}, "token 11 is moved from up to 4 back."),
    ("ports", {"n_tokens": 6}, "This test sees nothing wrong."),
    ("ports", {"bug": "window lost when T = 1", "n_tokens": 16}, "This test sees nothing wrong."),
    ("ports", {"bug": "window lost when T = 1", "n_tokens": 7, "reading": "one by one"}, "attention at token 6. The"),
    ("ports", {"bug": "norm after the turn", "n_tokens": 16, "weights": "new"}, "This test sees nothing wrong."),
    ("ports", {"bug": "GELU by erf", "weights": "new"}, "Yet the logits agree: passed."),
    ("ports", {"bug": "nothing: a right port", "n_tokens": 16}, "This test sees nothing wrong."),
    ("xray", {"clicked": ("feed-forward of block 3",)}, "It changes from feed-forward of block 3 and token 0 on"),
    ("xray", {"clicked": ("head 1 of block 3",)}, "It changes from attention of block 3 and token 0 on"),
    ("xray", {"fault": "E", "clicked": ()}, "attention of block 0 and token 4 on"),  # a window of 4
    ("sizes", {"vocab_size": 128_256}, "7,526,944,768 parameters, +0.79 billion against llama-2-7b as"),
    ("sizes", {"hidden_dim": 14_336, "n_kv_heads": 8}, "7,241,732,096 parameters, +0.50 billion against"),
    ("rows", {"times": 12, "whose": "random, as long"}, "at 4% of all positions the model predicts"),
    ("cuts", {"clicked": ("head 0 of block 0",)}, "have equal signs, the loss is 0.43, with unequal signs 6.51; as"),
    ("order", {"masked": "no layer"}, "After the three layers, 2 of 14 tokens have some."),
    ("order", {"masked": "layer 2"}, "After the three layers, 4 of 14 tokens have some."),
    ("losses", {"step": 0}, "After step 0 a token costs 10.0"),  # log2 of 1,024 tokens is 10
    ("writing", {"temperature": 0.0}, "with probability 1. The highest bar: 1.00."),
    ("steps", {"way": "without a cache"}, "turns 25 of 25 keys, and computes 325 attention weights"),
    ("drafts", {"n_draft": 0}, "took 48 calls; 0 stayed from drafts, 0 were refused. Four texts at this temp"),
    ("fit", {"billions": 40}, "To write text, 40 billion weights take 80 GB, so at least 1 GPU of"),
    ("fit", {"job": "train"}, "To train, 69 billion weights take 1,104 GB, so at least 14 GPUs of"),
    ("sums", {"ffn": True}, "Gradients: 9 of 56 right, the others off by"),
    ("sums", {"ffn": True, "attention": True}, "Gradients: 56 of 56 right."),
    ("devices", {"model": "1B"}, "8: 0.09 + 0.51. Llama 1B: 8 devices are best, 1.2 times"),
    ("devices", {"model": "1B", "wait": 40}, "8: 0.09 + 1.36. Llama 1B: 1 device is best."),
    ("drag", {"first": 127}, "1 too low. The loss on its half changes by -0.0014 and falls for 4"),
    ("start", {"work": "is skipped"}, "reads nothing, and is turned by 0°. Likeliest next: “(new line, indented)”"),
    ("start", {"noun": "class"}, "Likeliest next: “class”, probability 0.36."),
    ("start", {"noun": "method"}, "Likeliest next: “(new line)”, probability 0.15."),  # not the noun itself
    ("start", {"token": 6}, "may read 7 of 10 words, reads “called” most (22%)"),
    ("start", {"token": 0, "block": 0}, "may read 1 of 10 words, reads itself most (100%)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "words"), FOUND)
def test_an_explorer_tells_the_right_numbers(name, values, words):
    explorer, at_first, _ = made(f"explore_{name}")
    set_without_a_picture(explorer, at_first | values)
    assert words in explorer.draw(**explorer.values)


def test_no_choice_of_a_port_waits_for_its_models():
    explorer = as_at_first("explore_ports")
    made = explorers.relatives._pair.cache_info().misses
    for bug in explorer.controls["bug"].options:
        put_back(explorer, {"bug": bug[1], "weights": "new"})
    assert explorers.relatives._pair.cache_info().misses == made


@pytest.mark.parametrize("kind", ["pcolormesh", "scatter", "imshow"])
def test_new_numbers_in_a_map_of_colours_are_drawn(kind):
    figure, ax = base.new_figure(1)
    numbers = np.zeros((3, 3))
    made = ax.scatter([0, 1, 2], [0, 1, 2], c=numbers[0]) if kind == "scatter" else getattr(ax, kind)(numbers)
    made.set_clim(0, 9)

    def draw(size):
        made.set_array(np.full_like(made.get_array(), size))
        return f"All are {size}."

    explorer = Explorer(figure, draw, {"size": slider("size", 0, 0, 9)}, "A map of colours.")
    assert_answers(explorer, explorer.controls["size"])
