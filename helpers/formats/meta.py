"""The config that params.json of Meta gives, and its weights, which several files may share out."""

from pathlib import Path

import torch

from helpers.config import LLAMA3_SCALING, LlamaConfig
from helpers.device import is_out_of_memory
from helpers.formats.fit import DAMAGE
from helpers.formats.names import interleaved_to_halves
from helpers.model import swiglu_hidden_dim

SPLIT_BY_COLUMNS = ("wo.weight", "w2.weight")  # Meta's row-parallel layers: each shard holds some input columns
IGNORED = "rope.freqs"  # a table that older files carry; computed here from the config
KNOWN = {  # settings of params.json; others may change the function, as Mistral's sliding_window and moe do
    "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "multiple_of", "ffn_dim_multiplier",
    "vocab_size", "norm_eps", "rope_theta", "use_scaled_rope", "rope_scaling_factor", "rope_high_freq_factor",
    "max_seq_len", "max_batch_size",
}  # fmt: skip


def llama_from_meta(params: dict, shards: list[dict], folder: Path) -> tuple[LlamaConfig, dict[str, torch.Tensor]]:
    """Config and weights, still under Meta's names, but whole, and with the rows in our layout of pairs.

    Params are the content of params.json, each of the shards that of one .pth, in order.

    Raises:
        ValueError: if a setting is not known, or the files do not fit together.
    """
    for name in sorted(params.keys() - KNOWN):
        if params[name] not in (None, False):
            raise ValueError(f"{folder / 'params.json'} sets {name[:80]}={str(params[name])[:80]}, which this course "
                             "does not know. If it does not change what the model computes, remove it; else use "
                             "another model.")  # fmt: skip
    try:
        names = [name for name in shards[0] if not name.endswith(IGNORED)]
        weights = {name: _join([shard[name] for shard in shards], name, params["dim"]) for name in names}
        embedding = weights["tok_embeddings.weight"]
        tied = "output.weight" not in weights or torch.equal(weights["output.weight"], embedding)
        config = _config_from_meta(params, len(embedding), tied)
        rows, all_rows = len(weights["layers.0.attention.wq.weight"]), config.n_heads * config.head_dim
        if rows < all_rows:
            raise ValueError(f"{len(shards)} .pth hold {rows} of {all_rows} rows of wq: some consolidated.*.pth are "
                             "missing")  # fmt: skip
        for name in weights:
            if name.endswith(("attention.wq.weight", "attention.wk.weight")):
                weights[name] = interleaved_to_halves(weights[name], config.head_dim)
    except DAMAGE as error:
        if is_out_of_memory(error):
            raise
        why = f"{str(error)[:300]} is missing" if isinstance(error, KeyError) else str(error)[:300]
        raise ValueError(f"{folder}: params.json and the shards make no LLaMA ({why}): fetch all again.") from error
    return config, weights


def _join(parts, name, dim):
    """Put the shards of one weight together, as Meta's parallel layers cut it."""
    if len(parts) == 1 or parts[0].ndim == 1:
        return parts[0]
    cut_width = name == "tok_embeddings.weight" and parts[0].shape[1] != dim  # by Llama 2; Llama 3 cuts the vocabulary
    return torch.cat(parts, dim=1 if cut_width or name.endswith(SPLIT_BY_COLUMNS) else 0)


def _config_from_meta(params, vocab_size, tied):
    scaled, theta = params.get("use_scaled_rope", False), params.get("rope_theta", 10_000.0)
    default_length = 131_072 if scaled else 8192 if theta > 10_000 else 4096  # of Llama 3.1, 3, 2: it may not be given
    # Nor may it give the factor: only Llama 3.2 1B and 3B tie embeddings, and take 32 (meta-llama/llama-models#166).
    factor = float(params.get("rope_scaling_factor") or (32 if tied else 8))
    scaling = {"type": "llama3", "factor": factor, **LLAMA3_SCALING}
    scaling["high_freq_factor"] = float(params.get("rope_high_freq_factor") or scaling["high_freq_factor"])
    hidden_dim = params.get("hidden_dim") or swiglu_hidden_dim(params["dim"], params.get("multiple_of", 256),
                                                               params.get("ffn_dim_multiplier"))  # fmt: skip
    return LlamaConfig(
        vocab_size=vocab_size, dim=params["dim"], n_layers=params["n_layers"], n_heads=params["n_heads"],
        n_kv_heads=params.get("n_kv_heads") or params["n_heads"], hidden_dim=hidden_dim,
        head_dim=params.get("head_dim"), max_seq_len=params.get("max_seq_len", default_length),
        norm_eps=params.get("norm_eps", 1e-5),
        rope_theta=theta, rope_scaling=scaling if scaled else None, tie_embeddings=tied,
    )  # fmt: skip
