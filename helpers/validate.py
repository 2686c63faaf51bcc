"""Checks of what a caller passes: each raises a ValueError that says what was wrong, both values, and what to do."""

import functools
import sys

import torch


def shown(value) -> str:
    """repr(value) for an error; of a long one, which a file can hold, the beginning and the length."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} … ({len(text):,} characters)"


def require_positive_int(name, value):
    """Raise ValueError unless value is a whole number >= 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={shown(value)} must be a whole number >= 1.")
    if value >= 2**63:
        raise ValueError(f"{name}={shown(value)} must be below 2**63: no tensor is larger.")


def require_number(name, value, in_range, range_text):
    """Raise ValueError unless value is a finite number for which in_range(value) holds."""
    largest = 2**63 - 1 if isinstance(value, int) else sys.float_info.max  # PyTorch takes no larger number
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= largest
    if not is_number or not in_range(value):
        raise ValueError(f"{name}={shown(value)} must be a finite number {range_text}.")


def require_seed(seed):
    """Raise ValueError unless seed is a whole number, or None for other draws each time."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or abs(seed) >= 2**63):
        raise ValueError(f"seed={seed!r} must be a whole number below 2**63, or None for other draws each time.")


def require_kind(name, value, kind, instead):
    """Raise ValueError unless value is of this class."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}={shown(value)} is a {type(value).__name__}: pass {instead}.")


LLAMA = "a model, such as load_checkpoint(folder) gives"
require_model = functools.partial(require_kind, "model", kind=torch.nn.Module, instead=LLAMA)


def require_floats(x: torch.Tensor, width: int | None = None):
    """Raise ValueError unless x is a tensor of floats, (..., width): whole numbers would cut off what is computed."""
    require_kind("x", x, torch.Tensor, "a tensor")
    if not x.is_floating_point():
        raise ValueError(f"x is {x.dtype}, which cannot hold fractions: pass x.float().")
    if width is not None and x.shape[-1:] != (width,):
        raise ValueError(f"x has shape {tuple(x.shape)}, but this norm has dim={width}: give it that of x.")


def require_rotation(x: torch.Tensor, cos: torch.Tensor):
    """Raise ValueError unless x (..., T, h) holds floats, and cos (..., T, h/2) an angle for each of its pairs."""
    require_floats(x)
    width, n_angles = x.shape[-1], cos.shape[-1]
    if width != 2 * n_angles:
        raise ValueError(f"x has head_dim {width}, but cos has {n_angles} angles: pass head_dim / 2, one per pair.")
    if x.ndim > 1 and cos.ndim > 1:
        n_tokens, n_turned = x.shape[-2], cos.shape[-2]
        if n_tokens != n_turned and 1 not in (n_tokens, n_turned):  # a size of 1 is broadcast
            raise ValueError(f"x has {n_tokens} tokens, but cos has {n_turned}: pass the angles of the same tokens.")


def require_attention(q: torch.Tensor, k: torch.Tensor, visible: torch.Tensor):
    """Raise ValueError unless q (..., H, T, h) and k (..., H, S, h) have the same heads, and visible is bool."""
    n_heads = {*q.shape[-3:-2], *k.shape[-3:-2]} - {1}  # q's and k's, if they have heads; a size of 1 is broadcast
    if q.shape[-1] != k.shape[-1] or len(n_heads) > 1:
        has = f"q has shape {tuple(q.shape)}, k {tuple(k.shape)}"
        raise ValueError(f"{has}: pass heads of one width, and a key head for each query head (repeat_kv).")
    if visible.dtype != torch.bool:
        raise ValueError(f"visible is {visible.dtype}: pass bool, True = may attend; of 0 and -inf, visible == 0.")


def require_tokens(tokens: torch.Tensor, vocab_size: int, device: torch.device | None = None):
    """Raise ValueError unless tokens are (B, T) token ids of this vocabulary, on this device if one is given."""
    require_kind("tokens", tokens, torch.Tensor, "a tensor, torch.tensor([[1, 2]]) for one text")
    if tokens.ndim != 2 or tokens.numel() == 0:
        raise ValueError(f"tokens have shape {tuple(tokens.shape)}: pass (batch, tokens), neither empty, for one text "
                         "tokens[None].")  # fmt: skip
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens are {tokens.dtype}: pass integer token ids, tokens.long().")
    if device is not None and tokens.device != device:
        raise ValueError(f"tokens are on {tokens.device}, the model on {device}: pass tokens.to({str(device)!r}).")
    if tokens.is_meta or torch.compiler.is_compiling():  # .item() would cut a compiled graph in two, or end an export
        return
    low, high = tokens.min().item(), tokens.max().item()
    if low < 0 or high >= vocab_size:
        allowed = f"vocab_size={vocab_size} allows 0 to {vocab_size - 1}"
        raise ValueError(f"token ids run from {low} to {high}, but {allowed}: use the tokenizer of this model.")


def require_padding(n_pad, tokens: torch.Tensor, longest: int) -> torch.Tensor:
    """n_pad as (B,) int64; ValueError unless every row of tokens (B, T) keeps one of `longest` for itself."""
    try:
        n_pad = torch.as_tensor(n_pad, device=tokens.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"n_pad={n_pad!r} is not a row of numbers: pass one whole number per row.") from error
    if n_pad.shape != tokens.shape[:1] or n_pad.dtype not in (torch.int64, torch.int32):
        has = f"n_pad has shape {tuple(n_pad.shape)} and dtype {n_pad.dtype}, the tokens {tuple(tokens.shape)}"
        raise ValueError(f"{has}: pass one whole number per row.")
    if torch.compiler.is_compiling():
        return n_pad.long()
    low, high = n_pad.min().item(), n_pad.max().item()
    if low < 0 or high >= longest:
        allowed = f"rows of at most {longest} tokens allow 0 to {longest - 1}"
        raise ValueError(f"n_pad runs from {low} to {high}, but {allowed}: leave every row a token of its own.")
    return n_pad.long()


def require_plain(model: torch.nn.Module, doing: str, instead: str):
    """Raise ValueError if the model is one of `beyond.families`, or a LLaMA that holds an edit or a bias."""
    edits = {type(part).__name__ for part in model.modules() if getattr(part, "is_edit", False)}
    edits |= {"biases" for part in model.modules() if isinstance(part, torch.nn.Linear) and part.bias is not None}
    family = getattr(model, "family", None)
    if family or edits:
        more = ", ".join(sorted(edits)) or "inverse frequencies and windows"
        has = f"this {family or 'llama'!r} model has more ({more}), which would be lost"
        raise ValueError(f"{doing} knows plain LLaMA only, and {has}: {instead}.")
