"""Where the time of a prepared step goes: its products alone, at how many bytes per second, and the whole.

PYTHONPATH=. python benchmarks/where.py     a minute with nothing else running
"""

import time
from statistics import median

import torch

from benchmarks.speed import SHAPES, bandwidth, make_pair
from beyond.fast_decode import prepare_for_decoding
from beyond.fast_decode.layouts import LaidOutLinear

CALLS = {None: ((1, 32), (1, 6000), (8, 32)), "float16": ((1, 32),), "int8": ((1, 32),)}  # texts, cached tokens


def milliseconds(work, rounds=15):
    """The median of some runs; the first warms up."""
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - start))
    return median(taken[1:])


def of_products(linears, texts):
    """All products of a step, one after the other."""
    pairs = [(part, torch.randn(texts, 1, part.n_in)) for part in linears]
    return milliseconds(lambda: [part(x) for part, x in pairs])


def of_step(model, texts, cached):
    """One step, after so many tokens."""
    cache, token = model.new_cache(texts, cached + 100), torch.zeros(texts, 1, dtype=torch.int64)
    model(token.expand(-1, cached), cache, last_only=True)
    return milliseconds(lambda: model(token, cache, last_only=True))


@torch.no_grad()
def main():
    ours, _ = make_pair(SHAPES["135M"], "cpu")
    print(f"memory: {bandwidth(2**29) / 1e9:.0f} GB/s, read again and again")
    print("| weights | texts | cached | products [ms] | their GB/s | the step [ms] |\n|---|---|---|---|---|---|")
    for dtype, calls in CALLS.items():
        model = prepare_for_decoding(ours, dtype)
        linears = [part for part in model.modules() if isinstance(part, LaidOutLinear)]
        for texts, cached in calls:
            products, step = of_products(linears, texts), of_step(model, texts, cached)
            rate = sum(part.weight.nbytes for part in linears) / products / 1e6
            print(f"| {dtype or 'float32'} | {texts} | {cached:,} | {products:.1f} | {rate:.0f} | {step:.1f} |")


if __name__ == "__main__":
    main()
