"""The map of notebook 08: what each causal model of transformers does otherwise than a LLaMA, and since when.

python -m benchmarks.field            beyond/families/field.json, in about ten minutes
python -m benchmarks.field falcon     what was measured of some types

A small random model of twelve layers is made of each type, with the settings that its class has if config.json says
only the sizes. It is not read but measured, by the same `measure` as in `what_differs` (beyond/families). Only experts
are known by the names of their weights, and what keeps a state or chooses its keys by lists (differences.py).
"""

import json
import re
import sys
from pathlib import Path

import torch
import transformers
from torch import nn

from benchmarks.atlas import FIRST, FULL, OTHER_KINDS, SLIDE
from beyond.families.differences import measure
from beyond.families.reference import SIZES

N_LAYERS, WINDOW = 12, 6
HAS = SIZES | FIRST | dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), N_LAYERS) | {
    "n_group": 1, "topk_group": 1, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
    "mamba_num_heads": 8, "mamba_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "ssm_state_size": 8, "state_size": 8, "n_groups": 1,
    "expand": 2, "index_topk": 5, "index_n_heads": 4, "index_head_dim": 8, "attention_chunk_size": WINDOW,
    "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8, "global_head_dim": 8, "rotary_dim": 4,
}  # fmt: skip
HAS.pop("layer_types")  # as the class has it
MIXED = {"layer_types": [SLIDE, SLIDE, SLIDE, FULL] * 3}
OWN = {  # what a type needs to be built, and windows of published models that its class leaves out
    "cwm": {"bos_token_id": 0}, "phi3": {"sliding_window": WINDOW}, "starcoder2": {"sliding_window": WINDOW},
    "mellum": MIXED, "laguna": MIXED, "dots1": {"n_shared_experts": 2}, "falcon_h1": {"mamba_d_ssm": 64},
    "mamba2": {"num_heads": 8}, "zaya": {"num_experts_per_tok": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], N_LAYERS // 2]], "window_size": WINDOW},
    "deepseek_v4": {"head_dim": 8},
    "zamba2": {"layers_block_type": ["mamba", "mamba", "hybrid"] * 4}, "kimi_linear": {"num_experts_per_token": 2},
    "recurrent_gemma": {"attention_window_size": WINDOW},
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
                       "indexer_compress_ratio": 2, "ngram_vocab_size_base": 64},
    "bailing_hybrid": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "num_experts": 4},
    "lfm2_moe": {"layer_types": ["conv", "conv", FULL] * 4},
    "modernbert-decoder": {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "local_attention": 2 * WINDOW},
}  # fmt: skip


def build(kind):
    """A small model of a type with large random weights, on the CPU."""
    torch.manual_seed(0)
    usual = transformers.AutoConfig.for_model(kind).to_dict()
    content = {name: value for name, value in HAS.items() if name in usual}
    if usual.get("sliding_window", 1) is None or usual.get("use_sliding_window") is False:
        content.pop("sliding_window", None)
    if "qk_rope_head_dim" in usual:
        content = {name: value for name, value in content.items() if name != "head_dim"} | {"num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model(kind, **content | OWN.get(kind, {}))
    make = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        if (size := sum(weight.numel() for weight in make(config).parameters())) > 4e8:
            raise MemoryError(f"{size:.0e} numbers")
    model = make(config, attn_implementation="eager").eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(weight, 0.5, 1.5)
        else:
            nn.init.normal_(weight, std=1.0 if "bias" in name or "sinks" in name else 0.3)
    return model


def features(kind, model):
    """What a type does otherwise than LLaMA, (names of features, how much of a head turns, how far a layer sees)."""
    found = measure(model)
    turned, sees = [None] * found.n_layers, [None] * found.n_layers
    for layer, mask, (speeds, _) in zip(found.layers, found.masks, found.turns, strict=True):
        turned[layer] = round(sum(map(bool, speeds)) / len(speeds), 3)
        sees[layer] = round(mask.sum(-1).max().item() / len(mask), 3)
    rolls = {turned[layer] for layer in found.layers}
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    has = lambda pattern: any(re.search(pattern, name) for name in names)  # noqa: E731
    is_measured = lambda fact: any(one is not None for one in found.facts.get(fact, []))  # noqa: E731
    norms = [one for one in found.facts.get("norms of attention", []) if one]
    chooses = has("indexer") or kind in OTHER_KINDS["models that choose which keys they look at"].split()
    state = kind in OTHER_KINDS["models that keep a state"].split()
    there = {
        "LayerNorm": is_measured("LayerNorm"), "no gate": is_measured("ungated"),
        "nothing turns": rolls == {0.0} and not state,
        "biases in the feed-forward": is_measured("bias of feed-forward"),
        "attention beside feed-forward": is_measured("side by side"), "biases on keys": is_measured("bias on keys"),
        "a part of a head turns": any(0 < share < 1 for share in rolls),
        "norm after attention": any("attention and one behind" in one or "is behind" in one for one in norms),
        "norm of keys": is_measured("norm on keys"),
        "experts": has(r"experts?\b"), "shared expert": has("shared_(expert|mlp)"),
        "a bias steers the router": has("correction_bias|expert_bias|router_bias|score_bias|balancing"),
        "keeps a state": state, "one short vector for keys and values": is_measured("one short vector"),
        "a window": any(sees[layer] < 1 for layer in found.layers) and not chooses,
        "some layers stand still": 0.0 in rolls and len(rolls) > 1, "sinks": is_measured("sinks"),
        "gate on attention": is_measured("gate on attention"), "chooses its keys": chooses,
    }  # fmt: skip
    return [name for name, is_there in there.items() if is_there], turned, sees


YEARS = {  # of the first paper (by its number on arXiv), or of the first release
    2018: "openai-gpt:release",
    2019: "gpt2:release ctrl:1909.05858",
    2021: "gpt_neo:release gptj:release xglm:2112.10668",
    2022: "bloom:2211.05100 biogpt:2210.10341 codegen:2203.13474 gpt_neox:2204.06745 gpt_neox_japanese:release "
    "gpt-sw3:release opt:2205.01068",
    2023: "falcon:2311.16867 gpt_bigcode:2301.03988 llama:2302.13971 mamba:2312.00752 mistral:2310.06825 mpt:release "
    "mixtral:release persimmon:release phi:2306.11644 rwkv:2305.13048 stablelm:release",
    2024: "aria_text:2410.05993 bamba:release cohere:release cohere2:release dbrx:release deepseek_v2:2405.04434 "
    "deepseek_v3:2412.19437 diffllama:2410.05258 doge:release falcon_mamba:2410.05355 gemma:2403.08295 "
    "gemma2:2408.00118 glm:2406.12793 granite:2408.13359 granitemoe:2408.13359 granitemoeshared:2408.13359 "
    "jamba:2403.19887 jetmoe:2404.07413 mamba2:2405.21060 minicpm3:2404.06395 ministral:release "
    "nemotron:2402.16819 olmo:2402.00838 olmo2:2501.00656 olmoe:2409.02060 phi3:2404.14219 phimoe:2404.14219 "
    "qwen2:2407.10671 qwen2_moe:2407.10671 recurrent_gemma:2402.19427 starcoder2:2402.19173 xlstm:2405.04517 "
    "zamba:2405.16712 zamba2:2411.15242",
    2025: "afmoe:release apertus:2509.14233 arcee:release bitnet:2504.12285 blt:2412.09871 cwm:2510.02387 "
    "deepseek_v32:2512.02556 dots1:2506.05767 ernie4_5:release ernie4_5_moe:release exaone4:2507.11407 "
    "exaone_moe:release falcon_h1:2507.22448 flex_olmo:2507.07024 gemma3_text:2503.19786 gemma3n_text:release "
    "glm4:release glm4_moe:2508.06471 gpt_oss:2508.10925 granitemoehybrid:release helium:release "
    "hunyuan_v1_dense:release hunyuan_v1_moe:release hyperclovax:release internlm3:release jais2:release "
    "kimi_linear:2510.26692 lfm2:release lfm2_moe:release llama4_text:release longcat_flash:2509.01322 "
    "mimo_v2_flash:release minimax:2501.08313 minimax_m2:release ministral3:release modernbert-decoder:2507.11412 "
    "nanochat:release nemotron_h:2504.03624 olmo3:release qwen3:2505.09388 qwen3_moe:2505.09388 qwen3_next:release "
    "seed_oss:release smollm3:release vaultgemma:2510.15001 youtu:2512.24618 zaya:2511.17127",
    2026: "axk1:release axk2:release bailing_hybrid:release beam:release cohere2_moe:release "
    "cohere_compass_text:release deepseek_v4:release dots3_note_text:release flint:release gemma4_text:release "
    "gemma4_unified_text:release glm4_moe_lite:release glm_moe_dsa:2602.15763 granite_swa:release "
    "granitemoe_swa:release hrm_text:release hy_v3:release hy_v4:release iquestcoder:release kolibri1:release "
    "laguna:release lfm3:release mellum:release minimax_m3_vl_text:release olmo_hybrid:release "
    "qwen3_5_text:release qwen3_5_moe_text:release qwen4_exp_text:release solar_open:2601.07022",
}
WHEN = {one.partition(":")[0]: (year, one.partition(":")[2]) for year, all in YEARS.items() for one in all.split()}


def measured():
    """A line for each type that can be built; what cannot is named on the screen."""
    for kind, (year, source) in WHEN.items():
        try:
            found, turned, sees = features(kind, build(kind))
        except Exception as error:  # a type that no longer builds is missing in the map, and no failure
            print(f"{kind} is not in the map: {type(error).__name__}: {str(error)[:90]}", flush=True)
            continue
        yield {"type": kind, "year": year, "source": source, "features": found, "turns": turned, "sees": sees}


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    for kind in sys.argv[1:]:
        print(kind, *features(kind, build(kind)), sep="\n    ")
    if not sys.argv[1:]:
        lines = [json.dumps(line) for line in measured()]
        file = Path(__file__).parents[1] / "beyond" / "families" / "field.json"
        file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
        print(len(lines), "types")
