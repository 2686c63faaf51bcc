"""The sizes of published models of other families, and what their config.json adds."""

from beyond.families.configs import FamilyConfig, config_from_hugging_face


def _published(
    family, vocab_size, dim, n_layers, n_heads, n_kv_heads, hidden_dim, head_dim, theta, tied=False, **more
) -> FamilyConfig:
    content = {
        "model_type": family, "vocab_size": vocab_size, "hidden_size": dim, "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads, "num_key_value_heads": n_kv_heads, "intermediate_size": hidden_dim,
        "head_dim": head_dim, "max_position_embeddings": 2**17, "rms_norm_eps": 1e-5, "rope_theta": theta,
        "tie_word_embeddings": tied,
    }  # fmt: skip
    return config_from_hugging_face(content | more, family)


PUBLISHED = {  # what neither function nor size needs is left out
    "Mistral 7B": _published("mistral", 32_000, 4096, 32, 32, 8, 14_336, 128, 1e4, sliding_window=4096),
    "SmolLM3 3B": _published("smollm3", 128_256, 2048, 36, 16, 4, 11_008, 128, 5e6, tied=True),
    "Qwen2 7B": _published("qwen2", 152_064, 3584, 28, 28, 4, 18_944, 128, 1e6),
    "Qwen3 8B": _published("qwen3", 151_936, 4096, 36, 32, 8, 12_288, 128, 1e6),
    "OLMo 2 7B": _published("olmo2", 100_352, 4096, 32, 32, 32, 11_008, 128, 5e5),
    "OLMo 3 7B": _published(
        "olmo3", 100_278, 4096, 32, 32, 32, 11_008, 128, 5e5,
        rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
    ),
    "Gemma 2 9B": _published("gemma2", 256_000, 3584, 42, 16, 8, 14_336, 256, 1e4, tied=True),
    "Gemma 3 4B": _published(
        "gemma3_text", 262_208, 2560, 34, 8, 4, 10_240, 256, 1e6, tied=True, sliding_window=1024,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "gpt-oss 20B": _published("gpt_oss", 201_088, 2880, 24, 64, 8, 2880, 64, 1.5e5, num_local_experts=32),
    "Qwen3 30B-A3B": _published("qwen3_moe", 151_936, 2048, 48, 32, 4, 6144, 128, 1e6),
}  # fmt: skip
