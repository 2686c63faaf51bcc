#!/usr/bin/env bash
# Guess: .norm().item() of a weight that tensor parallelism has cut (a DTensor) is the norm of the weight.
# Seen: it is that of this rank's part, another number on each rank; .full_tensor() first gives the right one.
# Matters: norms that are logged, or clipped by hand, differ from rank to rank, and the copies drift apart.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 numpy==2.4.6
venv/bin/python - <<'PY'
import torch

print("torch", torch.__version__)

import os
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


def work(rank, found):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29631", "RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layer = nn.Linear(4, 8, bias=False)
    whole = layer.weight.detach().norm().item()
    parallelize_module(layer, init_device_mesh("cpu", (2,)), ColwiseParallel())
    found[rank] = whole, layer.weight.norm().item(), layer.weight.full_tensor().norm().item()
    dist.destroy_process_group()


if __name__ == "__main__":
    with mp.Manager() as manager:
        found = manager.dict()
        mp.start_processes(work, (found,), nprocs=2, start_method="fork")
        for rank, (whole, item, full) in sorted(found.items()):
            print(f"rank {rank}: whole {whole:.4f}, .norm().item() {item:.4f}, .full_tensor().norm() {full:.4f}")
            assert abs(full - whole) < 1e-5 < abs(item - whole)
        assert abs(sum(item**2 for _, item, _ in found.values()) ** 0.5 - whole) < 1e-5
PY
