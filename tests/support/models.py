"""The tolerance, tiny configs, and models whose weights are large enough to show a mistake."""

from dataclasses import replace

import torch

from helpers.model import Llama, LlamaConfig

# Of the largest magnitude expected. A float32 number is right to 6e-8 of itself; the thousands of sums of a tiny model
# add up to 8e-6, with noise in the last bit (tests/support/rounding.py). The smallest known mistake is 2.6e-4.
TOLERANCE = 1e-4
BFLOAT16 = 0.3  # 4e-3 of each number is rounded away: 0.02 to 0.04 after a tiny model

TINY = LlamaConfig(
    vocab_size=64, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=48,
    max_seq_len=64, norm_eps=1e-6, rope_theta=500_000.0, tie_embeddings=False,
)  # fmt: skip

SMALL = LlamaConfig(  # for the tokenizer of conftest.py; trained in a moment
    vocab_size=300, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, hidden_dim=32,
    max_seq_len=16, norm_eps=1e-5, rope_theta=10_000.0, tie_embeddings=True,
)  # fmt: skip

TINY_CONFIGS = {
    "mha": replace(TINY, n_kv_heads=4),
    "gqa": TINY,
    "mqa": replace(TINY, n_kv_heads=1),
    "tied": replace(TINY, tie_embeddings=True),
    "wide heads": replace(TINY, head_dim=12),  # 4 heads of 12 are wider than dim 32
    "linear": replace(TINY, rope_scaling={"type": "linear", "factor": 4.0}),
    # Llama 3.2's own constants (max_seq_len only has to exceed the original length; nothing of that size is made)
    "llama3": replace(TINY, rope_scaling={"type": "llama3", "factor": 32.0}, max_seq_len=131_072),
    # a trained length of 64: with head_dim 8 one pair is kept, one blended and two slowed
    "llama3 short": replace(
        TINY, rope_scaling={"type": "llama3", "factor": 32.0, "original_max_position_embeddings": 64}, max_seq_len=2048
    ),
}


def enlarge(model: torch.nn.Module, std: float = 0.3, seed: int = 0):
    """Give any model weights that hide nothing, in place: matrices of this std, gains between 0.5 and 1.5; return it.

    Biases and sinks, where a family has them, are drawn with std 1.

    Under the usual initialisation (std 0.02, gains 1) attention is flat and the logits are small: a norm whose gain
    is ignored then differs by exactly 0.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5, generator=draw)
            else:
                weight.normal_(std=1.0 if "bias" in name or "sinks" in name else std, generator=draw)
    return model


def make_model(config: LlamaConfig = TINY, std: float = 0.3) -> Llama:
    """A LLaMA whose weights hide nothing."""
    return enlarge(Llama(config), std)


def draw_tokens(batch_size: int, n_tokens: int, config: LlamaConfig = TINY) -> torch.Tensor:
    """Seeded token ids, (batch_size, n_tokens) int64."""
    return torch.randint(config.vocab_size, (batch_size, n_tokens), generator=torch.Generator().manual_seed(1))


def in_chunks(model: torch.nn.Module, tokens: torch.Tensor, sizes: tuple[int, ...], n_pad=None) -> torch.Tensor:
    """Logits (B, T, V) of tokens that a new cache takes in chunks of these sizes."""
    cache, logits = model.new_cache(*tokens.shape), []
    for chunk in tokens.split(sizes, dim=1):
        logits.append(model(chunk, cache, n_pad=n_pad))
        n_pad = None
    return torch.cat(logits, dim=1)


def assert_agree(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE, scale: float = 0.0):
    """The largest difference is at most tolerance times the largest magnitude expected, or scale if that is larger."""
    assert expected.isfinite().all(), "the expected values are not finite: nothing can be compared with them"
    scale = max(scale, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)
