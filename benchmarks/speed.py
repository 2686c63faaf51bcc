"""Speed of the course's model as ratios to transformers, measured side by side in one run: make bench.

Runs alternate between the models, so that a machine that slows down slows all; medians are compared, and a sample
during which other processes were busy is dropped. All must produce the same greedy tokens before anything is timed
(those with smaller weights excepted). Absolute figures
depend on the machine, ratios much less. Memory is that of a process of its own that makes one model and decodes; a
prepared model's peak has the original beside the copy.

Every sample goes into results/MACHINE.json, and results.md is made from all files that lie there. ARGS=--quick
measures what matters most in two minutes, prints it and writes nothing.

The C program of llama2.c reads the same weights, and its own clock counts; build it from a checkout of
https://github.com/karpathy/llama2.c, then: make bench ARGS="--c ../llama2.c/run"
    gcc -Ofast -march=native -fopenmp run.c -lm -o run
"""

import argparse
import gc
import json
import os
import platform
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import LlamaConfig as TheirConfig
from transformers import LlamaForCausalLM

from beyond.fast_decode import prepare_for_decoding
from helpers.checkpoint import config_to_hugging_face, weights_to_hugging_face
from helpers.device import pick_device, synchronize
from helpers.generate import generate
from helpers.model import PRESETS, Llama, count_parameters

BIG = replace(
    PRESETS["smollm2-135m"], rope_theta=10_000.0, max_seq_len=8192
)  # the base that is written into the C program
SHAPES = {
    "15M": replace(
        BIG, vocab_size=32_000, dim=288, n_layers=6, n_heads=6, n_kv_heads=6, hidden_dim=768, head_dim=48,
    ),
    "135M": BIG,
}  # fmt: skip
RESULTS, LETTERS = Path(__file__).parent / "results", "ABCDEFGHIJ"


def make_pair(config, device):
    """Our model and transformers' with the same random weights."""
    torch.manual_seed(0)
    ours = Llama(config).eval()
    for weight in ours.layers.parameters():
        if weight.ndim == 2:
            weight.data.mul_(8)  # or the newest token, which is its own nearest neighbour, would be repeated for ever
    theirs = LlamaForCausalLM(TheirConfig(**config_to_hugging_face(config)))
    missing = theirs.load_state_dict(weights_to_hugging_face(ours), strict=False).missing_keys
    if missing not in ([], ["lm_head.weight"]):
        sys.exit(f"weights did not carry over: {missing}")
    theirs.tie_weights()
    return ours.to(device), theirs.eval().to(device)


def busy_elsewhere():
    """Processor seconds that other processes have used so far, or None where the system does not say."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])  # ours, and of what we started


def alternate(works, repeats, device):
    """The seconds of each work, run in turn, and how many samples were dropped.

    A work that returns a number has measured its seconds itself.
    """
    seconds, dropped = {name: [] for name in works}, 0
    for round_ in range(3 * repeats + 1):
        for name, work in works.items():
            if len(seconds[name]) == repeats:
                continue
            gc.collect()
            others = busy_elsewhere()
            start = time.perf_counter()
            own = work()
            synchronize(device)
            elapsed = time.perf_counter() - start
            taken = own if isinstance(own, float) else elapsed
            busy = 0 if others is None else busy_elsewhere() - others
            disturbed = busy > 0.1 * elapsed + 0.02  # the clock ticks in 0.01
            dropped += bool(round_ and disturbed)
            if round_ and not disturbed:  # the first round warms up
                seconds[name].append(taken)
    if not all(seconds.values()):
        sys.exit(
            "other processes were busy all the time: nothing could be measured. Run this when the machine is idle."
        )
    return seconds, dropped


def processor():
    """The name of this machine's processor, as far as the system tells it."""
    try:
        return re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))[1]
    except (OSError, TypeError):
        return platform.processor() or platform.machine()


def machine():
    """The day, the processor and its cores: how a page of results begins."""
    return f"{time.strftime('%d %B %Y')}, {processor()}, {os.cpu_count()} CPU cores"


LIMITS = "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"


def details():
    """What a record says of its machine."""
    caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index[0-9]")
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "machine": machine(),
        "caches of core 0": [(folder / "size").read_text().strip() for folder in sorted(caches)],
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "commit": git.stdout.strip(),
    } | {name: os.environ[name] for name in LIMITS if name in os.environ}


def bandwidth(n_bytes):
    """Bytes per second at which this machine reads so many bytes again and again, at best."""
    bulk = torch.rand(n_bytes // 4)
    seconds, _ = alternate({"read": lambda: [bulk.sum() for _ in range(10)]}, 5, bulk.device)
    return 10 * n_bytes / min(seconds["read"])


def decode(model, prompt, new, **settings):
    if isinstance(model, Llama):
        return generate(model, prompt, new)
    settings |= {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    return model.generate(prompt, **settings).cpu()


@torch.no_grad()
def prefill(model, prompts):
    for prompt in prompts:
        if isinstance(model, Llama):
            model(prompt, model.new_cache(1, prompt.shape[1]), last_only=True)
        else:
            model(prompt, use_cache=True, logits_to_keep=1)


def training_step(model, optimizer, batch):
    logits = model(batch[:, :-1])
    logits = logits if isinstance(model, Llama) else logits.logits
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def at_medium(work):
    """The same work, float32 products in bfloat16 where the processor has such instructions."""

    def run():
        torch.set_float32_matmul_precision("medium")
        work()
        torch.set_float32_matmul_precision("highest")

    return run


def write_for_c(model, folder):
    """The model in llama2.c's first format, and a tokenizer whose piece i is " i", but for 2 and 3, the prompt's."""
    config, weights = model.config, dict(model.named_parameters())
    sizes = [config.dim, config.hidden_dim, config.n_layers, config.n_heads, config.n_kv_heads, config.vocab_size]
    with open(folder / "model.bin", "wb") as file:
        file.write(struct.pack("7i", *sizes, config.max_seq_len))
        file.write(weights["tok_embeddings.weight"].detach().numpy().tobytes())
        for part in C_ORDER:
            for layer in range(config.n_layers):
                weight = weights[f"layers.{layer}.{part}.weight"].detach()
                if part.endswith(("q_proj", "k_proj")):  # their pairs are (0, 1), (2, 3), ...: interleaved
                    weight = weight.unflatten(0, (-1, 2, config.head_dim // 2)).transpose(1, 2).flatten(0, 2)
                file.write(weight.numpy().tobytes())
        file.write(weights["final_norm.weight"].detach().numpy().tobytes())
        file.write(bytes(4 * config.max_seq_len * config.head_dim))  # a table of angles, which it skips
    pieces = [{2: " ", 3: "x"}.get(i, f" {i}").encode() for i in range(config.vocab_size)]
    table = b"".join(struct.pack("fi", 0.0, len(piece)) + piece for piece in pieces)
    (folder / "tokenizer.bin").write_bytes(struct.pack("i", max(map(len, pieces))) + table)


C_ORDER = [
    "attention_norm", "attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj", "ffn_norm",
    "feed_forward.gate_proj", "feed_forward.down_proj", "feed_forward.up_proj",
]  # fmt: skip


def decode_in_c(program, folder, new):
    """What the C program writes after tokens 1, 2 and 3, and its seconds for `new` tokens, by its own clock."""
    command = [program, folder / "model.bin", "-z", folder / "tokenizer.bin", "-t", "0", "-i", "x", "-n", str(new)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    written = [int(piece) for piece in done.stdout.split("x", 1)[1].split()]
    return written, new / float(done.stderr.split("tok/s:")[1])


def steps_after(model, length, new):
    """A function that decodes `new` tokens after `length` tokens, again and again from the same cache."""
    device = next(model.parameters()).device
    prompt = torch.zeros(1, length, dtype=torch.int64, device=device)
    if isinstance(model, Llama):
        cache = model.new_cache(1, length + new)
        model(prompt, cache, last_only=True)
    else:
        cache = model(prompt, use_cache=True, logits_to_keep=1).past_key_values

    @torch.no_grad()
    def run():
        for _ in range(new):
            if isinstance(model, Llama):
                model(prompt[:, :1], cache, last_only=True)
            else:
                model(prompt[:, :1], past_key_values=cache, use_cache=True)
        if isinstance(model, Llama):
            cache.length = length
        else:
            cache.crop(-new)

    return run


def jobs_of(name, config, device, arguments, in_c):
    """(work, tokens, bytes read per token or None, {who: function}) for one shape; the first of each is transformers.

    in_c: the C program and a folder for its files, or None.
    """
    new, quick = arguments.new, arguments.quick
    ours, theirs = make_pair(config, device)
    draw = torch.Generator().manual_seed(0)
    weights, drawn = 4 * count_parameters(config), partial(torch.randint, config.vocab_size, generator=draw)
    prompt = drawn((1, 32)).to(device)
    plain = {"transformers": theirs, "ours": ours, "ours, prepared": prepare_for_decoding(ours)}
    expected = decode(theirs, prompt, 16)
    for model in list(plain.values())[1:]:
        if not torch.equal(decode(model, prompt, 16), expected):
            sys.exit(f"{name}: the models write different text; nothing was timed.")
    works = {who: partial(decode, model, prompt, new) for who, model in plain.items()}
    if not quick:
        works["transformers, static cache"] = partial(decode, theirs, prompt, new, cache_implementation="static")
    if in_c:
        write_for_c(ours, in_c[1])
        if decode_in_c(*in_c, 32)[0][:16] != generate(ours, [[1, 2, 3]], 16)[0][3:]:
            sys.exit(f"{name}: the C program writes other text; nothing was timed.")
        works["llama2.c"] = lambda: decode_in_c(*in_c, 32 + new)[1] * new / (32 + new)
    yield f"decode {new} after 32", new, weights, works
    small = {f"ours, {kind} weights": prepare_for_decoding(ours, kind) for kind in ("float16", "bfloat16", "int8")}
    models = {who: plain[who] for who in ("transformers", "ours, prepared")} | small
    yield (
        f"decode {new} after 32, smaller weights", new, None,
        {who: partial(decode, model, prompt, new) for who, model in models.items()},
    )  # fmt: skip
    del models, small
    for length in (2048,) if quick else (512, 2048, 6000):
        cached = 2 * 4 * config.n_layers * config.n_kv_heads * config.head_dim * length
        runs = {who: steps_after(model, length, 8) for who, model in plain.items()}
        yield f"decode 8 after {length:,}", 8, weights + cached, runs
    if quick:
        return
    plain["ours, packed"] = prepare_for_decoding(ours, layout="packed")
    for rows, many in ((8, new), (32, 16)):
        prompts = drawn((rows, 32)).to(device)
        written = [decode(model, prompts, 16) for model in plain.values()]
        if not all(map(written[0].equal, written)):
            sys.exit(f"{name}: the models write different texts; nothing more was timed.")
        yield (
            f"decode {many} after 32, {rows} texts", many * rows, None,
            {who: partial(decode, model, prompts, many) for who, model in plain.items()},
        )  # fmt: skip
    n_tokens = 8 * 256 if name == "15M" else 256  # a sample takes a quarter of a second or more
    for length in (32, 256, 512, 4096):
        prompts = drawn((max(1, n_tokens // length), 1, length)).to(device)
        works = {who: partial(prefill, model, prompts) for who, model in plain.items()}
        if length == 256:
            works["transformers, medium precision"] = at_medium(works["transformers"])
            works["ours, medium precision"] = at_medium(works["ours"])
        yield f"prefill {length:,}", prompts.numel(), None, works
    batch = drawn((8 if name == "15M" else 1, 257)).to(device)
    unfused = {model: torch.optim.AdamW(model.parameters(), lr=1e-5) for model in (theirs, ours)}
    fused = torch.optim.AdamW(ours.parameters(), lr=1e-5, fused=True)
    works = {
        "transformers": partial(training_step, theirs, unfused[theirs], batch),
        "ours": partial(training_step, ours, unfused[ours], batch),
        "ours, fused AdamW": partial(training_step, ours, fused, batch),
    }
    works["transformers, medium precision"] = at_medium(works["transformers"])
    works["ours, fused AdamW, medium precision"] = at_medium(works["ours, fused AdamW"])
    yield f"training step {len(batch)}x256", 256 * len(batch), None, works


def memory(name, who, length):
    """Memory of this process [MB] after it has made one model and decoded 16 tokens: at the peak, and now."""
    config, device = SHAPES[name], pick_device()
    if who == "transformers":
        model = LlamaForCausalLM(TheirConfig(**config_to_hugging_face(config))).eval()
    else:
        model = Llama(config)
        if who != "ours":
            model = prepare_for_decoding(model, {"prepared": None}.get(who, who))
    decode(model.to(device), torch.zeros(1, int(length), dtype=torch.int64, device=device), 16)
    gc.collect()
    try:  # getrusage would also count what the parent held when it started this process
        status = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
        return [round(peak), None]
    kilobytes = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", status))
    return [round(int(kilobytes[kind]) / 1024) for kind in ("VmHWM", "VmRSS")]


# ------------------------------------------------------------------------------------------------- the page


def ratio(samples, who):
    """Transformers' time by this one's, of the medians; and by its slowest and its fastest sample."""
    reference = statistics.median(samples["transformers"])
    return [reference / time for time in (statistics.median(samples[who]), max(samples[who]), min(samples[who]))]


def cell(row, who):
    """A ratio with its spread, tokens per second and the share of what the memory gives, as the page shows them."""
    if who not in row["samples"]:
        return ""
    middle, low, high = ratio(row["samples"], who)
    rate = row["tokens"] / statistics.median(row["samples"][who])
    roof = f", {rate * row['bytes'] / row['bandwidth']:.0%}" if row["bytes"] else ""
    return f"**{middle:.2f}** ({low:.2f}–{high:.2f}); {rate:,.0f}{roof}"


def page(records):
    """results.md from all records: what loses first, then everything, one column for each machine."""
    yield "# Speed\n\nMade by `make bench` from the samples in `results/`; each column is one run on one machine."
    for letter, record in zip(LETTERS, records, strict=False):
        about = ", ".join(f"{key} {value}" for key, value in record["about"].items())
        yield f"- **{letter}**: {about.replace('machine ', '', 1)}."
    yield (
        "\nEach cell: **transformers' time by this one's**, of the medians of alternating runs (and by its slowest and "
        "fastest run); tokens per second; where weights and cache are read once per token, the share of what this "
        "machine's memory gives when so many bytes are read again and again. `ours` is the model to read, `prepared` "
        "its copy laid out for one token, `packed` the one for many. bfloat16 and int8 read fewer bytes, so they have "
        "no share.\n"
    )
    rows = {}
    for letter, record in zip(LETTERS, records, strict=False):
        for row in record["rows"]:
            for who in row["samples"]:
                if who != "transformers":
                    rows.setdefault((row["shape"], row["work"], who), {})[letter] = row
    loses = {key: on for key, on in rows.items() if key[2].startswith("ours")
             and any(ratio(row["samples"], key[2])[0] < 1 for row in on.values())}  # fmt: skip
    letters = LETTERS[: len(records)]
    for title, some in (("Slower than transformers", loses), ("All", rows)):
        yield f"## {title}\n\n| shape | work | who | {' | '.join(letters)} |\n|---|---|---|{'---|' * len(letters)}"
        for (shape, work, who), on in some.items():
            cells = [cell(on[letter], who) if letter in on else "" for letter in letters]
            yield f"| {shape} | {work} | {who} | {' | '.join(cells)} |"
        yield "" if some else "| none | | |" + " |" * len(letters) + "\n"
    yield "## Memory\n\nOf the process, at the peak and after writing 16 tokens [MB].\n"
    yield f"| shape | prompt | who | {' | '.join(letters)} |\n|---|---|---|{'---|' * len(letters)}"
    keys = dict.fromkeys(key for record in records for key in record["memory"])
    for key in keys:
        both = [record["memory"].get(key) for record in records]
        yield f"| {' | '.join(key.split(', '))} | {' | '.join('{:,} / {:,}'.format(*m) if m else '' for m in both)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--new", type=int, default=64, help="tokens to decode")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two minutes; prints, and writes nothing")
    parser.add_argument("--c", type=Path, metavar="RUN", help="llama2.c's program, built as said above in this file")
    parser.add_argument("--only", metavar="WORD", default="", help="works whose name holds it, and no memory")
    parser.add_argument("--name", help="of the record in results/ (default: processor and vectors)")
    parser.add_argument("--page", action="store_true", help="only make results.md again from the records")
    parser.add_argument("--memory", nargs=3, metavar=("SHAPE", "WHO", "LENGTH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(json.dumps(memory(*arguments.memory)))
        return
    if not arguments.page:
        measure(arguments)
    if not arguments.quick:
        records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
        RESULTS.with_suffix(".md").write_text("\n".join(page(records)) + "\n", encoding="utf-8")


def measure(arguments):
    """Measure everything, print each row, and write the record, unless it is to be quick."""
    device = pick_device()
    record = {"about": details() | {"device": str(device)}, "rows": [], "memory": {}}
    if arguments.quick:
        arguments.repeats, arguments.new = 3, 32
    print(*(f"{key}: {value}" for key, value in record["about"].items()), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        in_c = (arguments.c.resolve(), Path(folder)) if arguments.c else None
        for shape in arguments.shapes:
            jobs = jobs_of(shape, SHAPES[shape], device, arguments, in_c)
            speed = bandwidth(4 * count_parameters(SHAPES[shape])) if device.type == "cpu" else None
            for work, tokens, read, runs in (job for job in jobs if arguments.only in job[0]):
                samples, dropped = alternate(runs, arguments.repeats, device)
                row = {"shape": shape, "work": work, "tokens": tokens, "bytes": read if speed else None}
                record["rows"].append(row | {"bandwidth": speed, "dropped": dropped, "samples": samples})
                for who in samples:
                    print(f"{shape}, {work}, {who}: {cell(record['rows'][-1], who)}", flush=True)
                if not arguments.quick:
                    write(record, arguments.name)
    if arguments.quick or arguments.only:
        return
    for shape in arguments.shapes:
        for length, who in ((32, "transformers"), (32, "ours"), (32, "prepared"), (32, "bfloat16"), (32, "int8"),
                            (4096, "transformers"), (4096, "ours")):  # fmt: skip
            command = [sys.executable, __file__, "--memory", shape, who, str(length)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            record["memory"][f"{shape}, {length}, {who}"] = json.loads(done.stdout)
            write(record, arguments.name)


def write(record, name):
    """The record as it is so far, times in seconds: a run that is stopped keeps its rows."""
    RESULTS.mkdir(exist_ok=True)
    name = name or re.sub(r"\W+", "-", f"{processor()} {record['about']['vectors']}").lower()
    rows = [row | {"samples": {who: [round(t, 5) for t in own] for who, own in row["samples"].items()}}
            for row in record["rows"]]  # fmt: skip
    (RESULTS / f"{name}.json").write_text(json.dumps(record | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
