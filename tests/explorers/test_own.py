"""The pictures of 04 and 05 with a model and a text of the learner's: right weights, both lenses, clear refusals."""

import base64
import io
import re
import shutil
from functools import cache
from unittest import mock

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import explorers
from beyond.families import load_checkpoint
from beyond.families.reference import TOKENS, save_random
from explorers import own
from explorers.full_model import run_any
from helpers.interventions import replaced, without_heads
from helpers.text import TINY_LLAMA, load_tokenizer
from tests.support.course import notebooks

pytestmark = pytest.mark.usefixtures("course_style")
TEXT = TOKENS[:, :10]
SIZES = {  # a layer that stands still; two bases, windows; windows, sinks; both branches read one stream
    "smollm3": {}, "gemma3_text": {}, "gpt_oss": {},
    "gptj": {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64, "n_positions": 64, "rotary_dim": 4},
}  # fmt: skip
XRAY, MASKS = explorers.explore_xray, explorers.explore_masks


@cache
def saved(family):
    """transformers' model and its folder."""
    return save_random(family, **SIZES[family])


def image(png):
    return imread(io.BytesIO(base64.b64decode(png)))[..., :3]


@pytest.mark.parity
@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_the_weights_that_are_shown_are_those_of_transformers(family):
    theirs, folder = saved(family)
    with torch.no_grad():
        wanted = torch.cat(theirs.cpu()(TEXT, output_attentions=True).attentions)
    _, weights = run_any(load_checkpoint(folder), TEXT)
    torch.testing.assert_close(torch.stack(weights), wanted, atol=1e-5, rtol=0)
    assert torch.equal(torch.stack(weights) > 0, (wanted > 0) | (wanted == 0) & seen_by(folder)[:, None])


def seen_by(folder):
    model = load_checkpoint(folder)
    masks = model.rotation_and_mask(TEXT.shape[1])[2]
    plain = torch.ones(TEXT.shape[1], TEXT.shape[1]).tril().bool()
    return torch.stack([plain if mask is None else mask for mask in masks])


@pytest.mark.parametrize("family", SIZES)
def test_a_relative_runs_as_it_computes_and_what_is_clicked_is_cut(family):
    model = load_checkpoint(saved(family)[1]).requires_grad_(False)
    cuts = {
        (): mock.MagicMock(),
        ("head 1 of block 0",): without_heads(model, [(0, 1)]),
        ("feed-forward of block 1",): replaced(model.layers[1].feed_forward, lambda _, x: 0 * x),
    }
    for cut, way in cuts.items():
        streams, _ = run_any(model, TEXT, cut)
        with way:
            torch.testing.assert_close(model.lm_head(model.final_norm(streams[-1])), model(TEXT))
    assert torch.equal(streams[3], streams[4])  # a silent feed-forward adds nothing
    slow, _ = run_any(model, TEXT, speed=0.5)
    model.layer_inv_freq.mul_(0.5)
    torch.testing.assert_close(slow, run_any(model, TEXT)[0])


def test_blocks_that_turn_alike_share_clocks_and_windows_are_said():
    texts = [one.get_text() for one in XRAY(saved("gemma3_text")[1], TEXT).figure.axes[0].texts]
    assert {"blocks 0, 1", "block 2", "of RoPE's first 4 pairs, at this position"} <= {*texts}
    assert texts.count("last\n6") == 2
    still = XRAY(saved("smollm3")[1], TEXT).figure.axes[0]
    assert sum(patch.get_hatch() is not None for patch in still.patches) == 4  # the pairs of block 1


@pytest.mark.parametrize("family", ["smollm3", "gpt_oss"])
@pytest.mark.parametrize("explore", [XRAY, MASKS])
def test_every_control_of_a_relatives_picture_moves_it_and_the_model_stays_trainable(explore, family):
    model = load_checkpoint(saved(family)[1])
    explorer = explore(model, TEXT, heads=(0, 3), **({"leaks": True} if explore is MASKS else {}))
    for name, control in explorer.controls.items():
        picture, choice = explorer.png, getattr(control, "index", None)
        if choice is None:
            control.value = not control.value if isinstance(control.value, bool) else control.value - control.step * (
                control.value > control.min) + control.step * (control.value <= control.min)  # fmt: skip
        else:
            control.index = (1,) if isinstance(choice, tuple) else len(control.options) - 1 - choice
        assert explorer.png != picture, name
        assert 'role="alert"' not in explorer.picture.value, name
    assert all(weight.requires_grad for weight in model.parameters())
    assert "fault" not in explorer.controls
    assert ("scores × 0" in str(explorer.controls.get("way"))) == ((explore, family) == (MASKS, "smollm3"))


@pytest.mark.parametrize(("explore", "stem"), [(XRAY, "05_full_model"), (MASKS, "04_gqa")])
def test_without_arguments_a_picture_is_the_one_that_its_notebook_stores(explore, stem):
    (cell,) = (cell for cell in notebooks()[stem].cells if cell.source.endswith(f"{explore.__name__}()"))
    explorer, stored = explore(), image(cell.outputs[0].data["image/png"])
    drawn = image(next(explorer._outputs())[0]["image/png"])
    assert stored.shape == drawn.shape
    assert np.abs(stored - drawn).max() < 0.02  # processors round differently
    named = {XRAY: {"blocks": range(6), "heads": range(4)}, MASKS: {"blocks": [0], "heads": [1]}}[explore]
    assert explore(str(TINY_LLAMA), **named).png == explorer.png


def test_a_folder_reads_a_text_with_its_tokenizer_and_a_model_alone_with_one_that_is_passed(tmp_path):
    folder = shutil.copytree(TINY_LLAMA, tmp_path / "own")
    texts = [MASKS(folder, "one two"), MASKS(load_checkpoint(folder), "one two", tokenizer=load_tokenizer())]
    assert texts[0].png == texts[1].png
    assert set(MASKS(folder, "one two", blocks=(1, 5), heads=[3]).controls) >= {"block"}


def test_a_large_folder_is_named_before_it_is_read(tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(TINY_LLAMA, tmp_path / "own")
    XRAY(folder, "one two")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(own, "LARGE", 1e5)
    said = []

    def reading(folder):
        said.append(capsys.readouterr().out)
        return load_checkpoint(folder)

    monkeypatch.setattr("beyond.families.load_checkpoint", reading)
    XRAY(folder, "one two")
    assert f"Reading 0.0 GB of weights from {folder}, as float32." in said[0]


BAD = [
    (lambda: XRAY("no/such"), FileNotFoundError, "no/such is not a folder: pass one"),
    (lambda: XRAY(3), ValueError, "model=3 is a int: pass a folder (save_pretrained writes one), or what load_check"),
    (lambda: MASKS(saved("gpt_oss")[0]), ValueError, "is a GptOssForCausalLM: pass a folder (save_pretrained"),
    (lambda: XRAY(saved("gpt_oss")[1]), ValueError, "text='The type … needs a tokenizer, and there is none: pass a"),
    (lambda: XRAY(text=""), ValueError, "text='' has 0 tokens: pass at least 2"),
    (lambda: MASKS(text=[5]), ValueError, "text=[5] has 1 tokens: pass at least 2"),
    (lambda: XRAY(text=None), ValueError, "text=None is neither a text nor one row of token ids: pass a str, or (T,)"),
    (lambda: XRAY(text=[0.5, 1.0]), ValueError, "text=[0.5, 1.0] is neither"),
    (lambda: XRAY(text=torch.ones(2, 3).long()), ValueError, "is neither a text nor one row"),
    (lambda: XRAY(text=[1, 1024]), ValueError, "run from 1 to 1024, but vocab_size=1024 allows 0 to 1023"),
    (lambda: XRAY(blocks=(1, 6)), ValueError, "blocks=(1, 6): the model has 6, numbered from 0. Pass at most eight"),
    (lambda: XRAY(heads=(-1,)), ValueError, "heads=(-1,): the model has 4, numbered from 0"),
    (lambda: MASKS(blocks=(1, 1)), ValueError, "blocks=(1, 1): the model has 6"),
    (lambda: MASKS(heads=2), ValueError, "heads=2: the model has 4"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), BAD, ids=[words for *_, words in BAD])
def test_a_wrong_value_is_named_with_what_to_do(call, error, words):
    with pytest.raises(error, match=".*".join(re.escape(part.strip()) for part in words.split("…"))):
        call()
