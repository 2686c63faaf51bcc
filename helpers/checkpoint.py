"""Checkpoints: folders of Hugging Face (safetensors) and Meta (.pth) in, Hugging Face out. Nothing is unpickled."""

import json
import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HTTPError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from helpers.config import LLAMA3_SCALING, LlamaConfig
from helpers.device import explain_out_of_memory
from helpers.families import FAMILIES, UNKNOWN, angles, make_relative, our_weights, require_plain, settings_of
from helpers.model import Llama, swiglu_hidden_dim

# our name -> Hugging Face's, Meta's; {} is the number of the layer
OUTER_NAMES = {
    "tok_embeddings.weight": ("model.embed_tokens.weight", "tok_embeddings.weight"),
    "final_norm.weight": ("model.norm.weight", "norm.weight"),
    "lm_head.weight": ("lm_head.weight", "output.weight"),
}
LAYER_NAMES = {
    "layers.{}." + ours: ("model.layers.{}." + hugging_face, "layers.{}." + meta)
    for ours, hugging_face, meta in (
        ("attention_norm.weight", "input_layernorm.weight", "attention_norm.weight"),
        ("attention.q_proj.weight", "self_attn.q_proj.weight", "attention.wq.weight"),
        ("attention.k_proj.weight", "self_attn.k_proj.weight", "attention.wk.weight"),
        ("attention.v_proj.weight", "self_attn.v_proj.weight", "attention.wv.weight"),
        ("attention.o_proj.weight", "self_attn.o_proj.weight", "attention.wo.weight"),
        ("ffn_norm.weight", "post_attention_layernorm.weight", "ffn_norm.weight"),
        ("feed_forward.gate_proj.weight", "mlp.gate_proj.weight", "feed_forward.w1.weight"),
        ("feed_forward.up_proj.weight", "mlp.up_proj.weight", "feed_forward.w3.weight"),
        ("feed_forward.down_proj.weight", "mlp.down_proj.weight", "feed_forward.w2.weight"),
    )
}
META_SPLIT_BY_COLUMNS = ("wo.weight", "w2.weight")  # Meta's row-parallel layers: each shard holds some input columns
PARTS = {"attention_bias", "hidden_act", "partial_rotary_factor"}  # not in plain LLaMA; read by a relative's edits
READ_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LARGEST_JSON = 10_000_000  # bytes; the index of 405 billion weights has about 100,000
BAD_CONFIG = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RuntimeError)
IGNORED = ("rotary_emb.inv_freq", "rope.freqs")  # tables that older files carry; computed here from the config


def name_map(n_layers: int, style: str = "hf") -> dict[str, str]:
    """Our weight names, each with Hugging Face's ("hf") or Meta's ("meta") name for it."""
    column = {"hf": 0, "meta": 1}[style]
    names = {ours: theirs[column] for ours, theirs in OUTER_NAMES.items()}
    for layer in range(n_layers):
        names |= {ours.format(layer): theirs[column].format(layer) for ours, theirs in LAYER_NAMES.items()}
    return names


def load_checkpoint(
    folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Llama:
    """Open a LLaMA checkpoint folder: config.json + safetensors (Hugging Face) or params.json + .pth (Meta).

    A folder of Hugging Face may hold a relative of LLaMA as well (`helpers.families.FAMILIES`).

    Every weight must be present, of the right shape and finite; every problem is reported before a model is made.
    Links are followed, because the Hub's cache consists of them; what they point to is only read, as JSON or weights.

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
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: pass one that holds config.json or params.json.")
    content = None
    if (folder / "config.json").is_file():
        config, weights, content = _read_hugging_face(folder)
    elif (folder / "params.json").is_file():
        config, weights = _read_meta(folder)
    else:
        found = sorted(path.name for path in folder.iterdir())[:5] or "nothing"
        raise FileNotFoundError(
            f"{folder} holds neither config.json (Hugging Face) nor params.json (Meta), but {found}: "
            "pass the folder that holds one of them."
        )
    return model_from_weights(config, weights, dtype=dtype, device=device, source=str(folder), relative=content)


def model_from_weights(
    config: LlamaConfig,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    source: str = "these weights",
    relative: dict | None = None,
) -> Llama:
    """A model of this config that holds these weights, which carry our names; `relative` is as in `make_relative`.

    Raises:
        ValueError: listing every weight that is missing, left over, of another shape or not finite.
    """
    if dtype not in READ_DTYPES:
        raise ValueError(f"dtype={dtype!r} is none of {READ_DTYPES}: pass one of them, such as torch.bfloat16.")
    _require_plausible(config, weights, source, relative or {})
    try:
        with torch.device("meta"):
            model = make_relative(config, relative) if relative else Llama(config)
    except BAD_CONFIG as error:
        raise ValueError(f"{source}: {error}") from error
    wanted = dict(model.named_parameters(remove_duplicate=False))
    if config.tie_embeddings and (embedding := weights.get("tok_embeddings.weight")) is not None:
        same = torch.equal(weights.get("lm_head.weight", embedding), embedding)
        if not same and embedding.isfinite().all():  # NaN equals nothing; it is reported below
            raise ValueError(f"{source}: the config ties embeddings, lm_head differs from tok_embeddings: untie them.")
        weights = weights | {"lm_head.weight": embedding}
    problems = [f"missing: {name}" for name in wanted if name not in weights]
    problems += [f"left over: {name}" for name in weights if name not in wanted]
    for name in wanted.keys() & weights.keys():
        have, want = tuple(weights[name].shape), tuple(wanted[name].shape)
        if have != want:
            problems.append(f"shape: {name} is {have}, the config asks for {want}")
        elif weights[name].dtype not in READ_DTYPES:
            problems.append(f"dtype: {name} is {weights[name].dtype}, this course reads {READ_DTYPES}")
        elif not weights[name].isfinite().all():
            problems.append(f"not finite: {name} holds NaN or infinity")
    if problems:
        more = [f"… and {len(problems) - 20} more"] * (len(problems) > 20)
        listed = "\n  ".join(["fetch config and weights of one model.", *sorted(problems)[:20], *more])
        raise ValueError(f"{source}: {len(problems)} weights do not fit. Nothing was loaded: {listed}")
    # copied even if nothing changes: a loaded file may be mapped memory, and a caller keeps its own tensors
    own = {name: weights[name] for name in wanted if not (config.tie_embeddings and name == "lm_head.weight")}
    size = f"{sum(weight.numel() for weight in own.values()):,} weights as {dtype} do not fit on {device}"
    with explain_out_of_memory(f"{source}: {size}: pass dtype=torch.bfloat16, or open a smaller model."):
        state = {name: weight.to(device=device, dtype=dtype, copy=True) for name, weight in own.items()}
    model.load_state_dict({"lm_head.weight": state["tok_embeddings.weight"]} | state, assign=True)
    if config.tie_embeddings:
        model.lm_head.weight = model.tok_embeddings.weight
    return model.eval()


def fetch_checkpoint(name: str) -> Path:
    """Folder of a checkpoint on the Hugging Face Hub, downloaded once and kept in the Hub's cache on disk.

    Only weights as safetensors, configs and tokenizers are fetched: nothing that could run code.

    Args:
        name: "owner/model", for example "HuggingFaceTB/SmolLM2-135M" (about 270 MB).

    Raises:
        ValueError: if the name is not of the form owner/model.
        ConnectionError: if it is neither in the cache nor available now; the text says what to do.
    """
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise ValueError(f"{name!r} is not a name on the Hub: write owner/model, as in HuggingFaceTB/SmolLM2-135M.")
    kinds = ["*.safetensors", "*.json"]
    try:
        return Path(snapshot_download(name, allow_patterns=kinds, etag_timeout=5))
    except (OSError, HTTPError) as problem:  # no network, or the Hub or a proxy refuses
        raise ConnectionError(
            f"{name} could not be fetched ({type(problem).__name__}): check name, network and, for a model behind a "
            "licence, that you are logged in."
        ) from None


def _require_plausible(config, weights, source, relative):
    """Refuse sizes far beyond what the file holds before a loop or a table of that size is made."""
    n_experts = settings_of(relative).get("num_experts", 0) if relative else 0  # each is several weights
    most = 100 * max((weight.numel() for weight in weights.values()), default=1)
    rows = max(config.vocab_size, config.hidden_dim, config.n_heads * config.head_dim)
    modules = max(config.n_layers, config.n_layers * n_experts // 10)
    if modules > 100 + len(weights) or rows * config.dim > most:
        raise ValueError(
            f"{source}: {config} needs far more than the {len(weights)} weights found: "
            "the config belongs to another model, or is damaged: fetch it again."
        )


def save_checkpoint(model: Llama, folder: str | Path, tokenizer: Tokenizer | None = None, card: str | None = None):
    """Write a folder that transformers' AutoModelForCausalLM and AutoTokenizer open unchanged.

    The folder is written beside its place and renamed: it appears whole or not at all. One that exists is kept.
    Only this course opens a model whose dim is no multiple of n_heads: transformers refuses it.

    Args:
        model: its weights are stored in their own dtype.
        folder: must not exist yet.
        tokenizer: stored as tokenizer.json, if given.
        card: text of README.md, if given.

    Raises:
        FileExistsError: if the folder exists.
    """
    folder = Path(folder)
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} exists and is kept: choose another name, or move it away first.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        weights = weights_to_hugging_face(model)
        save_file(weights, beside / "model.safetensors", metadata={"format": "pt"})
        _write_json(beside / "config.json", config_to_hugging_face(model.config, next(model.parameters()).dtype))
        if tokenizer is not None:
            tokenizer.save(str(beside / "tokenizer.json"))
            _write_json(beside / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
        if card is not None:
            (beside / "README.md").write_text(card, encoding="utf-8")
        for path in beside.iterdir():
            path.chmod(0o666 & ~_umask())  # save_file and mkdtemp make what only the owner can read
        beside.chmod(0o777 & ~_umask())
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _read_json(path):
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{path} has more than {LARGEST_JSON:,} bytes, too many to be one of a model: fetch it again.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise ValueError(f"{path} is not valid JSON ({error}): fetch the file again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object: fetch the file again.")
    return content


# --------------------------------------------------------------------------------------- Hugging Face


def weights_to_hugging_face(model: Llama) -> dict[str, torch.Tensor]:
    """The model's weights under Hugging Face's names; a tied matrix is stored once, as there."""
    require_plain(model, "save_checkpoint", "keep it with torch.save(model.state_dict(), …) and its config.json")
    names = name_map(model.config.n_layers)
    if model.config.tie_embeddings:
        del names["lm_head.weight"]
    own = model.state_dict()
    if absent := [name for name in names if name not in own]:
        raise ValueError(f"the model has no {absent[0]}, as after prepare_for_decoding: pass the one it was made from.")
    return {theirs: own[ours].detach().cpu().contiguous() for ours, theirs in names.items()}


def config_to_hugging_face(config: LlamaConfig, dtype: torch.dtype = torch.float32) -> dict:
    """The content of a config.json. Scaling "ntk" is only another base, and is written as such."""
    theta, scaling = config.rope_theta, dict(config.rope_scaling or {"type": "default"})
    if scaling["type"] == "ntk":
        theta, scaling = theta * scaling["factor"] ** (config.head_dim / (config.head_dim - 2)), {"type": "default"}
    elif scaling["type"] == "llama3":
        scaling = LLAMA3_SCALING | scaling
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": config.vocab_size, "hidden_size": config.dim, "intermediate_size": config.hidden_dim,
        "num_hidden_layers": config.n_layers, "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads, "head_dim": config.head_dim, "hidden_act": "silu",
        "max_position_embeddings": config.max_seq_len, "rms_norm_eps": float(config.norm_eps),
        "rope_parameters": {"rope_type": scaling.pop("type"), "rope_theta": theta, **scaling},
        "tie_word_embeddings": config.tie_embeddings,
        **dict.fromkeys(("attention_bias", "mlp_bias"), False),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        "dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip


def config_from_hugging_face(content: dict, source: str = "config.json") -> LlamaConfig:
    """The LlamaConfig of a config.json, with the RoPE settings in the old place or the new.

    Raises:
        ValueError: if the file describes another architecture, or a LLaMA with a part that this one does not have.
    """
    kind = content.get("model_type")
    if kind != "llama":
        why = f"{UNKNOWN[kind]}. " if _is_in(UNKNOWN, kind) else ""
        why += "Only load_checkpoint opens it. " if _is_in(FAMILIES, kind) else ""
        raise ValueError(
            f"{source} describes a {kind!r} model, not 'llama': {why}This course reads LLaMA, such as SmolLM2-135M, "
            f"and its relatives {', '.join(FAMILIES)}."
        )
    unknown = {"attention_bias": (False, None), "mlp_bias": (False, None), "hidden_act": ("silu", None)}
    unknown |= {"quantization_config": (None,), "pretraining_tp": (1, None), "partial_rotary_factor": (1.0, None)}
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
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{source}: {error}") from error


def _is_in(table, kind):
    return isinstance(kind, str) and kind in table


def _relative_config(content, source):
    """The LlamaConfig below a relative, and all of its settings."""
    try:
        content = settings_of(content)
        plain = {name: value for name, value in content.items() if name not in PARTS} | {"model_type": "llama"}
        if angles in FAMILIES[content["model_type"]].edits:
            full = content["rope_parameters"]["full_attention"]
            plain |= {"rope_parameters": None, "rope_scaling": None, "rope_theta": full["rope_theta"]}
        return config_from_hugging_face(plain, source), content
    except BAD_CONFIG as error:
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


def _read_hugging_face(folder):
    content, source = _read_json(folder / "config.json"), str(folder / "config.json")
    is_relative = _is_in(FAMILIES, content.get("model_type"))
    config, content = (
        _relative_config(content, source) if is_relative else (config_from_hugging_face(content, source), None)
    )
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = _read_json(index).get("weight_map")
        if not isinstance(listed, dict):
            raise ValueError(f"{index} has no weight_map that says which weight is in which file: fetch it again.")
        files = sorted(set(map(str, listed.values())))
    else:
        files = ["model.safetensors"]
    theirs = {}
    for name in files:
        path = folder / name
        if path.parent != folder or path.suffix != ".safetensors":
            raise ValueError(f"{index} names {name!r}: only .safetensors files of the same folder are read.")
        if not os.path.isfile(path):  # path.is_file() raises for a name that is too long
            raise FileNotFoundError(
                f"{path} is missing: this course reads safetensors only; fetch or convert the weights."
            )
        try:
            theirs |= load_file(path)
        except Exception as error:  # safetensors' own; or PyTorch's, with its stack, for an impossible shape
            why = str(error).partition("\n")[0]
            raise ValueError(f"{path} is damaged or cut short ({why}): fetch the file again.") from error
    if not is_relative:
        return config, _rename(theirs, config.n_layers, "hf"), None
    try:
        return config, our_weights(theirs, config, content), content
    except BAD_CONFIG as error:
        raise ValueError(f"{folder}: weights and config.json do not fit ({error}): fetch them again.") from error


def _rename(theirs, n_layers, style):
    names = name_map(min(n_layers, len(theirs)), style)  # a damaged config may ask for any number of layers
    ours = {theirs_name: ours_name for ours_name, theirs_name in names.items()}
    return {ours.get(name, name): weight for name, weight in theirs.items() if not name.endswith(IGNORED)}


# ------------------------------------------------------------------------------------------------ Meta


def interleaved_to_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of q_proj or k_proj so that pairs (2i, 2i + 1) of each head become (i, i + h/2).

    Args:
        weight: (heads * h, D), made for the interleaved layout.

    Example:
        >>> interleaved_to_halves(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), head_dim=4).flatten()
        tensor([0., 2., 1., 3.])
    """
    pairs = weight.unflatten(0, (-1, head_dim // 2, 2))  # (heads, h/2, 2, D)
    return pairs.transpose(1, 2).flatten(0, 2)


def _read_meta(folder):
    params = _read_json(folder / "params.json")
    files = sorted(path for path in folder.glob("consolidated.*.pth") if path.is_file())
    if not files:
        raise FileNotFoundError(f"{folder} has params.json, but no consolidated.*.pth: fetch the weights as well.")
    shards = []
    for path in files:
        try:
            require_honest_zip(path)
            shards.append(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
            require_honest_tensors(shards[-1], path.stat().st_size)
        except Exception as error:  # torch raises several kinds here; none of them may run code
            why = error if type(error) is ValueError else type(error).__name__  # torch's own text advises to unpickle
            raise ValueError(
                f"{path} is damaged or holds something other than tensors, and was not opened "
                f"({why}): fetch the file again from its source."
            ) from error
    try:
        dim, n_heads = params["dim"], params["n_heads"]
        theirs = {name: _join([shard[name] for shard in shards], name, dim) for name in shards[0]}
        weights = _rename(theirs, params["n_layers"], "meta")
        tied = "output.weight" not in theirs or torch.equal(theirs["output.weight"], theirs["tok_embeddings.weight"])
        config = _config_from_meta(params, theirs["tok_embeddings.weight"].shape[0], tied)
        for name in weights:
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weights[name] = interleaved_to_halves(weights[name], dim // n_heads)
    except KeyError as error:
        raise ValueError(
            f"{folder}: {error} is missing from params.json or a shard: it is not a whole LLaMA. Fetch all files again."
        ) from error
    except (AttributeError, TypeError, ValueError, IndexError, ArithmeticError, RuntimeError) as error:
        raise ValueError(f"{folder}: params.json and the shards make no LLaMA ({error}): fetch all again.") from error
    return config, weights


def require_honest_zip(path: Path):
    """Raise ValueError if the parts of a file that torch.save wrote unpack to more than the file holds.

    torch.save does not compress: such a file was made to fill the memory of whoever opens it.
    """
    with zipfile.ZipFile(path) as parts:
        unpacked, size = sum(part.file_size for part in parts.infolist()), path.stat().st_size
    if unpacked > size:
        raise ValueError(f"{path} has {size:,} bytes, but unpacks to {unpacked:,}")


def require_honest_tensors(tensors: dict[str, torch.Tensor], size: int):
    """Raise ValueError unless the values are ordinary tensors that a file of `size` bytes can hold.

    A tensor may show one stored number as a huge matrix (stride 0), and many tensors may share one storage.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(f"{name} is no ordinary tensor")
    claimed = sum(tensor.nbytes for tensor in tensors.values())
    if claimed > 2 * size:  # tied embeddings show one matrix twice
        raise ValueError(f"its tensors claim {claimed:,} bytes, but the file has {size:,}")


def _join(parts, name, dim):
    """Put the shards of one weight together, as Meta's parallel layers cut it."""
    if len(parts) == 1 or parts[0].ndim == 1:
        return parts[0]
    by_columns = name.endswith(META_SPLIT_BY_COLUMNS)
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
    hidden_dim = swiglu_hidden_dim(params["dim"], params.get("multiple_of", 256), params.get("ffn_dim_multiplier"))
    return LlamaConfig(
        vocab_size=vocab_size, dim=params["dim"], n_layers=params["n_layers"], n_heads=params["n_heads"],
        n_kv_heads=params.get("n_kv_heads") or params["n_heads"], hidden_dim=hidden_dim,
        max_seq_len=params.get("max_seq_len", default_length), norm_eps=params.get("norm_eps", 1e-5),
        rope_theta=theta, rope_scaling=scaling if scaled else None, tie_embeddings=tied,
    )  # fmt: skip
