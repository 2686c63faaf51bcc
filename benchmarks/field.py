"""The map of notebook 08: what each causal model of transformers does otherwise than a LLaMA, and since when.

python -m benchmarks.field            beyond/families/field.json, in about ten minutes
python -m benchmarks.field falcon     what was measured of some types

A small random model of twelve layers is made of each type, with the settings that its class has if config.json says
only the sizes. It is not read but measured: what enters and leaves its layers is replaced, and keys and weights are
seen where PyTorch computes them. Only experts, short vectors for keys and values, and sinks are known by the names of
their weights, and what keeps a state or chooses its keys by the lists of `benchmarks/atlas.py`.
"""

import inspect
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import torch
import transformers
from torch import nn
from torch.overrides import TorchFunctionMode

from benchmarks.atlas import FIRST, FULL, OTHER_KINDS, SLIDE
from beyond.families.reference import SIZES

N, N_LAYERS, WINDOW, CLOSE = 29, 12, 6, 1e-3  # tokens; of the largest number: equal
TOKENS = torch.randperm(64, generator=torch.Generator().manual_seed(0))[None, :N]
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
NORM, NO_BRANCH = re.compile("norm|ln_"), re.compile("norm|ln_|drop|act|_hc$|hyper|per_layer|mamba|conv|linear_att")


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


class Lens(TorchFunctionMode):
    """Keys (..., T, h) and weights (..., T, T) of each layer's attention, caught where they are computed."""

    def __init__(self):
        super().__init__()
        self.layer, self.key, self.seen = None, None, defaultdict(list)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        if isinstance(out, torch.Tensor) and out.ndim > 2 and out.shape[-2] == N:
            args = (*args, *(kwargs or {}).values())
            if re.search("mm|mul$", name := func.__name__) and name != "mul" and out.shape[-1] == N:
                self.key = [one for one in args if isinstance(one, torch.Tensor)][-1].mT
            if "softmax" in name and out.shape[-1] in (N, N + 1):  # with a sink
                self.seen[self.layer].append((self.key, out[..., :N]))
        return out


class Box:
    """A model whose layers are given what we choose."""

    def __init__(self, model):
        self.model = model
        lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) > 1]
        self.layers = next((one for one in lists if len(one) == N_LAYERS), max(lists, key=len))
        self.attentions, self.branches = [], []
        for layer in self.layers:
            children = [(name, part) for name, part in layer.named_children() if not NO_BRANCH.search(name)]
            attention = next((part for name, part in children if "att" in name), None)
            self.attentions.append(attention)
            self.branches.append([part for _, part in children if part is not attention and [*part.parameters()]])
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    @torch.no_grad()
    def run(self, shift=0, stream=None, attention_in=None, attention_out=None, forward_in=None):
        """{"stream", "attention", "forward in", "forward out": a list with what was there in each layer}, and the lens.

        Args:
            shift: added to all positions.
            stream: what each layer gets, a list; None: what comes.
            attention_in, attention_out, forward_in: functions of what enters or leaves these parts.
        """
        lens, seen, hooks = Lens(), defaultdict(dict), []

        def enters(n, name, change):
            def hook(module, args, kwargs):
                lens.layer = n
                x = args[0] if args else kwargs["hidden_states"]
                y = change(x)
                seen[name].setdefault(n, y.clone())  # the first of several
                given = tuple(y if one is x else one for one in args)
                return given, kwargs if args else kwargs | {"hidden_states": y}

            return {"hook": hook, "with_kwargs": True}

        def leaves(n, name, change):
            def hook(module, args, out):
                y = out[0] if isinstance(out, (tuple, list)) else out
                y = change(y)
                seen[name][n] = y.clone()  # some add to it in place
                return type(out)((y, *out[1:])) if isinstance(out, (tuple, list)) else y

            return hook

        same = lambda x: x  # noqa: E731
        for n, (layer, attention, branch) in enumerate(zip(self.layers, self.attentions, self.branches, strict=True)):
            given = same if stream is None else lambda x, n=n: stream.get(n, x)
            hooks.append(layer.register_forward_pre_hook(**enters(n, "stream", given)))
            if attention is not None:
                hooks.append(attention.register_forward_pre_hook(**enters(n, "attention in", attention_in or same)))
                hooks.append(last(attention).register_forward_hook(leaves(n, "attention", attention_out or same)))
            for part in branch:
                hooks.append(part.register_forward_pre_hook(**enters(n, "forward in", forward_in or same)))
                hooks.append(last(part).register_forward_hook(leaves(n, "forward out", same)))
        places = {"position_ids": torch.arange(N)[None] + shift} if self.takes_positions else {}
        try:
            with lens:
                self.model(input_ids=TOKENS, use_cache=False, **places)
        finally:
            for hook in hooks:
                hook.remove()
        return seen, {n: lens.seen[n][-1] for n in lens.seen if n is not None}


def last(part):
    """What leaves a branch: in BLOOM its last matrix, because the branch adds the stream itself."""
    if "residual" not in inspect.signature(part.forward).parameters:
        return part
    return [one for one in part.modules() if isinstance(one, nn.Linear)][-1]


def apart(first, second):
    """Whether two tensors differ by more than rounding."""
    return bool((first - second).abs().max() > CLOSE * first.abs().max())


def features(kind, model):
    """What a type does otherwise than LLaMA, (names of features, how much of a head turns, how far a layer sees)."""
    box = Box(model)
    before, seen = box.run()
    stream = before["stream"]  # each layer gets the same again
    turned, sees = [0.0] * len(box.layers), [None] * len(box.layers)
    with_attention = [n for n in range(len(box.layers)) if n in seen]
    shifted = {}
    if box.takes_positions:
        try:
            shifted = box.run(shift=100_000, stream=stream)[1]
        except (IndexError, RuntimeError):  # a table ends
            shifted = box.run(shift=20, stream=stream)[1]
    for n in range(len(box.layers)):
        if n not in seen:
            turned[n] = None
            continue
        key, weights = seen[n]
        sees[n] = round((weights > 0).flatten(0, -3).any(0).sum(-1).max().item() / N, 3)
        if n in shifted:
            off = (shifted[n][0] - key).abs().flatten(0, -2).amax(0)
            turned[n] = round((off > CLOSE * key.abs().max()).float().mean().item(), 3)

    x = torch.randn(1, N, model.config.get_text_config().hidden_size, generator=torch.Generator().manual_seed(1))
    for name, weight in model.named_parameters():
        if "sink" in name:
            nn.init.constant_(weight, -1e4)  # takes nothing, so token 0 attends to itself alone
    of_x, key_of_x = box.run(stream=stream, attention_in=lambda _: x)
    of_3x, key_of_3x = box.run(stream=stream, attention_in=lambda _: 3 * x)
    of_none, key_of_0 = box.run(stream=stream, attention_in=torch.zeros_like)
    of_0, _ = box.run(stream=stream, forward_in=torch.zeros_like)
    cut, _ = box.run(stream=stream, attention_out=torch.zeros_like)
    tripled, _ = box.run(stream=stream, attention_out=lambda y: 3 * y)
    mine = [n for n in with_attention if n in of_x["attention"]]
    fed = [n for n in mine if n in before["forward in"]]

    def proportional(n):
        none = of_none["attention"][n][:, 0]  # of token 0, as all here: it sees itself alone
        first, second = of_x["attention"][n][:, 0] - none, of_3x["attention"][n][:, 0] - none
        scale = (first * second).sum() / (first * first).sum()
        return not apart(second, scale * first)

    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    has = lambda pattern: any(re.search(pattern, name) for name in names)  # noqa: E731
    chooses = kind in OTHER_KINDS["models that choose which keys they look at"].split()
    state = kind in OTHER_KINDS["models that keep a state"].split()
    rolls = {share for share in turned if share is not None}
    found = {
        "LayerNorm": any(map(is_layer_norm, norms_of(box, x.shape[-1]))),
        "no gate": any(map(ungated, box.layers)),
        "nothing turns": bool(rolls) and not state and rolls == {0.0},
        "biases in the feed-forward": any(apart(of_0["forward out"][n][:, :4] + 1, torch.ones(1)) for n in fed),
        "attention beside feed-forward": any(not apart(before["forward in"][n], cut["forward in"][n]) for n in fed),
        "biases on keys": any(key_of_0[n][0].abs().max() > CLOSE for n in mine if n in key_of_0),
        "a part of a head turns": any(0 < share < 1 for share in rolls),
        "norm after attention": any(not apart(before["forward in"][n], tripled["forward in"][n])
                                    and apart(before["forward in"][n], cut["forward in"][n]) for n in fed),
        "norm of keys": any(not apart(key_of_x[n][0], key_of_3x[n][0]) for n in mine if n in key_of_3x),
        "experts": has(r"experts?\b"), "shared expert": has("shared"),
        "a bias steers the router": has("correction_bias|expert_bias|router_bias|score_bias|balancing"),
        "keeps a state": state, "one short vector for keys and values": has("kv_a|kv_down|kv_lora|kv_proj_with_mqa"),
        "a window": any(see is not None and see < 1 for see in sees) and not chooses,
        "some layers stand still": 0.0 in rolls and len(rolls) > 1,
        "sinks": has("sink") or any(seen[n][1].sum(-1).min() < 1 - CLOSE for n in with_attention),
        "gate on attention": not all(map(proportional, mine)), "chooses its keys": chooses,
    }  # fmt: skip
    return [name for name, there in found.items() if there], turned, sees


def norms_of(box, dim):
    """The norms of a layer that read the stream."""
    for layer in box.layers:
        for name, part in layer.named_children():
            if NORM.search(name) and all(weight.shape[-1] == dim for weight in part.parameters()):
                yield part, dim


def is_layer_norm(norm_and_dim):
    """Whether a norm takes the mean off: a number added to all coordinates changes nothing."""
    norm, dim = norm_and_dim
    x = torch.randn(1, 4, dim, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return not apart(norm(x), norm(x + 1))


def ungated(layer):
    """Whether a feed-forward has two matrices, not three (two of them may be one): their sizes are as 1 to 1."""
    groups = defaultdict(list)
    for name, weight in layer.named_parameters():
        where, _, own = name.removesuffix(".weight").rpartition(".")
        if (
            weight.ndim > 1
            and not re.search("att|norm|router|mamba|conv|mixer|ssm|per_layer|_hc|hyper", name)
            and own != "gate"
        ):
            groups[re.sub(r"\.\d+", "", where)].append(weight.numel())
    sizes = [sorted(group) for group in groups.values() if len(group) > 1]
    return any(len(group) % 2 == 0 and group[0] == group[-1] for group in sizes)


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
