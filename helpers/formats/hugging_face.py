"""The config that config.json gives of a LLaMA, with the RoPE settings in the old place or the new."""

from helpers.config import LlamaConfig
from helpers.validate import shown

TRAINED = "original_max_position_embeddings"
NEEDED = "factor", "low_freq_factor", "high_freq_factor"
ROPE_KEYS = {  # settings that transformers reads, by type of RoPE; only those of NEEDED must be there
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "llama3": (*NEEDED, TRAINED),
    "yarn": ("factor", TRAINED, "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),
}  # fmt: skip
BITS = "load_in_4bit", "load_in_8bit"
WEIGHTS = {  # settings about the weights, which are refused
    "quantization_config": "it says that weights are stored in a few bits each, as gpt-oss' are in MXFP4; this course "
    "reads 16 bits or more. Do the files hold 16 bits, as after a merge? Then remove the key. Else use a version that "
    "is not quantised.",
    "transformers_weights": "this course reads model.safetensors: give that file this name, and remove the key.",
}


def config_from_hugging_face(content: dict, source: str = "config.json") -> LlamaConfig:
    """The LlamaConfig of a LLaMA's config.json, with the RoPE settings in the old place or the new.

    Raises:
        ValueError: if the file is not complete, describes another model, or a part that this LLaMA does not have.
    """
    kind = content.get("model_type")
    if kind != "llama":
        raise ValueError(f"{source} describes a {shown(kind)} model, not 'llama': use a LLaMA, such as SmolLM2-135M, "
                         "or beyond.families.load_checkpoint, which opens LLaMA's relatives.")  # fmt: skip
    for name in WEIGHTS.keys() & content.keys():
        value = content[name]
        is_bitsandbytes = isinstance(value, dict) and value.get("quant_method") == "bitsandbytes"
        quantises_nothing = is_bitsandbytes and not any(map(value.get, BITS))
        if value is not None and not quantises_nothing:
            raise ValueError(f"{source} sets {name}={shown(value)}: {WEIGHTS[name]}")
    try:
        rope = _settings_of_type(rope_from_hugging_face(content))
        said = {name: rope.pop(name) for name in ("rope_type", "rope_theta", "partial_rotary_factor")}
        allowed = {"attention_bias": (False, None), "mlp_bias": (False, None), "hidden_act": ("silu", "swish", None)}
        allowed |= {"partial_rotary_factor": (1.0, None), "is_causal": (True,), "per_layer_config": (None,)}
        allowed |= {"rope_type": ("default", "linear", "llama3", "dynamic")}
        for name, values in allowed.items():  # the first value counts where the file has none
            value = (content | said).get(name, values[0])
            if value not in values:
                only = ", ".join(str(one) for one in values if one is not None) or None
                raise ValueError(f"it sets {name}={shown(value)}, which this model does not have (only {only}): use "
                                 "another checkpoint.")  # fmt: skip
        n_heads = content["num_attention_heads"]
        return LlamaConfig(
            vocab_size=content["vocab_size"], dim=content["hidden_size"], n_layers=content["num_hidden_layers"],
            n_heads=n_heads, n_kv_heads=content.get("num_key_value_heads") or n_heads,
            hidden_dim=content["intermediate_size"], head_dim=content.get("head_dim"),
            max_seq_len=content.get("max_position_embeddings", 2048), norm_eps=content.get("rms_norm_eps", 1e-6),
            rope_theta=said["rope_theta"], rope_scaling={"type": said["rope_type"]} | rope if rope else None,
            tie_embeddings=content.get("tie_word_embeddings") or False,
        )  # fmt: skip
    except KeyError as error:
        raise ValueError(f"{source} has no {error}, and this course does not know what counts in its place: add it, as "
                         "the model's authors give it.") from None  # fmt: skip
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{source}: {error}") from error


def rope_from_hugging_face(content: dict, otherwise: dict | None = None) -> dict:
    """The settings of RoPE in config.json, in the old place or the new, as transformers 5.23 completes it.

    Args:
        content: of config.json.
        otherwise: what counts if it says nothing.

    Returns:
        an entry of rope_parameters, with rope_type, rope_theta, partial_rotary_factor, and all numbers of its type.

    Raises:
        ValueError: if the two places contradict each other, or one names no known type, or lacks a number.
    """
    said = []
    for place in ("rope_scaling", "rope_parameters"):  # transformers lets the first win as a whole
        if require_object(place, content.get(place)):
            said.append(_complete_rope(content[place], content))
    counting = [_settings_of_type(rope) for rope in said]
    if len(said) == 2 and counting[0] != counting[1]:
        raise ValueError(f"rope_scaling says {shown(counting[0])}, rope_parameters says {shown(counting[1])}: remove "
                         "the wrong one (beside rope_scaling the base stands at the top, as rope_theta, and is 10,000 "
                         "without it).")  # fmt: skip
    return said[0] if said else _complete_rope(otherwise or {}, content)


def require_object(name, value) -> dict | None:
    """The value; ValueError unless it is an object of JSON, or null."""
    if not isinstance(value, dict | None):
        raise ValueError(f"{name}={shown(value)} must be an object or null.")
    return value


def _complete_rope(rope, content):
    """An entry with what the top of config.json says, and with the defaults of transformers, where it says nothing."""
    top = {name: content[name] for name in ("rope_theta", "partial_rotary_factor") if name in content}
    rope = {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0} | top | rope
    if layers := [name for name, value in rope.items() if isinstance(value, dict)]:
        raise ValueError(f"RoPE has entries {shown(layers)}, but all layers of this model turn alike: write one entry.")
    kind = rope.setdefault("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPE_KEYS:
        whose = " (Phi-3.5's, with a factor for each pair)" if kind == "longrope" else ""
        raise ValueError(f"RoPE type {shown(kind)}{whose} is not known here: use another checkpoint.")
    if missing := [name for name in ROPE_KEYS[kind] if name in NEEDED and name not in rope]:
        raise ValueError(f"RoPE of type {kind!r} needs {' and '.join(missing)}: add what the model was trained with.")
    if TRAINED in ROPE_KEYS[kind]:
        rope[TRAINED] = content.get(TRAINED, rope.get(TRAINED, content.get("max_position_embeddings", 2048)))
    return rope


def _settings_of_type(rope):
    """The settings that a RoPE of this type reads; transformers ignores the others."""
    names = "rope_type", "rope_theta", "partial_rotary_factor", *ROPE_KEYS[rope["rope_type"]]
    return {name: rope[name] for name in names if name in rope}
