"""Checkpoints: folders of Hugging Face (safetensors) and Meta (.pth) in; out is save.py's. Nothing is unpickled."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import torch

from helpers.config import LlamaConfig
from helpers.device import explain_out_of_memory
from helpers.formats.files import StoredWeight, open_shards, open_weights, read_json, what_instead
from helpers.formats.fit import DAMAGE, READ_DTYPES, misfits, raise_if, unusable
from helpers.formats.hugging_face import config_from_hugging_face
from helpers.formats.names import interleaved_to_halves, name_map, tied_once, to_native_names  # noqa: F401  passed on
from helpers.model import Llama

SMALLER = "pass dtype=torch.bfloat16, or open a smaller model."
SAVE = "config_to_hugging_face", "save_checkpoint", "weights_to_hugging_face"  # imported from here, too


def __getattr__(name):
    """The functions that save are loaded when they are asked for, because most callers only read."""
    if name not in SAVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from helpers import save

    return getattr(save, name)


def load_checkpoint(
    folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Llama:
    """Open a LLaMA checkpoint folder: config.json + safetensors (Hugging Face) or params.json + .pth (Meta).

    Every weight must be present, of the right shape and finite; every problem is reported before a model is made.
    Links are followed, because the Hub's cache consists of them; what they point to is only read, as JSON or weights.
    `beyond.families.load_checkpoint` opens LLaMA's relatives as well.

    Args:
        folder: a local folder.
        dtype: of the model's weights, whatever the file holds.
        device: where the model goes.

    Returns:
        the model, in evaluation mode.

    Raises:
        FileNotFoundError: if the folder or one of its files is missing. torch.OutOfMemoryError: if it does not fit.
        ValueError: if dtype is no float type, a file is damaged or of another architecture, or its weights do not fit.
    """
    with explain_out_of_memory(f"{folder} as {dtype} does not fit on {device}: {SMALLER}"):
        config, weights = read_checkpoint(Path(folder))
        return model_from_weights(config, weights, dtype=dtype, device=device, source=str(folder))


def read_checkpoint(folder: Path) -> tuple[LlamaConfig, dict[str, torch.Tensor | StoredWeight]]:
    """Config and weights of a folder, under our names; a weight is read when it is indexed, all of it by [...].

    Raises:
        FileNotFoundError, ValueError: as load_checkpoint does, without a look at the weights.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: pass one that holds config.json or params.json.")
    config_file, params_file = folder / "config.json", folder / "params.json"
    if not config_file.is_file() and not params_file.is_file():
        found = sorted(path.name for path in folder.iterdir())[:5] or "nothing"
        so = what_instead(folder) if (folder / "adapter_config.json").is_file() else "pass the folder that holds one."
        raise FileNotFoundError(f"{folder} holds neither config.json nor params.json (Meta's), but {found}: {so}")
    if config_file.is_file():
        style = "hf"
        config = config_from_hugging_face(read_json(config_file), str(config_file))
        stored = open_weights(folder)
    else:
        from helpers.formats.meta import llama_from_meta  # imported here, because it is rarely needed

        style = "meta"
        config, stored = llama_from_meta(read_json(params_file), open_shards(folder), folder)
    try:
        return config, tied_once(to_native_names(stored, config.n_layers, style), config)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}.") from error


def model_from_weights(
    config: LlamaConfig, weights: dict[str, torch.Tensor | StoredWeight], dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu", source: str = "these weights", make: Callable[[LlamaConfig], Llama] = Llama,
) -> Llama:  # fmt: skip
    """A model that make(config) gives, with these weights, which carry our names.

    Raises:
        ValueError: listing every weight that is missing, left over, of another shape or not finite.
    """
    if dtype not in READ_DTYPES:
        raise ValueError(f"dtype={dtype!r} is none of {READ_DTYPES}: pass one of them, such as torch.bfloat16.")
    size = f"{sum(math.prod(weight.shape) for weight in weights.values()):,} weights as {dtype}"
    with explain_out_of_memory(f"{source}: {size} do not fit on {device}: {SMALLER}"):
        model = blank_model(config, weights, source, make)
        problems = misfits(model, weights)
        own = {name: weights[name][...] for name, _ in model.named_parameters() if name not in problems}
        raise_if(problems | unusable(own), source)
        # Copied even if nothing changes, because a file may be mapped memory, and a caller keeps its own tensors.
        state = {name: weight.to(device=device, dtype=dtype, copy=True) for name, weight in own.items()}
    if config.tie_embeddings:
        state["lm_head.weight"] = state["tok_embeddings.weight"]
    model.load_state_dict(state, assign=True)
    if config.tie_embeddings:
        model.lm_head.weight = model.tok_embeddings.weight
    return model.eval()


def blank_model(config: LlamaConfig, weights: dict[str, torch.Tensor | StoredWeight], source: str, make=Llama) -> Llama:
    """A model of this config without numbers (on the device "meta"), for weights under our names.

    Raises:
        ValueError: if the config asks for far more than the weights found, does not work, or ties what differs.
    """
    most = 100 * max((math.prod(weight.shape) for weight in weights.values()), default=1)
    rows = max(config.vocab_size, config.hidden_dim, config.n_heads * config.head_dim)
    n_experts = getattr(config, "settings", {}).get("num_experts") or 0  # a relative's; each has several weights
    n_parts = config.n_layers * max(1, n_experts / 10)
    if n_parts > 100 + len(weights) or rows * config.dim > most:  # such a loop or table would take hours or all memory
        raise ValueError(f"{source}: {config} needs far more than the {len(weights)} weights found: "
                         "the config belongs to another model, or is damaged: fetch it again.")  # fmt: skip
    embedding, head = weights.get("tok_embeddings.weight"), weights.get("lm_head.weight")
    both_stored = embedding is not None and head is not None and head.shape == embedding.shape
    differ = config.tie_embeddings and both_stored and not torch.equal(head[...], embedding[...])
    if differ and embedding[...].isfinite().all():  # NaN, which equals nothing, is reported later
        raise ValueError(f"{source}: the config ties embeddings, but lm_head differs from tok_embeddings: untie them, "
                         "by tie_word_embeddings false in config.json.")  # fmt: skip
    try:
        with torch.device("meta"):
            return make(config)
    except DAMAGE as error:
        raise ValueError(f"{source}: {error}") from error


def fetch_checkpoint(name: str) -> Path:
    """Folder of a checkpoint on the Hugging Face Hub, downloaded once and kept in the Hub's cache on disk.

    Weights as safetensors, each once, configs and tokenizers are fetched: nothing that could run code.

    Args:
        name: "owner/model", for example "HuggingFaceTB/SmolLM2-135M" (about 270 MB).

    Raises:
        ValueError: if the name is not of the form owner/model.
        ConnectionError: if it is neither in the cache nor available now; the text says what to do.
    """
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise ValueError(f"{name!r} is not a name on the Hub: write owner/model, as in HuggingFaceTB/SmolLM2-135M.")
    from huggingface_hub import snapshot_download  # takes a third of a second
    from huggingface_hub.errors import HTTPError

    wanted = {"allow_patterns": ["model*.safetensors", "*.json"], "ignore_patterns": ["*/*"]}  # no copy of another kind
    try:
        return Path(snapshot_download(name, **wanted, etag_timeout=5))
    except (OSError, HTTPError) as problem:  # no network, or the Hub or a proxy refuses
        raise ConnectionError(f"{name} could not be fetched ({type(problem).__name__}): check name, network and, for a "
                              "model behind a licence, that you are logged in.") from None  # fmt: skip
