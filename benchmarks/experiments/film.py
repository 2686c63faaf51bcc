"""Twelve stages of the small model whose circuit forms, for the slider of the live page.

The model and its rows are those of `benchmarks/experiments/induction.py`, first seed. The stored result holds, for each
stage, the attention weights of two heads on one row (16 random tokens, twice), and the loss on each copy of such rows.
The heads are those that at the end look most at the token before, and at the token behind the earlier copy.
Run: python -m benchmarks.experiments.film helpers/assets (half a minute on one core).
"""

import argparse
import base64
import json
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.experiments.induction import CONFIG, RATE, ROWS, SEEDS, repeated
from helpers.device import set_seed
from helpers.experiments.circuit import attention_by_layer
from helpers.model import Llama

STAGES = (0, 100, 200, 250, 275, 300, 325, 350, 400, 500, 700, 1000)  # steps; most is learned from 250 to 400
COPY = 16  # tokens


@torch.no_grad()
def watched(model, tokens):
    """Attention weights on the first row, (2, 4, 32, 32), and the mean loss [nat/token] on either copy of all rows."""
    each = F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none").mean(dim=0)
    # The first token has no loss, and nobody can know the first one of the second copy.
    return attention_by_layer(model, tokens[:1]), each[: COPY - 1].mean().item(), each[COPY:].mean().item()


def filmed():
    """Train as the stored model was trained; the row (32,) and, by stage, what `watched` gives."""
    generator, seen = set_seed(SEEDS[0]), []
    model = Llama(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    test = repeated(256, COPY, 2 * COPY, torch.Generator().manual_seed(0))
    for step in range(STAGES[-1] + 1):
        if step in STAGES:
            seen.append(watched(model, test))
            print(step, *(f"{loss:.2f}" for loss in seen[-1][1:]), flush=True)
        tokens = repeated(ROWS, (4, 24), CONFIG.max_seq_len + 1, generator)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return test[0], seen


def main():
    """Store the row, the two heads, and for each stage its step, its losses and its two maps, weights as bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where film.json is written")
    row, seen = filmed()
    last = seen[-1][0]
    heads = [last[layer].diagonal(back, 1, 2).mean(dim=1).argmax().item() for layer, back in enumerate((-1, 1 - COPY))]
    stages = []
    for step, (weights, first, second) in zip(STAGES, seen, strict=True):
        maps = [(255 * weights[layer, head]).round().byte().flatten().tolist() for layer, head in enumerate(heads)]
        maps = [base64.b64encode(bytes(one)).decode() for one in maps]
        stages.append({"step": step, "losses": [round(first, 3), round(second, 3)], "maps": maps})
    content = {"row": row.tolist(), "heads": heads, "stages": stages}
    file = parser.parse_args().folder / "film.json"
    file.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
