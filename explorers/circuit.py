"""Two blocks that learn to repeat what they have read once (notebook 06: the film, and section 6.9)."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch

from helpers.interventions import replaced
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


def silenced(model: Llama, part: tuple[int, str] | None):
    """Inside the `with`, this block's part ("attention", "feed_forward") gives zeros; None: all parts work."""
    zeros = None if part is None else getattr(model.layers[part[0]], part[1])
    return nullcontext() if zeros is None else replaced(zeros, lambda part, x, *rest: torch.zeros_like(x))


def learn_to_repeat(
    steps: int, every: int, seed: int, device: torch.device, silent: tuple[int, str] | None = None
) -> Iterator[tuple[int, Llama]]:
    """Train a model of two blocks on rows that repeat, drawn anew at every step; yields (step, model) on the way.

    Args:
        steps: how many, with AdamW at a rate of 0.0015 and betas of 0.9 and 0.98.
        every: after how many of them it is yielded, from step 0 on.
        seed: of the first weights and of the rows.
        device: where the model computes.
        silent: block (0, 1) and part that gives zeros in every step.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Llama(CONFIG).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.98))
    for step in range(steps + 1):
        if step % every == 0:
            yield step, model
        rows = repeated(32, 4, 2 * LONGEST + 1, generator).to(device)
        with silenced(model, silent):
            training_step(model, optimizer, rows[:, :-1], rows[:, 1:])
