#!/usr/bin/env bash
# Guess: use_cache changes the speed of one call, never its logits.
# Seen: two texts in a row, positions starting again: apart with use_cache=False, mixed by default or with a mask of ones.
# Matters: packing by position_ids is right in training (no cache), and wrong where the argument is forgotten.
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

model = llama()
positions = torch.cat([torch.arange(12), torch.arange(12)])[None]
alone = torch.cat([model(part).logits for part in tokens.split(12, dim=1)], dim=1)
off = {}
for name, more in {"use_cache=False": {"use_cache": False}, "default": {},
                   "with a mask of ones": {"use_cache": False, "attention_mask": torch.ones_like(tokens)}}.items():
    off[name] = (model(tokens, position_ids=positions, **more).logits - alone).abs().max().item()
    print(f"{name}: off by {off[name]:.2g}")
assert off.pop("use_cache=False") < 1e-4 and min(off.values()) > 1
PY
