"""A folder of Meta: params.json and .pth, in one file or several. Nothing is unpickled."""

import zipfile
from pathlib import Path

import torch

from helpers.config import LLAMA3_SCALING, LlamaConfig
from helpers.device import is_out_of_memory
from helpers.formats.files import read_json, unreadable
from helpers.formats.fit import DAMAGE
from helpers.formats.names import interleaved_to_halves, to_native_names
from helpers.model import swiglu_hidden_dim

SPLIT_BY_COLUMNS = ("wo.weight", "w2.weight")  # Meta's row-parallel layers: each shard holds some input columns
IGNORED = "rope.freqs"  # a table that older files carry; computed here from the config
KNOWN = {  # in params.json; what is not known may change the function, as Mistral's sliding_window and moe do
    "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "multiple_of", "ffn_dim_multiplier",
    "vocab_size", "norm_eps", "rope_theta", "use_scaled_rope", "rope_scaling_factor", "rope_high_freq_factor",
    "max_seq_len", "max_batch_size",
}  # fmt: skip


def read_meta(folder: Path) -> tuple[LlamaConfig, dict[str, torch.Tensor]]:
    """Config and weights, the weights under our names and for our layout of pairs.

    Raises:
        FileNotFoundError: if the weights are missing.
        ValueError: if a file is damaged, or the files do not fit together.
    """
    params = read_json(folder / "params.json")
    for name in sorted(params.keys() - KNOWN):
        if params[name] not in (None, False):
            raise ValueError(f"{folder / 'params.json'} sets {name[:80]}={str(params[name])[:80]}, which this course "
                             "does not know. If it does not change what the model computes, remove it; else use "
                             "another model.")  # fmt: skip
    files = [path for path in folder.glob("consolidated.*.pth") if path.is_file()]
    files.sort(key=lambda path: (len(path.name), path.name))  # by number, written with zeros in front or without
    if not files and (folder / "consolidated.safetensors").is_file():
        raise ValueError(f"{folder} is in Mistral's own format, params.json and consolidated.safetensors: fetch "
                         "the same model in Hugging Face's, config.json and model*.safetensors.")  # fmt: skip
    if not files:
        raise FileNotFoundError(f"{folder} has params.json, but no consolidated.*.pth: fetch the weights as well.")
    shards = []
    for path in files:
        try:
            shards.append(_open_pth(path))
        except Exception as error:  # torch raises several kinds here; none of them may run code
            if is_out_of_memory(error):
                raise
            why = error if type(error) is ValueError else type(error).__name__  # torch's own text advises to unpickle
            text = f"is damaged or holds something other than tensors, and was not opened ({why})"
            raise ValueError(unreadable(path, text)) from error
    try:
        theirs = {name: _join([shard[name] for shard in shards], name, params["dim"]) for name in shards[0]}
        stored = {name: weight for name, weight in theirs.items() if not name.endswith(IGNORED)}
        weights = to_native_names(stored, params["n_layers"], "meta")
        tied = "output.weight" not in theirs or torch.equal(theirs["output.weight"], theirs["tok_embeddings.weight"])
        config = _config_from_meta(params, theirs["tok_embeddings.weight"].shape[0], tied)
        rows, all_rows = weights["layers.0.attention.q_proj.weight"].shape[0], config.n_heads * config.head_dim
        if rows < all_rows:
            raise ValueError(f"{len(files)} .pth hold {rows} of {all_rows} rows of wq: some consolidated.*.pth are "
                             "missing")  # fmt: skip
        for name in weights:
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weights[name] = interleaved_to_halves(weights[name], config.head_dim)
    except DAMAGE as error:
        if is_out_of_memory(error):
            raise
        why = f"{str(error)[:300]}{' is missing' if isinstance(error, KeyError) else ''}"
        raise ValueError(f"{folder}: params.json and the shards make no LLaMA ({why}): fetch all again.") from error
    return config, weights


def _open_pth(path):
    """The tensors that torch.save wrote, if they are ordinary and no larger than the file."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as parts:
        unpacked = sum(part.file_size for part in parts.infolist())
    if unpacked > size:  # torch.save does not compress: such a file was made to fill the memory of whoever opens it
        raise ValueError(f"{path} has {size:,} bytes, but unpacks to {unpacked:,}")
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(f"{str(name)[:80]} is no ordinary tensor")
    claimed = sum(tensor.nbytes for tensor in tensors.values())  # strides of 0 show one number as a matrix
    if claimed > 2 * size:  # tied embeddings show one matrix twice
        raise ValueError(f"its tensors claim {claimed:,} bytes, but the file has {size:,}")
    return tensors


def _join(parts, name, dim):
    """Put the shards of one weight together, as Meta's parallel layers cut it."""
    if len(parts) == 1 or parts[0].ndim == 1:
        return parts[0]
    by_columns = name.endswith(SPLIT_BY_COLUMNS)
    if name == "tok_embeddings.weight":  # Llama 2 cuts the width, Llama 3 the vocabulary
        by_columns = parts[0].shape[1] != dim
    return torch.cat(parts, dim=1 if by_columns else 0)


def _config_from_meta(params, vocab_size, tied):
    scaled = params.get("use_scaled_rope", False)
    theta = params.get("rope_theta", 10_000.0)
    default_length = 131_072 if scaled else 8192 if theta > 10_000 else 4096  # params.json does not say
    # Nor the factor: only Llama 3.2 1B and 3B tie their embeddings, and take 32 (meta-llama/llama-models#166).
    factor = float(params.get("rope_scaling_factor") or (32 if tied else 8))
    scaling = {"type": "llama3", "factor": factor, **LLAMA3_SCALING}
    scaling["high_freq_factor"] = float(params.get("rope_high_freq_factor") or scaling["high_freq_factor"])
    hidden_dim = params.get("hidden_dim") or swiglu_hidden_dim(
        params["dim"], params.get("multiple_of", 256), params.get("ffn_dim_multiplier")
    )
    return LlamaConfig(
        vocab_size=vocab_size, dim=params["dim"], n_layers=params["n_layers"], n_heads=params["n_heads"],
        n_kv_heads=params.get("n_kv_heads") or params["n_heads"], hidden_dim=hidden_dim,
        head_dim=params.get("head_dim"), max_seq_len=params.get("max_seq_len", default_length),
        norm_eps=params.get("norm_eps", 1e-5),
        rope_theta=theta, rope_scaling=scaling if scaled else None, tie_embeddings=tied,
    )  # fmt: skip
