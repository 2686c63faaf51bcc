"""Speed of the course's model as ratios to transformers, measured side by side in one run: make bench.

Runs alternate between the two, so that a machine that slows down slows both; medians are compared. Both must produce
the same greedy tokens before anything is timed. Absolute figures depend on the machine, ratios much less.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import LlamaConfig as TheirConfig
from transformers import LlamaForCausalLM

from helpers.checkpoint import config_to_hugging_face, weights_to_hugging_face
from helpers.device import pick_device
from helpers.generate import generate
from helpers.model import PRESETS, Llama, count_parameters

SHAPES = {
    "15M": replace(
        PRESETS["smollm2-135m"], vocab_size=32_000, dim=288, n_layers=6, n_heads=6, n_kv_heads=6, hidden_dim=768,
        head_dim=48, tie_embeddings=True,
    ),
    "135M": PRESETS["smollm2-135m"],
}  # fmt: skip


def make_pair(config, device):
    """Our model and transformers' with the same random weights."""
    torch.manual_seed(0)
    ours = Llama(config).eval()
    theirs = LlamaForCausalLM(TheirConfig(**config_to_hugging_face(config)))
    missing = theirs.load_state_dict(weights_to_hugging_face(ours), strict=False).missing_keys
    if missing not in ([], ["lm_head.weight"]):
        sys.exit(f"weights did not carry over: {missing}")
    theirs.tie_weights()
    return ours.to(device), theirs.eval().to(device)


def alternate(works, repeats, device):
    """Median and spread of the seconds of each work, run in turn."""
    seconds = {name: [] for name in works}
    for round_ in range(repeats + 1):
        for name, work in works.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if round_:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(s), min(s), max(s)) for name, s in seconds.items()}


def decode(model, prompt, new):
    if isinstance(model, Llama):
        return generate(model, prompt, new)
    return model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0).cpu()


@torch.no_grad()
def prefill(model, prompt):
    if isinstance(model, Llama):
        return model(prompt, model.new_cache(1, prompt.shape[1]), last_only=True)
    return model(prompt, use_cache=True, logits_to_keep=1).logits


def training_step(model, optimizer, batch):
    logits = model(batch[:, :-1])
    logits = logits if isinstance(model, Llama) else logits.logits
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def measure(name, config, device, new, repeats):
    """Rows (work, tokens per second of ours and theirs, ratio, its spread) for one shape."""
    ours, theirs = make_pair(config, device)
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(config.vocab_size, (1, 32), generator=draw).to(device)
    if not torch.equal(decode(ours, prompt, 16), decode(theirs, prompt, 16)):
        sys.exit(f"{name}: the two models write different text; nothing was timed.")
    long = torch.randint(config.vocab_size, (1, 256), generator=draw).to(device)
    batch = torch.randint(config.vocab_size, (8 if name == "15M" else 1, 257), generator=draw).to(device)
    pair = {"ours": ours, "theirs": theirs}
    optimizers = {who: torch.optim.AdamW(model.parameters(), lr=1e-5) for who, model in pair.items()}
    jobs = {
        f"decode {new} after 32": (new, lambda who: decode(pair[who], prompt, new)),
        "prefill 256": (256, lambda who: prefill(pair[who], long)),
        f"training step {len(batch)}x256": (
            256 * len(batch),
            lambda who: training_step(pair[who], optimizers[who], batch),
        ),
    }
    for job, (tokens, work) in jobs.items():
        times = alternate({who: partial(work, who) for who in pair}, repeats, device)
        (our_time, our_low, our_high), (their_time, _, _) = times["ours"], times["theirs"]
        spread = f"{their_time / our_high:.2f}–{their_time / our_low:.2f}"
        yield name, job, tokens / our_time, tokens / their_time, their_time / our_time, spread


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--new", type=int, default=64, help="tokens to decode")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    device = pick_device()
    lines = [
        f"{os.cpu_count()} CPU cores, device {device}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"float32; load before the run {os.getloadavg()[0]:.1f}. Medians of {arguments.repeats} alternating runs.",
        "",
        "| shape | work | ours [token/s] | transformers [token/s] | ratio | spread |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for shape in arguments.shapes:
        print(f"<!-- {shape}: {count_parameters(SHAPES[shape]):,} parameters -->", file=sys.stderr)
        for name, job, ours, theirs, ratio, spread in measure(
            shape, SHAPES[shape], device, arguments.new, arguments.repeats
        ):
            lines.append(f"| {name} | {job} | {ours:,.0f} | {theirs:,.0f} | {ratio:.2f} | {spread} |")
            print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("# Speed\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
