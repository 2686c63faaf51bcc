"""Sizes × amounts of text × equal time: how good is a small LLaMA then? The stored numbers behind notebook 06, 6.6.

Three sizes and three amounts of text: the first quarter of the Python reference, the whole, and the whole with more
text of a similar kind. Everything else is the same: vocabulary, windows, batch, learning rate, and as many steps as fit
into 50 seconds of one thread's processor time, measured at the start. Judged in bits per byte, on the reference's
held-out tenth and on its beginning, which all have read.

And one question about recipes: with eight seeds, is a weight decay of 0.1 or of 0.3 better after 100 steps of the
notebook's model? Both are judged on the same held-out windows of 64 tokens, so their difference is paired. The control
keeps the recipe and moves one initial weight by 0.001.

The table for reading, benchmarks/training.md, is written beside the numbers, with the ending .md; a row that stands in
the file already is kept, so a run can be stopped and continued.
Run: OMP_NUM_THREADS=1 python -m benchmarks.experiments.training helpers/assets/training.json
(about 25 minutes; --scale 0.05 --seeds 1 for a try)
"""

import argparse
import ast
import gzip
import json
import lzma
import math
import sysconfig
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional as F

from benchmarks.speed import machine
from helpers.checkpoint import load_checkpoint
from helpers.corpus import bits_per_byte, reference_text, train_tokenizer, train_val_split
from helpers.device import set_seed
from helpers.model import Llama, count_parameters
from helpers.text import TINY_LLAMA, encode, load_tokenizer
from helpers.train import TINY, train

SECONDS, BATCH, PEAK, WARM_UP = 50, 16, 3e-3, 30  # of every run, whatever its size
NOTEBOOK = replace(TINY, vocab_size=512, n_layers=4, max_seq_len=64, rope_theta=10_000.0)
SIZES = {dim: replace(NOTEBOOK, dim=dim, hidden_dim=3 * dim, head_dim=dim // 4) for dim in (64, 128, 224)}
TEXTS = ("a quarter", "reference", "with docstrings")
FEWER = "a quarter, fewer steps"  # the control of the first: the smallest makes as many as the largest


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


def texts():
    """The reference without its last tenth, and the last tenth."""
    return train_val_split(reference_text())


def baselines():
    """What compressors and the bundled model need for the held-out text [bits per byte]."""
    seen, judged = (part.encode() for part in texts())
    more = len(lzma.compress(seen + judged, preset=9)) - len(lzma.compress(seen, preset=9))
    bits = {
        "gzip": 8 * len(gzip.compress(judged)) / len(judged),
        "lzma after the training text": 8 * more / len(judged),
    }
    bits["the bundled model"] = bits_per_byte(load_checkpoint(TINY_LLAMA), load_tokenizer(), texts()[1])
    return {name: round(value, 3) for name, value in bits.items()}


def seconds_per_step(dim):
    """Processor time: the median of 20 steps of a model that is thrown away; the first steps do not count."""
    model, ends, tokens = Llama(SIZES[dim]), [], torch.arange(10_000) % 512
    train(model, lambda: tokens, steps=24, batch_size=BATCH, report=lambda *_: ends.append(time.process_time()))
    return median(later - earlier for earlier, later in pairwise(ends[3:]))


def measure(dim, kind, steps, seed):
    """One row: what a model of this width has reached after so many steps on this text."""
    text, held_out = texts()
    tokenizer = train_tokenizer(text, 512)  # the same for all
    shorter = {"reference": text, **dict.fromkeys(("a quarter", FEWER), text[: len(text) // 4])}
    read = shorter.get(kind) or f"{text}\n\n{library_docstrings()}"
    tokens = encode(tokenizer, read)
    set_seed(seed)
    model, start = Llama(SIZES[dim]), time.process_time()
    settings = {"batch_size": BATCH, "seed": seed, "peak": PEAK, "warm_up": min(WARM_UP, steps // 3)}
    train(model, lambda: tokens, steps=steps, weight_decay=0.1, **settings)
    row = {"parameters": count_parameters(SIZES[dim]), "text": kind, "seed": seed, "steps": steps}
    row |= {"took": round(time.process_time() - start, 1)}
    row |= {"passes": round(steps * BATCH * 64 / len(tokens), 2)}
    row |= {"held_out": round(bits_per_byte(model, tokenizer, held_out), 3)}
    row |= {"trained": round(bits_per_byte(model, tokenizer, text[: len(held_out)]), 3)}
    return row


def material():
    """(tokens to train on, held-out tokens, bytes of the held-out text)."""
    text, held_out = texts()
    tokenizer = train_tokenizer(text, 512)
    return encode(tokenizer, text), encode(tokenizer, held_out), len(held_out.encode())


def compare_recipes(seed):
    """One seed, two recipes and a model of which one weight is moved: bits per byte on the held-out windows."""
    tokens, unseen, n_bytes = material()
    windows, row = unseen[: len(unseen) // 65 * 65].view(-1, 65), {"seed": seed}
    for name in ("decay 0.1", "decay 0.3", "one weight"):
        set_seed(seed)
        model = Llama(SIZES[64])
        settings = {"batch_size": 8, "seed": seed, "peak": 5e-3, "warm_up": 10}
        with torch.no_grad():
            model.tok_embeddings.weight[0, 0] += 0.001 if name == "one weight" else 0
        train(model, lambda: tokens, steps=100, weight_decay=0.3 if name == "decay 0.3" else 0.1, **settings)
        with torch.no_grad():
            nats = F.cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:])
        row[name] = round(nats.item() / math.log(2) * len(unseen) / n_bytes, 4)
    return row


NOTE = """
Made by `benchmarks/experiments/training.py`: means over the seeds, bits per byte. Each run makes as many steps as take
{seconds:g} s of one thread's processor time on a quiet machine; the table says what they took here, where others used
it, too. The text: a quarter of the reference, the reference, or both it
and the library's docstrings. Passes: how often a run has read its text. "Training text": the beginning of the
reference, in all three. Others need {baselines}.
"""


def as_table(content):
    """The rows as Markdown: mean and spread over the seeds."""
    baselines = ", ".join(f"{name} {value:.2f}" for name, value in content["baselines"].items())
    note = NOTE.format(baselines=baselines, seconds=content["seconds"])
    lines = [f"# Bits per byte after equal time\n\n{content['machine']}\n{note}"]
    lines += ["| parameters | text | took [s] | steps | passes | held-out | lowest–highest | training text |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for key in sorted({(row["parameters"], row["text"]) for row in content["rows"]}):
        rows = [row for row in content["rows"] if (row["parameters"], row["text"]) == key]
        mean = {key: sum(row[key] for row in rows) / len(rows) for key in ("took", "passes", "held_out", "trained")}
        spread = f"{min(row['held_out'] for row in rows):.2f}–{max(row['held_out'] for row in rows):.2f}"
        lines.append(
            f"| {key[0]:,} | {key[1]} | {mean['took']:.0f} | {rows[0]['steps']:,} | {mean['passes']:.1f} | "
            f"{mean['held_out']:.2f} | {spread} | {mean['trained']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def store(content, out):
    """The numbers as JSON, and beside them the table."""
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(as_table(content), encoding="utf-8")


def main():
    """Train every size on every text with every seed; write the rows and a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of the training time, for a quick try")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    out, scale, seeds = vars(parser.parse_args()).values()
    torch.set_num_threads(1)
    content = {"machine": f"{machine()}, 1 thread, torch {torch.__version__}.", "seconds": SECONDS * scale, "rows": []}
    content["baselines"] = baselines()
    if out.exists() and (former := json.loads(out.read_text(encoding="utf-8"))).get("seconds") == SECONDS * scale:
        content |= {"rows": former["rows"], "steps": former["steps"]}
    else:
        content["steps"] = {str(dim): max(2, int(SECONDS * scale / seconds_per_step(dim))) for dim in SIZES}
    print(content["steps"], flush=True)
    done = {(row["parameters"], row["text"], row["seed"]) for row in content["rows"]}
    for seed in range(seeds):
        for dim in SIZES:
            for kind in TEXTS:
                if (count_parameters(SIZES[dim]), kind, seed) in done:
                    continue
                content["rows"].append(measure(dim, kind, content["steps"][str(dim)], seed))
                print(content["rows"][-1], flush=True)
                store(content, out)
        smallest, largest = min(SIZES), max(SIZES)
        if (count_parameters(SIZES[smallest]), FEWER, seed) not in done:
            content["rows"].append(measure(smallest, FEWER, content["steps"][str(largest)], seed))
    content["recipes"] = [compare_recipes(seed) for seed in range(8)]
    store(content, out)
    print(as_table(content))


if __name__ == "__main__":
    main()
