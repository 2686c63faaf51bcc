"""What is true of LLaMA's parts, one claim per test; agreement with other code is in test_parity.py."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.model import (
    Llama,
    attention_weights,
    causal_visible,
    count_parameters,
    repeat_kv,
    rope_angles,
    rope_inv_freq,
    swiglu_hidden_dim,
)  # fmt: skip
from tests.support.models import BFLOAT16, TINY, TINY_CONFIGS, TOLERANCE, assert_agree, draw_tokens, make_model


@given(pairs=st.integers(2, 32), factor=st.floats(1.0, 64.0))
def test_ntk_scaling_slows_the_slowest_pair_by_the_factor_and_the_fastest_not_at_all(pairs, factor):
    slowed = rope_inv_freq(2 * pairs) / rope_inv_freq(2 * pairs, scaling={"type": "ntk", "factor": factor})
    assert_agree(slowed[[0, -1]], torch.tensor([1.0, factor]))
    assert (slowed.diff() > -1e-4).all()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (4, 4), (2, 1, 4)])  # 4 positions, 4 pairs: no size may mislead
def test_every_position_has_its_angles_whatever_shape_the_positions_have(shape):
    positions, speeds = torch.randint(1000, shape), rope_inv_freq(8)
    angles = rope_angles(positions, speeds)
    assert angles.shape == (*shape, 4)
    assert_agree(angles.reshape(-1, 4), torch.outer(positions.flatten().float(), speeds))


def test_bfloat16_model_keeps_float32_angles():
    """bfloat16 has 8 bits: position 257 would become 256."""
    wide, narrow = Llama(TINY), Llama(TINY).bfloat16()
    assert narrow.inv_freq.dtype == torch.float32
    for expected, actual in zip(wide.rotation_and_mask(600), narrow.rotation_and_mask(600), strict=True):
        assert actual is expected is None or torch.equal(actual, expected)
    assert narrow(draw_tokens(2, 5)).dtype == torch.float32  # logits are widened for the softmax that follows


def test_hidden_dim_rule_gives_the_published_widths():
    published = {  # dim, multiple_of, multiplier: hidden_dim
        (4096,): 11_008,  # Llama 2 7B; rounded up to a multiple of 256 unless told otherwise
        (5120, 256, None): 13_824,  # Llama 2 13B
        (8192, 4096, 1.3): 28_672,  # Llama 2 70B and Llama 3 70B
        (4096, 1024, 1.3): 14_336,  # Llama 3 8B
        (2048, 256, 1.5): 8192,  # Llama 3.2 1B
    }
    assert {rule: swiglu_hidden_dim(*rule) for rule in published} == published


def test_positions_of_a_padded_row_count_from_its_first_real_token(model):
    """RoPE would forgive another start (only differences count), but the angles shown in a figure would be wrong."""
    cos, _, visible = model.rotation_and_mask(9, n_pad=torch.tensor([4, 0]))
    assert torch.equal(cos[0, 0, 4:], model.rotation_and_mask(5)[0])
    assert visible.any(dim=-1).all()  # a padding token sees itself: no row of the softmax is empty


def test_projections_that_write_to_the_residual_stream_start_smaller():
    """o_proj and down_proj by 1/√(2 · n_layers); a well-known slip scales up_proj instead of down_proj."""
    model = Llama(replace(TINY, dim=128, hidden_dim=256, n_layers=8, vocab_size=256, head_dim=None))
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            assert torch.equal(weight, torch.ones(128))
        else:
            writes = "o_proj" in name or "down_proj" in name
            assert weight.std().item() == pytest.approx(0.02 / 4 if writes else 0.02, rel=0.05), name
            assert abs(weight.mean().item()) < 0.001, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_query", [1, 5, 9])
@pytest.mark.parametrize("padding", [None, [4, 0]])
def test_heads_that_share_a_key_give_what_repeated_keys_give(padding, n_query, dtype, model):
    """Values and gradients, on every mask: causal, a chunk after a cache, a new token, each with padding."""
    n_pad, attention = padding and torch.tensor(padding), model.layers[0].attention
    visible = model.rotation_and_mask(n_query, 9 - n_query, n_pad)[2]
    given = [
        torch.randn(2, n, length, 8, dtype=dtype, requires_grad=True) for n, length in ((4, n_query), (2, 9), (2, 9))
    ]
    mixed, n_rep = attention.attend(*given, visible), attention.n_rep
    q, k, v = given
    seen = causal_visible(n_query, 9) if visible is None else visible
    expected = attention_weights(q, repeat_kv(k, n_rep), seen) @ repeat_kv(v, n_rep)
    towards = torch.randn_like(mixed)
    for ours, right in zip((mixed, *torch.autograd.grad(mixed, given, towards)),
                           (expected, *torch.autograd.grad(expected, given, towards)), strict=True):  # fmt: skip
        assert_agree(ours, right, TOLERANCE if dtype == torch.float32 else BFLOAT16)


@pytest.mark.parametrize("name", ["llama3 short", "tied"])
def test_a_copy_gives_the_same_logits_and_shares_nothing(name, tokens):
    model = make_model(TINY_CONFIGS[name])
    expected, loaded = model(tokens).detach(), Llama(model.config)
    loaded.load_state_dict(model.state_dict())
    twins = [copy.deepcopy(model), loaded]
    for weight in model.parameters():
        weight.data.zero_()
    for twin in twins:
        assert torch.equal(twin(tokens), expected)
        assert (twin.lm_head.weight is twin.tok_embeddings.weight) == model.config.tie_embeddings
        assert count_parameters(twin) == count_parameters(model.config)
