"""What is true of LLaMA's parts, one claim per test; agreement with other code is in test_parity.py."""

import copy
import io
import math
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from helpers.checkpoint import interleaved_to_halves
from helpers.model import (
    PRESETS,
    GroupedQueryAttention,
    Llama,
    RMSNorm,
    SwiGLU,
    TransformerBlock,
    apply_rope,
    attention_weights,
    causal_visible,
    count_parameters,
    repeat_kv,
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


@given(dim=st.integers(1, 40), seed=st.integers(0, 99))
def test_rms_norm_leaves_a_root_mean_square_of_one(dim, seed):
    y = RMSNorm(dim, eps=0.0)(draw(3, dim, seed=seed) * 50)
    assert_agree(y.pow(2).mean(dim=-1), torch.ones(3))


@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_rms_norm_does_not_see_the_length_of_its_input(factor, seed):
    norm, x = RMSNorm(16, eps=0.0), draw(2, 3, 16, seed=seed)
    assert_agree(norm(factor * x), norm(x))


@given(seed=st.integers(0, 99))
def test_rms_norm_with_gain_one_turns_nothing(seed):
    x = draw(5, 16, seed=seed)
    assert_agree(F.cosine_similarity(RMSNorm(16)(x), x, dim=-1), torch.ones(5))


def test_rms_norm_treats_each_token_on_its_own():
    norm, x = RMSNorm(16), draw(1, 5, 16)
    changed = x.clone()
    changed[:, -1] *= 100
    assert torch.equal(norm(changed)[:, :-1], norm(x)[:, :-1])


def test_rms_norm_of_zeros_is_zeros():
    assert torch.equal(RMSNorm(16, eps=1e-6)(torch.zeros(2, 16)), torch.zeros(2, 16))


def test_rms_norm_of_a_tiny_vector_is_held_down_by_eps():
    """A mean square as small as eps, 1e-5 unless said otherwise, leaves a length of 1 / √2 instead of 1."""
    assert_agree(RMSNorm(4)(torch.full((1, 4), math.sqrt(1e-5))).detach(), torch.full((1, 4), math.sqrt(0.5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_rms_norm_keeps_the_dtype(dtype):
    assert RMSNorm(16).to(dtype)(draw(2, 16).to(dtype)).dtype == dtype


# ------------------------------------------------------------------------------------------------ RoPE


def rotate(x, positions, layout, theta=100.0):
    """x (B, H, T, h), turned to these positions."""
    angles = rope_angles(positions, rope_inv_freq(x.shape[-1], theta))
    return apply_rope(x, angles.cos(), angles.sin(), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(pairs=st.integers(1, 8), position=st.integers(0, 100_000), seed=st.integers(0, 99))
def test_rotation_keeps_length(layout, pairs, position, seed):
    x = draw(2, 3, 1, 2 * pairs, seed=seed)
    turned = rotate(x, torch.tensor([position]), layout)
    assert_agree(turned.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    pairs=st.integers(1, 8), query=st.integers(0, 500), key=st.integers(0, 500), shift=st.integers(1, 500),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_scores_depend_on_position_difference_only(layout, pairs, query, key, shift, seed):
    q, k = draw(2, 1, 1, 1, 2 * pairs, seed=seed)

    def score(query, key):
        turned_q = rotate(q, torch.tensor([query]), layout)
        turned_k = rotate(k, torch.tensor([key]), layout)
        return (turned_q * turned_k).sum()

    lengths = (q.norm() * k.norm()).item()  # a score can be near 0: compare with the largest that it could be
    # float32 angles near 1000 rad are rounded to 6e-5 rad
    assert_agree(score(query + shift, key + shift), score(query, key), 1e-4, scale=lengths)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_do_depend_on_the_position_difference(layout):
    q, k = draw(2, 1, 1, 1, 8)
    near = (rotate(q, torch.tensor([5]), layout) * rotate(k, torch.tensor([4]), layout)).sum()
    far = (rotate(q, torch.tensor([5]), layout) * rotate(k, torch.tensor([1]), layout)).sum()
    assert (near - far).abs() > 0.1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_position_zero_is_not_turned(layout):
    x = draw(2, 3, 1, 8)
    assert torch.equal(rotate(x, torch.tensor([0]), layout), x)


@pytest.mark.parametrize(("layout", "partner"), [("halves", 4), ("interleaved", 1)])
def test_coordinate_0_turns_towards_its_partner(layout, partner):
    """A quarter turn (π/2 rad) of pair 0 alone takes e_0 to the other coordinate of the pair, with a plus sign."""
    x = torch.zeros(1, 1, 1, 8)
    x[..., 0] = 1.0
    angles = torch.tensor([[math.pi / 2, 0.0, 0.0, 0.0]])
    expected = torch.zeros(1, 1, 1, 8)
    expected[..., partner] = 1.0
    assert_agree(apply_rope(x, angles.cos(), angles.sin(), layout), expected)


@given(pairs=st.integers(1, 8), position=st.integers(0, 1000), seed=st.integers(0, 99))
def test_the_two_layouts_differ_by_a_permutation(pairs, position, seed):
    x, positions = draw(1, 1, 1, 2 * pairs, seed=seed), torch.tensor([position])

    def permuted(x):
        return interleaved_to_halves(x.reshape(-1, 1), 2 * pairs).reshape(x.shape)

    assert torch.equal(rotate(permuted(x), positions, "halves"), permuted(rotate(x, positions, "interleaved")))


def test_turning_speeds_fall_geometrically_from_one():
    inv_freq = rope_inv_freq(8, theta=10_000.0)
    torch.testing.assert_close(inv_freq, torch.tensor([1.0, 0.1, 0.01, 0.001]))
    assert torch.equal(rope_inv_freq(8), inv_freq)  # the paper's base is the default


def test_linear_scaling_slows_every_pair_by_the_factor():
    torch.testing.assert_close(rope_inv_freq(8, scaling={"type": "linear", "factor": 4.0}), rope_inv_freq(8) / 4)


@given(pairs=st.integers(2, 32), factor=st.floats(1.0, 64.0))
def test_ntk_scaling_slows_the_slowest_pair_by_the_factor_and_the_fastest_not_at_all(pairs, factor):
    slowed = rope_inv_freq(2 * pairs) / rope_inv_freq(2 * pairs, scaling={"type": "ntk", "factor": factor})
    assert_agree(slowed[[0, -1]], torch.tensor([1.0, factor]))
    assert (slowed.diff() > -1e-4).all()


def test_llama3_scaling_keeps_fast_pairs_slows_slow_ones_and_blends_between():
    """Fast: 4 turns or more within the trained length. Slow: less than one."""
    scaling = {"type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192}
    inv_freq = rope_inv_freq(64, 500_000.0)
    slowed = inv_freq / rope_inv_freq(64, 500_000.0, scaling)
    turns = 8192 * inv_freq / (2 * math.pi)
    fast, slow = turns >= 4, turns < 1
    blended = ~fast & ~slow
    assert fast.any()
    assert slow.any()
    assert blended.any()
    assert_agree(slowed[fast], torch.ones(int(fast.sum())))
    assert_agree(slowed[slow], torch.full((int(slow.sum()),), 32.0))
    assert ((slowed[blended] > 1) & (slowed[blended] < 32)).all()


def test_llama3_scaling_defaults_to_metas_constants():
    written_out = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    scaling = {"type": "llama3", "factor": 8.0}
    assert torch.equal(rope_inv_freq(64, 5e5, scaling), rope_inv_freq(64, 5e5, scaling | written_out))


def test_angles_far_out_are_not_rounded_to_a_neighbour():
    angles = rope_angles(torch.tensor([131_070, 131_071]), torch.tensor([1.0]))
    assert angles.dtype == torch.float32
    assert angles[1] - angles[0] == 1.0


def test_bfloat16_model_keeps_float32_angles():
    """bfloat16 has 8 bits: position 257 would become 256."""
    wide, narrow = Llama(TINY), Llama(TINY).bfloat16()
    assert narrow.inv_freq.dtype == torch.float32
    for expected, actual in zip(wide.rotation_and_mask(600), narrow.rotation_and_mask(600), strict=True):
        assert actual is expected is None or torch.equal(actual, expected)
    assert narrow(draw_tokens(2, 5)).dtype == torch.float32  # logits are widened for the softmax that follows


# ------------------------------------------------------------------------------------ masks and attention


@given(n_cached=st.integers(0, 9), n_query=st.integers(1, 9))
def test_causal_visible_is_the_last_rows_of_the_triangle(n_cached, n_query):
    n_key = n_cached + n_query
    triangle = torch.ones(n_key, n_key, dtype=torch.bool).tril()
    assert torch.equal(causal_visible(n_query, n_key), triangle[n_cached:])


@pytest.mark.parametrize(
    ("n_query", "n_cached", "is_made"), [(5, 0, False), (1, 0, False), (1, 6, False), (2, 6, True)]
)
def test_a_mask_is_made_only_where_the_fused_kernel_needs_one(model, n_query, n_cached, is_made):
    """Without a mask the kernel hides the future by itself, and a single token sees all: both save time and memory."""
    visible = model.rotation_and_mask(n_query, n_cached)[2]
    assert torch.equal(visible, causal_visible(n_query, n_cached + n_query)) if is_made else visible is None


def test_attention_rows_sum_to_one_and_hidden_keys_get_nothing():
    visible = causal_visible(5, 9)
    weights = attention_weights(10 * draw(2, 3, 5, 8), draw(2, 3, 9, 8, seed=1), visible)
    assert_agree(weights.sum(dim=-1), torch.ones(2, 3, 5))
    assert (weights[..., ~visible] == 0).all()


def test_attention_weights_do_not_overflow_in_float16():
    q = torch.full((1, 1, 4, 64), 20.0).half()
    weights = attention_weights(q, q, causal_visible(4, 4))
    assert weights.dtype == torch.float16
    assert_agree(weights[0, 0, 3].float(), torch.full((4,), 0.25))


def test_repeat_kv_puts_copies_next_to_each_other():
    heads = torch.tensor([1.0, 2.0])[None, :, None, None]
    assert repeat_kv(heads, 3).flatten().tolist() == [1, 1, 1, 2, 2, 2]
    assert repeat_kv(heads, 1).flatten().tolist() == [1, 2]


def attend(attention, x):
    cos, sin, _ = Llama(TINY).rotation_and_mask(x.shape[1])
    return attention(x, cos, sin)


def test_gqa_equals_mha_when_every_query_head_has_its_own_kv_head():
    """With n_kv_heads = n_heads the module is multi-head attention, head by head."""
    attention, x = GroupedQueryAttention(TINY_CONFIGS["mha"]), draw(2, 7, 32)
    cos, sin, _ = Llama(TINY).rotation_and_mask(7)
    heads = []
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        q, k, v = (
            (x @ proj.weight[rows].T)[:, None] for proj in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        weights = attention_weights(apply_rope(q, cos, sin), apply_rope(k, cos, sin), causal_visible(7, 7))
        heads.append((weights @ v)[:, 0])
    expected = torch.cat(heads, dim=-1) @ attention.o_proj.weight.T
    assert_agree(attend(attention, x).detach(), expected.detach())


@pytest.mark.parametrize("name", ["gqa", "mqa"])
def test_gqa_equals_mha_with_repeated_key_heads(name):
    config = TINY_CONFIGS[name]
    shared, own = GroupedQueryAttention(config), GroupedQueryAttention(TINY_CONFIGS["mha"])
    weights = shared.state_dict()
    for part in ("k_proj.weight", "v_proj.weight"):
        by_head = weights[part].unflatten(0, (config.n_kv_heads, config.head_dim))
        weights[part] = by_head.repeat_interleave(config.n_rep, dim=0).flatten(0, 1)
    own.load_state_dict(weights)
    x = draw(2, 7, 32)
    assert_agree(attend(shared, x).detach(), attend(own, x).detach())


# ---------------------------------------------------------------------------------------- feed-forward


def test_swiglu_treats_each_token_on_its_own():
    feed_forward, x = SwiGLU(16, 24), draw(1, 5, 16)
    changed = x.clone()
    changed[:, 2] += 1
    same = (feed_forward(changed) == feed_forward(x)).all(dim=-1)[0]
    assert same.tolist() == [True, True, False, True, True]


def test_a_closed_gate_lets_nothing_through():
    feed_forward, x = SwiGLU(16, 24), draw(2, 5, 16)
    feed_forward.gate_proj.weight.data.zero_()
    assert torch.equal(feed_forward(x), torch.zeros(2, 5, 16))


@pytest.mark.parametrize(
    ("dim", "multiple_of", "multiplier", "hidden_dim"),
    [
        (4096, 256, None, 11_008),  # Llama 2 7B
        (5120, 256, None, 13_824),  # Llama 2 13B
        (8192, 4096, 1.3, 28_672),  # Llama 2 70B and Llama 3 70B
        (4096, 1024, 1.3, 14_336),  # Llama 3 8B
        (2048, 256, 1.5, 8192),  # Llama 3.2 1B
    ],
)
def test_hidden_dim_rule_gives_the_published_widths(dim, multiple_of, multiplier, hidden_dim):
    assert swiglu_hidden_dim(dim, multiple_of, multiplier) == hidden_dim


def test_hidden_dim_rule_rounds_up_to_a_multiple_of_256_unless_told():
    assert swiglu_hidden_dim(4096) == 11_008


@given(dim=st.integers(1, 10_000), multiple_of=st.integers(1, 512))
def test_hidden_dim_is_rounded_up_to_the_next_multiple(dim, multiple_of):
    hidden_dim = swiglu_hidden_dim(dim, multiple_of)
    assert hidden_dim % multiple_of == 0
    assert 0 <= hidden_dim - int(8 * dim / 3) < multiple_of


# ----------------------------------------------------------------------------------------- whole model


@pytest.mark.parametrize("name", ["mha", "gqa", "mqa", "llama3 short"])
def test_future_token_cannot_change_the_past(name, tokens):
    model = make_model(TINY_CONFIGS[name])
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 64
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()  # and the present and the future do see it


def test_rows_of_a_batch_do_not_see_each_other(model, tokens):
    assert_agree(model(tokens)[1:].detach(), model(tokens[1:]).detach())


def test_order_of_earlier_tokens_matters(model, tokens):
    """Without RoPE attention is blind to it: the last token of one layer would see a bag of words."""
    swapped = tokens[:, [1, 0, *range(2, 16)]]
    assert (model(tokens)[:, -1] - model(swapped)[:, -1]).abs().max() > 0.1


def test_a_block_writes_to_the_residual_stream_only_by_adding():
    """With both output projections at 0 a block hands its input on, to the bit: nothing is normalised in place."""
    block, x = TransformerBlock(TINY), draw(2, 5, 32)
    block.attention.o_proj.weight.data.zero_()
    block.feed_forward.down_proj.weight.data.zero_()
    cos, sin, _ = Llama(TINY).rotation_and_mask(5)
    assert torch.equal(block(x, cos, sin), x)


def test_last_only_gives_the_last_position_of_all(model, tokens):
    assert_agree(model(tokens, last_only=True).detach(), model(tokens)[:, -1:].detach())


def test_a_sequence_longer_than_max_seq_len_runs_without_a_cache(model):
    assert model(draw_tokens(1, 100)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_token_ids_of_either_integer_type_are_taken(model, tokens, dtype):
    assert model(tokens.to(dtype)).shape == (2, 16, 64)


# --------------------------------------------------------------------------------------------- padding


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
    cos, sin, visible = model.rotation_and_mask(9, n_pad=torch.tensor([4, 0]))
    expected_cos, expected_sin, _ = model.rotation_and_mask(5)
    assert torch.equal(cos[0, 0, 4:], expected_cos)
    assert torch.equal(sin[0, 0, 4:], expected_sin)
    assert torch.equal(expected_cos[0], torch.ones(4))  # the first token stands at 0, and so does all padding
    assert torch.equal(cos[0, 0, :4], torch.ones(4, 4))
    assert visible.any(dim=-1).all()  # a padding token sees itself: no row of the softmax is empty
    assert not visible[0, 0, 4:, :4].any()


@pytest.mark.parametrize("longest", [3, 12])  # 12: longer than a first chunk of 5 tokens, and than a head is wide
@pytest.mark.parametrize("chunks", [(16,), (5, 4, 7), (1,) * 16])
def test_padding_is_remembered_by_the_cache(model, tokens, chunks, longest):
    n_pad = torch.tensor([longest, 0])
    expected = model(tokens, n_pad=n_pad).detach()
    cache = model.new_cache(2)
    first, *later = tokens.split(chunks, dim=1)
    logits = torch.cat([model(first, cache, n_pad=n_pad), *(model(chunk, cache) for chunk in later)], dim=1)
    assert_agree(logits[0, longest:], expected[0, longest:])
    assert_agree(logits[1], expected[1])


def test_padding_must_leave_room_for_a_token_in_the_cache(model, tokens):
    model(tokens, model.new_cache(2, 20), n_pad=torch.tensor([19, 0]))
    with pytest.raises(ValueError, match="n_pad runs from 0 to 20, but rows of at most 20 tokens allow 0 to 19"):
        model(tokens, model.new_cache(2, 20), n_pad=torch.tensor([20, 0]))


# ----------------------------------------------------------------------------------------------- cache


@given(chunks=st.lists(st.integers(1, 7), min_size=1, max_size=6), name=st.sampled_from(sorted(TINY_CONFIGS)))
def test_any_chunks_through_the_cache_equal_one_call_without(chunks, name):
    model, tokens = make_model(TINY_CONFIGS[name]), draw_tokens(2, sum(chunks))
    cache = model.new_cache(2, sum(chunks))
    logits = torch.cat([model(chunk, cache) for chunk in tokens.split(chunks, dim=1)], dim=1)
    assert cache.length == sum(chunks)
    assert_agree(logits, model(tokens).detach())


def test_last_only_works_with_a_cache(model, tokens):
    cache = model.new_cache(2)
    model(tokens[:, :9], cache, last_only=True)
    assert_agree(model(tokens[:, 9:], cache, last_only=True), model(tokens)[:, -1:].detach())


def test_a_cache_holds_keys_and_values_of_the_kv_heads_only():
    cache = make_model(TINY_CONFIGS["mqa"]).new_cache(3, 10)
    assert cache.k.shape == cache.v.shape == (2, 3, 1, 10, 8)  # layers, B, K, tokens, h
    assert make_model().new_cache(3).k.shape[3] == TINY.max_seq_len


@pytest.mark.parametrize("part", [GroupedQueryAttention, TransformerBlock])
def test_a_part_on_its_own_writes_into_the_first_layer_of_a_cache(part):
    """Notebooks call attention or a block alone, without saying which layer it is."""
    config = replace(TINY, n_layers=2)
    alone, cache, x = part(config), Llama(config).new_cache(2), draw(2, 5, 32)
    cos, sin, _ = Llama(config).rotation_and_mask(5)
    with torch.no_grad():
        assert_agree(alone(x, cos, sin, cache=cache), alone(x, cos, sin))
    assert cache.k[0, :, :, :5].any()
    assert not cache.k[1].any()


def test_with_a_cache_no_gradient_is_kept_and_without_one_the_same_model_trains(model, tokens):
    cache = model.new_cache(2)
    assert not model(tokens, cache).requires_grad
    assert cache.k.grad_fn is None
    model(tokens).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


# a model of TINY, a cache of 2 rows and 20 tokens that holds 10: what is asked, what the sentence must contain
BAD_CALLS = {
    "token id too large": (
        lambda model, cache: model(torch.tensor([[3], [64]]), cache),
        ["run from 3 to 64", "vocab_size=64 allows 0 to 63", "use the tokenizer that belongs to this model"],
    ),
    "token id negative": (
        lambda model, cache: model(torch.tensor([[3], [-1]]), cache),
        ["run from -1 to 3", "0 to 63"],
    ),
    "tokens are float": (
        lambda model, cache: model(torch.ones(2, 1), cache),
        ["torch.float32", "pass integer token ids, tokens.long()"],
    ),
    "tokens without a batch": (lambda model, cache: model(torch.tensor([1]), cache), ["(1,)", "pass (batch, tokens)"]),
    "no tokens": (
        lambda model, cache: model(torch.ones(2, 0, dtype=torch.int64), cache),
        ["(2, 0)", "neither empty"],
    ),
    "prompt longer than the cache": (
        lambda model, cache: model(draw_tokens(2, 11), cache),
        ["11 tokens do not fit", "holds 10 of at most 20", "Shorten the prompt", "max_seq_len="],
    ),
    "cache of another batch size": (
        lambda model, cache: model(draw_tokens(3, 1), cache),
        ["batch size 3", "the cache 2", "make a cache to fit"],
    ),
    "cache of another dtype": (
        lambda model, cache: model.bfloat16()(draw_tokens(2, 1), cache),
        ["torch.bfloat16", "torch.float32", "model.new_cache() after moving or casting"],
    ),
    "padding in the middle": (
        lambda model, cache: model(draw_tokens(2, 1), cache, n_pad=torch.tensor([0, 0])),
        ["after 10 cached tokens", "pass it with the first tokens only"],
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_failed_call_names_the_fix_and_leaves_the_cache_as_it_was(name, model):
    call, words = BAD_CALLS[name]
    tokens = draw_tokens(2, 12)
    cache = model.new_cache(2, 20)
    model(tokens[:, :10], cache)
    k, v = cache.k.clone(), cache.v.clone()
    with pytest.raises(ValueError) as error:
        call(model, cache)
    for word in words:
        assert word in str(error.value)
    assert (cache.length, cache.n_pad) == (10, None)
    assert torch.equal(cache.k, k)
    assert torch.equal(cache.v, v)


def test_a_call_that_breaks_inside_leaves_an_empty_cache_empty(model, tokens):
    """A repeated call without padding must not remember the padding of the one that broke."""
    cache = model.new_cache(2)
    hook = model.layers[1].feed_forward.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(RuntimeError):
        model(tokens, cache, n_pad=torch.tensor([1, 2]))
    hook.remove()
    assert (cache.length, cache.n_pad) == (0, None)
    assert_agree(model(tokens, cache), model(tokens).detach())


def test_a_call_that_is_interrupted_in_the_last_layer_can_be_repeated(model, tokens):
    cache = model.new_cache(2)
    model(tokens[:, :5], cache)
    hook = model.layers[1].feed_forward.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model(tokens[:, 5:9], cache)
    hook.remove()
    assert cache.length == 5
    assert_agree(model(tokens[:, 5:], cache), model(tokens)[:, 5:].detach())


def test_token_ids_are_checked_without_a_cache_too(model):
    with pytest.raises(ValueError, match=r"run from 0 to 64, but vocab_size=64 allows 0 to 63"):
        model(torch.tensor([[0, 64]]))


# --------------------------------------------------------------------- sizes, initialisation, copies, import

PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "smollm2-135m": 134_515_008,
    "tinyllama-1.1b": 1_100_048_384,
}


def test_every_preset_has_a_published_size():
    assert PRESETS.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name):
    assert count_parameters(PRESETS[name]) == PUBLISHED[name]


def test_ties_are_those_of_the_published_models():
    tied = {name for name, config in PRESETS.items() if config.tie_embeddings}
    assert tied == {"llama-3.2-1b", "llama-3.2-3b", "smollm2-135m"}


def test_presets_rotate_like_the_published_models():
    """rope_theta and the scaling factor cannot be seen in a parameter count."""
    rotation = {name: (c.rope_theta, (c.rope_scaling or {}).get("factor")) for name, c in PRESETS.items()}
    assert rotation == {
        **dict.fromkeys(["llama-2-7b", "llama-2-13b", "llama-2-70b", "tinyllama-1.1b"], (10_000.0, None)),
        **dict.fromkeys(["llama-3-8b", "llama-3-70b"], (500_000.0, None)),
        "llama-3.1-405b": (500_000.0, 8.0),
        **dict.fromkeys(["llama-3.2-1b", "llama-3.2-3b"], (500_000.0, 32.0)),
        "smollm2-135m": (100_000.0, None),
    }


def test_head_dims_of_presets_are_the_published_ones():
    head_dims = {name: config.head_dim for name, config in PRESETS.items()}
    small = dict.fromkeys(["llama-3.2-1b", "smollm2-135m", "tinyllama-1.1b"], 64)
    assert head_dims == dict.fromkeys(PRESETS, 128) | small


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


def test_a_new_model_finds_every_token_about_equally_likely(tokens):
    loss = F.cross_entropy(Llama(TINY)(tokens).flatten(0, 1), tokens.flatten())
    assert loss.item() == pytest.approx(math.log(64), abs=0.1)


def test_a_tied_matrix_is_one_tensor():
    tied, untied = Llama(TINY_CONFIGS["tied"]), Llama(TINY)
    assert tied.lm_head.weight is tied.tok_embeddings.weight
    assert untied.lm_head.weight is not untied.tok_embeddings.weight
    assert count_parameters(untied) - count_parameters(tied) == 64 * 32
    assert count_parameters(tied) == count_parameters(TINY_CONFIGS["tied"])


def through_deepcopy(model):
    return copy.deepcopy(model)


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))


def through_torch_save(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def through_state_dict(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = Llama(model.config)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


@pytest.mark.parametrize("name", ["llama3 short", "tied"])
@pytest.mark.parametrize("through", [through_deepcopy, through_pickle, through_torch_save, through_state_dict])
def test_a_copy_gives_the_same_logits_and_shares_nothing(through, name, tokens):
    model = make_model(TINY_CONFIGS[name])
    expected = model(tokens).detach()
    twin = through(model)
    for weight in model.parameters():
        weight.data.zero_()
    assert torch.equal(twin(tokens), expected)
    assert (twin.lm_head.weight is twin.tok_embeddings.weight) == model.config.tie_embeddings


def test_a_state_dict_holds_weights_only():
    """No table of angles: old checkpoints that carry one cannot disagree with the config."""
    assert set(Llama(TINY).state_dict()) == {name for name, _ in Llama(TINY).named_parameters()}


def test_importing_the_model_imports_nothing_beyond_torch():
    """In a fresh interpreter: after torch, helpers.model adds itself and modules of the standard library."""
    program = (
        "import sys, torch\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import helpers.model\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(after - before - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["helpers"]


@pytest.mark.parametrize(
    ("n_pad", "words"),
    [
        ([1, 2, 3], r"n_pad has shape \(3,\).* the tokens \(2, 16\): pass one whole number per row"),
        ([1.0, 2.0], r"dtype torch.float32.* pass one whole number per row"),
        ([-1, 2], r"n_pad runs from -1 to 2, but rows of at most 16 tokens allow 0 to 15"),
        ([0, 16], r"n_pad runs from 0 to 16, but rows of at most 16 tokens allow 0 to 15"),
    ],
)
def test_padding_that_does_not_fit_is_refused(model, tokens, n_pad, words):
    with pytest.raises(ValueError, match=words):
        model(tokens, n_pad=torch.tensor(n_pad))


@pytest.mark.parametrize("change", [{"n_layers": 3}, {"n_kv_heads": 4}, {"head_dim": 12}])
def test_the_cache_of_another_model_is_refused(model, tokens, change):
    other = make_model(replace(model.config, **change)).new_cache(2)
    with pytest.raises(ValueError, match=r"the model has .* = \(2, 2, 8\), the cache \(.*use this model's new_cache"):
        model(tokens, other)
