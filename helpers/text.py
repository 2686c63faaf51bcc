"""The tokenizer of the bundled model, and a short text; texts to train on are in `helpers.corpus`.

AutoTokenizer is not asked, because its first call imports over a thousand modules of transformers, which takes hundreds
of times as long as reading tokenizer.json, and because it does not say where its classes replace parts of that file.
"""

import json
import re
import warnings
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from helpers.assets import ASSETS
from helpers.formats.files import read_json, unreadable
from helpers.validate import shown

TINY_LLAMA = ASSETS / "tiny-llama"
ANEW = "Have it written anew: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."


def excerpt() -> str:
    """Three fixed paragraphs of Python's language reference, the same under every Python version."""
    return (ASSETS / "excerpt.txt").read_text(encoding="utf-8")


def load_tokenizer(folder: str | Path = TINY_LLAMA) -> Tokenizer:
    """The tokenizer of a checkpoint folder: `.encode(text).ids` and `.decode(ids)`.

    It is what tokenizer.json says. Some classes of transformers 5 put parts of their own in its place: if plain words
    get other ids there, the folder is refused; if only odd spaces and signs do, or may, a warning says so.

    Raises:
        FileNotFoundError: if the folder has no tokenizer.json.
        ValueError: if it is damaged, or AutoTokenizer would use other tokens than it has.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: pass a folder that holds a tokenizer.json.")
    names = "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json", "config.json"
    files = [path.with_name(name) for name in names]
    ids_of_added, special, config, model_config = (read_json(file) if file.is_file() else {} for file in files)
    config_file = files[2]
    if "added_tokens_decoder" in config:  # this entry counts in place of the older files
        ids_of_added = special = {}
    if (listed := config.get("fast_tokenizer_files")) not in (None, [], [path.name]):
        raise ValueError(f"{config_file} sets fast_tokenizer_files={shown(listed)}, and transformers may "
                         f"read another than {path.name}. Keep the one that counts, as {path.name}, and remove the "
                         "key.")  # fmt: skip
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()  # a file may store both, of its training; in AutoTokenizer, too, a call asks for them
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
        tokenizer.encode("a b \u65e5")  # some damage shows no sooner
    except BaseException as error:  # tokenizers has no classes of its own, and its panic is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl+C
        raise ValueError(unreadable(path, f"is damaged or no tokenizer ({error})")) from error
    said = [*config.items(), *special.items()]
    added = [value for name, value in said if name.endswith("_token") and isinstance(value, str | dict)]  # eos_token
    for name, value in said:
        if name.endswith(("special_tokens", "tokens_decoder")) and isinstance(value, dict | list):
            added += value.values() if isinstance(value, dict) else value
    added = {*ids_of_added, *map(_content, added)} - {""}
    if missing := sorted(added - {one.content for one in tokenizer.get_added_tokens_decoder().values()}):
        raise ValueError(f"{path} does not add the tokens {shown(missing)}, but other files of the folder do. {ANEW}")
    try:
        flags = {int(n): AddedToken(**one) for n, one in config.get("added_tokens_decoder", {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(unreadable(config_file, f"is damaged ({error})")) from error
    if "added_tokens_decoder" not in config:
        config, flags = config | special, tokenizer.get_added_tokens_decoder()
    flags = [flags[n] for n in sorted(flags)]
    roles = {name: config[name] for name in config if name.endswith("_token")}
    tokenizer.add_tokens(_marked_special(flags, roles))
    _compare_with_class(tokenizer, path, config, model_config, flags, added)
    return tokenizer


def _content(token):  # as a file gives it: a string, or an object with more about it
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _marked_special(flags, roles):  # a token that has a role, such as eos_token, is special
    for one in flags:
        one.special |= one.content in {_content(token) for token in roles.values()}
    return flags


def _compare_with_class(tokenizer, path, config, model_config, flags, added):
    """ValueError or a warning if AutoTokenizer gives other ids, or may: some classes do not take all of the file."""
    table, text = read_json(ASSETS / "tokenizers" / "classes.json"), path.read_text(encoding="utf-8")
    stored, kind = json.loads(text), str(model_config.get("model_type") or "llama")
    named = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    name, own_code = table["model_types"].get(kind, f"for a {kind!r}"), config.get("auto_map")
    own_code = own_code.get("AutoTokenizer") if isinstance(own_code, dict) else own_code  # AutoProcessor is another
    if named and (own_code or (kind not in table["model_types_that_win"] and name != "TokenizersBackend")):
        name = str(named).removesuffix("Fast")
    older = re.match(r"[0-4]\.|$", str(model_config.get("transformers_version") or ""))
    cuts = older and config.get("fix_mistral_regex") and model_config.get("model_type") in table["mistrals"]
    cuts = cuts and tokenizer.get_vocab_size() > 100_000 and tokenizer.pre_tokenizer
    if cuts and json.dumps(table["mistral_split"]) not in text:
        raise ValueError(f"{path.with_name('tokenizer_config.json')} sets fix_mistral_regex, and transformers then "
                         f"cuts words in another way than {path.name}. {ANEW}")  # fmt: skip
    takes_padding = name in (*table["as_it_stands"], "LlamaTokenizer", "CodeLlamaTokenizer")  # its token, as their own
    if takes_padding and stored.get("padding") and "pad_token" not in config:
        added.add(stored["padding"]["pad_token"])
        tokenizer.add_special_tokens([stored["padding"]["pad_token"]])
    if name in table["as_it_stands"] or (name == "LlamaTokenizer" and '"ByteLevel"' in text and not own_code):
        return
    said = f"{path}: transformers 5 opens it by {name}, with parts of that class in place of the file's"
    so = "To use what transformers does, open what it saves: AutoTokenizer.from_pretrained(folder).save_pretrained(new)"
    if name not in table["classes"] or kind not in table["model_types"] or stored["model"].get("type", "BPE") != "BPE":
        return warnings.warn(f"{said}, perhaps: not compared, ids may differ. {so}, where this stays.", stacklevel=3)
    twin = _twin(table["classes"][name], name, stored, config, flags, added)
    twin.encode_special_tokens = tokenizer.encode_special_tokens
    for words, ours, theirs in _differences(tokenizer, twin, table["texts"]):
        said += f": {words!r} becomes {theirs!r}, by the file {ours!r}. {so}."
        if words == table["texts"][0]:
            raise ValueError(said)
        return warnings.warn(said, stacklevel=3)  # the first one is enough


def _differences(tokenizer, twin, texts):  # text, ours, theirs: where ids differ, or what they are decoded to
    added = {one.content for some in (tokenizer, twin) for one in some.get_added_tokens_decoder().values()}
    for words in [*texts, *(joint.join(["", *sorted(added), ""]) for joint in (" x ", "x"))]:
        ids = [one.encode(words).ids for one in (tokenizer, twin)]
        backs = [one.decode(its, skip_special_tokens=False) for one, its in zip((tokenizer, twin), ids, strict=True)]
        yield from ((words, ours, theirs) for ours, theirs in (ids, backs) if ours != theirs)


def _twin(parts, name, stored, config, flags, added):
    """The tokenizer that a class of transformers makes of a file."""
    prefix, roles = config.get("add_prefix_space"), parts.pop("tokens")
    roles = {role: _content(token) for role in roles if (token := config.get(role, roles[role]))}
    default = "always" if name == "LlamaTokenizer" and config.get("legacy") else "first"
    scheme = "never" if prefix is False else default
    settings = {"ByteLevel": {"add_prefix_space": bool(prefix)}, "Metaspace": {"prepend_scheme": scheme}}
    for step in parts["pre_tokenizer"].get("pretokenizers", [parts["pre_tokenizer"]]):
        step |= settings.get(step["type"], {})  # whether the first word gets a space before it
    if name == "LlamaTokenizer" and prefix is False:
        parts["decoder"]["decoders"].pop()  # the step that takes this space away again
    unknown = roles.get("unk_token") if parts["model"]["unk_token"] else None
    unknown = unknown if unknown in stored["model"]["vocab"] else None
    parts["model"] = stored["model"] | parts["model"] | {"unk_token": unknown}
    twin = Tokenizer.from_str(json.dumps(stored | parts | {"added_tokens": [], "truncation": None, "padding": None}))
    twin.add_tokens(_marked_special(flags, roles))
    listed = {one.content for one in flags}
    twin.add_special_tokens([token for token in (*roles.values(), *sorted(added)) if token not in listed])
    if name == "CodeLlamaTokenizer" and (start := roles.get("bos_token")):
        twin.post_processor = TemplateProcessing([start, "$A"], special_tokens=[(start, twin.token_to_id(start))])
    return twin


def encode(tokenizer: Tokenizer, text: str) -> torch.Tensor:
    """Token ids of a text, (T,) int64."""
    return torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64)
