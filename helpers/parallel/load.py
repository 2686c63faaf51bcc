"""Each process reads its own part of a checkpoint."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from helpers.checkpoint import config_from_hugging_face, name_map
from helpers.model import Llama
from helpers.parallel.split import split_model


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
