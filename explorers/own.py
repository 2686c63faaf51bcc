"""A learner's own model and text, for the explorers that take some: `explore_xray` and `explore_masks`."""

import operator
from pathlib import Path

import torch

from explorers.base import bundled, readable
from helpers.model import Llama
from helpers.text import TINY_LLAMA, encode, load_tokenizer
from helpers.validate import require_kind, require_tokens, shown

LARGE = 1e9  # [byte] of weights; reading more takes longer than a learner waits without a word
INSTEAD = "a folder (save_pretrained writes one), or what load_checkpoint(folder) gives"


def is_usual(model) -> bool:
    """Whether this is tiny-llama's folder, which an explorer shows if it is given no model."""
    return isinstance(model, str | Path) and Path(model) == TINY_LLAMA


def opened(model, text, tokenizer, n_most: int):
    """A model, which stays as it is, the first tokens of a text, (1, T) with T <= n_most, and a function id -> word.

    Args:
        model: a Llama, or the folder of one, of any family that `beyond.families` opens.
        text: a str, or token ids, (T,) or (1, T).
        tokenizer: of a model that is no folder; without one only ids can be read, and words are ids.

    Raises:
        ValueError, FileNotFoundError: if one of them is no such thing; in a sentence that says what to pass.
    """
    if isinstance(model, str | Path):
        folder, model = Path(model), bundled() if is_usual(model) else _read(Path(model))
        if tokenizer is None and (folder / "tokenizer.json").is_file():
            tokenizer = load_tokenizer(folder)
    require_kind("model", model, Llama, INSTEAD)
    if isinstance(text, str) and tokenizer is None:
        raise ValueError(f"text={shown(text)} needs a tokenizer, and there is none: pass a folder with a "
                         "tokenizer.json, or tokenizer=load_tokenizer(folder), or token ids for text.")  # fmt: skip
    tokens = encode(tokenizer, text) if isinstance(text, str) else _ids(text)
    if len(tokens) < 2:
        raise ValueError(f"text={shown(text)} has {len(tokens)} tokens: pass at least 2, so that one follows another.")
    tokens = tokens[None, :n_most].to(model.tok_embeddings.weight.device)
    require_tokens(tokens, model.config.vocab_size)
    return model, tokens, lambda token: readable(tokenizer, token) if tokenizer else str(token)


def _read(folder):
    from beyond.families import load_checkpoint

    size = sum(file.stat().st_size for file in folder.glob("*") if file.suffix in (".safetensors", ".pth"))
    if size > LARGE:
        print(f"Reading {size / 1e9:,.1f} GB of weights from {folder}, as float32. Then each new setting takes as long "
              "as the model needs for this text. If memory is short, pass load_checkpoint(folder, torch.bfloat16) and "
              "tokenizer=load_tokenizer(folder).", flush=True)  # fmt: skip
    return load_checkpoint(folder)


def _ids(text):
    try:
        ids = torch.as_tensor(text if isinstance(text, torch.Tensor) else list(text))
    except (TypeError, ValueError, RuntimeError):
        ids = torch.ones(1)
    if ids.is_floating_point() or ids.dtype == torch.bool or (ids.ndim != 1 and ids.shape[:-1] != (1,)):
        raise ValueError(f"text={shown(text)} is neither a text nor one row of token ids: pass a str, or (T,) ids.")
    return ids.flatten().long()


def chosen(name: str, asked, there: int, otherwise) -> list[int]:
    """The blocks or heads to show: those asked for, or, if none are, others; ValueError if the model lacks one."""
    try:
        numbers = [operator.index(one) for one in asked] or list(otherwise)
    except TypeError:
        numbers = []
    if not 1 <= len(numbers) <= 8 or len({*numbers}) < len(numbers) or not {*numbers} <= {*range(there)}:
        raise ValueError(f"{name}={shown(asked)}: the model has {there}, numbered from 0. Pass at most eight of them, "
                         "each once, such as (0,).")  # fmt: skip
    return numbers


def spread(there: int) -> list[int]:
    """Numbers of at most eight of `there` blocks, evenly spread, with the first and the last."""
    return sorted({round(place * (there - 1) / 7) for place in range(8)})
