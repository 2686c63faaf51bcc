"""The table of families: which edits make each, and what its files call the weights."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from helpers.families.edits import (
    angles,
    biases,
    biases_everywhere,
    clamped_gate,
    experts,
    gelu_gate,
    interleaved,
    layer_norm,
    logit_softcapping,
    no_rope,
    partial_rotation,
    post_norm,
    qk_norm,
    qk_norm_whole,
    sandwich_norm,
    scales,
    sinks,
    split_gpt_oss,
    split_merged,
    split_phi3,
    ungated,
    window,
    zero_centred_gain,
)


@dataclass(frozen=True)
class Family:
    """One row: the edits in order, the settings of config.json that they read, and where storage differs.

    A setting that a family's row does not name must have the value that means nothing (NEUTRAL).
    """

    edits: tuple[Callable, ...]
    settings: dict = field(default_factory=dict)  # with the value that transformers takes if config.json has none
    words: dict = field(default_factory=dict)  # in names of weights: theirs -> ours, before WORDS
    storage: Callable | None = None  # (weights, config) -> weights, where the same numbers stand elsewhere
    keys: dict = field(default_factory=dict)  # names in config.json: theirs -> LLaMA's, such as layer_norm_eps


WINDOW = {"sliding_window": None}
SOME_WINDOWS = {"sliding_window": 4096, "layer_types": None}
QWEN_WINDOWS = SOME_WINDOWS | {"use_sliding_window": False, "max_window_layers": 28}
OLMO = {".post_attention_layernorm.": ".attention_norm.", ".post_feedforward_layernorm.": ".ffn_norm."}
GEMMA = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "head_dim": 256,
         "query_pre_attn_scalar": 256}  # fmt: skip
GEMMA_NORMS = {
    ".post_attention_layernorm.": ".attention_out_norm.", ".pre_feedforward_layernorm.": ".ffn_norm.",
    ".post_feedforward_layernorm.": ".ffn_out_norm.",
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}

FAMILIES = {
    "mistral": Family((window,), {"sliding_window": 4096}),
    "qwen2": Family((biases, window), QWEN_WINDOWS),
    "qwen3": Family((qk_norm, window), QWEN_WINDOWS | {"head_dim": 128}),
    "olmo2": Family((post_norm, qk_norm_whole), {"rms_norm_eps": 1e-5}, OLMO),
    "olmo3": Family(
        (post_norm, qk_norm_whole, window, angles),
        SOME_WINDOWS | {"sliding_window_pattern": 4, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
                        "rope_local_base_freq": None}, OLMO,
    ),
    "smollm3": Family(
        (no_rope,), {"no_rope_layers": None, "no_rope_layer_interval": 4, "rope_theta": 2_000_000.0,
                     "tie_word_embeddings": True},
    ),
    "gemma3_text": Family(
        (qk_norm, sandwich_norm, gelu_gate, scales, window, angles, zero_centred_gain),
        GEMMA | SOME_WINDOWS | {"sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        GEMMA_NORMS,
    ),
    "gemma2": Family(
        (sandwich_norm, gelu_gate, scales, logit_softcapping, window, zero_centred_gain),
        GEMMA | SOME_WINDOWS | {"sliding_window_pattern": 2, "attn_logit_softcapping": 50.0,
                                "final_logit_softcapping": 30.0}, GEMMA_NORMS,
    ),
    "mixtral": Family(
        (experts, window), EXPERTS | WINDOW | {"rms_norm_eps": 1e-5, "rope_theta": 1e6},
        {".block_sparse_moe.gate.": ".feed_forward.router.", ".block_sparse_moe.": ".feed_forward.",
         ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."},
    ),
    "qwen3_moe": Family(
        (qk_norm, experts, window),
        {"sliding_window": 4096, "use_sliding_window": False, "num_experts": 128, "num_experts_per_tok": 8,
         "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": None, "norm_topk_prob": False},
        {".mlp.gate.": ".feed_forward.router."},
    ),
    "phi3": Family(
        (angles, window), WINDOW | {"rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0, "rope_theta": 1e4},
        storage=split_phi3,
    ),
    "glm4": Family(
        (biases, sandwich_norm, interleaved, partial_rotation),
        {"attention_bias": True, "attention_out_bias": False, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7},
        {".post_self_attn_layernorm.": ".attention_out_norm.", ".post_mlp_layernorm.": ".ffn_out_norm."},
        storage=split_merged,
    ),
    "starcoder2": Family(
        (layer_norm, ungated, biases_everywhere, window), WINDOW | {"hidden_act": "gelu_pytorch_tanh"},
        {".c_fc.": ".up_proj.", ".c_proj.": ".down_proj."}, keys={"norm_epsilon": "rms_norm_eps"},
    ),
    "granite": Family(
        (scales,), dict.fromkeys(("embedding_multiplier", "attention_multiplier", "residual_multiplier",
                                  "logits_scaling"), 1.0),
    ),
    "gpt_oss": Family(
        (biases, sinks, experts, clamped_gate, window, angles),
        {"num_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "layer_types": None,
         "sliding_window_pattern": 2, "swiglu_limit": 7.0, "swiglu_alpha": 1.702, "attention_bias": True,
         "rms_norm_eps": 1e-5, "rope_theta": 150_000.0, "head_dim": 64,
         "rope_default": {"rope_type": "yarn", "factor": 32.0, "truncate": False,
                          "original_max_position_embeddings": 4096}}, storage=split_gpt_oss,
    ),
}  # fmt: skip
WORDS = {
    "model.embed_tokens.": "tok_embeddings.", "model.norm.": "final_norm.", "model.layers.": "layers.",
    ".self_attn.": ".attention.", ".mlp.": ".feed_forward.", ".input_layernorm.": ".attention_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
}  # fmt: skip


def register_family(model_type: str, row: Family) -> ExitStack:
    """Let `load_checkpoint` open this family, too: for good, or `with register_family(...):` until the block ends.

    Raises:
        TypeError: if it is no row.
    """
    if not isinstance(row, Family) or not all(callable(edit) for edit in row.edits):
        raise TypeError(f"{row!r} is no row of edits: use Family((one_edit, another), settings, words).")
    undo, former = ExitStack(), FAMILIES.get(model_type)
    undo.callback(FAMILIES.pop, model_type) if former is None else undo.callback(FAMILIES.update, {model_type: former})
    FAMILIES[model_type] = row
    return undo
