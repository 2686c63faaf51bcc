"""The same numbers as transformers and torch.nn: logits, every gradient, and each part on its own.

`assert_same_as_transformers` is the one comparison of whole models. Every wrong model of wrong_models.py must fail it.
"""

from dataclasses import dataclass

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRMSNorm, LlamaRotaryEmbedding

from helpers.checkpoint import config_to_hugging_face, name_map, weights_to_hugging_face
from helpers.model import PRESETS, LlamaConfig, RMSNorm, rope_angles, rope_inv_freq
from tests.support import models
from tests.support.models import TINY, TINY_CONFIGS, TOLERANCE, assert_agree, draw_tokens, in_chunks, make_model
from tests.support.wrong_models import WRONG_MODELS, wrong_llama

pytestmark = pytest.mark.parity


@dataclass(frozen=True)
class Case:
    config: LlamaConfig
    n_tokens: int = 16
    chunks: tuple[int, ...] | None = None  # lengths in which a cache takes the tokens; None: no cache
    n_pad: tuple[int, ...] | None = None  # left padding of each row
    std: float = 0.3  # the spread of every matrix
    dtype: torch.dtype = torch.float32
    embedding_scale: float = 1.0
    tolerance: float = TOLERANCE


CASES = {name: Case(config) for name, config in TINY_CONFIGS.items()}
CASES |= {
    f"{name}, {n_tokens} tokens": Case(config, n_tokens) for name, config in TINY_CONFIGS.items() for n_tokens in (1, 5)
}
CASES |= {
    f"{name}, cached {how}": Case(config, chunks=chunks)
    for name, config in TINY_CONFIGS.items()
    for how, chunks in {"one by one": (1,) * 16, "5+4+7": (5, 4, 7), "all at once": (16,)}.items()
}
FAR = {"n_tokens": 600}  # positions at which the scaling turns a vector visibly
CASES |= {f"{name}, 600 tokens": Case(TINY_CONFIGS[name], **FAR) for name in ("linear", "llama3", "llama3 short")}
CASES |= {
    "llama3, 600 tokens, cached 593+5+1+1": Case(TINY_CONFIGS["llama3"], chunks=(593, 5, 1, 1), **FAR),
    "left-padded": Case(TINY, n_pad=(3, 0)),
    "left-padded, one real token": Case(TINY, n_pad=(15, 2)),
    "left-padded, cached 5+4+7": Case(TINY, n_pad=(3, 0), chunks=(5, 4, 7)),
    "left-padded, cached 5+4+7, by more than the first chunk": Case(TINY, n_pad=(12, 0), chunks=(5, 4, 7)),
    "left-padded, cached one by one": Case(TINY, n_pad=(3, 0), chunks=(1,) * 16),
    "left-padded by nothing, cached one by one": Case(TINY, n_pad=(0, 0), chunks=(1,) * 16),
    # with small weights the mean square is small, and eps counts
    "small weights": Case(TINY, std=0.02),
    # 300 and more: the square overflows float16 (largest number 65 504)
    "float16, large activations": Case(TINY, dtype=torch.float16, embedding_scale=2000.0, tolerance=0.02),
}


def assert_same_as_transformers(case: Case):
    """Logits, and without a cache the gradient of every weight, equal those of LlamaForCausalLM."""
    ours, theirs, tokens = _pair(case)
    real = torch.ones(tokens.shape, dtype=torch.bool)
    for row, n_pad in enumerate(case.n_pad or ()):
        real[row, :n_pad] = False
    n_pad = None if case.n_pad is None else torch.tensor(case.n_pad)

    mask = None if case.n_pad is None else real.long()
    expected = theirs(input_ids=tokens, attention_mask=mask, use_cache=False).logits.float()
    logits = in_chunks(ours, tokens, case.chunks, n_pad) if case.chunks else ours(tokens, n_pad=n_pad)
    assert_agree(logits[real], expected[real], case.tolerance)  # the logits at padding mean nothing
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
    """Our model, the one of transformers with the same weights (by way of `helpers.checkpoint`), and token ids."""
    ours = make_model(case.config, case.std).to(case.dtype)
    ours.tok_embeddings.weight.data *= case.embedding_scale
    settings = config_to_hugging_face(case.config, case.dtype) | {"attn_implementation": "eager"}  # plain steps
    theirs = LlamaForCausalLM(transformers.LlamaConfig(**settings)).to(case.dtype)
    missing, left_over = theirs.load_state_dict(weights_to_hugging_face(ours), strict=False)
    assert not left_over
    assert missing == (["lm_head.weight"] if case.config.tie_embeddings else [])
    assert (theirs.lm_head.weight is theirs.model.embed_tokens.weight) == case.config.tie_embeddings
    return ours, theirs, draw_tokens(1 if case.n_tokens > 100 else 2, case.n_tokens, case.config)


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_equal_transformers(name):
    assert_same_as_transformers(CASES[name])


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_wrong_model_is_rejected(name, monkeypatch):
    monkeypatch.setattr(models, "Llama", wrong_llama(name))
    with pytest.raises(AssertionError, match="not close"):
        assert_same_as_transformers(CASES[WRONG_MODELS[name][0]])  # the right model passes it, above


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.1])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_rms_norm_equals_torch_and_to_the_bit_transformers(dtype, eps, size):
    """At size 300 too: its square, 90 000, is more than float16 can hold."""
    ours, theirs = RMSNorm(64, eps).to(dtype), LlamaRMSNorm(64, eps).to(dtype)
    theirs.weight.data.uniform_(0.5, 1.5)
    ours.load_state_dict(theirs.state_dict())
    x = (size * torch.randn(2, 5, 64)).to(dtype)
    assert ours(x).isfinite().all()
    assert torch.equal(ours(x), theirs(x))
    if dtype == torch.float32:
        assert_agree(ours(x), F.rms_norm(x, (64,), ours.weight, eps))


@pytest.mark.parametrize("name", [*TINY_CONFIGS, *PRESETS])
def test_turning_speeds_and_angles_equal_transformers(name):
    config = (TINY_CONFIGS | PRESETS)[name]
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig(**config_to_hugging_face(config)))
    inv_freq = rope_inv_freq(config.head_dim, config.rope_theta, config.rope_scaling)
    torch.testing.assert_close(inv_freq, theirs.inv_freq, rtol=1e-6, atol=0)

    positions = torch.tensor([0, 1, 2, 63, 600, 8191, 131_071])
    angles = rope_angles(positions, theirs.inv_freq)  # the same speeds: at 131 071 the last bit of a speed shows
    cos, sin = theirs(torch.zeros(1), positions[None])
    torch.testing.assert_close(torch.cat((angles.cos(), angles.cos()), dim=-1), cos[0], rtol=0, atol=0)
    torch.testing.assert_close(torch.cat((angles.sin(), angles.sin()), dim=-1), sin[0], rtol=0, atol=0)
