"""Exercise 2 of notebook 01: inputs that tell the right norm from wrong ones, judged by what they show."""

import math
import numbers

import torch

from checks.base import TYPE_HINTS, Case, Exercise, Harness, Wrong, gain
from checks.compare import ROUNDING
from checks.judge import check_of
from checks.rmsnorm import mean_square, rms_norm

IN_PRACTICE = lambda x, w, eps: w * (x.float() * torch.rsqrt(mean_square(x) + eps)).to(x.dtype)  # noqa: E731
PROBED = {  # the norms that a probe has to tell from the right one, and what hides each
    "eps outside the root": (
        lambda x, w, eps: (x.float() / (mean_square(x).sqrt() + eps)).to(x.dtype) * w,
        "eps decides the result where it is not small beside the mean square, and 0 never does: in which token?"),
    "computed without float32": (
        lambda x, w, eps: x / ((x * x).mean(-1, keepdim=True) + eps).sqrt() * w,
        "It is right in float32, and bfloat16 is as wide. In which dtype does section 1.3 lose a token?"),
    "mean over dim=1": (
        lambda x, w, eps: (x.float() / (mean_square(x, 1) + eps).sqrt()).to(x.dtype) * w,
        "With two axes dim=1 is the last one, and right. Numbers all of one size have the same rms over any axis."),
    "an rms per half of D": (  # as on two devices that do not tell each other
        lambda x, w, e: torch.cat([rms_norm(*half, e) for half in zip(x.chunk(2, -1), w.chunk(2), strict=True)], -1),
        "The two halves of each of your tokens have about one rms."),
    "mean subtracted": (
        lambda x, w, eps: rms_norm(x.double() - x.double().mean(-1, keepdim=True), w, eps).to(x.dtype),
        "The mean of each of your tokens is about 0, so that subtracting it changes nothing."),
    "gain left out": (
        lambda x, w, eps: rms_norm(x, torch.ones_like(w), eps),
        "A gain of ones may as well be left out. Which other gain tells more?"),
    "gain 1 + weight": (
        lambda x, w, eps: rms_norm(x, 1 + w.double(), eps),
        "It adds 1 to each entry of weight: is weight so large that 1 is lost beside it?"),
}  # fmt: skip


def norm_probe():
    """Return one input (x, weight, eps) that tells the right norm from each of seven wrong norms."""
    tokens = torch.tensor([1e-3, 1.0, 300.0])[:, None] * torch.tensor([1.0, -2.0, 3.0, 4.0])
    return torch.stack([tokens, tokens.flip(1)]).half(), gain(4).half(), 1e-5


def _probed(function):
    """The number of wrong norms that a probe shows, if it shows all; else a Wrong that names those that stay hidden.

    A probe that is drawn is drawn thrice: one that finds all by luck alone is refused.
    """
    for seed in range(3 if function is not norm_probe else 1):
        torch.manual_seed(seed)
        found = _shown_by(*_as_probe(function()))
    return found


def _shown_by(x, weight, eps):
    want = rms_norm(x, weight, eps).double()
    tolerance = ROUNDING.get(x.dtype, 2e-5) * want.norm(dim=-1)

    def passes(norm, room=1 / PROBE.tolerance):  # the test that the inputs are for
        try:
            gap = (norm(x, weight, eps).double() - want).norm(dim=-1)
        except IndexError:
            return False  # an error is noticed too
        return bool((gap <= room * tolerance).all())  # false where it is nan

    if not want.any():
        hint = "Make x and weight other than 0."
        raise Wrong("the right norm gives only zeros here, and so do most wrong ones.", hint)
    if not want.isfinite().all() or not passes(IN_PRACTICE, PROBE.tolerance):
        hint = "Is eps 0 beside a token of zeros? Do x, its squares in float32 and the result fit their dtypes?"
        raise Wrong("on these inputs the right norm fails too.", hint)
    if hidden := [name for name, (norm, _) in PROBED.items() if passes(norm)]:
        shown = f"your probe shows {len(PROBED) - len(hidden)} of {len(PROBED)} wrong norms"
        raise Wrong(f"{shown}. Hidden: {', '.join(hidden)}.", f"{hidden[0]}: {PROBED[hidden[0]][1]}")
    return len(PROBED)


def _as_probe(answer):
    x, weight, eps = answer if isinstance(answer, tuple | list) and len(answer) == 3 else (answer, None, None)
    if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor):
        kind = "ndarray" if type(x).__name__ == "ndarray" else type(answer).__name__
        hint = TYPE_HINTS[kind] if kind in ("ndarray", "NoneType") else "Return what the norm takes: x, weight, eps"
        kinds = [type(one).__name__ for one in answer] if isinstance(answer, tuple | list) else [type(answer).__name__]
        raise Wrong(f"the result is {', '.join(kinds) or 'empty'}, expected three: x, weight, eps.", hint)
    if any(one.layout != torch.strided or one.device.type != "cpu" or one.is_nested for one in (x, weight)):
        raise Wrong("x or weight is no plain tensor on the CPU.", "Make both with torch.tensor(...), and .half().")
    if x.dtype != weight.dtype or x.dtype not in (*ROUNDING, torch.float32, torch.float64):
        hint = "Such as torch.tensor([1.0, 2.0]) for both; torch.tensor([1, 2]) holds whole numbers."
        raise Wrong(f"x is {x.dtype} and weight {weight.dtype}, expected floats of one dtype, 16 bits or more.", hint)
    if weight.shape != x.shape[-1:] or not x.shape or not x.numel():
        shapes = f"x has the shape {tuple(x.shape)} and weight {tuple(weight.shape)}"
        raise Wrong(f"{shapes}, expected (..., D) and (D,).", "There is one gain for each coordinate of a token.")
    eps = eps.item() if isinstance(eps, torch.Tensor) and eps.numel() == 1 else eps
    if not isinstance(eps, numbers.Real) or not 0 <= eps < math.inf:
        raise Wrong(f"eps is {repr(eps)[:40]}, expected a number from 0 up.", "A LLaMA has 1e-5, an older one 1e-6.")
    if not (x.isfinite().all() and weight.isfinite().all()):
        raise Wrong("x or weight holds inf or nan.", "float16 ends at 65504: is a number larger?")
    return x.detach(), weight.detach(), float(eps)


PROBE = Exercise(norm_probe, [Case("your inputs", ())], [], allow=("RMSNorm",), harness=Harness(_probed))
check_norm_probe = check_of(PROBE)
