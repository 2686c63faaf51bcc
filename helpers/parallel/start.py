"""Joining the processes that torch.distributed.run has started."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def start_ranks(seconds: int = 60) -> DeviceMesh:
    """Join the processes that torch.distributed.run started; a rank that never answers is an error after `seconds`."""
    kind = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    return init_device_mesh(kind, (dist.get_world_size(),))
