"""Starting several processes with torch.distributed.run, and joining those that it has started."""

import os
import re
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def launch(*program: str, n: int = 2, seconds: int = 180) -> list[str]:
    """Run a program in n processes on this machine, one core each and no GPU; returns the lines they print, sorted.

    Raises:
        RuntimeError: if one of them fails, with its own traceback; or if they are not done in time.
    """
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n), *program]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as started:
        try:
            printed, errors = started.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            waits = "does a rank wait for a sum that another one skips?"
            raise RuntimeError(f"{' '.join(program)} is not done after {seconds} seconds: {waits}") from None
        finally:
            started.terminate()  # after the stop button, too: the launcher ends its processes, if it is asked to
    if started.returncode:
        raise RuntimeError(f"{' '.join(program)} failed in a process:\n{_traceback(errors)[-2000:]}")
    return sorted(filter(None, printed.splitlines()))


def _traceback(stderr):
    # Of the first rank that tells one, without the launcher's own; before it has joined it has no name.
    if named := re.search(r"^\[rank\d+\]: ", stderr, re.M):
        return "\n".join(re.findall(rf"^{re.escape(named[0])}(.*)", stderr, re.M))
    return re.split(r"^[WE]\d{4} ", stderr, flags=re.M)[0] or stderr


def start_ranks(seconds: int = 60) -> DeviceMesh:
    """Join the processes that torch.distributed.run started; a rank that never answers is an error after `seconds`."""
    kind = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    return init_device_mesh(kind, (dist.get_world_size(),))
