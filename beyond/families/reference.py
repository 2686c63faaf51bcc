"""The reference of notebook 08: small random models of transformers, and how far ours is from them."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import torch
from torch import nn

from helpers.device import pick_device

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
NONTRIVIAL_CONFIG = {  # what else a small model needs, so that each edit of its family changes something
    "mistral": {"sliding_window": 6}, "smollm3": {"no_rope_layers": [1, 0, 1]},
    "gemma3_text": {"sliding_window": 6, "sliding_window_pattern": 3, "head_dim": 8},
    "gpt_oss": {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 1.0,
                "head_dim": 8},
}  # fmt: skip
SMALL = {  # sizes, where a type's config has them
    "n_embd": 32, "d_model": 32, "n_layer": 4, "n_layers": 4, "num_layers": 4, "num_hidden_layers": 4, "n_head": 4,
    "n_heads": 4, "num_heads": 4, "attention_heads": 4, "n_positions": 64, "max_seq_len": 64, "ffn_dim": 48,
    "dff": 48, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
    "head_dim": 8, "sliding_window": 6, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
    "shared_intermediate_size": 24, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
_GROWS = {"llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 8, "rope_type": "default", "rope_theta": 1e4}
LIKE_LLAMA = {  # families with LLaMA's weights, and what a small model needs to differ from it as published ones do
    **{family: {} for family in ("llama", "internlm3", "iquestcoder", "helium", "ernie4_5", "gemma")},
    **{family: {"sliding_window": 6} for family in ("mistral", "ministral", "cwm")},
    "smollm3": {"no_rope_layers": [1, 0, 1]}, "granite": {"embedding_multiplier": 12.0},
    "ministral3": {"rope_parameters": _GROWS},
}  # fmt: skip
TOKENS = torch.randperm(64, generator=torch.Generator().manual_seed(0))[None, :28]


def small_settings(family: str, sizes: dict | None = None) -> dict:
    """By the names of config.json, four small layers of a family: with windows and experts, if it has any."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(family)
    usual = config.to_dict()
    small = {name: value for name, value in ({"num_hidden_layers": 4} | (sizes or SMALL)).items() if name in usual}
    small |= {other: small[name] for other, name in config.attribute_map.items() if name in small}
    kinds = {*(usual.get("layer_types") or [None])}
    if "max_window_layers" in usual or not usual.get("sliding_window") or not kinds <= {*SMALL["layer_types"]}:
        small.pop("layer_types", None)
    if "qk_rope_head_dim" in usual:
        small.pop("head_dim", None)
    if sizes is None:  # a factor of 1 would hide
        ones = [name for name, value in usual.items() if value == 1 and type(value) is float]
        small |= {name: 1.5 for name in ones if re.search("multiplier|scal", name)}
    return small


@functools.cache
def _place():
    return TemporaryDirectory(ignore_cleanup_errors=True)  # is emptied when Python ends


def save_random(family: str, large: bool = True, seed: int = 0, **settings) -> tuple[nn.Module, Path]:
    """transformers' random model of a family, and a new folder that holds it.

    Args:
        family: as config.json's model_type.
        large: gains between 0.5 and 1.5, biases and sinks of size 1, matrices of 0.3, so that no part can hide.
        seed: which weights are drawn.
        settings: by the names of config.json, besides SIZES and NONTRIVIAL_CONFIG.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    usual = AutoConfig.for_model(family)
    sizes = {name: value for name, value in SIZES.items() if hasattr(usual, name)}  # one that is not read would mislead
    config = AutoConfig.for_model(family, **sizes | NONTRIVIAL_CONFIG.get(family, {}) | settings)
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()  # in plain steps, as ours
    for name, weight in theirs.named_parameters() if large else ():
        if "norm" in ".".join(name.split(".")[-2:]):  # of DBRX all of attention is within one
            nn.init.uniform_(weight, 0.5, 1.5)
        else:
            nn.init.normal_(weight, std=1.0 if "bias" in name or "sinks" in name else 0.3)
    for name, weight in theirs.named_buffers() if large else ():
        if name.endswith("bias") and name in theirs.state_dict():  # of a router, which no gradient moves
            nn.init.normal_(weight)
    folder = Path(mkdtemp(prefix=family, dir=_place().name))  # so that no later call changes this one
    theirs.save_pretrained(folder)
    return theirs.to(pick_device()), folder


@torch.no_grad()
def max_abs_diff(ours: Callable, theirs: nn.Module, n_tokens: int = 28) -> float:
    """Largest difference between the logits of two models, as a share of their largest: rounding grows with them."""
    tokens = TOKENS[:, :n_tokens].to(next(theirs.parameters()).device)
    expected = theirs(input_ids=tokens).logits
    return ((ours(tokens) - expected).abs().max() / expected.abs().max()).item()


def one_by_one(model: nn.Module) -> Callable:
    """The model, but it reads one token at a time, with a cache."""

    def run(tokens):
        cache = model.new_cache(1)
        return torch.cat([model(token, cache) for token in tokens.split(1, dim=1)], dim=1)

    return run


def part_names(n_layers: int) -> dict[str, str]:
    """{part of our model: part of transformers'}: the embedding, each layer with its two branches, and the head."""
    names = {"tok_embeddings": "model.embed_tokens", "lm_head": "lm_head"}
    for layer in (f"layers.{number}" for number in range(n_layers)):
        names |= {layer: f"model.{layer}", f"{layer}.attention": f"model.{layer}.self_attn"}
        names |= {f"{layer}.feed_forward": f"model.{layer}.mlp"}
    return names
