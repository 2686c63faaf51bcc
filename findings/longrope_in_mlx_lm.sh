#!/usr/bin/env bash
# Guess: with rope_type longrope, a text within the original length turns by short_factor, as its docstring says.
# Seen: mlx-lm turns by long_factor at any length and never reads short_factor; beyond the original length it is right.
# Matters: a port checked against mlx-lm on a short prompt is told that the right angles are wrong, and answers are worse.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
venv/bin/python - <<'PY'
import importlib.metadata
import json
import pathlib

import mlx.core as mx
import numpy as np
import torch
import transformers
from mlx_lm.utils import load_model
from transformers import Phi3Config, Phi3ForCausalLM

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
names = ("torch", "transformers", "mlx", "mlx-lm")
print(*(f"{name} {importlib.metadata.version(name)}" for name in names))
mx.set_default_device(mx.cpu)
torch.manual_seed(0)
off = {}
for short in (1.0, 6.0):
    scaling = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [short] * 4, "long_factor": [6.0] * 4,
               "original_max_position_embeddings": 32}
    model = Phi3ForCausalLM(Phi3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, original_max_position_embeddings=32, pad_token_id=0,
        rope_parameters=scaling, rope_scaling=scaling)).eval().requires_grad_(False)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.ndim == 2 else torch.nn.init.uniform_(weight, 0.5, 1.5)
    model.save_pretrained(f"model-{short}")
    file = pathlib.Path(f"model-{short}/config.json")
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"rope_theta": 10_000.0, "rope_scaling": scaling | {"type": "longrope"}}))
    theirs, _ = load_model(pathlib.Path(f"model-{short}"))
    for length in (24, 60):
        tokens = torch.randint(64, (1, length))
        logits = torch.tensor(np.array(theirs(mx.array(tokens.numpy())).astype(mx.float32)))
        off[short, length] = (logits - model(tokens).logits).abs().max().item()
        print(f"short_factor {short}, long_factor 6.0, {length} tokens of 32: largest difference {off[short, length]:.2g}")
assert off[1.0, 24] > 0.1 and max(off[1.0, 60], off[6.0, 24], off[6.0, 60]) < 1e-2
PY
