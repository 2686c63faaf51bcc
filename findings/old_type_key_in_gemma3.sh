#!/usr/bin/env bash
# Guess: the key type is the old spelling of rope_type in every family.
# Seen: LLaMA and Qwen3 scale (first speed 0.25), Gemma 3 and OLMo 3 keep the default (1.0), without a warning.
# Matters: one recipe for long texts, pasted into four configs, lengthens two models.
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

from transformers import AutoConfig, AutoModelForCausalLM
plain = {name: value for name, value in sizes.items() if name != "rope_parameters"} | {"num_hidden_layers": 6}
speeds = {}
for family in ("llama", "qwen3", "gemma3_text", "olmo3"):
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **plain)).save_pretrained(family)
    file = pathlib.Path(family, "config.json")
    content = json.loads(file.read_text())
    content.pop("rope_parameters")
    file.write_text(json.dumps(content | {"rope_scaling": {"type": "linear", "factor": 4.0}}))
    rotary = AutoModelForCausalLM.from_pretrained(family).model.rotary_emb
    speeds[family] = getattr(rotary, "inv_freq", getattr(rotary, "full_attention_inv_freq", None))[0].item()
print("speed of the first pair:", speeds)
assert speeds == {"llama": 0.25, "qwen3": 0.25, "gemma3_text": 1.0, "olmo3": 1.0}
PY
