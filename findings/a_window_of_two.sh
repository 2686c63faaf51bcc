#!/usr/bin/env bash
# Guess: a sliding window of 2 means the same number of keys in every library.
# Seen: transformers counts the token itself (2 keys); jax's local_window_size=2 sees 2 besides it (3; not causal, 5).
# Matters: a Mistral ported from one to the other is right for short texts and wrong from the window on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 jax==0.10.2
venv/bin/python - <<'PY'
import json
import pathlib

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
print("torch", torch.__version__, "transformers", transformers.__version__)

torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
             rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
tokens = torch.randperm(64)[None, :24]


def llama(**more):
    model = LlamaForCausalLM(LlamaConfig(**sizes | more)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.ndim == 2 else torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model.requires_grad_(False)

import jax
import jax.numpy as jnp
import numpy as np
from transformers import MistralConfig, MistralForCausalLM

print("jax", jax.__version__)
values = jnp.eye(8)[None, :, None, :]
seen = {}
for causal in (True, False):
    wide = jnp.zeros((1, 8, 1, 8))
    weights = jax.nn.dot_product_attention(wide, wide, values, is_causal=causal, local_window_size=2)
    seen[causal] = int((np.array(weights)[0, 5, 0] > 0).sum())
model = MistralForCausalLM(MistralConfig(**sizes | {"num_hidden_layers": 1}, sliding_window=2)).eval()
model.requires_grad_(False)
rows = []
for place in range(8):
    other = tokens[:, :8].clone()
    other[0, place] = (other[0, place] + 1) % 64
    rows.append((model(other).logits - model(tokens[:, :8]).logits)[0, 5].abs().max().item() > 1e-6)
print("keys seen by query 5: transformers", sum(rows), "- jax, causal", seen[True], "- jax, not causal", seen[False])
assert (sum(rows), seen[True], seen[False]) == (2, 3, 5)
PY
