"""Right and wrong answers to the exercises of notebook 09, scaling out."""

import torch
from torch.nn import functional as F

from tests.support.answers.register import right, wrong


@right
def split_feed_forward__einsum(x, w_gate, w_up, w_down, n_ranks):
    hidden = F.silu(x @ w_gate.T) * (x @ w_up.T)
    hidden = hidden.unflatten(-1, (n_ranks, -1))
    return torch.einsum("...rf,drf->r...d", hidden, w_down.unflatten(-1, (n_ranks, -1)))


@right
def block_plan__written():
    return dict(_PLAN)


_PLAN = {f"{name}_proj": "column" for name in ("q", "k", "v", "gate", "up")} | {"o_proj": "row", "down_proj": "row"}
_TURNED = {"row": "column", "column": "row"}
_TORCH = {"row": "RowwiseParallel", "column": "ColwiseParallel"}
for words, slip, answer in (
    ("inputs of o_proj", "all_columns", dict.fromkeys(_PLAN, "column")),
    ("outputs of gate_proj", "feed_forward_reversed", _PLAN | dict(gate_proj="row", up_proj="row", down_proj="column")),
    ("own heads' queries", "everything_reversed", {name: _TURNED[style] for name, style in _PLAN.items()}),
    ("cut like q_proj", "k_by_rows", _PLAN | {"k_proj": "row"}),
    ("own heads", "v_by_rows", _PLAN | {"v_proj": "row"}),
    ("unit by unit", "up_by_rows", _PLAN | {"up_proj": "row"}),
    ("inputs of down_proj", "down_by_columns", _PLAN | {"down_proj": "column"}),
    ('Choose "column" or "row"', "torch_words", {name: _TORCH[style] for name, style in _PLAN.items()}),
    ("keys are", "without_o", {name: style for name, style in _PLAN.items() if name != "o_proj"}),
):
    wrong(words, f"block_plan__{slip}")(lambda answer=answer: answer)


@right
def bytes_sent_per_token__formula(dim, n_layers, n_ranks, bytes_per_number):
    return int(4 * n_layers * dim * bytes_per_number * (n_ranks - 1) / n_ranks)


@right
def bytes_sent_per_token__loop(dim, n_layers, n_ranks, bytes_per_number):
    total = 0.0
    for _ in range(2 * n_layers):
        for _ in ("reduce-scatter", "all-gather"):
            total += (1 - 1 / n_ranks) * dim * bytes_per_number
    return round(total)


wrong("whole number", "bytes_sent_per_token__a_float")(
    lambda dim, n_layers, n_ranks, size: 4 * n_layers * (n_ranks - 1) * dim * size / n_ranks
)
