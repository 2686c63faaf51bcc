"""One LLaMA over several processes, by PyTorch's own tensor parallelism, arranged as in Meta's code.

Matrices that read the residual stream are cut by their outputs: a rank has its own heads and hidden units. Those that
write to the stream are cut by their inputs: each rank has a part of every output, and one sum joins the parts. So a
block needs two sums, one for attention and one for the feed-forward. The vocabulary is cut too. To let two processes
write a text together, or, with --compare, to see that the split model is the same function as the whole one:

    python -m torch.distributed.run --nproc-per-node 2 -m helpers.parallel helpers/assets/tiny-llama
"""

import argparse
import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.checkpoint import config_from_hugging_face, load_checkpoint, name_map
from helpers.config import LlamaConfig
from helpers.families import require_plain
from helpers.generate import generate
from helpers.model import Llama
from helpers.text import encode, load_tokenizer


def parallel_plan(config: LlamaConfig) -> dict[str, ParallelStyle]:
    """How each matrix is cut, by the name of its module; the norms stay whole."""
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate()),  # a rank has some tokens' rows; one sum
        "lm_head": ColwiseParallel(output_layouts=Replicate()),  # a rank scores some tokens; the scores are gathered
    }
    for layer in range(config.n_layers):
        for name in ("attention.q_proj", "attention.k_proj", "attention.v_proj"):
            plan[f"layers.{layer}.{name}"] = ColwiseParallel()
        for name in ("feed_forward.gate_proj", "feed_forward.up_proj"):
            plan[f"layers.{layer}.{name}"] = ColwiseParallel()
        for name in ("attention.o_proj", "feed_forward.down_proj"):
            plan[f"layers.{layer}.{name}"] = RowwiseParallel()
    return plan


def require_divisible(config: LlamaConfig, n_ranks: int):
    """Raise ValueError unless heads, hidden units and vocabulary can be dealt out to n_ranks in equal parts."""
    for name in ("n_heads", "n_kv_heads", "hidden_dim", "vocab_size"):
        if getattr(config, name) % n_ranks:
            raise ValueError(
                f"{name}={getattr(config, name)} cannot be dealt out to {n_ranks} processes: start a number of "
                "processes that divides it (notebook 09, section 9.2)."
            )


def split_model(model: Llama, mesh: DeviceMesh) -> Llama:
    """Cut a model in place: every rank calls this with the same weights and keeps its part.

    `model.config` then holds this rank's numbers of heads, so that a cache has the size of this rank's part.

    Raises:
        ValueError: if heads, hidden units or vocabulary cannot be dealt out evenly, or the model is a relative.
    """
    require_plain(model, "split_model", "run it in one process")
    config, n_ranks = model.config, mesh.size()
    require_divisible(config, n_ranks)
    parallelize_module(model, mesh, parallel_plan(config))
    if config.tie_embeddings:  # both are cut by tokens, so that the parts can be shared as the whole was
        model.lm_head.weight = model.tok_embeddings.weight
    heads = {"n_heads": config.n_heads // n_ranks, "n_kv_heads": config.n_kv_heads // n_ranks}
    model.config = replace(config, head_dim=config.head_dim, **heads)
    return model


@torch.no_grad()
def load_parallel(folder: str | Path, mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> Llama:
    """Open a Hugging Face folder so that each rank reads and holds its own part only.

    Raises:
        ValueError: if the model cannot be dealt out evenly, or a weight is missing, of another shape or not finite.
    """
    folder = Path(folder)
    config = config_from_hugging_face(json.loads((folder / "config.json").read_text(encoding="utf-8")), str(folder))
    with torch.device("meta"):
        model = Llama(config).to(dtype)
    model = split_model(model, mesh).to_empty(device=mesh.device_type)
    if config.tie_embeddings:
        model.lm_head.weight = model.tok_embeddings.weight  # to_empty made two
    theirs = name_map(config.n_layers)
    place = _places(folder)
    for name, weight in model.named_parameters():
        if theirs[name] not in place:
            raise ValueError(f"{folder}: {theirs[name]} is missing: fetch the checkpoint again.")
        with safe_open(place[theirs[name]], framework="pt") as file:
            whole, part, mine = file.get_slice(theirs[name]), weight, ...
            if list(weight.shape) != whole.get_shape():
                raise ValueError(
                    f"{folder}: {theirs[name]} is {whole.get_shape()}, config.json asks for {list(weight.shape)}: "
                    "fetch the checkpoint again."
                )
            if isinstance(weight, DTensor):
                part, cut = weight.to_local(), weight.placements[0].dim
                start = mesh.get_local_rank() * part.shape[cut]
                mine = (slice(None),) * cut + (slice(start, start + part.shape[cut]),)
            part.copy_(whole[mine])
        if not part.isfinite().all():
            raise ValueError(f"{folder}: {theirs[name]} holds NaN or infinity: fetch the checkpoint again.")
    return model.eval()


def _places(folder):
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in listed.items()}
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return dict.fromkeys(file.keys(), folder / "model.safetensors")


def start_ranks(seconds: int = 60) -> DeviceMesh:
    """Join the processes that torch.distributed.run started; a rank that never answers is an error after `seconds`."""
    kind = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    return init_device_mesh(kind, (dist.get_world_size(),))


class SummedBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are handed to all-reduce."""

    n_bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        """Look at one operation; a split tensor passes, and comes again as the plain tensors and sums it stands for."""
        if DTensor in types:
            return NotImplemented
        if "all_reduce" in str(operation):
            self.n_bytes += args[0].nbytes
        return operation(*args, **(kwargs or {}))


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, as a share of the largest expected magnitude."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def compare(folder: str | Path, mesh: DeviceMesh) -> dict:
    """What this rank finds, by name: is the split model the same function, what does it hold and send?"""
    whole, part = load_checkpoint(folder, device=mesh.device_type), load_parallel(folder, mesh)
    tokens = torch.arange(0, 24 * 41, 41, device=mesh.device_type).view(2, 12) % whole.config.vocab_size  # of all ranks
    logits, expected = part(tokens), whole(tokens)
    found = {"rank": mesh.get_local_rank(), "bytes held": bytes_of(part), "bytes in all": bytes_of(whole)}
    found |= {"logits": difference(logits, expected), "equal bits": torch.equal(logits, expected)}
    cut_in_memory = split_model(load_checkpoint(folder, device=mesh.device_type), mesh)
    found["cut in memory"] = difference(cut_in_memory(tokens), expected)
    found["same text"] = torch.equal(generate(part, tokens, 20), generate(whole, tokens, 20))
    found["same angles and mask"] = all(map(torch.equal, part.rotation_and_mask(3, 5), whole.rotation_and_mask(3, 5)))
    found |= {"heads": part.config.n_heads, "key/value heads": part.new_cache(1).k.shape[2]}
    return found | _training(part, whole, tokens) | _exchanges(part, tokens) | _seconds(part, whole, tokens)


def bytes_of(model: Llama) -> int:
    """Bytes of the weights that this rank holds."""
    return sum(w.to_local().nbytes if isinstance(w, DTensor) else w.nbytes for w in model.parameters())


def _training(part, whole, tokens):
    found = []
    for model in (part, whole):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        gradients = torch.autograd.grad(loss, tuple(model.parameters()))
        found.append([t.full_tensor() if isinstance(t, DTensor) else t for t in (loss, *gradients)])
    loss, *gradients = map(difference, *found)
    return {"loss": loss, "gradients": max(gradients)}


def _exchanges(part, tokens):
    from torch.distributed.tensor.debug import CommDebugMode  # here, for it takes long to import

    with CommDebugMode() as sent, SummedBytes() as summed, torch.no_grad():
        part(tokens)
    counts = {str(what).split(".")[-1]: n for what, n in sent.get_comm_counts().items()}
    return {"sent": counts, "tokens": tokens.numel(), "bytes summed": summed.n_bytes}


def _seconds(part, whole, tokens):
    found = {}
    for name, model in (("split", part), ("whole", whole)):
        dist.barrier()
        start = time.perf_counter()
        if name == "split" or dist.get_rank() == 0:  # the whole model runs in one process, the other waits
            generate(model, tokens[:1], 30)
            found[f"seconds {name}"] = time.perf_counter() - start
    dist.barrier()
    return found


def main():
    """Write a text with a model that is spread over the processes, or compare it with the whole model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", default="The value of a name is")
    parser.add_argument("--new", type=int, default=40, help="tokens to write")
    parser.add_argument("--compare", action="store_true", help="print what each process found, one line of JSON each")
    arguments = parser.parse_args()
    if "WORLD_SIZE" not in os.environ:
        parser.error("start it with `python -m torch.distributed.run --nproc-per-node 2 -m helpers.parallel …`.")
    mesh = start_ranks()
    if arguments.compare:
        everything = [None] * mesh.size()
        dist.all_gather_object(everything, compare(arguments.folder, mesh))
        if dist.get_rank() == 0:
            print(*map(json.dumps, everything), sep="\n", flush=True)
        dist.barrier()
        os._exit(0)  # in PyTorch 2.6 an orderly end may hang: gloo's threads free what they gathered (pytorch#154976)
    try:
        model, tokenizer = load_parallel(arguments.folder, mesh), load_tokenizer(arguments.folder)
        written = generate(model, encode(tokenizer, arguments.prompt)[None], arguments.new)[0].tolist()
        print(f"rank {dist.get_rank()} of {mesh.size()} holds {bytes_of(model):,} bytes of weights", flush=True)
        dist.barrier()
        if dist.get_rank() == 0:
            print(tokenizer.decode(written))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
