"""Each process reads its own part of a checkpoint."""

from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from beyond.parallel.split import split_model
from helpers.checkpoint import blank_model, read_checkpoint
from helpers.formats.fit import misfits, raise_if, unusable
from helpers.model import Llama


def load_parallel(folder: str | Path, mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> Llama:
    """Open a checkpoint folder so that each rank reads and holds its own part only.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: as load_checkpoint does, and if the model cannot be dealt out evenly.
    """
    folder = Path(folder)
    config, weights = read_checkpoint(folder)
    blank = blank_model(config, weights, str(folder))
    raise_if(misfits(blank, weights), str(folder))
    model = split_model(blank.to(dtype), mesh)
    read_part(model, weights, mesh.get_local_rank(), mesh.device_type, str(folder))
    return model.eval()


@torch.no_grad()
def read_part(model: Llama, weights, rank: int, device: str = "cpu", place: str = "the file"):
    """Fill a model that is split and has shapes alone: of each weight a rank reads its rows or columns, and no more."""
    model.to_empty(device=device)
    if model.config.tie_embeddings:
        model.lm_head.weight = model.tok_embeddings.weight  # to_empty has made two matrices of it
    for name, weight in model.named_parameters():
        part = weight.to_local() if isinstance(weight, DTensor) else weight
        sizes = zip(part.shape, weights[name].shape, strict=True)
        starts = [rank * size if size < whole else 0 for size, whole in sizes]  # a dimension that is not cut: from 0 on
        mine = tuple(slice(start, start + size) for start, size in zip(starts, part.shape, strict=True))
        read = weights[name][mine]
        raise_if(unusable({name: read}), place)
        part.copy_(read)
