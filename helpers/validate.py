"""What the model refuses, and what it says then: what was wrong, both values, what to do."""

import math

import torch


def require_positive_int(name, value):
    """Raise ValueError unless value is a whole number >= 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number >= 1.")


def require_number(name, value, in_range, range_text):
    """Raise ValueError unless value is a finite number for which in_range(value) holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not in_range(value):
        raise ValueError(f"{name}={value!r} must be a finite number {range_text}.")


def require_tokens(tokens: torch.Tensor, vocab_size: int):
    """Raise ValueError unless tokens are (B, T) token ids of this vocabulary."""
    if tokens.ndim != 2 or tokens.numel() == 0:
        raise ValueError(f"tokens have shape {tuple(tokens.shape)}: pass (batch, tokens), neither empty.")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens are {tokens.dtype}: pass integer token ids, tokens.long().")
    if tokens.is_meta:
        return
    low, high = tokens.min().item(), tokens.max().item()
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"token ids run from {low} to {high}, but vocab_size={vocab_size} allows 0 to {vocab_size - 1}: "
            "use the tokenizer that belongs to this model."
        )


def require_padding(n_pad, tokens: torch.Tensor, longest: int) -> torch.Tensor:
    """n_pad as (B,) int64 beside tokens (B, T); ValueError unless rows of at most `longest` tokens keep a real one."""
    n_pad = torch.as_tensor(n_pad, device=tokens.device)
    if n_pad.shape != tokens.shape[:1] or n_pad.is_floating_point() or n_pad.dtype == torch.bool:
        raise ValueError(
            f"n_pad has shape {tuple(n_pad.shape)} and dtype {n_pad.dtype}, the tokens {tuple(tokens.shape)}: "
            "pass one whole number per row."
        )
    low, high = n_pad.min().item(), n_pad.max().item()
    if low < 0 or high >= longest:
        raise ValueError(
            f"n_pad runs from {low} to {high}, but rows of at most {longest} tokens allow 0 to {longest - 1}."
        )
    return n_pad.long()
