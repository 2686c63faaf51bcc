#!/usr/bin/env bash
# Guess: of rope_parameters (new) and rope_scaling (old) in one config.json the new one counts, or both are merged.
# Seen: rope_scaling replaces rope_parameters whole; rope_theta 500000 inside the new one is lost and 10000 is taken.
# Matters: whoever adds an old recipe for long texts to a folder saved by version 5 changes the base too, in silence.
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
model.save_pretrained("model")
file = pathlib.Path("model/config.json")
content = json.loads(file.read_text())
for more in ({}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
             {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 500000.0}):
    file.write_text(json.dumps(content | more))
    read = LlamaForCausalLM.from_pretrained("model")
    speeds = [round(speed, 5) for speed in read.model.rotary_emb.inv_freq.tolist()]
    print(more, "->", read.config.rope_parameters, "speeds", speeds)
    theta = read.config.rope_parameters["rope_theta"]
    assert theta == (10000.0 if len(more) == 1 else 500000.0)
    assert read.config.rope_parameters["rope_type"] == ("linear" if more else "default")
PY
