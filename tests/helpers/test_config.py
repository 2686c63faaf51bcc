"""The published models, and sizes that contradict each other."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.model import PRESETS, count_parameters
from tests.support.models import TINY

# name: parameters, width of a head, tied embeddings, base of the rotation, factor of its scaling
PUBLISHED = {
    "llama-2-7b": (6_738_415_616, 128, False, 10_000.0, None),
    "llama-2-70b": (68_976_648_192, 128, False, 10_000.0, None),
    "llama-3-8b": (8_030_261_248, 128, False, 500_000.0, None),
    "llama-3-70b": (70_553_706_496, 128, False, 500_000.0, None),
    "llama-3.1-405b": (405_853_388_800, 128, False, 500_000.0, 8.0),
    "llama-3.2-1b": (1_235_814_400, 64, True, 500_000.0, 32.0),
    "smollm2-135m": (134_515_008, 64, True, 100_000.0, None),
}
METAS_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def test_presets_are_the_published_models():
    found = {
        name: (count_parameters(c), c.head_dim, c.tie_embeddings, c.rope_theta, (c.rope_scaling or {}).get("factor"))
        for name, c in PRESETS.items()
    }
    assert found == PUBLISHED, "write what is published about a new preset into PUBLISHED, in tests/helpers/test_config"
    scalings = [config.rope_scaling for config in PRESETS.values() if config.rope_scaling]
    assert all(scaling == {"type": "llama3", "factor": scaling["factor"], **METAS_SCALING} for scaling in scalings)


def test_sizes_are_whole_and_positive():
    for name in ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "head_dim", "max_seq_len"):
        for value in (0, 2.0, "8", True):
            with pytest.raises(ValueError, match=f"{name}={value!r} must be a whole number >= 1"):
                replace(TINY, **{name: value})
    assert [type(n) for n in vars(replace(TINY, dim=np.int64(32))).values()] == [*map(type, vars(TINY).values())]


def test_settings_at_the_edge_are_taken():
    """A config that stands just beside a refused one is allowed."""
    replace(TINY, norm_eps=0.0, rope_theta=1.5, n_kv_heads=4, head_dim=2)
    replace(TINY, dim=30, head_dim=12)  # where the width of a head is given, dim need not be a multiple of n_heads
    replace(TINY, head_dim=4, rope_scaling={"type": "ntk", "factor": 1})


def test_a_config_keeps_its_own_rope_scaling_and_can_be_a_key():
    scaling = {"type": "linear", "factor": 2.0}
    config, scaling["factor"] = replace(TINY, rope_scaling=scaling), -1
    assert {config} == {replace(TINY, rope_scaling={"type": "linear", "factor": 2.0})}
