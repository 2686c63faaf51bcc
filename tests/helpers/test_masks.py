"""Masks: each rule against two loops, rules that combine, the model's own mask, nonsense refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import masks
from helpers.model import causal_visible

DOCUMENT = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 4, 4])
RULES = {
    "causal": (masks.causal, lambda q, k, size: k <= q),
    "itself": (masks.itself, lambda q, k, size: k == q),
    "sliding_window": (masks.sliding_window, lambda q, k, size: q - k < size),
    "left_padding": (masks.left_padding, lambda q, k, size: k >= size),
    "prefix": (masks.prefix, lambda q, k, size: k < size),
    "same_document": (masks.same_document, lambda q, k, size: DOCUMENT[q] == DOCUMENT[k]),
}
SIZED = {"sliding_window", "left_padding", "prefix"}


@given(st.sampled_from(sorted(RULES)), st.integers(1, 6), st.integers(0, 6), st.integers(1, 7))
def test_each_rule_equals_two_loops(rule, n_query, n_cached, size):
    ours, by_hand = RULES[rule]
    key = torch.arange(n_cached + n_query)
    query = key[n_cached:]
    extra = (size,) if rule in SIZED else (DOCUMENT,) if rule == "same_document" else ()
    visible = ours(query, key, *extra)
    expected = [[bool(by_hand(q, k, size)) for k in key.tolist()] for q in query.tolist()]
    assert visible.dtype == torch.bool
    assert visible.tolist() == expected


@pytest.mark.parametrize(("n_query", "n_key"), [(1, 1), (4, 4), (4, 9), (1, 7)])
def test_causal_is_the_mask_of_the_model(n_query, n_key):
    key = torch.arange(n_key)
    assert torch.equal(masks.causal(key[-n_query:], key), causal_visible(n_query, n_key))


def test_rules_combine():
    key = torch.arange(6)
    window = masks.causal(key, key) & masks.sliding_window(key, key, 2)
    assert window.sum(dim=1).tolist() == [1, 2, 2, 2, 2, 2]
    padded = masks.causal(key, key) & masks.left_padding(key, key, 2)
    assert padded.sum(dim=1).tolist() == [0, 0, 1, 2, 3, 4]
    assert (padded | masks.itself(key, key)).sum(dim=1).tolist() == [1, 1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("rule", "extra", "message"),
    [
        (masks.sliding_window, 0, "window=0 must be at least 1"),
        (masks.left_padding, -1, "n_pad=-1 must be at least 0"),
        (masks.prefix, -2, "length=-2 must be at least 0"),
        (masks.same_document, torch.tensor([0, 0]), "document has 2 positions, but position 3"),
    ],
)
def test_nonsense_is_refused(rule, extra, message):
    key = torch.arange(4)
    with pytest.raises(ValueError, match=message):
        rule(key, key, extra)
