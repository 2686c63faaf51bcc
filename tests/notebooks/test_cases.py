"""The case files: a program with the bug of its case is right where nobody noticed, wrong where the answer says."""

import ast

import torch
from torch.nn import functional as F

from helpers.model import apply_rope, attention_weights, causal_visible, repeat_kv, rope_angles, rope_inv_freq
from tests.support.course import notebooks


def program(stem, name):
    (source,) = (cell.source for cell in notebooks()[stem].cells if cell.id == "case-a-code")
    (node,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    names = {"torch": torch, "F": F, "causal_visible": causal_visible, "apply_rope": apply_rope}
    exec(compile(ast.Module([node], []), stem, "exec"), names)
    return names[name]


def test_a_case_passes_where_nobody_noticed_and_fails_where_the_answer_says():
    q, k = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(0))
    groups = program("04_gqa", "in_groups")
    turn = program("07_generate", "turn")
    for n_kv_heads, n_tokens in ((2, 5), (2, 1), (1, 1), (1, 5)):
        x, y = q.view(1, 2, 6, 16)[:, :, :n_tokens], k.view(1, 2, 6, 16)[:, :n_kv_heads, :n_tokens]
        right = attention_weights(x, repeat_kv(y, 2 // n_kv_heads), causal_visible(n_tokens, n_tokens)) @ y
        assert torch.allclose(groups(x, y, y), right, atol=1e-5) == ((n_kv_heads, n_tokens) != (1, 5))
    for texts, n_tokens in ((1, 1), (2, 7), (2, 1)):
        x, angles = torch.randn(texts, 4, n_tokens, 16), rope_angles(torch.arange(5, 5 + n_tokens), rope_inv_freq(16))
        right = apply_rope(x, angles.cos(), angles.sin())
        assert torch.allclose(turn(x, angles.cos(), angles.sin()), right) == ((texts, n_tokens) != (2, 1))
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    assert program("06_train", "shared_loss")(logits, labels) != F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    positions_of = program("05_full_model", "positions_of")
    for n_pad, n_new in ((0, 6), (3, 6), (0, 1), (3, 1)):
        real = (torch.arange(7) >= n_pad)[None, : 6 + (n_new == 1)]
        right = (torch.arange(real.shape[1]) - n_pad).clamp(min=0)[None, -n_new:]
        assert torch.equal(positions_of(real, n_new), right) == ((n_pad, n_new) != (3, 1))
