#!/usr/bin/env bash
# Guess: saving a second model into a folder makes from_pretrained open the second one.
# Seen: saved whole, then in shards: model.safetensors of the first stays and is read; the index beside it is not.
# Matters: a run that saves its best model into one folder, in larger sizes in shards, gets an old one back, unsaid.
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

first, second = llama(), llama()
first.save_pretrained("model")
second.save_pretrained("model", max_shard_size="10KB")
print(sorted(path.name for path in pathlib.Path("model").iterdir()))
read = LlamaForCausalLM.from_pretrained("model").requires_grad_(False)(tokens).logits
to_first, to_second = ((read - model(tokens).logits).abs().max().item() for model in (first, second))
print(f"read back: off by {to_first:.2g} from the first, by {to_second:.2g} from the second")
assert to_first == 0 and to_second > 1
PY
