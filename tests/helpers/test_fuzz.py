"""Whatever comes in loads, runs, or is refused in a sentence of ours: no other error, no endless wait, no gigabyte.

The same 500 cases on every run; `COURSE_FUZZ=nightly` draws 10,000 new ones.
"""

import base64
import html
import io
import itertools
import json
import math
import random
import re
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import AxesImage, imread
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from tokenizers import Tokenizer
from traitlets import TraitError

from helpers import explorers, plots, train
from helpers.checkpoint import config_from_hugging_face, config_to_hugging_face, load_checkpoint, save_checkpoint
from helpers.fast_decode import prepare_for_decoding
from helpers.generate import generate, next_token_probabilities
from helpers.model import Llama, LlamaConfig
from helpers.text import (
    batches,
    bits_per_byte,
    excerpt,
    held_out_split,
    load_text,
    load_tokenizer,
    train_tokenizer,
)  # fmt: skip
from tests.support.files import META, OURS, join_safetensors, meta_weights, split_safetensors
from tests.support.fuzz import (  # noqa: F401
    CASES,
    GIGABYTE,
    HELPERS,
    HUGE,
    JSON,
    LINUX,
    NIGHTLY,
    ODD,
    SCALARS,
    Hang,
    cases,
    limit_memory,
    memory,
    restart_peak,
    time_limit,
)  # fmt: skip
from tests.support.models import TINY, TINY_CONFIGS, assert_agree, draw_tokens, make_model


def test_there_are_500_cases_and_10_000_at_night():
    assert sum(CASES.values()) >= 500
    assert 20 * sum(CASES.values()) >= 10_000


# ------------------------------------------------------------------- what every case has to keep to


def outcome(call, *kinds, names="", too_large=False):
    """What call() returns, or the error of one of these kinds that one of our own `raise` lines has raised.

    Its text has to hold `names`. Unless `too_large`, no allocation may have failed on the way: something then had been
    asked for before it was checked.
    """
    with time_limit():
        try:
            return call()
        except kinds as problem:
            error = problem
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    place = Path(last.tb_frame.f_code.co_filename)
    assert HELPERS in place.parents, f"not an error of ours: {error!r}, raised in {place}"
    assert len(str(error).split()) >= 5, str(error)
    assert str(names) in str(error), str(error)
    cause = error.__cause__ or error.__context__
    assert too_large or not (isinstance(cause, MemoryError) or "allocate" in str(cause)), repr(cause)
    return error


def refused(result):
    return isinstance(result, Exception)


def test_a_foreign_error_a_hang_and_a_failed_allocation_are_seen(monkeypatch):
    with pytest.raises(AssertionError, match="not an error of ours"):
        outcome(lambda: int("x"), ValueError)
    with pytest.raises(ZeroDivisionError):
        outcome(lambda: 1 / 0, ValueError)
    monkeypatch.setitem(globals(), "SECONDS", 0.05)
    with pytest.raises(Hang):
        outcome(lambda: [None for _ in iter(int, 1)], ValueError)


@pytest.mark.skipif(not LINUX, reason="the limit is that of Linux")
def test_three_gigabytes_are_refused():
    with pytest.raises(RuntimeError, match="allocate"):
        torch.zeros(3 * GIGABYTE, dtype=torch.uint8)


# --------------------------------------------------------------------------------- what may come in

SCALING_KEYS = [
    "type", "rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "rope_theta",
]  # fmt: skip


def scalings(values):
    """Settings of RoPE: three right kinds with odd numbers, or anything."""
    kinds = st.fixed_dictionaries(
        {"type": st.sampled_from(["linear", "ntk", "llama3", "default"]), "factor": st.floats(1, 1e3) | SCALARS},
        optional={key: st.floats(0.1, 64) | st.integers(1, 64) | values for key in SCALING_KEYS[3:]},
    )
    return st.none() | kinds | st.dictionaries(st.sampled_from(SCALING_KEYS) | st.integers(), values) | values


# --------------------------------------------------------------------------------------------- configs

SMALL_SIZES = {
    "vocab_size": st.integers(1, 40), "dim": st.integers(1, 16), "n_layers": st.integers(1, 2),
    "n_heads": st.sampled_from([1, 2, 4]), "n_kv_heads": st.sampled_from([1, 2, 4]), "hidden_dim": st.integers(1, 16),
    "head_dim": st.sampled_from([None, 2, 4, 6]), "max_seq_len": st.integers(1, 2**62), "norm_eps": st.floats(0, 1),
    "rope_theta": st.floats(1.01, 1e7), "rope_scaling": scalings(ODD), "tie_embeddings": st.booleans(),
}  # fmt: skip


def is_small(config):
    widest = max(config.dim, config.hidden_dim, config.vocab_size, config.n_heads * config.head_dim)
    return config.dim * widest * config.n_layers < 2**20


@given(
    right=st.fixed_dictionaries(SMALL_SIZES),
    odd=st.dictionaries(st.sampled_from(sorted(SMALL_SIZES)), ODD, max_size=2) | st.just({}),
)
@cases("config")
def test_any_config_is_refused_or_its_model_runs_and_can_be_saved(right, odd):
    config = outcome(lambda: LlamaConfig(**right | odd), ValueError)
    if refused(config) or not is_small(config):
        return
    model = Llama(config)
    tokens = torch.arange(5)[None] % config.vocab_size
    assert model(tokens).isfinite().all()
    content = json.loads(json.dumps(config_to_hugging_face(config)))
    again = config_from_hugging_face(content)
    assert asdict(replace(again, rope_theta=2.0, rope_scaling=None)) == asdict(
        replace(config, rope_theta=2.0, rope_scaling=None)
    )
    torch.testing.assert_close(Llama(again).inv_freq, model.inv_freq)


@pytest.mark.parametrize("change", [{"bias": True}, {"tie_embeddings": ...}], ids=["unknown name", "missing name"])
def test_a_wrong_name_of_a_field_is_a_type_error_that_names_it(change):
    fields = {name: value for name, value in {**asdict(TINY), **change}.items() if value is not ...}
    with pytest.raises(TypeError, match=next(iter(change))):
        LlamaConfig(**fields)


# ------------------------------------------------------------------------------------------- checkpoints


class Files(dict):
    """Bytes of files by name, of which a failing case need not print half a megabyte."""

    def __repr__(self):
        return f"<{', '.join(self)}>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint of each kind: {name: (folder, bytes of each file)}; a test writes the file that it spoils."""
    place = tmp_path_factory.mktemp("folders")
    llama3 = {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
    save_checkpoint(make_model(replace(OURS, rope_scaling=llama3)), place / "hugging_face")
    (place / "meta").mkdir()
    (place / "meta" / "params.json").write_text(json.dumps(META))
    torch.save(meta_weights(OURS), place / "meta" / "consolidated.00.pth")
    return {
        folder.name: (folder, Files({path.name: path.read_bytes() for path in folder.iterdir()}))
        for folder in place.iterdir()
    }


def restore(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)


def load(folder):
    result = outcome(lambda: load_checkpoint(folder), ValueError, FileNotFoundError, names=folder)
    if not refused(result):
        assert result(torch.tensor([[0]])).shape[:2] == (1, 1)
    return result


def test_the_folders_load_as_they_are(folders):
    for folder, _ in folders.values():
        assert isinstance(load(folder), Llama)


@given(data=st.data())
@cases("config.json")
def test_any_config_json_loads_or_is_refused(folders, data):
    kind, name = data.draw(st.sampled_from([("hugging_face", "config.json"), ("meta", "params.json")]))
    folder, files = folders[kind]
    restore(folder, files)
    content = json.loads(files[name])
    keys = [*sorted(content), "rope_theta", "rope_scaling", "use_scaled_rope", "rope_scaling_factor", "pretraining_tp"]
    for key in data.draw(st.lists(st.sampled_from(keys), max_size=3, unique=True)):
        if data.draw(st.booleans()):
            content.pop(key, None)
        else:
            content[key] = data.draw(JSON)
    if kind == "hugging_face" and data.draw(st.booleans()):
        content[data.draw(st.sampled_from(["rope_parameters", "rope_scaling"]))] = data.draw(scalings(JSON))
    one_file = st.sampled_from(["n" * 300, "..", "/", "model", "a\0b", "\ud800"]).map(
        lambda name: {"a": name + ".safetensors"}
    )
    index = data.draw(st.none() | JSON | st.fixed_dictionaries({"weight_map": JSON | one_file}))
    (folder / name).write_text(json.dumps(content))
    if index is not None and kind == "hugging_face":
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    load(folder)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)


PLACES = st.integers(0, 3000) | st.integers(-1500, -1) | st.integers(0, 10**6)  # headers stand at either end
BYTES = (
    st.tuples(st.just("cut"), PLACES) | st.tuples(st.just("longer"), st.binary(min_size=1, max_size=50))
    | st.tuples(st.just("flip"), st.lists(st.tuples(PLACES, st.integers(0, 7)), min_size=1, max_size=8))
)  # fmt: skip


def spoil(content, damage):
    """Bytes cut off, added, or single bits changed, as drawn from BYTES."""
    content, (kind, what) = bytearray(content), damage
    if kind == "cut":
        return bytes(content[: what % len(content)])
    if kind == "longer":
        return bytes(content + what)
    for place, bit in what:
        content[place % len(content)] ^= 1 << bit
    return bytes(content)


DTYPES = {  # name in a safetensors header: bytes of four numbers
    "F64": 32, "I64": 32, "U64": 32, "C64": 32, "F32": 16, "I32": 16, "U32": 16, "F16": 8, "BF16": 8, "I16": 8,
    "U16": 8, "F8_E4M3": 4, "F8_E5M2": 4, "F8_E8M0": 4, "I8": 4, "U8": 4, "BOOL": 4, "F6_E2M3": 3, "F6_E3M2": 3,
    "F4": 2, "F31": 4,
}  # fmt: skip


HEADERS = (
    st.tuples(st.just("dtype"), st.tuples(st.sampled_from(sorted(DTYPES)), st.booleans()))
    | st.tuples(st.just("shape"), st.lists(st.integers(0, 64) | HUGE, max_size=4) | st.just("turned"))
    | st.tuples(st.just("data_offsets"), st.lists(st.integers(-9, 9**6) | HUGE, max_size=3))
    | st.tuples(st.just("rename"), st.text() | st.just("model.norm.weight"))
    | st.tuples(st.just("drop"), st.none())
    | st.tuples(st.just("extra"), st.tuples(st.text(), st.lists(HUGE | st.integers(0, 3), max_size=3)))
    | st.tuples(st.just("metadata"), JSON)
    | st.tuples(st.just("junk"), JSON)
)


def spoil_header(content, number, damage, length):
    """A safetensors file in whose header one entry says something else, as drawn from HEADERS."""
    header, rest = split_safetensors(content)
    names, (kind, what) = sorted(set(header) - {"__metadata__"}), damage
    name = names[number % len(names)]
    entry, end = header[name], max(header[name]["data_offsets"][1] for name in names)
    if kind == "dtype":
        entry["dtype"], as_many_bytes = what
        entry["shape"][-1] = entry["shape"][-1] * 16 // DTYPES[what[0]] if as_many_bytes else entry["shape"][-1]
    elif kind == "rename":
        header[what] = header.pop(name)
    elif kind == "drop":
        del header[name]
    elif kind == "extra":
        header[what[0]] = {"dtype": "F32", "shape": [0, *what[1]], "data_offsets": [end, end]}
    elif kind in ("metadata", "junk"):
        header["__metadata__" if kind == "metadata" else name] = what
    else:
        entry[kind] = entry["shape"][::-1] if what == "turned" else what
    return join_safetensors(header, rest, length)


@given(
    damage=BYTES | st.tuples(st.integers(0, 99), HEADERS, st.none() | st.sampled_from([0, 1, 2**40, 2**60, 2**64 - 1]))
)
@cases("safetensors")
def test_any_safetensors_file_loads_or_is_refused(folders, damage):
    folder, files = folders["hugging_face"]
    restore(folder, files)
    content = files["model.safetensors"]
    content = spoil_header(content, *damage) if len(damage) == 3 else spoil(content, damage)
    (folder / "model.safetensors").write_bytes(content)
    load(folder)


SPOILT_WEIGHTS = {
    "integers": lambda weight: weight.to(torch.int64),
    "half": lambda weight: weight.half(),
    "float8": lambda weight: weight.to(torch.float8_e4m3fn),
    "complex": lambda weight: weight.to(torch.complex64),
    "on no device": lambda weight: weight.to("meta"),
    "sparse": lambda weight: weight.to_sparse(),
    "quantised": lambda weight: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
    "turned": lambda weight: weight.T if weight.ndim == 2 else weight.flip(0),
    "one row": lambda weight: weight[:1],
    "a number": lambda weight: torch.tensor(1.0),
    "empty": lambda weight: weight[:0],
    "stretched": lambda weight: torch.ones(()).expand(2**31, 2**20),
    "stretched to fit": lambda weight: torch.ones(()).expand(weight.shape),
    "not finite": lambda weight: weight / 0,
    "a parameter": torch.nn.Parameter,
    "no tensor": lambda weight: 3,
    "a list": lambda weight: weight[:1].tolist(),
    "None": lambda weight: None,
}


@pytest.mark.filterwarnings("ignore:.*quantiz")
@given(data=st.data())
@cases("meta")
def test_any_pth_file_loads_or_is_refused(folders, data):
    folder, files = folders["meta"]
    restore(folder, files)
    path = folder / "consolidated.00.pth"
    if data.draw(st.booleans()):
        path.write_bytes(spoil(files[path.name], data.draw(BYTES)))
    else:
        weights = meta_weights(OURS)
        for name in data.draw(st.lists(st.sampled_from(sorted(weights)), min_size=1, max_size=2, unique=True)):
            kind = data.draw(st.sampled_from(["drop", "rename", *SPOILT_WEIGHTS]))
            if kind == "drop":
                del weights[name]
            elif kind == "rename":
                weights[data.draw(st.text(max_size=5) | st.integers())] = weights.pop(name)
            else:
                weights[name] = SPOILT_WEIGHTS[kind](weights[name])
        torch.save(weights, path)
    load(folder)


@pytest.mark.skipif(not LINUX, reason="peak memory is read as Linux tells it")
@given(data=st.data())
@cases("declared size")
def test_a_declared_size_is_never_allocated(folders, data):
    """From 100 megabytes to a million terabytes in a file of 130 kilobytes: at most 30 megabytes more are taken."""
    kind = data.draw(st.sampled_from(sorted(folders)))
    folder, files = folders[kind]
    restore(folder, files)
    rows = data.draw(st.sampled_from([2**20, 2**24, 2**30, 2**55]))
    if kind == "meta":
        weights = meta_weights(OURS)
        name = data.draw(st.sampled_from([name for name in weights if weights[name].ndim == 2]))
        for spoilt in {name, "tok_embeddings.weight", data.draw(st.sampled_from([name, "output.weight"]))}:
            weights[spoilt] = torch.ones(()).expand(rows, 32)
        torch.save(weights, folder / "consolidated.00.pth")
    else:
        header, rest = split_safetensors(files["model.safetensors"])
        name = data.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
        header[name]["shape"] = [rows, 32]
        if data.draw(st.booleans()):
            header[name]["data_offsets"][1] = header[name]["data_offsets"][0] + rows * 128
        (folder / "model.safetensors").write_bytes(join_safetensors(header, rest))
        content = json.loads(files["config.json"])
        content[data.draw(st.sampled_from(["vocab_size", "intermediate_size"]))] = rows
        (folder / "config.json").write_text(json.dumps(content))
    restart_peak()
    before = memory("VmRSS")
    assert refused(load(folder))
    assert memory("VmHWM") - before < 30_000


# ------------------------------------------------------------------------------------- tokens, writing, cache


@st.composite
def tokens_of_any_kind(draw):
    """A tensor of any type, shape and content, or what is no tensor at all."""
    if draw(st.integers(0, 4)) == 0:
        return draw(JSON | st.lists(st.lists(st.integers(0, 63) | SCALARS, max_size=4), max_size=3))
    shape = draw(st.sampled_from([(1, 1), (2, 3), (1, 5)]) | st.lists(st.integers(0, 3), max_size=4))
    dtype = draw(st.sampled_from([torch.int64, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool,
                                  torch.float32, torch.float16, torch.complex64]))  # fmt: skip
    tokens = torch.full(shape, draw(st.sampled_from([0, 5, 63])))
    if tokens.numel():
        tokens.view(-1)[-1] = draw(st.integers(0, 63) | st.sampled_from([-1, 64, 2**31 - 1, 2**62, -(2**63)]))
    return tokens.to(dtype)


def are_prompts(tokens):
    """Whether a model of TINY can read them, said independently of the code."""
    if isinstance(tokens, torch.Tensor):
        right = tokens.ndim == 2 and tokens.numel() > 0 and tokens.dtype in (torch.int64, torch.int32)
        return right and all(0 <= token < 64 for token in tokens.flatten().tolist())
    rows = isinstance(tokens, list) and len(tokens) > 0 and all(isinstance(row, list) and row for row in tokens)
    return rows and all(type(token) is int and 0 <= token < 64 for row in tokens for token in row)


@given(tokens=tokens_of_any_kind(), cached=st.booleans())
@cases("tokens")
def test_tokens_are_read_if_they_are_right_and_refused_otherwise(tokens, cached):
    model = make_model()
    right = are_prompts(tokens)
    new = outcome(lambda: generate(model, tokens, 2), ValueError)
    assert refused(new) != right, new
    right = right and isinstance(tokens, torch.Tensor)
    cache = model.new_cache(len(tokens), 8) if right and cached else None
    logits = outcome(lambda: model(tokens, cache), ValueError)
    assert refused(logits) != right
    if right:
        assert logits.shape == (*tokens.shape, 64)
        assert logits.isfinite().all()
        assert new.shape == (len(tokens), tokens.shape[1] + 2)


SETTINGS = {  # those that are right
    "max_new_tokens": st.integers(0, 5),
    "temperature": st.sampled_from([0, 1]) | st.floats(0, 1e30),
    "top_k": st.none() | st.integers(1, 70) | st.just(10**30),
    "top_p": st.none() | st.just(1) | st.floats(0, 1, exclude_min=True),
    "stop": st.none() | st.integers(0, 63) | st.lists(st.integers(0, 63), max_size=3),
    "seed": st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
}
NOT_LONG = ODD.filter(lambda value: not isinstance(value, int) or value < 6 or value > 10**9)


@given(
    right=st.fixed_dictionaries(SETTINGS),
    odd=st.dictionaries(st.sampled_from(sorted(SETTINGS)), NOT_LONG, max_size=2) | st.just({}),
    prompts=st.sampled_from([torch.tensor([[1, 2], [3, 4]]), [[1, 2, 3], [4]]]),
)
@cases("generate")
def test_any_setting_of_generate_writes_or_is_refused(right, odd, prompts):
    model = make_model()
    new = outcome(lambda: generate(model, prompts, **right | odd), ValueError, too_large=True)
    if refused(new):
        assert odd, new
        return
    most = (right | odd)["max_new_tokens"]
    rows = new.tolist() if isinstance(new, torch.Tensor) else new
    for row, prompt in zip(rows, prompts, strict=True):
        assert row[: len(prompt)] == list(prompt)
        assert len(row) <= len(prompt) + most
        assert all(0 <= token < 64 for token in row)
    if (right | odd)["seed"] is not None or (right | odd)["temperature"] == 0:
        again = generate(model, prompts, **right | odd)
        assert (again.tolist() if isinstance(again, torch.Tensor) else again) == rows


@pytest.mark.parametrize("stop", [lambda i: i, lambda i: [i], lambda i: iter([i]), lambda i: torch.tensor([i])])
def test_a_stop_token_in_any_form_cuts_the_rows(stop):
    model, prompts = make_model(), [[1, 2, 3], [4]]
    last = generate(model, prompts, 6)[0][5]
    assert generate(model, prompts, 6, stop=stop(last)) == generate(model, prompts, 6, stop={last})
    assert generate(model, prompts, 6, stop=stop(last))[0][-1] == last


BAD_CHUNKS = {
    "too long": draw_tokens(2, 60),
    "another batch": draw_tokens(3, 1),
    "no token": torch.zeros(2, 0, dtype=torch.int64),
    "not in the vocabulary": torch.full((2, 1), 64),
    "floats": torch.zeros(2, 1),
    "a list": [[1], [2]],
}


@given(
    steps=st.lists(st.integers(1, 9) | st.sampled_from(sorted(BAD_CHUNKS)), min_size=1, max_size=8),
    name=st.sampled_from(sorted(TINY_CONFIGS)),
    prepared=st.booleans(),
    n_pad=st.none() | st.just([0, 2]),
)
@cases("cache")
def test_any_chunks_with_refused_ones_between_give_the_logits_of_one_call(steps, name, prepared, n_pad):
    model = make_model(TINY_CONFIGS[name])
    chunks = [3, *(step for step in steps if isinstance(step, int))]
    tokens = draw_tokens(2, sum(chunks))
    pad = None if n_pad is None else torch.tensor(n_pad)
    expected = model(tokens, n_pad=pad).detach()
    reader = prepare_for_decoding(model) if prepared else model
    cache = reader.new_cache(2, sum(chunks))
    parts = [reader(tokens[:, :3], cache, n_pad=pad)]
    for step in steps:
        if isinstance(step, int):
            parts.append(reader(tokens[:, cache.length : cache.length + step], cache))
        else:
            assert refused(outcome(lambda step=step: reader(BAD_CHUNKS[step], cache), ValueError))
    real = torch.ones(2, sum(chunks), dtype=torch.bool) if pad is None else torch.arange(sum(chunks)) >= pad[:, None]
    assert_agree(torch.cat(parts, dim=1)[real], expected[real])


# ------------------------------------------------------------------------------------------ text, training


@pytest.fixture(scope="module")
def tokenizer():
    """A small tokenizer, trained on the fixed excerpt."""
    return train_tokenizer(excerpt(), vocab_size=300)


PIECES = (
    st.binary(max_size=40)
    | st.text(max_size=30).map(str.encode)
    | st.sampled_from([b"\xef\xbb\xbf", b"\r\n\r\n", b" "])
)


@given(content=st.lists(PIECES, max_size=6).map(b"".join), times=st.sampled_from([1, 1000, 30_000]))
@cases("text")
def test_any_bytes_are_read_as_they_are_or_refused(tmp_path, tokenizer, content, times):
    path = tmp_path / "own.txt"
    path.write_bytes((content * times)[:100_000])
    text = outcome(lambda: load_text(path), ValueError, names=path)
    if refused(text):
        return
    assert text == path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").strip()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    parts = outcome(lambda: held_out_split(text), ValueError)
    assert refused(parts) or "".join(parts) == text


@given(data=st.data())
@cases("tokenizer.json")
def test_any_tokenizer_json_is_opened_or_refused(tmp_path, tokenizer, data):
    content = tokenizer.to_str()
    if data.draw(st.booleans()):
        content = spoil(content.encode(), data.draw(BYTES))
    else:
        spec = json.loads(content)
        place = data.draw(st.sampled_from([spec, spec["model"], spec["added_tokens"][0], spec["pre_tokenizer"]]))
        place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
        content = json.dumps(spec).encode()
    (tmp_path / "tokenizer.json").write_bytes(content)
    found = outcome(lambda: load_tokenizer(tmp_path), ValueError, names=tmp_path / "tokenizer.json")
    assert refused(found) or isinstance(found, Tokenizer)


@pytest.mark.parametrize("vocab_size", [-1, 0, 256, 2**40, 10**30, 300.0, "300", None, True])
def test_a_vocabulary_of_an_odd_size_is_refused(vocab_size):
    assert refused(outcome(lambda: train_tokenizer("abab", vocab_size), ValueError, names=repr(vocab_size)))


SMALL = replace(TINY, vocab_size=300, dim=8, n_layers=1, hidden_dim=8, head_dim=2, max_seq_len=8, tie_embeddings=True)
TRAIN = {
    "steps": st.integers(1, 3), "batch_size": st.integers(1, 3), "seed": st.integers(0, 2**40),
    "every": st.integers(1, 3), "peak": st.floats(1e-6, 0.1), "warm_up": st.integers(0, 5),
    "weight_decay": st.floats(0, 1),
}  # fmt: skip
NOT_MANY = ODD.filter(lambda value: not isinstance(value, int) or value < 6)


@given(
    right=st.fixed_dictionaries(TRAIN),
    odd=st.dictionaries(st.sampled_from(sorted(TRAIN)), NOT_MANY, max_size=2) | st.just({}),
    n_tokens=st.sampled_from([50, 0]) | st.integers(0, 20),
)
@cases("train")
def test_any_setting_of_training_trains_or_is_refused(tmp_path_factory, right, odd, n_tokens):
    keep = tmp_path_factory.mktemp("run") / "kept"
    tokens = torch.arange(n_tokens)
    losses = outcome(lambda: train.train(Llama(SMALL), lambda: tokens, keep=keep, **right | odd), ValueError)
    if not odd:
        assert refused(losses) == (n_tokens < 9), losses
    if not refused(losses):
        assert len(losses) == (right | odd)["steps"]
        assert all(math.isfinite(loss) for loss in losses) or odd.keys() & {"peak", "weight_decay"}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """The file of a run that was stopped after two of three steps, and how to go on with it."""
    keep = tmp_path_factory.mktemp("unfinished") / "kept"

    def go_on(report=lambda step, loss: None):
        torch.manual_seed(0)
        return train.train(Llama(SMALL), lambda: torch.arange(99), steps=3, keep=keep, every=2, report=report)

    def stop(step, loss):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_on(stop)
    return keep, keep.read_bytes(), go_on


@given(damage=BYTES | st.none())
@cases("run file")
def test_any_file_of_a_run_goes_on_or_is_refused_and_kept(unfinished, damage):
    keep, right, go_on = unfinished
    content = right if damage is None else spoil(right, damage)
    keep.write_bytes(content)
    losses = outcome(go_on, ValueError, names=keep)
    assert keep.read_bytes() == content
    assert refused(losses) or len(losses) == 3


# ------------------------------------------------------------------- faults that were found, each by itself


def run(**settings):
    return train.train(Llama(SMALL), lambda: torch.arange(50), **{"steps": 1} | settings)


def config(**change):
    return LlamaConfig(**{**asdict(TINY), "head_dim": None, **change})


FOUND = {
    "a tie that is a word": (lambda: config(tie_embeddings="no"), "tie_embeddings='no' must be True or False"),
    "more than 64 bits": (lambda: config(vocab_size=2**63), "vocab_size=9223372036854775808 must be below 2**63"),
    "a number beyond float": (lambda: config(norm_eps=10**400), "must be a finite number >= 0"),
    "a base beyond all": (lambda: config(rope_theta=1e19), "rope_theta=1e+19 must be a finite number > 1 and <= 1e18"),
    "a type that is a list": (lambda: config(rope_scaling={"type": []}), "rope_scaling type [] is not known"),
    "keys of two kinds": (
        lambda: config(rope_scaling={"type": "ntk", "factor": 2, 3: 0, "a": 0}), "does not take ['3', 'a']",
    ),
    "a base that overflows": (
        lambda: config(rope_scaling={"type": "ntk", "factor": 1e17}), "factor=1e+17 of 'ntk' raises rope_theta=500",
    ),
    "a band that is text": (
        lambda: config(rope_scaling={"type": "llama3", "factor": 2.0, "low_freq_factor": "1"}),
        "rope_scaling low_freq_factor='1' must be a finite number > 0: Meta uses 1 and 4",
    ),
    "a list for the model": (lambda: make_model()([[1]]), "tokens are a list: pass a tensor, torch.tensor([[1, 2]])"),
    "padding that is text": (
        lambda: make_model()(torch.ones(1, 2).long(), n_pad=["1"]), "n_pad=['1'] is not a row of numbers: pass one",
    ),
    "a cache beyond memory": (
        lambda: make_model().new_cache(1, 10**13), "a cache of 1 rows and 10,000,000,000,000 tokens needs",
    ),
    "a stop that is text": (
        lambda: generate(make_model(), [[1]], 1, stop="the"), "stop='the' must be a token id from 0 to 63, several",
    ),
    "a stop of another kind": (lambda: generate(make_model(), [[1]], 1, stop=99), "stop=99 must be a token id from 0"),
    "a seed that is text": (lambda: generate(make_model(), [[1]], 1, seed="a"), "seed='a' must be a whole number"),
    "a prompt that is text": (lambda: generate(make_model(), [["a"]], 1), "no token id: encode text with"),
    "no prompts": (lambda: generate(make_model(), None, 1), "tokens are a NoneType, 'None': pass a (batch, tokens)"),
    "no word for temperature": (lambda: generate(make_model(), [[1]], 1, temperature="hot"), "temperature='hot' must"),
    "a batch of none": (lambda: next(batches(torch.arange(9), 0, 2, None)), "batch_size=0 and seq_len=2 must be whole"),
    "no bytes to judge": (lambda: bits_per_byte(make_model(), load_tokenizer(), ""), "a text of 0 tokens: each must"),
    "an empty text": (lambda: train.train(Llama(SMALL), lambda: torch.arange(0), steps=1), "0 tokens are fewer than"),
    "no seed": (lambda: run(seed=None), "seed=None must be a whole number: a run that goes on"),
    "no steps": (lambda: run(steps=0), "steps=0 must be a whole number >= 1"),
    "a peak beyond all": (lambda: run(peak=1e30), "peak=1e+30 must be a finite number > 0 and <= 1000, for"),
    "half a step of warm-up": (lambda: run(warm_up=0.5), "warm_up=0.5 must be a whole number >= 1"),
    "a decay below 0": (lambda: run(weight_decay=-1.0), "weight_decay=-1.0 must be a finite number >= 0 and <= 1000"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_a_fault_once_found_is_answered_in_a_sentence(case):
    call, words = FOUND[case]
    assert words in str(outcome(call, ValueError, too_large=True))


def test_the_smallest_top_p_keeps_the_likeliest_token():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    assert next_token_probabilities(logits, top_p=5e-324).tolist() == [[1.0, 0.0, 0.0]]


# --------------------------------------------------------------------------------------------- explorers

EXPLORE = sorted(name for name in vars(explorers) if name.startswith("explore_"))
SHOWN = (Line2D, Rectangle, Text, AxesImage)


def at_start(explorer):
    """The explorer with the values that it had when it was made; its picture is the same again."""
    for name, value in explorer.start[0].items():
        explorer.controls[name].value = value
    assert explorer.png == explorer.start[1]
    return explorer


def place_of(artist):
    """The numbers that say where an artist is, or what it shows."""
    if isinstance(artist, Line2D):
        return np.asarray(artist.get_xydata(), dtype=float)
    if isinstance(artist, AxesImage):
        return np.asarray(artist.get_array(), dtype=float)
    if isinstance(artist, Rectangle):
        return artist.get_bbox().extents
    return np.array([float(part) for part in artist.get_position()])


def faults_of(explorer):
    """What is wrong with what an explorer shows now, in words; none if all is well."""
    page, words = explorer.picture.value, f"{explorer.finding} {explorer.settings}"
    if 'role="alert"' in page:
        yield re.search(r'role="alert".*', page)[0]
    for part in (explorer.finding, explorer.settings):
        if html.escape(part) not in page:
            yield f"not in the caption: {part}"
    if re.search(r"\b(nan|inf)\b", words.replace("their softmax is nan", "")):
        yield words
    for artist in explorer.shown:
        numbers = place_of(artist)
        if np.isinf(numbers).any() or (numbers.size and not np.isfinite(numbers).any()):
            yield f"{artist} at {numbers}"
        if not isinstance(artist, Line2D) and np.isnan(numbers).any():  # in a line, nan is a gap
            yield f"{artist} at {numbers}"
    for control in explorer.controls.values():
        name, value = control.description.partition(" [")[0], control.value
        said = re.search(rf"[ ,]{re.escape(name)} ({re.escape(str(value))}|[-\d.,e+]*\d)(?=[ ,.])", explorer.settings)
        if not said or not (said[1] == str(value) or (isinstance(value, float) and near(said[1], value))):
            yield f"{name} is {value!r}, the caption says {explorer.settings}"


def near(text, value):
    return math.isclose(float(text.replace(",", "")), value, rel_tol=0.006, abs_tol=1e-9)


def levels_of(control, inside=False):
    """Every option of a list; of a slider the ends, the start and, with inside, what lies a step from the ends."""
    if hasattr(control, "options"):
        return list(control.options)
    steps = [control.min, control.max]
    if inside:
        steps = [control.min, control.min + control.step, control.max - control.step, control.max]
    return [control.base**step if hasattr(control, "base") else step for step in steps]


def corners_of(explorer, most):
    """Settings with every control at an end: in the order of the controls, so many that each two ends meet once.

    At night up to `most` of all, a step from the ends too.
    """
    levels = [levels_of(control, inside=NIGHTLY) for control in explorer.controls.values()]
    every = list(itertools.islice(itertools.product(*levels), 200_000))
    if NIGHTLY:
        return sorted(random.sample(every, min(most, len(every))), key=every.index) if len(every) > most else every
    chosen, met = [], set()
    for _ in range(len(every)):
        best = max(every, key=lambda corner: len(pairs_of(corner) - met))
        if pairs_of(best) <= met:
            break
        chosen.append(best)
        met |= pairs_of(best)
    return sorted(chosen, key=every.index)


def pairs_of(corner):
    return set(itertools.combinations(enumerate(corner), 2))


@pytest.fixture(scope="module")
def drawn():
    """One explorer of each kind, made when it is first asked for."""
    made = {}

    def drawn(name):
        if name not in made:
            made[name] = getattr(explorers, name)()
            made[name].start = (made[name].values, made[name].png)
            made[name].shown = made[name].figure.findobj(lambda one: isinstance(one, SHOWN))
        return made[name]

    with matplotlib.rc_context():
        plots.use_course_style()
        yield drawn
    for explorer in made.values():
        explorer.close()


@given(data=st.data())
@cases("explorers")
def test_any_value_of_a_control_is_drawn_put_at_the_end_or_refused(drawn, data):
    """A number beyond an end becomes that end; what is no number or no option raises TraitError and moves nothing.

    Only None empties a list of options, which no click can do: the explorer says so and keeps its picture.
    """
    explorer = at_start(drawn(data.draw(st.sampled_from(EXPLORE))))
    for _ in range(4):
        control = explorer.controls[data.draw(st.sampled_from(sorted(explorer.controls)))]
        if hasattr(control, "options"):
            ends, numbers = None, st.sampled_from([*control.options, *control.options, "no such option", -1])
        else:
            ends = [control.base**end if hasattr(control, "base") else end for end in (control.min, control.max)]
            beyond = [*ends, ends[0] - 1, ends[1] + 1, -1e30, 1e30, math.inf, -math.inf, "x"]
            numbers = st.sampled_from(beyond) | st.floats(*ends)
        before, value = control.value, data.draw(numbers | st.none())
        with time_limit():
            try:
                control.value = value
            except TraitError:
                assert control.value == before
        assert ends is None or ends[0] <= control.value <= ends[1]
        assert ('role="alert"' in explorer.picture.value) == (None in explorer.values.values())


@pytest.mark.parametrize("name", EXPLORE)
def test_at_every_corner_an_explorer_draws_and_says_what_is_set(drawn, name):
    explorer = at_start(drawn(name))
    assert list(faults_of(explorer)) == []
    for corner in corners_of(explorer, most=400):
        for control, value in zip(explorer.controls.values(), corner, strict=True):
            if control.value != value:
                control.value = value
                assert list(faults_of(explorer)) == [], explorer.values
    assert tuple(explorer.values.values()) == corner
    picture = imread(io.BytesIO(base64.b64decode(explorer.png)))
    assert picture.shape[:2] == (396, 880)
    assert 0.01 < (picture[..., :3].min(axis=-1) < 0.5).mean() < 0.9


NO_VALUES = ["x", "", b"x", [], {}, (1, 2), 1j, object()]


@pytest.mark.parametrize("name", EXPLORE)
def test_beyond_the_ends_of_a_control_is_the_end_or_a_refusal(drawn, name):
    explorer = at_start(drawn(name))
    for control in explorer.controls.values():
        start = control.value
        if hasattr(control, "options"):
            wrong = [*NO_VALUES, -1, 0.5, 10**30, math.nan, math.inf, f" {control.options[0]}"]
        else:
            low, high = levels_of(control)
            huge = 10**400 if isinstance(start, int) else 1e300
            for value, end in ((low - 1, low), (high + 1, high), (-huge, low), (huge, high)):
                control.value = value
                assert control.value == end
                assert list(faults_of(explorer)) == [], explorer.values
            control.value = start
            wrong = [*NO_VALUES, math.nan if isinstance(start, int) else 10**400]
        picture = explorer.png
        for value in wrong:
            with pytest.raises((TraitError, TypeError, OverflowError, ValueError)):
                control.value = value
            assert control.value == start
            assert explorer.png == picture
    at_start(explorer)


def test_a_fault_of_a_picture_and_of_a_caption_is_noticed(drawn):
    explorer = at_start(drawn("explore_swiglu"))
    explorer.controls["g"].value = math.nan  # no page can send it
    assert any("nan" in fault for fault in faults_of(explorer))
    at_start(explorer).settings = explorer.settings.replace("up u 2", "up u 3")
    assert any("not in the caption" in fault for fault in faults_of(explorer))
    assert any("up u is 2.0, the caption says" in fault for fault in faults_of(explorer))
    explorer.controls["activation"].value = None
    assert any("This setting could not be drawn" in fault for fault in faults_of(explorer))
    assert list(faults_of(at_start(explorer))) == []
