"""Whatever comes in loads, runs, or is refused in a sentence of ours: no other error, no endless wait, little memory.

The same few cases on every run; `COURSE_FUZZ=nightly` draws many more.
"""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import train
from helpers.checkpoint import config_from_hugging_face, config_to_hugging_face, load_checkpoint, save_checkpoint
from helpers.fast_decode import prepare_for_decoding
from helpers.generate import generate
from helpers.model import Llama, LlamaConfig
from helpers.text import load_text, train_val_split
from tests.support.files import OURS, join_safetensors, meta_weights, split_safetensors, write_meta
from tests.support.fuzz import HUGE, JSON, LINUX, ODD, SCALARS, Hang, at_most, few, limit_memory, time_limit  # noqa: F401
from tests.support.models import SMALL, TINY_CONFIGS, assert_agree, draw_tokens, make_model

HELPERS = Path(load_checkpoint.__code__.co_filename).parent


def outcome(call, *kinds, names="", too_large=False):
    """What call() returns, or the error of one of these kinds that one of our own `raise` lines has raised.

    Its text has to hold `names`. Unless `too_large`, no allocation may have failed on the way: that would mean that
    memory was asked for before the size was checked.
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


def test_a_foreign_error_a_hang_and_a_large_allocation_are_noticed():
    with pytest.raises(AssertionError, match="not an error of ours"):
        outcome(lambda: int("x"), ValueError)
    with pytest.raises(ZeroDivisionError):
        outcome(lambda: 1 / 0, ValueError)
    with pytest.raises(Hang), time_limit(0.05):
        any(False for _ in iter(int, 1))
    if LINUX:
        with pytest.raises(RuntimeError, match="allocate"):
            torch.zeros(3 * 2**30, dtype=torch.uint8)
        with pytest.raises(AssertionError), at_most(10_000):
            torch.ones(200_000_000, dtype=torch.uint8)  # more than the process can have lying about


# --------------------------------------------------------------------------------------------- configs

SCALING_KEYS = ["type", "rope_type", "factor", "low_freq_factor", "high_freq_factor",
                "original_max_position_embeddings", "rope_theta"]  # fmt: skip


def scalings(values):
    """Settings of RoPE: the known kinds with odd numbers, or anything."""
    kinds = st.fixed_dictionaries(
        {"type": st.sampled_from(["linear", "ntk", "llama3", "default"]), "factor": st.floats(1, 1e3) | SCALARS},
        optional={key: st.floats(0.1, 64) | st.integers(1, 64) | values for key in SCALING_KEYS[3:]},
    )
    return st.none() | kinds | st.dictionaries(st.sampled_from(SCALING_KEYS) | st.integers(), values) | values


SMALL_SIZES = {
    "vocab_size": st.integers(1, 40), "dim": st.integers(1, 16), "n_layers": st.integers(1, 2),
    "n_heads": st.sampled_from([1, 2, 4]), "n_kv_heads": st.sampled_from([1, 2, 4]), "hidden_dim": st.integers(1, 16),
    "head_dim": st.sampled_from([None, 2, 4, 6]), "max_seq_len": st.integers(1, 2**62), "norm_eps": st.floats(0, 1),
    "rope_theta": st.floats(1.01, 1e7), "rope_scaling": scalings(ODD), "tie_embeddings": st.booleans(),
}  # fmt: skip


def some_odd(right, values=ODD):
    """Values of another kind for up to two of these settings."""
    return st.dictionaries(st.sampled_from(sorted(right)), values, max_size=2) | st.just({})


@pytest.mark.slow
@given(right=st.fixed_dictionaries(SMALL_SIZES), odd=some_odd(SMALL_SIZES))
@few
def test_any_config_is_refused_or_its_model_runs_and_can_be_saved(right, odd):
    config = outcome(lambda: LlamaConfig(**right | odd), ValueError)
    if refused(config):
        return
    widest = max(config.dim, config.hidden_dim, config.vocab_size, config.n_heads * config.head_dim)
    if config.dim * widest * config.n_layers > 2**20:
        return
    model = Llama(config)
    assert model(torch.arange(5)[None] % config.vocab_size).isfinite().all()
    again = config_from_hugging_face(json.loads(json.dumps(config_to_hugging_face(config))))
    no_rope = {"rope_theta": 2.0, "rope_scaling": None}  # NTK is saved as the base that it comes to
    assert asdict(replace(again, **no_rope)) == asdict(replace(config, **no_rope))
    torch.testing.assert_close(Llama(again).inv_freq, model.inv_freq)


# ------------------------------------------------------------------------------------------- checkpoints


class Files(dict):
    """Bytes of files by name, which a failing case does not print."""

    def __repr__(self):
        return f"<{', '.join(self)}>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint of each kind: {name: (folder, bytes of each file)}; a test writes the files that it spoils."""
    place = tmp_path_factory.mktemp("folders")
    llama3 = {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
    save_checkpoint(make_model(replace(OURS, rope_scaling=llama3)), place / "hugging_face")
    write_meta(place / "meta", [meta_weights(OURS)])
    found = {
        folder.name: (folder, Files({path.name: path.read_bytes() for path in folder.iterdir()}))
        for folder in place.iterdir()
    }
    for folder, _ in found.values():
        assert isinstance(load_checkpoint(folder), Llama)
    return found


def load(folder, files, **spoilt):
    """What load_checkpoint does with these files, of which some hold other bytes: it takes little memory for it."""
    for name, content in (files | spoilt).items():
        (folder / name).write_bytes(content)
    with at_most(30_000):
        result = outcome(lambda: load_checkpoint(folder), ValueError, FileNotFoundError, names=folder)
    if not refused(result):
        assert result(torch.tensor([[0]])).shape[:2] == (1, 1)
    return result


PLACES = st.integers(0, 3000) | st.integers(-1500, -1) | st.integers(0, 10**6)  # headers are at either end
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


@given(damage=BYTES, data=st.data())
@few
def test_any_damaged_file_loads_or_is_refused(folders, damage, data):
    folder, files = folders[data.draw(st.sampled_from(sorted(folders)))]
    name = data.draw(st.sampled_from(sorted(files)))
    load(folder, files, **{name: spoil(files[name], damage)})


@pytest.mark.slow
@given(data=st.data())
@few
def test_any_config_json_loads_or_is_refused(folders, data):
    kind, name = data.draw(st.sampled_from([("hugging_face", "config.json"), ("meta", "params.json")]))
    folder, files = folders[kind]
    content = json.loads(files[name])
    keys = [*sorted(content), "rope_theta", "rope_scaling", "use_scaled_rope", "rope_scaling_factor", "pretraining_tp"]
    content |= data.draw(st.dictionaries(st.sampled_from(keys), JSON, max_size=3))
    for key in data.draw(st.lists(st.sampled_from(sorted(content)), max_size=1)):
        del content[key]
    spoilt = {name: content}
    if kind == "hugging_face":
        if data.draw(st.booleans()):
            content[data.draw(st.sampled_from(["rope_parameters", "rope_scaling"]))] = data.draw(scalings(JSON))
        stems = st.sampled_from(["n" * 300, "..", "/", "model", "a\0b", "\ud800"])
        one_file = stems.map(lambda stem: {"a": stem + ".safetensors"})
        if (index := data.draw(st.none() | JSON | st.fixed_dictionaries({"weight_map": JSON | one_file}))) is not None:
            spoilt["model.safetensors.index.json"] = index
    load(folder, files, **{name: json.dumps(content).encode() for name, content in spoilt.items()})
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)


HEADERS = (
    st.tuples(st.just("dtype"), st.sampled_from(["F64", "I32", "U32", "F16", "BOOL", "F6_E2M3", "F31"]))
    | st.tuples(st.just("shape"), st.lists(st.integers(0, 64) | HUGE, max_size=4))
    | st.tuples(st.just("data_offsets"), st.lists(st.integers(-9, 9**6) | HUGE, max_size=3))
    | st.tuples(st.just("rename"), st.text() | st.just("model.norm.weight"))
    | st.tuples(st.just("extra"), st.tuples(st.text(), st.lists(HUGE | st.integers(0, 3), max_size=3)))
    | st.tuples(st.sampled_from(["junk", "__metadata__"]), JSON)
)


def spoil_header(content, number, damage, length):
    """A safetensors file in whose header one entry says something else, as drawn from HEADERS."""
    header, rest = split_safetensors(content)
    names, (kind, what) = sorted(set(header) - {"__metadata__"}), damage
    name = names[number % len(names)]
    entry, end = header[name], max(header[name]["data_offsets"][1] for name in names)
    if kind == "rename":
        header[what] = header.pop(name)
    elif kind == "extra":
        header[what[0]] = {"dtype": "F32", "shape": [0, *what[1]], "data_offsets": [end, end]}
    elif kind in ("junk", "__metadata__"):
        header[name if kind == "junk" else kind] = what
    else:
        entry[kind] = what
    return join_safetensors(header, rest, length)


@given(number=st.integers(0, 99), damage=HEADERS, length=st.none() | st.sampled_from([0, 1, 2**40, 2**60, 2**64 - 1]))
@few
def test_any_safetensors_header_loads_or_is_refused(folders, number, damage, length):
    folder, files = folders["hugging_face"]
    content = files["model.safetensors"]
    load(folder, files, **{"model.safetensors": spoil_header(content, number, damage, length)})


SPOILT_WEIGHTS = {
    "integers": lambda weight: weight.long(), "half": lambda weight: weight.half(),
    "complex": lambda weight: weight.to(torch.complex64), "on no device": lambda weight: weight.to("meta"),
    "sparse": lambda weight: weight.to_sparse(), "transposed": lambda weight: weight.mT if weight.ndim == 2 else weight,
    "quantised": lambda weight: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
    "empty": lambda weight: weight[:0], "stretched": lambda weight: torch.ones(()).expand(2**24, 32),
    "huge": lambda weight: torch.ones(()).expand(2**31, 2**20), "not finite": lambda weight: weight / 0,
    "a parameter": torch.nn.Parameter, "a list": lambda weight: weight[:1].tolist(), "None": lambda weight: None,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*quantiz")
@given(data=st.data())
@few
def test_any_weights_in_a_pth_file_load_or_are_refused(folders, data):
    folder, files = folders["meta"]
    weights = meta_weights(OURS)
    for name in data.draw(st.lists(st.sampled_from(sorted(weights)), min_size=1, max_size=2, unique=True)):
        kind = data.draw(st.sampled_from(["drop", "rename", *SPOILT_WEIGHTS]))
        weight = weights.pop(name)
        if kind == "rename":
            weights[data.draw(st.text(max_size=5) | st.integers())] = weight
        elif kind != "drop":
            weights[name] = SPOILT_WEIGHTS[kind](weight)
    torch.save(weights, folder / "spoilt")
    load(folder, files, **{"consolidated.00.pth": (folder / "spoilt").read_bytes()})


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
    """Whether a model of TINY can read them, written independently of the code."""
    if isinstance(tokens, torch.Tensor):
        right = tokens.ndim == 2 and tokens.numel() > 0 and tokens.dtype in (torch.int64, torch.int32)
        return right and all(0 <= token < 64 for token in tokens.flatten().tolist())
    rows = isinstance(tokens, list) and len(tokens) > 0 and all(isinstance(row, list) and row for row in tokens)
    return rows and all(type(token) is int and 0 <= token < 64 for row in tokens for token in row)


@given(tokens=tokens_of_any_kind(), cached=st.booleans())
@few
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


SETTINGS = {
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
    odd=some_odd(SETTINGS, NOT_LONG),
    prompts=st.sampled_from([torch.tensor([[1, 2], [3, 4]]), [[1, 2, 3], [4]]]),
)
@few
def test_any_setting_of_generate_writes_or_is_refused(right, odd, prompts):
    model, chosen = make_model(), right | odd
    new = outcome(lambda: generate(model, prompts, **chosen), ValueError, too_large=True)
    if refused(new):
        assert odd, new
        return
    rows = new.tolist() if isinstance(new, torch.Tensor) else new
    for row, prompt in zip(rows, prompts, strict=True):
        assert row[: len(prompt)] == list(prompt)
        assert len(row) <= len(prompt) + chosen["max_new_tokens"]
        assert all(0 <= token < 64 for token in row)
    if chosen["seed"] is not None or chosen["temperature"] == 0:
        again = generate(model, prompts, **chosen)
        assert (again.tolist() if isinstance(again, torch.Tensor) else again) == rows


BAD_CALLS = {
    "too long": lambda reader, cache: reader(draw_tokens(2, 60), cache),
    "another batch": lambda reader, cache: reader(draw_tokens(3, 1), cache),
    "no token": lambda reader, cache: reader(torch.zeros(2, 0).long(), cache),
    "not in the vocabulary": lambda reader, cache: reader(torch.tensor([[64], [-1]]), cache),
    "floats": lambda reader, cache: reader(torch.zeros(2, 1), cache),
    "a list": lambda reader, cache: reader([[1], [2]], cache),
    "padding comes late": lambda reader, cache: reader(draw_tokens(2, 1), cache, n_pad=torch.tensor([0, 0])),
    "another precision": lambda reader, cache: Llama(reader.config).bfloat16()(draw_tokens(2, 1), cache),
}


@given(
    steps=st.lists(st.integers(1, 9) | st.sampled_from(sorted(BAD_CALLS)), min_size=1, max_size=8),
    name=st.sampled_from(sorted(TINY_CONFIGS)),
    prepared=st.booleans(),
    n_pad=st.none() | st.just([0, 2]),
)
@few
def test_any_chunks_with_refused_calls_between_give_the_logits_of_one_call(steps, name, prepared, n_pad):
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
            before = (cache.length, cache.n_pad, cache.k.clone(), cache.v.clone())
            assert refused(outcome(lambda step=step: BAD_CALLS[step](reader, cache), ValueError))
            torch.testing.assert_close((cache.length, cache.n_pad, cache.k, cache.v), before, rtol=0, atol=0)
    real = torch.ones(2, sum(chunks), dtype=torch.bool) if pad is None else torch.arange(sum(chunks)) >= pad[:, None]
    assert_agree(torch.cat(parts, dim=1)[real], expected[real])


# ------------------------------------------------------------------------------------------ text, training


PIECES = st.binary(max_size=40) | st.text(max_size=30).map(str.encode)
PIECES = PIECES | st.sampled_from([b"\xef\xbb\xbf", b"\r\n\r\n", b" "])


@given(content=st.lists(PIECES, max_size=6).map(b"".join), times=st.sampled_from([1, 1000, 30_000]))
@few
def test_any_bytes_are_read_as_they_are_or_refused(tmp_path, tokenizer, content, times):
    path = tmp_path / "own.txt"
    path.write_bytes((content * times)[:100_000])
    text = outcome(lambda: load_text(path), ValueError, names=path)
    if refused(text):
        return
    assert text == path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").strip()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    parts = outcome(lambda: train_val_split(text), ValueError)
    assert refused(parts) or "".join(parts) == text


TINIER = replace(SMALL, dim=8, hidden_dim=8, head_dim=4, max_seq_len=8)
TRAIN = {
    "steps": st.integers(1, 3), "batch_size": st.integers(1, 3), "seed": st.integers(0, 2**40),
    "every": st.integers(1, 3), "peak": st.floats(1e-6, 0.1), "warm_up": st.integers(0, 5),
    "weight_decay": st.floats(0, 1),
}  # fmt: skip
NOT_MANY = ODD.filter(lambda value: not isinstance(value, int) or value < 6)


@pytest.mark.slow
@given(
    right=st.fixed_dictionaries(TRAIN),
    odd=some_odd(TRAIN, NOT_MANY),
    n_tokens=st.sampled_from([50, 0]) | st.integers(0, 20),
)
@few
def test_any_setting_of_training_trains_or_is_refused(tmp_path_factory, right, odd, n_tokens):
    keep = tmp_path_factory.mktemp("run") / "kept"
    tokens = torch.arange(n_tokens)
    losses = outcome(lambda: train.train(Llama(TINIER), lambda: tokens, keep=keep, **right | odd), ValueError)
    if not odd:
        assert refused(losses) == (n_tokens < 9), losses
    if not refused(losses):
        assert len(losses) == (right | odd)["steps"]
        assert all(math.isfinite(loss) for loss in losses) or odd.keys() & {"peak", "weight_decay"}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """The file of a run that was stopped after two of three steps, its bytes, and how to go on with it."""
    keep = tmp_path_factory.mktemp("unfinished") / "kept"

    def go_on(report=lambda step, loss: None):
        torch.manual_seed(0)
        return train.train(Llama(TINIER), lambda: torch.arange(99), steps=3, keep=keep, every=2, report=report)

    def stop(step, loss):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_on(stop)
    return keep, keep.read_bytes(), go_on


@given(damage=BYTES | st.none())
@few
def test_any_file_of_a_run_goes_on_or_is_refused_and_kept(unfinished, damage):
    keep, right, go_on = unfinished
    content = right if damage is None else spoil(right, damage)
    keep.write_bytes(content)
    losses = outcome(go_on, ValueError, names=keep)
    assert keep.read_bytes() == content
    assert refused(losses) or len(losses) == 3
