"""Small checkpoints of both kinds, and ways to damage them."""

import json
from dataclasses import replace

import torch
from safetensors.torch import load_file, save_file

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


def meta_shards(model, n_shards=1, embeddings_cut=0):
    """The model's weights in so many files, as Meta stores them: [{name: weight}, ...]."""
    own, shards = model.state_dict(), [{} for _ in range(n_shards)]
    names = {"tok_embeddings.weight": ("tok_embeddings.weight", embeddings_cut),
             "norm.weight": ("final_norm.weight", None), "output.weight": ("lm_head.weight", 0)}  # fmt: skip
    for layer in range(model.config.n_layers):
        names |= {f"layers.{layer}.{name}": (f"layers.{layer}.{ours}", cut) for name, (ours, cut) in META_LAYER.items()}
    for name, (ours, cut) in names.items():
        weight = own[ours]
        if "wq" in name or "wk" in name:  # halves (i, i + 4) -> neighbours (2i, 2i + 1)
            weight = torch.cat([head[[0, 4, 1, 5, 2, 6, 3, 7]] for head in weight.split(8)])
        parts = [weight] * n_shards if cut is None else weight.chunk(n_shards, dim=cut)
        for shard, part in zip(shards, parts, strict=True):
            shard[name] = part.clone()
    return [shard | {"rope.freqs": torch.ones(4)} for shard in shards]  # Llama 2 files carry this table


def meta_weights(config):
    """Weights that hide nothing, in one file as Meta writes it."""
    return meta_shards(make_model(config))[0]


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


def edit_weights(folder, change):
    """Apply change(weights) to the safetensors file of a folder."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
