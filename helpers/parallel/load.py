"""Each process reads its own part of a checkpoint."""

from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from helpers.checkpoint import blank_model, read_checkpoint
from helpers.formats.fit import damage, misfits, refuse
from helpers.model import Llama
from helpers.parallel.split import split_model


@torch.no_grad()
def load_parallel(folder: str | Path, mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> Llama:
    """Open a checkpoint folder so that each rank reads and holds its own part only.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: as load_checkpoint does, and if the model cannot be dealt out evenly.
    """
    folder = Path(folder)
    config, weights = read_checkpoint(folder)
    blank = blank_model(config, weights, str(folder))
    refuse(misfits(blank, weights), str(folder))
    model = split_model(blank.to(dtype), mesh).to_empty(device=mesh.device_type)
    if config.tie_embeddings:
        model.lm_head.weight = model.tok_embeddings.weight  # to_empty made two
    for name, weight in model.named_parameters():
        part, mine = weight, ...
        if isinstance(weight, DTensor):
            part, cut = weight.to_local(), weight.placements[0].dim
            start = mesh.get_local_rank() * part.shape[cut]
            mine = (slice(None),) * cut + (slice(start, start + part.shape[cut]),)
        read = weights[name][mine]
        refuse(damage({name: read}), str(folder))
        part.copy_(read)
    return model.eval()
