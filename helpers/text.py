"""The tokenizer of the bundled model, and a short text; what a model is trained on stands in `helpers.corpus`."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from helpers.assets import ASSETS
from helpers.formats.files import unreadable

TINY_LLAMA = ASSETS / "tiny-llama"


def excerpt() -> str:
    """Three fixed paragraphs of Python's language reference, the same under every Python version."""
    return (ASSETS / "excerpt.txt").read_text(encoding="utf-8")


def load_tokenizer(folder: str | Path = TINY_LLAMA) -> Tokenizer:
    """The tokenizer of a checkpoint folder: `.encode(text).ids` and `.decode(ids)`.

    Raises:
        FileNotFoundError: if the folder has no tokenizer.json.
        ValueError: if it is damaged.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: pass a folder that holds a tokenizer.json.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()  # a file may store both, of its training; in AutoTokenizer, too, a call asks for them
        tokenizer.no_padding()
        tokenizer.encode("a b")  # some damage shows no sooner
    except BaseException as error:  # tokenizers has no classes of its own, and its panic is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl+C
        raise ValueError(unreadable(path, f"is damaged or no tokenizer ({error})")) from error
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> torch.Tensor:
    """Token ids of a text, (T,) int64."""
    return torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64)
