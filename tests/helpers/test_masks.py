"""Masks: each rule against two loops."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import masks

DOCUMENT = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 4, 4])
RULES = {  # name: may this query see this key? size stands for the rule's own number
    "causal": lambda q, k, size: k <= q,
    "itself": lambda q, k, size: k == q,
    "sliding_window": lambda q, k, size: q - k < size,
    "left_padding": lambda q, k, size: k >= size,
    "same_document": lambda q, k, size: DOCUMENT[q] == DOCUMENT[k],
}


OWN = [name for name, _ in inspect.getmembers(masks, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", sorted({*OWN, *RULES}))  # a new one needs its line above, one that is gone loses it
@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 7))
def test_each_rule_equals_two_loops(name, n_query, n_cached, size):
    key = torch.arange(n_cached + n_query)
    query, rule = key[n_cached:], getattr(masks, name)
    takes_more = len(inspect.signature(rule).parameters) > 2
    visible = rule(query, key, *[DOCUMENT if name == "same_document" else size] * takes_more)
    expected = [[bool(RULES[name](q, k, size)) for k in key.tolist()] for q in query.tolist()]
    assert visible.dtype == torch.bool
    assert visible.tolist() == expected
