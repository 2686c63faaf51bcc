"""Every causal language model of transformers as edits to a LLaMA: which types open here, and why the others do not.

python -m benchmarks.atlas            docs/atlas.md, in a few minutes
python -m benchmarks.atlas falcon     the trial of some types, with every number

A type that opens is tried in two sizes: a random model of transformers, whose settings all bite, is saved, opened by
`load_checkpoint`, and reads 28 tokens at once and one by one. Then each edit of its row is left out once.
"""

import json
import sys
from dataclasses import replace

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TYPES

from beyond.families import FAMILIES, load_checkpoint, register_family
from beyond.families.reference import max_abs_diff, one_by_one, save_random

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
    "cwm": {"bos_token_id": 0}, "arcee": {"attention_bias": True}, "ernie4_5": {"use_bias": True}, "flex_olmo": {"attention_bias": True},
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
    "cohere2": {"attention_bias": True}, "falcon": {"bias": True},
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
    """Edits and settings of a row without which the folder opens with the same logits."""
    row = FAMILIES[kind]
    rows = {edit.__name__: replace(row, edits=tuple(one for one in row.edits if one is not edit)) for edit in row.edits}
    found = []
    for name, less in rows.items():
        with register_family(kind, less):
            try:
                if max(differences(theirs, folder)) < STRICT:
                    found.append(f"without {name} nothing changes")
            except ValueError:
                pass  # a weight is left over, or missing
    content = json.loads((folder / "config.json").read_text())
    return found


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
