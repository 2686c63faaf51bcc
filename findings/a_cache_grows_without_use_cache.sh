#!/usr/bin/env bash
# Guess: use_cache=False leaves the cache that is passed alone.
# Seen: the keys are written into it all the same: a second reading of the same tokens stands behind the first.
# Matters: to look at logits twice with one cache counts the tokens twice, and the logits differ.
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

from transformers import DynamicCache
model = llama()
cache = DynamicCache(config=model.config)
lengths, logits = [], []
for _ in range(2):
    logits.append(model(tokens[:, :3], past_key_values=cache, use_cache=False).logits)
    lengths.append(cache.get_seq_length())
off = (logits[0] - logits[1]).abs().max().item()
print("length of the cache after each call:", lengths, f"- the same tokens again: off by {off:.3g}")
assert lengths == [3, 6] and off > 0.5
PY
