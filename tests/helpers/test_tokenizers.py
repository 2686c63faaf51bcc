"""A folder's tokenizer gives the ids of AutoTokenizer, or a refusal or a warning says not, with a remedy that works."""

import json
import warnings

import pytest
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer
from transformers.models.auto import tokenization_auto as auto

from beyond.families import FAMILIES
from helpers.assets import ASSETS
from helpers.text import load_tokenizer

pytestmark = pytest.mark.parity

TABLE = json.loads((ASSETS / "tokenizers" / "classes.json").read_text(encoding="utf-8"))
SPACES, IN_BYTES = normalizers.Replace(" ", "▁"), pre_tokenizers.ByteLevel(False)
BACK = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
FILES = {  # published settings: normaliser, words, decoder
    "Llama 2": (normalizers.Sequence([normalizers.Prepend("▁"), SPACES]), None,
                decoders.Sequence([*BACK, decoders.Strip(" ", 1, 0)])),
    "legacy": (None, pre_tokenizers.Metaspace(prepend_scheme="always", split=False),
               decoders.Sequence([*BACK, decoders.Strip(" ", 1, 0)])),
    "Yi": (SPACES, None, decoders.Sequence(BACK)), "GPT-2": (None, IN_BYTES, decoders.ByteLevel()),
    "SmolLM2": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(True), IN_BYTES]), decoders.ByteLevel()),
    "without its decoder": (None, IN_BYTES, None),
}  # fmt: skip
OPENS, WARNS, REFUSES = None, UserWarning, ValueError


def of(name, **more):
    return {"tokenizer_config": {"tokenizer_class": name} | more}


BACKEND, LLAMA, GPT2 = "PreTrainedTokenizerFast", "LlamaTokenizer", "GPT2Tokenizer"
BASE = of(BACKEND)
MASK = {"__type": "AddedToken", "content": "<mask>"}
ADDED = ["<s>", "</s>", "<unk>", "<|endoftext|>"]
PLAIN = {"content": "</s>", "special": False}
STRIPS = {str(n): {"content": one, "special": True, "lstrip": n == 3} for n, one in enumerate(ADDED)}
CASES = [  # file, model_type, other files
    ("Llama 2", "llama", BASE, OPENS), ("Llama 2", "mistral", of(LLAMA), OPENS),
    ("Llama 2", "llama", of("LlamaTokenizerFast"), WARNS), ("legacy", "llama", of(LLAMA, legacy=True), OPENS),
    ("Yi", "llama", of(LLAMA), REFUSES),
    ("Yi", "llama", of(LLAMA, add_prefix_space=False), OPENS), ("Yi", "gemma2", {}, WARNS),
    ("Llama 2", "gemma2", {}, REFUSES), ("SmolLM2", "llama", of(GPT2), WARNS),
    ("GPT-2", "llama", of(GPT2, split_special_tokens=True), OPENS),
    ("GPT-2", "llama", of(LLAMA), OPENS), ("GPT-2", "qwen2", BASE, WARNS),
    ("GPT-2", "llama", BASE | {"added_tokens": {"<mask>": 999}}, REFUSES),  # a token that tokenizer.json does not add
    ("GPT-2", "llama", BASE | {"special_tokens_map": {"additional_special_tokens": ["<mask>"]}}, REFUSES),
    ("GPT-2", "llama", of("TokenizersBackend", extra_special_tokens=["<mask>"], add_bos_token=True), REFUSES),
    ("GPT-2", "llama", of(GPT2, pad_token=MASK), REFUSES), ("GPT-2", "llama", of(GPT2, pad_token=None), OPENS),
    ("Llama 2", "llama", of("CodeLlamaTokenizer"), REFUSES), ("without its decoder", "llama", of(GPT2), REFUSES),
    ("GPT-2", "llama", of(GPT2, added_tokens_decoder=STRIPS), OPENS),
    ("GPT-2", "llama", of(GPT2, added_tokens_decoder={}), WARNS),  # the class has none of the file's then
    ("GPT-2", "llama", of("PreTrainedTokenizerFast", eos_token="</s>", added_tokens_decoder={"1": PLAIN}), OPENS),
    ("GPT-2", "llama", of(BACKEND, added_tokens_decoder=STRIPS) | {"special_tokens_map": {"pad_token": "[A]"}}, OPENS),
    ("GPT-2", "llama", of(BACKEND, added_tokens_decoder=STRIPS, pad_token=""), OPENS),  # empty, so no token
    ("GPT-2", "qwen2", of(BACKEND, auto_map={"AutoProcessor": "own.Own"}), WARNS),  # it is no tokenizer's
    ("GPT-2", "llama", of(LLAMA, auto_map={"AutoProcessor": "own.Own"}), OPENS),
    ("GPT-2, padded", "llama", BASE, OPENS), ("GPT-2, padded", "llama", of(GPT2), OPENS),
    ("GPT-2, padded", "llama", of(BACKEND, pad_token=None), OPENS),
    ("Yi, padded", "llama", of(LLAMA, add_prefix_space=False), OPENS),
    ("GPT-2, large", "mistral", of(BACKEND, fix_mistral_regex=True), REFUSES),
    ("GPT-2, large", "llama", of(BACKEND, fix_mistral_regex=True), OPENS),
]  # fmt: skip


@pytest.mark.parametrize(("file", "kind", "beside", "outcome"), CASES)
def test_ids_are_those_of_transformers_or_a_word_is_said(tmp_path, file, kind, beside, outcome):
    file, _, more = file.partition(", ")
    in_bytes = file not in ("Llama 2", "Yi", "legacy")
    tokenizer = Tokenizer(BPE(byte_fallback=not in_bytes, fuse_unk=not in_bytes))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = FILES[file]
    signs = pre_tokenizers.ByteLevel.alphabet() if in_bytes else [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = BpeTrainer(vocab_size=600, special_tokens=ADDED + signs, show_progress=False)
    tokenizer.train_from_iterator(["The cat's 2 hats sat on the mat in 1999, hello world.  x  1"] * 9, trainer)
    if more == "padded":
        tokenizer.enable_padding()  # the padding is [PAD], which is no token yet
    content = json.loads(tokenizer.to_str())
    if more == "large":
        vocab = content["model"]["vocab"]
        vocab |= {f"word {n}": n for n in range(len(vocab), 100_001)}
    content["added_tokens"] = content["added_tokens"][: len(ADDED)]
    for name, what in {"tokenizer": content, "config": {"model_type": kind}, **beside}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(what))
    (theirs := AutoTokenizer.from_pretrained(tmp_path)).save_pretrained(tmp_path / "new")  # the remedy
    with warnings.catch_warnings(action="error"):
        try:
            ours, said = load_tokenizer(tmp_path), None
        except (ValueError, UserWarning) as error:
            ours, said = load_tokenizer(tmp_path / "new"), type(error)
    assert said is outcome
    for text in [*TABLE["texts"], f"a<mask>[PAD] 1999 <eos> {ADDED[3]} b"]:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_file_for_a_version_of_transformers_is_not_overlooked(tmp_path):
    for name, vocab in {"tokenizer.json": {"a": 0, "b": 1}, "tokenizer.4.0.json": {"a": 1, "b": 0}}.items():
        Tokenizer(BPE(vocab, [])).save(str(tmp_path / name))
    config, settings = tmp_path / "tokenizer_config.json", BASE["tokenizer_config"]
    config.write_text(json.dumps(settings | {"fast_tokenizer_files": ["tokenizer.4.0.json", "tokenizer.json"]}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)("ab")["input_ids"]
    with pytest.raises(ValueError, match=r"Keep the one that counts, as tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.4.0.json").replace(tmp_path / "tokenizer.json")
    config.write_text(json.dumps(settings))
    assert load_tokenizer(tmp_path).encode("ab").ids == theirs == [1, 0]


@pytest.mark.parametrize(
    ("kind", "name"), [("llama", "RobertaTokenizer"), ("llama", "T5TokenizerFast"), ("longcat_flash", None)]
)
def test_a_class_that_is_not_compared_is_named(tmp_path, kind, name):
    Tokenizer(BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    for file, what in {"config": {"model_type": kind}, "tokenizer_config": {"tokenizer_class": name}}.items():
        (tmp_path / f"{file}.json").write_text(json.dumps(what))
    with pytest.warns(UserWarning, match=f"{(name or kind).removesuffix('Fast')}.*not compared"):
        load_tokenizer(tmp_path)


def test_the_table_is_what_transformers_does():
    for name, row in TABLE["classes"].items():
        one, ours = auto.tokenizer_class_from_name(name)(), dict(row)
        theirs = json.loads(one._tokenizer.to_str())
        assert one.special_tokens_map.items() <= ours.pop("tokens").items()
        if name == "CodeLlamaTokenizer":  # puts <s> before, whatever the file says; the code does that
            assert one("")["input_ids"] == [one.bos_token_id]
            ours.pop("post_processor")
        assert theirs | ours | {"model": theirs["model"] | ours["model"]} == theirs
    for name in filter(None, TABLE["as_it_stands"]):
        assert auto.tokenizer_class_from_name(name).__name__ in ("TokenizersBackend", "PythonBackend")
    classes = auto.TOKENIZER_MAPPING_NAMES
    win = {one for one in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS if classes[one] != "TokenizersBackend"}
    assert {*TABLE["model_types_that_win"]} == win
    assert TABLE["model_types"].keys() >= {"llama", *FAMILIES, *win}  # a new family gets its class there
    assert TABLE["model_types"] == {one: classes.get(one) for one in TABLE["model_types"]}
