"""Where the time of a prepared model goes: a step, a prompt, and whether the layout is chosen alike each time.

PYTHONPATH=. python benchmarks/where.py            the products of a step alone, at how many bytes per second; a minute
PYTHONPATH=. python benchmarks/where.py prompts    prompts in each layout, beside the plain model's; three minutes
PYTHONPATH=. python benchmarks/where.py steady     twenty calls on a quiet and on a busy machine; 25 minutes

With nothing else running.
"""

import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from statistics import median

import torch

from benchmarks.speed import SHAPES, bandwidth, make_pair
from beyond.fast_decode import layouts, measure, prepare_for_decoding
from beyond.fast_decode.layouts import LAYOUTS, LaidOutLinear

CALLS = {
    None: ((1, 32), (1, 6000), (8, 32)),  # texts, cached tokens
    "float16": ((1, 32),),
    "int8": ((1, 32),),
    "int4": ((1, 32),),
}
PROMPTS = (2, 8, 32, 128, 512)
BUSY = "import torch\na = torch.randn(1024, 1024)\nwhile True:\n    a @ a\n"
STEADY_CALLS, NEAR = 20, 1.05


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


def linears_of(model):
    return [part for part in model.modules() if isinstance(part, LaidOutLinear)]


def steps(ours):
    print(f"memory: {bandwidth(2**29) / 1e9:.0f} GB/s, read again and again")
    print("| weights | texts | cached | products [ms] | their GB/s | the step [ms] |\n|---|---|---|---|---|---|")
    for dtype, calls in CALLS.items():
        model = prepare_for_decoding(ours, dtype)
        linears = linears_of(model)
        n_bytes = sum(getattr(part.weight, "nbytes", 2 * part.n_in * part.n_out) for part in linears)
        for texts, cached in calls:
            products, step = of_products(linears, texts), of_step(model, texts, cached)
            rate = n_bytes / products / 1e6
            print(f"| {dtype or 'float32'} | {texts} | {cached:,} | {products:.1f} | {rate:.0f} | {step:.1f} |")


def prompts(ours):
    print("| weights | layout |", *(f"{n} tokens |" for n in PROMPTS), "\n|---|---|" + "---|" * len(PROMPTS))
    for weights in (None, "float16", "bfloat16", "int8", "int4"):
        for layout in LAYOUTS[getattr(torch, weights or "float32")]:
            model, ratios = prepare_for_decoding(ours, weights, layout), []
            for n in PROMPTS:
                text = torch.randint(ours.config.vocab_size, (1, n))
                both = {who: (lambda who=who, text=text: who(text, last_only=True)) for who in (model, ours)}
                taken = measure._benchmark(both)  # in turn
                ratios.append(median(taken[model]) / median(taken[ours]))
            print(f"| {weights or 'float32'} | {layout} |", *(f"{ratio:.2f} |" for ratio in ratios), flush=True)


def steady(ours):
    """How many calls choose layouts whose products take at most NEAR of the best's; these are timed at the end."""
    found = {}
    for state in ("quiet", "busy"):
        with ExitStack() as stack:
            if state == "busy":
                stack.callback(subprocess.Popen([sys.executable, "-c", BUSY]).kill)
                time.sleep(5)
            for weights in (None, "float16", "int8"):
                for _ in range(STEADY_CALLS):
                    parts = linears_of(prepare_for_decoding(ours, weights))
                    named = {(f"{p.n_in} -> {p.n_out}", layouts.full_name(p.dtype, p.layout)) for p in parts}
                    found.setdefault((state, weights), []).append(frozenset(named))
                print(f"{state}, {weights or 'float32'}: chosen {STEADY_CALLS} times", file=sys.stderr, flush=True)
    groups = {}
    layouts.lay_out(ours, lambda *group: groups.setdefault(layouts.shape_of(group), []).append(group))
    measure.ROUNDS = 40
    reference = measure.times_of(groups, LAYOUTS)

    def taken(choice):
        return sum(len(groups[shape]) * reference[shape][way] for shape, way in choice)

    print(f"| machine | weights | of {STEADY_CALLS} within {NEAR} | choices |\n|---|---|---|---|")
    for (state, weights), choices in found.items():
        best = min(map(taken, choices))
        near = sum(taken(choice) <= NEAR * best for choice in choices)
        told = ["; ".join(sorted(f"{shape}: {way}" for shape, way in choice)) for choice in choices]
        print(f"| {state} | {weights or 'float32'} | {near} | {Counter(told).most_common(3)} |", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        {"prompts": prompts, "steady": steady}.get("".join(sys.argv[1:]), steps)(make_pair(SHAPES["135M"], "cpu")[0])
