#!/usr/bin/env bash
# Guess: the blocks of a BlockMask hide keys in flex_attention, compiled or not.
# Seen: compiled (needs a C++ compiler) they do; called plainly, mask_mod alone counts, and it may allow more.
# Matters: a window of blocks over mask_mod=causal is tried plainly and trained compiled: two different models.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 numpy==2.4.6
cat > try.py <<'PY'
import warnings

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

warnings.simplefilter("ignore")  # the plain call only warns that it is slow
print("torch", torch.__version__)
torch.manual_seed(0)
size = 128
q, k, v = torch.randn(3, 1, 2, 4 * size, 16)


def causal(batch, head, i, j):
    return i >= j


def window(batch, head, i, j):  # its own block of keys and the one before
    return (i >= j) & (i // size - j // size <= 1)


counts = torch.tensor([[[1, 2, 2, 2]]], dtype=torch.int32)
kept = torch.tensor([[[[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 0, 3], [2, 3, 0, 1]]]], dtype=torch.int32)
by_blocks = BlockMask.from_kv_blocks(counts, kept, BLOCK_SIZE=size, mask_mod=causal)
by_function = create_block_mask(window, 1, 1, 4 * size, 4 * size, device="cpu")
assert torch.equal(by_blocks.to_dense(), by_function.to_dense())
print("blocks that by_blocks keeps:", by_blocks.to_dense()[0, 0].tolist(), "- those of by_function, too")

at = torch.arange(4 * size)
want = {name: scaled_dot_product_attention(q, k, v, attn_mask=rule(0, 0, at[:, None], at))
        for name, rule in {"window": window, "causal": causal}.items()}
got = {"by_function, plain": flex_attention(q, k, v, block_mask=by_function),
       "by_blocks, plain": flex_attention(q, k, v, block_mask=by_blocks),
       "by_blocks, compiled": torch.compile(flex_attention)(q, k, v, block_mask=by_blocks)}
off = {name: {rule: (out - right).abs().max().item() for rule, right in want.items()} for name, out in got.items()}
for name, numbers in off.items():
    print(f"{name:20s} off from the window by {numbers['window']:.1g}, from causal by {numbers['causal']:.1g}")
assert off["by_function, plain"]["window"] < 1e-5 < 0.1 < off["by_function, plain"]["causal"]
assert off["by_blocks, compiled"]["window"] < 1e-5 < 0.1 < off["by_blocks, compiled"]["causal"]
assert off["by_blocks, plain"]["causal"] < 1e-5 < 0.1 < off["by_blocks, plain"]["window"]
PY
venv/bin/python try.py
