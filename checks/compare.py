"""How answers are compared: up to rounding. Which known mistake a wrong one is, mistakes.py finds."""

import math
from functools import partial

import torch

from checks.base import TYPE_HINTS, Wrong

ROUNDING = {torch.float16: 5e-3, torch.bfloat16: 3e-2}  # relative to the largest entry; other floats 2e-5


def _apart(got, want, tolerance, scale_of):
    """Where two tensors differ by more than rounding, relative to scale_of's largest entry or to each entry."""
    finite = scale_of[scale_of.isfinite()]
    scale = finite.abs().max().item() if finite.numel() and finite.dtype != torch.bool else 0.0
    rounding = max(ROUNDING.get(dtype, 2e-5) for dtype in (got.dtype, want.dtype)) * tolerance
    near = partial(torch.isclose, got.double(), want.double(), equal_nan=True)
    return ~(near(rtol=0.0, atol=rounding * scale) | near(rtol=rounding, atol=0.0))


def agree(got, want, tolerance, scale_of):
    """Whether two answers are the same up to rounding; dtype does not count here, shapes do."""
    if isinstance(got, tuple) and isinstance(want, tuple) and len(got) == len(want) == len(scale_of):
        return all(agree(g, w, tolerance, s) for g, w, s in zip(got, want, scale_of, strict=True))
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return isinstance(got, int | float) and type(got) is type(want) and got == want
    if got.shape != want.shape or got.device != want.device or got.is_meta:  # a meta tensor has no numbers
        return got.shape == want.shape and got.device == want.device
    return not _apart(got, want, tolerance, scale_of).any()


def compare(got, want, exercise, parts, what="the result"):
    """Raise what is wrong with an answer, if anything is; `parts` names those of a tuple."""
    if isinstance(want, tuple):
        if not isinstance(got, tuple) or len(got) != len(want):
            found = "one tensor" if isinstance(got, torch.Tensor) else type(got).__name__
            found = f"a {found} of {len(got)}" if isinstance(got, tuple | list) else found
            hint = TYPE_HINTS.get(found, "Return all of them as a tuple, with commas: return first, second")
            raise Wrong(f"{what} is {found}, expected {len(want)} tensors.", hint)
        for place, (g, w) in enumerate(zip(got, want, strict=True)):
            compare(g, w, exercise, (), parts[place] if parts else f"result {place + 1}")
        return
    is_tensor = isinstance(want, torch.Tensor)
    if not isinstance(got, torch.Tensor) if is_tensor else type(got) is not type(want):
        name, kind = type(got).__name__, "a tensor" if is_tensor else "a whole number (int)"
        message, hint = f"{what} has the type {name}, expected {kind}.", TYPE_HINTS.get(name, "")
        if isinstance(got, tuple) and len(got) != 1:
            message, hint = f"{what} is a tuple of {len(got)}, expected {kind}.", "Return one result, not several."
        if isinstance(got, float) and not is_tensor:
            hint = "// divides into whole numbers, int(...) converts."
        raise Wrong(message, hint, pair=(got, want))
    if not is_tensor:
        if got != want:
            raise Wrong(f"{what} is {got}, expected {want}.", look_up=True, pair=None)
        return
    if got.layout != torch.strided or got.device != want.device:
        hint = "Return a plain tensor on the input's device."
        raise Wrong(f"{what} is a {got.layout} tensor on the device {got.device}.", hint)
    if got.shape != want.shape and got.ndim == want.ndim == 1:
        entries = "1 entry" if len(got) == 1 else f"{len(got)} entries"
        raise Wrong(f"{what} has {entries}, expected {len(want)}.", "", True, (got, want))
    if got.shape != want.shape:
        raise Wrong(f"{what} has the shape {tuple(got.shape)}, expected {tuple(want.shape)}.", "", True, (got, want))
    # A tensor without numbers, on meta, asks for the device, shape and dtype alone.
    apart = torch.zeros(()).bool() if want.is_meta else _apart(got.to(want.dtype), want, exercise.tolerance, want)
    if got.dtype != want.dtype:
        message, wrong = f"{what} has the dtype {got.dtype}, expected {want.dtype}.", bool(apart.any())
        hint = "" if wrong else f"The values are right: .to({want.dtype}) converts them. "
        is_widened = got.dtype == torch.float32 and want.is_floating_point() and "x" in exercise.parameters
        hint += "After x = x.float(), x.dtype is float32." if is_widened else ""
        raise Wrong(message, hint.strip(), wrong, (got, want) if wrong else ())
    if apart.any():
        # where they differ most; of truths and whole numbers where they first do
        by = (got.double() - want.double()).abs().nan_to_num(torch.inf) if want.is_floating_point() else apart.int()
        place = tuple(number.item() for number in torch.unravel_index(by.argmax(), by.shape))
        raise Wrong(_difference(got, want, place, what, exercise.harness.angles), "", True, (got, want), place)


def _difference(got, want, place, what, angles):
    """Where two tensors of one shape and dtype differ, in words; place is where they do most."""
    from checks.explain import digits_for, number  # only of a wrong answer

    if not want.is_floating_point():
        where = f"row {place[0]}, column {place[1]}" if len(place) == 2 else f"{what} at {list(place)}"
        return f"{where} is {got[place].item()}, expected {want[place].item()}."
    if not got.isfinite().all() and want.isfinite().all():
        kinds = (("nan", got.isnan()), ("inf", got.isinf()))
        shares = [f"{found.sum()} of {got.numel()} are {kind}" for kind, found in kinds if found.any()]
        return f"{what} holds nan or inf: {', '.join(shares)}."
    yours, right = got[place].item(), want[place].item()
    digits = digits_for((yours, right))
    in_degrees = [f" rad ({number(math.degrees(one))}°)" if angles else "" for one in (yours, right)]
    both = [number(one, digits) + more for one, more in zip((yours, right), in_degrees, strict=True)]
    gap, yours, right = number(abs(yours - right)), *both
    if want.numel() == 1:
        return f"{what} is {yours}, expected {right}."
    return f"{what} is off by up to {gap}: {yours} at {list(place)}, expected {right}."
