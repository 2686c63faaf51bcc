#!/usr/bin/env bash
# Guess: a fork server that has torch preloaded starts processes sooner, and changes nothing else: each has a seed of its own.
# Seen: with set_forkserver_preload(["torch"]) all processes draw the same numbers; without it, and with spawn, each its own.
# Matters: workers that sample texts or drop units "at random" from copies of a LLaMA all make the same choices, without a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 numpy
cat > draw.py <<'PY'
import sys

import torch
from torch import multiprocessing


def draw(rank, made):
    made.put(torch.rand(()).item())


if __name__ == "__main__":
    way, preload = sys.argv[1], sys.argv[2:]
    processes = multiprocessing.get_context(way)
    if way == "forkserver":
        processes.set_forkserver_preload(preload)
    made = processes.SimpleQueue()
    ranks = torch.multiprocessing.start_processes(draw, (made,), 3, join=False, start_method=way)
    numbers = [made.get() for _ in range(3)]
    ranks.join()
    print(way, *preload, "->", *(f"{number:.4f}" for number in numbers))
    sys.exit(len(set(numbers)) == 1)  # 1 if all are the same
PY
venv/bin/python -c "import sys, torch; print('Python', sys.version.split()[0], 'torch', torch.__version__)"
venv/bin/python draw.py spawn
venv/bin/python draw.py forkserver json
if venv/bin/python draw.py forkserver torch; then
    echo "each draws its own: this has changed"
    exit 1
fi
