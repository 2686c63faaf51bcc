"""Checkpoints open here and in transformers with equal logits; a folder that is not right is refused and says why.

Damage of any other kind is drawn in test_fuzz.py, and files that were made to do harm are in test_hostile.py.
"""

import os
import re
import stat
from dataclasses import replace
from functools import partial

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers import LlamaConfig as TheirConfig

import helpers.checkpoint
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.config import LLAMA3_SCALING
from helpers.corpus import END_OF_TEXT, train_tokenizer
from tests.support.files import OURS, cut_meta_weights, edit_json, write_meta
from tests.support.models import BFLOAT16, TOLERANCE, assert_agree, enlarge, make_model

OURS = replace(OURS, norm_eps=1e-5)
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
# A trained length of 16 tokens, so that the scaling acts within the 16 tokens of these tests.
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
}
TOKENS = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1))
both = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])


def their_model(rope="default", theta=10_000.0, **changes):
    config = TheirConfig(**SIZES | {"rope_parameters": ROPES[rope] | {"rope_theta": theta}} | changes)
    return enlarge(LlamaForCausalLM(config)).eval()


def our_model(**changes):
    return make_model(replace(OURS, **changes)).eval()


@torch.no_grad()
def logits_of(model):
    out = model(TOKENS)
    return out if isinstance(out, torch.Tensor) else out.logits


def assert_same_logits(ours, theirs, tolerance=TOLERANCE):
    assert_agree(logits_of(ours), logits_of(theirs).float(), tolerance)


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


# ------------------------------------------------------------------------------------ from Hugging Face


@pytest.mark.parity
@pytest.mark.parametrize(("rope", "more"), [*((rope, {}) for rope in ROPES), ("default", {"head_dim": 12})], ids=str)
@both
def test_folder_of_transformers_gives_equal_logits(tmp_path, rope, more, tied):
    theirs = their_model(rope, tie_word_embeddings=tied, **more)
    theirs.save_pretrained(tmp_path)
    ours = load_checkpoint(tmp_path)
    assert (ours.lm_head.weight is ours.tok_embeddings.weight) == tied
    assert not ours.training
    assert_same_logits(ours, theirs)


@pytest.mark.parity
def test_several_files_give_the_logits_of_one_and_a_missing_one_is_named(tmp_path):
    theirs = their_model()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert_same_logits(load_checkpoint(tmp_path), theirs)
    second = next(tmp_path.glob("model-00002-*"))
    second.unlink()
    with pytest.raises(FileNotFoundError, match=f"{second.name} is missing"):
        load_checkpoint(tmp_path)


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
    assert_same_logits(load_checkpoint(tmp_path), theirs)


@pytest.mark.parity
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("asked", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_stored_in_their_own_dtype_and_loaded_in_the_one_asked_for(tmp_path, stored, asked):
    save_checkpoint(our_model().to(stored), tmp_path / "saved")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "saved").dtype == stored
    ours = load_checkpoint(tmp_path / "saved", dtype=asked)
    assert {w.dtype for w in ours.parameters()} == {asked}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=asked)
    # bfloat16 keeps 8 bits; two implementations round at other places
    assert_same_logits(ours, theirs, TOLERANCE if asked == torch.float32 else BFLOAT16)
    torch.testing.assert_close(ours.lm_head.weight, theirs.lm_head.weight, rtol=0, atol=0)


def test_a_loaded_model_does_not_depend_on_its_file(saved):
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
@both
def test_a_saved_folder_opens_unchanged_in_transformers_and_here(tmp_path, scaling, tied):
    ours = our_model(rope_scaling=SCALINGS[scaling], tie_embeddings=tied)
    save_checkpoint(ours, tmp_path / "saved")
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is LlamaForCausalLM
    assert_same_logits(ours, theirs)
    again = load_checkpoint(tmp_path / "saved")
    assert again.state_dict().keys() == ours.state_dict().keys()
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=0, atol=0)
    torch.testing.assert_close(again.inv_freq, ours.inv_freq)
    assert (again.lm_head.weight is again.tok_embeddings.weight) == tied


@pytest.mark.parity
def test_transformers_reads_the_same_token_ids(tmp_path):
    ours = train_tokenizer("The cat sat on the mat. " * 50, vocab_size=300)
    save_checkpoint(our_model(vocab_size=300), tmp_path / "saved", tokenizer=ours)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in ("The cat's 2 hats.", "naïve  Ω\n\t日本", f"one{END_OF_TEXT}two", ""):
        assert theirs(text)["input_ids"] == ours.encode(text).ids
        assert theirs.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_a_saved_folder_is_as_open_to_others_as_the_umask_says(tmp_path):
    folder = tmp_path / "deep" / "saved"
    before = os.umask(0o022)
    try:
        save_checkpoint(our_model(), folder, train_tokenizer("abab", vocab_size=260), card="# Card ä\n")
    finally:
        os.umask(before)
    assert (folder / "README.md").read_text(encoding="utf-8") == "# Card ä\n"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


def test_what_exists_is_kept(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link to nothing").symlink_to("nothing")
    for path in list(tmp_path.iterdir()):
        with pytest.raises(FileExistsError, match=f"{path.name} exists and is kept: choose another name"):
            save_checkpoint(our_model(), path)


# ------------------------------------------------------------------------------------------------ Meta


def meta_folder(folder, model, n_shards=1, embeddings_cut=0, drop=(), **params):
    """The model in a folder as Meta writes it."""
    shards = [
        {
            name: (weight if cut is None else weight.chunk(n_shards, dim=cut)[shard]).clone()
            for name, (weight, cut) in cut_meta_weights(model, embeddings_cut).items()
            if name not in drop
        }
        for shard in range(n_shards)
    ]
    return write_meta(folder, shards, **params)


@pytest.mark.parametrize("n_shards", [1, 2])
@pytest.mark.parametrize("embeddings_cut", [0, 1], ids=["vocabulary cut (Llama 3)", "width cut (Llama 2)"])
def test_meta_folder_gives_equal_logits(tmp_path, n_shards, embeddings_cut):
    model = our_model()
    folder = meta_folder(tmp_path / "meta", model, n_shards, embeddings_cut)
    assert_same_logits(load_checkpoint(folder), model)
    (folder / f"consolidated.{n_shards - 1:02d}.pth").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=r"do not fit|no .*\.pth"):
        load_checkpoint(folder)


SCALED = {"use_scaled_rope": True, "rope_theta": 500.0}


@pytest.mark.parametrize(
    ("params", "ours"),
    [
        (SCALED, {"rope_theta": 500.0, "rope_scaling": {"factor": 8.0}}),
        (SCALED | {"rope_scaling_factor": 32}, {"rope_theta": 500.0, "rope_scaling": {"factor": 32.0}}),
        # as in Llama 3.2 1B, whose file does not say 32
        (SCALED, {"rope_theta": 500.0, "rope_scaling": {"factor": 32.0}, "tie_embeddings": True}),
        ({"use_scaled_rope": False, "rope_theta": 500.0}, {"rope_theta": 500.0}),
        ({"ffn_dim_multiplier": 1.3}, {"hidden_dim": 112}),
        ({"norm_eps": 0.1}, {"norm_eps": 0.1}),
        ({"n_kv_heads": None}, {"n_kv_heads": 4}),  # files of multi-head models do not say it
    ],
    ids=str,
)
def test_meta_params_reach_the_model(tmp_path, monkeypatch, params, ours):
    # a trained length of 16 instead of 8192: the scaling then acts within 16 tokens
    monkeypatch.setitem(LLAMA3_SCALING, "original_max_position_embeddings", 16)
    if "rope_scaling" in ours:
        ours = ours | {"rope_scaling": {"type": "llama3", **LLAMA3, **ours["rope_scaling"]}}
    model = our_model(**ours)
    assert_same_logits(load_checkpoint(meta_folder(tmp_path / "meta", model, **params)), model)


@pytest.mark.parametrize("drop", [(), ("output.weight",)], ids=["head given", "head absent"])
def test_meta_folder_with_one_matrix_is_tied(tmp_path, drop):
    model = our_model(tie_embeddings=True)
    loaded = load_checkpoint(meta_folder(tmp_path / "meta", model, drop=drop))
    assert loaded.lm_head.weight is loaded.tok_embeddings.weight
    assert_same_logits(loaded, model)


# ------------------------------------------------------------------------------------- what is not right


OTHERS = [  # what the config.json of another model says
    {"model_type": "gpt_neox"}, {"model_type": None}, {"attention_bias": True}, {"mlp_bias": True},
    {"quantization_config": {"bits": 4}}, {"pretraining_tp": 2}, {"partial_rotary_factor": 0.5},
    {"rope_parameters": {"rope_type": "yarn"}}, {"rope_scaling": {"rope_type": "dynamic"}},
]  # fmt: skip


@pytest.mark.parametrize("change", OTHERS, ids=str)
def test_a_model_of_another_kind_is_named(saved, change):
    def edit(content):
        content.pop("rope_parameters")
        content |= change

    edit_json(saved / "config.json", edit)
    (value,) = change.values()
    value = value.get("rope_type", value) if isinstance(value, dict) else value
    words = r"config.json (describes a |sets \w+=|sets RoPE type )"
    with pytest.raises(ValueError, match=words + re.escape(repr(value))):
        load_checkpoint(saved)


def test_another_family_is_sent_to_its_own_door(saved):
    edit_json(saved / "config.json", lambda content: content.update(model_type="qwen3"))
    with pytest.raises(ValueError, match=r"'qwen3' model, not 'llama': use helpers\.families\.load_checkpoint"):
        load_checkpoint(saved)


def test_two_weights_of_one_name_are_refused(saved):
    edit_weights(saved, lambda weights: weights.update({"final_norm.weight": weights["model.norm.weight"] + 0}))
    with pytest.raises(ValueError, match="saved: two weights get one name"):
        load_checkpoint(saved)


def test_all_weights_that_do_not_fit_are_in_one_error(saved):
    def change(weights):
        del weights["model.layers.0.mlp.up_proj.weight"]
        weights["model.extra.weight"] = torch.ones(3)
        weights["model.layers.1.self_attn.k_proj.weight"] = torch.ones(4, 32)
        weights["model.layers.0.input_layernorm.weight"] = torch.ones(32, dtype=torch.int8)
        weights["model.layers.1.input_layernorm.weight"].fill_(float("inf"))
        weights["model.norm.weight"].fill_(float("nan"))

    edit_weights(saved, change)
    with pytest.raises(ValueError, match=r"6 weights do not fit\. Nothing was loaded") as caught:
        load_checkpoint(saved)
    for words in (
        str(saved),
        "missing: layers.0.feed_forward.up_proj.weight",
        "left over: model.extra.weight",
        "shape: layers.1.attention.k_proj.weight is (4, 32), the config asks for (16, 32)",
        "dtype: layers.0.attention_norm.weight is torch.int8",
        "not finite: layers.1.attention_norm.weight",
        "not finite: final_norm.weight holds NaN or infinity",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize("content", [[torch.ones(2)], torch.ones(2), {3: torch.ones(2)}, {}], ids=str)
def test_a_pth_that_holds_no_weights_by_name_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match="meta"):
        load_checkpoint(write_meta(tmp_path / "meta", [content]))


# -------------------------------------------------------------------------------------------------- the Hub


SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
NEEDED = {*SHARDS, "model.safetensors.index.json", "config.json", "tokenizer.json"}
BESIDE = {  # what the Hub's folders hold besides
    "Mistral 7B": ["consolidated.safetensors", "params.json", "tokenizer.model.v3", "README.md", ".gitattributes"],
    "Llama 3 8B": ["original/consolidated.00.pth", "original/params.json", "LICENSE", "USE_POLICY.md"],
    "gpt-oss 20B": ["original/model.safetensors", "original/config.json", "metal/model.bin", "chat_template.jinja"],
    "SmolLM2 135M": ["onnx/model.onnx", "onnx/config.json", "runs/events.out.tfevents.1", "training_args.bin"],
    "an old one": ["pytorch_model-00001-of-00002.bin", "flax_model.msgpack", "modeling_llama.py"],
}


@pytest.mark.parametrize("name", BESIDE)
def test_each_weight_is_fetched_once_and_nothing_that_runs(name, tmp_path, monkeypatch):
    fetched = set()

    def snapshot_download(_, *, allow_patterns=None, ignore_patterns=None, **settings):
        present = [*NEEDED, *BESIDE[name]]
        fetched.update(filter_repo_objects(present, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns))
        return str(tmp_path)

    monkeypatch.setattr(helpers.checkpoint, "snapshot_download", snapshot_download)
    assert helpers.checkpoint.fetch_checkpoint("owner/model-1.5b") == tmp_path
    assert fetched - {"params.json"} == NEEDED  # params.json is small
