"""The noise of tests/support/rounding.py is one bit, the same for the same call, and finds what hangs on it."""

import torch
from torch._tensor_str import _Formatter

from tests.support.rounding import LastBit, _printed

LEFT, RIGHT = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0))


def test_a_product_moves_by_one_unit_and_the_same_call_gives_the_same_bits():
    exact = LEFT @ RIGHT
    with LastBit(1):
        once, twice = LEFT @ RIGHT, LEFT @ RIGHT
    assert torch.equal(once, twice)
    one_unit = torch.nextafter(exact.abs(), torch.tensor(torch.inf)) - exact.abs()
    moved = (once - exact).abs()
    assert 0.5 < (moved > 0).float().mean() < 0.8
    assert (moved <= 1.01 * one_unit).all()
    with LastBit(2):
        assert not torch.equal(LEFT @ RIGHT, once)


def test_attention_and_what_is_zero_infinite_or_whole():
    q = LEFT.view(1, 1, 64, 64)
    exact = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    with LastBit(1):
        assert not torch.equal(torch.nn.functional.scaled_dot_product_attention(q, q, q), exact)
        assert not (torch.zeros(64, 64) @ LEFT).any()
        assert torch.equal(torch.ones(8, 8) @ torch.eye(8), torch.ones(8, 8))  # whole numbers: exact everywhere
        assert (torch.full((1, 1), torch.inf) @ torch.ones(1, 1)).isinf().all()


def test_a_print_that_hangs_on_the_last_bit_is_marked(monkeypatch):
    monkeypatch.setattr(_Formatter, "__init__", _printed)
    assert "round it" in str(torch.tensor([1.0, 4.0, 16.000002]))
    assert "round it" not in str(torch.tensor([1.0, 4.0, 16.0])) + str(torch.tensor([1.0, 4.0, 16.1]))
