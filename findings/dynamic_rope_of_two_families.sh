#!/usr/bin/env bash
# Guess: rope_parameters that say "dynamic" mean the same in a LLaMA and in a family that is LLaMA with QK-norms.
# Seen: with "alpha" Hunyuan turns by a larger base from the first token on; LLaMA reads the same lines and ignores alpha.
# Matters: who ports Hunyuan into a LLaMA, or copies its config, gets other logits from position 1 on, and no word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0
venv/bin/python - <<'PY'
import torch
import transformers
from transformers import HunYuanDenseV1Config, HunYuanDenseV1Model, LlamaConfig, LlamaModel

transformers.logging.set_verbosity_error()
print("torch", torch.__version__, "transformers", transformers.__version__)
shape = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=64)
said = dict(rope_type="dynamic", rope_theta=10_000.0, alpha=1000.0, factor=1.0)


def speeds(config, model, rope):
    return model(config(**shape, rope_parameters=dict(rope))).rotary_emb.inv_freq


hunyuan = speeds(HunYuanDenseV1Config, HunYuanDenseV1Model, said)
llama = speeds(LlamaConfig, LlamaModel, said)
plain = speeds(LlamaConfig, LlamaModel, dict(rope_type="default", rope_theta=10_000.0))
larger = speeds(LlamaConfig, LlamaModel, dict(rope_type="default", rope_theta=10_000.0 * 1000 ** (16 / 14)))
print("Hunyuan, slowest pairs:", [f"{x:.1e}" for x in hunyuan[-3:].tolist()])
print("LLaMA,   slowest pairs:", [f"{x:.1e}" for x in llama[-3:].tolist()])
torch.testing.assert_close(llama, plain)  # as if nothing had been said
torch.testing.assert_close(hunyuan, larger)  # base x alpha^(d / (d - 2))
assert hunyuan[-1] < llama[-1] / 500
PY
