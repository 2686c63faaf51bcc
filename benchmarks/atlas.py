"""Every causal language model of transformers as edits to a LLaMA: which types open here, and why the others do not.

python -m benchmarks.atlas            docs/atlas.md, in a few minutes
python -m benchmarks.atlas falcon     the trial of some types, with every number

A type that opens is tried in two sizes: a random model of transformers, whose settings all bite, is saved, opened by
`load_checkpoint`, and reads 28 tokens at once and one by one. Then each edit of its row is left out once.
"""

import itertools
import json
import random
import sys
from dataclasses import replace

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TYPES

from beyond.families import FAMILIES, load_checkpoint, register_family
from beyond.families.reference import TOKENS, max_abs_diff, one_by_one, save_random

GONE = object()
STRICT = 1e-4  # of the largest logit
SLIDE, FULL = "sliding_attention", "full_attention"
FIRST = {  # sizes, where a type's config has them; the second differ in all that a row might have written down
    "n_embd": 32, "d_model": 32, "n_layer": 4, "n_layers": 4, "num_layers": 4, "num_hidden_layers": 4, "n_head": 4,
    "n_heads": 4, "num_heads": 4, "attention_heads": 4, "n_positions": 64, "max_seq_len": 64, "ffn_dim": 48,
    "dff": 48, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
    "head_dim": 8, "sliding_window": 6, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
    "shared_intermediate_size": 24, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "layer_types": [SLIDE, FULL, SLIDE, FULL],
}  # fmt: skip
SECOND = FIRST | {
    "hidden_size": 64, "n_embd": 64, "d_model": 64, "intermediate_size": 80, "ffn_dim": 80, "dff": 80,
    "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 9, "moe_intermediate_size": 28, "num_experts": 6,
    "num_local_experts": 6, "n_routed_experts": 6, "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "layer_types": [FULL, SLIDE, SLIDE, FULL],
}  # fmt: skip
MHA = {"num_key_value_heads": 4}
BITING = {  # what else a type needs so that every setting of its row changes something
    "cwm": {"bos_token_id": 0}, "arcee": {"attention_bias": True}, "ernie4_5": {"use_bias": True},
    "flex_olmo": {"attention_bias": True},
    "olmoe": {"attention_bias": True}, "mellum": {"attention_bias": True}, "stablelm": {"use_qkv_bias": True},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "qwen2_moe": {"use_sliding_window": True, "mlp_only_layers": [1]},
    "dots1": {"n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "n_group": 2,
              "topk_group": 1, "attention_bias": True},
    "hy_v3": {"attention_bias": True}, "solar_open": {"attention_bias": True},
    "phi3": {"partial_rotary_factor": 0.5},
    "glm4_moe": {"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.5, "n_group": 2},
    "minimax_m2": {"rotary_dim": 4}, "afmoe": {"attention_bias": True, "route_scale": 1.5},
    "deepseek_v2": MHA | {"attention_bias": True, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
                          "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5},
    "deepseek_v3": MHA | {"attention_bias": True, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
    "glm4_moe_lite": MHA | {"attention_bias": True, "n_group": 2, "topk_group": 1},
    "youtu": MHA | {"attention_bias": True}, "minicpm3": MHA | {"attention_bias": True},
    "cohere2": {"attention_bias": True}, "falcon": {"bias": True}, "nemotron": {"attention_bias": True},
    "bitnet": {"attention_bias": True},
    "hyperclovax": {"attention_bias": True, "embedding_multiplier": 1.5, "residual_multiplier": 0.7,
                    "logits_scaling": 2.0, "attention_multiplier": 0.2},
    "granitemoeshared": {"attention_bias": True, "embedding_multiplier": 1.5, "residual_multiplier": 0.7,
                         "logits_scaling": 2.0, "attention_multiplier": 0.2},
    "granite": {"embedding_multiplier": 1.5, "residual_multiplier": 0.7, "logits_scaling": 2.0,
                "attention_multiplier": 0.2},
    "aria_text": {"moe_num_experts": 4, "attention_bias": True}, "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_layer_end_index": 2},
    "exaone_moe": {"n_group": 2, "topk_group": 1},
    "opt": lambda sizes: {"word_embed_proj_dim": sizes.get("hidden_size", 32)},
    "ministral3": {"sliding_window": 6, "rope_parameters": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 5, "beta_fast": 4.0, "mscale": 1.0,
        "mscale_all_dim": 0.5, "rope_theta": 1000.0, "llama_4_scaling_beta": 0.3}},
    "llama4_text": {"intermediate_size_mlp": 40, "moe_layers": [1, 2, 3], "no_rope_layers": [1, 0, 1, 0],
                    "attention_chunk_size": 7, "floor_scale": 4, "attn_scale": 0.3, "attention_bias": True},
}  # fmt: skip


def save(kind, sizes):
    """transformers' random model of a type, and a folder that holds it; every setting of its row changes something."""
    usual = transformers.AutoConfig.for_model(kind).to_dict()
    own = BITING.get(kind, {})
    settings = {name: value for name, value in ({"num_hidden_layers": 4} | sizes).items() if name in usual}
    if "max_window_layers" in usual or not set(usual.get("layer_types") or [None]) <= {SLIDE, FULL}:
        settings.pop("layer_types", None)
    if "qk_rope_head_dim" in usual:
        settings.pop("head_dim", None)
    return save_random(kind, **settings | (own(sizes) if callable(own) else own))


def differences(theirs, folder):
    """How far ours is from theirs, as shares of the largest logit: at once, and one by one through the cache."""
    ours = load_checkpoint(folder)
    with torch.no_grad():
        return max_abs_diff(ours, theirs), max_abs_diff(one_by_one(ours), theirs)


def trial(kind):
    """What does not hold, as sentences: nothing if the type opens in both sizes, and each edit of its row is needed."""
    wrong = []
    for name, sizes in (("first", FIRST), ("second", SECOND)):
        theirs, folder = save(kind, sizes)
        if not max(off := differences(theirs, folder)) < STRICT:
            wrong.append(f"the {name} size is off by {off[0]:.1e} at once and {off[1]:.1e} one by one")
        elif name == "first" and kind in FAMILIES:
            wrong += idle(kind, theirs, folder)
    return wrong


def idle(kind, theirs, folder):
    """Edits of a row without which the folder opens with the same logits."""
    row, found = FAMILIES[kind], []
    for edit in row.edits:
        with register_family(kind, replace(row, edits=tuple(one for one in row.edits if one is not edit))):
            try:
                if max(differences(theirs, folder)) < STRICT:
                    found.append(f"without {edit.__name__} nothing changes")
            except ValueError:
                pass  # a weight is left over, or missing
    return found


# ------------------------------------------------------------------------- every other setting is followed or refused

NOT_THE_MODEL = {  # keys that say how a model is kept, trained or asked
    "architectures", "dtype", "torch_dtype", "transformers_version", "model_type", "_name_or_path", "id2label",
    "label2id", "problem_type", "return_dict", "output_hidden_states", "output_attentions", "output_router_logits",
    "chunk_size_feed_forward", "is_encoder_decoder", "use_cache", "initializer_range", "router_aux_loss_coef",
    "bos_token_id", "eos_token_id", "pad_token_id", "layerdrop", "quantization_config", "transformers_weights",
}  # fmt: skip


ELSEWHERE = {  # keys of other families
    "attention_bias": True, "mlp_bias": True, "use_bias": True, "bias": True, "qkv_bias": True, "use_qkv_bias": True,
    "clip_qkv": 0.5, "hidden_act": "relu", "hidden_activation": "relu", "activation_function": "relu",
    "sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1, "sliding_window_pattern": 2,
    "layer_types": [SLIDE, FULL, SLIDE, FULL], "no_rope_layers": [1, 0, 1, 0], "no_rope_layer_interval": 2,
    "attention_chunk_size": 5, "partial_rotary_factor": 0.5, "rotary_dim": 4, "rope_theta": 77.0, "head_dim": 4,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "embedding_multiplier": 2.0, "attention_multiplier": 2.0,
    "residual_multiplier": 2.0, "logits_scaling": 2.0, "logit_scale": 2.0, "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 2, "num_experts": 8, "num_experts_per_tok": 1,
    "num_local_experts": 8, "n_routed_experts": 8, "moe_layer_freq": 2, "first_k_dense_replace": 2, "n_group": 2,
    "norm_topk_prob": False, "routed_scaling_factor": 2.0, "qk_layernorm": True, "use_qk_norm": True,
    "use_parallel_residual": True, "swiglu_limit": 0.5, "rms_norm_eps": 0.5, "layer_norm_eps": 0.5,
    "layer_norm_epsilon": 0.5, "norm_eps": 0.5, "num_key_value_heads": 1, "scale_embedding": False, "alibi": True,
    "multi_query": True, "tie_word_embeddings": True, "is_decoder": False, "scale_attn_weights": False,
}  # fmt: skip


def others(name, value):
    """Other values of a setting."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value * 2, value + 1, 0, None] if isinstance(value, int) else [value * 2, value + 0.25, None]
    if isinstance(value, str):
        return ["gelu", "relu", "silu"] if "act" in name else ["softmax", "sum", "sigmoid", "greedy"]
    if isinstance(value, list):
        return [one for one in (value[::-1], value[:1] * len(value), None) if one != value]
    if isinstance(value, dict):
        return [value | {key: other} for key, one in value.items() for other in others(key, one)[:1]]
    return [True, 3, 0.5]


def logits_of(folder, content):
    """transformers' logits and ours for a config.json; None where it is refused."""
    (folder / "config.json").write_text(json.dumps(content))
    found = []
    for opens in (
        lambda: transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        ),
        lambda: load_checkpoint(folder),
    ):
        try:
            torch.manual_seed(0)
            with torch.no_grad():
                made = opens()(TOKENS)
            found.append(made if isinstance(made, torch.Tensor) else made.logits)
        except Exception:  # transformers refuses in many ways
            found.append(None)
    return found


def sweep(kind, n_pairs=0):
    """Changes of config.json after which both open the folder with different logits, as sentences.

    Every key takes some other values, and none, and is joined by keys of other families; then some of the pairs of
    changes that are followed.
    """
    folder = save(kind, FIRST)[1]
    content = json.loads((folder / "config.json").read_text())
    usual = transformers.AutoConfig.for_model(kind).to_dict()
    singles = [{name: other} for name in content for other in others(name, content[name])]
    singles += [{name: usual[name]} for name in content.keys() & usual.keys() if usual[name] != content[name]]
    singles += [{name: other} for name, other in ELSEWHERE.items() if name not in content]
    singles = [one for one in singles if not one.keys() & NOT_THE_MODEL]
    singles += [{name: GONE} for name in content if name not in NOT_THE_MODEL]
    before, wrong, followed = logits_of(folder, content)[0], [], []

    def differs(change):
        changed = {name: value for name, value in (content | change).items() if value is not GONE}
        theirs, ours = logits_of(folder, changed)
        if theirs is None or ours is None or not theirs.isfinite().all():
            return
        if not (ours - theirs).abs().max() <= STRICT * theirs.abs().max():
            wrong.append(f"{kind}: {change} is not followed")
        elif not torch.equal(theirs, before):
            followed.append(change)

    for change in singles:
        differs(change)
    pairs = [one | other for one, other in itertools.combinations(followed, 2) if not one.keys() & other.keys()]
    for change in random.Random(0).sample(pairs, min(n_pairs, len(pairs))):
        differs(change)
    return wrong


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for kind in sys.argv[1:]:
        try:
            said = trial(kind)
        except Exception as e:
            import traceback

            said = [f"{type(e).__name__}: {str(e)[:1500]}", *traceback.format_exc().splitlines()[-3:]]
        print(kind, *said or ["opens"], sep="\n   " if said else " ", flush=True)
