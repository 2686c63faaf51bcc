"""Is a split model the same function as the whole one, what does a rank hold and send, and does it learn?

Prints what each process found, one line of JSON each; with a file that has a function split(model, rank, n), about this
split instead of PyTorch's.
Run: python -m torch.distributed.run --nproc-per-node 2 -m helpers.parallel.compare helpers/assets/tiny-llama [FILE]
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

from helpers.checkpoint import load_checkpoint
from helpers.generate import generate
from helpers.interventions import held_out_tokens
from helpers.parallel.load import load_parallel
from helpers.parallel.split import bytes_of, split_model
from helpers.parallel.start import start_ranks


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, as a share of the largest expected magnitude."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def compare(folder: str | Path, mesh: DeviceMesh) -> dict:
    """What this rank finds, by name: is PyTorch's split model the same function, what does it hold and send?"""
    whole, part = load_checkpoint(folder, device=mesh.device_type), load_parallel(folder, mesh)
    tokens = _tokens(whole)
    found = {"rank": mesh.get_local_rank()} | _function(part, whole)
    cut_in_memory = split_model(load_checkpoint(folder, device=mesh.device_type), mesh)
    found["cut in memory"] = difference(cut_in_memory(tokens), whole(tokens))
    found |= {"heads": part.config.n_heads, "key/value heads": part.new_cache(1).k.shape[2]}
    return found | _training(part, whole, tokens) | _exchanges(part, tokens)


def _tokens(model):
    weight = model.tok_embeddings.weight
    return torch.arange(0, 24 * 41, 41, device=weight.device).view(2, 12) % model.config.vocab_size


@torch.no_grad()
def _function(part, whole):
    tokens = _tokens(whole)
    logits, expected = part(tokens), whole(tokens)
    same_text = torch.equal(generate(part, tokens, 20), generate(whole, tokens, 20))
    found = {"logits": difference(logits, expected), "equal bits": torch.equal(logits, expected)}
    return found | {"same text": same_text, "bytes held": bytes_of(part), "bytes in all": bytes_of(whole)}


def _training(part, whole, tokens):
    found = []
    for model in (part, whole):
        loss = _loss(model, tokens)
        gradients = torch.autograd.grad(loss, tuple(model.parameters()))
        found.append([t.full_tensor() if isinstance(t, DTensor) else t for t in (loss, *gradients)])
    loss, *gradients = map(difference, *found)
    return {"loss": loss, "gradients": max(gradients)}


def _loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _exchanges(part, tokens):
    from torch.distributed.tensor.debug import CommDebugMode  # here, for it takes long to import

    with CommDebugMode() as sent, torch.no_grad():
        part(tokens)
    return {"sent": {str(what).split(".")[-1]: n for what, n in sent.get_comm_counts().items()}}


def by_hand(folder: str | Path, mesh: DeviceMesh, file: str) -> dict:
    """What a file's split(model, rank, n) gives: the function, each gradient's gap, the losses of a short training."""
    rank, n_ranks, device = mesh.get_local_rank(), mesh.size(), mesh.device_type
    whole, mine = (load_checkpoint(folder, device=device) for _ in range(2))
    runpy.run_path(file)["split"](mine, rank, n_ranks)
    found, tokens = _function(mine, whole), held_out_tokens()[:516].view(4, 129).to(device)
    losses = [_loss(model, tokens) for model in (mine, whole)]
    sum(losses).backward()
    found |= {"losses": [loss.item() for loss in losses], "gaps": {}}
    for (name, right), weight in zip(whole.named_parameters(), mine.parameters(), strict=True):
        cut = [dim for dim in range(right.ndim) if weight.shape[dim] < right.shape[dim]]
        want = right.grad.chunk(n_ranks, *cut)[rank] if cut else right.grad
        found["gaps"][name] = ((weight.grad - want).norm() / want.norm()).item()
    return found | _drift(mine, whole, tokens)


def _drift(mine, whole, tokens):
    # Both train for 8 steps on the same rows; then, what every rank has in full is compared with the other ranks'.
    trained = []
    for model in (mine, whole):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(8):
            optimizer.zero_grad()
            (loss := _loss(model, tokens)).backward()
            optimizer.step()
        trained.append(loss.item())
    copies = [torch.empty_like(mine.tok_embeddings.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, mine.tok_embeddings.weight.detach())
    return {"trained": trained, "copies": ((copies[0] - copies[-1]).norm() / copies[0].norm()).item()}


if __name__ == "__main__":
    mesh = start_ranks()
    folder, *file = sys.argv[1:]
    found = by_hand(folder, mesh, *file) if file else compare(folder, mesh)
    everything = [None] * mesh.size()
    dist.all_gather_object(everything, found)
    if dist.get_rank() == 0:
        print(*map(json.dumps, everything), sep="\n", flush=True)
    dist.barrier()
    os._exit(0)  # in PyTorch 2.6 an orderly end may hang: gloo's threads free what they gathered (pytorch#154976)
