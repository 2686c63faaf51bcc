"""One LLaMA over several processes, on torch.distributed; notebook 09.

    split     how each matrix is cut
    load      each process reads its own part of a checkpoint
    start     joins the processes
    compare   a command: is the split model the same function as the whole one?
    __main__  a command: the processes write a text together

Run: python -m torch.distributed.run --nproc-per-node 2 -m helpers.parallel helpers/assets/tiny-llama
"""

from helpers.parallel.load import load_parallel
from helpers.parallel.split import bytes_of, parallel_plan, require_divisible, split_model
from helpers.parallel.start import start_ranks

__all__ = ["bytes_of", "load_parallel", "parallel_plan", "require_divisible", "split_model", "start_ranks"]
