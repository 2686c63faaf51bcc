"""Models that are trained with a bug: the stored numbers of notebook 05, section 5.6.

Two blocks of tiny-llama's width learn its text for 700 steps: rightly, with the merge of the heads without its
transpose, and with blocks that add to the normalised stream. The same seed means the same first weights and windows.
Stored for each seed and bug: the loss on held-out text, and at how many of the 63 earlier positions a logit moves when
the last of 64 tokens is changed.
Run: OMP_NUM_THREADS=1 python -m benchmarks.experiments.merge helpers/assets/merge.json (a quarter of an hour).
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from helpers.corpus import load_text, train_val_split
from helpers.device import set_seed
from helpers.interventions import held_out_loss, held_out_windows, replaced
from helpers.model import GroupedQueryAttention, Llama, TransformerBlock, repeat_kv
from helpers.text import encode, load_tokenizer
from helpers.train import TINY, learning_rate, training_step

STEPS, BATCH_SIZE, LENGTH, PEAK, SEEDS = 700, 8, 128, 2e-3, (0, 1)


def attention_with(merge):
    """The forward of an attention layer that puts its heads side by side in this way."""

    def forward(layer, x, cos, sin, *_):
        q, k, v = layer.rotated_qkv(x, cos, sin)
        return layer.o_proj(merge(F.scaled_dot_product_attention(q, repeat_kv(k, 2), repeat_kv(v, 2), is_causal=True)))

    return forward


def normalised_stream(block, x, cos, sin, *_):
    """The residual is taken from the normalised stream."""
    x = block.attention_norm(x)
    x = block.ffn_norm(x + block.attention(x, cos, sin))
    return x + block.feed_forward(x)


BUGS = {
    "right": (GroupedQueryAttention, attention_with(lambda mixed: mixed.transpose(1, 2).flatten(-2))),
    "wrong": (GroupedQueryAttention, attention_with(lambda mixed: mixed.reshape(len(mixed), mixed.shape[2], -1))),
    "normalised stream": (TransformerBlock, normalised_stream),
}


def measured(seed, bug, tokens):
    """Held-out loss of a model trained with this bug, and how many earlier positions notice the last token."""
    generator, model = set_seed(seed), Llama(replace(TINY, n_layers=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.1)
    with replaced(*bug):
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, STEPS, PEAK)
            starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH_SIZE,), generator=generator)
            windows = torch.stack([tokens[start : start + LENGTH + 1] for start in starts.tolist()])
            training_step(model, optimizer, windows[:, :-1], windows[:, 1:])
        text = held_out_windows()[:1, :64]
        changed = text.clone()
        changed[0, -1] = (changed[0, -1] + 1) % TINY.vocab_size
        with torch.no_grad():
            moved = ((model(text) - model(changed)).abs().amax(-1)[0, :-1] > 1e-4).sum().item()
        return {"loss": round(held_out_loss(model), 3), "moved": moved}


def main():
    """Train six models, and store what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the JSON file that is written")
    file, tokens = parser.parse_args().file, encode(load_tokenizer(), train_val_split(load_text())[0])
    seeds = {seed: {name: measured(seed, bug, tokens) for name, bug in BUGS.items()} for seed in SEEDS}
    residual = {seed: runs.pop("normalised stream") for seed, runs in seeds.items()}
    stored = {"steps": STEPS, "seeds": seeds, "residual": residual}
    file.write_text(json.dumps(stored) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
