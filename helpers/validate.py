"""Checks of what a caller passes: each raises a ValueError that says what was wrong, both values, and what to do."""

import functools
import operator
import sys

import torch


def shown(value) -> str:
    """repr(value) for an error; of a long one, which a file can hold, the beginning and the length."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} … ({len(text):,} characters)"


def as_whole(value) -> int | None:
    """The value as an int if it is a whole number of Python, numpy or PyTorch; None for a bool and all else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except (TypeError, RuntimeError):  # RuntimeError: a tensor without numbers
        return None


def require_whole(name, value, least, or_none=False) -> int | None:
    """The value as an int; ValueError unless it is a whole number >= least, or None where that is allowed."""
    if value is None and or_none:
        return None
    whole = as_whole(value)
    if whole is None or not least <= whole < 2**63:
        so = f"pass an int, not a {type(value).__name__}" if whole is None else f"pass {least} to 2**63 - 1"
        raise ValueError(f"{name}={shown(value)} must be a whole number >= {least}{', or None' * or_none}: {so}.")
    return whole


def require_number(name, value, in_range, range_text):
    """Raise ValueError unless value is a finite number for which in_range(value) holds."""
    largest = 2**63 - 1 if isinstance(value, int) else sys.float_info.max  # PyTorch takes no larger number
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= largest
    if not is_number or not in_range(value):
        raise ValueError(f"{name}={shown(value)} must be a finite number {range_text}.")


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


def require_rotation(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    """Raise ValueError unless x (..., T, h) holds floats, and cos and sin an angle for each pair; 1 is broadcast."""
    require_floats(x)
    for name, one in {"cos": cos, "sin": sin}.items():
        require_kind(name, one, torch.Tensor, f"angles.{name}(), of rope_angles")
    if cos.shape != sin.shape or (cos.shape[:-2].numel() > 1 and not cos.ndim == x.ndim == 4):
        has = f"x has shape {tuple(x.shape)}, cos {tuple(cos.shape)}, sin {tuple(sin.shape)}"
        raise ValueError(f"{has}: pass both as (T, h/2), or for rows of a batch as (B, 1, T, h/2), cos[:, None].")
    width, n_angles = x.shape[-1], cos.shape[-1]
    if width != 2 * n_angles:
        raise ValueError(f"x has head_dim {width}, but cos has {n_angles} angles: pass head_dim / 2, one per pair.")
    if min(x.ndim, cos.ndim) > 1 and x.shape[-2] != cos.shape[-2] and 1 not in (x.shape[-2], cos.shape[-2]):
        raise ValueError(f"x has {x.shape[-2]} tokens, but cos has {cos.shape[-2]}: pass the angles of these tokens.")


def require_attention(q: torch.Tensor, k: torch.Tensor, visible: torch.Tensor):
    """Raise ValueError unless q (..., H, T, h) and k (..., H, S, h) are floats of equal heads, visible bool."""
    require_kind("visible", visible, torch.Tensor, "causal_visible(T, S), or torch.ones(T, S).bool() for all keys")
    if not (q.is_floating_point() and k.is_floating_point()):
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, but both must hold fractions: pass q.float() and k.float().")
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
    if n_pad.is_meta or torch.compiler.is_compiling():
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
