"""How good is a small LLaMA after a minute, and after three? The stored numbers behind a claim of notebook 06.

Small models, each trained from scratch for a given time, several seeds, judged in bits per byte on the held-out tenth
of the Python reference. Nothing else should run. The table for reading, benchmarks/training.md, is written beside the
numbers, with the ending .md; a row that stands in the file already is kept, so a run can be stopped and continued.
Run: python -m benchmarks.experiments.training helpers/assets/training.json
(about half an hour; --scale 0.05 --seeds 1 for a try)
"""

import argparse
import ast
import gzip
import json
import lzma
import sysconfig
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from benchmarks.speed import machine
from helpers.device import pick_device, set_seed
from helpers.model import Llama, count_parameters
from helpers.text import bits_per_byte, encode, reference_text, train_tokenizer, train_val_split
from helpers.train import TINY, train

NOTEBOOK = replace(TINY, vocab_size=512, dim=64, n_layers=4, hidden_dim=192, head_dim=16, max_seq_len=64)
SIZES = {  # config, windows per batch, highest learning rate
    "small": (replace(NOTEBOOK, rope_theta=10_000.0), 32, 5e-3),
    "middle": (replace(TINY, n_layers=4, max_seq_len=128), 8, 5e-3),
    "large": (TINY, 8, 3e-3),
}


PLAN = [  # size, text, seconds
    *[(size, "reference", 60) for size in SIZES],
    ("middle", "with docstrings", 180),
    ("middle", "reference", 180),
]


def library_docstrings() -> str:
    """More real text that ships with Python: the docstrings of its standard library, tests left out, each once.

    About 1.5 million characters, in the order of the files' names; reading them takes a few seconds.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = {}  # a dict keeps the order
    for path in sorted(library.rglob("*.py")):
        if left_out & set(path.relative_to(library).parts):
            continue
        try:
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        except (SyntaxError, ValueError):  # templates and old encodings; UnicodeDecodeError is a ValueError
            continue
        texts = (ast.get_docstring(node) for node in nodes if isinstance(node, documented))
        found |= dict.fromkeys(text for text in texts if text and len(text) > 60)
    return "\n\n".join(found)


def texts(kind):
    """The reference without its last tenth, the last tenth, and more text to train on."""
    text, held_out = train_val_split(reference_text())
    return text, held_out, "\n\n" + library_docstrings() if "docstrings" in kind else ""


def baselines():
    """What compressors need for the held-out text [bits per byte]."""
    seen, judged, _ = (part.encode() for part in texts("reference"))
    more = len(lzma.compress(seen + judged, preset=9)) - len(lzma.compress(seen, preset=9))
    bits = {
        "gzip": 8 * len(gzip.compress(judged)) / len(judged),
        "lzma after the training text": 8 * more / len(judged),
    }
    return {name: round(value, 3) for name, value in bits.items()}


def seconds_per_step(size):
    """The median of 30 steps of a model that is thrown away; the first steps, which are slower, do not count."""
    config, batch_size, _ = SIZES[size]
    model, ends, tokens = Llama(config).to(pick_device()), [], torch.arange(10_000) % config.vocab_size
    train(model, lambda: tokens, steps=35, batch_size=batch_size, report=lambda *_: ends.append(time.perf_counter()))
    return median(later - earlier for earlier, later in pairwise(ends[4:]))


def measure(size, kind, seconds, seed, pace):
    """One row: what a model of this size has reached after as many steps as fit into so many seconds at this pace."""
    config, batch_size, peak = SIZES[size]
    device = pick_device()
    text, held_out, more = texts(kind)
    tokenizer = train_tokenizer(text, config.vocab_size)
    tokens = encode(tokenizer, text + more)
    steps = max(2, int(seconds / pace))
    set_seed(seed)
    model, start = Llama(config).to(device), time.perf_counter()
    settings = {"steps": steps, "batch_size": batch_size, "seed": seed, "peak": peak, "warm_up": min(30, steps // 3)}
    train(model, lambda: tokens, weight_decay=0.1, **settings)
    row = {"size": size, "text": kind, "parameters": count_parameters(config), "seconds": seconds, "seed": seed}
    row |= {"steps": steps, "took": round(time.perf_counter() - start, 1)}
    row |= {"held_out": round(bits_per_byte(model, tokenizer, held_out), 3)}
    row |= {"trained": round(bits_per_byte(model, tokenizer, text[: len(held_out)]), 3)}
    return row


NOTE = """
Made by `benchmarks/experiments/training.py`: means over the seeds, bits per byte. "With docstrings": the library's
docstrings are trained on as well. Compressors need {baselines}.
"""


def as_table(content):
    """The rows as Markdown: mean and spread over the seeds."""
    baselines = ", ".join(f"{name} {value:.2f}" for name, value in content["baselines"].items())
    lines = [f"# Bits per byte after training\n\n{content['machine']}\n{NOTE.format(baselines=baselines)}"]
    lines += ["| parameters | text | asked [s] | took [s] | steps | held-out | lowest–highest | training text |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for key in dict.fromkeys((row["size"], row["text"], row["seconds"]) for row in content["rows"]):
        rows = [row for row in content["rows"] if (row["size"], row["text"], row["seconds"]) == key]
        mean = {key: sum(row[key] for row in rows) / len(rows) for key in ("took", "steps", "held_out", "trained")}
        spread = f"{min(row['held_out'] for row in rows):.2f}–{max(row['held_out'] for row in rows):.2f}"
        lines.append(
            f"| {rows[0]['parameters']:,} | {key[1]} | {key[2]:g} | {mean['took']:.0f} | {mean['steps']:,.0f} | "
            f"{mean['held_out']:.2f} | {spread} | {mean['trained']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    """Train every size for every time with every seed; write the rows and a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of the training times, for a quick try")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    out, scale, seeds = vars(parser.parse_args()).values()
    settings = f"{torch.get_num_threads()} threads, device {pick_device()}, torch {torch.__version__}"
    content = {"machine": f"{machine()}, {settings}.", "baselines": {}, "rows": []}
    if out.exists():
        content["rows"] = json.loads(out.read_text(encoding="utf-8"))["rows"]
    content["baselines"] = baselines()
    paces = {size: seconds_per_step(size) for size in SIZES}
    print({size: f"{1000 * pace:.0f} ms per step" for size, pace in paces.items()}, flush=True)
    done = {(row["size"], row["text"], row["seconds"], row["seed"]) for row in content["rows"]}
    for size, kind, seconds in PLAN:
        for seed in range(seeds):
            if (size, kind, seconds * scale, seed) in done:
                continue
            content["rows"].append(measure(size, kind, seconds * scale, seed, paces[size]))
            print(content["rows"][-1], flush=True)
            out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            out.with_suffix(".md").write_text(as_table(content), encoding="utf-8")
    print(as_table(content))


if __name__ == "__main__":
    main()
