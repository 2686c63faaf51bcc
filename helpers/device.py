"""Which device to use, and seeds."""

import os
import random

import torch


def pick_device() -> torch.device:
    """The accelerator when there is one, else the CPU; the environment variable COURSE_DEVICE overrides.

    Raises:
        ValueError: if COURSE_DEVICE is not known or not present on this machine.
    """
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    wanted = os.environ.get("COURSE_DEVICE", "").strip().lower()
    if not wanted:
        return torch.device("cuda" if present["cuda"] else "mps" if present["mps"] else "cpu")
    if not present.get(wanted):
        here = [name for name, is_here in present.items() if is_here]
        problem = "is not present on this machine" if wanted in present else "is not known"
        raise ValueError(f"COURSE_DEVICE={wanted!r} {problem}: use one of {here}, or unset the variable.")
    return torch.device(wanted)


def set_seed(seed: int = 0) -> torch.Generator:
    """Seed Python's and torch's random numbers; return a seeded CPU generator.

    Draw from the generator on the CPU and move the result to the device: then every device sees the same numbers.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)
