#!/usr/bin/env bash
# Guess: rope_theta at the top of an OLMo 3 config sets the base of every layer.
# Seen: the key is used up by the first kind of layer that asks: layers that see all take it, sliding ones 500000.
# Matters: a port that reads theta once, as for LLaMA, differs in three of four layers.
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

from transformers import Olmo3Config, Olmo3ForCausalLM
config = {name: value for name, value in sizes.items() if name != "rope_parameters"} | {"num_hidden_layers": 4}
Olmo3ForCausalLM(Olmo3Config(**config)).save_pretrained("model")
file = pathlib.Path("model/config.json")
content = json.loads(file.read_text())
content.pop("rope_parameters", None)
file.write_text(json.dumps(content | {"rope_theta": 777.0}))
read = Olmo3ForCausalLM.from_pretrained("model")
bases = {kind: rope["rope_theta"] for kind, rope in read.config.rope_parameters.items()}
print(bases, [(layer, kind) for layer, kind in enumerate(read.config.layer_types)])
assert bases == {"full_attention": 777.0, "sliding_attention": 500000.0}
PY
