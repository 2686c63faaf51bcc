"""Does RoPE reach beyond the trained length? The stored numbers behind a claim of notebook 02.

Small models are trained on windows of 64 tokens, with RoPE and without any position (all turning speeds set to 0),
three seeds each, and judged on windows of 256 tokens of held-out text. The RoPE models are judged as they are and
with three scalings by 4, without further training. Some minutes.
Run: python -m benchmarks.experiments.extrapolation helpers/assets/extrapolation.json
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from helpers.device import pick_device, set_seed
from helpers.model import Llama, rope_inv_freq
from helpers.text import encode, reference_text, train_tokenizer, train_val_split
from helpers.train import TINY, train

TRAINED, JUDGED, BIN, STEPS, SEEDS = 64, 256, 16, 1200, (0, 1, 2)
CONFIG = replace(
    TINY, vocab_size=512, dim=64, n_layers=4, n_heads=4, n_kv_heads=2, hidden_dim=192, head_dim=16,
    max_seq_len=TRAINED, rope_theta=10_000.0,
)  # fmt: skip
SCALINGS = {
    "RoPE as trained": None,
    "RoPE, linear × 4": {"type": "linear", "factor": 4.0},
    "RoPE, NTK × 4": {"type": "ntk", "factor": 4.0},
    "RoPE, llama3 × 4": {"type": "llama3", "factor": 4.0, "original_max_position_embeddings": TRAINED},
}


@torch.no_grad()
def loss_by_position(model, tokens):
    """Mean loss in bins of BIN positions, over windows of JUDGED tokens [nat/token]."""
    starts = torch.arange(0, len(tokens) - JUDGED - 1, BIN * 2)
    total = torch.zeros(JUDGED)
    for some in starts.split(32):
        window = tokens[some[:, None] + torch.arange(JUDGED + 1)].to(model.lm_head.weight.device)
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten(), reduction="none")
        total += loss.view(len(some), JUDGED).sum(0).cpu()
    return (total / len(starts)).view(-1, BIN).mean(1)


def main(out: Path):
    text, held_out = train_val_split(reference_text())
    tokenizer = train_tokenizer(text, CONFIG.vocab_size)
    tokens, judged = encode(tokenizer, text), encode(tokenizer, held_out)
    curves = {name: [] for name in [*SCALINGS, "no position"]}
    for seed in SEEDS:
        for with_rope in (True, False):
            set_seed(seed)
            model = Llama(CONFIG).to(pick_device())
            if not with_rope:
                model.inv_freq = torch.zeros_like(model.inv_freq)  # angle 0 everywhere: nothing is turned
            train(model, lambda: tokens, steps=STEPS, batch_size=32, seed=seed, weight_decay=0.1)
            for name, scaling in SCALINGS.items() if with_rope else [("no position", None)]:
                if with_rope:
                    model.inv_freq = rope_inv_freq(CONFIG.head_dim, CONFIG.rope_theta, scaling)
                curves[name].append([round(v, 4) for v in loss_by_position(model, judged).tolist()])
                print(seed, name, curves[name][-1], flush=True)
    content = {"trained": TRAINED, "bin": BIN, "vocab_size": CONFIG.vocab_size, "steps": STEPS, "seeds": SEEDS}
    out.write_text(json.dumps(content | {"loss": curves}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
