#!/usr/bin/env bash
# Guess: cumsum(-1) and cumsum(1) of a (B, T) DTensor say the same, as they do of a tensor.
# Seen: cut along T, cumsum(1) gathers first and is right; cumsum(-1) starts again on each rank: -1 is not taken for 1.
# Matters: mask.cumsum(-1) - 1, or (tokens == bos).cumsum(-1), is how positions and packed texts are counted.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 numpy==2.4.6
cat > try.py <<'PY'
import sys

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.nn import functional as F

BOS = 1


def numbered(tokens, dim):
    """Which text each token of a packed row belongs to, from 0 on."""
    return (tokens == BOS).int().cumsum(dim) - 1


def rank_work(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    tokens = torch.tensor([[BOS, 5, 6, BOS, 7, 8, BOS, 9]])  # three texts, four tokens to a rank
    cut = distribute_tensor(tokens, init_device_mesh("cpu", (2,)), [Shard(1)])
    texts = {dim: numbered(cut, dim) for dim in (1, -1)}
    whole = {dim: text.full_tensor() for dim, text in texts.items()}
    soft = {dim: cut.float().softmax(dim).full_tensor() for dim in (1, -1)}
    if rank == 0:
        want = numbered(tokens, -1)
        assert torch.equal(numbered(tokens, 1), want)
        print("plain tensor        ", want[0].tolist())
        for dim in (1, -1):
            print(f"DTensor, cumsum({dim:2d}) ", whole[dim][0].tolist(), "held as", *texts[dim].placements)
        print("softmax(1) and softmax(-1) of the same DTensor agree:", torch.equal(soft[1], soft[-1]))

        # What attention makes of it: a token sees what stands before it in the same text.
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 8, 4)
        seen = {}
        for name, text in {"plain": want, 1: whole[1], -1: whole[-1]}.items():
            mask = (text[0, :, None] == text[0]) & torch.ones(8, 8, dtype=torch.bool).tril()
            seen[name] = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        off = {dim: (seen[dim] - seen["plain"]).abs().amax(-1)[0] for dim in (1, -1)}
        print("attention with the ids of cumsum(-1) is off at positions", off[-1].nonzero().flatten().tolist(),
              f"by up to {off[-1].max():.2g}")
        assert torch.equal(whole[1], want) and torch.equal(soft[1], soft[-1]) and off[1].max() == 0
        assert whole[-1].tolist() == [[0, 0, 0, 1, -1, -1, 0, 0]] and off[-1].max() > 0.1
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    multiprocessing.spawn(rank_work, (sys.argv[1],), nprocs=2)
PY
venv/bin/python try.py "$folder/store"
