"""The comparison of a port with its reference, for readers without modules, too."""

import torch

from checks.relatives import SAME, TWO_ROWS, where_they_part


def test_two_functions_part_where_their_logits_first_do_in_any_row():
    logits = torch.randn(2, 9, 5)
    other, almost = logits.clone(), logits.numpy() + 0.9 * SAME * logits.abs().max().item()
    other[1, 6], other[0, 7] = float("nan"), 9.0
    assert where_they_part(lambda _: other.requires_grad_(), lambda _: logits.numpy(), TWO_ROWS) == ("logits", 6, False)
    assert where_they_part(lambda _: almost, lambda _: logits, TWO_ROWS) is None
