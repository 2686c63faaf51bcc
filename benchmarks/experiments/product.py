"""Can a layer learn to multiply two features after a norm? The stored numbers behind a picture of notebook 03.

A token x of D normal numbers is divided by its root mean square, as RMSNorm does, and a layer shall return x[0] * x[1].
The older layer has 128 hidden units around ReLU, and the gated one, SwiGLU, as many as give it the same number of
parameters. Both are trained alike, on fresh tokens in every step. The error is the root mean square of what is wrong,
in percent of that of the product, on tokens that were not trained on. In a third run ReLU gets tokens whose first two
coordinates lie on a circle for every D, as they do for D = 2, because there they are the whole token.
Run: OMP_NUM_THREADS=1 python -m benchmarks.experiments.product helpers/assets/product.json (a few minutes).
"""

import argparse
import json
from pathlib import Path

import torch
from torch.nn import functional as F

DIMS, UNITS, STEPS, BATCH, SEEDS = (2, 4, 16, 64), 128, 1500, 512, 3
ON_CIRCLE = "ReLU, on a circle"
LAYERS = {  # units, so that all have the same number of parameters
    "ReLU": lambda dim: UNITS,
    ON_CIRCLE: lambda dim: UNITS,
    "SwiGLU": lambda dim: round(UNITS * (dim + 1) / (2 * dim + 1)),
}


def of_rms_1(x):
    return x / x.square().mean(dim=-1, keepdim=True).sqrt()


def error_of(name: str, dim: int) -> list[float]:
    """The error [percent] for each seed; the seeds are trained side by side."""
    generator, units, gated = torch.Generator().manual_seed(dim), LAYERS[name](dim), name == "SwiGLU"

    def normal(*shape):
        return torch.randn(SEEDS, *shape, generator=generator)

    def tokens(n):
        x = of_rms_1(normal(n, dim))
        if name == ON_CIRCLE:
            x = torch.cat((of_rms_1(x[..., :2]), x[..., 2:]), dim=-1)
        return x, x[..., :1] * x[..., 1:2]

    shapes = [(dim, units)] * (1 + gated) + [(units, 1)]
    weights = [(normal(*shape) / shape[0] ** 0.5).requires_grad_() for shape in shapes]

    def layer(x):
        first, *up, down = weights
        return (F.silu(x @ first) * (x @ up[0]) if gated else F.relu(x @ first)) @ down

    optimizer = torch.optim.Adam(weights, lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        x, product = tokens(BATCH)
        optimizer.zero_grad()
        (layer(x) - product).square().mean(dim=(1, 2)).sum().backward()  # each seed has weights of its own
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        x, product = tokens(20_000)
        return (100 * (layer(x) - product).norm(dim=1) / product.norm(dim=1))[:, 0].tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    errors = {name: [] for name in LAYERS}
    for dim in DIMS:
        for name in LAYERS:
            errors[name].append([round(one, 2) for one in error_of(name, dim)])
            print(dim, name, errors[name][-1], flush=True)
    content = {"dims": DIMS, "units": UNITS, "steps": STEPS, "batch_size": BATCH, "error_percent": errors}
    arguments.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
