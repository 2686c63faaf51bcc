"""Is a split model the same function as the whole one, what does a rank hold and send, does it get the right gradients?

Each process prints what it found, a line of JSON; with a file that has a function split(model, rank, n), about this
split instead of PyTorch's.
Run: python -m torch.distributed.run --nproc-per-node 2 -m beyond.parallel.compare helpers/assets/tiny-llama [FILE]
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from beyond.parallel.load import load_parallel
from beyond.parallel.split import bytes_of, split_model
from beyond.parallel.start import start_ranks
from helpers.checkpoint import load_checkpoint
from helpers.generate import generate


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, as a share of the largest expected magnitude."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def compare(folder: str | Path, mesh: DeviceMesh, file: str | None = None) -> dict:
    """Findings of this rank, by name: is PyTorch's split, or a file's, the same function, are its gradients right?"""
    rank, n_ranks, device = mesh.get_local_rank(), mesh.size(), mesh.device_type
    whole, part = load_checkpoint(folder, device=device), load_checkpoint(folder, device=device)
    tokens = torch.arange(0, 24 * 41, 41, device=device).view(2, 12) % whole.config.vocab_size
    found = {"rank": rank}
    if file:
        runpy.run_path(file)["split"](part, rank, n_ranks)
    else:
        found["cut in memory"] = difference(split_model(part, mesh)(tokens), whole(tokens))
        part = load_parallel(folder, mesh)
        found |= _exchanges(part, tokens)
    found |= {"bytes held": bytes_of(part), "bytes in all": bytes_of(whole)}
    found |= {"heads": part.config.n_heads, "key/value heads": part.new_cache(1).k.shape[2]}
    return found | _outputs(part, whole, tokens) | _gradients(part, whole, tokens, rank, n_ranks)


@torch.no_grad()
def _outputs(part, whole, tokens):
    """How far the split model's logits are from the whole one's, and whether their texts are equal."""
    logits, expected = part(tokens), whole(tokens)
    same_text = torch.equal(generate(part, tokens, 20), generate(whole, tokens, 20))
    return {"logits": difference(logits, expected), "same text": same_text}


def _gradients(part, whole, tokens, rank, n_ranks):
    """How far this rank's loss and gradients are from the whole model's, or from its part of them."""
    losses = [F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) for model in (part, whole)]
    sum(losses).backward()
    gaps = {}
    for (name, right), weight in zip(whole.named_parameters(), part.parameters(), strict=True):
        mine = weight.grad.full_tensor() if isinstance(weight, DTensor) else weight.grad
        cut = [dim for dim in range(right.ndim) if mine.shape[dim] < right.shape[dim]]  # one dimension at most
        expected = right.grad.chunk(n_ranks, cut[0])[rank] if cut else right.grad
        gaps[name] = difference(mine, expected)
    return {"loss": difference(*losses), "gradients": gaps}


def _exchanges(part, tokens):
    from torch.distributed.tensor.debug import CommDebugMode  # here, for it takes long to import

    with CommDebugMode() as sent, torch.no_grad():
        part(tokens)
    return {"sent": {str(what).split(".")[-1]: n for what, n in sent.get_comm_counts().items()}}


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], start_ranks(), *sys.argv[2:])), flush=True)
    dist.barrier()
    os._exit(0)  # in PyTorch 2.6 an orderly end may hang: gloo's threads free what they gathered (pytorch#154976)
