#!/usr/bin/env bash
# Guess: config.tie_word_embeddings = False before save_pretrained stores the head as a weight of its own.
# Seen: the file has no lm_head, the config says untied: read back, the head is random.
# Matters: this is how people untie a model before they train the head; the saved folder writes noise.
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

model = llama(tie_word_embeddings=True)
model.config.tie_word_embeddings = False
model.save_pretrained("model")
from safetensors import safe_open
names = list(safe_open("model/model.safetensors", "pt").keys())
read = LlamaForCausalLM.from_pretrained("model").requires_grad_(False)
off = (read(tokens).logits - model(tokens).logits).abs().max().item()
print("lm_head stored:", "lm_head.weight" in names, "- config:", read.config.tie_word_embeddings, f"- off by {off:.3g}")
assert "lm_head.weight" not in names and read.config.tie_word_embeddings is False and off > 1
PY
