"""Speed of the course's model as ratios to transformers, measured side by side in one run: make bench.

Runs alternate between the models, so that a machine that slows down slows all; medians are compared, and a sample
during which other processes were busy is dropped. All must produce the same greedy tokens before anything is timed
(those with smaller weights excepted). What is compiled is left out where there is no C++ compiler. Absolute figures
depend on the machine, ratios much less. Memory is that of a process of its own that makes one model and decodes; a
prepared model's peak has the original beside the copy.

The C program of llama2.c reads the same weights, and its own clock counts; build it from a checkout of
https://github.com/karpathy/llama2.c, then: make bench ARGS="--c ../llama2.c/run"
    gcc -Ofast -march=native -fopenmp run.c -lm -o run
"""

import argparse
import gc
import os
import platform
import re
import resource
import shutil
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

from helpers.checkpoint import config_to_hugging_face, weights_to_hugging_face
from helpers.device import pick_device, synchronize
from helpers.fast_decode import prepare_for_decoding
from helpers.generate import generate
from helpers.model import PRESETS, Llama, count_parameters

BIG = replace(PRESETS["smollm2-135m"], rope_theta=10_000.0)  # the base that is written into the C program
SHAPES = {
    "15M": replace(
        BIG, vocab_size=32_000, dim=288, n_layers=6, n_heads=6, n_kv_heads=6, hidden_dim=768, head_dim=48,
    ),
    "135M": BIG,
}  # fmt: skip
CAN_COMPILE = shutil.which(os.environ.get("CXX", "g++")) is not None and " " not in torch.__path__[0]


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
    """Median and spread of the seconds of each work, run in turn, and how many samples were dropped.

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
    return {name: (statistics.median(s), min(s), max(s)) for name, s in seconds.items()}, dropped


def machine():
    """The day, the processor and its cores: how each page of results begins."""
    try:
        processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        processor = platform.processor()
    return f"{time.strftime('%d %B %Y')}, {processor}, {os.cpu_count()} CPU cores"


def limits(device):
    """What this machine reads from memory [byte/s] and computes [FLOP/s], in float32."""
    bulk, square = torch.rand(2**26, device=device), torch.rand(1024, 1024, device=device)
    works = {"read": lambda: [bulk.sum() for _ in range(5)], "compute": lambda: [square @ square for _ in range(5)]}
    times, _ = alternate(works, 7, device)
    return 5 * 4 * bulk.numel() / times["read"][1], 5 * 2 * 1024**3 / times["compute"][1]  # the fastest run


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


def jobs_of(name, config, device, new, in_c):
    """(work, tokens, {who: function}) for one shape; the first of each is transformers.

    in_c: the C program and a folder for its files, or None.
    """
    ours, theirs = make_pair(config, device)
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(config.vocab_size, (1, 32), generator=draw).to(device)
    prepared = prepare_for_decoding(ours)
    quick = {"ours, prepared": prepared}
    if CAN_COMPILE:
        quick["ours, prepared and compiled"] = prepare_for_decoding(ours, compiled=True)
    expected = decode(theirs, prompt, 16)
    for model in (ours, *quick.values()):
        if not torch.equal(decode(model, prompt, 16), expected):
            sys.exit(f"{name}: the models write different text; nothing was timed.")
    c_program = {}
    if in_c:
        write_for_c(ours, in_c[1])
        if decode_in_c(*in_c, 32)[0][:16] != generate(ours, [[1, 2, 3]], 16)[0][3:]:
            sys.exit(f"{name}: the C program writes other text; nothing was timed.")
        c_program["llama2.c"] = lambda: decode_in_c(*in_c, 32 + new)[1] * new / (32 + new)
    yield (
        f"decode {new} after 32",
        new,
        {
            "transformers": lambda: decode(theirs, prompt, new),
            "transformers, static cache": lambda: decode(theirs, prompt, new, cache_implementation="static"),
            "ours": lambda: decode(ours, prompt, new),
            **{who: lambda model=model: decode(model, prompt, new) for who, model in quick.items()},
            **c_program,
        },
    )
    quick.clear()
    small = {f"ours, {weights} weights": prepare_for_decoding(ours, weights) for weights in ("bfloat16", "int8")}
    for weights in ("bfloat16", "int8") if CAN_COMPILE else ():
        small[f"ours, {weights} weights, compiled"] = prepare_for_decoding(ours, weights, compiled=True)
    yield (
        f"decode {new} after 32, smaller weights",
        new,
        {
            "transformers": lambda: decode(theirs, prompt, new),
            **{who: lambda model=model: decode(model, prompt, new) for who, model in small.items()},
        },
    )
    small.clear()
    n_tokens = 8 * 256 if name == "15M" else 256  # a sample takes a quarter of a second or more
    readers = {"transformers": theirs, "ours": ours, "ours, prepared": prepared}
    for length in (32, 256):
        prompts = torch.randint(config.vocab_size, (n_tokens // length, 1, length), generator=draw).to(device)
        works = {who: partial(prefill, model, prompts) for who, model in readers.items()}
        if length == 256:
            works["transformers, medium precision"] = at_medium(works["transformers"])
            works["ours, medium precision"] = at_medium(works["ours"])
        yield f"prefill {length}", n_tokens, works
    batch = torch.randint(config.vocab_size, (8 if name == "15M" else 1, 257), generator=draw).to(device)
    plain = {model: torch.optim.AdamW(model.parameters(), lr=1e-5) for model in (theirs, ours)}
    fused = torch.optim.AdamW(ours.parameters(), lr=1e-5, fused=True)
    yield (
        f"training step {len(batch)}x256",
        256 * len(batch),
        {
            "transformers": lambda: training_step(theirs, plain[theirs], batch),
            "ours": lambda: training_step(ours, plain[ours], batch),
            "ours, fused AdamW": lambda: training_step(ours, fused, batch),
            "transformers, medium precision": at_medium(lambda: training_step(theirs, plain[theirs], batch)),
            "ours, fused AdamW, medium precision": at_medium(lambda: training_step(ours, fused, batch)),
        },
    )


def rows_of(name, config, device, new, repeats, bandwidth, in_c):
    """Table rows for one shape: ratios first."""
    bytes_per_token = 4 * count_parameters(config)
    for work, tokens, runs in jobs_of(name, config, device, new, in_c):
        times, dropped = alternate(runs, repeats, device)
        reference = times["transformers"][0]
        for who, (middle, low, high) in times.items():
            roof = f"{tokens / middle * bytes_per_token / bandwidth:.0%}" if work == f"decode {new} after 32" else ""
            ratio, spread = f"{reference / middle:.2f}", f"{reference / high:.2f}–{reference / low:.2f}"
            yield f"| {name} | {work} | {who} | {ratio} | {spread} | {tokens / middle:,.0f} | {roof} | {dropped} |"


def memory(name, who):
    """Memory of this process [MB] after it has made one model and decoded 16 tokens: at the peak, and now."""
    config, device = SHAPES[name], pick_device()
    if who == "transformers":
        model = LlamaForCausalLM(TheirConfig(**config_to_hugging_face(config))).eval()
    else:
        model = Llama(config)
        if who != "ours":
            model = prepare_for_decoding(model, {"prepared": None}.get(who, who))
    decode(model.to(device), torch.zeros(1, 32, dtype=torch.int64, device=device), 16)
    gc.collect()
    try:  # getrusage would also count what the parent held when it started this process
        status = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
        return f"{peak:,.0f} | "
    kilobytes = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", status))
    return f"{int(kilobytes['VmHWM']) / 1024:,.0f} | {int(kilobytes['VmRSS']) / 1024:,.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--new", type=int, default=64, help="tokens to decode")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--c", type=Path, metavar="RUN", help="llama2.c's program, built as said above in this file")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.md", help="the table goes here")
    parser.add_argument("--memory", nargs=2, metavar=("SHAPE", "WHO"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(memory(*arguments.memory))
        return
    device = pick_device()
    bandwidth, operations = limits(device)
    lines = [
        f"{machine()}, device {device}, torch {torch.__version__}, {torch.get_num_threads()} threads, float32. The "
        f"machine reads {bandwidth / 1e9:.0f} GB/s and computes {operations / 1e9:.0f} GFLOP/s. Medians of "
        f"{arguments.repeats} alternating runs; ratio: transformers' time by this one's; roof: bytes read for the "
        "weights, as a share of what the memory gives; dropped: samples during which other processes were busy.",
        "",
        "| shape | work | who | ratio | lowest–highest | token/s | of the roof | dropped |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as folder:
        in_c = (arguments.c.resolve(), Path(folder)) if arguments.c else None
        for shape in arguments.shapes:
            for row in rows_of(shape, SHAPES[shape], device, arguments.new, arguments.repeats, bandwidth, in_c):
                lines.append(row)
                print(row, flush=True)
    lines += ["", "| shape | who | memory of the process at the peak [MB] | after writing [MB] |", "|---|---|---|---|"]
    for shape in arguments.shapes:
        for who in ("transformers", "ours", "prepared", "bfloat16", "int8"):
            command = [sys.executable, __file__, "--memory", shape, who]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            lines.append(f"| {shape} | {who} | {done.stdout.strip()} |")
            print(lines[-1], flush=True)
    arguments.out.write_text("# Speed\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
