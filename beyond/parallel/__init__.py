"""One LLaMA over several processes, cut by PyTorch's own tensor parallelism; notebook 09, which cuts it by hand first.

split     how each matrix is cut
load      each process reads its own part of a checkpoint
start     starts the processes, and joins them
compare   a command: is the split model the same function as the whole one, what does it send, are its gradients right?
write     a command: what each process of notebook 09 runs
"""

from beyond.parallel.load import load_parallel
from beyond.parallel.split import bytes_of, parallel_plan, require_divisible, split_model
from beyond.parallel.start import launch, start_ranks

__all__ = ["bytes_of", "launch", "load_parallel", "parallel_plan", "require_divisible", "split_model", "start_ranks"]
