"""Explorers: every control moves the picture, the numbers are the model's, faults are said, nothing leaks."""

import base64
import html
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from jupyter_client.manager import start_new_kernel
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch.nn import functional as F

from helpers import explorers, plots
from helpers.checkpoint import interleaved_to_halves
from helpers.explorers import Explorer, choice, slider
from helpers.explorers.gqa import RULES
from helpers.explorers.relatives import FAMILIES
from helpers.explorers.train import SCALINGS
from helpers.families import make_relative, with_family
from helpers.model import PRESETS, KVCache, RMSNorm, count_parameters, rope_inv_freq

EXPLORE = {name: make for name, make in vars(explorers).items() if name.startswith("explore_")}


@pytest.fixture(scope="module", autouse=True)
def style():
    """The notebook's set-up cell."""
    with matplotlib.rc_context():
        plots.use_course_style()
        yield


@pytest.fixture(scope="module", params=EXPLORE)
def made(request):
    """Each explorer, made once, and the values that its controls start with."""
    explorer = EXPLORE[request.param]()
    yield explorer, explorer.values
    explorer.close()


@pytest.fixture
def explorer(made):
    """Each explorer as it starts."""
    put_back(*made)
    return made[0]


def put_back(explorer, values):
    for name, value in values.items():
        explorer.controls[name].value = value


def move(control):
    """Give a control another value, as one key press or choice would."""
    if hasattr(control, "options"):
        control.value = control.options[-1]
    elif hasattr(control, "base"):
        control.value = control.value * control.base**control.step
    else:
        control.value = control.value + control.step


def ends(control):
    """The first and the last value of a control."""
    if hasattr(control, "options"):
        return control.options[0], control.options[-1]
    return [control.base**end if hasattr(control, "base") else end for end in (control.min, control.max)]


def pixels(explorer):
    return imread(io.BytesIO(base64.b64decode(explorer.png)))


def caption(explorer):
    return re.sub("base64,[^>]*", "", explorer.picture.value)


def assert_answers(explorer, control):
    """One move of the control changes the picture and the caption, and nothing goes wrong."""
    picture, words = explorer.png, caption(explorer)
    move(control)
    assert explorer.png != picture, control.description
    assert caption(explorer) != words, control.description
    assert 'role="alert"' not in explorer.picture.value


def test_default_state_is_drawn_and_described_with_and_without_a_kernel(explorer):
    picture = pixels(explorer)
    assert picture.shape[:2] == (396, 880)
    assert (picture[..., :3].min(axis=-1) < 0.5).mean() > 0.01
    assert len(explorer.alt.split()) < 40
    for words in (f'alt="{html.escape(explorer.alt)}"', html.escape(explorer.finding), html.escape(explorer.settings)):
        assert words in explorer.picture.value
    data, metadata = explorer._repr_mimebundle_()
    assert data["image/png"] == explorer.png
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.box.model_id
    assert data["text/plain"] == f"{explorer.alt} {explorer.finding} {explorer.settings}"
    assert metadata["image/png"]["alt"] == explorer.alt
    for control in explorer.controls.values():
        assert re.split(r" [\[(]", control.description)[0] in explorer.settings


def test_every_control_changes_the_picture_and_the_caption(made):
    explorer, start = made
    for control in explorer.controls.values():
        put_back(explorer, start)
        if control.disabled:
            move(next(other for other in explorer.controls.values() if hasattr(other, "options")))
        assert not control.disabled
        assert_answers(explorer, control)


def test_controls_at_their_ends_still_draw(explorer):
    for first, second in ((0, 0), (0, 1), (1, 1), (1, 0)):  # of every other control, and of those between
        for index, control in enumerate(explorer.controls.values()):
            control.value = ends(control)[second if index % 2 else first]
            assert 'role="alert"' not in explorer.picture.value
            assert not re.search(r"\b(nan|inf)\b", caption(explorer).replace("their softmax is nan", ""))


def test_redraws_only_move_what_is_there_and_going_back_restores_the_picture(explorer):
    picture, values, settings = explorer.png, explorer.values, dict(matplotlib.rcParams)
    artists = set(explorer.figure.findobj())
    for control in explorer.controls.values():
        move(control)
    assert set(explorer.figure.findobj()) == artists
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings
    quick, whole = pixels(explorer), io.BytesIO()
    put_back(explorer, values)
    assert explorer.png == picture
    for control in explorer.controls.values():
        move(control)
    for artist in explorer.figure.findobj():
        artist.set_animated(False)
    explorer.figure.savefig(whole, format="png", dpi="figure")
    whole.seek(0)
    different = abs(imread(whole)[..., :3] - quick[..., :3]).max(axis=-1) > 0.5
    assert different.mean() < 0.002  # lines may pass over the ticks of the axes instead of under them


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
from helpers.explorers import explore_rms_norm

made, figures = [], []

def show():
    made.append(explore_rms_norm())
    figures.append(weakref.ref(made[-1].figure))
    return made[-1]
"""
ALIVE = "(gc.collect(), [n for n, of in enumerate(made) if figures[n]() or of.box.comm or of.box.layout.comm])[1]"


def test_a_cell_run_again_closes_its_former_explorer_and_no_other():
    """Of 4.3 MB a run, 0.1 stay. Two cells, or two lines of one, may show the same explorer beside each other."""
    manager, kernel = start_new_kernel()

    def run(code, **metadata):
        content = {"code": code, "user_expressions": {"alive": ALIVE}}
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


def test_controls_name_their_unit_and_the_caption_puts_the_value_before_it():
    controls = {
        "length": slider("length", 8, 0, 9, unit="token"),
        "eps": slider("eps", 1e-5, -8, 0, 0.5, log=True),
        "top_k": slider("top-k (0 keeps all)", 0, 0, 9),
        "layout": choice("layout", ("halves", "interleaved")),
    }
    assert [control.description for control in controls.values()][:2] == ["length [token]", "eps"]
    assert controls["length"].continuous_update
    explorer = Explorer(Figure(), lambda **values: "", controls, "nothing")
    assert explorer.settings == "Settings: length 8 token, eps 1e-05, top-k 0 (0 keeps all), layout halves."


def test_the_explorer_of_contributing_answers_to_its_controls():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"^#+ An explorer of your own\n.*?^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found, "CONTRIBUTING.md needs a heading 'An explorer of your own' with a python block: put it back"
    names = {}
    exec(found[1], names)
    (explorer,) = (make() for name, make in names.items() if name.startswith("explore_"))
    for control in explorer.controls.values():
        assert_answers(explorer, control)


def test_rms_norm_explorer_tells_the_angle_and_length_of_the_model():
    explorer = explorers.explore_rms_norm()
    explorer.controls["offset"].value = 1.0
    assert "RMSNorm turns it by 0.0° and gives length 1.41" in explorer.finding
    assert "LayerNorm turns it by 45.0° and gives length 1.41" in explorer.finding
    explorer.controls["eps"].value = 1.0
    length = RMSNorm(2, 1.0)(torch.tensor([2.0, 0.0])).norm().item()
    assert f"RMSNorm turns it by 0.0° and gives length {length:.3g}" in explorer.finding


def test_swiglu_explorer_tells_the_hidden_value_and_its_slope():
    activations = {"SiLU": F.silu, "GELU": F.gelu, "ReLU": F.relu, "sigmoid": torch.sigmoid, "none": torch.clone}
    explorer = explorers.explore_swiglu()
    explorer.controls["u"].value = -2.0
    for name, activation in activations.items():
        explorer.controls["activation"].value = name
        gate = torch.tensor(-1.0, requires_grad=True)
        value = activation(gate) * -2.0
        (slope,) = torch.autograd.grad(value, gate)
        finding = explorer.finding.replace("−", "-")
        assert f"times u = -2.0 that is {value.item():z.3f}." in finding
        assert f"Its slope in g is {slope.item():z.2f}." in finding


def test_rope_explorer_tells_the_angle_of_the_model_and_puts_no_key_before_the_first_token():
    explorer = explorers.explore_rope()
    explorer.controls["pair"].value = 7
    for scaling in explorer.controls["scaling"].options:
        explorer.controls["scaling"].value = scaling
        assert explorer.controls["factor"].disabled == (scaling == "none")
        speed = rope_inv_freq(16, 10_000.0, None if scaling == "none" else {"type": scaling, "factor": 8})[7].item()
        assert f"3 token × {speed:.3g} rad/token = {3 * speed:.3g} rad" in explorer.finding
        assert f"turns once in {2 * math.pi / speed:,.0f} tokens" in explorer.finding
    explorer.controls["position"].value = 2
    assert "Query at 2, key at 0: pair 7 differs by 2 token" in explorer.finding


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


PAIRS = {  # of 2 new tokens after 3 cached ones, at size 2: (query, key) that are hidden
    "causal": {(3, 4)},
    "sliding window": {(3, 0), (3, 1), (3, 4), (4, 0), (4, 1), (4, 2)},
    "left padding": {(3, 0), (3, 1), (3, 4), (4, 0), (4, 1)},
    "packed documents": {(3, 0), (3, 1), (3, 4), (4, 0), (4, 1), (4, 2), (4, 3)},
    "prefix": {(3, 4)},
}


def test_mask_explorer_hides_what_each_rule_hides():
    assert set(RULES) == set(PAIRS)
    explorer = explorers.explore_mask()
    for control, value in {"new": 2, "cached": 3, "size": 2}.items():
        explorer.controls[control].value = value
    for rule, hidden in PAIRS.items():
        explorer.controls["rule"].value = rule
        opaque = explorer.figure.axes[0].images[0].get_array()[:2, :5, 3]
        assert {(3 + query, key) for query, key in np.argwhere(opaque == 0).tolist()} == hidden
        assert f"Visible: {10 - len(hidden)} of 10 pairs." in explorer.finding
    for control, value in {"cached": 0, "size": 4}.items():  # what a prefix adds to the causal rule
        explorer.controls[control].value = value
    assert "Visible: 4 of 4 pairs." in explorer.finding


def test_heads_explorer_counts_what_a_cache_takes():
    explorer, model = explorers.explore_heads(), PRESETS["llama-3-8b"]
    for n_kv_heads in (32, 8, 1):
        explorer.controls["n_kv_heads"].value = n_kv_heads
        cache = KVCache(replace(model, n_kv_heads=n_kv_heads), 1, 8192, torch.bfloat16, "meta")
        assert f"= {(cache.k.nbytes + cache.v.nbytes) / 1e9:.3g} GB;" in explorer.finding


@pytest.mark.parametrize("scaling", SCALINGS)
def test_context_explorer_counts_the_angles_met_and_tells_how_much_pairs_are_slowed(scaling):
    explorer, own = explorers.explore_context(), rope_inv_freq(16)
    explorer.controls["scaling"].value = scaling
    for factor in (1, 4, 8):
        explorer.controls["factor"].value = factor
        setting = SCALINGS[scaling] and {**SCALINGS[scaling], "factor": factor}
        slowed = (own / rope_inv_freq(16, 10_000.0, setting)).tolist()
        # Of 256 positions a pair that went full circle knows all; one slowed by 4 knows 4 × 63 and the first.
        known = [256 if 63 * own[i] > 2 * math.pi else min(256, int(63 * slowed[i] + 1.001)) for i in range(8)]
        assert f"{sum(known) / (8 * 256):.0%} were met in training on 64." in explorer.finding
        assert f"{sum(one < 1.001 for one in slowed)} of 8 pairs keep the angle" in explorer.finding
        for pair, one in (("fastest pair", slowed[0]), ("slowest", slowed[7])):
            assert f"{pair} " + (f"is {one:.0f} times slower" if one > 1.001 else "keeps its speed") in explorer.finding


TYPES = ["mistral", "smollm3", "qwen2", "qwen3", "mixtral", "qwen3_moe", "olmo2", "olmo3", "gemma2", "gemma3_text"]


@pytest.mark.parametrize(("name", "model_type"), list(zip([*FAMILIES][1:-1], TYPES, strict=True)))
def test_relatives_explorer_tells_and_draws_what_the_table_of_families_makes(name, model_type):
    explorer, body = explorers.explore_relatives(), PRESETS["llama-3-8b"]
    for menu, option in FAMILIES[name].items():
        explorer.controls[menu].value = option
    content = {"model_type": model_type} | ({"sliding_window": 4096} if "window" in FAMILIES[name] else {})
    if "feed-forward" in FAMILIES[name]:
        content |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 14_336}
    with torch.device("meta"):
        more = count_parameters(make_relative(with_family(body, content))) - count_parameters(body)
    tiny = replace(body, vocab_size=1, dim=1, n_heads=1, n_kv_heads=1, hidden_dim=1)
    model = make_relative(with_family(tiny, content))
    assert explorer.finding.startswith(f"{name}: ")
    assert f"billion parameters{f', {more:,} more than' if more else '. '}" in explorer.finding
    angles, reach = explorer.figure.axes[:2]
    torch.testing.assert_close(torch.tensor(angles.images[0].get_array().filled(0)), model.layer_inv_freq)
    left = reach.patches[1].get_xy()[1:-2:2, 0]
    assert [round(32_768 * (1 - x)) for x in left] == [window or 32_768 for window in model.windows]


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
    (both,) = (line for line in explorer.figure.axes[0].lines if line.get_label() == "both")
    last = weights / 32e9 + held / 8e9  # 8 key/value heads: on 32 devices each is copied 4 times
    assert both.get_ydata()[-1] == pytest.approx(last)
