"""Which layout, and how many threads, are fastest on this machine: measured, and kept."""

import contextlib
import json
import math
import os
import platform
import re
import statistics
import time
from functools import partial
from pathlib import Path

import torch

from helpers.fast_decode.layouts import LaidOutLinear, full_name

SAMPLE, ROUNDS = 2**25, 5  # each layout is timed on so many bytes of matrices (most caches hold less), and so often


def layouts_file() -> Path:
    """Where the times of layouts are kept between processes; it may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llama-notebooks" / "layouts.json"


def processor() -> str:
    """The name of this machine's processor, as far as the system tells it."""
    try:
        return re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))[1]
    except (OSError, TypeError):
        return platform.processor() or platform.machine()


def times_of(groups, rivals):
    """Times for one vector, {shape: {name of dtype and layout: µs}}: those kept, or else measured now.

    Args:
        groups: {shape: [matrices that are read at once, ...]}.
        rivals: {dtype: layouts}.
    """
    vectors = torch.backends.cpu.get_cpu_capability()
    machine = f"{processor()}, {vectors}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    try:
        kept = json.loads(layouts_file().read_text(encoding="utf-8"))
        own = kept.get(machine, {})
        times = {shape: {way: float(t) for way, t in own[shape].items()} for shape in own}
    except (OSError, ValueError, TypeError, AttributeError):  # no file, or a broken one
        kept, times = {}, {}
    ways = {full_name(dtype, name): (dtype, name) for dtype, names in rivals.items() for name in names}
    keep = kept.setdefault(machine, {})
    for shape, alike in groups.items():
        own, width, n_out = times.setdefault(shape, {}), alike[0][0].shape[1], sum(map(len, alike[0]))
        rows = SAMPLE // (4 * width)
        sample = [torch.cat(group)[:rows] for group in alike[: max(1, rows // n_out)]]
        x, read = sample[0].new_ones(1, 1, width), sum(map(len, sample)) / n_out
        limit = 1e6 * min(_race({"read": lambda every=sample: [part.sum() for part in every]})["read"]) / read
        slow = 10 * limit  # so slow is no layout on a quiet machine (4 was seen): others used it
        if not (new := [way for way in ways if own.get(way, math.inf) > slow]):
            continue
        trials = {way: [LaidOutLinear([part], *ways[way]) for part in sample] for way in new}
        runners = {way: lambda x=x, every=linears: [linear(x) for linear in every] for way, linears in trials.items()}
        for _ in range(3):  # a busy moment passes
            seconds = _race(runners)
            own |= {way: min(own.get(way, math.inf), round(1e6 * min(t) / read, 1)) for way, t in seconds.items()}
            if max(own.values()) <= slow and all(statistics.median(t) < 1.5 * min(t) for t in seconds.values()):
                keep[shape] = own
                break
    with contextlib.suppress(OSError):  # then they are measured again next time
        layouts_file().parent.mkdir(parents=True, exist_ok=True)
        layouts_file().write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return times


def seconds_by_threads(prepared):
    """{number of threads: seconds for some blocks and one token}: one and all, as busy as the machine is now."""
    cos, sin, _ = prepared.rotation_and_mask(1)
    every, x = torch.get_num_threads(), prepared.tok_embeddings.weight[None, :1]

    def blocks(n):
        torch.set_num_threads(n)
        for block in prepared.layers[:4]:
            block(x, cos, sin)

    try:
        seconds = _race({n: partial(blocks, n) for n in (1, every)})
    finally:  # also after Ctrl+C
        torch.set_num_threads(every)
    return {n: statistics.median(taken) for n, taken in seconds.items()}


def _race(runners):
    # The seconds of each, run in turn, so that a machine that slows down slows all; the first round warms up.
    seconds = {name: [] for name in runners}
    for name in [*runners] * (ROUNDS + 1):
        start = time.perf_counter()
        runners[name]()
        seconds[name].append(time.perf_counter() - start)
    return {name: taken[1:] for name, taken in seconds.items()}
