"""Errors are for learners: each names the value that was wrong, or both, and says what to do instead.

What a file that is damaged, hostile or of another kind gives is in test_fuzz.py, test_hostile.py, test_checkpoint.py.
"""

import json
import re
from dataclasses import asdict, replace
from unittest import mock

import pytest
import torch
from huggingface_hub.errors import HTTPError

from helpers import checkpoint, generate, masks, parallel, plots, text, train
from helpers.assets import stored_result
from helpers.checkpoint import model_from_weights
from helpers.fast_decode import prepare_for_decoding
from helpers.model import Llama, LlamaConfig, apply_rope, causal_visible
from tests.support.course import ROOT
from tests.support.files import OURS
from tests.support.models import TINY, make_model

TOKENS = torch.tensor([[1, 2, 3]])
MODEL = make_model(OURS).eval()


def config(**change):
    return LlamaConfig(**{**asdict(TINY), "head_dim": None, **change})


def scaled(kind, **change):
    return config(rope_scaling={"type": kind, "factor": 2.0} | change)


def write(tokens=TOKENS, n=1, **settings):
    return generate.generate(MODEL, tokens, n, **settings)


def run(**settings):
    own = make_model(replace(TINY, max_seq_len=8))
    return train.train(own, lambda: torch.arange(50), **{"steps": 1} | settings)


def padded_late():
    cache = MODEL.new_cache(1)
    return [MODEL(TOKENS, cache, n_pad=n_pad) for n_pad in ([0], [1])]


# (what is asked for, words that its reader has to find, in this order; … stands for anything)
SAID = [
    (lambda: config(dim=30), "dim=30 … n_heads=4 … pass head_dim"),
    (lambda: config(dim=20), "head_dim=5 … dim=20 … pass an even head_dim"),
    (lambda: config(n_kv_heads=3), "n_heads=4 … n_kv_heads=3 … divisors of n_heads"),
    (lambda: config(n_layers=2**63), "n_layers=9223372036854775808 … below 2**63"),
    (lambda: config(norm_eps=-1.0), "norm_eps=-1.0 … >= 0, for example"),
    (lambda: config(tie_embeddings=1), "tie_embeddings=1 must be True or False"),
    (lambda: config(rope_theta=1.0), "rope_theta=1.0 … > 1 … for example"),
    (lambda: config(rope_scaling="linear"), "rope_scaling='linear' … a dict such as"),
    (lambda: scaled("yarn"), "'yarn' … use one of ['linear', 'llama3', 'ntk'], or None"),
    (lambda: scaled("linear", base=1), "'linear' … ['base'] … remove"),
    (lambda: scaled("linear", factor=0.5), "factor=0.5 … >= 1"),
    (lambda: scaled("ntk", factor=1e17), "factor=1e+17 … rope_theta=500000.0 … lower it"),
    (lambda: scaled("llama3", low_freq_factor=4.0), "got 4.0 and 4.0 … 1 and 4"),
    (lambda: MODEL([[1]]), "a list: pass a tensor"),
    (lambda: MODEL(TOKENS[0]), "(3,): pass (batch, tokens)"),
    (lambda: MODEL(TOKENS.float()), "torch.float32: pass … .long()"),
    (lambda: MODEL(TOKENS.to("meta")), "meta … cpu: pass tokens.to('cpu')"),
    (lambda: MODEL(TOKENS + 62), "63 to 65 … vocab_size=64 allows 0 to 63: use the tokenizer"),
    (lambda: MODEL(TOKENS - 2), "-1 to 1 … vocab_size=64"),
    (lambda: MODEL(TOKENS, n_pad=["1"]), "n_pad=['1'] … one whole number per row"),
    (lambda: MODEL(TOKENS, n_pad=[1, 1]), "(2,) … (1, 3): pass one whole number per row"),
    (lambda: MODEL(TOKENS, n_pad=[3]), "3 to 3 … 0 to 2: leave every row a token"),
    (padded_late, "n_pad came after 3 cached tokens: pass it with the first"),
    (lambda: MODEL.new_cache(2, 10**13), "2 rows and 10,000,000,000,000 tokens … ask for fewer"),
    (lambda: MODEL(TOKENS, Llama(replace(OURS, n_kv_heads=4)).new_cache(1)), "(2, 2, 8) … (2, 4, 8) … new_cache()"),
    (lambda: MODEL(TOKENS, MODEL.new_cache(2)), "batch size 1, the cache 2: make a cache"),
    (lambda: Llama(OURS).double()(TOKENS, MODEL.new_cache(1)), "torch.float64 … torch.float32 … make the cache"),
    (lambda: MODEL(TOKENS, MODEL.new_cache(1, 2)), "3 tokens … 0 of at most 2. Shorten"),
    (lambda: apply_rope(torch.ones(1, 1, 1, 8), *torch.ones(2, 1, 8)), "head_dim 8 … 8 angles: pass head_dim / 2"),
    (lambda: apply_rope(torch.ones(1, 8), *torch.ones(2, 1, 4), "pairs"), "'pairs' … use 'halves'"),
    (lambda: causal_visible(3, 2), "n_query=3 … n_key=2"),
    (lambda: masks.sliding_window(TOKENS[0], TOKENS[0], 0), "window=0 must be at least 1"),
    (lambda: masks.same_document(TOKENS[0], TOKENS[0], torch.zeros(3)), "3 positions … position 3"),
    (lambda: write(temperature=-1), "temperature=-1 … >= 0"),
    (lambda: write(top_k=0), "top_k=0 … >= 1, or None"),
    (lambda: write(top_p=0.0), "top_p=0.0 … (0, 1]"),
    (lambda: write(stop=64), "stop=64 … 0 to 63 … or None"),
    (lambda: write(seed=0.5), "seed=0.5 … whole number"),
    (lambda: write(n=-1), "max_new_tokens=-1 … >= 0"),
    (lambda: write(TOKENS[0]), "(3,): pass … tokens[None]"),
    (lambda: write([1, 2]), "'[1, 2]': pass … [ids]"),
    (lambda: write([[1], []]), "[1, 0] tokens: pass at least one"),
    (lambda: write([["the"]]), "'the' … encode text"),
    (lambda: prepare_for_decoding(MODEL, "int4"), "'int4' … use None, 'bfloat16' or 'int8'"),
    (lambda: prepare_for_decoding(prepare_for_decoding(MODEL)), "prepared already: pass the one"),
    (lambda: parallel.require_divisible(TINY, 3), "n_heads=4 … 3 processes: start a number … that divides it"),
    (lambda: run(seed=None), "seed=None must be a whole number"),
    (lambda: run(steps=0), "steps=0 must be a whole number >= 1"),
    (lambda: run(peak=1e30), "peak=1e+30 … <= 1000, for example"),
    (lambda: run(weight_decay=-1.0), "weight_decay=-1.0 … >= 0"),
    (lambda: train.train(MODEL, lambda: torch.arange(9), steps=1), "9 tokens … seq_len + 1 = 65: pass a longer"),
    (lambda: plots.show(None, "too " * 40), "40 words … 1 to 39"),
    (lambda: stored_result("loss"), "'loss' … one of ["),
    (lambda: text.train_val_split("a b", 1.0), "fraction=1.0 … between 0 and 1"),
    (lambda: text.train_val_split("ab"), "2 characters … pass a longer text"),
    (lambda: text.train_tokenizer("ab", 3), "vocab_size=3 … 257"),
    (lambda: text.bits_per_byte(MODEL, text.load_tokenizer(), ""), "0 tokens … Pass a longer text"),
    (lambda: model_from_weights(OURS, {}, dtype="bfloat16"), "'bfloat16' … pass … torch.bfloat16"),
    (lambda: model_from_weights(replace(OURS, tie_embeddings=True), MODEL.state_dict()), "ties … lm_head … untie"),
    (lambda: model_from_weights(OURS, MODEL.state_dict() | {str(n): torch.ones(1) for n in range(25)}),
     "25 weights do not fit … left over: 0 … left over: 1 … and 5 more"),
    (lambda: checkpoint.fetch_checkpoint("smollm"), "'smollm' … write owner/model"),
]  # fmt: skip


def assert_says(error, words):
    expected = ".*".join(re.escape(part.strip()) for part in words.split("…"))
    assert re.search(expected, str(error), re.DOTALL), f"{error}\ndoes not say\n{words}"


@pytest.mark.parametrize(("call", "words"), SAID, ids=[words for _, words in SAID])
def test_a_wrong_value_is_named_with_what_to_do(call, words):
    with pytest.raises(ValueError) as raised:
        call()
    assert_says(raised.value, words)


FILES = {  # a file of one's own, and words
    "no.txt": (None, "no.txt is not there: pass a text file, or a folder"),
    "latin.txt": (b"\xff", "latin.txt is not UTF-8 … save it as UTF-8, or leave it out"),
    "zero.txt": (b"a\0b" * 9000, "zero.txt holds zero bytes … leave it out"),
    "short.txt": (b"short", "5 characters … at least 20,000"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_text_of_ones_own_that_cannot_be_used_is_named_with_what_to_do(tmp_path, name):
    content, words = FILES[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        text.load_text(tmp_path / name)
    assert_says(raised.value, words)


@pytest.mark.parametrize("kind", [FileNotFoundError, HTTPError])
def test_a_hub_that_does_not_answer_is_explained(kind):
    words = rf"a/b could not be fetched \({kind.__name__}\): check name, network"
    down = mock.patch.object(checkpoint, "snapshot_download", side_effect=kind("no network"))
    with down, pytest.raises(ConnectionError, match=words):
        checkpoint.fetch_checkpoint("a/b")


FULL = [  # (where memory runs out, what was asked, words)
    ("torch.nn.functional.cross_entropy", run, "batch_size=8 … max_seq_len=8 … smaller batch_size"),
    ("helpers.model.Llama.forward", write, "1 prompts of 3 tokens … pass fewer, or shorter"),
    ("torch.Tensor.to", lambda: model_from_weights(OURS, dict(MODEL.state_dict()), torch.float16),
     "27,296 weights as torch.float16 … cpu: pass dtype=torch.bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "call", "words"), FULL, ids=[words for *_, words in FULL])
def test_a_full_memory_names_the_setting_to_change(place, call, words):
    with mock.patch(place, side_effect=RuntimeError("out of memory")), pytest.raises(torch.OutOfMemoryError) as raised:
        call()
    assert_says(raised.value, words)


def test_sections_that_errors_name_are_there():
    sources = [path for room in ("helpers", "checks", "tools") for path in (ROOT / room).rglob("*.py")]
    said = "".join(path.read_text(encoding="utf-8") for path in sources)
    named = set(re.findall(r"notebook (\d\d), section ([\d.]*\d)", said))
    assert named
    for number, section in sorted(named):
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert any("".join(cell["source"]).startswith(f"## {section} ") for cell in cells), (path.name, section)
