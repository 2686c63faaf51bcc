#!/usr/bin/env bash
# Guess: a sliding_window left in the config.json of a plain LLaMA is ignored, or acts in every call alike.
# Seen: one call over the text sees everything; the cache keeps window - 1 keys, so step by step other logits come.
# Matters: a Mistral folder relabelled as llama passes every test that reads a text at once, and writes nonsense.
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
file.write_text(json.dumps(json.loads(file.read_text()) | {"sliding_window": 6}))
windowed = LlamaForCausalLM.from_pretrained("model").requires_grad_(False)
right, cache, steps = model(tokens).logits, None, []
for token in tokens.split(1, dim=1):
    out = windowed(token, past_key_values=cache, use_cache=True)
    cache = out.past_key_values
    steps.append(out.logits)
at_once = (windowed(tokens).logits - right).abs().max().item()
by_step = (torch.cat(steps, 1) - right).abs().amax((0, 2))
print("one call:", at_once)
print("one token at a time, largest difference at each position:", [round(x, 2) for x in by_step.tolist()])
assert at_once == 0 and by_step[:6].max() < 1e-4 and by_step[6:].min() > 0.5
PY
