"""The tokenizer of the bundled model, and a short text; what a model is trained on stands in `helpers.corpus`."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from helpers.assets import ASSETS
from helpers.formats.files import read_json, unreadable
from helpers.validate import shown

TINY_LLAMA = ASSETS / "tiny-llama"


def excerpt() -> str:
    """Three fixed paragraphs of Python's language reference, the same under every Python version."""
    return (ASSETS / "excerpt.txt").read_text(encoding="utf-8")


def load_tokenizer(folder: str | Path = TINY_LLAMA) -> Tokenizer:
    """The tokenizer of a checkpoint folder: `.encode(text).ids` and `.decode(ids)`.

    It is what tokenizer.json says. Some classes of transformers 5 (LlamaTokenizer, GemmaTokenizer, Qwen2Tokenizer) put
    parts of their own in place of the file's; AutoTokenizer then gives other ids, for example for leading spaces.

    Raises:
        FileNotFoundError: if the folder has no tokenizer.json.
        ValueError: if it is damaged, or another file of the folder adds tokens that it does not have.
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
    own = {one.content for one in tokenizer.get_added_tokens_decoder().values()}
    if missing := sorted(_added_beside(path.parent) - own):
        raise ValueError(
            f"{path} does not add the tokens {shown(missing)}, which other files of the folder add. transformers "
            "writes them into it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    return tokenizer


def _added_beside(folder):
    """The tokens that other files of a folder add."""
    names = "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"
    files = (folder / name for name in names)
    alone, config, special = (read_json(path) if path.is_file() else {} for path in files)
    lists = [config.get("added_tokens_decoder")]
    lists += [
        file.get(name) for file in (config, special) for name in ("additional_special_tokens", "extra_special_tokens")
    ]
    tokens = [one for some in lists if some for one in (some.values() if isinstance(some, dict) else some)]
    return alone.keys() | {str(one.get("content")) if isinstance(one, dict) else str(one) for one in tokens}


def encode(tokenizer: Tokenizer, text: str) -> torch.Tensor:
    """Token ids of a text, (T,) int64."""
    return torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64)
