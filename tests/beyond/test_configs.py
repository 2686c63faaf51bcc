"""However config.json says it: a folder opens with the logits of transformers, or is refused in a sentence."""

import json
from functools import cache

import pytest
import transformers

from benchmarks.atlas import GONE, logits_of_transformers, outcome, rewrite
from beyond.families import FAMILIES, TAUGHT, Family, load_checkpoint
from beyond.families.configs import PARTS, SIZES
from beyond.families.reference import TOKENS, save_random
from tests.support.models import assert_agree

pytestmark = pytest.mark.parity

QUICK = "llama", "gemma3_text"
TYPES = [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in ("llama", *TAUGHT)]
LINEAR, LLAMA3 = {"factor": 4.0}, {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN, TRAINED = {"factor": 4.0, "beta_fast": 4.0}, {"original_max_position_embeddings": 16}
THETA, KINDS = {"rope_theta": 500.0}, ("full_attention", "sliding_attention")


def new(kind, **numbers):
    return {"rope_parameters": {"rope_type": kind, **THETA, **numbers}}


def old(kind, key="rope_type", **numbers):
    return {"rope_parameters": GONE, "rope_scaling": {key: kind, **numbers}, **THETA}


def twice(kind, key="rope_type", **numbers):
    """As transformers 5 saves it, and in the old place besides."""
    return new("default") | {"rope_scaling": {key: kind, **numbers}}


SCALED = {"linear": LINEAR, "llama3": LLAMA3 | TRAINED, "yarn": YARN | TRAINED, "default": {}}
SPELLINGS = {f"{kind}, {how.__name__}": how(kind, **more) for kind, more in SCALED.items() for how in (new, old, twice)}
SPELLINGS |= {f"{kind}, {how.__name__}, type": how(kind, "type", **more) for kind, more in SCALED.items()
              for how in (old, twice)}  # fmt: skip
SPELLINGS |= {f"{kind}, twice the same": new(kind, **more) | {"rope_scaling": {"rope_type": kind, **more}} | THETA
              for kind, more in SCALED.items()}  # fmt: skip
SPELLINGS |= {
    "twice, no base": new("linear", **LINEAR) | {"rope_scaling": {"rope_type": "linear", **LINEAR}},
    "llama3 without its length": new("llama3", **LLAMA3),
    "llama3 without any length": new("llama3", **LLAMA3) | {"max_position_embeddings": GONE},
    "llama3, length at the top": new("llama3", **LLAMA3) | TRAINED,
    "llama3, two lengths": old("llama3", **LLAMA3, original_max_position_embeddings=8192) | TRAINED,
    "llama3 without an end": new("llama3", factor=8.0, low_freq_factor=1.0, **TRAINED),
    "yarn without its length": old("yarn", **YARN),
    "yarn, length at the top": old("yarn", **YARN) | TRAINED,
    "yarn, no attention": new("yarn", **YARN, **TRAINED, attention_factor=0.0),
    "yarn, attention": new("yarn", **YARN, **TRAINED, attention_factor=1.5, truncate=False),
    "yarn, mscale": new("yarn", **YARN, **TRAINED, mscale=0.7, mscale_all_dim=1.0),
    "yarn, one mscale": new("yarn", **YARN, **TRAINED, mscale=0.7, mscale_all_dim=0, finetuned=True),
    "yarn, no factor": new("yarn", **TRAINED),
    "linear, more keys": new("linear", **LINEAR, **TRAINED, mscale=2.0, partial_rotary_factor=1.0),
    "part of a head": new("linear", **LINEAR, partial_rotary_factor=0.5),
    "whole head": new("default", partial_rotary_factor=1.0),
    "dynamic": new("dynamic", factor=2.0), "type null": new(None, **LINEAR), "no object": {"rope_parameters": [1]},
    "base at the top alone": {"rope_parameters": GONE, **THETA}, "no base": {"rope_parameters": GONE},
    "two bases": new("default") | {"rope_theta": 7.0}, "empty": {"rope_parameters": {}, "rope_scaling": {}},
    "encoder": {"is_causal": False}, "encoder, null": {"is_causal": None}, "decoder": {"is_causal": True},
    "per layer": {"per_layer_config": {"1": {"rms_norm_eps": 1.0}}},
    "swish": {"hidden_act": "swish"}, "slices": {"pretraining_tp": 2}, "no bias": {"use_bias": False},
    "both eps": {"rms_norm_eps": 0.5}, "windows": {"sliding_window_pattern": 3, "layer_types": GONE},
    "local base": {"rope_local_base_freq": 50.0, "rope_parameters": GONE},
    "output bias": {"attention_out_bias": True},
    # Gemma 3 and OLMo 3 have an entry for each kind of layer
    "nested yarn": {"rope_parameters": {kind: {"rope_type": "yarn", **YARN, "truncate": False} for kind in KINDS}},
    "nested, one only": {"rope_parameters": {KINDS[0]: {"rope_type": "linear", **LINEAR, **THETA}}},
    "nested twice": {"rope_parameters": {kind: {"rope_type": "default", **THETA} for kind in KINDS},
                     "rope_scaling": {"rope_type": "linear", **LINEAR}},
    "nested and flat": {"rope_parameters": {key: {"rope_type": "default"} for key in KINDS} | {"rope_theta": 7.0}},
}  # fmt: skip
# Refused though transformers opens them: two recipes, encoders, and what the course does not have.
REFUSED = *(f"{kind}, twice" for kind in SCALED), "twice, no base", "encoder", "nested", "no bias", "swish"


@cache
def folder_of(kind):
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    folder = save_random(kind, **MORE.get(kind, {}))[1]
    return json.loads((folder / "config.json").read_text()), (folder / "model.safetensors").read_bytes()


# of Mixtral without head_dim transformers 5.23 makes no YaRN: it raises a TypeError
MORE = {kind: {"head_dim": 8} for kind in ("qwen3", "gemma2", "mixtral", "glm4", "internlm3", "iquestcoder")}
MORE |= {"starcoder2": {"norm_epsilon": 1e-5}, "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2}}


def changed(tmp_path, kind, change):
    content, weights = folder_of(kind)
    rewrite(tmp_path, content, change)
    (tmp_path / "model.safetensors").write_bytes(weights)
    return tmp_path


@pytest.mark.parametrize("kind", TYPES)
def test_a_folder_opens_as_in_transformers_or_is_refused(tmp_path, kind):
    wrong = {}
    for spelling, change in SPELLINGS.items():
        folder = changed(tmp_path, kind, change)
        expected, ours = logits_of_transformers(folder), outcome(folder)
        if isinstance(ours, str):
            turns_all = kind == "olmo3" and change.get("rope_theta", 5e5) != 5e5  # in transformers 4, and not in 5
            known = turns_all or spelling.startswith(REFUSED + ("yarn",) * (kind == "llama"))
            if expected is not None and not known:
                wrong[spelling] = ours
        elif expected is None:
            wrong[spelling] = "transformers refuses"
        elif (ours - expected).abs().max() > 1e-4 * max(1, expected.abs().max()):
            wrong[spelling] = f"differs by {(ours - expected).abs().max():.2g}"
    assert not wrong


@pytest.mark.parametrize("kind", ["llama", "internlm3", "gemma3_text", "mixtral"])
def test_dynamic_rope_is_plain_up_to_the_trained_length_and_beyond_it_refused(tmp_path, kind):
    """The only published config of InternLM3 has it."""
    settings = {"rope_parameters": GONE, "rope_scaling": {"rope_type": "dynamic", "factor": 6.0}, **THETA}
    folder = changed(tmp_path, kind, settings | {"max_position_embeddings": 28})
    assert_agree(outcome(folder), logits_of_transformers(folder))
    changed(tmp_path, kind, settings | {"max_position_embeddings": 27})
    model = load_checkpoint(folder)
    assert_agree(model(TOKENS[:, :27]), logits_of_transformers(folder, TOKENS[:, :27]))
    cache = model.new_cache(1, 64)
    model(TOKENS[:, :27], cache)
    for again in ((TOKENS,), (TOKENS[:, 27:], cache)):
        with pytest.raises(ValueError, match=r"28 tokens are more than max_seq_len=27, and beyond it .* 'dynamic'"):
            model(*again)


OLD = {"rope_parameters": GONE, "layer_types": GONE, "rope_theta": 500_000.0}
OLD_YARN = {"rope_scaling": {"rope_type": "yarn", **YARN, **TRAINED}}
WINDOWS = {"sliding_window": 6, "max_window_layers": 1}
MIXED = {"sliding_window": 6, "layer_types": [KINDS[1], KINDS[0], KINDS[1]]}
OLDER = {  # as on the Hub
    "mistral": OLD | {"head_dim": GONE}, "olmo2": OLD, "mixtral": OLD, "granite": OLD,
    "qwen2": OLD | WINDOWS | {"use_sliding_window": False},
    "qwen2, with windows": OLD | WINDOWS | {"use_sliding_window": True},
    "qwen3": OLD | {"use_sliding_window": False, "sliding_window": GONE, "max_window_layers": 1},
    "olmo3": OLD | OLD_YARN, "gpt_oss": OLD | OLD_YARN,
    "smollm3": OLD | {"no_rope_layers": GONE, "no_rope_layer_interval": 2},
    "gemma3_text": OLD | {"sliding_window_pattern": 2, "rope_local_base_freq": 100.0,
                          "rope_scaling": {"rope_type": "linear", **LINEAR}},
    "gemma2": OLD | {"hidden_act": "gelu_pytorch_tanh"},
    "qwen3_moe": OLD | {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 2},
    "phi3": OLD | {"partial_rotary_factor": 0.5},
    # keys of other families, which transformers does not read
    **{f"{one}, biases": {"attention_bias": True} for one in ("mistral", "qwen2", "mixtral", "phi3", "starcoder2")},
    "mistral, more": {"num_experts": 4, "logits_scaling": 2.0, "use_sliding_window": True, "clip_qkv": 1.0},
    "olmo2, windows": MIXED, "gemma2, gelu": {"hidden_act": "gelu"},
}  # fmt: skip


@pytest.mark.parametrize("name", OLDER)
def test_older_configs_are_read_as_transformers_reads_them(tmp_path, name):
    folder = changed(tmp_path, name.split(",")[0], OLDER[name])
    assert_agree(outcome(folder), logits_of_transformers(folder))


NAMED = {  # what no edit covers: a family, what its config.json says, and words of the error
    "biases on Qwen3": ("qwen3", {"attention_bias": True}, "attention_bias=True is no part of 'qwen3'"),
    "another gate": ("mistral", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
    "another GELU": ("gemma2", {"hidden_activation": "gelu"}, "only 'gelu_pytorch_tanh'"),
    "another activation": ("starcoder2", {"hidden_act": "tanh"}, "hidden_act='tanh' is not known here, only gelu"),
    "both ways": ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    "full layers of a Mistral": ("mistral", {"layer_types": [KINDS[0]] * 3}, "layer_types=.* no part"),
    "RoPE said twice": ("qwen3", twice("linear", "type", factor=2.0), "rope_scaling says .*, rope_parameters says "),
    "a part of a head": ("gemma3_text", {"rope_parameters": {kind: {"partial_rotary_factor": 0.5} for kind in KINDS}},
                         "partial_rotary_factor=0.5 is no part of"),
    "a window that is none": ("olmo3", {"sliding_window": None}, "sliding_window=None must be a whole number"),
    "LongRoPE": ("phi3", new("longrope", long_factor=[1.0]),
                 "'longrope' .Phi-3.5's, with a factor for each pair. is not known here"),
    "windows switched off": ("qwen3", MIXED | {"use_sliding_window": False}, "sliding_window=None must be a whole"),
    "a damaged YaRN": ("qwen3", new("yarn", **YARN | TRAINED | {"beta_fast": -1}), "beta_fast=-1 must be a finite"),
    "quantised": ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, "a few bits each, as .* in MXFP4"),
    "LLaMA 4": ("mistral", {"model_type": "llama4"}, "a 'llama4_text'. This course reads .* mistral, qwen2"),
    "a part that sees": ("gemma3_text", {"model_type": "gemma3"}, "'gemma3_text'"),
    "no family": ("mistral", {"model_type": ["mistral"]}, "its relatives mistral, qwen2"),
    "a biased file": ("qwen2", {"model_type": "qwen3", "head_dim": 8}, "left over: .*0.attention.q_proj.bias"),
    "a file without norms": ("mistral", {"model_type": "qwen3"}, "missing: layers.0.attention.q_norm.weight"),
    "too many experts": ("mixtral", {"num_local_experts": 10**9}, "far more than"),
    "one expert more": ("mixtral", {"num_local_experts": 9}, "missing: layers.0.feed_forward.experts.8"),
    "a damaged size": ("phi3", {"num_key_value_heads": 4}, "do not fit"),
    "no width": ("llama", {"hidden_size": GONE}, "has no 'hidden_size', and this course does not know what counts"),
    "no width of a relative": ("gemma3_text", {"hidden_size": GONE}, "has no 'hidden_size', and this course does"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_what_is_not_known_here_is_refused_by_name(tmp_path, name):
    kind, change, words = NAMED[name]
    with pytest.raises(ValueError, match=words):
        load_checkpoint(changed(tmp_path, kind, change))


NO_SIZE = {"model_type", "rope_parameters", "rope_scaling", "is_causal", "per_layer_config"}
ASKED_FOR = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
LLAMAS = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu",
          "attention_bias": False, "partial_rotary_factor": 1.0, "rope_theta": 10_000.0}  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", *TAUGHT])
def test_what_config_json_leaves_out_is_what_transformers_takes_or_is_asked_for(kind):
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    theirs, row = transformers.CONFIG_MAPPING[kind](), FAMILIES.get(kind, Family(()))
    ours, names = LLAMAS | row.settings, {ours: name for name, ours in row.keys.items()}
    ours |= {"num_key_value_heads": ours.get("num_key_value_heads") or theirs.num_attention_heads}
    ours |= {"head_dim": ours.get("head_dim") or theirs.hidden_size // theirs.num_attention_heads}
    ropes = theirs.rope_parameters
    for layers, (_, base) in row.fixed.get("rope_bases", {}).items():
        assert ropes[layers]["rope_theta"] == base
        ours["rope_theta"] = None  # each kind of layer has its own
    for name in (SIZES | PARTS | row.settings.keys()) - NO_SIZE:
        value = ropes.get(name, getattr(theirs, names.get(name, name), None))
        if ours.get(name) is not None:
            assert value in (ours[name], None), name
        else:
            assert value is None or name in ASKED_FOR | row.settings.keys(), name


REPEATED = {  # what files may hold much of
    "llama": ("quantization_config", "hidden_act", "rope_scaling", "tie_word_embeddings", "rms_norm_eps", "model_type"),
    "qwen2": ("sliding_window", "rope_parameters", "head_dim", "vocab_size", "layer_types", "hidden_act"),
    "smollm3": ("no_rope_layers", "layer_types"), "gemma3_text": ("layer_types", "hidden_activation", "rope_scaling"),
    "starcoder2": ("hidden_act", "norm_epsilon"), "gpt_oss": ("swiglu_limit", "num_local_experts", "sliding_window"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REPEATED)
def test_no_error_repeats_a_file(tmp_path, kind):
    for name in REPEATED[kind]:
        for value in ("x" * 10**6, ["full_attention"] * 10**5, {"rope_type": "x" * 10**6}, 10**400, 1e308):
            window = {"use_sliding_window": True} if kind == "qwen2" else {}
            ours = outcome(changed(tmp_path, kind, {"rope_parameters": GONE} | window | {name: value}))
            assert isinstance(ours, str) or ours.isfinite().all()
