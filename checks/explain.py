"""How a failing case is shown: the smallest, in numbers that can be worked out by hand."""

import re

import torch

from checks.base import ONLY_GRADIENTS

LARGEST_DRAWN = 12  # rows and columns of a mask that is drawn
MAX_NUMBERS, MAX_IDS = 12, 40  # so many numbers are shown in full, and so many whole numbers in one row


def number(value, digits=3):
    """A number in so many digits; a large one whole rather than with an exponent."""
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e7 else f"{value:.{digits}g}"


def shape_of(tensor):
    """Shape of a tensor, and its dtype where that is not the usual one."""
    usual = tensor.dtype in (torch.float32, torch.int64, torch.bool)
    return str(tuple(tensor.shape)) + ("" if usual else str(tensor.dtype).replace("torch.", " "))


def _is_short(tensor):
    return 0 < tensor.numel() <= (MAX_IDS if tensor.ndim == 1 and tensor.dtype == torch.int64 else MAX_NUMBERS)


def shown(value, digits=4, place=None):
    """A value in few digits; of a tensor with many numbers its shape, and what is at a place."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.layout == torch.strided and _is_short(value):
            return (shape_of(value).partition(")")[2] + " " + shown(value.tolist(), digits)).lstrip()
        there = value[place].float() if place and value.is_floating_point() else place and value[place]
        return f"shape {shape_of(value)}" + (f", at {list(place)} {shown(there, digits)}" if place else "")
    if isinstance(value, list):
        return f"[{', '.join(shown(one, digits) for one in value)}]"
    if isinstance(value, float):
        return number(value, digits)
    return repr(value)[:60] if isinstance(value, int | str | None) else type(value).__name__


def digits_for(pair, place=None):
    """So many digits that the two of a pair can be told apart, if they are of one kind."""
    if len({type(value) for value in pair}) == 2:
        return 4
    for digits in (4, 6, 8):
        texts = {re.sub(r"^[a-z]\w+ ", "", shown(value, digits, place)) for value in pair}  # without the dtype
        if len(texts) == 2:
            return digits
    return 4


def show(exercise, outcomes, failing, hint):
    """What is wrong in the smallest of these failing cases, in words and numbers; and the given hint, or its own."""
    if exercise.harness.stages and not hint:
        return _in_stages(exercise, outcomes, failing)
    place = failing[0]
    if outcomes[place].problem.look_up:
        wrong = [place for place in failing if outcomes[place].problem.look_up]
        place = min(wrong, key=lambda place: size_of(exercise.cases[place], exercise.wanted[place]))
    case, problem = exercise.cases[place], outcomes[place].problem
    message, hint = f"Case {case.label}: {problem.message}", hint or problem.hint
    if problem.pair == ():
        return message, hint
    if not hint:
        message += f" Failing cases: {len(failing)} of {len(outcomes)}." if len(outcomes) > 1 else ""
        special = [place for place, other in enumerate(exercise.cases) if other.hint == case.hint]
        hint = case.hint if failing == special and len(special) < len(outcomes) else ""
        gradients = [place for place, other in enumerate(exercise.cases) if other.gradients]
        hint = hint or (ONLY_GRADIENTS if failing == gradients and len(failing) < len(outcomes) else "")
    return message + in_numbers(exercise, case, problem), hint


def _in_stages(exercise, outcomes, failing):
    right = {case.label for case, outcome in zip(exercise.cases, outcomes, strict=False) if not outcome.problem}
    found = []
    for place in failing:
        case, outcome = exercise.cases[place], outcomes[place]
        said = 0, outcome.problem.message, outcome.problem.hint
        if outcome.watch:
            said = outcome.watch.explain(case, outcome.got, outcome.problem, right)
        found.append((*said, case))
    _, message, hint, case = min(found, key=lambda one: one[0])
    return f"Case {case.label}: {message}", hint


def in_numbers(exercise, case, problem):
    """Lines that show the arguments of a case, the answer and what is expected."""
    place, pair = problem.place, problem.pair or ()
    rows = pair[1].shape[:-1] if place else None  # an argument with the same rows shows the row of the place
    lines = []
    for name, value in zip(exercise.parameters, case.inputs, strict=False):
        lines.append((name, shown(value, 4, place[:-1] if rows == getattr(value, "shape", ())[:-1] else None)))
    if case.gradients:
        lines.append(("of", "(y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)).sum(), y is the result"))
    digits = digits_for(pair, place)
    if mask := _drawn(*pair, place) if place and len(pair) == 2 else []:
        return _in_lines([*lines, *mask])
    lines += [(whose, shown(value, digits, place)) for whose, value in zip(("yours", "expected"), pair, strict=False)]
    return _in_lines(lines)


def _drawn(yours, expected, place):
    """Two masks beside each other, the rows of the text and head of a place; nothing of other or large ones."""
    if expected.dtype != torch.bool or expected.ndim < 2 or max(expected.shape[-2:]) > LARGEST_DRAWN:
        return []
    rows = zip(yours[place[:-2]].tolist(), expected[place[:-2]].tolist(), strict=True)
    of = f", of {list(place[:-2])}" if place[:-2] else ""
    drawn = [("", "   ".join("".join("□■"[seen] for seen in row) for row in pair)) for pair in rows]
    return [("", f"yours, then expected{of}: ■ may attend, □ is hidden"), *drawn]


def _in_lines(lines):
    width = max((len(label) for label, _ in lines), default=0)
    return "".join(f"\n  {label:<{width}}  {text}" for label, text in lines)


def is_half(case, want):
    """Whether a case computes in half precision."""
    half = torch.float16, torch.bfloat16
    return any(value.dtype in half for value in _values(case, want) if isinstance(value, torch.Tensor))


def size_of(case, want):
    """What makes a case large, by weight: no numbers, gradients, half precision, many, something special, digits."""
    tensors = [value for value in _values(case, want) if isinstance(value, torch.Tensor)]
    is_cut = any(tensor.numel() and not _is_short(tensor) for tensor in tensors)
    is_blank = any(tensor.is_meta for tensor in tensors)
    return is_blank, bool(case.gradients), is_half(case, want), is_cut, bool(case.hint), sum(map(_digits, case.inputs))


def _values(case, want):
    return (*case.inputs, *(want if isinstance(want, tuple) else (want,)))


def _digits(value):
    if isinstance(value, dict | list | tuple):
        return sum(map(_digits, value.values() if isinstance(value, dict) else value))
    if isinstance(value, int | float | torch.Tensor) and not getattr(value, "is_meta", False):
        return (1 + (1 + torch.as_tensor(value).double().abs()).log10()).sum().item()
    return 1
