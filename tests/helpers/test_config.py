"""Sizes that contradict each other are refused, in a sentence that names both values and the remedy."""

import pickle
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
import torch

from helpers.model import PRESETS, KVCache, LlamaConfig, apply_rope, causal_visible, rope_inv_freq
from tests.support.models import TINY


def test_head_dim_defaults_to_dim_over_n_heads():
    assert replace(TINY, head_dim=None).head_dim == 8
    assert replace(TINY, head_dim=12).head_dim == 12


def test_n_rep_is_the_number_of_query_heads_per_kv_head():
    assert [replace(TINY, n_kv_heads=n).n_rep for n in (1, 2, 4)] == [4, 2, 1]


def test_config_cannot_be_changed_after_the_checks():
    with pytest.raises(FrozenInstanceError):
        TINY.n_heads = 3


def test_config_takes_names_only():
    """Twelve numbers in a row would invite an exchange of two of them."""
    with pytest.raises(TypeError, match="positional"):
        LlamaConfig(64, 32, 2, 4, 2, 48)


@pytest.mark.parametrize("name", PRESETS)
def test_config_survives_a_dict_and_a_pickle(name):
    config = PRESETS[name]
    assert LlamaConfig(**asdict(config)) == config
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "name", ["vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "head_dim", "max_seq_len"]
)
@pytest.mark.parametrize("value", [0, -4, 2.0, "8", True])
def test_sizes_are_whole_and_positive(name, value):
    with pytest.raises(ValueError) as error:
        replace(TINY, **{name: value})
    assert str(error.value) == f"{name}={value!r} must be a whole number >= 1."


SCALING = {"type": "llama3", "factor": 8.0}

# what is changed: what the sentence must contain: the values, then the remedy
REFUSED = {
    "n_heads not a multiple of n_kv_heads": (
        {"n_kv_heads": 3},
        ["n_heads=4", "n_kv_heads=3", "Choose n_kv_heads among the divisors of n_heads"],
    ),
    "more kv heads than query heads": ({"n_kv_heads": 8}, ["n_heads=4", "n_kv_heads=8", "divisors of n_heads"]),
    "odd head_dim": ({"head_dim": 7}, ["head_dim=7", "dim=32", "n_heads=4", "pass an even head_dim"]),
    "odd head_dim by division": (
        {"dim": 36, "head_dim": None},
        ["head_dim=9", "dim=36", "n_heads=4", "choose n_heads so that dim / n_heads is even"],
    ),
    "dim not divisible and no head_dim": (
        {"dim": 30, "head_dim": None},
        ["dim=30", "n_heads=4", "change one of them, or pass head_dim"],
    ),
    "negative eps": ({"norm_eps": -1e-5}, ["norm_eps=-1e-05", ">= 0", "for example 1e-5"]),
    "eps is not a number": ({"norm_eps": float("nan")}, ["norm_eps=nan", "for example 1e-5"]),
    "eps is text": ({"norm_eps": "1e-5"}, ["norm_eps='1e-5'", "for example 1e-5"]),
    "theta is text": ({"rope_theta": "10000"}, ["rope_theta='10000'", "for example 10000.0"]),
    "scaling is a name": ({"rope_scaling": "linear"}, ["rope_scaling='linear'", "None or a dict such as"]),
    "theta too small": ({"rope_theta": 1.0}, ["rope_theta=1.0", "> 1", "for example 10000.0"]),
    "theta infinite": ({"rope_theta": float("inf")}, ["rope_theta=inf", "for example 10000.0"]),
    "unknown scaling": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        ["'yarn'", "use one of ['linear', 'llama3', 'ntk'], or None"],
    ),
    "scaling without a type": ({"rope_scaling": {"factor": 4.0}}, ["None is not known", "use one of"]),
    "scaling without a factor": ({"rope_scaling": {"type": "linear"}}, ["factor=None", "new length / trained length"]),
    "factor below 1": ({"rope_scaling": {"type": "linear", "factor": 0.5}}, ["factor=0.5", ">= 1"]),
    "a key of another scaling": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "low_freq_factor": 1.0}},
        ["'linear'", "['low_freq_factor']", "remove them"],
    ),
    "a misspelled key": ({"rope_scaling": SCALING | {"low_freq": 1.0}}, ["'llama3'", "['low_freq']", "remove them"]),
    "bands in the wrong order": (
        {"rope_scaling": SCALING | {"low_freq_factor": 4.0, "high_freq_factor": 1.0}},
        ["got 4.0 and 1.0", "0 < low_freq_factor < high_freq_factor", "Meta uses 1 and 4"],
    ),
    "no trained length": (
        {"rope_scaling": SCALING | {"original_max_position_embeddings": 0}},
        ["original_max_position_embeddings=0", "whole number >= 1"],
    ),
    "ntk with one pair": (
        {"head_dim": 2, "rope_scaling": {"type": "ntk", "factor": 2.0}},
        ["head_dim >= 4", "got 2", "use 'linear'"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_config_names_the_values_and_the_fix(case):
    change, words = REFUSED[case]
    with pytest.raises(ValueError) as error:
        replace(TINY, **change)
    for word in words:
        assert word in str(error.value)


def test_settings_at_the_edge_are_taken():
    """What stands beside each refusal is allowed."""
    replace(TINY, norm_eps=0.0, rope_theta=1.5, n_kv_heads=4, head_dim=2)
    replace(TINY, head_dim=4, rope_scaling={"type": "ntk", "factor": 1})
    replace(TINY, dim=30, head_dim=8)


# ----------------------------------------------------------------- the functions check what they are given


def test_odd_head_dim_names_the_fix():
    with pytest.raises(ValueError, match=r"head_dim=7 must be even and >= 2: RoPE turns pairs of numbers"):
        rope_inv_freq(7)


def test_rope_inv_freq_refuses_an_unknown_scaling():
    with pytest.raises(ValueError, match=r"'dynamic' is not known: use one of \['linear', 'llama3', 'ntk'\]"):
        rope_inv_freq(8, scaling={"type": "dynamic", "factor": 2.0})


def test_apply_rope_refuses_angles_of_another_width():
    angles = torch.zeros(3, 8)  # one per coordinate, as in transformers
    with pytest.raises(ValueError, match=r"head_dim 8, but cos has 8 angles: pass head_dim / 2 angles"):
        apply_rope(torch.zeros(1, 1, 3, 8), angles.cos(), angles.sin())


def test_apply_rope_refuses_an_unknown_layout():
    angles = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"'half' is not known: use 'halves' .* or 'interleaved'"):
        apply_rope(torch.zeros(1, 1, 3, 8), angles.cos(), angles.sin(), layout="half")


def test_causal_visible_refuses_more_queries_than_keys():
    with pytest.raises(ValueError, match=r"n_query=5 exceeds n_key=4: the queries are the last of the key positions"):
        causal_visible(5, 4)


@pytest.mark.parametrize(("batch_size", "max_seq_len", "text"), [(0, 8, "batch_size=0"), (2, -1, "max_seq_len=-1")])
def test_cache_refuses_sizes_below_one(batch_size, max_seq_len, text):
    with pytest.raises(ValueError, match=f"{text} must be a whole number >= 1"):
        KVCache(TINY, batch_size, max_seq_len, torch.float32, "cpu")
