"""The door for folders of all families: `load_checkpoint` here opens what the one for LLaMA refuses by name."""

from pathlib import Path

import torch

from beyond.families.configs import FamilyConfig, config_from_hugging_face, make_relative, our_weights
from beyond.families.registry import FAMILIES
from helpers import checkpoint
from helpers.device import explain_out_of_memory, is_out_of_memory
from helpers.formats.files import open_weights, read_json
from helpers.formats.fit import DAMAGE
from helpers.formats.names import tied_once
from helpers.model import Llama


def load_checkpoint(
    folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Llama:
    """Open a folder of a family of FAMILIES, or of LLaMA: arguments and errors as in helpers.checkpoint."""
    folder, file = Path(folder), Path(folder, "config.json")
    config = config_from_hugging_face(read_json(file), str(file)) if file.is_file() else None
    if not isinstance(config, FamilyConfig):
        return checkpoint.load_checkpoint(folder, dtype, device)
    with explain_out_of_memory(f"{folder} as {dtype} does not fit on {device}: {checkpoint.SMALLER}"):
        stored = open_weights(folder, FAMILIES[config.family].weight_names)
        try:
            weights = tied_once(our_weights(stored, config), config)
        except DAMAGE as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(f"{folder}: config.json and weights do not fit: {str(error)[:250]}; fetch both") from error
        return model_from_weights(config, weights, str(folder), dtype=dtype, device=device)


def model_from_weights(config: FamilyConfig, weights: dict, source: str = "these weights", **to) -> Llama:
    """As helpers.checkpoint's, for the config of a family."""
    return checkpoint.model_from_weights(config, weights, source=source, make=make_relative, **to)
