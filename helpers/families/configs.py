"""What a family's config.json says: under the newest names, with what it leaves out, and what it may not ask for."""

from helpers.config import LlamaConfig
from helpers.families.edits import Relative, angles
from helpers.families.rows import FAMILIES, WORDS
from helpers.validate import require_positive_int

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
    "partial_rotary_factor": 1, "hidden_act": "silu", "quantization_config": None, "attention_chunk_size": None,
    **dict.fromkeys(("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
                     "num_experts", "no_rope_layers", "layer_types", "swiglu_limit", "hidden_activation")),
}  # fmt: skip


def settings_of(content: dict) -> dict:
    """What config.json says of a relative, under the newest names, with what it leaves out.

    Raises:
        ValueError: if a setting asks for a part that the family's edits do not give.
    """
    kind = content["model_type"]
    if kind not in FAMILIES:
        raise ValueError(f"model_type={kind!r} is not known: use one of {', '.join(FAMILIES)}.")
    known = FAMILIES[kind].settings
    content = known | content
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
        if "partial_rotary_factor" not in known and rope.get("partial_rotary_factor", 1) != 1:
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


def make_relative(config: LlamaConfig, content: dict) -> Relative:
    """A fresh model of a family: a LLaMA of this config, edited as the table says.

    Args:
        config: its sizes, and the turning speeds of families whose layers all turn alike.
        content: "model_type" and the settings of the family's row, as in config.json; what is left out takes the
            row's own value.

    Raises:
        ValueError: if the family is not known, or a setting does not fit.
    """
    content = settings_of(content)
    model = Relative(config, content["model_type"])
    for edit in FAMILIES[model.family].edits:
        edit(model, content)
    return model


def our_weights(weights: dict, config: LlamaConfig, content: dict) -> dict:
    """Weights of a relative under our names, and cut as ours are; a name that is not known stays as it is."""
    family = FAMILIES[content["model_type"]]
    ours = {}
    for theirs, weight in weights.items():
        name = theirs
        for old, new in (family.words | WORDS | family.words).items():
            name = name.replace(old, new)
        ours[theirs if name in ours else name] = weight
    return family.storage(ours, config, settings_of(content)) if family.storage else ours
