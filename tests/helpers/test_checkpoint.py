"""Checkpoints open here and in transformers with equal logits; a folder that is not right is refused and says why."""

import json
import os
import pickle
import re
import shutil
import stat
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import HTTPError
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers import LlamaConfig as TheirConfig

import helpers.checkpoint
import helpers.model
from helpers.checkpoint import config_from_hugging_face, load_checkpoint, model_from_weights, save_checkpoint
from helpers.model import Llama, LlamaConfig, apply_rope, count_parameters
from helpers.text import END_OF_TEXT, train_tokenizer
from tests.support.models import TOLERANCE, assert_agree

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
OURS = LlamaConfig(
    vocab_size=64, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=88,
    max_seq_len=64, norm_eps=1e-5, rope_theta=10_000.0, tie_embeddings=False,
)  # fmt: skip
# A trained length of 16 tokens, so that the scaling acts within the 16 tokens of these tests.
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
}
TOKENS = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1))
SPOILT = (ValueError, FileNotFoundError)  # what a caller of load_checkpoint has to expect


def enlarge(model):
    """Weights so large that every part matters: std 0.3, gains between 0.5 and 1.5 (style.md section 5)."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.uniform_(0.5, 1.5, generator=draw)
            else:
                weight.normal_(std=0.3, generator=draw)
    return model.eval()


def their_model(rope="default", theta=10_000.0, **changes):
    config = TheirConfig(**SIZES | {"rope_parameters": ROPES[rope] | {"rope_theta": theta}} | changes)
    assert config.rope_parameters["rope_theta"] == theta
    return enlarge(LlamaForCausalLM(config))


def our_model(**changes):
    return enlarge(Llama(LlamaConfig(**{**vars(OURS), "head_dim": None, **changes})))


@torch.no_grad()
def logits_of(model):
    out = model(TOKENS)
    return out if isinstance(out, torch.Tensor) else out.logits


def assert_same_logits(ours, theirs, tolerance=TOLERANCE):
    assert_agree(logits_of(ours), logits_of(theirs).float(), tolerance)


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def saved(tmp_path):
    """A folder written by save_checkpoint."""
    save_checkpoint(our_model(), tmp_path / "saved")
    return tmp_path / "saved"


# ------------------------------------------------------------------------------------ from Hugging Face


@pytest.mark.parity
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_folder_of_transformers_gives_equal_logits(tmp_path, rope, tied):
    theirs = their_model(rope, tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path)
    ours = load_checkpoint(tmp_path)
    assert (ours.lm_head.weight is ours.tok_embeddings.weight) == tied
    assert not ours.training
    assert_same_logits(ours, theirs)


@pytest.mark.parity
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_several_files_give_the_logits_of_one(tmp_path, tied):
    theirs = their_model(tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_same_logits(load_checkpoint(tmp_path), theirs)


@pytest.mark.parity
def test_head_dim_is_read_from_the_config(tmp_path):
    theirs = their_model(head_dim=12)
    theirs.save_pretrained(tmp_path)
    assert_same_logits(load_checkpoint(tmp_path), theirs)


def move_rope_to_the_old_place(content, name_of_type):
    rope = content.pop("rope_parameters")
    content["rope_theta"] = rope.pop("rope_theta")
    rope[name_of_type] = rope.pop("rope_type")
    content["rope_scaling"] = None if rope[name_of_type] == "default" else rope


@pytest.mark.parity
@pytest.mark.parametrize("name_of_type", ["type", "rope_type"])
@pytest.mark.parametrize("rope", ROPES)
def test_rope_settings_are_found_in_the_old_place(tmp_path, rope, name_of_type):
    theirs = their_model(rope, theta=500.0)
    theirs.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", partial(move_rope_to_the_old_place, name_of_type=name_of_type))
    assert "rope_parameters" not in (tmp_path / "config.json").read_text()
    assert_same_logits(load_checkpoint(tmp_path), theirs)


@pytest.mark.parity
@pytest.mark.parametrize("change", [{"theta": 500.0}, {"rope": "linear"}, {"rope": "llama3"}], ids=str)
def test_sixteen_tokens_can_tell_the_rope_settings_apart(change):
    plain, other = logits_of(their_model()), logits_of(their_model(**change))
    assert (plain - other).abs().max() > 1e-2 * plain.abs().max()


@pytest.mark.parity
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("asked", [torch.float32, torch.bfloat16], ids=str)
def test_stored_dtype_and_loaded_dtype_are_independent(tmp_path, stored, asked):
    their_model().to(stored).save_pretrained(tmp_path)
    assert {w.dtype for w in load_file(tmp_path / "model.safetensors").values()} == {stored}
    ours = load_checkpoint(tmp_path, dtype=asked)
    assert {w.dtype for w in ours.parameters()} == {asked}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=asked)
    # bfloat16 keeps 8 bits; two implementations round at other places
    assert_same_logits(ours, theirs, TOLERANCE if asked == torch.float32 else 0.1)
    torch.testing.assert_close(ours.lm_head.weight, theirs.lm_head.weight, rtol=0, atol=0)


def test_loaded_weights_do_not_hang_on_the_file(saved):
    model = load_checkpoint(saved)
    before = logits_of(model)
    (saved / "model.safetensors").write_bytes(bytes((saved / "model.safetensors").stat().st_size))
    torch.testing.assert_close(logits_of(model), before, rtol=0, atol=0)


def test_old_rotation_tables_in_a_file_are_ignored(saved):
    edit_weights(saved, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    load_checkpoint(saved)


# -------------------------------------------------------------------------------------- to Hugging Face

SCALINGS = {
    "none": None,
    "linear": {"type": "linear", "factor": 4.0},
    "ntk": {"type": "ntk", "factor": 4.0},
    "llama3": {"type": "llama3", **LLAMA3},
    "llama3 with Meta's constants": {"type": "llama3", "factor": 8.0},
}


@pytest.mark.parity
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_transformers_opens_a_saved_folder_unchanged(tmp_path, scaling, tied):
    ours = our_model(rope_scaling=SCALINGS[scaling], tie_embeddings=tied)
    save_checkpoint(ours, tmp_path / "saved")
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is LlamaForCausalLM
    assert_same_logits(ours, theirs)


@pytest.mark.parity
@pytest.mark.parametrize("text", ["The cat's 2 hats.", "naïve  Ω\n\t日本", f"one{END_OF_TEXT}two", ""])
def test_transformers_reads_the_same_token_ids(tmp_path, text):
    ours = train_tokenizer("The cat sat on the mat. " * 50, vocab_size=300)
    save_checkpoint(our_model(vocab_size=300), tmp_path / "saved", tokenizer=ours)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(text)["input_ids"] == ours.encode(text).ids
    assert theirs.decode(ours.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_saving_and_loading_gives_the_same_model(tmp_path, scaling, tied):
    model = our_model(rope_scaling=SCALINGS[scaling], tie_embeddings=tied)
    save_checkpoint(model, tmp_path / "saved")
    again = load_checkpoint(tmp_path / "saved")
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=0, atol=0)
    torch.testing.assert_close(again.inv_freq, model.inv_freq)
    assert (again.lm_head.weight is again.tok_embeddings.weight) == tied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_are_stored_in_their_own_dtype(tmp_path, dtype):
    save_checkpoint(our_model().to(dtype), tmp_path / "saved")
    assert {w.dtype for w in load_file(tmp_path / "saved" / "model.safetensors").values()} == {dtype}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "saved").dtype == dtype


def test_card_and_tokenizer_stand_in_the_folder(tmp_path):
    tokenizer = train_tokenizer("abab", vocab_size=260)
    save_checkpoint(our_model(), tmp_path / "deep" / "saved", tokenizer, card="# Card ä\n")
    assert (tmp_path / "deep" / "saved" / "README.md").read_text(encoding="utf-8") == "# Card ä\n"
    assert (
        Tokenizer.from_file(str(tmp_path / "deep" / "saved" / "tokenizer.json")).get_vocab_size()
        == tokenizer.get_vocab_size()
    )


def test_saved_folder_is_readable_by_whom_the_umask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        save_checkpoint(our_model(), tmp_path / "saved", train_tokenizer("ab", vocab_size=258), card="x")
        assert os.umask(0o022) == 0o022  # left as it was
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "saved").iterdir()}
    assert stat.S_IMODE((tmp_path / "saved").stat().st_mode) == 0o755
    assert set(modes.values()) == {0o644}, modes


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_exists_is_kept(tmp_path, kind):
    place = tmp_path / "mine"
    if kind == "folder":
        place.mkdir()
    else:
        place.write_text("my notes")
    with pytest.raises(FileExistsError, match="mine exists and is kept: choose another name"):
        save_checkpoint(our_model(), place)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert place.is_dir() == (kind == "folder")


@pytest.mark.parametrize("step", ["save_file", "_write_json"])
@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch, step, error):
    def write_half_and_fail(*args, **kwargs):
        path = next(Path(a) for a in args if isinstance(a, Path))
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(helpers.checkpoint, step, write_half_and_fail)
    with pytest.raises(type(error)):
        save_checkpoint(our_model(), tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ Meta

META_LAYER = {  # Meta's name: ours, and the dimension along which Meta's parallel layers cut it
    "attention_norm.weight": ("attention_norm.weight", None),
    "attention.wq.weight": ("attention.q_proj.weight", 0),
    "attention.wk.weight": ("attention.k_proj.weight", 0),
    "attention.wv.weight": ("attention.v_proj.weight", 0),
    "attention.wo.weight": ("attention.o_proj.weight", 1),
    "ffn_norm.weight": ("ffn_norm.weight", None),
    "feed_forward.w1.weight": ("feed_forward.gate_proj.weight", 0),
    "feed_forward.w2.weight": ("feed_forward.down_proj.weight", 1),
    "feed_forward.w3.weight": ("feed_forward.up_proj.weight", 0),
}


def meta_weights(model, embeddings_cut):
    """The model's weights as Meta stores them, {name: (weight, dimension of the cut or None)}."""
    own, weights = model.state_dict(), {}
    weights["tok_embeddings.weight"] = (own["tok_embeddings.weight"], embeddings_cut)
    weights["norm.weight"] = (own["final_norm.weight"], None)
    weights["output.weight"] = (own["lm_head.weight"], 0)
    weights["rope.freqs"] = (torch.ones(4), None)  # Llama 2 files carry this table
    for layer in range(model.config.n_layers):
        for theirs, (ours, cut) in META_LAYER.items():
            weight = own[f"layers.{layer}.{ours}"]
            if theirs in ("attention.wq.weight", "attention.wk.weight"):  # halves (i, i + 4) -> neighbours (2i, 2i + 1)
                weight = torch.cat([head[[0, 4, 1, 5, 2, 6, 3, 7]] for head in weight.split(8)])
            weights[f"layers.{layer}.{theirs}"] = (weight, cut)
    return weights


def write_meta(folder, model, n_shards=1, embeddings_cut=0, drop=(), **params):
    folder.mkdir(exist_ok=True)
    content = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "multiple_of": 8, "norm_eps": 1e-5}
    content |= {"vocab_size": -1} | params
    (folder / "params.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    for shard in range(n_shards):
        weights = {
            name: (weight if cut is None else weight.chunk(n_shards, dim=cut)[shard]).clone()
            for name, (weight, cut) in meta_weights(model, embeddings_cut).items()
            if name not in drop
        }
        torch.save(weights, folder / f"consolidated.{shard:02d}.pth")
    return folder


@pytest.mark.parametrize("n_shards", [1, 2])
@pytest.mark.parametrize("embeddings_cut", [0, 1], ids=["vocabulary cut (Llama 3)", "width cut (Llama 2)"])
def test_meta_folder_gives_equal_logits(tmp_path, n_shards, embeddings_cut):
    model = our_model()
    assert_same_logits(load_checkpoint(write_meta(tmp_path / "meta", model, n_shards, embeddings_cut)), model)


def test_meta_weights_are_made_for_neighbouring_pairs(tmp_path, monkeypatch):
    """The weights of the Meta folder, used as they are in Meta's layout, are the same model."""
    model = our_model()
    expected = logits_of(model)
    for name, (weight, _) in meta_weights(model, 0).items():
        if name.endswith(("wq.weight", "wk.weight")):
            model.get_parameter(name.replace("wq", "q_proj").replace("wk", "k_proj")).data = weight
    monkeypatch.setattr(helpers.model, "apply_rope", partial(apply_rope, layout="interleaved"))
    assert_agree(logits_of(model), expected)


def test_meta_folder_without_n_kv_heads_is_multi_head(tmp_path):
    model = our_model(n_kv_heads=4)
    loaded = load_checkpoint(write_meta(tmp_path / "meta", model, n_kv_heads=None))
    assert loaded.config.n_kv_heads == 4
    assert_same_logits(loaded, model)


@pytest.mark.parametrize(
    ("params", "ours"),
    [
        ({"use_scaled_rope": True, "rope_theta": 500.0}, {"rope_theta": 500.0, "rope_scaling": {"factor": 8.0}}),
        (
            {"use_scaled_rope": True, "rope_theta": 500.0, "rope_scaling_factor": 32},
            {"rope_theta": 500.0, "rope_scaling": {"factor": 32.0}},
        ),
        (
            {"use_scaled_rope": True, "rope_theta": 500.0},  # as in Llama 3.2 1B, whose file does not say 32
            {"rope_theta": 500.0, "rope_scaling": {"factor": 32.0}, "tie_embeddings": True},
        ),
        ({"use_scaled_rope": False, "rope_theta": 500.0}, {"rope_theta": 500.0}),
        ({"ffn_dim_multiplier": 1.3}, {"hidden_dim": 112}),
        ({"norm_eps": 0.1}, {"norm_eps": 0.1}),
    ],
    ids=str,
)
def test_meta_params_reach_the_model(tmp_path, monkeypatch, params, ours):
    # a trained length of 16 instead of 8192: the scaling then acts within 16 tokens
    monkeypatch.setitem(helpers.checkpoint.LLAMA3_SCALING, "original_max_position_embeddings", 16)
    if "rope_scaling" in ours:
        ours = ours | {"rope_scaling": {"type": "llama3", **LLAMA3, **ours["rope_scaling"]}}
    model = our_model(**ours)
    assert_same_logits(load_checkpoint(write_meta(tmp_path / "meta", model, **params)), model)
    if model.config.hidden_dim == OURS.hidden_dim:  # and without the setting they would differ
        with pytest.raises(AssertionError, match="not close"):
            assert_same_logits(our_model(), model)


def test_nan_in_a_tied_matrix_is_not_taken_for_an_untied_head():
    weights = our_model(tie_embeddings=True).state_dict()
    weights["tok_embeddings.weight"][3, 4] = float("nan")
    with pytest.raises(ValueError, match=r"not finite: tok_embeddings\.weight"):
        model_from_weights(replace(OURS, tie_embeddings=True), weights)


def test_a_tied_matrix_is_copied_once(monkeypatch):
    model = our_model(tie_embeddings=True)
    copied = model_from_weights(model.config, model.state_dict())
    assert copied.lm_head.weight is copied.tok_embeddings.weight
    assert copied.lm_head.weight.data_ptr() != model.lm_head.weight.data_ptr()

    def to(*given, **named):
        raise MemoryError

    monkeypatch.setattr(torch.Tensor, "to", to)
    with pytest.raises(torch.OutOfMemoryError, match=rf": {count_parameters(model):,} weights as torch.float32 do not"):
        model_from_weights(model.config, model.state_dict())


@pytest.mark.parametrize("drop", [(), ("output.weight",)], ids=["head given", "head absent"])
def test_meta_folder_with_one_matrix_is_tied(tmp_path, drop):
    model = our_model(tie_embeddings=True)
    loaded = load_checkpoint(write_meta(tmp_path / "meta", model, drop=drop))
    assert loaded.lm_head.weight is loaded.tok_embeddings.weight
    assert_same_logits(loaded, model)


# ------------------------------------------------------------------------------------- what is not right


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder: pass one that holds config.json or params"):
        load_checkpoint(tmp_path / "nowhere")


def test_empty_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds neither config.json .* nor params.json \(Meta\), but nothing"):
        load_checkpoint(tmp_path)


def test_folder_of_other_things_lists_them(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"holds neither .* but \['notes.txt'\]"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("kept", [0, 7, 100, 5000, -1])
def test_truncated_safetensors_is_named(saved, kept):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or cut short .*: fetch the file again"):
        load_checkpoint(saved)


@pytest.mark.parametrize("kept", [0, 100, 5000, -1])
def test_truncated_pth_is_named(tmp_path, kept):
    folder = write_meta(tmp_path / "meta", our_model())
    path = folder / "consolidated.00.pth"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"consolidated.00.pth is damaged .*: fetch the file again"):
        load_checkpoint(folder)


@pytest.mark.parametrize("content", [b"", b'{"model_type": "lla', b"not json", b"\xff\xfe\x00", b"[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "params.json", "model.safetensors.index.json"])
def test_invalid_json_is_named(tmp_path, saved, name, content):
    folder = write_meta(tmp_path / "meta", our_model()) if name == "params.json" else saved
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is not valid JSON .*: fetch the file again"):
        load_checkpoint(folder)


@pytest.mark.parametrize("content", ["[]", "3", '"x"', "null"])
@pytest.mark.parametrize("name", ["config.json", "params.json", "model.safetensors.index.json"])
def test_json_that_is_not_an_object_is_named(tmp_path, saved, name, content):
    folder = write_meta(tmp_path / "meta", our_model()) if name == "params.json" else saved
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} holds a \w+, not an object"):
        load_checkpoint(folder)


@pytest.mark.parametrize("kind", ["gpt2", "mistral", "qwen2", None])
def test_another_architecture_is_named(saved, kind):
    edit_json(saved / "config.json", lambda c: c.update(model_type=kind))
    with pytest.raises(ValueError, match=rf"config.json describes a {kind!r} model, not 'llama'"):
        load_checkpoint(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("quantization_config", {"bits": 4}),
        ("pretraining_tp", 2),
        ("partial_rotary_factor", 0.5),
    ],
)
def test_a_part_this_model_does_not_have_is_named(saved, name, value):
    edit_json(saved / "config.json", lambda c: c.update({name: value}))
    with pytest.raises(
        ValueError, match=re.escape(f"config.json sets {name}={value!r}, which this model does not have")
    ):
        load_checkpoint(saved)


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope"])
def test_unknown_rope_type_is_named(saved, place, kind):
    def change(content):
        del content["rope_parameters"]
        content[place] = {"rope_type": kind, "factor": 2.0}

    edit_json(saved / "config.json", change)
    with pytest.raises(
        ValueError, match=rf"config.json sets RoPE type {kind!r}: this course reads 'default', 'linear'"
    ):
        load_checkpoint(saved)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"])
def test_incomplete_config_names_the_gap(saved, name):
    edit_json(saved / "config.json", lambda c: c.pop(name))
    with pytest.raises(ValueError, match=rf"config.json has no '{name}': it is not a complete LLaMA config"):
        load_checkpoint(saved)


@pytest.mark.parametrize("name", ["dim", "n_layers", "n_heads"])
def test_incomplete_params_name_the_gap(tmp_path, name):
    folder = write_meta(tmp_path / "meta", our_model(), **{name: None})
    with pytest.raises(ValueError, match=rf"'{name}' is missing from params.json"):
        load_checkpoint(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(saved, value):
    edit_weights(saved, lambda w: w["model.norm.weight"].fill_(value))
    with pytest.raises(ValueError, match=r"not finite: final_norm.weight holds NaN or infinity"):
        load_checkpoint(saved)


def test_weights_that_are_not_floats_are_named(saved):
    edit_weights(saved, lambda w: w.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}))
    with pytest.raises(ValueError, match=r"final_norm.weight is torch.int8"):
        load_checkpoint(saved)


def test_all_weights_that_do_not_fit_stand_in_one_error(saved):
    def change(weights):
        del weights["model.layers.0.mlp.up_proj.weight"]
        weights["model.extra.weight"] = torch.ones(3)
        weights["model.layers.1.self_attn.k_proj.weight"] = torch.ones(4, 32)
        weights["model.norm.weight"].fill_(float("nan"))

    edit_weights(saved, change)
    with pytest.raises(ValueError, match=r"4 weights do not fit\. Nothing was loaded") as caught:
        load_checkpoint(saved)
    text = str(caught.value)
    assert str(saved) in text
    assert "missing: layers.0.feed_forward.up_proj.weight" in text
    assert "left over: model.extra.weight" in text
    assert "shape: layers.1.attention.k_proj.weight is (4, 32), the config asks for (16, 32)" in text
    assert "not finite: final_norm.weight" in text


def test_a_layer_more_than_the_config_says_is_left_over(saved):
    edit_json(saved / "config.json", lambda c: c.update(num_hidden_layers=1))
    with pytest.raises(ValueError, match=r"9 weights do not fit(.|\n)*left over: model.layers.1"):
        load_checkpoint(saved)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "x.bin", 5, None])
def test_index_may_only_name_safetensors_of_its_folder(saved, name):
    weights = load_file(saved / "model.safetensors")
    (saved / "a").mkdir()
    for place in (saved.parent, saved / "a"):
        save_file(weights, place / "x.safetensors")
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(weights, name)}))
    with pytest.raises(ValueError, match=r"index.json names .*: only .safetensors files of the same folder are read"):
        load_checkpoint(saved)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": "x"}, {"weight_map": {"a": []}}], ids=str)
def test_index_without_a_list_of_files_is_refused(saved, index):
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"saved"):
        load_checkpoint(saved)


def test_missing_shard_is_named(tmp_path):
    their_model().save_pretrained(tmp_path, max_shard_size="20KB")
    lost = sorted(tmp_path.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{lost.name} is missing"):
        load_checkpoint(tmp_path)


def test_missing_meta_shard_leaves_shapes_that_do_not_fit(tmp_path):
    folder = write_meta(tmp_path / "meta", our_model(), n_shards=2)
    (folder / "consolidated.01.pth").unlink()
    with pytest.raises(ValueError, match="do not fit"):
        load_checkpoint(folder)


def test_meta_folder_without_weights_is_named(tmp_path):
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"has params.json, but no consolidated.\*.pth: fetch the weights"):
        load_checkpoint(tmp_path)


def test_pickled_weights_beside_a_config_are_not_read(saved):
    torch.save(load_file(saved / "model.safetensors"), saved / "pytorch_model.bin")
    (saved / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors is missing: this course reads safetensors only"):
        load_checkpoint(saved)


class Intruder:
    """Unpickling this creates a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("form", ["zip", "legacy", "bare pickle"])
def test_a_pth_that_tries_to_run_code_does_not_run_it(tmp_path, form):
    marker = tmp_path / "it-ran"
    folder = write_meta(tmp_path / "meta", our_model())
    content = {"tok_embeddings.weight": torch.ones(64, 32), "norm.weight": Intruder(marker)}
    path = folder / "consolidated.00.pth"
    if form == "bare pickle":
        path.write_bytes(pickle.dumps(Intruder(marker)))
        pickle.loads(path.read_bytes())
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
        torch.load(path, weights_only=False)
    assert marker.exists()  # it would have run
    marker.unlink()
    with pytest.raises(ValueError, match=r"consolidated.00.pth is damaged or holds something other than tensors"):
        load_checkpoint(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content", [[torch.ones(2)], torch.ones(2), {"norm.weight": 3}, {3: torch.ones(2)}, {}], ids=str
)
def test_a_pth_that_holds_no_weights_by_name_is_refused(tmp_path, content):
    folder = write_meta(tmp_path / "meta", our_model())
    torch.save(content, folder / "consolidated.00.pth")
    with pytest.raises(ValueError, match="meta"):
        load_checkpoint(folder)


def test_a_tied_head_that_differs_is_named(tmp_path):
    save_checkpoint(our_model(tie_embeddings=True), tmp_path / "saved")
    edit_weights(tmp_path / "saved", lambda w: w.update({"lm_head.weight": torch.ones(64, 32)}))
    with pytest.raises(ValueError, match=r"the config ties embeddings, lm_head differs from tok_embeddings: untie"):
        load_checkpoint(tmp_path / "saved")


@pytest.mark.parametrize("size", [10**12, 10**30])
@pytest.mark.parametrize(
    "names",
    [
        ["vocab_size"],
        ["hidden_size"],
        ["intermediate_size"],
        ["num_hidden_layers"],
        ["head_dim"],
        ["num_attention_heads", "num_key_value_heads"],
        ["hidden_size", "head_dim", "vocab_size"],
    ],
    ids="+".join,
)
def test_absurd_sizes_are_refused_without_allocating_them(saved, names, size):
    edit_json(saved / "config.json", lambda c: c.update(dict.fromkeys(names, size)))
    with pytest.raises(ValueError, match=str(size)):
        load_checkpoint(saved)


def test_a_long_max_seq_len_costs_nothing(saved):
    edit_json(saved / "config.json", lambda c: c.update(max_position_embeddings=10**12))
    assert load_checkpoint(saved).config.max_seq_len == 10**12


# ------------------------------------------------------------------------------------------------ fuzz


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """One folder of each kind, small."""
    place = tmp_path_factory.mktemp("originals")
    save_checkpoint(our_model(rope_scaling={"type": "llama3", **LLAMA3}), place / "hugging_face")
    their_model().save_pretrained(place / "sharded", max_shard_size="60KB")
    write_meta(place / "meta", our_model(), n_shards=2, embeddings_cut=1)
    return place


FILES = {
    "hugging_face": ["config.json", "model.safetensors"],
    "sharded": ["config.json", "model.safetensors.index.json"],
    "meta": ["params.json", "consolidated.01.pth"],
}


def loads_or_says_why(folder):
    try:
        load_checkpoint(folder)
    except SPOILT as error:
        text = str(error)
    else:
        return
    assert str(folder) in text


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_load_or_are_refused(originals, data):
    kind = data.draw(st.sampled_from(sorted(FILES)))
    name = data.draw(st.sampled_from(FILES[kind]))
    content = bytearray((originals / kind / name).read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:  # the first 3000 bytes hold the header
        place = st.integers(0, min(3000, len(content)) - 1) | st.integers(0, len(content) - 1)
        for position, byte in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=8)):
            content[position] = byte
    with tempfile.TemporaryDirectory() as copy:
        folder = Path(copy) / "folder"
        shutil.copytree(originals / kind, folder)
        (folder / name).write_bytes(content)
        loads_or_says_why(folder)


ODD_VALUES = st.sampled_from(
    [None, True, -1, 0, 1, 3, 1.5, 10**12, 1e400, -0.0, float("nan"), "", "4", [], [1], {}, {"a": 1}, {"type": 3}]
)


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_odd_values_in_the_json_load_or_are_refused(originals, data):
    kind = data.draw(st.sampled_from(sorted(FILES)))
    name = FILES[kind][0]
    content = json.loads((originals / kind / name).read_text())
    place = content
    if kind != "meta" and data.draw(st.booleans()):
        place = content["rope_parameters"]
    keys = data.draw(st.lists(st.sampled_from(sorted(place)), min_size=1, max_size=2))
    if kind == "meta":
        keys += data.draw(st.lists(st.sampled_from(["rope_theta", "ffn_dim_multiplier", "max_seq_len"]), max_size=1))
        content["use_scaled_rope"] = data.draw(st.booleans())
        keys += data.draw(st.lists(st.sampled_from(["rope_scaling_factor", "rope_high_freq_factor"]), max_size=1))
    for key in keys:
        place[key] = data.draw(ODD_VALUES)
    with tempfile.TemporaryDirectory() as copy:
        folder = Path(copy) / "folder"
        shutil.copytree(originals / kind, folder)
        (folder / name).write_text(json.dumps(content))
        loads_or_says_why(folder)


def test_config_errors_name_the_file():
    with pytest.raises(ValueError, match=r"here/config.json"):
        config_from_hugging_face({"model_type": "llama", **SIZES, "num_key_value_heads": 3}, "here/config.json")


# -------------------------------------------------------------------------------------------------- the Hub


def test_fetched_folder_opens_as_any_other(saved, monkeypatch):
    asked = {}

    def snapshot_download(name, **settings):
        asked.update(settings, name=name)
        return str(saved)

    monkeypatch.setattr(helpers.checkpoint, "snapshot_download", snapshot_download)
    assert (
        load_checkpoint(helpers.checkpoint.fetch_checkpoint("owner/model-1.5b")).config == load_checkpoint(saved).config
    )
    assert asked["name"] == "owner/model-1.5b"
    assert asked["allow_patterns"] == ["*.safetensors", "*.json"]


@pytest.mark.parametrize("kind", [FileNotFoundError, HTTPError], ids=["nothing in the cache", "a proxy that refuses"])
def test_without_a_network_fetching_says_what_to_do(kind, monkeypatch):
    def snapshot_download(name, **settings):
        raise kind("no connection")

    monkeypatch.setattr(helpers.checkpoint, "snapshot_download", snapshot_download)
    with pytest.raises(
        ConnectionError, match=rf"owner/model could not be fetched \({kind.__name__}\): check name, network"
    ):
        helpers.checkpoint.fetch_checkpoint("owner/model")


@pytest.mark.parametrize("name", ["model", "a/b/c", "../secret", "owner/", "owner/mo del"])
def test_a_name_that_is_none_is_refused_before_asking(name, monkeypatch):
    monkeypatch.setattr(helpers.checkpoint, "snapshot_download", None)
    with pytest.raises(ValueError, match="is not a name on the Hub: write owner/model"):
        helpers.checkpoint.fetch_checkpoint(name)
