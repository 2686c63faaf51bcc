"""A LLaMA trained with a bug in its residual stream: the stored losses of notebook 05, section 5.6.

Two blocks of tiny-llama's width learn its text for 700 steps, once rightly, and once with blocks that add their results
to the *normalised* stream. The same seed means the same first weights and windows. Stored: each model's held-out loss.
Run: OMP_NUM_THREADS=1 python -m benchmarks.experiments.residual helpers/assets/residual.json (ten minutes).
"""

import argparse
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from helpers.corpus import load_text, train_val_split
from helpers.device import set_seed
from helpers.interventions import held_out_loss, replaced
from helpers.model import Llama, TransformerBlock
from helpers.text import encode, load_tokenizer
from helpers.train import TINY, learning_rate, training_step

STEPS, BATCH_SIZE, LENGTH, PEAK, SEEDS = 700, 8, 128, 2e-3, (0, 1)


def normalised_stream(block, x, cos, sin, *_):
    """A block's forward with the bug: what it adds to is the norm's output, not the norm's input."""
    x = block.attention_norm(x)
    x = block.ffn_norm(x + block.attention(x, cos, sin))
    return x + block.feed_forward(x)


def trained_loss(seed, forward, tokens):
    """Held-out loss [nat/token] of a model trained with this forward of its blocks; None is the right one."""
    generator, model = set_seed(seed), Llama(replace(TINY, n_layers=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.1)
    with replaced(TransformerBlock, forward) if forward else nullcontext():
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, STEPS, PEAK)
            starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH_SIZE,), generator=generator)
            windows = torch.stack([tokens[start : start + LENGTH + 1] for start in starts.tolist()])
            training_step(model, optimizer, windows[:, :-1], windows[:, 1:])
        return round(held_out_loss(model), 3)


def main():
    """Train four models, and store their losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the JSON file that is written")
    file, tokens = parser.parse_args().file, encode(load_tokenizer(), train_val_split(load_text())[0])
    bugs = {"right": None, "normalised stream": normalised_stream}
    losses = {seed: {name: trained_loss(seed, forward, tokens) for name, forward in bugs.items()} for seed in SEEDS}
    file.write_text(json.dumps({"steps": STEPS, "losses": losses}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
