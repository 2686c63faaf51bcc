"""Is SwiGLU better? The stored numbers behind a claim of notebook 03.

The same small LLaMA is trained with five feed-forward layers of equal parameter count: two matrices of width 4 * dim
around ReLU, GELU or SiLU, and three matrices of width 8/3 * dim with a gate (ReGLU, SwiGLU). For each seed all other
weights start from the same numbers, and all models read the same windows in the same order. Everything is done twice,
since small numbers at the start make SiLU and GELU nearly straight lines: once with the feed-forward's matrices drawn
with standard deviation 0.02, which in this narrow model makes gates of about 0.2, once with 1 / sqrt(inputs), which
makes gates of about 1. Judged in bits per byte of held-out text.
Run: python -m benchmarks.experiments.feed_forward helpers/assets/feed_forward.json (40 minutes on two cores).
"""

import argparse
import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

from torch import nn
from torch.nn import functional as F

from helpers.corpus import bits_per_byte, reference_text, train_tokenizer, train_val_split
from helpers.device import pick_device, set_seed
from helpers.model import Llama, SwiGLU, count_parameters
from helpers.text import encode
from helpers.train import TINY, train

CONFIG = replace(TINY, vocab_size=512, dim=96, n_layers=4, hidden_dim=256, head_dim=24, max_seq_len=128)
BATCH_SIZE = 16


class TwoMatrices(nn.Module):
    """The older feed-forward: down(activation(up(x))), width 4 * dim, without biases."""

    def __init__(self, dim, activation):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)
        self.activation = activation

    def forward(self, x):
        return self.down_proj(self.activation(self.up_proj(x)))


class ReGLU(SwiGLU):
    """SwiGLU with ReLU in the gate."""

    def forward(self, x):
        return self.down_proj(F.relu(self.gate_proj(x)) * self.up_proj(x))


class Bilinear(SwiGLU):
    """SwiGLU without an opening: the product alone."""

    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * self.up_proj(x))


STARTS = {"0.02": lambda inputs: 0.02, "1/√inputs": lambda inputs: inputs**-0.5}  # standard deviation
LAYERS = {
    "ReLU": lambda: TwoMatrices(CONFIG.dim, F.relu),
    "GELU": lambda: TwoMatrices(CONFIG.dim, F.gelu),
    "SiLU": lambda: TwoMatrices(CONFIG.dim, F.silu),
    "ReGLU": lambda: ReGLU(CONFIG.dim, CONFIG.hidden_dim),
    "SwiGLU": lambda: SwiGLU(CONFIG.dim, CONFIG.hidden_dim),
    "Bilinear": lambda: Bilinear(CONFIG.dim, CONFIG.hidden_dim),  # stored for the start 0.02 only
}


def make_model(name, start, seed):
    """A fresh model with the named feed-forward; everything else is the same for every name."""
    set_seed(seed)
    model = Llama(CONFIG)
    for block in model.layers:
        block.feed_forward = LAYERS[name]()
        for part, weight in block.feed_forward.named_parameters():
            std = STARTS[start](weight.shape[1])
            nn.init.normal_(weight, std=std / math.sqrt(2 * CONFIG.n_layers) if "down" in part else std)
    return model.to(pick_device())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    text, held_out = train_val_split(reference_text())
    tokenizer = train_tokenizer(text, CONFIG.vocab_size)
    tokens = encode(tokenizer, text)
    parameters, bits = {}, {start: {name: [] for name in arguments.layers} for start in arguments.starts}
    for start, seed, name in product(arguments.starts, arguments.seeds, arguments.layers):
        model = make_model(name, start, seed)
        parameters[name] = count_parameters(model)
        train(model, lambda: tokens, steps=arguments.steps, batch_size=BATCH_SIZE, seed=seed, weight_decay=0.1)
        bits[start][name].append(round(bits_per_byte(model, tokenizer, held_out), 4))
        print(start, seed, name, bits[start][name][-1], flush=True)
    content = {"steps": arguments.steps, "batch_size": BATCH_SIZE, "seq_len": CONFIG.max_seq_len, "dim": CONFIG.dim}
    content |= {"n_layers": CONFIG.n_layers, "seeds": arguments.seeds, "parameters": parameters, "bits_per_byte": bits}
    arguments.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
