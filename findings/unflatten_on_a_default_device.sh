#!/usr/bin/env bash
# Guess: heads split by y.unflatten(-1, (-1, h)) compile as one graph whatever the default device is; view does the same.
# Seen: inside `with torch.device(...)` torch.compile cannot trace Tensor.unflatten; the same line with view compiles.
# Matters: who splits heads so, makes a LLaMA on a default device and compiles it as one graph gets an error that names super().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/python - <<'PY'
import contextlib

import torch

print("torch", torch.__version__)
ways = {"unflatten": lambda y: y.unflatten(-1, (-1, 4)), "view": lambda y: y.view(*y.shape[:-1], -1, 4)}
y, seen = torch.randn(2, 3, 8), {}
for name, heads in ways.items():
    for device in (None, "cpu"):
        torch.compiler.reset()
        with torch.device(device) if device else contextlib.nullcontext():
            try:
                made = torch.compile(heads, fullgraph=True, backend="eager")(y)
                seen[name, device] = "compiles" if torch.equal(made, heads(y)) else "differs"
            except Exception as error:
                seen[name, device] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        print(f"{name}, default device {device}: {seen[name, device]}")
assert seen["unflatten", "cpu"].startswith("Unsupported")
assert all(said == "compiles" for way, said in seen.items() if way != ("unflatten", "cpu"))
PY
