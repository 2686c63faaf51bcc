"""Small checkpoints of both kinds, and ways to damage them."""

import json
import struct
from dataclasses import replace

import torch

from tests.support.models import TINY

OURS = replace(TINY, rope_theta=10_000.0, hidden_dim=88)
META = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "multiple_of": 8, "norm_eps": 1e-5, "vocab_size": -1}


def meta_weights(config):
    """Random weights under Meta's names."""
    wide, heads, kv = config.dim, config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    shapes = {"tok_embeddings": (64, wide), "norm": (wide,), "output": (64, wide)}
    for layer in range(config.n_layers):
        part = f"layers.{layer}."
        shapes |= {part + "attention_norm": (wide,), part + "ffn_norm": (wide,)}
        shapes |= {part + "attention.wq": (heads, wide), part + "attention.wo": (wide, heads)}
        shapes |= {part + "attention.wk": (kv, wide), part + "attention.wv": (kv, wide)}
        shapes |= {part + f"feed_forward.w{i}": (config.hidden_dim, wide) for i in (1, 3)}
        shapes |= {part + "feed_forward.w2": (wide, config.hidden_dim)}
    return {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}


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


def split_safetensors(content):
    """Header, and the bytes behind it, of a safetensors file."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join_safetensors(header, rest, length=None):
    """A safetensors file of this header, which claims the length given, or its own."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + rest
