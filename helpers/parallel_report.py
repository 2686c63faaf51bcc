"""Is the split model the same function as the whole one, and what does it send? One line of JSON for each rank.

Run: python -m torch.distributed.run --nproc-per-node 2 -m helpers.parallel_report FOLDER
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.checkpoint import load_checkpoint
from helpers.generate import generate
from helpers.parallel import load_parallel, split_model, start_ranks


class SummedBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are handed to all-reduce."""

    n_bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        """Called for every operation; a split tensor first turns itself into plain ones and sums."""
        if DTensor in types:
            return NotImplemented
        if "all_reduce" in str(operation):
            self.n_bytes += args[0].nbytes
        return operation(*args, **(kwargs or {}))


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, as a share of the largest expected magnitude."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def gradients_of(model: torch.nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss on tokens (B, T), and each weight's whole gradient, put together again where it is split."""
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return loss, {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in gradients.items()}


def compare(folder: str | Path, mesh) -> dict:
    """What this rank finds; every rank must call it."""
    whole, part = load_checkpoint(folder, device=mesh.device_type), load_parallel(folder, mesh)
    tokens = torch.randint(whole.config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))
    tokens = tokens.to(mesh.device_type)
    logits = part(tokens)
    found = {"rank": mesh.get_local_rank(), "logits": difference(logits, whole(tokens))}
    found["equal bits"] = torch.equal(logits, whole(tokens))
    found["cut in memory"] = difference(
        split_model(load_checkpoint(folder, device=mesh.device_type), mesh)(tokens), whole(tokens)
    )
    (loss, gradients), (split_loss, split_gradients) = gradients_of(whole, tokens), gradients_of(part, tokens)
    found["loss"] = difference(split_loss, loss)
    found["gradients"] = max(difference(split_gradients[name], gradient) for name, gradient in gradients.items())
    found["same text"] = torch.equal(generate(part, tokens, 20), generate(whole, tokens, 20))
    angles_and_mask = zip(part.rotation_and_mask(3, 5), whole.rotation_and_mask(3, 5), strict=True)
    found["same angles and mask"] = all(torch.equal(ours, theirs) for ours, theirs in angles_and_mask)
    found["heads"], found["key/value heads"] = part.config.n_heads, part.new_cache(1).k.shape[2]
    local = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in part.parameters()]
    found["bytes held"] = sum(weight.nbytes for weight in local)
    found["bytes in all"] = sum(weight.nbytes for weight in whole.parameters())
    with CommDebugMode() as sent, torch.no_grad():
        part(tokens)
    found["sent"] = {str(what).split(".")[-1]: n for what, n in sent.get_comm_counts().items()}
    with SummedBytes() as summed, torch.no_grad():
        part(tokens)
    found["tokens"], found["bytes summed"] = tokens.numel(), summed.n_bytes
    for name, model in (("split", part), ("whole", whole)):
        dist.barrier()
        start = time.perf_counter()
        if name == "split" or found["rank"] == 0:  # the whole model runs in one process, the other waits
            generate(model, tokens[:1], 30)
            found[f"seconds {name}"] = time.perf_counter() - start
    dist.barrier()
    return found


def main():
    """Compare in every process; the first prints all results."""
    mesh = start_ranks()
    found = compare(sys.argv[1], mesh)
    everything = [None] * mesh.size()
    dist.all_gather_object(everything, found)
    if dist.get_rank() == 0:
        print(*map(json.dumps, everything), sep="\n", flush=True)
    dist.barrier()
    os._exit(0)  # in PyTorch 2.6 an orderly end may hang, while gloo's threads free what they gathered (pytorch#154976)


if __name__ == "__main__":
    main()
