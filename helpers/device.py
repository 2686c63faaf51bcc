"""Which device to use, seeds, waiting for it, and what to do when its memory is full."""

import contextlib
import os
import random
import re
import traceback

import torch

from helpers.validate import require_whole


def pick_device() -> torch.device:
    """The accelerator when there is one, else the CPU; the environment variable COURSE_DEVICE overrides.

    Raises:
        ValueError: if COURSE_DEVICE is not known or not present on this machine.
    """
    known = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    present = [name for name, is_here in known.items() if is_here]
    wanted = os.environ.get("COURSE_DEVICE", "").strip().lower() or present[0]
    if wanted not in present:
        problem = "is not present on this machine" if wanted in known else "is not known"
        raise ValueError(f"COURSE_DEVICE={wanted!r} {problem}: use one of {present}, or unset the variable.")
    return torch.device(wanted)


def set_seed(seed: int = 0) -> torch.Generator:
    """Seed Python's and torch's random numbers; return a seeded CPU generator.

    Draw from the generator on the CPU and move the result to the device: then every device sees the same numbers.
    """
    seed = require_whole("seed", seed, 0)  # before anything is seeded
    random.seed(seed)
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def synchronize(device: torch.device):
    """Wait until the device has finished its work; call this before you read a clock.

    An accelerator works on its own: Python hands the work over and goes on.
    """
    if device.type != "cpu":
        {"cuda": torch.cuda, "mps": torch.mps}[device.type].synchronize()


@contextlib.contextmanager
def explain_out_of_memory(what_to_do: str):
    """If memory runs out inside this block, say which setting to change; any other error passes unchanged.

    Args:
        what_to_do: a sentence that says what was asked for, with its values, and what to ask for instead.

    Raises:
        torch.OutOfMemoryError: what_to_do; PyTorch's own error is its cause.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or is_out_of_memory(error.__cause__):  # another error, or explained already
            raise
        traceback.clear_frames(error.__traceback__)  # Jupyter keeps the error, and would keep its tensors
        raise torch.OutOfMemoryError(f"out of memory: {what_to_do}") from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that memory has run out; only CUDA has an exception of its own for it."""
    # The words of MPS; of Linux, also for a file that is mapped; of Windows; of MPS for a tensor that is too large.
    says = r"out of memory|can(no|')t allocate memory|not enough memory|invalid buffer size"
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and bool(re.search(says, str(error), re.I)))
