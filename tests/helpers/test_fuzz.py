"""Any checkpoint loads or is refused in a sentence of ours: no other error, no endless wait, little memory.

A cache survives calls that are refused. The same few cases on every run; `COURSE_FUZZ=nightly` draws many more.
"""

import json
import struct
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beyond.fast_decode import prepare_for_decoding
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.model import Llama
from tests.support.files import OURS, meta_weights, write_meta
from tests.support.fuzz import at_most, few, time_limit
from tests.support.models import assert_agree, draw_tokens, make_model

HELPERS = Path(load_checkpoint.__code__.co_filename).parent


def outcome(call, *kinds, names=""):
    """The value that call() returns, or the error of one of these kinds that one of our own `raise` lines has raised.

    Its text has to hold `names`. No allocation may have failed on the way: then the size was checked too late.
    """
    with time_limit():
        try:
            return call()
        except kinds as problem:
            error = problem
    place = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    assert HELPERS in place.parents, f"not an error of ours: {error!r}, raised in {place}"
    assert len(str(error).split()) >= 5, str(error)
    assert str(names) in str(error), str(error)
    cause = error.__cause__ or error.__context__
    assert not isinstance(cause, MemoryError)
    assert "allocate" not in str(cause), repr(cause)
    return error


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint of each kind: {name: (folder, bytes of each file)}; a test writes the files that it spoils."""
    place = tmp_path_factory.mktemp("folders")
    llama3 = {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
    save_checkpoint(make_model(replace(OURS, rope_scaling=llama3)), place / "hugging_face")
    write_meta(place / "meta", [meta_weights(OURS)])
    for folder in place.iterdir():
        load_checkpoint(folder)
    return {one.name: (one, {path.name: path.read_bytes() for path in one.iterdir()}) for one in place.iterdir()}


def load(folder, files, **spoilt):
    """The result of load_checkpoint on these files, of which some hold other bytes: it takes little memory for it."""
    for name, content in (files | spoilt).items():
        (folder / name).write_bytes(content)
    with at_most(30_000):
        result = outcome(lambda: load_checkpoint(folder), ValueError, FileNotFoundError, names=folder)
    if not isinstance(result, Exception):
        assert result(torch.tensor([[0]])).shape[:2] == (1, 1)
    return result


PLACES = st.integers(0, 3000) | st.integers(-1500, -1) | st.integers(0, 10**6)  # headers are at either end
FLIPS = st.lists(st.tuples(PLACES, st.integers(0, 7)), max_size=8)  # a byte, a bit of it


@given(cut=st.none() | PLACES, more=st.just(b"") | st.binary(max_size=50), flips=FLIPS, data=st.data())
@few
def test_any_damaged_file_loads_or_is_refused(folders, cut, more, flips, data):
    folder, files = folders[data.draw(st.sampled_from(sorted(folders)))]
    name = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[name][:cut] + more)
    for place, bit in flips if content else ():
        content[place % len(content)] ^= 1 << bit
    load(folder, files, **{name: bytes(content)})


ODD = [None, True, -1, 0, 1, 0.5, 1e308, float("nan"), 10**12, 10**30, 10**400, "4", "llama3", [], [1], {}, {"a": 1}]
ROPES = [{"rope_type": kind, "factor": factor} | more for kind in ("linear", "llama3", "default", "ntk", 3)
         for factor in (8, -1, None, 10**30) for more in ({}, {"low_freq_factor": 9}, {"rope_theta": "4"})]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("hugging_face", "config.json"), ("meta", "params.json")])
def test_any_value_in_a_config_loads_or_is_refused(folders, kind, name):
    folder, files = folders[kind]
    content = json.loads(files[name])
    more = ("rope_theta", "use_scaled_rope", "rope_scaling_factor", "pretraining_tp", "rope_scaling", "rope_parameters")
    for key in {*content, *more}:
        values = [*ODD, *ROPES] if key in more[-2:] else ODD
        changed = [content | {key: value} for value in values] + [{k: v for k, v in content.items() if k != key}]
        for new in changed:
            print(key, new.get(key, "is left out"))  # pytest shows it if the test fails
            load(folder, files, **{name: json.dumps(new).encode()})


NAME, MAX_INT64 = "model.norm.weight", 2**63 - 1
HEADERS = [  # entries of a safetensors file's header in place of one weight, or besides
    *({NAME: {"dtype": dtype}} for dtype in ("F64", "I32", "U32", "F16", "BOOL", "F6_E2M3", "F31", 3)),
    *({NAME: {"shape": shape}} for shape in ([], [0], [32, 1], [MAX_INT64, MAX_INT64], [10**30], [-1], "32", None)),
    *({NAME: {"data_offsets": ends}} for ends in ([0, 0], [128, 0], [-9, 119], [0, MAX_INT64], [0, 10**30], [], None)),
    *({"more": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}} for shape in ([0], [0, MAX_INT64, 9])),
    {NAME: 3}, {"__metadata__": []}, {"__metadata__": {"a": 1}}, {"\0": None}, {"a" * 1000: {}},
]  # fmt: skip


@pytest.mark.parametrize("change", HEADERS)
@pytest.mark.parametrize("length", [None, 0, 2**40, 2**64 - 1])
def test_any_safetensors_header_loads_or_is_refused(folders, change, length):
    folder, files = folders["hugging_face"]
    content = files["model.safetensors"]
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    for name, what in change.items():
        header[name] = header[name] | what if isinstance(what, dict) and name in header else what
    text = json.dumps(header).encode()
    claimed = struct.pack("<Q", len(text) if length is None else length)
    load(folder, files, **{"model.safetensors": claimed + text + content[end:]})


SPOILT_WEIGHTS = {
    "integers": torch.Tensor.long, "complex": lambda weight: weight.to(torch.complex64), "half": torch.Tensor.half,
    "on no device": lambda weight: weight.to("meta"), "sparse": torch.Tensor.to_sparse,
    "empty": lambda weight: weight[:0],
    "stretched": lambda weight: torch.ones(()).expand(2**24, 32), "list": torch.Tensor.tolist,
    "huge": lambda weight: torch.ones(()).expand(2**31, 2**20),
    "not finite": lambda weight: weight / 0, "a parameter": torch.nn.Parameter, "None": lambda weight: None,
    "transposed": lambda weight: weight.mT,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILT_WEIGHTS)
@pytest.mark.parametrize("name", ["output.weight", "layers.1.attention.wk.weight", "another name"])
def test_any_weight_in_a_pth_file_loads_or_is_refused(folders, kind, name):
    folder, files = folders["meta"]
    weights = meta_weights(OURS)
    weights[name] = SPOILT_WEIGHTS[kind](weights.pop(name, torch.ones(4, 4)))
    torch.save(weights, folder / "spoilt")
    load(folder, files, **{"consolidated.00.pth": (folder / "spoilt").read_bytes()})


BAD_CALLS = {  # words of the error: the call
    "60 tokens do not fit: the cache holds 5 of at most 9. Shorten": lambda reader, cache: reader(
        draw_tokens(2, 60), cache),
    "batch size 3, the cache 2: make a cache": lambda reader, cache: reader(draw_tokens(3, 1), cache),
    "batch size 1, the cache 2: make a cache": lambda reader, cache: reader(draw_tokens(1, 1), cache),
    "from 1 to 64, but vocab_size=64 allows 0 to 63: use the tokenizer": lambda reader, cache: reader(
        torch.tensor([[64], [1]]), cache),
    "a list: pass a tensor": lambda reader, cache: reader([[1]], cache),
    "torch.float32: pass integer token ids": lambda reader, cache: reader(torch.tensor([[1.0]]), cache),
    "n_pad came after 5 cached tokens: pass it with the first": lambda reader, cache: reader(
        draw_tokens(2, 1), cache, n_pad=torch.tensor([0, 0])),
    "torch.bfloat16 on cpu, the cache torch.float32 on cpu: make the cache": lambda reader, cache: Llama(
        reader.config).bfloat16()(draw_tokens(2, 1), cache),
}  # fmt: skip


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("n_pad", [None, torch.tensor([0, 2])])
@pytest.mark.parametrize("words", BAD_CALLS)
def test_a_refused_call_changes_nothing_and_the_next_one_reads_on(words, n_pad, prepared):
    model, tokens = make_model(), draw_tokens(2, 9)
    reader = prepare_for_decoding(model, layout="rows") if prepared else model
    cache = reader.new_cache(2, 9)
    reader(tokens[:, :5], cache, n_pad=n_pad)
    before = (cache.length, cache.n_pad, cache.k.clone(), cache.v.clone())
    assert isinstance(outcome(lambda: BAD_CALLS[words](reader, cache), ValueError, names=words), ValueError)
    torch.testing.assert_close((cache.length, cache.n_pad, cache.k, cache.v), before, rtol=0, atol=0)
    assert_agree(reader(tokens[:, 5:], cache), model(tokens, n_pad=n_pad)[:, 5:].detach())
