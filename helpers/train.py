"""The small training loop, and the command that made assets/tiny-llama: python -m helpers.train --out FOLDER."""

import argparse
import math
import time
from collections.abc import Callable

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from tqdm.auto import tqdm

from helpers.checkpoint import save_checkpoint
from helpers.config import LlamaConfig
from helpers.device import pick_device, set_seed
from helpers.generate import generate
from helpers.model import Llama, count_parameters
from helpers.text import batches, encode, held_out_split, reference_text, train_tokenizer

TINY = LlamaConfig(
    vocab_size=1024, dim=128, n_layers=6, n_heads=4, n_kv_heads=2, hidden_dim=384,
    max_seq_len=256, norm_eps=1e-5, rope_theta=10_000.0, tie_embeddings=True,
)  # fmt: skip


def learning_rate(step: int, steps: int, peak: float = 3e-3, warm_up: int = 100) -> float:
    """Linear warm-up, then half a cosine down to a tenth of the peak."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def train(
    model: Llama,
    tokens: torch.Tensor,
    *,
    steps: int,
    batch_size: int = 16,
    seed: int = 0,
    weight_decay: float = 0.1,
    peak: float = 3e-3,
    every: int = 100,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train in place with AdamW on random windows of max_seq_len tokens.

    Args:
        model: on its device.
        tokens: the training text, (N,) int64.
        steps: number of updates.
        weight_decay: of the matrices; gains are not decayed.
        peak: highest learning rate.
        report: called as report(step, loss) every `every` steps and after the last.

    Returns:
        loss of each step [nat/token].
    """
    device = model.tok_embeddings.weight.device
    matrices = [w for w in model.parameters() if w.ndim == 2]
    gains = [w for w in model.parameters() if w.ndim == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=device.type != "mps")
    draw = batches(tokens, batch_size, model.config.max_seq_len, torch.Generator().manual_seed(seed))
    losses = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        inputs, targets = (part.to(device) for part in next(draw))
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % every == 0 or step + 1 == steps:
            report(step + 1, losses[-1])
    return losses


@torch.no_grad()
def bits_per_byte(model: Llama, tokenizer: Tokenizer, text: str, batch_size: int = 16) -> float:
    """Bits the model needs per byte of a text, read in windows of max_seq_len: comparable across tokenizers.

    Windows overlap by half and only the second half is counted (the first window counts whole), so that each token is
    judged with at least half a window before it.
    """
    device = model.tok_embeddings.weight.device
    tokens = encode(tokenizer, text)
    length = model.config.max_seq_len
    half = length // 2
    starts = range(0, max(1, len(tokens) - 1 - half), half)
    nats = 0.0
    for first in range(0, len(starts), batch_size):
        for start in starts[first : first + batch_size]:
            window = tokens[start : start + length + 1].to(device)
            loss = F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none")
            nats += loss[0 if start == 0 else half :].sum().item()
    first_token = math.log(model.config.vocab_size)  # nothing stands before it: every token equally likely
    return (nats + first_token) / math.log(2) / len(text.encode())
