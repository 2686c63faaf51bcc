"""The same numbers as transformers and torch.nn: logits, every gradient, and each part on its own.

`assert_same_as_transformers` is the one comparison of whole models. Every wrong model of wrong_models.py must fail it.
"""

from dataclasses import dataclass, replace

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import (
    LlamaForCausalLM,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from helpers.checkpoint import config_to_hugging_face, interleaved_to_halves, name_map, weights_to_hugging_face
from helpers.model import (
    PRESETS,
    GroupedQueryAttention,
    LlamaConfig,
    RMSNorm,
    SwiGLU,
    apply_rope,
    attention_weights,
    causal_visible,
    repeat_kv,
    rope_angles,
    rope_inv_freq,
)
from tests.support.models import TINY, TINY_CONFIGS, TOLERANCE, assert_agree, draw_tokens, make_model
from tests.support.wrong_models import WRONG_MODELS, wrong_model

pytestmark = pytest.mark.parity


# ---------------------------------------------------------------------------------------- whole models


@dataclass(frozen=True)
class Case:
    """One comparison of two whole models."""

    config: LlamaConfig
    n_tokens: int = 16
    attention: str = "eager"  # which attention transformers uses
    chunks: tuple[int, ...] | None = None  # lengths in which a cache takes the tokens; None: no cache
    n_pad: tuple[int, ...] | None = None  # left padding of each row
    std: float = 0.3  # of every matrix
    dtype: torch.dtype = torch.float32
    embedding_scale: float = 1.0
    tolerance: float = TOLERANCE


CASES = {
    f"{name}, {n_tokens} tokens, {attention}": Case(config, n_tokens, attention)
    for name, config in TINY_CONFIGS.items()
    for n_tokens in (1, 5, 16)
    for attention in ("eager", "sdpa")
}
CASES |= {name: Case(config) for name, config in TINY_CONFIGS.items()}
CASES |= {
    f"{name}, cached {how}": Case(config, chunks=chunks)
    for name, config in TINY_CONFIGS.items()
    for how, chunks in {"one by one": (1,) * 16, "5+4+7": (5, 4, 7), "all at once": (16,)}.items()
}
CASES |= {
    f"{name}, 600 tokens": Case(TINY_CONFIGS[name], 600) for name in ("linear", "llama3", "llama3 short")
}  # positions at which the scaling turns a vector visibly
CASES |= {
    "llama3, 600 tokens, sdpa": Case(TINY_CONFIGS["llama3"], 600, "sdpa"),
    "llama3, 600 tokens, cached 593+5+1+1": Case(TINY_CONFIGS["llama3"], 600, chunks=(593, 5, 1, 1)),
    "left-padded": Case(TINY, n_pad=(3, 0)),
    "left-padded, sdpa": Case(TINY, attention="sdpa", n_pad=(0, 7)),
    "left-padded, one real token": Case(TINY, n_pad=(15, 2)),
    "left-padded, cached 5+4+7": Case(TINY, n_pad=(3, 0), chunks=(5, 4, 7)),
    "left-padded, cached one by one": Case(TINY, n_pad=(0, 0), chunks=(1,) * 16),
    # with small weights the mean square is small, and eps counts
    "small weights": Case(TINY, std=0.02),
    # 300 and more: the square overflows float16 (largest number 65 504)
    "float16, large activations": Case(
        TINY, attention="sdpa", dtype=torch.float16, embedding_scale=2000.0, tolerance=0.02
    ),
}


def assert_same_as_transformers(case: Case):
    """Logits, and without a cache the gradient of every weight, equal those of LlamaForCausalLM."""
    ours, theirs, tokens = _pair(case)
    real = torch.ones(tokens.shape, dtype=torch.bool)
    for row, n_pad in enumerate(case.n_pad or ()):
        real[row, :n_pad] = False
    n_pad = None if case.n_pad is None else torch.tensor(case.n_pad)

    expected = theirs(
        input_ids=tokens, attention_mask=None if case.n_pad is None else real.long(), use_cache=False
    ).logits.float()
    logits = _in_chunks(ours, tokens, case.chunks, n_pad) if case.chunks else ours(tokens, n_pad=n_pad)
    assert_agree(logits[real], expected[real], case.tolerance)  # what stands at padding is nobody's business
    if case.chunks or case.dtype != torch.float32:
        return

    direction = torch.randn(logits.shape) * real[..., None]
    (logits * direction).sum().backward()
    (expected * direction).sum().backward()
    our_weights, their_weights = dict(ours.named_parameters()), dict(theirs.named_parameters())
    compared = {name_map(case.config.n_layers)[name]: weight for name, weight in our_weights.items()}
    assert their_weights.keys() <= compared.keys()
    largest = max(weight.grad.abs().max().item() for weight in their_weights.values())
    for name, weight in their_weights.items():  # q and k of a single token have gradient 0: only rounding is left
        assert_agree(compared[name].grad, weight.grad, case.tolerance, scale=0.1 * largest)


def _pair(case):
    """Our model, transformers' with the same weights by way of the shipped maps, and token ids."""
    ours = make_model(case.config, case.std).to(case.dtype)
    ours.tok_embeddings.weight.data *= case.embedding_scale
    config = transformers.LlamaConfig(
        **config_to_hugging_face(case.config, case.dtype), attn_implementation=case.attention
    )
    theirs = LlamaForCausalLM(config).to(case.dtype)
    missing, left_over = theirs.load_state_dict(weights_to_hugging_face(ours), strict=False)
    assert not left_over
    assert missing == (["lm_head.weight"] if case.config.tie_embeddings else [])

    built = theirs.config  # transformers ignores settings that it does not know: look at what was built
    assert built._attn_implementation == case.attention
    assert built.rope_parameters["rope_theta"] == case.config.rope_theta
    scaling = case.config.rope_scaling or {"type": "default"}
    assert built.rope_parameters["rope_type"] == scaling["type"]
    assert {key: built.rope_parameters[key] for key in scaling if key != "type"} == {
        key: value for key, value in scaling.items() if key != "type"
    }
    assert built.rms_norm_eps == case.config.norm_eps
    assert built.head_dim == case.config.head_dim
    assert built.num_key_value_heads == case.config.n_kv_heads
    tied = theirs.lm_head.weight is theirs.model.embed_tokens.weight
    assert tied == case.config.tie_embeddings
    return ours, theirs, draw_tokens(1 if case.n_tokens > 100 else 2, case.n_tokens, case.config)


def _in_chunks(model, tokens, chunks, n_pad=None):
    """Logits of all tokens, read into a cache in chunks of these lengths."""
    assert sum(chunks) == tokens.shape[1]
    cache = model.new_cache(tokens.shape[0], tokens.shape[1])
    logits = []
    for chunk in tokens.split(chunks, dim=1):
        logits.append(model(chunk, cache, n_pad=n_pad))
        n_pad = None
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_equal_transformers(name):
    assert_same_as_transformers(CASES[name])


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_wrong_model_is_rejected(name):
    case = CASES[WRONG_MODELS[name][0]]
    assert_same_as_transformers(case)  # the right model passes the very comparison
    with wrong_model(name), pytest.raises(AssertionError, match="not close"):
        assert_same_as_transformers(case)


def test_usual_weights_would_hide_an_ignored_norm_weight():
    """Why make_model exists: under the default initialisation this wrong model passes."""
    ours, theirs, tokens = _pair(replace(CASES["gqa"], std=0.02))
    for weights in (ours, theirs):
        for name, weight in weights.named_parameters():
            if "norm" in name:
                weight.data.fill_(1.0)
    with wrong_model("norm weight ignored"):
        assert_agree(ours(tokens), theirs(input_ids=tokens).logits)


@pytest.mark.parametrize("chunks", [(5, 4, 7), (1,) * 16])
def test_cached_logits_equal_transformers_own_cache(chunks):
    ours, theirs, tokens = _pair(CASES["gqa"])
    past, expected = None, []
    for chunk in tokens.split(chunks, dim=1):
        out = theirs(input_ids=chunk, past_key_values=past, use_cache=True)
        past = out.past_key_values
        expected.append(out.logits)
    assert_agree(_in_chunks(ours, tokens, chunks), torch.cat(expected, dim=1).detach())


# --------------------------------------------------------------------------------------------- RMSNorm


def _norms(dim, eps, dtype=torch.float32):
    """Ours, torch.nn's and transformers' norm with one random gain."""
    gain = torch.empty(dim).uniform_(0.5, 1.5).to(dtype)
    norms = RMSNorm(dim, eps), torch.nn.RMSNorm(dim, eps), LlamaRMSNorm(dim, eps)
    for norm in norms:
        norm.weight.data = gain.clone()
    return norms


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.1])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_rms_norm_and_its_gradients_equal_torch_and_transformers(eps, size):
    x = torch.randn(2, 5, 32) * size
    direction = torch.randn_like(x)
    results = []
    for norm in _norms(32, eps):
        leaf = x.clone().requires_grad_()
        y = norm(leaf)
        (y * direction).sum().backward()
        results.append((y.detach(), leaf.grad, norm.weight.grad))
    for reference in results[1:]:
        for actual, expected in zip(results[0], reference, strict=True):
            assert_agree(actual, expected)


def test_rms_norm_takes_each_row_on_its_own():
    """A row of size 1e-3 beside one of size 1000: neither changes the other."""
    x = torch.randn(2, 3, 32) * torch.tensor([1e-3, 1.0, 1000.0])[:, None]
    ours, of_torch, _ = _norms(32, 1e-6)
    for row in range(3):
        assert_agree(ours(x)[:, row].detach(), of_torch(x[:, row]).detach())


def test_rms_norm_of_float16_300_does_not_overflow():
    """300 squared is 90 000; float16 ends at 65 504."""
    ours, _, of_transformers = _norms(32, 1e-5, torch.float16)
    x = (300 * torch.randn(2, 5, 32).sign()).half()
    y = ours(x)
    assert y.dtype == torch.float16
    assert torch.equal(y, of_transformers(x))
    assert_agree(y.abs(), ours.weight.expand(2, 5, 32), 2e-3)  # all of one size: what remains is the gain


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rms_norm_in_half_precision_equals_transformers_to_the_bit(dtype):
    ours, _, of_transformers = _norms(64, 1e-5, dtype)
    x = torch.randn(2, 5, 64).to(dtype)
    assert torch.equal(ours(x), of_transformers(x))


def test_rms_norm_statistics_run_in_float32_under_bfloat16():
    """Before the gain and the one rounding of the result there is no other rounding."""
    ours = RMSNorm(64, 1e-5).bfloat16()
    x = torch.randn(2, 5, 64).bfloat16()
    assert torch.equal(ours(x), F.rms_norm(x.float(), (64,), eps=1e-5).bfloat16())


# ------------------------------------------------------------------------------------------------ RoPE


def _scaled_configs():
    configs = {name: TINY_CONFIGS[name] for name in ("gqa", "wide heads", "linear", "llama3", "llama3 short")}
    return configs | {name: PRESETS[name] for name in ("llama-2-7b", "llama-3.1-405b", "llama-3.2-1b", "smollm2-135m")}


@pytest.mark.parametrize("name", _scaled_configs())
def test_turning_speeds_and_angles_equal_transformers(name):
    config = _scaled_configs()[name]
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig(**config_to_hugging_face(config)))
    inv_freq = rope_inv_freq(config.head_dim, config.rope_theta, config.rope_scaling)
    torch.testing.assert_close(inv_freq, theirs.inv_freq, rtol=1e-6, atol=0)

    positions = torch.tensor([0, 1, 2, 63, 600, 8191, 131_071])
    angles = rope_angles(positions, theirs.inv_freq)  # the same speeds: at 131 071 the last bit of a speed shows
    cos, sin = theirs(torch.zeros(1), positions[None])
    torch.testing.assert_close(torch.cat((angles.cos(), angles.cos()), dim=-1), cos[0], rtol=0, atol=0)
    torch.testing.assert_close(torch.cat((angles.sin(), angles.sin()), dim=-1), sin[0], rtol=0, atol=0)


def test_ntk_scaling_is_written_to_a_config_as_the_base_it_stands_for():
    scaled = replace(TINY, rope_scaling={"type": "ntk", "factor": 4.0})
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig(**config_to_hugging_face(scaled)))
    assert_agree(rope_inv_freq(8, TINY.rope_theta, scaled.rope_scaling), theirs.inv_freq)


@pytest.mark.parametrize("n_tokens", [1, 5, 16])
def test_halves_layout_equals_transformers(n_tokens):
    q, k = torch.randn(2, 4, n_tokens, 8), torch.randn(2, 2, n_tokens, 8)
    angles = rope_angles(torch.arange(n_tokens), rope_inv_freq(8))
    cos, sin = angles.cos(), angles.sin()
    expected = apply_rotary_pos_emb(q, k, torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None])
    assert_agree(apply_rope(q, cos, sin), expected[0])
    assert_agree(apply_rope(k, cos, sin, layout="halves"), expected[1])


@pytest.mark.parametrize("n_tokens", [1, 5, 16])
def test_interleaved_layout_is_multiplication_by_a_complex_number(n_tokens):
    x = torch.randn(2, 4, n_tokens, 8)
    angles = rope_angles(torch.arange(n_tokens), rope_inv_freq(8))
    numbers = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    expected = torch.view_as_real(numbers * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    assert_agree(apply_rope(x, angles.cos(), angles.sin(), layout="interleaved"), expected)


def test_both_layouts_give_the_same_scores_once_the_rows_of_the_projections_are_permuted():
    """Weights made for one layout give other scores in the other one, until their rows are permuted."""
    x, w_q, w_k = torch.randn(1, 16, 32), torch.randn(32, 32), torch.randn(32, 32)
    angles = rope_angles(torch.arange(16), rope_inv_freq(8))

    def scores(w_q, w_k, layout):
        q, k = ((x @ w.T).unflatten(-1, (4, 8)).transpose(1, 2) for w in (w_q, w_k))
        return apply_rope(q, angles.cos(), angles.sin(), layout) @ apply_rope(
            k, angles.cos(), angles.sin(), layout
        ).transpose(-2, -1)

    expected = scores(w_q, w_k, "interleaved")
    assert_agree(scores(interleaved_to_halves(w_q, 8), interleaved_to_halves(w_k, 8), "halves"), expected)
    with pytest.raises(AssertionError, match="not close"):
        assert_agree(scores(w_q, w_k, "halves"), expected)


# --------------------------------------------------------------------------- attention and feed-forward


def test_swiglu_and_its_gradients_equal_transformers():
    ours = SwiGLU(32, 48)
    theirs = LlamaMLP(transformers.LlamaConfig(**config_to_hugging_face(TINY)))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 32)
    direction = torch.randn_like(x)
    for part in (ours, theirs):
        (part(x) * direction).sum().backward()
    assert_agree(ours(x).detach(), theirs(x).detach())
    for name, weight in ours.named_parameters():
        assert_agree(weight.grad, theirs.get_parameter(name).grad)


@pytest.mark.parametrize(("n_query", "n_key"), [(1, 1), (5, 5), (16, 16), (1, 9), (4, 9)])
def test_attention_weights_times_values_equal_the_fused_kernel(n_query, n_key):
    q, k, v = torch.randn(2, 4, n_query, 8), torch.randn(2, 4, n_key, 8), torch.randn(2, 4, n_key, 8)
    visible = causal_visible(n_query, n_key)
    expected = F.scaled_dot_product_attention(3 * q, 3 * k, v, attn_mask=visible)
    assert_agree(attention_weights(3 * q, 3 * k, visible) @ v, expected)
    if n_query == n_key:
        assert_agree(expected, F.scaled_dot_product_attention(3 * q, 3 * k, v, is_causal=True))


def test_attention_module_equals_attention_weights_by_hand():
    """The textbook form that notebook 04 shows is what the model computes."""
    attention = GroupedQueryAttention(TINY)
    x = torch.randn(2, 16, 32)
    angles = rope_angles(torch.arange(16), rope_inv_freq(8))
    cos, sin = angles.cos(), angles.sin()
    q, k, v = attention.project(x, cos, sin)
    weights = attention_weights(q, repeat_kv(k, 2), causal_visible(16, 16))
    by_hand = attention.o_proj((weights @ repeat_kv(v, 2)).transpose(1, 2).flatten(-2))
    assert_agree(attention(x, cos, sin).detach(), by_hand.detach())


def test_repeat_kv_equals_the_fused_kernels_own_sharing():
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert_agree(F.scaled_dot_product_attention(q, repeat_kv(k, 3), repeat_kv(v, 3), is_causal=True), expected)
