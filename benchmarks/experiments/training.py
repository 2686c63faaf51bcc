"""Sizes × amounts of text × equal time: how good is a small LLaMA then? The stored numbers behind notebook 06, 6.6.

Three sizes and three amounts of text: the first quarter of the Python reference, the whole, and the whole with more
text of a similar kind. Everything else is the same: vocabulary, windows, batch, learning rate, and as many steps as fit
into 50 seconds of one thread's processor time, measured at the start. Judged in bits per byte, on the reference's
held-out tenth and on its beginning, which all have read.

And one question about recipes: with eight seeds, is a weight decay of 0.1 or of 0.3 better after 100 steps of the
notebook's model? Both are judged on the same held-out windows of 64 tokens, so their difference is paired. The controls
keep the recipe and nudge the initial weights: one by 0.001, or each to the next float above or below it.

And one about two bugs (6.7): how far does each turn the gradient after so many steps of a training that has the bug?
The control is the right gradient of another batch.

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
from helpers.train import TINY, clip_gradients, learning_rate, train

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


@torch.no_grad()
def nudge(model, how, seed):
    """Move the embedding's first weight by 0.001, or every weight to the next float above or below it, at random."""
    if how == "one weight":
        model.tok_embeddings.weight[0, 0] += 0.001
        return
    coin = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        ends = torch.where(torch.rand(weight.shape, generator=coin) < 0.5, math.inf, -math.inf)
        weight.copy_(torch.nextafter(weight, ends))


def compare_recipes(seed):
    """One seed, two recipes and two nudges: bits per byte on the held-out windows, and the paired standard errors."""
    tokens, unseen, n_bytes = material()
    windows, bits, errors = unseen[: len(unseen) // 65 * 65].view(-1, 65), {}, {}
    for name in ("decay 0.1", "decay 0.3", "one weight", "last bits"):
        set_seed(seed)
        model = Llama(SIZES[64])
        if not name.startswith("decay"):
            nudge(model, name, seed)
        settings = {"batch_size": 8, "seed": seed, "peak": 5e-3, "warm_up": 10}
        train(model, lambda: tokens, steps=100, weight_decay=0.3 if name == "decay 0.3" else 0.1, **settings)
        with torch.no_grad():
            nats = F.cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:], reduction="none")
        bits[name] = nats.mean(dim=1) / math.log(2) * len(unseen) / n_bytes
        errors[name] = ((bits[name] - bits["decay 0.1"]).std() / math.sqrt(len(windows))).item()
    row = {"seed": seed} | {name: round(one.mean().item(), 4) for name, one in bits.items()}
    return row | {"paired_errors": {name: round(error, 4) for name, error in errors.items() if error}}


LENGTHS = torch.tensor([65, 64, 63, 62, 9, 10, 11, 13])  # tokens of the rows of a batch, as in the notebook's 6.7
COUNTS = torch.arange(64) < LENGTHS[:, None] - 1  # which predictions count
SHARES = {  # how a batch's loss is computed from nats, (8, 64)
    "right": lambda nats: nats[COUNTS].mean(),
    "(a)": lambda nats: (nats[:4][COUNTS[:4]].mean() + nats[4:][COUNTS[4:]].mean()) / 2,
    "(c)": lambda nats: nats.mean(),
}


def padded(tokens, draw):
    """A batch of random windows, (8, 65), cut to LENGTHS and padded with token 0."""
    starts = torch.randint(len(tokens) - 65, (8,), generator=draw)
    return tokens[starts[:, None] + torch.arange(65)].masked_fill(torch.arange(65) >= LENGTHS[:, None], 0)


def nats_of(model, rows):
    return F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none")


def gradient(model, rows, name):
    gradients = torch.autograd.grad(SHARES[name](nats_of(model, rows)), list(model.parameters()))
    return torch.cat([one.flatten() for one in gradients])


def angle(one, other):
    return math.degrees(torch.cosine_similarity(one, other, dim=0).clamp(-1, 1).acos().item())


def turned(model, unseen, name, n=8):
    """Mean angle [degrees] on n held-out batches between the bug's and the right gradient; right: of two batches.

    And the mean loss of the predictions that count, and of the padding.
    """
    draw, angles, nats, before = torch.Generator().manual_seed(99), [], [], None
    for rows in (padded(unseen, draw) for _ in range(n + (name == "right"))):
        right = gradient(model, rows, "right")
        other = before if name == "right" else gradient(model, rows, name)
        angles += [] if other is None else [angle(other, right)]
        with torch.no_grad():
            nats.append(nats_of(model, rows))
        before = right
    losses = [torch.stack([one[which].mean() for one in nats]).mean().item() for which in (COUNTS, ~COUNTS)]
    return [round(sum(angles) / n, 1), *(round(loss, 2) for loss in losses)]


def bug_over_time(seed, name, steps=100, at=(0, 3, 6, 10, 15, 20, 30, 40, 60, 80, 100)):
    """A training with this bug: after so many steps, its angle, the loss of what counts, that of the padding."""
    tokens, unseen, _ = material()
    set_seed(seed)
    model, draw, rows = Llama(SIZES[64]), torch.Generator().manual_seed(seed), []
    groups = [
        {"params": [weight for weight in model.parameters() if weight.ndim == n], "weight_decay": decay}
        for n, decay in ((2, 0.1), (1, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    for step in range(steps + 1):
        if step in at:
            rows.append(turned(model, unseen, name))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, 5e-3, 10)
        optimizer.zero_grad()
        SHARES[name](nats_of(model, padded(tokens, draw))).backward()
        clip_gradients(model, 1.0)
        optimizer.step()
    angles, counted, padding = (list(one) for one in zip(*rows, strict=True))
    return {"seed": seed, "bug": name, "at": list(at), "angle": angles, "counted": counted, "padding": padding}


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
    content["bugs"] = [bug_over_time(seed, name) for seed in range(3) for name in SHARES]
    store(content, out)
    print(as_table(content))


if __name__ == "__main__":
    main()
