"""`what_differs` measures what the rows say, notices planted faults, and refuses what it cannot measure."""

import json

import pytest
import torch

from benchmarks.atlas import FIRST, save
from beyond.families import FAMILIES, load_checkpoint
from beyond.families.differences import N, measure, what_differs
from beyond.families.reference import save_random
from helpers import plots

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # transformers warns of odd settings
SAMPLE = "gpt2", "gemma2", "gpt_oss", "afmoe", "deepseek_v3"


ELSE = {  # what a row says otherwise, or cannot be seen from outside
    "zero_centred_gain": ("nemotron",), "scales logit_scale": ("mpt", "llama4_text"), "experts": ("dbrx",),
    "qk_norm": ("beam",), "router input_router near_best": ("deepseek_v2", "ernie4_5_moe"),  # Beam's eps is large here
    **{f"{names} mixture_bias": ("gpt_neox_japanese",)
       for names in ("biases biases_everywhere latent", "biases_everywhere clamped_gate")},
}  # fmt: skip


def signs(found):
    """{edits of which a row must have one: are they measured?}."""
    facts = {fact: {one for one in of if one is not None} for fact, of in found.facts.items()}
    kinds = {fact: " ".join(of) for fact, of in facts.items() if all(isinstance(one, str) for one in of)}
    act, scales = kinds["activation"], ("scale of scores", "scale of branches", "scale of embedding", "scale of logits")
    return {
        "interleaved": "i and i + 1," in kinds["turn"], "backwards": "the other way" in kinds["turn"],
        "latent": facts["one short vector"], "alibi": facts["slopes"],
        "qk_norm": "each head are normalized before" in kinds["norm on keys"],
        "l2_norm": "each head are normalized after" in kinds["norm on keys"],
        "qk_norm_whole": "all heads" in kinds["norm on keys"],
        "biases biases_everywhere latent mixture_bias": facts["bias on values"] | facts["bias of attention"]
        | facts["bias of feed-forward"],
        "biases_everywhere clamped_gate mixture_bias": facts["bias of feed-forward"], "sinks": facts["sinks"],
        "clipped": facts["clip"], "sub_norm differential": facts["norm in attention"],
        "out_gate mixed_attention": facts["gate on attention"], "parallel": facts["side by side"],
        "post_norm": "not before" in kinds["norms of attention"], "layer_norm": facts["LayerNorm"],
        "sandwich_norm": "before attention and one behind" in kinds["norms of attention"],
        "zero_centred_gain": facts["1 + weight"], "no_gain": facts["norms without weights"],
        "ungated": facts["ungated"], "gelu_gate gate_act": not facts["ungated"] and ("GELU" in act or "ReLU" in act),
        "clamped_gate sub_norm mixture_norm": facts["bound of feed-forward"],
        "experts": facts.get("experts"), "shared_expert": facts.get("shared expert"),
        "router input_router near_best": facts.get("sigmoid in router"), "embedding_norm": facts["norm on embedding"],
        "learned_positions sine_positions": facts["positions in embedding"], "head_bias": facts["bias of head"],
        "logit_softcapping clipped": facts["cap on scores"] | facts["cap on logits"] | facts["clip"],
        "scales logit_scale": any(facts[name] for name in scales),
    }  # fmt: skip


def disagreements(kind, theirs, folder):
    """Where what is measured in a model of transformers is not what the family's row makes of a LLaMA."""
    found, ours, wrong = measure(theirs), load_checkpoint(folder), []
    for layer, (mask, (speeds, _)) in enumerate(zip(found.masks, found.turns, strict=True)):
        seen = ours.rotation_and_mask(N)[2][layer]
        if not torch.equal(mask, torch.ones(N, N).tril().bool() if seen is None else seen.cpu()):
            wrong.append(f"layer {layer}: mask")
        expected = sorted(filter(None, ours.layer_inv_freq[layer].tolist()), key=abs, reverse=True)
        if [*filter(None, speeds)] != pytest.approx(expected, rel=0.01, abs=2e-6):
            wrong.append(f"layer {layer}: speeds {speeds}, not {expected}")
    row = {edit.__name__ for edit in FAMILIES[kind].edits}
    measured = {names: bool(is_there) for names, is_there in signs(found).items() if kind not in ELSE.get(names, ())}
    if {*ours.attention_scaling} != {1.0}:  # YaRN's: of scores
        assert measured.pop("scales logit_scale")
    if "latent" in row:  # its pairs are its own
        measured.pop("interleaved")
    return wrong + [f"{names}: {there}" for names, there in measured.items() if there != bool(row & {*names.split()})]


ALL = [pytest.param(kind, marks=() if kind in SAMPLE else pytest.mark.slow) for kind in FAMILIES]


@pytest.mark.parametrize("kind", ALL)
def test_what_is_measured_is_what_the_row_says(kind):
    assert not disagreements(kind, *save(kind, FIRST))


def _no_norm(model):
    model.model.layers[1].self_attn.k_norm.forward = lambda k: k


def _window(model):
    model.config.sliding_window = 7


def _still(model):
    layer, turn = model.model.layers[2].self_attn, model.model.layers[2].self_attn.forward
    layer.forward = lambda *args, position_embeddings, **more: turn(
        *args, position_embeddings=(position_embeddings[0] * 0 + 1, position_embeddings[1] * 0), **more
    )


def _erf(model):
    model.model.layers[3].mlp.act_fn = torch.nn.GELU()


def _louder(model):
    model.model.layers[0].self_attn.scaling *= 1.1


@pytest.mark.parametrize(
    ("kind", "settings", "fault", "sentence"),
    [
        ("qwen3", {"head_dim": 8}, _no_norm, "In layers 0, 2 and 3 the keys of each head are normalized"),
        ("mistral", {"sliding_window": 6}, _window, "In every layer a token sees the last 7, itself included."),
        ("llama", {}, _still, "In layer 2 nothing turns"),
        ("llama", {}, _erf, "In layer 3 the activation is GELU."),
        ("granite", {"attention_multiplier": 8**-0.5}, _louder, "In layer 0 a score is 1.1 times q · k / √h."),
    ],
)
def test_a_planted_fault_is_noticed(kind, settings, fault, sentence):
    model = save_random(kind, num_hidden_layers=4, **settings)[0]
    before = measure(model).sentences
    fault(model)
    after = measure(model).sentences
    assert not any(one.startswith(sentence) for one in before)
    assert any(one.startswith(sentence) for one in after)


def test_the_learners_types_are_told_and_drawn(monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(plots, "show", lambda figure, alt: drawn.append((figure, plots.printed(alt))))
    what_differs("exaone4")
    told, bars = capsys.readouterr()
    assert "model shards" not in bars
    told = " ".join(told.split())
    keys = "In layers 0 and 2 the keys of each head are normalized before RoPE"
    for words in ("In layers 0 and 2 a token sees the last 6", "In layers 1 and 3 nothing turns", keys,
                  "the norm is behind attention, not before it", "self_attn.q_norm.weight"):  # fmt: skip
        assert words in told
    titles = [ax.get_title(loc) for ax in drawn[0][0].axes for loc in ("left", "center")]
    assert titles.count("4 of 4 turn") == titles.count("0 of 4 turn") == 2
    assert "[0, 2] turn and [1, 3] see all" in " ".join(drawn[0][1].split())


def test_other_kinds_of_models_are_refused_with_a_place_to_look(tmp_path):
    for kind, words in (
        ("mamba", "keep a state.*modeling_mamba"),
        ("deepseek_v32", "choose which keys.*modeling_deepseek_v32"),
        ("exaone5", "no type 'exaone5': use .*'exaone4'.*auto_map"),
    ):
        with pytest.raises(ValueError, match=words):
            what_differs(kind)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "auto_map": {"AutoModel": "modeling_x.X"}}))
    with pytest.raises(ValueError, match=r"code of its own.*look into modeling_x\.py"):
        what_differs(str(tmp_path))
