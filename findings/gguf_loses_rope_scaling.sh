#!/usr/bin/env bash
# Guess: from_pretrained(gguf_file=...) applies the RoPE scaling that the GGUF file states, or refuses it.
# Seen: rope.scaling.type linear and its factor are dropped without a word: every pair turns at its unscaled speed.
# Matters: a long-context LLaMA that went through GGUF and back differs at every position but the first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0
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

import numpy as np
from gguf import GGUFWriter, RopeScalingType

model = llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0})
file = GGUFWriter("model.gguf", "llama")
file.add_context_length(64)
file.add_embedding_length(32)
file.add_block_count(2)
file.add_feed_forward_length(48)
file.add_head_count(4)
file.add_head_count_kv(2)
file.add_layer_norm_rms_eps(1e-6)
file.add_vocab_size(64)
file.add_rope_dimension_count(8)
file.add_rope_freq_base(500000.0)
file.add_rope_scaling_type(RopeScalingType.LINEAR)
file.add_rope_scaling_factor(4.0)
names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
for name, weight in model.state_dict().items():
    name, weight = name.removesuffix(".weight"), weight.numpy()
    if name.endswith(("q_proj", "k_proj")):  # GGUF pairs neighbours
        weight = weight.reshape(-1, 2, 4, 32).swapaxes(1, 2).reshape(weight.shape)
    if name.startswith("model.layers."):
        _, _, layer, part = name.split(".", 3)
        name = f"blk.{layer}.{parts[part]}"
    file.add_tensor(names.get(name, name) + ".weight", np.ascontiguousarray(weight))
file.write_header_to_file()
file.write_kv_data_to_file()
file.write_tensors_to_file()
file.close()
read = LlamaForCausalLM.from_pretrained(".", gguf_file="model.gguf", dtype=torch.float32).requires_grad_(False)
off = (read(tokens).logits - model(tokens).logits).abs().amax((0, 2))
unscaled = llama()
unscaled.load_state_dict(model.state_dict())
plain = (read(tokens).logits - unscaled(tokens).logits).abs().max().item()
print("read as", read.config.rope_parameters)
print(f"off at position 0: {off[0]:.2g}, at 23: {off[23]:.2g}; from the same weights without scaling: {plain:.2g}")
assert off[0] < 1e-3 and off[23] > 1 and plain < 1e-3
PY
