"""The small model of notebook 05 whose circuit is cut: it repeats what it has read once.

A row is a segment of 4 to 24 random tokens, repeated until the row is full. From its second copy on, every token can be
known by looking at the first. Two blocks learn this in a thousand steps. The stored result says, for three seeds, when
the loss on the repeat falls, what each head does then, and what it costs to remove it.
Run: python -m benchmarks.experiments.induction helpers/assets (a minute for each seed on two cores).
"""

import argparse
import json
from pathlib import Path

import torch
from torch.nn import functional as F

from helpers.checkpoint import save_checkpoint
from helpers.device import set_seed
from helpers.interventions import without_heads
from helpers.model import Llama, LlamaConfig, attention_weights, causal_visible, repeat_kv

CONFIG = LlamaConfig(
    vocab_size=32, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=128, max_seq_len=48, norm_eps=1e-5,
    rope_theta=10_000.0, tie_embeddings=False,
)  # fmt: skip
STEPS, ROWS, RATE, SEEDS = 1000, 32, 1e-3, (1, 2, 3)  # the first seed's model is stored
PERIOD, EVERY = 24, 50


def repeated(rows, period, length, generator):
    """Rows that repeat a random segment, (rows, length) int64; period: one number, or the shortest and the longest."""
    low, high = period if isinstance(period, tuple) else (period, period)
    periods = torch.randint(low, high + 1, (rows, 1), generator=generator)
    segments = torch.randint(CONFIG.vocab_size, (rows, high), generator=generator)
    return segments.gather(1, torch.arange(length) % periods)


@torch.no_grad()
def loss_on_repeat(model, tokens):
    """Mean loss [nat/token] on the second copy but its first token, which nobody can know."""
    return F.cross_entropy(model(tokens[:, :-1])[:, PERIOD:].flatten(0, 1), tokens[:, PERIOD + 1 :].flatten()).item()


@torch.no_grad()
def scores(model, tokens):
    """Mean attention to the token before, and to what followed the earlier copy, (n_layers, H) each."""
    cos, sin, _ = model.rotation_and_mask(tokens.shape[1])
    seen, x, found = causal_visible(*2 * tokens.shape[1:]), model.tok_embeddings(tokens), []
    for block in model.layers:
        q, k, _ = block.attention.rotated_qkv(block.attention_norm(x), cos, sin)
        weights = attention_weights(q, repeat_kv(k, block.attention.n_rep), seen).mean(dim=0)
        found.append([weights.diagonal(offset, 1, 2).mean(1) for offset in (-1, 1 - PERIOD)])
        x = block(x, cos, sin)
    return [torch.stack(one) for one in zip(*found, strict=True)]


def trained(seed):
    """A model and [step, loss on the repeat, best previous-token score below, best induction score above]."""
    generator = set_seed(seed)
    model, curve = Llama(CONFIG), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    test = repeated(64, PERIOD, 2 * PERIOD, torch.Generator().manual_seed(0))
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            before, after = scores(model, test)
            curve.append([step, loss_on_repeat(model, test), before[0].max().item(), after[1].max().item()])
            print(seed, *(f"{number:.2f}" for number in curve[-1]), flush=True)
        tokens = repeated(ROWS, (4, PERIOD), CONFIG.max_seq_len + 1, generator)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, curve


def measured(model):
    """Scores of all heads, and the loss on the repeat without each, without all of a layer, and without none."""
    test = repeated(64, PERIOD, 2 * PERIOD, torch.Generator().manual_seed(0))
    heads = [[(layer, head) for head in range(CONFIG.n_heads)] for layer in range(CONFIG.n_layers)]

    def without(*removed):
        with without_heads(model, removed):
            return loss_on_repeat(model, test)

    before, after = scores(model, test)
    return {
        "previous_token": before.tolist(), "induction": after.tolist(), "whole": without(),
        "without": [[without(one) for one in layer] for layer in heads],
        "without_layer": [without(*layer) for layer in heads],
    }  # fmt: skip


def rounded(value):
    """The same, with every number to four digits after the point."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else round(value, 4)


def main():
    """Train one model for each seed, store the first and what was measured on all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where induction/ and induction.json are written")
    folder, results = parser.parse_args().folder, {}
    for seed in SEEDS:
        model, curve = trained(seed)
        if not results:
            save_checkpoint(model.half(), folder / "induction")
            model = model.float()  # as it is loaded
        results[str(seed)] = measured(model) | {"curve": curve}
    content = {"steps": STEPS, "rows": ROWS, "rate": RATE, "period": PERIOD, "seeds": rounded(results)}
    (folder / "induction.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
