"""The table of families: which edits make each, and what its files call the weights."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from beyond.families import edits
from beyond.families import more_edits as more
from helpers.formats.hugging_face import require_object
from helpers.validate import shown


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
    only: dict = field(default_factory=dict)  # settings that transformers reads, with the one value that is known here
    computed: Callable | None = None  # (what config.json says, complete) -> {setting: value} that follows from others


def _left_out(n_kv_heads, longest, **more):
    """What transformers takes if config.json leaves it out."""
    return {"num_key_value_heads": n_kv_heads, "max_position_embeddings": longest} | more


SCALES = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
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
    "granite": Family((edits.scales,), dict.fromkeys(SCALES, 1.0)),
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
TAUGHT = tuple(FAMILIES)  # notebook 08 takes these apart; docs/atlas.md lists the others
MOE = {
    ".mlp.gate.e_score_correction_bias": ".feed_forward.choice_bias",
    ".block_sparse_moe.e_score_correction_bias": ".feed_forward.choice_bias",
    ".mlp.e_score_correction_bias": ".feed_forward.choice_bias", ".mlp.gate.": ".feed_forward.router.",
    ".shared_experts.": ".shared.",
}  # fmt: skip
LATENT = {".q_a_layernorm.": ".q_a_norm.", ".kv_a_layernorm.": ".kv_a_norm.", ".kv_a_proj_with_mqa.": ".kv_a_proj."}
OLD_NAMES = {
    ".dense_h_to_4h.": ".up_proj.", ".dense_4h_to_h.": ".down_proj.", "transformer.": "", "wte.": "tok_embeddings.",
    "word_embeddings.": "tok_embeddings.", "word_embeddings_layernorm.": "tok_embeddings.norm.",
    "wpe.weight": "tok_embeddings.table", "ln_f.": "final_norm.",
    "h.": "layers.", ".ln_1.": ".attention_norm.", ".ln_attn.": ".attention_norm.", ".ln_2.": ".ffn_norm.",
    ".ln_mlp.": ".ffn_norm.", ".attn.c_proj.": ".attention.o_proj.", ".self_attention.dense.": ".attention.o_proj.",
    ".attn.out_proj.": ".attention.o_proj.", ".attn.": ".attention.", ".self_attention.": ".attention.",
    ".c_fc.": ".up_proj.", ".mlp.c_proj.": ".feed_forward.down_proj.", ".fc_in.": ".up_proj.",
    ".fc_out.": ".down_proj.",
}  # fmt: skip
OPT = {".self_attn_layer_norm.": ".attention_norm.", ".final_layer_norm.": ".ffn_norm.", ".out_proj.": ".o_proj.",
       ".fc1.": ".feed_forward.up_proj.", ".fc2.": ".feed_forward.down_proj."}  # fmt: skip
OLD_KEYS = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
            "n_positions": "max_position_embeddings", "layer_norm_epsilon": "rms_norm_eps",
            "activation_function": "hidden_act"}  # fmt: skip
MOSAIC = {"transformer.wte.": "tok_embeddings.", "transformer.norm_f.": "final_norm.", "transformer.blocks.": "layers.",
          ".norm_attn_norm.": ".", ".norm_1.": ".attention_norm.", ".norm_2.": ".ffn_norm.",
          ".attn.Wqkv.": ".attention.qkv_proj.", ".attn.out_proj.": ".attention.o_proj.", ".ffn.": ".feed_forward.",
          ".router.layer.": ".router.", ".experts.mlp.w1": ".experts.gate_proj", ".experts.mlp.v1": ".experts.up_proj",
          ".experts.mlp.w2": ".experts.down_proj"}  # fmt: skip
MOSAIC_KEYS = {"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
               "max_seq_len": "max_position_embeddings"}  # fmt: skip
PLAIN_ROPE = {"rope_theta": 10_000.0, "rope_scaling": None, "rope_parameters": None}  # whatever config.json says
FULL, SLIDES = "full_attention", "sliding_attention"


def _layers(content, slides):
    """layer_types as listed, or a window where `slides` says so of the layer's number."""
    listed, count = content.get("layer_types"), range(content["num_hidden_layers"])
    return {"layer_types": [SLIDES if slides(layer) else FULL for layer in count] if listed is None else listed}


def _shared(content):
    """How wide the shared experts are together."""
    n_shared = content["n_shared_experts"]
    return {"shared_expert_intermediate_size": n_shared and n_shared * content["moe_intermediate_size"]}


def _split_transposed(weights, config):
    return edits.split_experts({name: one.mT if one.ndim == 3 else one for name, one in weights.items()}, config)


def _split_and_turn(weights, config):
    return edits.turned_first(edits.split_experts(weights, config), config)


def _four_times(content):
    """The feed-forward's width in older files."""
    return {"intermediate_size": content.get("n_inner") or 4 * content["hidden_size"]}


def _turned_by_number(content):
    """The share of a head that turns, from a number of coordinates."""
    width = content["hidden_size"] // content["num_attention_heads"]
    return _four_times(content) | {"partial_rotary_factor": (content["rotary_dim"] or width) / width}


def _gemma(content):  # "gelu" of its first files means the tanh form
    act = "gelu_pytorch_tanh" if content["hidden_activation"] == "gelu" else content["hidden_activation"]
    return {"query_pre_attn_scalar": content["head_dim"], "hidden_activation": act}


def _llama4(content):
    """What layers do in Llama 4, where those that turn see a chunk, and others' queries grow."""
    n_layers, step = content["num_hidden_layers"], content["interleave_moe_layer_step"]
    sparse = range(step - 1, n_layers, step) if content["moe_layers"] is None else content["moe_layers"]
    turns = edits.layers_that_turn(content | {"no_rope_layers": content["no_rope_layers"] or None}, n_layers)
    still = [layer for layer in range(n_layers) if not turns[layer] and content["attn_temperature_tuning"]]
    kinds = content["layer_types"] or ["chunked_attention" if one else FULL for one in turns]
    return {"no_rope_layers": turns, "layer_types": kinds, "moe_intermediate_size": content["intermediate_size"],
            "mlp_layer_types": ["sparse" if layer in sparse else "dense" for layer in range(n_layers)],
            "shared_expert_intermediate_size": content["intermediate_size"],
            "intermediate_size": content["intermediate_size_mlp"],
            "temperature": (content["attn_scale"], content["floor_scale"], 1.0, still)}  # fmt: skip


def _embedding(content, scaled):
    """For `scales`: the embedding times the root of its width, or as it is."""
    width = content.get("head_dim") or content["hidden_size"] // content["num_attention_heads"]
    by = content["hidden_size"] ** 0.5 if scaled else 1.0
    return dict.fromkeys(SCALES, 1.0) | {"embedding_multiplier": by, "attention_multiplier": width**-0.5}


def _latent(content):
    """How wide a head is: what stands still and what turns."""
    return {"head_dim": content["qk_nope_head_dim"] + content["qk_rope_head_dim"]}


def _neo(content):
    """GPT-Neo lists its layers in groups: so many times these kinds."""
    groups = content["attention_types"] or [[["global", "local"], 12]]
    listed = content.get("attention_layers") or [kind for kinds, times in groups for kind in kinds * times]
    return {"layer_types": [SLIDES if kind == "local" else FULL for kind in listed],
            "intermediate_size": content["intermediate_size"] or 4 * content["hidden_size"]}  # fmt: skip


def _mpt(content):
    """What stands in an object of its own in MPT's config.json, of which `transformers` reads two settings."""
    attention = require_object("attn_config", content.get("attn_config")) or {}
    scale = {} if attention.get("softmax_scale") is None else {"attention_multiplier": attention["softmax_scale"]}
    return _four_times(content) | _embedding(content, False) | {"clip_qkv": attention.get("clip_qkv") or None} | scale


def _dbrx(content):
    """DBRX has two such objects."""
    attention, ffn = (require_object(name, content.get(name)) or {} for name in ("attn_config", "ffn_config"))
    power = ffn.get("moe_normalize_expert_weights", 1.0)
    return {"num_key_value_heads": attention.get("kv_n_heads", 1), "clip_qkv": attention.get("clip_qkv"),
            "intermediate_size": ffn.get("ffn_hidden_size", 3584), "num_experts": ffn.get("moe_num_experts", 4),
            "num_experts_per_tok": ffn.get("moe_top_k", 1), "norm_topk_prob": power is not None, "power": power,
            "hidden_act": (ffn.get("ffn_act_fn") or {}).get("name", "silu")}  # fmt: skip


def _axk1(content):
    """Sparse layers as listed, or by the older rule."""
    first, step = content.get("first_k_dense_replace", 1), content.get("moe_layer_freq", 1)
    kinds = ["sparse" if n >= first and n % step == 0 else "dense" for n in range(content["num_hidden_layers"])]
    return _latent(content) | _shared(content) | {"mlp_layer_types": content["mlp_layer_types"] or kinds}


def _cohere2_moe(content):
    """Prefix layers are dense, with windows of their own rule, and turn in any case if that rule is 1."""
    first, every, fn = (content[name] for name in ("first_k_dense_replace", "prefix_dense_sliding_window_pattern",
                                                   "expert_selection_fn"))  # fmt: skip
    n_layers, kinds, rms = content["num_hidden_layers"], content["mlp_layer_types"], content["rms_norm_eps"]
    kinds = ["dense" if layer < first else "sparse" for layer in range(n_layers)] if kinds is None else kinds
    shares, strategy = {"average": 0.5, "sum": 1.0}, content["shared_expert_combination_strategy"]
    if fn not in ("softmax", "sigmoid") or strategy not in shares:
        raise ValueError(f"expert_selection_fn={shown(fn)} must be softmax or sigmoid, and "
                         f"shared_expert_combination_strategy={shown(strategy)} average or sum.")  # fmt: skip
    return _shared(content | {"moe_intermediate_size": content["intermediate_size"]}) | _layers(
        content, lambda layer: (layer + 1) % every if layer < first else
        (layer - first + 1) % content["sliding_window_pattern"]) | {
        "mlp_layer_types": kinds, "turns_anyway": [n for n, one in enumerate(kinds) if one == "dense" and every == 1],
        "moe_intermediate_size": content["intermediate_size"], "squash": fn, "share_of_sum": shares[strategy],
        "intermediate_size": content["prefix_dense_intermediate_size"] or content["intermediate_size"],
        "norm_topk_prob": fn == "softmax" or content["norm_topk_prob"], "norms_are_centred": rms is None,
        "rms_norm_eps": content["layer_norm_eps"] if rms is None else rms}  # fmt: skip


def _beam(content):
    """A kind of layers without an entry in rope_parameters stands still, and its queries grow."""
    ropes = require_object("rope_parameters", content.get("rope_parameters"))
    kinds = _layers(content, lambda layer: (layer + 1) % 6 and layer + 1 < content["num_hidden_layers"])
    turns = [int(kind == SLIDES if ropes is None else ropes.get(kind) is not None) for kind in kinds["layer_types"]]
    still = [layer for layer, one in enumerate(turns) if not one]
    return kinds | {"no_rope_layers": turns, "temperature": (0.1, 2048, 1, still)}


MINISTRAL = {"rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
             "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1}  # fmt: skip
ROUTED = {"n_shared_experts": 1, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True}
EXPERTS = {"keys": {"n_routed_experts": "num_experts"}, "unpack_weights": edits.split_experts}
DEEPSEEK = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128, "attention_bias": False}  # fmt: skip
FAMILIES |= {
    "arcee": Family((edits.ungated, edits.biases),
        _left_out(None, 4096, hidden_act="relu2", attention_bias=False, rms_norm_eps=1e-5)),
    "cwm": Family((edits.window,),
        _left_out(8, 131_072, head_dim=128, rms_norm_eps=1e-5, rope_theta=1e6, sliding_window=8192, layer_types=None),
        computed=lambda content: _layers(content, lambda layer: layer % 4),
        fixed={"rope_default": {"rope_type": "llama3", "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192}}),
    "ernie4_5": Family((edits.interleaved, edits.biases_everywhere),
        _left_out(2, 131_072, head_dim=128, rms_norm_eps=1e-5, rope_theta=500_000.0, use_bias=False,
        tie_word_embeddings=True)),
    "flex_olmo": Family((edits.post_norm, edits.qk_norm_whole, edits.experts, edits.biases),
        _left_out(None, 4096, num_experts=7, num_experts_per_tok=5, norm_topk_prob=False, attention_bias=False,
        rope_theta=500_000.0), OLMO | MOE, edits.split_experts),
    "gemma": Family((edits.gelu_gate, edits.scales, edits.zero_centred_gain),
        _left_out(16, 8192, num_attention_heads=16, head_dim=256, hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True), keys={"hidden_act": "hidden_activation"}, computed=_gemma),
    "jais2": Family((edits.layer_norm, edits.ungated, edits.biases_everywhere),
        _left_out(None, 8192, hidden_act="relu2", rms_norm_eps=1e-5), keys={"layer_norm_eps": "rms_norm_eps"},
        only={"attention_bias": True, "mlp_bias": True}),
    "mellum": Family((edits.qk_norm, edits.experts, edits.window, edits.biases),
        _left_out(4, 131_072, head_dim=128, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=896,
        norm_topk_prob=True, mlp_layer_types=None, sliding_window=1024, layer_types=None, attention_bias=False), MOE,
        edits.split_experts, computed=lambda content: _layers(content, lambda layer: False),
        fixed={"rope_bases": {FULL: (None, 500_000.0), SLIDES: (None, 10_000.0)}}),
    "ministral": Family((edits.window,), _left_out(8, 131_072, sliding_window=4096, layer_types=None)),
    "olmoe": Family((edits.qk_norm_whole, edits.experts, edits.biases),
        _left_out(None, 4096, num_experts=64, num_experts_per_tok=8, norm_topk_prob=False, attention_bias=False,
        rms_norm_eps=1e-5), MOE, edits.split_experts),
    "stablelm": Family((edits.partial_rotation, edits.layer_norm, edits.biases),
        _left_out(None, 4096, partial_rotary_factor=0.25, rms_norm_eps=1e-5, attention_bias=False), {},
        edits.turned_first, {"layer_norm_eps": "rms_norm_eps", "use_qkv_bias": "attention_bias"},
        {"attention_out_bias": False}, {"qk_layernorm": False, "use_parallel_residual": False}),
    "vaultgemma": Family((edits.gelu_gate, edits.scales, edits.logit_softcapping, edits.window,
        edits.zero_centred_gain), GEMMA | _left_out(4, 8192, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        {".pre_feedforward_layernorm.": ".ffn_norm."}, fixed={"sliding_window_pattern": 2}),
    # a router by sigmoid, a shared expert
    "qwen2_moe": Family((edits.biases, edits.experts, more.shared_expert, edits.window),
        _left_out(16, 32_768, num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632, decoder_sparse_step=1, mlp_only_layers=None, norm_topk_prob=False,
        attention_bias=True, use_sliding_window=False, sliding_window=4096, max_window_layers=28, layer_types=None), MOE
        | {".shared_expert.": ".shared.", ".shared_expert_gate.": ".shared_gate."}, edits.split_experts,
        {"qkv_bias": "attention_bias"}, {"attention_out_bias": False, "shared_gate": True},
        computed=lambda content: _layers(content, lambda layer: content["use_sliding_window"] and layer % 2 == 0 and
        layer < content["max_window_layers"])),
    "dots1": Family((edits.qk_norm, edits.experts, more.router, more.shared_expert, edits.window, edits.biases),
        ROUTED | _left_out(32, 2048, num_experts=None, num_experts_per_tok=None, moe_intermediate_size=1408,
        n_shared_experts=None, first_k_dense_replace=0, norm_topk_prob=False, sliding_window=4096, max_window_layers=62,
        layer_types=None, attention_bias=False), MOE, computed=_shared, **EXPERTS),
    "hy_v3": Family((edits.qk_norm, edits.experts, more.router, more.shared_expert, edits.biases),
        _left_out(8, 131_072, head_dim=128, num_experts=192, num_experts_per_tok=8, n_shared_experts=1,
        moe_intermediate_size=1536, routed_scaling_factor=2.826, mlp_layer_types=None, rms_norm_eps=1e-5,
        rope_theta=11_158_840.0, attention_bias=False), MOE | {".mlp.router.gate.": ".feed_forward.router.",
        ".mlp.expert_bias": ".feed_forward.choice_bias", ".shared_mlp.": ".shared."}, edits.split_experts,
        {"num_shared_experts": "n_shared_experts", "router_scaling_factor": "routed_scaling_factor"},
        {"first_k_dense_replace": 1}, computed=_shared),
    "solar_open": Family((edits.biases, edits.experts, more.router, more.shared_expert),
        ROUTED | _left_out(8, 131_072, head_dim=128, num_experts=128, num_experts_per_tok=8, rms_norm_eps=1e-5,
        moe_intermediate_size=1280, rope_theta=1e6, attention_bias=False), MOE, fixed={"attention_out_bias": False},
        **EXPERTS, computed=lambda content: _shared(content) | {"intermediate_size": content["moe_intermediate_size"]}),
    "glm4_moe": Family((edits.biases, edits.qk_norm, edits.partial_rotation, edits.experts, more.router,
        more.shared_expert), ROUTED | _left_out(8, 131_072, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=1408, first_k_dense_replace=1, use_qk_norm=False, partial_rotary_factor=0.5,
        rms_norm_eps=1e-5, attention_bias=False), MOE, _split_and_turn, {"n_routed_experts": "num_experts"},
        {"attention_out_bias": False}, computed=_shared),
    "minimax_m2": Family((edits.qk_norm_whole, edits.partial_rotation, edits.experts, more.router),
        _left_out(8, 196_608, head_dim=128, num_experts=256, num_experts_per_tok=8, rope_theta=5e6, rotary_dim=None),
        MOE | {".block_sparse_moe.gate.": ".feed_forward.router.", ".block_sparse_moe.": ".feed_forward.",
        ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}, _split_and_turn,
        computed=lambda content: {"partial_rotary_factor": content.get("partial_rotary_factor", (content["rotary_dim"]
        or content["head_dim"]) / content["head_dim"])}),
    "afmoe": Family((edits.qk_norm, edits.sandwich_norm, more.out_gate, edits.scales, edits.window, more.still_if_full,
        edits.experts, more.router, more.shared_expert, edits.biases), _left_out(16, 16_384, head_dim=128,
        num_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1,
        routed_scaling_factor=1.0, sliding_window=1024, global_attn_every_n_layers=4, layer_types=None,
        mup_enabled=False, attention_bias=False, rms_norm_eps=1e-5), MOE | GEMMA_NORMS |
        {".mlp.router.gate.": ".feed_forward.router.", ".mlp.expert_bias": ".feed_forward.choice_bias",
        ".pre_mlp_layernorm.": ".ffn_norm.", ".post_mlp_layernorm.": ".ffn_out_norm."}, edits.split_experts,
        {"num_shared_experts": "n_shared_experts", "num_dense_layers": "first_k_dense_replace",
        "route_scale": "routed_scaling_factor"}, computed=lambda content: _shared(content) | _embedding(content,
        content["mup_enabled"]) | _layers(content, lambda layer: (layer + 1) % content["global_attn_every_n_layers"])),
    # keys and values from one short vector
    "deepseek_v2": Family((more.latent, edits.experts, more.router, more.shared_expert),
        ROUTED | DEEPSEEK | _left_out(None, 2048, num_experts=64, num_experts_per_tok=None, n_shared_experts=2,
        moe_intermediate_size=1407, first_k_dense_replace=0, topk_method="greedy", n_group=None, topk_group=None), MOE |
        LATENT, fixed={"squash": "softmax", "choice_bias": False, "group_top": 1, "norm_topk_prob": False},
        computed=lambda content: _latent(content) | _shared(content) | ({"n_group": 1, "topk_group": 1} if
        content["topk_method"] == "greedy" else {}), **EXPERTS),
    "deepseek_v3": Family((more.latent, edits.experts, more.router, more.shared_expert),
        ROUTED | DEEPSEEK | _left_out(128, 4096, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048,
        first_k_dense_replace=3, rope_interleave=True, routed_scaling_factor=2.5, n_group=8, topk_group=4), MOE |
        LATENT, computed=lambda content: _latent(content) | _shared(content), **EXPERTS),
    "glm4_moe_lite": Family((more.latent, edits.experts, more.router, more.shared_expert),
        ROUTED | DEEPSEEK | _left_out(20, 202_752, num_experts=64, num_experts_per_tok=4, moe_intermediate_size=1536,
        mlp_layer_types=None, rope_interleave=True, routed_scaling_factor=1.8, q_lora_rank=768, v_head_dim=256,
        qk_nope_head_dim=192, rms_norm_eps=1e-5), MOE | LATENT, computed=lambda content: _latent(content) |
        _shared(content), fixed={"first_k_dense_replace": 1}, **EXPERTS),
    "youtu": Family((more.latent,),
        DEEPSEEK | _left_out(16, 131_072, rope_interleave=True, tie_word_embeddings=True), LATENT, computed=_latent),
    "minicpm3": Family((more.latent, edits.scales),
        DEEPSEEK | _left_out(40, 32_768, kv_lora_rank=256, q_lora_rank=768, qk_nope_head_dim=64, qk_rope_head_dim=32,
        v_head_dim=None, scale_emb=12, scale_depth=1.4, dim_model_base=256, rms_norm_eps=1e-5,
        tie_word_embeddings=True), LATENT, fixed={"rope_interleave": False}, computed=lambda content: _latent(content) |
        {"v_head_dim": content["v_head_dim"] or content["hidden_size"] // content["num_attention_heads"],
        "embedding_multiplier": content["scale_emb"], "attention_multiplier": 1.0, "residual_multiplier": 1 if
        content["scale_depth"] is None else content["scale_depth"] / content["num_hidden_layers"] ** 0.5,
        "logits_scaling": content["hidden_size"] / (content["dim_model_base"] or content["hidden_size"])}),
    # side by side
    "cohere2": Family((more.parallel, edits.interleaved, edits.window, more.still_if_full, more.logit_scale,
        edits.layer_norm, edits.biases), _left_out(None, 8192, rms_norm_eps=1e-5, sliding_window=4096,
        sliding_window_pattern=4, layer_types=None, logit_scale=0.0625, tie_word_embeddings=True, attention_bias=False),
        keys={"layer_norm_eps": "rms_norm_eps"}, fixed={"norm_bias": False},
        computed=lambda content: {"head_dim": content["hidden_size"] // content["num_attention_heads"]}),
    "phi": Family((more.parallel, edits.partial_rotation, edits.ungated, edits.biases_everywhere, edits.layer_norm,
        more.head_bias), _left_out(None, 2048, hidden_act="gelu_new", partial_rotary_factor=0.5, rms_norm_eps=1e-5),
        {".final_layernorm.": ".norm.", ".dense.": ".o_proj.", ".fc1.": ".up_proj.", ".fc2.": ".down_proj."},
        edits.turned_first, {"layer_norm_eps": "rms_norm_eps"}, only={"qk_layernorm": False}),
    "falcon": Family((more.parallel, edits.ungated, edits.layer_norm, edits.biases_everywhere),
        _left_out(None, 2048, hidden_act="gelu", rms_norm_eps=1e-5, multi_query=True, new_decoder_architecture=False,
        num_kv_heads=None, ffn_hidden_size=None, num_ln_in_parallel_attn=None, use_bias=False,
        tie_word_embeddings=True), OLD_NAMES, more.split_by_key_head, {"layer_norm_epsilon": "rms_norm_eps",
        "activation": "hidden_act", "bias": "use_bias"}, only={"alibi": False, "parallel_attn": True},
        computed=lambda content: {"intermediate_size": content["ffn_hidden_size"] or 4 * content["hidden_size"],
        "parallel_norms": content["num_ln_in_parallel_attn"] or 1 + content["new_decoder_architecture"],
        "num_key_value_heads": content["num_kv_heads"] if content["new_decoder_architecture"] else 1 if
        content["multi_query"] else content["num_attention_heads"]}),
    # a vector for each position
    "gpt2": Family((more.learned_positions, edits.ungated, edits.layer_norm, edits.biases_everywhere),
        _left_out(None, 1024, hidden_act="gelu_new", rms_norm_eps=1e-5, n_inner=None, tie_word_embeddings=True),
        OLD_NAMES, more.split_gpt2, OLD_KEYS, only={"scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}, computed=_four_times),
    "gpt_bigcode": Family((more.learned_positions, edits.ungated, edits.layer_norm, edits.biases_everywhere),
        _left_out(None, 1024, hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-5, n_inner=None, multi_query=True,
        tie_word_embeddings=True), {".c_attn.": ".query_key_value."} | OLD_NAMES, more.split_by_key_head, OLD_KEYS,
        only={"scale_attn_weights": True, "add_cross_attention": False}, computed=lambda content: _four_times(content) |
        {"num_key_value_heads": 1 if content["multi_query"] else content["num_attention_heads"]}),
    "gptj": Family((more.parallel, edits.interleaved, edits.partial_rotation, edits.ungated, edits.layer_norm,
        edits.biases_everywhere, more.head_bias), _left_out(None, 2048, hidden_act="gelu_new", rms_norm_eps=1e-5,
        n_inner=None, rotary_dim=64), OLD_NAMES, None, OLD_KEYS, {"biased": ("feed_forward",)} | PLAIN_ROPE,
        computed=_turned_by_number),
    "codegen": Family((more.parallel, edits.interleaved, edits.partial_rotation, edits.ungated, edits.layer_norm,
        edits.biases_everywhere, more.head_bias), _left_out(None, 2048, hidden_act="gelu_new", rms_norm_eps=1e-5,
        n_inner=None, rotary_dim=64), OLD_NAMES, more.split_codegen, OLD_KEYS, {"biased": ("feed_forward",)} |
        PLAIN_ROPE, computed=_turned_by_number),
    "biogpt": Family((edits.scales, more.learned_positions, edits.ungated, edits.layer_norm, edits.biases_everywhere),
        _left_out(None, 1024, hidden_act="gelu", scale_embedding=True, tie_word_embeddings=True),
        {"biogpt.layers.": "layers.", "biogpt.embed_tokens.": "tok_embeddings.", "biogpt.layer_norm.": "final_norm.",
        "biogpt.embed_positions.weight": "tok_embeddings.table", "output_projection.": "lm_head."} | OPT,
        fixed={"position_offset": 2, "rms_norm_eps": 1e-5}, computed=lambda content: _embedding(content,
        content["scale_embedding"])),
    "opt": Family((more.learned_positions, edits.ungated, edits.layer_norm, edits.biases_everywhere),
        _left_out(None, 2048, hidden_act="relu", intermediate_size=3072, tie_word_embeddings=True),
        {"model.decoder.embed_positions.weight": "tok_embeddings.table",
        "model.decoder.final_layer_norm.": "final_norm.", "model.decoder.": "model."} | OPT,
        keys={"activation_function": "hidden_act", "ffn_dim": "intermediate_size"}, fixed={"position_offset": 2,
        "rms_norm_eps": 1e-5}, only={"do_layer_norm_before": True, "_remove_final_layer_norm": False,
        "enable_bias": True, "layer_norm_elementwise_affine": True}),
    "bloom": Family((more.alibi, more.embedding_norm, edits.ungated, edits.layer_norm, edits.biases_everywhere),
        _left_out(None, 2048, rms_norm_eps=1e-5, n_inner=None, tie_word_embeddings=True), OLD_NAMES,
        more.split_by_key_head, {"n_embed": "hidden_size", "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads", "layer_norm_epsilon": "rms_norm_eps"}, {"hidden_act": "gelu_pytorch_tanh"},
        {"apply_residual_connection_post_layernorm": False}, _four_times),
    "nemotron": Family((edits.ungated, edits.partial_rotation, edits.layer_norm, edits.biases),
        _left_out(None, 4096, hidden_act="relu2", partial_rotary_factor=0.5, rms_norm_eps=1e-5, attention_bias=False),
        {}, lambda weights, config: edits.turned_first({name: one.float() + 1 if name.endswith("norm.weight") else one
        for name, one in weights.items()}, config), {"norm_eps": "rms_norm_eps"}),
    "bitnet": Family((more.sub_norm, edits.gate_act, edits.biases),
        _left_out(5, 2048, hidden_act="relu2", rms_norm_eps=1e-5, rope_theta=500_000.0, attention_bias=False),
        {".attn_sub_norm.": ".o_proj.norm.", ".ffn_sub_norm.": ".down_proj.norm."}),
    "hyperclovax": Family((edits.sandwich_norm, edits.scales, edits.biases),
        _left_out(None, 2048, embedding_multiplier=1.0, attention_multiplier=None, residual_multiplier=1.0,
        logits_scaling=1.0, attention_bias=False), {".post_norm1.": ".attention_out_norm.",
        ".post_norm2.": ".ffn_out_norm."}, only={"use_post_norm": True},
        computed=lambda content: {"attention_multiplier": content["attention_multiplier"] or (content.get("head_dim") or
        content["hidden_size"] // content["num_attention_heads"]) ** -0.5, "logits_scaling": 1 /
        content["logits_scaling"]}),
    "granitemoeshared": Family((edits.experts, more.shared_expert, edits.scales, edits.biases),
        dict.fromkeys(SCALES, 1.0) | _left_out(None, 2048, num_experts=8, num_experts_per_tok=2, attention_bias=False,
        shared_expert_intermediate_size=0), {".block_sparse_moe.router.layer.": ".feed_forward.router.",
        ".block_sparse_moe.": ".feed_forward.", ".shared_mlp.": ".feed_forward.shared."}, more.split_granite,
        {"shared_intermediate_size": "shared_expert_intermediate_size"}),
    "aria_text": Family((edits.experts, more.shared_expert, edits.biases),
        _left_out(None, 2048, num_experts=8, num_experts_per_tok=2, n_shared_experts=2, attention_bias=False), MOE |
        {".mlp.router.": ".feed_forward.router.", ".experts.fc1.weight": ".experts.gate_up_proj",
        ".experts.fc2.weight": ".experts.down_proj"}, _split_transposed, {"moe_num_experts": "num_experts",
        "moe_topk": "num_experts_per_tok", "moe_num_shared_experts": "n_shared_experts"},
        computed=lambda content: {"shared_expert_intermediate_size": content["n_shared_experts"] *
        content["intermediate_size"]}),
    "ernie4_5_moe": Family((edits.interleaved, edits.experts, more.router, more.shared_expert),
        _left_out(4, 131_072, num_experts=64, num_experts_per_tok=6, n_shared_experts=2, moe_intermediate_size=1536,
        moe_layer_start_index=1, moe_layer_end_index=-1, moe_layer_interval=1, rms_norm_eps=1e-5, rope_theta=500_000.0,
        tie_word_embeddings=True), {".mlp.moe_statics.e_score_correction_bias": ".feed_forward.choice_bias"} | MOE,
        lambda weights, config: edits.split_experts({name: one.flatten() if name.endswith(".choice_bias") else one for
        name, one in weights.items()}, config), {"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok",
        "moe_num_shared_experts": "n_shared_experts"}, {"squash": "softmax"}, {"use_bias": False,
        "moe_norm_min": 1e-12}, lambda content: _shared(content) | {"mlp_layer_types": ["sparse" if (layer + 1) %
        content["moe_layer_interval"] == 0 and content["moe_layer_start_index"] <= layer <=
        content["moe_layer_end_index"] % content["num_hidden_layers"] else "dense" for layer in
        range(content["num_hidden_layers"])]}),
    "exaone_moe": Family((edits.qk_norm, edits.window, more.still_if_full, edits.experts, more.router,
        more.shared_expert), ROUTED | _left_out(32, 2048, num_experts=64, num_experts_per_tok=8,
        moe_intermediate_size=1024, first_k_dense_replace=1, mlp_layer_types=None, routed_scaling_factor=2.5,
        rms_norm_eps=1e-5, sliding_window=4096, sliding_window_pattern=4, layer_types=None), MOE, edits.split_experts,
        {"num_shared_experts": "n_shared_experts"}, {"turns_without_window": True},
        computed=lambda content: _shared(content) | _layers(content, lambda layer: content["sliding_window"] and (layer
        + 1) % content["sliding_window_pattern"])),
    "ministral3": Family((edits.window, more.temperature),
        _left_out(8, 262_144, head_dim=128, rms_norm_eps=1e-5, rope_theta=1e6, sliding_window=None),
        computed=lambda content: {"temperature": ((content.get("rope_parameters") or MINISTRAL)["llama_4_scaling_beta"],
        (content.get("rope_parameters") or MINISTRAL)["original_max_position_embeddings"], 0,
        range(content["num_hidden_layers"]))}, fixed={"rope_default": MINISTRAL}),
    "llama4_text": Family((edits.no_rope, edits.interleaved, more.l2_norm, more.temperature, more.chunks, edits.experts,
        more.input_router, more.shared_expert, edits.biases), _left_out(8, 131_072, head_dim=128, num_experts=16,
        num_experts_per_tok=1, intermediate_size_mlp=16_384, moe_layers=None, interleave_moe_layer_step=1,
        no_rope_layers=None, no_rope_layer_interval=4, use_qk_norm=True, attention_chunk_size=8192, layer_types=None,
        attn_temperature_tuning=True, floor_scale=8192, attn_scale=0.1, attention_bias=False, rms_norm_eps=1e-5,
        rope_theta=500_000.0), {".shared_expert.": ".shared."}, _split_transposed, computed=_llama4),
    # older and rarer parts
    "gpt_neo": Family((edits.scales, more.learned_positions, edits.window, edits.ungated, edits.layer_norm,
        edits.biases_everywhere), _left_out(None, 2048, hidden_act="gelu_new", rms_norm_eps=1e-5, sliding_window=256,
        intermediate_size=None, attention_types=None, tie_word_embeddings=True),
        {".attn.attention.out_proj.": ".attention.o_proj.", ".attn.attention.": ".attention."} | OLD_NAMES,
        keys={"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers", "window_size": "sliding_window",
        "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act"},
        fixed=dict.fromkeys(SCALES, 1.0) | {"biased": ("o_proj", "feed_forward")}, computed=_neo),
    "openai-gpt": Family((more.learned_positions, more.norm_after_sum, edits.ungated, edits.layer_norm,
        edits.biases_everywhere), _left_out(None, 512, hidden_act="gelu", rms_norm_eps=1e-5, tie_word_embeddings=True),
        {"tokens_embed.": "tok_embeddings.", "positions_embed.weight": "tok_embeddings.table"} | OLD_NAMES,
        more.split_gpt2, OLD_KEYS | {"activation_function": "not read", "afn": "hidden_act"},
        computed=lambda content: _four_times(content) | {"hidden_act": {"gelu": "gelu_new"}.get(content["hidden_act"],
        content["hidden_act"])}),
    "ctrl": Family((edits.scales, more.sine_positions, edits.ungated, edits.layer_norm, more.last_eps,
        edits.biases_everywhere, more.head_bias), _left_out(None, 256, intermediate_size=8192, last_norm_eps=1e-6,
        tie_word_embeddings=True),
        {"transformer.w.": "tok_embeddings.", "transformer.layernorm.": "final_norm.", "transformer.h.": "layers.",
        ".layernorm1.": ".attention_norm.", ".layernorm2.": ".ffn_norm.", ".multi_head_attention.": ".attention.",
        ".Wq.": ".q_proj.", ".Wk.": ".k_proj.", ".Wv.": ".v_proj.", ".dense.": ".o_proj.",
        ".ffn.0.": ".feed_forward.up_proj.", ".ffn.2.": ".feed_forward.down_proj."}, None, OLD_KEYS | {"dff":
        "intermediate_size", "layer_norm_epsilon": "last_norm_eps"}, {"hidden_act": "relu", "rms_norm_eps": 1e-6},
        computed=lambda content: _embedding(content, True) | {"sines_end": content["max_position_embeddings"]}),
    "xglm": Family((edits.scales, more.sine_positions, edits.ungated, edits.layer_norm, edits.biases_everywhere),
        _left_out(None, 2048, hidden_act="gelu", intermediate_size=4096, scale_embedding=True, pad_token_id=1,
        tie_word_embeddings=True), {"model.layer_norm.": "final_norm."} | OPT, keys={"d_model": "hidden_size",
        "num_layers": "num_hidden_layers", "attention_heads": "num_attention_heads", "ffn_dim": "intermediate_size",
        "activation_function": "hidden_act"}, fixed={"position_offset": 2, "rms_norm_eps": 1e-5, "sines_reach": 1},
        only={"add_cross_attention": False}, computed=lambda content: _embedding(content, content["scale_embedding"]) |
        {"sines_without": content["pad_token_id"]}),
    "mpt": Family((more.alibi, more.clipped, edits.scales, edits.ungated, edits.layer_norm),
        _left_out(None, 2048, rms_norm_eps=1e-5, tie_word_embeddings=True), MOSAIC, edits.split_merged, MOSAIC_KEYS |
        {"layer_norm_epsilon": "rms_norm_eps"}, {"hidden_act": "gelu", "norm_bias": False}, computed=_mpt),
    "dbrx": Family((more.clipped, edits.experts, edits.layer_norm), _left_out(None, 2048), MOSAIC, more.split_dbrx,
        MOSAIC_KEYS, {"rms_norm_eps": 1e-5, "norm_bias": False}, {"power": 1.0, "hidden_act": "silu"}, _dbrx),
    "gpt_neox_japanese": Family((edits.partial_rotation, edits.ungated, edits.layer_norm, edits.biases_everywhere),
        _left_out(None, 2048, hidden_act="gelu", rms_norm_eps=1e-5, intermediate_multiple_size=4,
        partial_rotary_factor=1.0, tie_word_embeddings=True), {"gpt_neox_japanese.embed_in.": "tok_embeddings.",
        "embed_out.": "lm_head.", "gpt_neox_japanese.final_layer_norm.": "final_norm.", "gpt_neox_japanese.": "",
        ".dense_bias": ".o_proj.bias", ".dense.": ".o_proj.", ".dense_h_to_4h.": ".up_proj.",
        ".dense_4h_to_h.": ".down_proj."}, lambda weights, config: edits.turned_first(more.split_by_key_head(weights,
        config), config),
        {"layer_norm_eps": "rms_norm_eps", "rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
        computed=lambda content: {"biased": (f"{content['num_hidden_layers'] - 1}.attention.o_proj",),
        "intermediate_size": int(content["hidden_size"] * content["intermediate_multiple_size"])}),
    "phimoe": Family((edits.biases, edits.experts, more.near_best, edits.window, edits.layer_norm, more.head_bias),
        _left_out(8, 131_072, num_experts=16, router_jitter_noise=0.01, rms_norm_eps=1e-5, rope_theta=1e6,
        lm_head_bias=False, attention_bias=False, **WINDOW),
        {".block_sparse_moe.gate.": ".feed_forward.router.", ".mlp.router.": ".feed_forward.router.",
        ".block_sparse_moe.": ".feed_forward.", ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."},
        edits.split_experts, fixed={"num_experts_per_tok": 2, "rope_types": ("default",)}),
    "nanochat": Family((more.embedding_norm, more.l2_norm, more.backwards, edits.ungated, edits.logit_softcapping,
        edits.biases, more.no_gain), _left_out(None, 2048, hidden_act="relu2", final_logit_softcapping=15.0,
        attention_bias=False), {".fc1.": ".up_proj.", ".fc2.": ".down_proj."},
        fixed={"attn_logit_softcapping": None, "use_qk_norm": True},
        computed=lambda content: {"no_rope_layers": [1] * content["num_hidden_layers"]}),
    "diffllama": Family((more.differential, edits.biases),
        _left_out(None, 2048, rms_norm_eps=1e-5, attention_bias=False)),
    "granite_swa": Family((edits.sinks, edits.scales, edits.window, more.layer_bases, edits.biases),
        dict.fromkeys(SCALES, 1.0) | _left_out(4, 8192, rms_norm_eps=1e-5, sliding_window=128, layer_types=None,
        layer_rope_theta=None, attention_bias=False, tie_word_embeddings=True),
        computed=lambda content: _layers(content, lambda layer: layer % 4)),
    "granitemoe_swa": Family((edits.experts, more.shared_expert, edits.sinks, edits.scales, edits.window,
        more.layer_bases, edits.biases), dict.fromkeys(SCALES, 1.0) | _left_out(None, 2048, num_experts=8,
        num_experts_per_tok=2, shared_expert_intermediate_size=0, sliding_window=128, layer_types=None,
        layer_rope_theta=None, attention_bias=False), {".block_sparse_moe.router.layer.": ".feed_forward.router.",
        ".block_sparse_moe.": ".feed_forward.", ".shared_mlp.": ".feed_forward.shared."},
        lambda weights, config: more.split_granite(edits.split_experts(weights, config), config),
        {"shared_intermediate_size": "shared_expert_intermediate_size"},
        computed=lambda content: _layers(content, lambda layer: layer % 4)),
    "flint": Family((edits.qk_norm, edits.sinks, edits.window, more.still_if_full, edits.experts, more.router,
        more.shared_expert, edits.biases), _left_out(4, 262_144, head_dim=128, num_experts=256, num_experts_per_tok=6,
        moe_intermediate_size=512, shared_expert_intermediate_size=1024, decoder_sparse_step=1, mlp_only_layers=None,
        norm_topk_prob=True, sliding_window=513, layer_types=None, attention_bias=False), MOE |
        {".shared_expert.": ".shared.", ".softmax_offset": ".sinks"}, edits.split_experts, fixed={"choice_bias": False},
        computed=lambda content: _layers(content, lambda layer: layer > 1 and layer % 4 != 1 and layer + 1 <
        content["num_hidden_layers"]) | {"mlp_only_layers": [0, 1] if content["mlp_only_layers"] is None else
        content["mlp_only_layers"]}),
    "axk1": Family((more.latent, edits.experts, more.router, more.shared_expert, more.mixture_norm), ROUTED | DEEPSEEK |
        _left_out(64, 32_768, num_experts=192, num_experts_per_tok=8, moe_intermediate_size=2048, mlp_layer_types=None,
        rope_interleave=True, routed_scaling_factor=2.5, n_group=8, topk_group=4), MOE | LATENT |
        {".post_mlp_layernorm.": ".feed_forward.out_norm."}, more.dense_or_sparse, {"n_routed_experts": "num_experts"},
        computed=_axk1),
    "kolibri1": Family((edits.qk_norm, edits.sandwich_norm, edits.window, more.still_if_full, edits.experts,
        more.router, more.shared_expert), _left_out(4, 262_144, head_dim=128, num_experts=384, num_experts_per_tok=6,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, norm_topk_prob=False, sliding_window=513,
        layer_types=None), MOE | {".moe.router.expert_bias": ".feed_forward.choice_bias",
        ".post_attn_norm.": ".attention_out_norm.", ".post_self_attn_layernorm.": ".attention_out_norm.",
        ".post_ffn_norm.": ".ffn_out_norm.", ".post_mlp_layernorm.": ".ffn_out_norm."}, edits.split_experts,
        fixed={"turns_without_window": True, "chosen_by": "logits"}, computed=lambda content: _layers(content,
        lambda layer: (layer + 1) % 5) | {"intermediate_size": content["moe_intermediate_size"]}),
    "cohere2_moe": Family((more.parallel, edits.interleaved, edits.window, more.still_if_full, more.logit_scale,
        edits.experts, more.router, more.shared_expert, edits.layer_norm, edits.biases), _left_out(None, 8192,
        head_dim=128, num_experts=8, num_experts_per_tok=2, n_shared_experts=0, expert_selection_fn="softmax",
        shared_expert_combination_strategy="average", norm_topk_prob=True, first_k_dense_replace=0,
        mlp_layer_types=None, prefix_dense_intermediate_size=None, prefix_dense_sliding_window_pattern=1,
        sliding_window=4096, sliding_window_pattern=4, layer_types=None, logit_scale=0.0625, layer_norm_eps=1e-5,
        rms_norm_eps=None, tie_word_embeddings=True, attention_bias=False), MOE, edits.split_experts,
        {"num_shared_experts": "n_shared_experts"}, {"norm_bias": False, "choice_bias": False, "chosen_by": "logits"},
        {"rope_scaling": None}, _cohere2_moe),
    "laguna": Family((more.layer_heads, edits.qk_norm, more.out_gate, edits.window, edits.partial_rotation,
        edits.experts, more.router, more.shared_expert, edits.biases), _left_out(8, 131_072, head_dim=128,
        num_attention_heads_per_layer=None, gating=True, num_experts=256, num_experts_per_tok=8,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, mlp_layer_types=None, sliding_window=512,
        layer_types=None, routed_scaling_factor=1.0, moe_router_logit_softcapping=0.0, attention_bias=False), MOE |
        {".mlp.experts.e_score_correction_bias": ".feed_forward.choice_bias", ".shared_expert.": ".shared.",
        ".g_proj.": ".gate_proj."}, _split_and_turn, {"moe_routed_scaling_factor": "routed_scaling_factor"},
        {"first_k_dense_replace": 1, "partial_rotary_factor": 1.0, "rope_bases": {FULL: (None, 500_000.0),
        SLIDES: (None, 10_000.0)}}, {"rope_scaling": None, "moe_apply_router_weight_on_input": False},
        lambda content: _layers(content, lambda layer: False) | ({} if content.get("rope_parameters") is not None else
        {"rope_parameters": {FULL: {"partial_rotary_factor": 0.5}}})),
    "beam": Family((edits.qk_norm, edits.sandwich_norm, more.shrunk_sums, more.out_gate, edits.window,
        edits.no_rope, more.temperature, edits.experts, more.router, edits.logit_softcapping, edits.biases),
        _left_out(8, 8192, head_dim=128, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=2560,
        mlp_layer_types=None, norm_topk_prob=True, n_group=8, topk_group=4, routed_scaling_factor=2.5,
        sliding_window=512, layer_types=None, final_logit_softcapping=30.0, attention_bias=False), GEMMA_NORMS | MOE,
        edits.split_experts, {}, {"first_k_dense_replace": 3, "gate_has_bias": True, "grows_as": "power",
        "attn_logit_softcapping": None, "rope_bases": {FULL: (None, 10_000.0), SLIDES: (None, 10_000.0)}},
        {"rope_scaling": None}, _beam),
    "jetmoe": Family((more.mixed_attention, edits.experts, more.mixture_bias, more.last_eps),
        _left_out(16, 4096, head_dim=128, num_experts=8, num_experts_per_tok=2, last_norm_eps=1e-6,
        tie_word_embeddings=True), {".self_attention.experts.input_linear.": ".attention.q_proj.",
        ".self_attention.experts.output_linear.": ".attention.o_proj.",
        ".self_attention.experts.bias": ".attention.o_proj.bias",
        ".self_attention.experts.router.layer.": ".attention.router.", ".self_attention.": ".attention.",
        ".mlp.router.layer.": ".feed_forward.router."}, more.split_jetmoe, {"kv_channels": "head_dim",
        "activation_function": "hidden_act", "rms_norm_eps": "last_norm_eps"}, {"rms_norm_eps": 1e-6},
        computed=lambda content: {"num_attention_heads": content["num_key_value_heads"] *
        content["num_experts_per_tok"]}),
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
