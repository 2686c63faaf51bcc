"""The cache: whatever the chunks, the logits are those of one call; a call that fails leaves it as it was."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.models import TINY, TINY_CONFIGS, assert_agree, draw_tokens, make_model


@given(chunks=st.lists(st.integers(1, 7), min_size=1, max_size=6), name=st.sampled_from(sorted(TINY_CONFIGS)))
def test_any_chunks_through_the_cache_equal_one_call_without(chunks, name):
    model, tokens = make_model(TINY_CONFIGS[name]), draw_tokens(2, sum(chunks))
    cache = model.new_cache(2, sum(chunks))
    logits = torch.cat([model(chunk, cache) for chunk in tokens.split(chunks, dim=1)], dim=1)
    assert cache.length == sum(chunks)
    assert_agree(logits, model(tokens).detach())


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


def test_a_cache_holds_keys_and_values_of_the_kv_heads_only():
    cache = make_model(TINY_CONFIGS["mqa"]).new_cache(3, 10)
    assert cache.k.shape == cache.v.shape == (2, 3, 1, 10, 8)  # layers, B, K, tokens, h
    assert make_model().new_cache(3).k.shape[3] == TINY.max_seq_len


def test_with_a_cache_no_gradient_is_kept_and_without_one_the_same_model_trains(model, tokens):
    cache = model.new_cache(2)
    assert not model(tokens, cache).requires_grad
    assert cache.k.grad_fn is None
    assert model(tokens).requires_grad
    with torch.no_grad():
        assert not model(tokens).requires_grad


# calls of a model of TINY that must fail, with a cache of 2 rows and 20 tokens that holds 10; what the text names
BAD_CALLS = {
    "run from -1 to 64": lambda model, cache: model(torch.tensor([[64], [-1]]), cache),
    "11 tokens do not fit: the cache holds 10 of at most 20": lambda model, cache: model(draw_tokens(2, 11), cache),
    "model is torch.bfloat16": lambda model, cache: model.bfloat16()(draw_tokens(2, 1), cache),
    "n_pad came after 10": lambda model, cache: model(draw_tokens(2, 1), cache, n_pad=torch.tensor([0, 0])),
}


@pytest.mark.parametrize("words", BAD_CALLS)
def test_a_refused_call_leaves_the_cache_as_it_was(words, model):
    cache = model.new_cache(2, 20)
    model(draw_tokens(2, 10), cache)
    k, v = cache.k.clone(), cache.v.clone()
    with pytest.raises(ValueError, match=words):
        BAD_CALLS[words](model, cache)
    assert (cache.length, cache.n_pad) == (10, None)
    assert torch.equal(cache.k, k)
    assert torch.equal(cache.v, v)


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


def test_only_a_full_memory_is_explained_as_one(monkeypatch):
    lost = RuntimeError("the device was lost")
    monkeypatch.setattr(torch, "zeros", lambda *args, **kwargs: (_ for _ in ()).throw(lost))
    with pytest.raises(RuntimeError) as raised:
        make_model().new_cache(2)
    assert raised.value is lost
