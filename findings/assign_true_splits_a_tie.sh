#!/usr/bin/env bash
# Guess: load_state_dict(assign=True) keeps a head that is tied to the embedding tied.
# Seen: two Parameters over one memory: data_ptr says tied, `is` says no, parameters() lists both, AdamW moves it twice.
# Matters: a tied LLaMA filled from a file trains with twice the step on its largest matrix, and counts it twice.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/python - <<'PY'
import torch

print("torch", torch.__version__)

from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(self.table(tokens))


def after_a_step(assign):
    torch.manual_seed(0)
    model = Tied()
    model.load_state_dict(dict(Tied().state_dict()), assign=assign)
    one = model.table.weight is model.head.weight
    same_memory = model.table.weight.data_ptr() == model.head.weight.data_ptr()
    before = model.table.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    model(torch.arange(8)).logsumexp(-1).sum().backward()
    optimizer.step()
    moved = (model.table.weight.detach() - before).abs().max().item()
    print(f"assign={assign}: one Parameter: {one}, one memory: {same_memory}, Parameters: "
          f"{len(list(model.parameters()))}, largest move in one step of 0.1: {moved:.2f}")
    return one, same_memory, round(moved, 2)


assert after_a_step(False) == (True, True, 0.1)
assert after_a_step(True) == (False, True, 0.2)
PY
