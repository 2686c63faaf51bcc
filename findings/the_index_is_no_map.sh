#!/usr/bin/env bash
# Guess: weight_map of the index says from which shard a weight is read.
# Seen: it only says which files are opened: a stale copy of the weight in a later shard wins.
# Matters: a converter that repairs one weight in its own shard and the index, and leaves the old copy, repairs nothing.
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

from safetensors.torch import load_file, save_file
model = llama()
model.save_pretrained("model", max_shard_size="10KB")
index = json.loads(pathlib.Path("model/model.safetensors.index.json").read_text())["weight_map"]
name, home = "model.norm.weight", index["model.norm.weight"]
later = sorted({file for file in index.values() if file > home} or {max(index.values())})[-1]
if later == home:  # it stands in the last shard: take one that does not
    name = next(one for one, file in index.items() if file < later)
    home = index[name]
shard = load_file(f"model/{later}")
stale = torch.zeros_like(load_file(f"model/{home}")[name])
save_file(shard | {name: stale}, f"model/{later}", metadata={"format": "pt"})
read = LlamaForCausalLM.from_pretrained("model").state_dict()[name]
print(f"{name}: the index says {home}; a copy of zeros stands in {later}; read: largest {read.abs().max().item()}")
assert home < later and read.abs().max() == 0
PY
