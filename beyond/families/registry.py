"""The table of families: which edits make each, and what its files call the weights."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from beyond.families import edits


@dataclass(frozen=True)
class Family:
    """One row: the edits in order, the settings of config.json that they read, and how its files name and pack weights.

    A setting that a family's row does not name must have the value that means nothing (NEUTRAL).
    """

    edits: tuple[Callable, ...]
    settings: dict = field(default_factory=dict)  # with the value that transformers takes if config.json has none
    weight_names: dict = field(default_factory=dict)  # parts of names: theirs -> ours, before WEIGHT_NAMES
    unpack_weights: Callable | None = None  # (weights, config) -> weights, where the same numbers stand elsewhere
    keys: dict = field(default_factory=dict)  # names in config.json: theirs -> LLaMA's, such as layer_norm_eps
    fixed: dict = field(default_factory=dict)  # what edits read besides settings; no config.json changes it


def _left_out(n_kv_heads, longest, **more):
    """What transformers takes if config.json leaves it out."""
    return {"num_key_value_heads": n_kv_heads, "max_position_embeddings": longest} | more


WINDOW = {"sliding_window": None}
SOME_WINDOWS = {"sliding_window": 4096, "layer_types": None}
QWEN_WINDOWS = _left_out(32, 32_768, use_sliding_window=False, max_window_layers=28) | SOME_WINDOWS
OLMO = {".post_attention_layernorm.": ".attention_norm.", ".post_feedforward_layernorm.": ".ffn_norm."}
GEMMA = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "head_dim": 256,
         "query_pre_attn_scalar": 256, "num_attention_heads": 8, **SOME_WINDOWS}  # fmt: skip
GEMMA_NORMS = {
    ".post_attention_layernorm.": ".attention_out_norm.", ".pre_feedforward_layernorm.": ".ffn_norm.",
    ".post_feedforward_layernorm.": ".ffn_out_norm.",
}  # fmt: skip

FAMILIES = {
    "mistral": Family((edits.window,), _left_out(8, 131_072, sliding_window=4096)),
    "qwen2": Family((edits.biases, edits.window), QWEN_WINDOWS),
    "qwen3": Family((edits.qk_norm, edits.window), QWEN_WINDOWS | {"head_dim": 128}),
    "olmo2": Family((edits.post_norm, edits.qk_norm_whole), {"rms_norm_eps": 1e-5}, OLMO),
    "olmo3": Family(
        (edits.post_norm, edits.qk_norm_whole, edits.window, edits.angles), SOME_WINDOWS | {"rms_norm_eps": 1e-5}, OLMO,
        fixed={"sliding_window_pattern": 4, "rope_bases": {"full_attention": ("rope_theta", 500_000.0),
                                                           "sliding_attention": (None, 500_000.0)}},
    ),
    "smollm3": Family(
        (edits.no_rope,), _left_out(4, 32_768, no_rope_layers=None, no_rope_layer_interval=4, rope_theta=2_000_000.0,
                                    tie_word_embeddings=True),
    ),
    "gemma3_text": Family(
        (edits.qk_norm, edits.sandwich_norm, edits.gelu_gate, edits.scales, edits.window, edits.angles,
         edits.zero_centred_gain),
        GEMMA | _left_out(4, 131_072, sliding_window_pattern=6, vocab_size=262_208), GEMMA_NORMS,
        fixed={"rope_bases": {"full_attention": ("rope_theta", 1e6),
                              "sliding_attention": ("rope_local_base_freq", 1e4)}},
    ),
    "gemma2": Family(
        (edits.sandwich_norm, edits.gelu_gate, edits.scales, edits.logit_softcapping, edits.window,
         edits.zero_centred_gain),
        GEMMA | _left_out(4, 8192, attn_logit_softcapping=50.0, final_logit_softcapping=30.0), GEMMA_NORMS,
        fixed={"sliding_window_pattern": 2},
    ),
    "mixtral": Family(
        (edits.experts, edits.window),
        _left_out(8, 131_072, num_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5, rope_theta=1e6, **WINDOW),
        {".block_sparse_moe.gate.": ".feed_forward.router.", ".block_sparse_moe.": ".feed_forward.",
         ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj.", ".mlp.gate.": ".feed_forward.router."},
        unpack_weights=edits.split_experts,
    ),
    "qwen3_moe": Family(
        (edits.qk_norm, edits.experts, edits.window),
        _left_out(4, 32_768, sliding_window=4096, use_sliding_window=False, num_experts=128, num_experts_per_tok=8,
                  moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=None, norm_topk_prob=False),
        {".mlp.gate.": ".feed_forward.router."}, unpack_weights=edits.split_experts,
    ),
    "phi3": Family(
        (edits.partial_rotation, edits.window),
        _left_out(None, 4096, rms_norm_eps=1e-5, partial_rotary_factor=1.0, **WINDOW), unpack_weights=edits.split_phi3,
        fixed={"rope_types": ("default",)},
    ),
    "glm4": Family(
        (edits.biases, edits.sandwich_norm, edits.interleaved, edits.partial_rotation),
        _left_out(2, 131_072, head_dim=128, attention_bias=True, partial_rotary_factor=0.5, rms_norm_eps=1.5625e-7),
        {".post_self_attn_layernorm.": ".attention_out_norm.", ".post_mlp_layernorm.": ".ffn_out_norm."},
        unpack_weights=edits.split_merged, fixed={"attention_out_bias": False},
    ),
    "starcoder2": Family(
        (edits.layer_norm, edits.ungated, edits.biases_everywhere, edits.window),
        _left_out(2, 4096, hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-5, tie_word_embeddings=True, **WINDOW),
        {".c_fc.": ".up_proj.", ".c_proj.": ".down_proj."}, keys={"norm_epsilon": "rms_norm_eps"},
    ),
    "granite": Family(
        (edits.scales,), dict.fromkeys(("embedding_multiplier", "attention_multiplier", "residual_multiplier",
                                        "logits_scaling"), 1.0),
    ),
    "gpt_oss": Family(
        (edits.biases, edits.sinks, edits.experts, edits.clamped_gate, edits.window, edits.angles),
        _left_out(8, 131_072, num_experts=128, num_experts_per_tok=4, sliding_window=128, layer_types=None,
                  swiglu_limit=7.0, swiglu_alpha=1.702, attention_bias=True, rms_norm_eps=1e-5, rope_theta=150_000.0,
                  head_dim=64), unpack_weights=edits.split_experts,
        fixed={"sliding_window_pattern": 2,
               "rope_default": {"rope_type": "yarn", "factor": 32.0, "truncate": False,
                                "original_max_position_embeddings": 4096}},
    ),
    "internlm3": Family((), _left_out(2, 32_768, head_dim=128, rms_norm_eps=1e-5)),  # LLaMA under another name
    "iquestcoder": Family((), _left_out(8, 131_072, head_dim=128, rms_norm_eps=1e-5)),
}  # fmt: skip
WEIGHT_NAMES = {
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
        raise TypeError(f"{row!r} is no row of edits: use Family((one_edit, another), settings, weight_names).")
    undo, former = ExitStack(), FAMILIES.get(model_type)
    undo.callback(FAMILIES.pop, model_type) if former is None else undo.callback(FAMILIES.update, {model_type: former})
    FAMILIES[model_type] = row
    return undo
