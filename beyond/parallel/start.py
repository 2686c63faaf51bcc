"""Starting several processes on this machine, and joining those that were started."""

import logging
import os
import runpy
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, start_processes


def launch(*program: str, n: int = 2, seconds: float = 180) -> list[str]:
    """Run a file, or "-m" and a module, in n processes, one core each and no GPU; returns the lines they print, sorted.

    As `python -m torch.distributed.run` does; but on Linux ranks are forked from a process that has imported all.
    A script calls this under `if __name__ == "__main__":`, as Python asks of all that start processes.

    Raises:
        RuntimeError: if one of them fails, with its own traceback; or if they are not done in time.
    """
    until = time.monotonic() + seconds
    method = "forkserver" if sys.platform == "linux" else "spawn"  # on macOS a fork after imports may crash
    if method == "forkserver":
        get_context(method).set_forkserver_preload(["beyond.parallel", "helpers.generate", "helpers.text"])
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # the ranks find each other here
    settings = {"MASTER_ADDR": "localhost", "MASTER_PORT": f"{store.port}", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    settings |= {"WORLD_SIZE": f"{n}", "LOCAL_WORLD_SIZE": f"{n}", "CUDA_VISIBLE_DEVICES": ""}
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it warns of each rank that it ends
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        printed.touch()
        ranks = start_processes(_rank, (program, settings, printed), n, join=False, start_method=method)
        try:
            while not ranks.join(max(until - time.monotonic(), 0)):
                if time.monotonic() > until:
                    advice = "does a rank wait for a sum that another one skips?"
                    raise RuntimeError(f"{' '.join(program)} is not done after {seconds} seconds: {advice}")
        except (ProcessExitedException, ProcessRaisedException) as error:
            raise RuntimeError(f"{' '.join(program)} failed in a process:\n{str(error)[-2000:]}") from None
        finally:  # after the stop button, too
            for process in ranks.processes:
                process.kill()
                process.join()
        return sorted(filter(None, printed.read_text(encoding="utf-8").splitlines()))


def _rank(rank, program, settings, printed):
    os.environ |= settings | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
    torch.set_num_threads(1)  # a variable would come too late, because PyTorch is imported
    torch.seed()  # forked ranks would all draw the same numbers
    sys.stdout = printed.open("a", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a notebook would show it; errors are passed on
    if program[0] == "-m":
        run, sys.argv = runpy.run_module, list(program[1:])
    else:
        run, sys.argv = runpy.run_path, list(program)
    run(sys.argv[0], run_name="__main__")


def start_ranks(seconds: int = 60) -> DeviceMesh:
    """The mesh of all processes that torch.distributed.run started; an error if one does not answer for `seconds`."""
    kind = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    return init_device_mesh(kind, (dist.get_world_size(),))
