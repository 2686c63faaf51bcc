"""Checkpoints: folders of Hugging Face (safetensors) and Meta (.pth) in, Hugging Face out. Nothing is unpickled."""

import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HTTPError
from safetensors.torch import save_file
from tokenizers import Tokenizer

from helpers.config import LlamaConfig
from helpers.device import explain_out_of_memory
from helpers.formats.files import read_json, what_instead
from helpers.formats.fit import DAMAGE, READ_DTYPES, damage, misfits, refuse, require_tie, tied_once
from helpers.formats.hugging_face import StoredWeight, config_from_hugging_face, config_to_hugging_face, open_weights
from helpers.formats.names import interleaved_to_halves, name_map, under_our_names  # noqa: F401  imported from here
from helpers.model import Llama, rope_inv_freq
from helpers.validate import require_plain

END_OF_TEXT = "<|end_of_text|>"  # as helpers.corpus trains it; other tools batch and score by it
SMALLER = "pass dtype=torch.bfloat16, or open a smaller model."


def load_checkpoint(
    folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Llama:
    """Open a LLaMA checkpoint folder: config.json + safetensors (Hugging Face) or params.json + .pth (Meta).

    Every weight must be present, of the right shape and finite; every problem is reported before a model is made.
    Links are followed, because the Hub's cache consists of them; what they point to is only read, as JSON or weights.
    `helpers.families.load_checkpoint` opens LLaMA's relatives as well.

    Args:
        folder: a local folder.
        dtype: of the model's weights, whatever the file holds.
        device: where the model goes.

    Returns:
        the model, in evaluation mode.

    Raises:
        FileNotFoundError: if the folder or one of its files is missing.
        ValueError: if a file is damaged, of another architecture, or its weights do not fit.
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
    if (folder / "config.json").is_file():
        config = config_from_hugging_face(read_json(folder / "config.json"), str(folder / "config.json"))
        stored = open_weights(folder)
        try:
            return config, tied_once(under_our_names(stored, config.n_layers), config)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}.") from error
    if (folder / "params.json").is_file():
        from helpers.formats.meta import read_meta  # imported lazily: rarely needed

        return read_meta(folder)
    found = sorted(path.name for path in folder.iterdir())[:5] or "nothing"
    so = what_instead(folder) if (folder / "adapter_config.json").is_file() else "pass the folder that holds one."
    raise FileNotFoundError(f"{folder} holds neither config.json nor params.json (Meta's), but {found}: {so}")


def model_from_weights(
    config: LlamaConfig,
    weights: dict[str, torch.Tensor | StoredWeight],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    source: str = "these weights",
    make: Callable[[LlamaConfig], Llama] = Llama,
) -> Llama:
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
        refuse(problems | damage(own), source)
        # copied even if nothing changes: a file may be mapped memory, and a caller keeps its own tensors
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
    if config.n_layers > 100 + len(weights) or rows * config.dim > most:  # before such a loop or table is made
        raise ValueError(f"{source}: {config} needs far more than the {len(weights)} weights found: "
                         "the config belongs to another model, or is damaged: fetch it again.")  # fmt: skip
    embedding, head = weights.get("tok_embeddings.weight"), weights.get("lm_head.weight")
    both = config.tie_embeddings and embedding is not None and head is not None and head.shape == embedding.shape
    if both and not torch.equal(head[...], embedding[...]) and embedding[...].isfinite().all():  # NaN is found later
        raise ValueError(f"{source}: the config ties embeddings, lm_head differs from tok_embeddings: untie them, by "
                         "tie_word_embeddings false in config.json.")  # fmt: skip
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
    wanted = {"allow_patterns": ["model*.safetensors", "*.json"], "ignore_patterns": ["*/*"]}  # no copy of another kind
    try:
        return Path(snapshot_download(name, **wanted, etag_timeout=5))
    except (OSError, HTTPError) as problem:  # no network, or the Hub or a proxy refuses
        raise ConnectionError(f"{name} could not be fetched ({type(problem).__name__}): check name, network and, for a "
                              "model behind a licence, that you are logged in.") from None  # fmt: skip


def save_checkpoint(model: Llama, folder: str | Path, tokenizer: Tokenizer | None = None, card: str | None = None):
    """Write a folder that transformers' AutoModelForCausalLM and AutoTokenizer, of 4 and of 5, open unchanged.

    The folder is written beside its place and renamed: it appears whole or not at all. One that exists is kept.
    Only this course opens a model whose dim is no multiple of n_heads: transformers refuses it.

    Args:
        model: its weights are stored in their own dtype.
        folder: must not exist yet.
        tokenizer: stored as tokenizer.json, if given.
        card: text of README.md, if given.

    Raises:
        FileExistsError: if the folder exists.
        ValueError: if the model is not what its config says, so that the folder would open as another one.
    """
    folder = Path(folder)
    while not isinstance(model, Llama) and (inner := getattr(model, "_orig_mod", getattr(model, "module", None))):
        model = inner  # of torch.compile; of DistributedDataParallel and AveragedModel
    if not isinstance(model, Llama):
        raise ValueError(f"save_checkpoint takes a Llama, not a {type(model).__name__}: pass the Llama inside, of peft "
                         "what merge_and_unload() returns.")  # fmt: skip
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} exists and is kept: choose another name, or move it away first.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    new = beside / "new"  # inside, because what mkdtemp makes only the owner can read
    try:
        new.mkdir()
        weights, config = weights_to_hugging_face(model), model.config
        inv_freq = rope_inv_freq(config.head_dim, config.rope_theta, config.rope_scaling)
        if not torch.equal(model.inv_freq.cpu(), inv_freq):
            raise ValueError("save_checkpoint: model.inv_freq is not that of model.config, which alone is saved: make "
                             "a Llama of the config that you want, and load_state_dict.")  # fmt: skip
        save_file(weights, new / "model.safetensors", metadata={"format": "pt"})
        files = {"config.json": config_to_hugging_face(config, next(model.parameters()).dtype)}
        if tokenizer is not None:
            tokenizer.save(str(new / "tokenizer.json"))
            end = {"eos_token": END_OF_TEXT} if tokenizer.token_to_id(END_OF_TEXT) is not None else {}
            split = {"split_special_tokens": True} if tokenizer.encode_special_tokens else {}
            files["tokenizer_config.json"] = {"tokenizer_class": "PreTrainedTokenizerFast", **end, **split}
        for name, content in files.items():
            (new / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if card is not None:
            (new / "README.md").write_text(card, encoding="utf-8")
        (new / "model.safetensors").chmod((new / "config.json").stat().st_mode)  # save_file, too
        new.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def weights_to_hugging_face(model: Llama) -> dict[str, torch.Tensor]:
    """The model's weights under Hugging Face's names; a tied matrix is stored once, as there."""
    require_plain(model, "save_checkpoint", "keep it with torch.save(model.state_dict(), …) and its config.json")
    own = {name.replace("_orig_mod.", ""): weight for name, weight in model.state_dict().items()}  # torch.compile's
    with torch.device("meta"):
        blank = Llama(model.config)
    refuse(misfits(blank, own), "save_checkpoint", "Nothing was saved: pass the model that was prepared for decoding, "
           "merge what was added (peft: merge_and_unload()), or correct model.config.")  # fmt: skip
    require_tie(model, "save_checkpoint")
    names = name_map(model.config.n_layers)
    if model.config.tie_embeddings:
        del names["lm_head.weight"]
    weights, places = {}, set()
    for ours, theirs in names.items():
        weight = own[ours].detach().cpu().contiguous()
        weights[theirs] = weight.clone() if weight.data_ptr() in places else weight  # a file holds each by itself
        places.add(weight.data_ptr())
    return weights
