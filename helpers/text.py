"""The tokenizer of the bundled model, and a short text; what a model is trained on stands in `helpers.corpus`."""

import json
import warnings
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer

from helpers.assets import ASSETS
from helpers.formats.files import read_json, unreadable
from helpers.validate import shown

TINY_LLAMA = ASSETS / "tiny-llama"


def excerpt() -> str:
    """Three fixed paragraphs of Python's language reference, the same under every Python version."""
    return (ASSETS / "excerpt.txt").read_text(encoding="utf-8")


def load_tokenizer(folder: str | Path = TINY_LLAMA) -> Tokenizer:
    """The tokenizer of a checkpoint folder: `.encode(text).ids` and `.decode(ids)`.

    It is what tokenizer.json says. Some classes of transformers 5 put parts of their own in its place: if AutoTokenizer
    then gives other ids for plain words, the folder is refused; if for odd spaces and signs only, a warning says so.

    Raises:
        FileNotFoundError: if the folder has no tokenizer.json.
        ValueError: if it is damaged, or AutoTokenizer would use other tokens than it has.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: pass a folder that holds a tokenizer.json.")
    names = "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json", "config.json"
    alone, special, config, model = (read_json(p) if (p := path.with_name(name)).is_file() else {} for name in names)
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()  # a file may store both, of its training; in AutoTokenizer, too, a call asks for them
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
        tokenizer.encode("a b")  # some damage shows no sooner
    except BaseException as error:  # tokenizers has no classes of its own, and its panic is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl+C
        raise ValueError(unreadable(path, f"is damaged or no tokenizer ({error})")) from error
    said = [*config.items(), *special.items()]
    added = [value for name, value in said if name.endswith("_token") and isinstance(value, str | dict)]  # as eos_token
    lists = [value for name, value in said if name.endswith(("special_tokens", "tokens_decoder"))]
    for some in (value for value in lists if isinstance(value, list | dict)):
        added += some.values() if isinstance(some, dict) else some
    added = alone.keys() | {str(one.get("content")) if isinstance(one, dict) else str(one) for one in added}
    if missing := sorted(added - {"", *(one.content for one in tokenizer.get_added_tokens_decoder().values())}):
        raise ValueError(f"{path} does not add the tokens {shown(missing)}, but other files of the folder do. Have "
                         "it written anew: AutoTokenizer.from_pretrained(folder).save_pretrained(folder).")  # fmt: skip
    known = {repr(one) for one in tokenizer.get_added_tokens_decoder().values()}
    try:
        said = [AddedToken(**one) for one in (config.get("added_tokens_decoder") or {}).values()]
    except (AttributeError, TypeError) as error:
        raise ValueError(unreadable(path.with_name(names[2]), f"is damaged ({error})")) from error
    tokenizer.add_tokens([one for one in said if repr(one) not in known])  # these flags win, in AutoTokenizer, too
    _compare_with_class(tokenizer, path, config, model)
    return tokenizer


def _compare_with_class(tokenizer, path, config, model):
    """ValueError or a warning if AutoTokenizer gives other ids, by a class that does not take all of the file."""
    table = read_json(ASSETS / "tokenizers" / "classes.json")
    kind, named = str(model.get("model_type")), config.get("tokenizer_class") or model.get("tokenizer_class")
    name = table["model_types"].get(kind)
    if named and kind != "qwen2" and name != "TokenizersBackend":  # these two win over what the folder names
        name = str(named).removesuffix("Fast")
    if name not in table["classes"]:
        return
    text, parts = path.read_text(encoding="utf-8"), table["classes"][name]
    stored, tokens, prefix = json.loads(text), parts.pop("tokens"), config.get("add_prefix_space")
    if not stored.get("model") or (name == "LlamaTokenizer" and '"ByteLevel"' in text):
        return
    splitter = parts["pre_tokenizer"]
    for step in splitter.get("pretokenizers", [splitter]):  # a space before the first word?
        if step["type"] == "ByteLevel":
            step["add_prefix_space"] = bool(prefix)
        elif step["type"] == "Metaspace":
            step["prepend_scheme"] = "never" if prefix is False else "always" if config.get("legacy") else "first"
    parts["model"] = stored["model"] | parts["model"]
    twin = Tokenizer.from_str(json.dumps(stored | parts | {"truncation": None, "padding": None}))
    twin.add_special_tokens([token for role, token in tokens.items() if role not in config])
    twin.encode_special_tokens = tokenizer.encode_special_tokens
    for words in [*table["texts"], " ".join(tokens.values())]:
        ours, theirs = (one.encode(words).ids for one in (tokenizer, twin))
        if ours == theirs:
            continue
        said = f"{path}: transformers 5 opens it as {name}, with parts of that class in place of the file's: {words!r} "
        said += f"becomes {theirs}, by the file {ours}. To use what transformers does, open what it saves: "
        said += "AutoTokenizer.from_pretrained(folder).save_pretrained(another)."
        if words == table["texts"][0]:
            raise ValueError(said)
        return warnings.warn(said, stacklevel=3)


def encode(tokenizer: Tokenizer, text: str) -> torch.Tensor:
    """Token ids of a text, (T,) int64."""
    return torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64)
