"""The case files: a program with the slip of its case is right where nobody noticed, wrong where the answer says."""

import ast

import torch
from torch.nn import functional as F

from helpers.model import apply_rope, attention_weights, causal_visible, rope_angles, rope_inv_freq
from tests.notebooks.test_notebooks import NOTEBOOKS


def program(stem, cell_id, name):
    (source,) = (cell.source for cell in NOTEBOOKS[stem].cells if cell.id == cell_id)
    (node,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    names = {"torch": torch, "F": F, "causal_visible": causal_visible, "apply_rope": apply_rope}
    exec(compile(ast.Module([node], []), stem, "exec"), names)
    return names[name]


def test_a_case_passes_where_nobody_noticed_and_fails_where_the_answer_says():
    q, k, v = torch.randn(3, 12, 16, generator=torch.Generator().manual_seed(0))
    attention = attention_weights(q, k, causal_visible(12, 12)) @ v
    rope, referee = program("02_rope", "case-a-code", "students_rope"), program("04_gqa", "case-a-code", "referee")
    attend = program("04_gqa", "case-b-code", "attend")
    for first in (0, 5):
        angles = rope_angles(torch.arange(first, first + 12), rope_inv_freq(16))
        turned = apply_rope(q, angles.cos(), angles.sin())
        assert torch.allclose(rope(q, torch.arange(first, first + 12)), turned, atol=1e-5) == (first == 0)
        assert torch.allclose(referee(q[first:], k, v), attention[first:], atol=1e-5) == (first == 0)
        assert torch.allclose(attend(q, k, v, cache=[] if first else None), attention, atol=1e-5) == (first == 0)
