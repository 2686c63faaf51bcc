"""A LLaMA as a folder of Hugging Face; imported from helpers.checkpoint."""

import json
import tempfile
from functools import reduce
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from helpers.config import LLAMA3_SCALING, LlamaConfig
from helpers.corpus import END_OF_TEXT
from helpers.formats.fit import misfits, raise_if, require_tie, unusable
from helpers.formats.names import name_map
from helpers.model import Llama, rope_inv_freq
from helpers.validate import require_plain


def save_checkpoint(model: Llama, folder: str | Path, tokenizer: Tokenizer | None = None, card: str | None = None):
    """Write a folder that transformers' AutoModelForCausalLM and AutoTokenizer, of 4 and of 5, open unchanged.

    The folder is written beside its place and renamed: it appears whole or not at all. One that exists is kept.
    Only this course opens a model whose dim is no multiple of n_heads: transformers refuses it.

    Args:
        model: its weights are stored in their own dtype; config.json names the widest, in which transformers opens all.
        folder: must not exist yet.
        tokenizer: stored as tokenizer.json, if given; where it has END_OF_TEXT, eos_token_id says so.
        card: text of README.md, if given.

    Raises:
        FileExistsError: if the folder exists.
        ValueError: if the folder would open as another model or not at all: what does not fit is said.
    """
    folder = Path(folder)
    while not isinstance(model, Llama) and (inner := getattr(model, "_orig_mod", getattr(model, "module", None))):
        model = inner  # torch.compile wraps a model as _orig_mod, DistributedDataParallel and AveragedModel as module
    if not isinstance(model, Llama):
        raise ValueError(f"save_checkpoint takes a Llama, not a {type(model).__name__}: pass the Llama inside, of peft "
                         "what merge_and_unload() returns.")  # fmt: skip
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} exists and is kept: choose another name, or move it away first.")
    n_ids = 0 if tokenizer is None else 1 + max(tokenizer.get_vocab().values(), default=-1)
    if n_ids > model.config.vocab_size:
        raise ValueError(f"the tokenizer has {n_ids} ids, vocab_size={model.config.vocab_size}: pass the model's own.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = {"prefix": f".{folder.name}.", "dir": folder.parent, "ignore_cleanup_errors": True}
    with tempfile.TemporaryDirectory(**place) as beside:
        new = Path(beside) / "new"  # a folder inside, because only the owner can read what TemporaryDirectory makes
        new.mkdir()
        weights, config = weights_to_hugging_face(model), model.config
        inv_freq = rope_inv_freq(config.head_dim, config.rope_theta, config.rope_scaling)
        if not torch.equal(model.inv_freq.cpu(), inv_freq):
            raise ValueError("save_checkpoint: model.inv_freq is not that of model.config, which alone is saved: make "
                             "a Llama of the config that you want, and load_state_dict.")  # fmt: skip
        save_file(weights, new / "model.safetensors", metadata={"format": "pt"})
        widest = reduce(torch.promote_types, {weight.dtype for weight in weights.values()})
        files = {"config.json": config_to_hugging_face(config, widest)}
        if tokenizer is not None:
            plain = Tokenizer.from_str(tokenizer.to_str())
            plain.no_padding()  # transformers would add the padding's token to the tokens
            plain.save(str(new / "tokenizer.json"))
            specials = [one.content for one in tokenizer.get_added_tokens_decoder().values() if one.special]
            end = {}  # a token becomes special by being named here, so only one that is special already is named
            if END_OF_TEXT in specials:
                end = {"eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT}
                # generate() looks for it in generation_config.json, and older programs in config.json.
                files["generation_config.json"] = {"eos_token_id": tokenizer.token_to_id(END_OF_TEXT)}
                files["config.json"] |= files["generation_config.json"]
            split = {"split_special_tokens": True} if tokenizer.encode_special_tokens else {}
            files["tokenizer_config.json"] = {"tokenizer_class": "PreTrainedTokenizerFast", **end, **split}
        for name, content in files.items():
            (new / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if card is not None:
            (new / "README.md").write_text(card, encoding="utf-8")
        (new / "model.safetensors").chmod((new / "config.json").stat().st_mode)  # save_file lets only the owner read
        new.rename(folder)


def weights_to_hugging_face(model: Llama) -> dict[str, torch.Tensor]:
    """The model's weights under Hugging Face's names; a tied matrix is stored once, as there."""
    require_plain(model, "save_checkpoint", "keep it with torch.save(model.state_dict(), …) and its config.json")
    own = {name.replace("_orig_mod.", ""): weight for name, weight in model.state_dict().items()}  # torch.compile's
    with torch.device("meta"):
        blank = Llama(model.config)
    raise_if(misfits(blank, own), "save_checkpoint", "Nothing was saved: pass the model that was prepared for "
             "decoding, merge what was added (peft: merge_and_unload()), or correct model.config.")  # fmt: skip
    raise_if(unusable(own), "save_checkpoint", "Nothing was saved: train anew, perhaps with a smaller peak.")
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


def config_to_hugging_face(config: LlamaConfig, dtype: torch.dtype = torch.float32) -> dict:
    """The content of a config.json. Scaling "ntk" is only another base, and is written as such.

    RoPE is said twice, in the words of transformers 5 and in the older ones: what reads only those (transformers 4,
    mlx-lm) would take 10,000 and no scaling, without a word.
    """
    theta, scaling = config.rope_theta, dict(config.rope_scaling or {"type": "default"})
    if scaling["type"] == "ntk":
        theta, scaling = theta * scaling["factor"] ** (config.head_dim / (config.head_dim - 2)), {"type": "default"}
    elif scaling["type"] == "llama3":
        scaling = {key: n if isinstance(n, str | float) else int(n) for key, n in (LLAMA3_SCALING | scaling).items()}
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
