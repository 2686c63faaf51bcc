"""True sentences about LLaMA's parts, one claim per test; agreement with other code is in test_parity.py."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.model import Llama, attention_weights, causal_visible
from tests.support.models import TINY, assert_agree, draw_tokens


def test_bfloat16_model_keeps_float32_angles():
    """bfloat16 has 8 bits: position 257 would become 256."""
    wide, narrow = Llama(TINY), Llama(TINY).bfloat16()
    assert narrow.inv_freq.dtype == torch.float32
    for expected, actual in zip(wide.rotation_and_mask(600), narrow.rotation_and_mask(600), strict=True):
        assert actual is expected is None or torch.equal(actual, expected)
    logits = narrow(draw_tokens(2, 5)), wide.double()(draw_tokens(2, 5))  # widened for the softmax that follows
    assert [one.dtype for one in logits] == [torch.float32, torch.float64]


class Softmaxes(TorchDispatchMode):
    """Inside the `with`, the dtypes that a softmax is given: on some processors its kernel widens 16 bits by itself."""

    dtypes = frozenset()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.dtypes |= {args[0].dtype} if "softmax" in func.name() else set()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_attention_weights_are_those_of_a_float32_softmax(dtype):
    """Rounded once, at the end: exponentials that are rounded before their sum move the last bit of every sixth."""
    q, k = (torch.randn(1, 2, 600, 8, generator=torch.Generator().manual_seed(n)).to(dtype) for n in (0, 1))
    scores = (q.float() @ k.float().mT / 8**0.5).masked_fill(~causal_visible(600, 600), float("-inf"))
    expected = (scores.exp() / scores.exp().sum(dim=-1, keepdim=True)).to(dtype)
    with Softmaxes() as softmaxes:
        found = attention_weights(q, k, causal_visible(600, 600))
    assert (softmaxes.dtypes, found.dtype) == ({torch.float32}, dtype)
    ulps = (found.view(torch.int16).int() - expected.view(torch.int16).int()).abs()
    assert (ulps.max(), (ulps > 0).float().mean() < 1e-3) == (1, True)  # two ways to sum may part at a half
    large = torch.full((2, 2), 300, dtype=dtype)  # its products overflow float16
    assert attention_weights(large, large, causal_visible(2, 2)).tolist() == [[1, 0], [0.5, 0.5]]


def test_positions_of_a_padded_row_count_from_its_first_real_token(model):
    """RoPE would forgive another start (only differences count), but the angles shown in a figure would be wrong."""
    cos, _, visible = model.rotation_and_mask(9, n_pad=torch.tensor([4, 0]))
    assert torch.equal(cos[0, 0, 4:], model.rotation_and_mask(5)[0])
    assert visible.any(dim=-1).all()  # a padding token sees itself: no row of the softmax is empty


def test_projections_that_write_to_the_residual_stream_start_smaller():
    """o_proj and down_proj by 1/√(2 · n_layers); a well-known bug scales up_proj instead of down_proj."""
    model = Llama(replace(TINY, dim=128, hidden_dim=256, n_layers=8, vocab_size=256, head_dim=None))
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            assert torch.equal(weight, torch.ones(128))
        else:
            writes = "o_proj" in name or "down_proj" in name
            assert weight.std().item() == pytest.approx(0.02 / 4 if writes else 0.02, rel=0.05), name
            assert abs(weight.mean().item()) < 0.001, name


def test_with_a_cache_no_gradient_is_kept_and_without_one_the_same_model_trains(model, tokens):
    cache = model.new_cache(2)
    assert cache.k.shape == cache.v.shape == (TINY.n_layers, 2, TINY.n_kv_heads, TINY.max_seq_len, 8)
    assert not model(tokens, cache).requires_grad
    assert cache.k.grad_fn is None
    assert model(tokens).requires_grad
    with torch.no_grad():
        assert not model(tokens).requires_grad


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("n_read", [0, 5])
def test_a_call_that_breaks_in_the_last_layer_can_be_repeated(n_read, error, model, tokens):
    """A repeated first call without padding must not remember the padding of the one that broke."""
    cache, n_pad = model.new_cache(2), None if n_read else torch.tensor([1, 2])
    if n_read:
        model(tokens[:, :n_read], cache)
    hook = model.layers[1].feed_forward.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(error):
        model(tokens[:, n_read:9], cache, n_pad=n_pad)
    hook.remove()
    assert (cache.length, cache.n_pad) == (n_read, None)
    assert_agree(model(tokens[:, n_read:], cache), model(tokens)[:, n_read:].detach())
