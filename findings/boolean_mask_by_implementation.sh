#!/usr/bin/env bash
# Guess: a boolean attention_mask of shape (B, 1, T, S), True = may attend, means the same to every implementation.
# Seen: sdpa obeys it; eager adds True and False as 1 and 0 to the scores, and every token sees the future.
# Matters: the same call is right or leaks by a setting that says how fast attention is computed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0
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

model, mask = llama(), torch.ones(24, 24, dtype=torch.bool).tril()[None, None]
other = tokens.clone()
other[0, -1] = (other[0, -1] + 1) % 64
for implementation in ("sdpa", "eager"):
    model.set_attn_implementation(implementation)
    off = (model(tokens, attention_mask=mask).logits - model(tokens).logits).abs().max().item()
    moved = model(tokens, attention_mask=mask).logits - model(other, attention_mask=mask).logits
    leak = moved[:, :-1].abs().max().item()
    print(f"{implementation}: off by {off:.2g}; earlier logits move by {leak:.2g} when the last token changes")
    assert (off < 1e-4 and leak == 0) if implementation == "sdpa" else (off > 1 and leak > 1)
PY
