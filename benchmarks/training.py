"""How good is a small LLaMA after a minute, and after three? The stored numbers behind a myth cell of notebook 06.

Three sizes, each trained from scratch for a given time, several seeds, judged in bits per byte on the held-out tenth of
the Python reference. Nothing else should run. Run: python benchmarks/training.py helpers/assets/training.json
(about 40 minutes; --seconds 5 --seeds 1 for a try). A table for reading is written beside it, with the ending .md.
"""

import argparse
import gzip
import json
import lzma
import os
import time
from dataclasses import replace
from pathlib import Path

import torch

from helpers.device import pick_device, set_seed
from helpers.model import Llama, count_parameters
from helpers.text import bits_per_byte, encode, held_out_split, reference_text, train_tokenizer
from helpers.train import TINY, train

NOTEBOOK = replace(TINY, vocab_size=512, dim=64, n_layers=4, hidden_dim=192, head_dim=16, max_seq_len=64)
SIZES = {  # config, windows per batch, highest learning rate
    "small": (replace(NOTEBOOK, rope_theta=10_000.0), 32, 5e-3),
    "middle": (replace(TINY, n_layers=4, max_seq_len=128), 8, 5e-3),
    "large": (TINY, 8, 3e-3),
}


def seconds_per_step(config, batch_size, tokens, device):
    """Of a model that is thrown away; the first steps, which are slower, do not count."""
    model, ends = Llama(config).to(device), []
    train(model, lambda: tokens, steps=12, batch_size=batch_size, report=lambda *_: ends.append(time.perf_counter()))
    return (ends[-1] - ends[1]) / (len(ends) - 2)


def measure(size, seconds, seed, parts):
    """One row: what a model of this size has reached after so many seconds."""
    config, batch_size, peak = SIZES[size]
    device = pick_device()
    tokenizer = train_tokenizer(parts["text"], config.vocab_size)
    tokens = encode(tokenizer, parts["text"])
    steps = max(2, int(seconds / seconds_per_step(config, batch_size, tokens, device)))
    set_seed(seed)
    model, start = Llama(config).to(device), time.perf_counter()
    settings = {"steps": steps, "batch_size": batch_size, "seed": seed, "peak": peak, "warm_up": min(30, steps // 3)}
    train(model, lambda: tokens, weight_decay=0.1, **settings)
    row = {"size": size, "parameters": count_parameters(config), "seconds": seconds, "seed": seed, "steps": steps}
    row |= {"took": round(time.perf_counter() - start, 1), "tokens": steps * batch_size * config.max_seq_len}
    row |= {"held_out": round(bits_per_byte(model, tokenizer, parts["held_out"]), 3)}
    row |= {"trained": round(bits_per_byte(model, tokenizer, parts["text"][: len(parts["held_out"])]), 3)}
    print(row, flush=True)
    return row


def as_table(content):
    """The rows as Markdown: mean and spread over the seeds."""
    lines = [f"# Bits per byte after training\n\n{content['machine']}\n"]
    lines += [f"{name}: {bits:.2f}\n" for name, bits in content["baselines"].items()]
    lines += ["| size | parameters | asked [s] | took [s] | steps | held-out | lowest–highest | training part |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for size, seconds in dict.fromkeys((row["size"], row["seconds"]) for row in content["rows"]):
        rows = [row for row in content["rows"] if (row["size"], row["seconds"]) == (size, seconds)]
        mean = {key: sum(row[key] for row in rows) / len(rows) for key in ("took", "steps", "held_out", "trained")}
        spread = f"{min(row['held_out'] for row in rows):.2f}–{max(row['held_out'] for row in rows):.2f}"
        lines.append(
            f"| {size} | {rows[0]['parameters']:,} | {seconds} | {mean['took']:.0f} | {mean['steps']:,.0f} | "
            f"{mean['held_out']:.2f} | {spread} | {mean['trained']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    """Train every size for every time with every seed; write the rows and a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=int, nargs="+", default=[60, 180])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    arguments = parser.parse_args()
    text, held_out = held_out_split(reference_text())
    seen, judged = text.encode(), held_out.encode()
    more = len(lzma.compress(seen + judged, preset=9)) - len(lzma.compress(seen, preset=9))
    baselines = {"gzip": 8 * len(gzip.compress(judged)) / len(judged)}
    baselines["lzma that has seen the training part"] = 8 * more / len(judged)
    machine = f"{os.cpu_count()} CPU cores, {torch.get_num_threads()} threads, device {pick_device()}, "
    content = {"machine": machine + f"torch {torch.__version__}.", "baselines": baselines, "rows": []}
    for seconds in arguments.seconds:
        for size in SIZES:
            for seed in range(arguments.seeds):
                content["rows"].append(measure(size, seconds, seed, {"text": text, "held_out": held_out}))
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    arguments.out.with_suffix(".md").write_text(as_table(content), encoding="utf-8")
    print(as_table(content))


if __name__ == "__main__":
    main()
