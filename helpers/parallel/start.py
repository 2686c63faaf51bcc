"""Starting several processes with torch.distributed.run, and joining those that it has started."""

import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def launch(*program: str, n: int = 2, seconds: int = 180) -> list[str]:
    """Run a program in n processes on this machine, one core each and no GPU; returns the lines they print, sorted.

    Raises:
        RuntimeError: if one of them fails; with the end of what they wrote about it.
    """
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n), *program]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(program)} failed in a process:\n{done.stderr[-2000:]}")
    return sorted(filter(None, done.stdout.splitlines()))


def start_ranks(seconds: int = 60) -> DeviceMesh:
    """Join the processes that torch.distributed.run started; a rank that never answers is an error after `seconds`."""
    kind = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    return init_device_mesh(kind, (dist.get_world_size(),))
