#!/usr/bin/env bash
# Guess: a label of -100, which marks the prompt and the padding for PyTorch and transformers, is left out of any loss.
# Seen: optax and mlx count it: as in NumPy it is the token 100 places before the end, and the mean looks as usual.
# Matters: a port that keeps the batches of transformers trains every prompt and filler to be followed by token V - 100.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 'mlx[cpu]==0.32.4'
venv/bin/python - <<'PY'
import importlib.metadata

import jax
import jax.numpy as jnp
import mlx.core as mx
import mlx.nn
import numpy as np
import optax
import torch

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "optax", "jax", "mlx")))
mx.set_default_device(mx.cpu)
n_vocab, labels = 32_000, np.array([3, -100, 5, -100, -100, 7])
logits = np.random.default_rng(0).normal(size=(6, n_vocab)).astype(np.float32)


def of_torch(labels):
    return torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(labels)).item()


def of_optax(given):
    return optax.softmax_cross_entropy_with_integer_labels(given, jnp.array(labels)).mean()


left_out, as_a_token = of_torch(labels), of_torch(np.where(labels < 0, n_vocab - 100, labels))
by_optax = float(of_optax(jnp.array(logits)))
by_mlx = mlx.nn.losses.cross_entropy(mx.array(logits), mx.array(labels), reduction="mean").item()
pushed = np.array(jax.grad(of_optax)(jnp.array(logits)))[labels < 0].argmin(axis=1)
print(f"PyTorch, three of six labels left out: {left_out:.4f}; if they were token {n_vocab - 100}: {as_a_token:.4f}")
print(f"optax: {by_optax:.4f}, mlx: {by_mlx:.4f}; a step of optax raises, at the three left-out places, tokens {pushed}")
assert abs(by_optax - as_a_token) < 1e-4 and abs(by_mlx - as_a_token) < 1e-4 and abs(left_out - as_a_token) > 1e-3
assert (pushed == n_vocab - 100).all()
PY
