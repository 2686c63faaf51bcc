"""Small checkpoints of both kinds, and ways to damage them."""

import json
from dataclasses import replace

import torch

from tests.support.models import TINY, make_model

OURS = replace(TINY, rope_theta=10_000.0, hidden_dim=88)
META = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "multiple_of": 8, "norm_eps": 1e-5, "vocab_size": -1}
META_LAYER = {  # Meta's name: ours, and the dimension along which Meta's parallel layers cut it
    "attention_norm.weight": ("attention_norm.weight", None),
    "attention.wq.weight": ("attention.q_proj.weight", 0),
    "attention.wk.weight": ("attention.k_proj.weight", 0),
    "attention.wv.weight": ("attention.v_proj.weight", 0),
    "attention.wo.weight": ("attention.o_proj.weight", 1),
    "ffn_norm.weight": ("ffn_norm.weight", None),
    "feed_forward.w1.weight": ("feed_forward.gate_proj.weight", 0),
    "feed_forward.w2.weight": ("feed_forward.down_proj.weight", 1),
    "feed_forward.w3.weight": ("feed_forward.up_proj.weight", 0),
}


def cut_meta_weights(model, embeddings_cut=0):
    """The model's weights as Meta stores them, {name: (weight, dimension of the cut or None)}."""
    own, weights = model.state_dict(), {}
    weights["tok_embeddings.weight"] = (own["tok_embeddings.weight"], embeddings_cut)
    weights["norm.weight"] = (own["final_norm.weight"], None)
    weights["output.weight"] = (own["lm_head.weight"], 0)
    weights["rope.freqs"] = (torch.ones(4), None)  # Llama 2 files carry this table
    for layer in range(model.config.n_layers):
        for theirs, (ours, cut) in META_LAYER.items():
            weight = own[f"layers.{layer}.{ours}"]
            if theirs in ("attention.wq.weight", "attention.wk.weight"):  # halves (i, i + 4) -> neighbours (2i, 2i + 1)
                weight = torch.cat([head[[0, 4, 1, 5, 2, 6, 3, 7]] for head in weight.split(8)])
            weights[f"layers.{layer}.{theirs}"] = (weight, cut)
    return weights


def meta_weights(config):
    """Weights that hide nothing, in one file as Meta writes it."""
    return {name: weight for name, (weight, _) in cut_meta_weights(make_model(config)).items()}


def write_meta(folder, shards, **params):
    """Write a folder as Meta does; parameters that are None are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in (META | params).items() if value is not None}
    (folder / "params.json").write_text(json.dumps(kept))
    for number, weights in enumerate(shards):
        torch.save(weights, folder / f"consolidated.{number:02d}.pth")
    return folder


def edit_json(path, change):
    """Apply change(content) to a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
