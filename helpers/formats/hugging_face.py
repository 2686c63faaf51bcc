"""A folder of Hugging Face: config.json, the index, and safetensors, of which only what is asked for is read."""

import contextlib
import os
import re
from pathlib import Path

import torch
from safetensors import safe_open

from helpers.config import LLAMA3_SCALING, LlamaConfig
from helpers.device import is_out_of_memory
from helpers.formats.files import read_json, unreadable

IGNORED = "rotary_emb.inv_freq"  # a table that older files carry; computed here from the config
# What stands beside matrices of a few bits: of MLX; of GPTQ and AWQ; bitsandbytes; compressed-tensors and FP8.
QUANTISED = re.compile(
    r"\.(scales|biases|qweight|qzeros|g_idx|absmax|SCB|weight_packed|weight_scale|weight_scale_inv)$"
)


class StoredWeight:
    """A weight in a file, not read yet: as of a tensor, .shape is its shape, [...] all of it, [:4] its first rows."""

    def __init__(self, path: Path, stored):
        self._path, self._stored = path, stored
        self.shape = tuple(stored.get_shape())

    def __getitem__(self, part) -> torch.Tensor:
        with _naming(self._path):
            return self._stored[part]


def open_weights(folder: Path) -> dict[str, StoredWeight]:
    """Every weight of a folder, by Hugging Face's name.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, the index names one that is not in the folder itself, or the weights' names
            are those of another format.
    """
    weights = {}
    for path in _files(folder):
        if not os.path.isfile(path):  # path.is_file() raises for a name that is too long
            whole = path.name == "model.safetensors"
            why = "this course reads safetensors only; fetch or convert the weights." if whole else "fetch it as well."
            raise FileNotFoundError(f"{path} is missing: {why}")
        with _naming(path):
            file = safe_open(path, framework="pt")
            names = (name for name in sorted(file.keys()) if not name.endswith(IGNORED))
            weights |= {name: StoredWeight(path, file.get_slice(name)) for name in names}
    return _with_prefix(weights, folder)


def _files(folder):
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if not index.is_file():
        return [whole]
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict):
        raise ValueError(f"{index} has no weight_map that says which weight is in which file: fetch it again.")
    names = sorted(set(map(str, listed.values())))
    for name in names:
        if (folder / name).parent != folder or not name.endswith(".safetensors") or len(name) > 255:
            raise ValueError(f"{index} names {name[:80]!r}: only .safetensors files of the same folder are read.")
    files = [folder / name for name in names]
    if not os.path.isfile(whole) or files == [whole]:
        return files
    if files and all(map(os.path.isfile, files)):
        raise ValueError(
            f"{folder} holds two sets of weights, {whole.name} and the files that {index.name} names: transformers "
            f"reads {whole.name}. Delete {index.name} to keep that one, or {whole.name} to keep the others."
        )
    return [whole]  # transformers leaves the index when it saves again into one file


def _with_prefix(weights, folder):
    """Weights as LlamaForCausalLM names them; those of LlamaModel lack "model."."""
    if few := next(filter(QUANTISED.search, weights), None):
        raise ValueError(f"{folder}: the weights are quantised ({few[:80]!r}), and this course reads 16 bits or more. "
                         "Use a version of the model that is not quantised.")  # fmt: skip
    found = {name.partition("layers.0.")[0] for name in weights if re.search(r"(^|\.)layers\.0\.", name)}
    if not found or "model." in found:
        return weights
    if prefix := re.sub(r"(?<=\.)model\.$", "", min(found))[:80]:
        raise ValueError(
            f"{folder}: the names of its weights begin with {prefix!r}, as in a model of torch.compile ('_orig_mod.') "
            "or inside another. Write each file again without it, by safetensors.torch: save_file("
            f"{{name.removeprefix({prefix!r}): weight for name, weight in load_file(file).items()}}, file, "
            "{'format': 'pt'})."
        )
    return {name if name.startswith("lm_head.") else f"model.{name}": weight for name, weight in weights.items()}


@contextlib.contextmanager
def _naming(path):
    try:
        yield
    except Exception as error:  # safetensors' own; or PyTorch's, with its stack, for an impossible shape
        if is_out_of_memory(error):
            raise
        why = str(error).partition("\n")[0]
        raise ValueError(unreadable(path, f"is damaged or cut short ({why})")) from error


def config_to_hugging_face(config: LlamaConfig, dtype: torch.dtype = torch.float32) -> dict:
    """The content of a config.json. Scaling "ntk" is only another base, and is written as such.

    RoPE is said twice, in the words of transformers 5 and in the older ones: what reads only those (transformers 4,
    mlx-lm) would take 10,000 and no scaling, without a word.
    """
    theta, scaling = config.rope_theta, dict(config.rope_scaling or {"type": "default"})
    if scaling["type"] == "ntk":
        theta, scaling = theta * scaling["factor"] ** (config.head_dim / (config.head_dim - 2)), {"type": "default"}
    elif scaling["type"] == "llama3":
        scaling = LLAMA3_SCALING | scaling
    rope = {"rope_type": scaling.pop("type"), **scaling}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": config.vocab_size, "hidden_size": config.dim, "intermediate_size": config.hidden_dim,
        "num_hidden_layers": config.n_layers, "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads, "head_dim": config.head_dim, "hidden_act": "silu",
        "max_position_embeddings": config.max_seq_len, "rms_norm_eps": float(config.norm_eps),
        "rope_parameters": rope | {"rope_theta": theta},
        "rope_theta": theta, "rope_scaling": None if rope == {"rope_type": "default"} else rope,
        "tie_word_embeddings": config.tie_embeddings,
        **dict.fromkeys(("attention_bias", "mlp_bias"), False),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        "dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip


def config_from_hugging_face(content: dict, source: str = "config.json") -> LlamaConfig:
    """The LlamaConfig of a LLaMA's config.json, with the RoPE settings in the old place or the new.

    Raises:
        ValueError: if the file is not complete, or describes another model, or a LLaMA with a part that this one does
            not have.
    """
    if content.get("model_type") != "llama":
        raise ValueError(
            f"{source} describes a {content.get('model_type')!r} model, not 'llama': use helpers.families."
            "load_checkpoint, which opens LLaMA's relatives, or a LLaMA, such as SmolLM2-135M."
        )
    if content.get("quantization_config") is not None:
        raise ValueError(
            f"{source} sets quantization_config={content['quantization_config']!r}: the weights are stored in a few "
            "bits each, as gpt-oss' are in MXFP4, and this course reads 16 bits or more. Use a version of the model "
            "that is not quantised."
        )
    unknown = {"attention_bias": (False, None), "mlp_bias": (False, None), "hidden_act": ("silu", None)}
    unknown |= {"pretraining_tp": (1, None), "partial_rotary_factor": (1.0, None)}
    for name, known in unknown.items():
        if content.get(name) not in known:
            raise ValueError(
                f"{source} sets {name}={content[name]!r}, which this model does not have (only {known[0]}): "
                "use another checkpoint."
            )
    theta, rope = _rope_from_hugging_face(content, source)
    try:
        n_heads = content["num_attention_heads"]
        return LlamaConfig(
            vocab_size=content["vocab_size"], dim=content["hidden_size"], n_layers=content["num_hidden_layers"],
            n_heads=n_heads, n_kv_heads=content.get("num_key_value_heads") or n_heads,
            hidden_dim=content["intermediate_size"], head_dim=content.get("head_dim"),
            max_seq_len=content.get("max_position_embeddings", 2048), norm_eps=content.get("rms_norm_eps", 1e-6),
            rope_theta=theta, rope_scaling=rope, tie_embeddings=content.get("tie_word_embeddings") or False,
        )  # fmt: skip
    except KeyError as error:
        raise ValueError(f"{source} has no {error}: it is not a complete LLaMA config. Fetch it again.") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{source}: {error}") from error


def _rope_from_hugging_face(content, source):
    """rope_theta and our rope_scaling, from the old place (rope_theta, rope_scaling) or the new (rope_parameters)."""
    rope = {}
    for place in ("rope_scaling", "rope_parameters"):
        if not isinstance(content.get(place), dict | None):
            raise ValueError(f"{source} sets {place}={content[place]!r}: an object or null is needed. Fetch it again.")
        rope |= content.get(place) or {}
    theta = rope.pop("rope_theta", content.get("rope_theta", 10_000.0))
    old_name = rope.pop("type", "default")
    rope = {"type": rope.pop("rope_type", old_name)} | rope
    if rope["type"] not in ("default", "linear", "llama3"):
        raise ValueError(
            f"{source} sets RoPE type {rope['type']!r}: this course reads 'default', 'linear', 'llama3'. Use another."
        )
    return theta, None if rope["type"] == "default" else rope
