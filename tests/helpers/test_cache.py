"""The cache: what it holds, and calls that break (chunks and refused calls are in test_parity.py and test_fuzz.py)."""

import pytest
import torch

from tests.support.models import TINY, assert_agree


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
