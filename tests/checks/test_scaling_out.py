"""Notebook 09: what its exercises ask, judged by PyTorch and by what a message says."""

import pytest
import torch

from checks.notebook import read_notebook
from checks.own import define
from checks.scaling_out import MERGE_ATTENTION, merge_attention
from tests.support.answers import right_answer_to
from tests.support.course import ROOT


def solved(outputs, logsumexps):
    notebook = read_notebook((ROOT / "notebooks" / "09_scaling_out.ipynb").read_bytes())
    return define(notebook, "merge_attention_solved", "09")[0](outputs, logsumexps)


@pytest.mark.parametrize("merge", [merge_attention, solved, right_answer_to("merge_attention")])
@pytest.mark.parametrize("case", [case for case in MERGE_ATTENTION.cases if "sees no key" in case.label])
def test_a_rank_that_sees_no_key_leaves_each_gradient_that_of_the_other_ranks(merge, case):
    given = [value.requires_grad_() for value in case.fresh_inputs()]
    merge(*given).square().sum().backward()
    outputs, logsumexps = (value.detach().clone() for value in given)
    outputs[logsumexps.isinf()] = 0.0
    outputs.requires_grad_(), logsumexps.requires_grad_()
    (logsumexps.softmax(0)[..., None] * outputs).sum(0).square().sum().backward()
    for one, want in zip(given, (outputs, logsumexps), strict=True):
        torch.testing.assert_close(one.grad, want.grad)
