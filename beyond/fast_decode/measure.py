"""Which layout, and how many threads, are fastest on this machine: measured at each call."""

import os
import statistics
import time
from functools import partial

import torch

from beyond.fast_decode.layouts import LaidOutLinear, full_name

ROUNDS = 12  # with 5, a busy machine chose float32's layouts wrongly in 3 of 12 calls, with 12 in 1
# Bytes of float32 matrices on which each layout is timed: at least half of what the last cache holds, because then the
# four other layouts, which are read before its next turn, are twice what the cache holds, so nothing is left in it.
SAMPLE = 2**25
if "SC_LEVEL3_CACHE_SIZE" in getattr(os, "sysconf_names", ()):
    SAMPLE = max(SAMPLE, os.sysconf("SC_LEVEL3_CACHE_SIZE") // 2)


def times_of(groups, candidates):
    """Times for one vector, {shape: {name of dtype and layout: µs}}, the least of several: a busy moment passes.

    Args:
        groups: {shape: [matrices that are read at once, ...]}.
        candidates: {dtype: layouts}.
    """
    ways = {full_name(dtype, name): (dtype, name) for dtype, names in candidates.items() for name in names}
    times = {}
    for shape, alike in groups.items():
        width, n_out = alike[0][0].shape[1], sum(map(len, alike[0]))
        rows = SAMPLE // (4 * width)
        sample = [torch.cat(group)[:rows] for group in alike[: max(1, rows // n_out)]]
        x, n_products = sample[0].new_ones(1, 1, width), sum(map(len, sample)) / n_out  # of a whole group each
        trials = {way: [LaidOutLinear([part], *ways[way]) for part in sample] for way in ways}
        runners = {way: lambda x=x, every=linears: [linear(x) for linear in every] for way, linears in trials.items()}
        times[shape] = {way: round(1e6 * min(taken) / n_products, 1) for way, taken in _benchmark(runners).items()}
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
        seconds = _benchmark({n: partial(blocks, n) for n in (1, every)})
    finally:  # also after Ctrl+C
        torch.set_num_threads(every)
    return {n: statistics.median(taken) for n, taken in seconds.items()}


def _benchmark(runners):
    # The seconds of each, run in turn, so that a machine that slows down slows all; the first round warms up.
    seconds = {name: [] for name in runners}
    for name in [*runners] * (ROUNDS + 1):
        start = time.perf_counter()
        runners[name]()
        seconds[name].append(time.perf_counter() - start)
    return {name: taken[1:] for name, taken in seconds.items()}
