#!/usr/bin/env bash
# Guess: a training loop inside one torch.autocast block computes every step with the weights of that step.
# Seen: the bfloat16 copies of the matrices are kept until the block ends: every step uses those of step 1.
# Matters: every matrix of a LLaMA is such a copy; a model of matrices alone does not learn at all, and nothing is said.
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
x, y = torch.randn(256, 16, generator=torch.Generator().manual_seed(0)), torch.arange(256) % 4


def last_loss(**how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64, bias=False), nn.SiLU(), nn.Linear(64, 4, bias=False))
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    with torch.autocast("cpu", torch.bfloat16, **how):
        for _ in range(40):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    return seen


kept, fresh = last_loss(), last_loss(cache_enabled=False)
print("first and last loss, one autocast block:", kept[0], kept[-1])
print("the same with cache_enabled=False:      ", fresh[0], fresh[-1])
print("losses that ever change:", len(set(kept)), "and", len(set(fresh)))
assert len(set(kept)) == 1 and fresh[-1] < fresh[0] - 0.05
PY
