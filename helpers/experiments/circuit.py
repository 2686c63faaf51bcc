"""Two blocks that learn to repeat what they have read once, and are watched meanwhile (notebook 06, section 6.9)."""

from contextlib import nullcontext

import torch
from torch.nn import functional as F

from helpers.interventions import attention_by_layer, replaced
from helpers.model import Llama, LlamaConfig
from helpers.train import training_step

CONFIG = LlamaConfig(
    vocab_size=32, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=128, max_seq_len=48, norm_eps=1e-5,
    rope_theta=10_000.0, tie_embeddings=False,
)  # fmt: skip
LONGEST = 24  # of the pieces that are repeated


def repeated(n_rows: int, shortest: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Rows that repeat a random piece of `shortest` to 24 tokens, (n_rows, length) int64."""
    periods = torch.randint(shortest, LONGEST + 1, (n_rows, 1), generator=generator)
    pieces = torch.randint(CONFIG.vocab_size, (n_rows, LONGEST), generator=generator)
    return pieces.gather(1, torch.arange(length) % periods)


@torch.no_grad()
def _watched(model, copies):
    # Loss in the second copy; of the best head: weight just before (block 0), behind the earlier copy (block 1).
    loss = F.cross_entropy(model(copies[:, :-1])[:, LONGEST:].mT, copies[:, LONGEST + 1 :]).item()
    places = zip(attention_by_layer(model, copies), (-1, 1 - LONGEST), strict=True)
    return loss, *(heads.diagonal(back, 1, 2).mean(dim=1).max().item() for heads, back in places)


def learn_to_repeat(
    steps: int, every: int, generator: torch.Generator, device: torch.device, silent: tuple[int, str] | None = None
) -> tuple[dict[int, tuple[float, float, float]], torch.Tensor]:
    """Train a model of two blocks on rows that repeat, drawn anew at every step; watch it after `every` so many.

    Silent is a block (0, 1) and part ("attention", "feed_forward") that gives zeros from the first step on.

    Returns:
        seen: by step, the loss in the second copy of a piece [nat/token], and the weights of the best heads: of block 0
            on the token just before, of block 1 on the token behind the earlier copy of the current one.
        attention: attention weights at the end, (2, 4, 48, 48).
    """
    model, seen = Llama(CONFIG).to(device), {}
    copies = repeated(64, LONGEST, 2 * LONGEST, generator).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    part = getattr(model.layers[silent[0]], silent[1]) if silent else None
    with replaced(part, lambda part, x, *rest: torch.zeros_like(x)) if silent else nullcontext():
        for step in range(steps + 1):
            if step % every == 0:
                seen[step] = _watched(model, copies)
            rows = repeated(32, 4, 2 * LONGEST + 1, generator).to(device)
            training_step(model, optimizer, rows[:, :-1], rows[:, 1:])
        return seen, attention_by_layer(model, copies)
