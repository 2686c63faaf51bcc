"""What a family's config.json says: under the newest names, with what it leaves out, and what it may not ask for."""

from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from beyond.families.edits import Relative, angles
from beyond.families.registry import FAMILIES, TAUGHT, WEIGHT_NAMES
from helpers.config import LlamaConfig
from helpers.formats import hugging_face
from helpers.formats.fit import DAMAGE
from helpers.validate import require_whole, shown

PARTS = {"attention_bias", "hidden_act", "partial_rotary_factor"}  # not in plain LLaMA; read by a family's edits

UNKNOWN = {kind: f"it has a part that sees; its text part alone is a '{kind}_text'" for kind in ("gemma3", "llama4")}
SIZES = {
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "rope_theta",
    "rope_scaling", "rope_parameters", "is_causal", "per_layer_config",
}  # fmt: skip
EITHER = {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}  # has two names
PLACES = "rope_parameters", "rope_scaling"
NEUTRAL = {  # settings that change the function, with the value that does not
    "attention_bias": False, "mlp_bias": False, "use_bidirectional_attention": False, "use_sliding_window": False,
    "use_bias": True, "bias": False, "qkv_bias": False, "clip_qkv": None,
    "embedding_multiplier": 1, "attention_multiplier": None, "residual_multiplier": 1, "logits_scaling": 1,
    "partial_rotary_factor": 1, "hidden_act": "silu", "attention_chunk_size": None,
    **dict.fromkeys(("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
                     "num_experts", "no_rope_layers", "layer_types", "swiglu_limit", "hidden_activation")),
}  # fmt: skip
READ_BY = {  # by which of our families transformers 5.23 reads such a setting, besides those whose rows name it
    **dict.fromkeys(NEUTRAL.keys() - {"hidden_act", "partial_rotary_factor"}, ()),  # these two: by all
    "attention_bias": {*TAUGHT} - {"mistral", "qwen2", "mixtral", "phi3", "starcoder2"},
    "mlp_bias": ("smollm3", "granite", "internlm3", "iquestcoder"), "use_bias": ("starcoder2",),
    "bias": ("internlm3",), "qkv_bias": ("internlm3",), "clip_qkv": ("iquestcoder",), "sliding_window": ("smollm3",),
    "use_sliding_window": ("smollm3", "iquestcoder"), "layer_types": ("mistral", "smollm3"),
    "use_bidirectional_attention": ("gemma3_text",), "final_logit_softcapping": ("gemma3_text",),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FamilyConfig(LlamaConfig):
    """The sizes of a LLaMA, and what the edits of a family read."""

    family: str  # a row of FAMILIES
    # by the names of config.json; complete, rope_parameters with an entry for each kind of layer
    settings: dict = field(repr=False)

    def make(self) -> Relative:
        """A fresh model."""
        return make_relative(self)

    def require_class(self, kind: type):
        """ValueError unless the class has a relative's parts: a plain LLaMA would leave them out without a word."""
        if not issubclass(kind, Relative):
            raise ValueError(f"a {self.family!r} model has parts that {kind.__name__} has not: call config.make(), or "
                             "load_checkpoint or model_from_weights of beyond.families.")  # fmt: skip


def config_from_hugging_face(content: dict, source: str = "config.json") -> LlamaConfig:
    """The config of a config.json: a LlamaConfig for LLaMA, a FamilyConfig for its relatives.

    Raises:
        ValueError: if the file describes another architecture, or asks for a part that is not known here.
    """
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in {"llama", *FAMILIES}:
        why = f"{UNKNOWN[kind]}. " if isinstance(kind, str) and kind in UNKNOWN else ""
        raise ValueError(f"{source} describes a {shown(kind)} model, not 'llama': {why}This course reads LLaMA, "
                         f"such as SmolLM2-135M, and its relatives {', '.join(FAMILIES)}.")  # fmt: skip
    if kind == "llama":
        return hugging_face.config_from_hugging_face(content, source)
    as_llama = {name: content.get(name) for name in hugging_face.WEIGHTS} | {"model_type": "llama"}
    try:
        content = _complete(content)
        read = PARTS | (FAMILIES[kind].settings.keys() - SIZES)  # by the edits
        plain = {name: value for name, value in content.items() if name not in read}
        ropes = content["rope_parameters"]
        grows = [rope for rope in ropes.values() if rope["rope_type"] == "dynamic"]  # it ends where the sizes say
        scaling = {name: grows[0][name] for name in ("rope_type", "factor")} if grows else None
        plain |= {"rope_parameters": None, "rope_scaling": scaling, "rope_theta": ropes["full_attention"]["rope_theta"]}
    except DAMAGE as error:
        raise ValueError(f"{source}: {error}") from error
    sizes = hugging_face.config_from_hugging_face(plain | as_llama, source)
    settings = {name: value for name, value in content.items() if name not in SIZES or name == "rope_parameters"}
    return FamilyConfig(**vars(sizes), family=kind, settings=settings)


def _complete(content):
    """What config.json says, under the newest names, with what it leaves out and without what no edit reads."""
    kind = content["model_type"]
    row = FAMILIES[kind]
    known = row.settings | row.fixed
    for theirs, ours in row.keys.items():  # which name counts: theirs, or either
        clash = ours in EITHER or "experts" in ours if theirs in content else ours not in EITHER
        if ours in content and clash and content.get(theirs) != content[ours]:
            raise ValueError(f"{ours} is here, and {kind!r} calls it {theirs!r}: keep the one that transformers reads.")
    unread = {ours for theirs, ours in row.keys.items() if theirs in content}
    given = {row.keys.get(name, name): value for name, value in content.items() if name not in unread}
    content = row.settings | given | row.fixed
    computed = row.computed(content) if row.computed else {}
    content, known = content | computed, known | computed
    if "num_local_experts" in content:  # an older name
        content["num_experts"] = content["num_local_experts"]
    if "num_experts" in known:
        require_whole("num_experts", content["num_experts"], 1)
    if "use_sliding_window" in known and not content["use_sliding_window"]:
        content["sliding_window"] = None
    types = content.get("layer_types")
    if "sliding_window" not in known and isinstance(types, list) and all(one == "full_attention" for one in types):
        content["layer_types"] = None
    if content.get("hidden_act") == "swish":  # two names of one function
        content["hidden_act"] = "silu"
    content["rope_parameters"] = ropes = _ropes(content)
    if (turns := ropes["full_attention"]["rope_type"]) not in content.get("rope_types", (turns,)):
        raise ValueError(f"RoPE of type {turns!r} is no part of {kind!r}: use another one.")
    shares = [rope["partial_rotary_factor"] for rope in ropes.values()]
    content["partial_rotary_factor"] = next((share for share in shares if share != 1), 1.0)
    neutral = NEUTRAL | row.only
    for name in sorted(content.keys() - known.keys() - SIZES | row.only.keys() & content.keys()):
        value = content.pop(name)  # so that no edit reads what transformers would not read
        read = kind not in TAUGHT or kind in READ_BY.get(name, (kind,)) or name in row.only
        if name in neutral and read and value not in (neutral[name], None):
            raise ValueError(f"{name}={shown(value)} is no part of {kind!r} here, only {neutral[name]!r}: use another "
                             "one.")  # fmt: skip
    return content


def _ropes(content):
    """rope_parameters with an entry for each kind of layer, complete, as transformers makes it of every spelling."""
    given, scaling = (hugging_face.require_object(name, content.get(name)) for name in PLACES)
    bases = content.get("rope_bases")
    if not bases:
        rope = hugging_face.rope_from_hugging_face(content, content.get("rope_default") if given is None else None)
        return {"full_attention": rope, "sliding_attention": rope}
    if scaling is not None and given is not None and given.get("full_attention") is None:
        raise ValueError("rope_scaling needs rope_parameters with an entry full_attention beside it, or none at all.")
    top, ropes = {name: value for name, value in content.items() if name != hugging_face.TRAINED}, {}
    for kind, (name, base) in bases.items():  # what stands in no entry is not read
        own = hugging_face.require_object(kind, (given or {}).get(kind)) or {}
        if name is None and top.get("rope_theta") not in (None, base) and "rope_theta" not in own:
            entry = f'{{"rope_type": "default", "rope_theta": {shown(top["rope_theta"])}}}'
            raise ValueError("rope_theta at the top turns all layers in transformers 4, in 5 those that see all. Was "
                             f'the model made by 4? Then replace it by "rope_parameters": {{"full_attention": {entry}, '
                             f'"{kind}": {entry}}}, and move what rope_scaling says into the first entry.')  # fmt: skip
        both = (own or {"rope_type": "default"}) | scaling if scaling and kind == "full_attention" else None
        said = {"rope_theta": content.get(name, base), "rope_parameters": own, "rope_scaling": both}
        ropes[kind] = hugging_face.rope_from_hugging_face(top | said)
        ropes[kind].pop("truncate", None)  # transformers looks for it outside of the entries
    return ropes


def make_relative(config: FamilyConfig) -> Relative:
    """A fresh model of a family: a LLaMA of these sizes, edited as the table says.

    Raises:
        ValueError: if a setting does not fit.
    """
    model, edits = Relative(config, config.family), FAMILIES[config.family].edits
    for edit in edits if angles in edits else (angles, *edits):
        # one from elsewhere may compute with numbers, which the device "meta" has not
        with nullcontext() if edit.__module__.startswith(__package__) else torch.device("cpu"):
            edit(model, config.settings)
    return model


def our_weights(weights: dict, config: FamilyConfig) -> dict:
    """Weights of Hugging Face under our names, and cut as ours are; a name that is not known stays as it is.

    Raises:
        ValueError: if two weights get one name.
    """
    family = FAMILIES[config.family]
    renames = family.weight_names | {old: new for old, new in WEIGHT_NAMES.items() if old not in family.weight_names}
    ours = {}
    for theirs, weight in weights.items():
        name = theirs
        for old, new in renames.items():
            name = name.replace(old, new)
        if name.endswith((".attention.bias", ".attention.masked_bias")):  # a mask, in older files
            continue
        if name in ours:
            raise ValueError(f"two weights become {name}, one of them {theirs}")
        ours[name] = weight
    if family.unpack_weights:
        return family.unpack_weights({name: weight[...] for name, weight in ours.items()}, config)
    return ours
