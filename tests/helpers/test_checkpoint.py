"""Checkpoints open here and in transformers with equal logits; a folder that is not right is refused and says why.

Damage of any other kind is drawn in test_fuzz.py, and files that were made to do harm are in test_hostile.py.
"""

import json
import operator
import os
import re
import shutil
import stat
from dataclasses import replace
from functools import partial
from itertools import product
from unittest import mock

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file, save_model
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import helpers.checkpoint
from beyond import families
from beyond.families.reference import SIZES, save_random
from beyond.fast_decode import prepare_for_decoding
from beyond.parallel import split_model
from helpers.checkpoint import config_to_hugging_face, load_checkpoint, save_checkpoint
from helpers.config import LLAMA3_SCALING
from helpers.corpus import END_OF_TEXT, train_tokenizer
from helpers.generate import end_tokens
from helpers.text import TINY_LLAMA, load_tokenizer
from tests.support.files import OURS, edit_json, edit_weights, meta_shards, meta_weights, write_meta
from tests.support.models import BFLOAT16, TINY, TINY_CONFIGS, TOLERANCE, assert_agree, enlarge, make_model
from tests.support.transformers_four import run_with_four

OURS = replace(OURS, norm_eps=1e-5)
# A trained length of 16 tokens, so that the scaling acts within the 16 tokens of these tests.
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
TOKENS = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1))
SAVED = TINY_CONFIGS | {kind: replace(TINY, rope_scaling={"type": kind, "factor": 4.0}) for kind in ("ntk", "dynamic")}


def our_model(**changes):
    return make_model(replace(OURS, **changes)).eval()


@torch.no_grad()
def logits_of(model):
    out = model(TOKENS)
    return out if isinstance(out, torch.Tensor) else out.logits


def assert_same_logits(ours, theirs, tolerance=TOLERANCE):
    assert_agree(logits_of(ours), logits_of(theirs).float(), tolerance)


@pytest.mark.parity
@pytest.mark.parametrize("head_dim", [8, 12])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_folder_of_transformers_gives_equal_logits(tmp_path, head_dim, tied):
    """Every spelling of RoPE is in test_configs.py."""
    config = replace(OURS, head_dim=head_dim, tie_embeddings=tied)
    theirs = enlarge(LlamaForCausalLM(LlamaConfig(**config_to_hugging_face(config)))).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB" if tied else "1GB")  # several files, or one
    ours = load_checkpoint(tmp_path)
    assert (ours.lm_head.weight is ours.tok_embeddings.weight) == tied
    assert not ours.training
    assert_same_logits(ours, theirs)


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


def by_save_model(theirs, folder):
    theirs.config.save_pretrained(folder)
    save_model(theirs, folder / "model.safetensors")  # holds lm_head, and not the embedding


def twice(theirs, folder):
    AutoModelForCausalLM.from_config(theirs.config).save_pretrained(folder, max_shard_size="20KB")
    theirs.save_pretrained(folder)  # its index stays, the files that it names do not
    assert (folder / "model.safetensors.index.json").exists()


TOOLS = {"save_model": by_save_model, "the base model": lambda theirs, folder: theirs.model.save_pretrained(folder),
         "saved twice": twice}  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_folders_of_other_tools_open_as_in_transformers(tmp_path, kind, tool):
    theirs = enlarge(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, tie_word_embeddings=True)))
    TOOLS[tool](theirs, tmp_path)
    assert_same_logits(families.load_checkpoint(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path))
    assert_same_logits(families.load_checkpoint(tmp_path), theirs)


@pytest.mark.parity
@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "language_model.", "base_model.model."])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_prefix_of_all_names_is_named_and_the_line_that_removes_it_works(tmp_path, prefix, tied):
    model, file = our_model(tie_embeddings=tied), tmp_path / "saved" / "model.safetensors"
    save_checkpoint(model, file.parent)
    save_file({prefix + name: weight for name, weight in load_file(file).items()}, file, {"format": "pt"})
    assert AutoModelForCausalLM.from_pretrained(file.parent, output_loading_info=True)[1]["missing_keys"]
    said = refused(file.parent)
    assert f"names of its weights begin with {prefix!r}" in said
    exec(re.search(r"save_file\(.*\)", said)[0], {"load_file": load_file, "save_file": save_file, "file": file})
    assert_same_logits(load_checkpoint(file.parent), AutoModelForCausalLM.from_pretrained(file.parent))
    assert_same_logits(load_checkpoint(file.parent), model)


def refused(folder):
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        load_checkpoint(folder)
    return str(raised.value)


def adding(name, *size):
    return lambda folder: edit_weights(folder, lambda weights: weights.update({name: torch.ones(size)}))


def saying(file="config.json", **settings):
    return lambda folder: edit_json(folder / file, lambda content: content.update({"rope_parameters": None} | settings))


def with_content(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def renamed(new, name="model.safetensors"):
    return lambda folder: (folder / name).rename(folder / new)


def beside_shards(folder, shard="model-1.safetensors"):
    shutil.copy(folder / "model.safetensors", folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))


def without_a_shard(folder):
    beside_shards(folder)
    renamed("weights")(folder)
    renamed("other weights", "model-1.safetensors")(folder)


def tied_to_more_rows(folder):
    saying(tie_word_embeddings=True)(folder)
    adding("lm_head.weight", 70, 32)(folder)


def as_pth(content, **how):
    return lambda folder: torch.save(content, folder / "consolidated.00.pth", **how)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"
FEW_BITS = ["scales", "biases", "qweight", "qzeros", "g_idx"]  # MLX; GPTQ and AWQ
FEW_BITS += ["absmax", "SCB", "weight_packed", "weight_scale", "weight_scale_inv"]  # bitsandbytes; FP8 and others
KINDS = {  # words of the error, and what makes such a folder
    **{f"quantised ('model.layers.1.mlp.up_proj.{kind}')": adding(f"model.layers.1.mlp.up_proj.{kind}")
       for kind in FEW_BITS},
    "saved: two weights get one name": adding("final_norm.weight", 32),
    "two sets of weights, model.safetensors and the files that model.safetensors.index.json names": beside_shards,
    "model-1.safetensors is missing: fetch it as well": without_a_shard,
    "model.safetensors is missing: config.json is here, but no weights": renamed("weights"),
    "config.json holds a list, not an object: fetch the file again": with_content("config.json", b"[]"),
    "config.json is a pointer of Git LFS, not the file itself: run git lfs pull": with_content("config.json", POINTER),
    "model.safetensors is a pointer of Git LFS": with_content("model.safetensors", POINTER),
    "tokenizer.json is a pointer of Git LFS": with_content("tokenizer.json", POINTER),
    "model.safetensors is a web page": with_content("model.safetensors", b"<!DOCTYPE html>"),
    "model.safetensors is in llama.cpp's format": with_content("model.safetensors", b"GGUF" + bytes(60)),
    "model-1-of-2.safetensors is one of several: fetch model.safetensors.index": renamed("model-1-of-2.safetensors"),
    "model.fp16.safetensors is a variant, which is asked for by name: rename it": renamed("model.fp16.safetensors"),
    "model.safetensors.index.fp16.json is a variant's index: rename it": renamed("model.safetensors.index.fp16.json"),
    "adapter_model.safetensors belongs to an adapter (peft)": renamed("adapter_model.safetensors"),
    "adapter_config.json belongs to an adapter (peft)": renamed("adapter_config.json", "config.json"),
    "pytorch_model_fsdp.bin is pickled, and FSDP's: rename it": renamed("pytorch_model_fsdp.bin"),
    "pytorch_model_fsdp_0 is FSDP's, a part of the weights": renamed("pytorch_model_fsdp_0"),
    "pytorch_model.bin is pickled: open what transformers makes of it": renamed("pytorch_model.bin"),
    "lm_head.weight is (70, 32), tied by the config to tok_embeddings.weight (64, 32)": tied_to_more_rows,
    "describes a 'gpt_neox' model, not 'llama': ": saying(model_type="gpt_neox"),
    "sets attention_bias=True": saying(attention_bias=True), "sets mlp_bias=True": saying(mlp_bias=True),
    "sets quantization_config={'bits': 4}": saying(quantization_config={"bits": 4}),
    "sets transformers_weights='other.safetensors'": saying(transformers_weights="other.safetensors"),
    "sets is_causal=None": saying(is_causal=None),
    "sets rope_type='yarn'": saying(rope_parameters={"rope_type": "yarn", "factor": 2.0}),
    "RoPE type 'proportional' is not known": saying(rope_scaling={"rope_type": "proportional"}),
    "RoPE of type 'dynamic' needs factor": saying(rope_scaling={"rope_type": "dynamic"}),
}  # fmt: skip
METAS = {
    "sets sliding_window=16, which this course does not know": saying("params.json", sliding_window=16),
    "sets moe={'num_experts': 8}": saying("params.json", moe={"num_experts": 8}),
    "is in the format of torch.save before PyTorch 1.6": as_pth(
        meta_weights(OURS), _use_new_zipfile_serialization=False),
    "consolidated.00.pth is a pointer of Git LFS": with_content("consolidated.00.pth", POINTER),
    "is in Mistral's own format": renamed("consolidated.safetensors", "consolidated.00.pth"),
    "was not opened (AttributeError)": as_pth([torch.ones(2)]),
    "make no LLaMA ('int' object": as_pth({3: torch.ones(2)}), "'tok_embeddings.weight' is missing": as_pth({}),
}  # fmt: skip


@pytest.mark.parametrize("words", KINDS | METAS)
def test_a_folder_of_another_kind_is_named(saved, tmp_path, words):
    folder = saved if words in KINDS else write_meta(tmp_path / "meta", [meta_weights(OURS)])
    (KINDS | METAS)[words](folder)
    for open_it in (load_tokenizer,) if "tokenizer" in words else (load_checkpoint, families.load_checkpoint):
        with pytest.raises((ValueError, FileNotFoundError), match=re.escape(words)) as raised:
            open_it(folder)
    if "PyTorch 1.6" in words:
        path = folder / "consolidated.00.pth"
        exec(re.search(r"torch\.save\(torch\.load.*\)", str(raised.value))[0], {"torch": torch, "path": path})
        assert_same_logits(load_checkpoint(folder), make_model(OURS))


@pytest.mark.parity
@pytest.mark.parametrize("door", [load_checkpoint, families.load_checkpoint])
def test_a_config_of_bitsandbytes_that_quantises_nothing_is_opened(saved, door):
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False, "_load_in_8bit": False}
    saying(quantization_config=settings)(saved)
    assert_same_logits(door(saved), AutoModelForCausalLM.from_pretrained(saved))
    saying(quantization_config=settings | {"load_in_8bit": True})(saved)
    with pytest.raises(ValueError, match="a few bits each"):
        door(saved)


def test_where_weights_are_only_missing_what_transformers_makes_up_is_no_remedy(saved):
    edit_weights(saved, lambda weights: weights.pop("model.norm.weight"))
    assert refused(saved).endswith("fetch config and weights of one model.\n  missing: final_norm.weight")
    adding("gain", 2)(saved)
    assert "and reports none as MISSING, what it saves opens here" in refused(saved)


def test_a_loaded_model_has_no_use_for_old_rotation_tables_and_does_not_depend_on_its_file(saved):
    edit_weights(saved, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    model = load_checkpoint(saved)
    before = logits_of(model)
    (saved / "model.safetensors").write_bytes(bytes((saved / "model.safetensors").stat().st_size))
    torch.testing.assert_close(logits_of(model), before, rtol=0, atol=0)


@pytest.mark.parity
@pytest.mark.parametrize("name", SAVED)
def test_a_saved_folder_opens_unchanged_in_transformers_and_here(tmp_path, name):
    ours = make_model(SAVED[name]).eval()
    save_checkpoint(ours, tmp_path / "saved")
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is LlamaForCausalLM
    assert_same_logits(ours, theirs)
    again = load_checkpoint(tmp_path / "saved")
    torch.testing.assert_close(dict(again.state_dict()), dict(ours.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(again.inv_freq, ours.inv_freq)
    assert (again.lm_head.weight is again.tok_embeddings.weight) == ours.config.tie_embeddings
    said = config_to_hugging_face(ours.config)  # RoPE in the older words, which only transformers 4 reads, is the same
    older = {"rope_theta": said["rope_theta"], **(said["rope_scaling"] or {"rope_type": "default"})}
    assert older == said["rope_parameters"]


READ = """
import sys, torch
tokens, *folders = sys.argv[1:]
open_it = transformers.AutoModelForCausalLM.from_pretrained
read = {folder: open_it(folder)(torch.load(tokens)).logits for folder in folders}
torch.save({folder: logits.detach() for folder, logits in read.items()}, f"{tokens}.logits")
"""


@pytest.mark.slow
@pytest.mark.parity
def test_what_is_saved_opens_in_the_last_transformers_4_with_the_same_logits(tmp_path):
    expected = {}
    for (name, config), tied in product(SAVED.items(), (False, True)):
        model = make_model(replace(config, tie_embeddings=tied)).eval()
        save_checkpoint(model, folder := tmp_path / f"{name} {tied}")
        expected[str(folder)] = logits_of(model)
    torch.save(TOKENS, tokens := tmp_path / "tokens")
    run_with_four(READ, tokens, *expected)
    read = torch.load(tmp_path / "tokens.logits")
    assert read.keys() == expected.keys()
    for folder, logits in expected.items():
        assert_agree(read[folder], logits)


TEXTS = "  The cat's 2 hats. ", "naïve  Ω\r\n\t日本 \U0001f642e\u0301\0\ufeff", f"one{END_OF_TEXT}two[PAD]", ""
STORED = {  # settings that a tokenizer stores of its training, which must not act
    "nothing": lambda tokenizer: None, "truncation": lambda tokenizer: tokenizer.enable_truncation(4),
    "padding": lambda tokenizer: tokenizer.enable_padding(length=64),
    "padding with [PAD], which is no token": lambda tokenizer: tokenizer.enable_padding(),
}  # fmt: skip
MARKS = "special", "special, but read as text", "not special", "a word"  # the end of a text is one of these


@pytest.mark.parity
@pytest.mark.parametrize(("mark", "stored"), [*product(MARKS[1:], ["nothing"]), *product(MARKS[:1], STORED)])
def test_a_saved_tokenizer_gives_the_same_ids_in_transformers_and_here(tmp_path, mark, stored):
    content = json.loads(train_tokenizer("The cat sat on the mat. " * 50, vocab_size=300).to_str())
    content["added_tokens"][0]["special"] = mark in MARKS[:2]
    content["added_tokens"] *= mark != "a word"
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = mark == MARKS[1]
    expected = [tokenizer.encode(text).ids for text in TEXTS]
    STORED[stored](tokenizer)
    save_checkpoint(our_model(vocab_size=300), tmp_path / "saved", tokenizer)
    assert bool(tokenizer.padding or tokenizer.truncation) == (stored != "nothing")  # the caller's stays as it is
    assert Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json")).padding is None
    theirs, again = AutoTokenizer.from_pretrained(tmp_path / "saved"), load_tokenizer(tmp_path / "saved")
    for text, ids in zip(TEXTS, expected, strict=True):
        assert theirs(text)["input_ids"] == again.encode(text).ids == ids
        assert theirs.decode(ids, skip_special_tokens=False) == text
        assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    if mark in MARKS[:2]:  # a pipeline pads a batch with the second
        assert {theirs.eos_token_id, theirs.pad_token_id} == {tokenizer.token_to_id(END_OF_TEXT)}
    opened, end = AutoModelForCausalLM.from_pretrained(tmp_path / "saved"), 0 if mark in MARKS[:2] else None
    assert {opened.config.eos_token_id, opened.generation_config.eos_token_id, end_tokens(tmp_path / "saved")} == {end}
    assert (opened.config.bos_token_id, opened.config.pad_token_id) == (None, None)  # a pad token would learn nothing


def test_a_whole_number_as_eps_is_stored_as_the_float_that_transformers_asks_for():
    assert repr(config_to_hugging_face(replace(OURS, norm_eps=0))["rms_norm_eps"]) == "0.0"


def test_the_bundled_folder_is_what_is_saved_today(tmp_path):
    save_checkpoint(load_checkpoint(TINY_LLAMA, torch.float16), tmp_path / "saved", load_tokenizer())
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        assert (tmp_path / "saved" / name).read_text("utf-8") == (TINY_LLAMA / name).read_text("utf-8"), name


def test_a_saved_folder_is_as_open_to_others_as_the_umask_says(tmp_path):
    folder, whole = tmp_path / "deep" / "saved", {"original_max_position_embeddings": torch.tensor(64)}
    before = os.umask(0o022)
    try:
        model = our_model(vocab_size=300, rope_scaling={"type": "llama3", "factor": 2.0} | whole)
        save_checkpoint(model, folder, train_tokenizer("abab", vocab_size=260), card="# Card ä\n")
    finally:
        os.umask(before)
    assert (folder / "README.md").read_text(encoding="utf-8") == "# Card ä\n"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


@pytest.mark.parity
def test_a_tied_head_that_was_trained_apart_is_not_dropped(tmp_path):
    model = our_model(tie_embeddings=True)
    model.load_state_dict({name: weight.clone() for name, weight in model.state_dict().items()}, assign=True)
    save_checkpoint(model, tmp_path / "equal")  # two matrices, the same numbers: one is stored
    assert_same_logits(model, AutoModelForCausalLM.from_pretrained(tmp_path / "equal"))
    with torch.no_grad():
        model.lm_head.weight += 1
    for lose, *given in ((save_checkpoint, tmp_path / "new"), (split_model, mock.Mock(size=lambda: 1))):
        with pytest.raises(ValueError, match=r"config ties .* model\.config = dataclasses\.replace\("):
            lose(model, *given)
    model.config = replace(model.config, tie_embeddings=False)
    save_checkpoint(model, tmp_path / "new")
    assert_same_logits(model, AutoModelForCausalLM.from_pretrained(tmp_path / "new"))


NOT_ITS_CONFIG = {  # words of the error, and changes that config.json cannot say
    "shape: tok_embeddings.weight is (80, 32), the config asks for (64, 32)": lambda model: setattr(
        model, "tok_embeddings", torch.nn.Embedding(80, model.config.dim)),
    "left over: scale": lambda model: model.register_parameter("scale", torch.nn.Parameter(torch.ones(2))),
    "model.inv_freq is not that of model.config": lambda model: model.inv_freq.mul_(0.5),
    "missing: layers.0.attention.k_proj.weight": lambda model: prepare_for_decoding(model, layout="rows"),
    "not finite: final_norm.weight holds NaN": lambda model: model.final_norm.weight.data.fill_(torch.nan),
    "takes a Llama, not a Linear": lambda model: torch.nn.Linear(2, 2),
}  # fmt: skip


@pytest.mark.parametrize("words", NOT_ITS_CONFIG)
def test_a_model_that_would_open_as_another_is_not_saved(tmp_path, words):
    model = our_model(tie_embeddings=True)
    changed = NOT_ITS_CONFIG[words](model)
    with pytest.raises(ValueError, match=re.escape(words)):
        save_checkpoint(changed if isinstance(changed, torch.nn.Module) else model, tmp_path / "new")
    assert not any(tmp_path.iterdir())


compiled = partial(torch.compile, backend="eager")
WRAPPED = {  # how, and the function that wraps or changes the model
    "compiled": compiled, "averaged": torch.optim.swa_utils.AveragedModel,
    "a compiled block": lambda model: operator.setitem(model.layers, 0, compiled(model.layers[0])) or model,
    "one block twice": lambda model: operator.setitem(model.layers, 1, model.layers[0]) or model,
    "one matrix": lambda model: setattr(model.lm_head, "weight", model.tok_embeddings.weight) or model,
    "two dtypes, of which the wider one is opened": lambda model: model.tok_embeddings.bfloat16() and model,
}  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize("how", WRAPPED)
def test_a_model_inside_another_shared_matrices_and_two_dtypes_are_saved_as_they_are(tmp_path, how):
    model = our_model()
    save_checkpoint(WRAPPED[how](model), tmp_path / "new")
    assert_same_logits(model.float(), AutoModelForCausalLM.from_pretrained(tmp_path / "new"))


def test_what_exists_is_kept(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link to nothing").symlink_to("nothing")
    for path in list(tmp_path.iterdir()):
        with pytest.raises(FileExistsError, match=f"{path.name} exists and is kept: choose another name"):
            save_checkpoint(our_model(), path)


@pytest.mark.parametrize("numbers", [["00"], ["00", "01"], ["9", "10"]], ids=str)
@pytest.mark.parametrize("embeddings_cut", [0, 1], ids=["vocabulary cut (Llama 3)", "width cut (Llama 2)"])
def test_meta_shards_in_the_order_of_their_numbers_give_equal_logits(tmp_path, numbers, embeddings_cut):
    model = our_model()
    folder = write_meta(tmp_path / "meta", meta_shards(model, len(numbers), embeddings_cut))
    for written, number in zip(sorted(folder.glob("*.pth")), numbers, strict=True):
        last = written.rename(folder / f"consolidated.{number}.pth")
    assert_same_logits(load_checkpoint(folder), model)
    last.unlink()
    rows = "1 .pth hold 16 of 32 rows of wq: some consolidated.*.pth are missing"
    assert (rows if len(numbers) > 1 else "no consolidated.*.pth: fetch the weights") in refused(folder)


def full(*_, **__):
    raise RuntimeError("unable to mmap 400 bytes from file <x>: Cannot allocate memory (12)")


FILES = "helpers.formats.files"
OPENS = [f"{FILES}.safe_open", f"{FILES}.StoredWeight.__getitem__", "torch.Tensor.isfinite"]
JOINS = ["torch.load", "torch.cat", "torch.equal", "torch.Tensor.isfinite"]  # steps at which memory may be full


@pytest.mark.parametrize(("kind", "step"), [*product(("llama", "phi3"), OPENS), *product(("meta",), JOINS)])
def test_a_full_memory_is_not_called_a_damaged_file(tmp_path, monkeypatch, kind, step):
    folder = write_meta(tmp_path, meta_shards(our_model(), 2)) if kind == "meta" else save_random(kind)[1]
    monkeypatch.setattr(step, full)
    with pytest.raises(torch.OutOfMemoryError, match=rf"{folder}.*: pass dtype=torch.bfloat16"):
        families.load_checkpoint(folder)


SCALED = {"use_scaled_rope": True, "rope_theta": 500.0}


@pytest.mark.parametrize(("params", "ours"), [
    (SCALED, {"rope_theta": 500.0, "rope_scaling": {"factor": 8.0}}),
    (SCALED | {"rope_scaling_factor": 32}, {"rope_theta": 500.0, "rope_scaling": {"factor": 32.0}}),
    (SCALED, {"rope_theta": 500.0, "rope_scaling": {"factor": 32.0}, "tie_embeddings": True}),  # Llama 3.2 1B is so
    ({"use_scaled_rope": False, "rope_theta": 500.0}, {"rope_theta": 500.0}), ({"norm_eps": 0.1}, {"norm_eps": 0.1}),
    ({"ffn_dim_multiplier": 1.15}, {"hidden_dim": 104}),  # 97, rounded up to a multiple of 8
    ({"n_kv_heads": None}, {"n_kv_heads": 4}),  # files of multi-head models do not say it
    ({"hidden_dim": 104, "sliding_window": None}, {"hidden_dim": 104}),  # Mistral's files say so
    ({"head_dim": 8, "max_batch_size": 4}, {}),
], ids=str)  # fmt: skip
def test_meta_params_reach_the_model(tmp_path, monkeypatch, params, ours):
    # a trained length of 16 instead of 8192: the scaling then acts within 16 tokens
    monkeypatch.setitem(LLAMA3_SCALING, "original_max_position_embeddings", 16)
    if "rope_scaling" in ours:
        ours = ours | {"rope_scaling": {"type": "llama3", **LLAMA3, **ours["rope_scaling"]}}
    model = our_model(**ours)
    assert_same_logits(load_checkpoint(write_meta(tmp_path / "meta", meta_shards(model), **params)), model)


@pytest.mark.parametrize(("params", "length"), [
    ({}, 4096), ({"rope_theta": 500_000.0}, 8192), (SCALED, 131_072), (SCALED | {"max_seq_len": 99}, 99),
], ids=str)  # fmt: skip
def test_a_meta_folder_that_does_not_say_how_long_it_reads_gets_the_length_of_its_generation(tmp_path, params, length):
    assert load_checkpoint(write_meta(tmp_path, [meta_weights(OURS)], **params)).config.max_seq_len == length


def test_meta_folder_with_one_matrix_is_tied(tmp_path):
    model = our_model(tie_embeddings=True)
    (weights,) = meta_shards(model)
    for _ in range(2):
        loaded = load_checkpoint(write_meta(tmp_path, [weights]))
        weights.pop("output.weight", None)
        assert loaded.lm_head.weight is loaded.tok_embeddings.weight
        assert_same_logits(loaded, model)


def test_all_weights_that_do_not_fit_are_in_one_error(saved):
    def change(weights):
        del weights["model.layers.0.mlp.up_proj.weight"]
        weights["model.extra.weight"] = torch.ones(3)
        weights["model.layers.1.self_attn.k_proj.weight"] = torch.ones(4, 32)
        weights["model.layers.0.input_layernorm.weight"] = torch.ones(32, dtype=torch.int8)
        weights["model.layers.1.input_layernorm.weight"].fill_(float("inf"))
        weights["model.norm.weight"].fill_(float("nan"))

    edit_weights(saved, change)
    said = refused(saved)
    for words in (
        str(saved), "6 weights do not fit. Nothing was loaded", "missing: layers.0.feed_forward.up_proj.weight",
        "left over: model.extra.weight", "dtype: layers.0.attention_norm.weight is torch.int8",
        "shape: layers.1.attention.k_proj.weight is (4, 32), the config asks for (16, 32)",
        "not finite: layers.1.attention_norm.weight", "not finite: final_norm.weight holds NaN or infinity",
    ):  # fmt: skip
        assert words in said


def test_an_error_is_short_whatever_a_file_holds(saved, tmp_path):
    long, weights, said = "a" * 10**6, meta_weights(OURS), []
    for name in (long, f"model.{long}.norm.weight", f"{long}.scales"):
        adding(name, 1)(saved)
        said += [refused(saved)]
    for name in (long, f"{long}.safetensors"):
        with_content("model.safetensors.index.json", json.dumps({"weight_map": {"a": name}}).encode())(saved)
        said += [refused(saved)]
    for more in (1, torch.ones(1), torch.ones(1).to_sparse()):
        said += [refused(write_meta(tmp_path / "meta", [weights | {long: more}]))]
    said += [refused(write_meta(tmp_path / "meta", [weights | {long: torch.ones(1)}, weights]))]
    said += [refused(write_meta(tmp_path / "params", [weights], **{long: long}))]
    assert max(map(len, said)) < 1000


NEEDED = {f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)}
NEEDED |= {"model.safetensors.index.json", "config.json", "tokenizer.json"}
BESIDE = [  # other files of the Hub's folders: Mistral 7B, Llama 3 8B, gpt-oss 20B, SmolLM2 135M, an old one
    "consolidated.safetensors", "tokenizer.model.v3", "README.md", "original/consolidated.00.pth",
    "original/model.safetensors", "original/config.json", "chat_template.jinja", "onnx/model.onnx",
    "pytorch_model-00001-of-00002.bin", "flax_model.msgpack", "modeling_llama.py",
]  # fmt: skip


def test_each_weight_is_fetched_once_and_nothing_that_runs(tmp_path):
    with mock.patch("huggingface_hub.snapshot_download", return_value=str(tmp_path)) as download:
        assert helpers.checkpoint.fetch_checkpoint("owner/model-1.5b") == tmp_path
    patterns = {one: download.call_args.kwargs.get(one) for one in ("allow_patterns", "ignore_patterns")}
    assert set(filter_repo_objects([*NEEDED, *BESIDE], **patterns)) == NEEDED
