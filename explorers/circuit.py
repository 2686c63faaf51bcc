"""Two blocks that learn to repeat what they have read once (notebook 06: the film, and section 6.8)."""

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from helpers.model import Llama, LlamaConfig, attention_weights, causal_visible, repeat_kv
from helpers.train import training_step

CONFIG = LlamaConfig(
    vocab_size=32, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=128, max_seq_len=48, norm_eps=1e-5,
    rope_theta=10_000.0, tie_embeddings=False,
)  # fmt: skip
MAX_PERIOD = 24  # of the pieces that are repeated


def repeated(n_rows: int, shortest: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Rows that repeat a random piece of `shortest` to 24 tokens, (n_rows, length) int64."""
    periods = torch.randint(shortest, MAX_PERIOD + 1, (n_rows, 1), generator=generator)
    pieces = torch.randint(CONFIG.vocab_size, (n_rows, MAX_PERIOD), generator=generator)
    return pieces.gather(1, torch.arange(length) % periods)


def learn_to_repeat(
    steps: int, every: int, seed: int, device: torch.device, common: float = 0.0
) -> Iterator[tuple[int, Llama]]:
    """Train a model of two blocks on rows that repeat, drawn anew at every step; yields (step, model) on the way.

    Args:
        steps: how many, with AdamW at a rate of 0.0015 and betas of 0.9 and 0.98.
        every: after how many of them it is yielded, from step 0 on.
        seed: of the first weights and of the rows.
        device: where the model computes.
        common: length of one random vector, added to every letter's embedding before the training.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Llama(CONFIG)
        if common:
            model.tok_embeddings.weight.data += common * F.normalize(torch.randn(CONFIG.dim), dim=0)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.98))
    for step in range(steps + 1):
        if step % every == 0:
            yield step, model
        rows = repeated(32, 4, 2 * MAX_PERIOD + 1, generator).to(device)
        training_step(model, optimizer, rows[:, :-1], rows[:, 1:])


@torch.no_grad()
def letters(stages: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a training has put the letters, and what block 0 does with each pair of them.

    Args:
        stages: of a film, {step: (loss, weights)}; the last one is looked at.

    Returns:
        The letters' places along the first direction of the embedding table, (32,); and the weight of each head on the
        letter just before, (H, 32 letters before, 32 letters now), after 10 random ones.
    """
    *_, (_, trained) = stages.values()
    n, length, table = CONFIG.vocab_size, 12, trained["tok_embeddings.weight"]
    pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n)).repeat(8, 1)
    ahead = torch.randint(n, (len(pairs), length - 2), generator=torch.Generator().manual_seed(0))
    model = Llama(CONFIG)
    model.load_state_dict(trained)
    block, (cos, sin, _) = model.layers[0], model.rotation_and_mask(length)
    x = block.attention_norm(model.tok_embeddings(torch.cat([ahead, pairs], dim=1)))
    q, k, _ = block.attention.rotated_qkv(x, cos, sin)
    weights = attention_weights(q, repeat_kv(k, block.attention.n_rep), causal_visible(length, length))[:, :, -1, -2]
    place = table @ torch.linalg.svd(table).Vh[0]  # whose sign differs from machine to machine
    return place * place[0].sign(), weights.view(8, n, n, -1).mean(0).permute(2, 0, 1)
