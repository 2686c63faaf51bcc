"""What a family's config.json says: under the newest names, with what it leaves out, and what it may not ask for."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from helpers.config import LlamaConfig
from helpers.families.edits import Relative, angles
from helpers.families.registry import FAMILIES, WEIGHT_NAMES
from helpers.formats import hugging_face
from helpers.formats.fit import DAMAGE
from helpers.validate import require_positive_int

PARTS = {"attention_bias", "hidden_act", "partial_rotary_factor"}  # not in plain LLaMA; read by a family's edits

UNKNOWN = {
    "llama4": "it reads in chunks", "deepseek_v3": "its attention is latent, and so is its cache",
    "gemma3": "it has a part that sees; its text part alone is a 'gemma3_text'", "llama4_text": "it reads in chunks",
}  # fmt: skip
SIZES = {
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "rope_theta",
    "rope_scaling", "rope_parameters",
}  # fmt: skip
NEUTRAL = {  # settings that change the function, with the value that does not
    "attention_bias": False, "mlp_bias": False, "use_bidirectional_attention": False, "use_sliding_window": False,
    "embedding_multiplier": 1, "attention_multiplier": None, "residual_multiplier": 1, "logits_scaling": 1,
    "partial_rotary_factor": 1, "hidden_act": "silu", "attention_chunk_size": None,
    **dict.fromkeys(("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
                     "num_experts", "no_rope_layers", "layer_types", "swiglu_limit", "hidden_activation")),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FamilyConfig(LlamaConfig):
    """The sizes of a LLaMA, and what the edits of a family read."""

    family: str  # a row of FAMILIES
    settings: dict  # by the names of config.json; complete


def config_from_hugging_face(content: dict, source: str = "config.json") -> LlamaConfig:
    """The config of a config.json: a LlamaConfig for LLaMA, a FamilyConfig for its relatives.

    Raises:
        ValueError: if the file describes another architecture, or asks for a part that is not known here.
    """
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in {"llama", *FAMILIES}:
        why = f"{UNKNOWN[kind]}. " if isinstance(kind, str) and kind in UNKNOWN else ""
        raise ValueError(
            f"{source} describes a {kind!r} model, not 'llama': {why}This course reads LLaMA, such as SmolLM2-135M, "
            f"and its relatives {', '.join(FAMILIES)}."
        )
    if kind == "llama":
        return hugging_face.config_from_hugging_face(content, source)
    as_llama = {"model_type": "llama", "quantization_config": content.get("quantization_config")}
    try:
        content = _complete(content)
        read = PARTS | (FAMILIES[kind].settings.keys() - SIZES)  # by the edits
        plain = {name: value for name, value in content.items() if name not in read}
        if angles in FAMILIES[kind].edits:
            full = content["rope_parameters"]["full_attention"]
            plain |= {"rope_parameters": None, "rope_scaling": None, "rope_theta": full["rope_theta"]}
    except DAMAGE as error:
        raise ValueError(f"{source}: {error}") from error
    sizes = hugging_face.config_from_hugging_face(plain | as_llama, source)
    settings = {name: value for name, value in content.items() if name not in SIZES or name == "rope_parameters"}
    return FamilyConfig(**vars(sizes), family=kind, settings=settings)


def _complete(content):
    """What config.json says, under the newest names, with what it leaves out and without what no edit reads."""
    kind = content["model_type"]
    known, keys = FAMILIES[kind].settings, FAMILIES[kind].keys
    content = known | {keys.get(name, name): value for name, value in content.items()}
    if "num_local_experts" in content:  # an older name
        content["num_experts"] = content["num_local_experts"]
    if "num_experts" in known:
        require_positive_int("num_experts", content["num_experts"])
    if "use_sliding_window" in known and not content["use_sliding_window"]:
        content |= {"sliding_window": None, "layer_types": None}
    ropes = [content.get("rope_parameters"), content.get("rope_scaling")]
    if all(ropes):
        raise ValueError("rope_parameters and rope_scaling are both set: remove one of them, the older rope_scaling.")
    for rope in (rope for place in ropes if place for rope in (place, *place.values()) if isinstance(rope, dict)):
        if rope.get("partial_rotary_factor", 1) != 1:
            content["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if "sliding_window" not in known and set(content.get("layer_types") or ()) == {"full_attention"}:
        content["layer_types"] = None
    for name in sorted(content.keys() - known.keys() - SIZES):
        value = content.pop(name)  # so that no edit reads what transformers would not read
        if name in NEUTRAL and value not in (NEUTRAL[name], None):
            raise ValueError(f"{name}={value!r} is no part of {kind!r} here, only {NEUTRAL[name]!r}: use another one.")
    if angles in FAMILIES[kind].edits:
        content |= {"rope_parameters": _rope_by_layer_type(content), "rope_scaling": None}
    return content


def _rope_by_layer_type(content):
    """rope_parameters with an entry for each kind of layer, as in the newest files."""
    given = content.get("rope_parameters") or {}
    flat = {name: value for name, value in given.items() if not isinstance(value, dict)}
    flat |= content.get("rope_scaling") or ({} if given else content.get("rope_default", {}))
    if "type" in flat:
        flat["rope_type"] = flat.pop("type")
    start = {name: content[name] for name in ("rope_theta", "partial_rotary_factor") if name in content}
    full = start | flat | (given.get("full_attention") or {})
    sliding = full
    if "rope_local_base_freq" in content:  # scaled are only the layers that see everything
        local = {"rope_theta": content["rope_local_base_freq"] or content["rope_theta"]}
        sliding = local | (given.get("sliding_attention") or {})
    return {"full_attention": full, "sliding_attention": sliding}


def make_relative(config: FamilyConfig) -> Relative:
    """A fresh model of a family: a LLaMA of these sizes, edited as the table says.

    Raises:
        ValueError: if a setting does not fit.
    """
    model = Relative(config, config.family)
    for edit in FAMILIES[config.family].edits:
        # one from elsewhere may compute with numbers, which the device "meta" has not
        with nullcontext() if edit.__module__ == Relative.__module__ else torch.device("cpu"):
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
        if name in ours:
            raise ValueError(f"two weights become {name}, one of them {theirs}")
        ours[name] = weight
    if family.unpack_weights:
        return family.unpack_weights({name: weight[...] for name, weight in ours.items()}, config)
    return ours
