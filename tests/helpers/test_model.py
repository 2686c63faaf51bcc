"""What is true of LLaMA's parts, one claim per test; agreement with other code is in test_parity.py."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.checkpoint import interleaved_to_halves
from helpers.model import (
    PRESETS,
    Llama,
    RMSNorm,
    apply_rope,
    attention_weights,
    causal_visible,
    count_parameters,
    rope_angles,
    rope_inv_freq,
    swiglu_hidden_dim,
)
from tests.support.models import TINY, TINY_CONFIGS, assert_agree, draw_tokens, make_model

LAYOUTS = ["halves", "interleaved"]


def draw(*shape, seed=0):
    """Seeded normal numbers (hypothesis repeats a test within one fixture, so the seed must be an argument)."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------------------------- RMSNorm


@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_rms_norm_does_not_see_the_length_of_its_input(factor, seed):
    norm, x = RMSNorm(16, eps=0.0), draw(2, 3, 16, seed=seed)
    assert_agree(norm(factor * x), norm(x))


def test_rms_norm_of_a_tiny_vector_is_held_down_by_eps():
    """A mean square as small as eps, 1e-5 unless said otherwise, leaves a length of 1 / √2 instead of 1."""
    assert_agree(RMSNorm(4)(torch.full((1, 4), math.sqrt(1e-5))).detach(), torch.full((1, 4), math.sqrt(0.5)))
    assert torch.equal(RMSNorm(16)(torch.zeros(2, 16)), torch.zeros(2, 16))


# ------------------------------------------------------------------------------------------------ RoPE


def rotate(x, position, layout):
    """x (B, H, 1, h), turned to this position."""
    angles = rope_angles(torch.tensor([position]), rope_inv_freq(x.shape[-1], theta=100.0))
    return apply_rope(x, angles.cos(), angles.sin(), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(pairs=st.integers(1, 8), position=st.integers(0, 100_000), seed=st.integers(0, 99))
def test_rotation_keeps_length(layout, pairs, position, seed):
    x = draw(2, 3, 1, 2 * pairs, seed=seed)
    assert_agree(rotate(x, position, layout).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    pairs=st.integers(1, 8), query=st.integers(0, 500), key=st.integers(0, 500), shift=st.integers(1, 500),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_scores_depend_on_position_difference_only(layout, pairs, query, key, shift, seed):
    q, k = draw(2, 1, 1, 1, 2 * pairs, seed=seed)
    score, shifted = ((rotate(q, query + s, layout) * rotate(k, key + s, layout)).sum() for s in (0, shift))
    # A score can be near 0: compare with the largest that it could be. Angles near 1000 rad are rounded to 6e-5 rad.
    assert_agree(shifted, score, 1e-4, scale=(q.norm() * k.norm()).item())


@given(pairs=st.integers(1, 8), position=st.integers(0, 1000), seed=st.integers(0, 99))
def test_the_two_layouts_differ_by_a_permutation(pairs, position, seed):
    x = draw(1, 1, 1, 2 * pairs, seed=seed)

    def permuted(x):
        return interleaved_to_halves(x.reshape(-1, 1), 2 * pairs).reshape(x.shape)

    assert torch.equal(rotate(permuted(x), position, "halves"), permuted(rotate(x, position, "interleaved")))


@given(pairs=st.integers(2, 32), factor=st.floats(1.0, 64.0))
def test_ntk_scaling_slows_the_slowest_pair_by_the_factor_and_the_fastest_not_at_all(pairs, factor):
    slowed = rope_inv_freq(2 * pairs) / rope_inv_freq(2 * pairs, scaling={"type": "ntk", "factor": factor})
    assert_agree(slowed[[0, -1]], torch.tensor([1.0, factor]))
    assert (slowed.diff() > -1e-4).all()


def test_bfloat16_model_keeps_float32_angles():
    """bfloat16 has 8 bits: position 257 would become 256."""
    wide, narrow = Llama(TINY), Llama(TINY).bfloat16()
    assert narrow.inv_freq.dtype == torch.float32
    for expected, actual in zip(wide.rotation_and_mask(600), narrow.rotation_and_mask(600), strict=True):
        assert actual is expected is None or torch.equal(actual, expected)
    assert narrow(draw_tokens(2, 5)).dtype == torch.float32  # logits are widened for the softmax that follows


# ------------------------------------------------------------------------------------ masks and attention


def test_a_mask_is_made_only_where_the_fused_kernel_needs_one(model):
    """Without a mask the kernel hides the future by itself, and a single token sees all: both save time and memory."""
    assert [model.rotation_and_mask(*sizes)[2] for sizes in ((5, 0), (1, 0), (1, 6))] == [None] * 3
    assert torch.equal(model.rotation_and_mask(2, 6)[2], causal_visible(2, 8))


def test_attention_weights_do_not_overflow_in_float16():
    q = torch.full((1, 1, 4, 64), 20.0).half()
    weights = attention_weights(q, q, causal_visible(4, 4))
    assert weights.dtype == torch.float16
    assert_agree(weights[0, 0, 3].float(), torch.full((4,), 0.25))


# ---------------------------------------------------------------------------------------- feed-forward


def test_hidden_dim_rule_gives_the_published_widths():
    published = {  # dim, multiple_of, multiplier: hidden_dim
        (4096,): 11_008,  # Llama 2 7B; rounded up to a multiple of 256 unless told otherwise
        (5120, 256, None): 13_824,  # Llama 2 13B
        (8192, 4096, 1.3): 28_672,  # Llama 2 70B and Llama 3 70B
        (4096, 1024, 1.3): 14_336,  # Llama 3 8B
        (2048, 256, 1.5): 8192,  # Llama 3.2 1B
    }
    assert {rule: swiglu_hidden_dim(*rule) for rule in published} == published


# ----------------------------------------------------------------------------------------- whole model


def test_future_token_cannot_change_the_past(model, tokens):
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 64
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()  # and the present and the future do see it


def test_last_only_gives_the_last_position_of_all(model, tokens):
    last, cache = model(tokens)[:, -1:].detach(), model.new_cache(2)
    assert_agree(model(tokens, last_only=True).detach(), last)
    model(tokens[:, :9], cache, last_only=True)
    assert_agree(model(tokens[:, 9:].int(), cache, last_only=True), last)  # int32 ids are taken too


@given(n_pad=st.lists(st.integers(0, 12), min_size=2, max_size=2), filler=st.integers(0, 63))
def test_padding_changes_nothing(n_pad, filler):
    """Whatever stands in the padding, and however long it is: every real token has the logits of its row alone."""
    model, tokens = make_model(), draw_tokens(2, 13)
    for row, n in enumerate(n_pad):
        tokens[row, :n] = filler
    logits = model(tokens, n_pad=torch.tensor(n_pad))
    for row, n in enumerate(n_pad):
        assert_agree(logits[row, n:].detach(), model(tokens[row : row + 1, n:])[0].detach())


def test_positions_of_a_padded_row_count_from_its_first_real_token(model):
    """RoPE would forgive another start (only differences count), but the angles shown in a figure would be wrong."""
    cos, _, visible = model.rotation_and_mask(9, n_pad=torch.tensor([4, 0]))
    assert torch.equal(cos[0, 0, 4:], model.rotation_and_mask(5)[0])
    assert visible.any(dim=-1).all()  # a padding token sees itself: no row of the softmax is empty


# ----------------------------------------------------------------------------- sizes, initialisation, copies


def test_meta_device_makes_a_model_without_allocating_it():
    with torch.device("meta"):
        model = Llama(PRESETS["llama-3-8b"])
    assert all(weight.is_meta for weight in model.parameters())
    assert model.inv_freq.device.type == "cpu"  # computed, not loaded: it must hold numbers
    assert model(torch.zeros(1, 4, dtype=torch.int64, device="meta")).shape == (1, 4, 128_256)


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


def test_a_state_dict_holds_weights_only():
    """No table of angles: old checkpoints that carry one cannot disagree with the config."""
    assert set(Llama(TINY).state_dict()) == {name for name, _ in Llama(TINY).named_parameters()}
