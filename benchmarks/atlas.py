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
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TYPES

from benchmarks.hub import MODELS, SOURCES
from beyond.families import FAMILIES, load_checkpoint, register_family
from beyond.families.differences import OTHER_KINDS
from beyond.families.reference import LIKE_LLAMA, SIZES, TOKENS, max_abs_diff, one_by_one, save_random, small_settings
from beyond.families.reference import SMALL as FIRST

GONE = object()
KINDS = {kind for kind, *_ in MODELS}
STRICT = 1e-4  # of the largest logit
SLIDE, FULL = "sliding_attention", "full_attention"
SECOND = FIRST | {
    "hidden_size": 64, "n_embd": 64, "d_model": 64, "intermediate_size": 80, "ffn_dim": 80, "dff": 80,
    "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 9, "moe_intermediate_size": 28, "num_experts": 6,
    "num_local_experts": 6, "n_routed_experts": 6, "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "layer_types": [FULL, SLIDE, SLIDE, FULL],
}  # fmt: skip
MHA, BIASED = {"num_key_value_heads": 4}, {"attention_bias": True}
SCALES = {"residual_multiplier": 0.7, "logits_scaling": 2.0, "attention_multiplier": 0.2, "embedding_multiplier": 1.5}
SCALED, GROUPS, SHARED = {"routed_scaling_factor": 1.5}, {"n_group": 2, "topk_group": 1}, {"n_shared_experts": 2}
LATENT = MHA | BIASED | SCALED | GROUPS | SHARED | {"norm_topk_prob": False, "rope_interleave": False}
BITING = {  # what else a type needs so that every setting of its row changes something
    **dict.fromkeys(("arcee", "cohere2", "nemotron", "bitnet"), BIASED),
    **dict.fromkeys(("youtu", "minicpm3"), MHA | BIASED),
    **dict.fromkeys(("flex_olmo", "olmoe"), BIASED | {"norm_topk_prob": True}),
    **{kind: {"rotary_dim": 4} for kind in ("gptj", "codegen", "minimax_m2")},
    **dict.fromkeys(("hyperclovax", "granitemoeshared"), BIASED | SCALES),
    "granite": SCALES,
    "mellum": BIASED | {"norm_topk_prob": False},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0], "sliding_window": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 1], [["local"], 2]], "window_size": 6},
    "ctrl": {"layer_norm_epsilon": 0.1},
    "xglm": {"pad_token_id": 9},
    "mpt": {"attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.2}},
    "dbrx": lambda sizes: {"attn_config": {"kv_n_heads": sizes.get("num_key_value_heads", 2), "clip_qkv": 1.5,
        "rope_theta": 500.0}, "ffn_config": {"ffn_hidden_size": sizes["moe_intermediate_size"], "moe_num_experts":
        sizes["num_experts"], "moe_top_k": 2}},
    "gpt_neox_japanese": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0,
                                              "partial_rotary_factor": 0.5}},
    "phimoe": BIASED | {"lm_head_bias": True, "router_jitter_noise": 0.2},
    "nanochat": BIASED | {"final_logit_softcapping": 5.0},
    "diffllama": lambda sizes: BIASED | {"num_key_value_heads": sizes.get("hidden_size", 32) // 16},
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), BIASED | SCALES | {"layer_rope_theta": [500.0, 0, 1e4, 500]}),
    "flint": BIASED | {"norm_topk_prob": True, "mlp_only_layers": [1]},
    "axk1": LATENT | {"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]},
    "cwm": {"bos_token_id": 0},
    "ernie4_5": {"use_bias": True},
    "stablelm": {"use_qkv_bias": True},
    "falcon": {"bias": True},
    "phi3": {"partial_rotary_factor": 0.5},
    "opt": lambda sizes: {"word_embed_proj_dim": sizes.get("hidden_size", 32)},
    "vaultgemma": {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 24},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "qwen2_moe": {"norm_topk_prob": True, "use_sliding_window": True, "mlp_only_layers": [1]},
    "aria_text": BIASED | {"moe_num_experts": 4},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_layer_end_index": 2},
    "hy_v3": BIASED | {"num_shared_experts": 2, "router_scaling_factor": 1.5},
    "dots1": BIASED | SCALED | GROUPS | SHARED
    | {"norm_topk_prob": True, "max_window_layers": 2, "first_k_dense_replace": 1},
    "solar_open": BIASED | SCALED | SHARED | {"n_group": 2, "norm_topk_prob": False},
    "glm4_moe": BIASED | SCALED | SHARED
    | {"n_group": 2, "norm_topk_prob": False, "first_k_dense_replace": 2, "use_qk_norm": True},
    "exaone_moe": SCALED | GROUPS | {"num_shared_experts": 2, "norm_topk_prob": False},
    "afmoe": BIASED | {"num_dense_layers": 2, "mup_enabled": True, "num_shared_experts": 1, "route_scale": 1.5},
    "deepseek_v2": MHA | BIASED | SCALED | GROUPS
    | {"n_shared_experts": 1, "first_k_dense_replace": 1, "topk_method": "group_limited_greedy"},
    "deepseek_v3": LATENT | {"first_k_dense_replace": 1},
    "glm4_moe_lite": LATENT,
    "ministral3": {"sliding_window": 6, "rope_parameters": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 5, "beta_fast": 4.0, "mscale": 1.0,
        "mscale_all_dim": 0.5, "rope_theta": 1000.0, "llama_4_scaling_beta": 0.3}},
    "llama4_text": BIASED | {"intermediate_size_mlp": 40, "moe_layers": [1, 2, 3], "no_rope_layers": [1, 0, 1, 0],
                             "attention_chunk_size": 7, "floor_scale": 4, "attn_scale": 0.3},
    "kolibri1": {"norm_topk_prob": True},
    "cohere2_moe": BIASED | {"num_shared_experts": 2, "expert_selection_fn": "sigmoid", "norm_topk_prob": False,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"], "prefix_dense_intermediate_size": 28,
        "rms_norm_eps": None},
    "laguna": lambda sizes: BIASED | {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        "moe_routed_scaling_factor": 1.5, "moe_router_logit_softcapping": 0.5, "rms_norm_eps": 2e-6,
        "num_attention_heads_per_layer": [n * sizes.get("num_key_value_heads", 2) for n in (2, 1, 3, 2)],
        "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
                            SLIDE: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}},
    "beam": BIASED | GROUPS | SCALED | {"norm_topk_prob": False, "rms_norm_eps": 1e-3, "final_logit_softcapping": 5.0,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        "rope_parameters": {SLIDE: {"rope_type": "default", "rope_theta": 500.0}, FULL: None}},
    "jetmoe": lambda sizes: {"kv_channels": sizes["head_dim"], "rms_norm_eps": 0.1},
}  # fmt: skip


def save(kind, sizes, biting=True):
    """transformers' random model of a type, and a folder that holds it; every setting of its row changes something."""
    own = BITING.get(kind, {}) if biting else {}
    return save_random(kind, **small_settings(kind, sizes) | (own(sizes) if callable(own) else own))


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


def rewrite(folder, content, change):
    """Write config.json with these keys changed, or gone."""
    changed = {name: value for name, value in (content | change).items() if value is not GONE}
    (folder / "config.json").write_text(json.dumps(changed))


@torch.no_grad()
def logits_of_transformers(folder, tokens=TOKENS):
    """None if transformers refuses, in whatever way."""
    torch.manual_seed(0)  # it draws what is missing
    try:
        settings = {"attn_implementation": "eager", "dtype": torch.float32}
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, **settings)
        return theirs(input_ids=tokens, use_cache=False).logits
    except Exception:
        return None


@torch.no_grad()
def outcome(folder):
    """Our logits, or the error: a short sentence, or a list of twenty weights."""
    try:
        return load_checkpoint(folder)(TOKENS)
    except ValueError as error:
        text = str(error).replace(str(folder), "")
        assert len(text) < 1000 or "weights do not fit" in text, text
        assert not any(words in text for words in ("unexpected keyword", "has no attribute", "object is not")), text
        return text


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
    before, wrong, followed = logits_of_transformers(folder), [], []

    def compare(change):
        rewrite(folder, content, change)
        theirs, ours = logits_of_transformers(folder), outcome(folder)
        if theirs is None or isinstance(ours, str) or not theirs.isfinite().all():
            return
        if not (ours - theirs).abs().max() <= STRICT * theirs.abs().max():
            wrong.append(f"{kind}: {change} is not followed")
        elif not torch.equal(theirs, before):
            followed.append(change)

    for change in singles:
        compare(change)
    pairs = [one | other for one, other in itertools.combinations(followed, 2) if not one.keys() & other.keys()]
    for change in random.Random(0).sample(pairs, min(n_pairs, len(pairs))):
        compare(change)
    return wrong


# --------------------------------------------------------------------------------------------- what is published


def opened(kind, settings):
    """How far ours is from theirs, at once and one by one, if config.json says only small sizes and these settings."""
    sizes = SIZES | FIRST | {"intermediate_size_mlp": 48}
    sizes = {name: size for name, size in sizes.items() if "eps" not in name and "sliding" not in str((name, size))}
    content = small_settings(kind, sizes)
    content |= (MHA if "kv_lora_rank" in content else {}) | settings
    folder = save_random(kind, **content)[1]
    (folder / "config.json").write_text(json.dumps({"model_type": kind} | content))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    return differences(theirs, folder)


def published():
    """The page's part on published models, line by line."""
    yield f"""
## Published models

What a published model sets otherwise than its class was tried, too: a small random model with these settings, and a
`config.json` that says nothing but them and the sizes. Numbers that count experts or parts of a head are small like
the widths. The last column is the larger of the two differences. The settings come from copies in other projects,
because no hub was at hand, and for the other {len(FAMILIES.keys() - KINDS)} families that open here no copy was found.

| model | type | settings | tried |
|---|---|---|---|"""
    for kind, name, source, settings in MODELS:
        try:
            off = max(opened(kind, settings))
            tried = f"opens: {off:.0e}" if off < STRICT else f"**differs** by {off:.0e}"
        except ValueError as error:
            tried = "is refused: " + str(error).partition(": ")[2]
        yield f"| {name} | {kind} | {', '.join(settings)} ({source}) | {tried} |"
    yield "\nThe copies: " + "; ".join(f"{source} is {where}" for source, where in SOURCES.items()) + "."


# ------------------------------------------------------------------------------------------------------- the page

LEARNERS = "helium", "seed_oss", "glm", "olmo", "cohere", "exaone4", "persimmon", "granitemoe", "apertus", "gpt_neox"
LACKS = {  # plain attention without a row, and what its row would need
    "hunyuan_v1_dense": "notebook 08 builds it in exercise 2",
    "hunyuan_v1_moe": "norms after the turn, a shared expert",
    "modernbert-decoder": "a norm on the embedding, a dense layer before the head",
    "longcat_flash": "two attentions in a layer, experts that do nothing", "cohere_compass_text": "not looked into",
    **dict.fromkeys(("gemma3n_text", "gemma4_text", "gemma4_unified_text"), "an embedding for each layer"),
    "mimo_v2_flash": "more key heads in layers with a window, so the cache would have two shapes",
}  # fmt: skip


def said(kind):
    """What the table says of a type: its edits, and how far off it was in each size, or why it does not open."""
    try:
        if kind in FAMILIES or kind in ("llama", "gpt-sw3"):
            edits = ", ".join(edit.__name__ for edit in FAMILIES[kind].edits) if kind in FAMILIES else "none"
            off = [max(differences(*save(kind, sizes))) for sizes in (FIRST, SECOND)]
            opens = "opens" if max(off) < STRICT else "**differs**"
            return f"| {kind} | {edits or 'none'} | {opens}: {off[0]:.0e}, {off[1]:.0e} |"
        save(kind, FIRST)
        return f"| {kind} | {'left to you' if kind in LEARNERS else LACKS.get(kind, 'new')} | no row |"
    except Exception as error:
        return f"| {kind} | {LACKS.get(kind, '')} | not built: {type(error).__name__} |"


def share(first, second):
    """The largest difference, as a share of the largest number."""
    return ((first - second).abs().max() / first.abs().max()).item()


def random_model(kind, **settings):
    """transformers' model alone, on the CPU."""
    return save_random(kind, **settings)[0].cpu()


@torch.no_grad()
def surprises():
    """What good guesses answer wrongly, each measured here, in a line."""
    tokens, places = TOKENS, torch.arange(TOKENS.shape[1])[None]
    windows = {}
    for kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
        settings = {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 3, "num_hidden_layers": 4}
        model = random_model(kind, num_experts=4, num_experts_per_tok=2, **settings)
        windows[kind] = [
            n for n, layer in enumerate(model.model.layers) if getattr(layer.self_attn, "sliding_window", 0)
        ]
    yield "Which of four layers have a window if `max_window_layers` is 2? " + "; ".join(
        f"{kind}: {layers}" for kind, layers in windows.items()
    )
    full = {"layer_types": [FULL] * 3}
    turning, still = (random_model("exaone4", sliding_window=one, **full) for one in (None, 64))
    off = share(turning(tokens).logits, still(tokens).logits)
    yield f"EXAONE 4 without a window in any layer: `sliding_window` 64 in place of null moves the logits by {off:.2f}"
    for gains in ("random", "1"):
        moved = {}
        for kind in ("llama", "qwen3", "hunyuan_v1_dense"):
            model = random_model(kind, head_dim=8)
            for name, weight in model.named_parameters():
                if "norm" in name and gains == "1":
                    weight.fill_(1)
            moved[kind] = share(model(tokens).logits, model(tokens, position_ids=places + 100).logits)
        text = ", ".join(f"{kind} by {off:.0e}" for kind, off in moved.items())
        yield f"All positions shifted by 100, gains {gains}: the logits move, {text}"
    parts = {}
    like = LIKE_LLAMA | {"granite without its embedding multiplier": {"embedding_multiplier": 1.0}}
    for kind, settings in like.items():
        model, folder = save_random(kind.partition(" ")[0], head_dim=8, bos_token_id=0, **settings)
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "llama", "hidden_act": "silu"}))
        off = (load_checkpoint(folder)(tokens) - model.cpu()(tokens).logits).abs().amax(-1)[0]
        parts[kind] = next((n for n, one in enumerate(off) if one > 1e-3), "never")
    del parts["llama"]
    yield "Opened as a LLaMA, at which token do the logits of notebook 08's eleven families part? " + ", ".join(
        f"{kind}: {n}" for kind, n in parts.items()
    )
    model = save("axk2", FIRST | MHA | {"n_group": 2, "topk_group": 1})[0].cpu()
    before = model(tokens).logits
    for name, bias in model.named_buffers():
        if name.endswith("correction_bias"):
            bias -= 3
    off = share(before, model(tokens).logits)
    yield f"A.X-K2: the same constant, -3, on all biases of its routers moves the logits by {off:.2f}"
    not_read = {
        "gpt-oss with `hidden_act` relu": ("gpt_oss", {}, {"hidden_act": "relu"}),
        "MPT with `alibi` false, or with `alibi_bias_max` 4": (
            "mpt", {}, {"attn_config": {"alibi": False, "alibi_bias_max": 4}}),
        "DBRX with `rope_theta` 500 in its `attn_config` in place of 500,000": (
            "dbrx", *({"d_model": 32, "attn_config": {"clip_qkv": 8, "rope_theta": base}} for base in (5e5, 500.0))),
    }  # fmt: skip
    for said, (kind, *settings) in not_read.items():
        off = share(*(random_model(kind, **one)(tokens).logits for one in settings))
        yield f"{said}: the logits move by {off:.0e}, because the setting is not read"
    model = random_model("phimoe")
    off = share(model(tokens).logits, model.train()(tokens).logits)
    yield f"PhiMoE, train() in place of eval(): the logits move by {off:.2f}, because its router draws"
    drops = transformers.AutoConfig.for_model("seed_oss").residual_dropout
    yield f"Seed-OSS: if config.json says nothing, `residual_dropout` is {drops}, so train() drops numbers"


def page():
    """docs/atlas.md, line by line."""
    plain = [kind for kind in TYPES if not any(kind in kinds.split() for kinds in OTHER_KINDS.values())]
    rows = [said(kind) for kind in plain]
    n_open = sum("| opens:" in row for row in rows)
    yield f"""# Every causal language model of transformers, as edits to a LLaMA

`python -m benchmarks.atlas` wrote this page, with transformers {transformers.__version__} and PyTorch
{torch.__version__.partition("+")[0]}. Of the {len(TYPES)} types that transformers calls causal language models,
{len(plain)}
are plain attention. `beyond.families.load_checkpoint` opens {n_open} of them; rows for ten are left to you,
in exercise 2 of [notebook 08](../notebooks/08_relatives.ipynb).

A type that opens was tried in two sizes, because a row must not have a size written down. A random model of
transformers was saved, opened here, and read 28 tokens at once and one by one through the cache. The two
numbers are the largest difference from its logits in either size, as a share of the largest logit, and
"differs" would stand where one is more than {STRICT:.0e}. `tests/beyond/test_atlas.py` leaves out each edit once
and changes every setting, alone and in pairs: the folder must then open as in transformers, or be refused.

| type | edits, or what a row would need | tried |
|---|---|---|"""
    yield from rows
    yield from published()
    yield "\n## Types that are no plain attention\n"
    for why, kinds in OTHER_KINDS.items():
        there = sorted({*kinds.split()} & {*TYPES})
        yield f"- {len(there)} {why}: {', '.join(there)}."
    yield "\n## What good guesses answer wrongly\n\nMeasured by the same program, as shares of the largest logit.\n"
    yield from (f"- {line}." for line in surprises())
    yield "\nWith `latent` the cache holds full keys and values here, not the short vector, so it saves nothing."


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for kind in sys.argv[1:]:
        print(kind, *trial(kind) or ["opens"], sep="\n    ")
    if not sys.argv[1:]:
        lines = []
        for line in page():
            print(line, flush=True)
            lines.append(line)
        Path(__file__).parents[1].joinpath("docs", "atlas.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
