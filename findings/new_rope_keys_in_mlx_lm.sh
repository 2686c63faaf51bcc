#!/usr/bin/env bash
# Guess: a reader that does not know rope_parameters, the place of version 5 of transformers, refuses the folder.
# Seen: mlx-lm opens it with theta 10000 and no scaling, in silence; with the old keys beside the new ones it is right.
# Matters: position 0 agrees, so a test with one token passes; a model trained with theta 500000 writes noise elsewhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
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

import importlib.metadata

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

print("mlx-lm", importlib.metadata.version("mlx-lm"), "mlx", importlib.metadata.version("mlx"))
mx.set_default_device(mx.cpu)
model = llama(head_dim=32)
model.save_pretrained("model")
file, off = pathlib.Path("model/config.json"), {}
for more in ({}, {"rope_theta": 500000.0}):
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    theirs, _ = load_model(pathlib.Path("model"))
    logits = torch.tensor(np.array(theirs(mx.array(tokens.numpy())).astype(mx.float32)))
    off[len(more)] = (logits - model(tokens).logits).abs().amax((0, 2))
    print(f"{more or 'as saved'}: off at position 0: {off[len(more)][0]:.2g}, largest: {off[len(more)].max():.2g}")
assert off[0][0] < 1e-3 and off[0].max() > 1 and off[1].max() < 1e-2
PY
