"""Checks: hand over your function; read whether it is right, and if not, what it seems to do instead.

    check_rms_norm(rms_norm)     # the function itself, without calling it

Every check compares the function with a slow, obvious specification on inputs chosen so that mistakes show, and looks
its answers up in a table of known mistakes (both in `helpers/exercises`). Checks run on the CPU on fixed numbers, so
that a verdict is the same on every machine, and need no other exercise to be solved.

What a check promises: it never raises and ends within its time limit, whatever the function does or returns, and it
puts the global state that it found back (seeds, default dtype, changed names in torch, environment, ...). The
function runs in a thread of its own: this ends an endless loop on every system, outside the main thread too, and
tells a KeyboardInterrupt that the function raises (a wrong answer) from the stop button (which stops the check).
What no thread can survive is code that ends the process or never lets Python run again: `os._exit`, `10**10**9`.
"""

import builtins
import contextlib
import ctypes
import dis
import html
import io
import math
import os
import random
import re
import sys
import threading
import traceback
import types
import warnings
from dataclasses import dataclass

import torch

from checks import base as parts
from checks import full_model, generate, gqa, rmsnorm, rope, scaling_out, swiglu, train
from checks.base import Exercise, gradients_through

# ---------------------------------------------------------------------------------------------- results


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What a check found; true when the function passed; shows itself as the last line of a cell.

    Example:
        >>> CheckResult("silu", "failed", "Case (4,): the shape is (3,), expected (4,).", "Is an entry lost?")
        silu: not yet. Case (4,): the shape is (3,), expected (4,).
        Hint: Is an entry lost?
    """

    name: str  # of the exercise
    status: str  # "todo" | "passed" | "failed"
    message: str  # what was seen
    hint: str = ""  # the likely mistake, as a question

    def __bool__(self):
        return self.status == "passed"

    def __repr__(self):
        hint = f"\nHint: {self.hint}" if self.hint else ""
        return f"{self.name}: {self._in_words()}. {self.message}{hint}"

    def _repr_html_(self):
        hint = f"<br><em>Hint:</em> {html.escape(self.hint)}" if self.hint else ""
        head = f"<strong>{html.escape(self.name)}: {self._in_words()}.</strong>"
        return f"<div>{head} {html.escape(self.message)}{hint}</div>"

    def _in_words(self):
        return {"todo": "not attempted yet", "passed": "passed", "failed": "not yet"}[self.status]


class Problem(Exception):
    """Why an answer is wrong: what was seen, a hint if it is certain, and whether known mistakes may explain it."""

    def __init__(self, message, hint="", look_up=False):
        super().__init__(message)
        self.message, self.hint, self.look_up = message, hint, look_up


# ---------------------------------------------------------------------- running code that may do anything

TORCH = os.path.dirname(torch.__file__)
PRINTED = 2000  # characters of the function's own printing that are shown
STATE = [  # (how to ask, how to put back), for everything that a function could leave changed
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, torch.set_default_device),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (lambda: bytes(torch.get_rng_state().numpy()), lambda old: torch.set_rng_state(torch.ByteTensor([*old]))),
    (random.getstate, random.setstate),
]
WORLD = [  # the same outside of torch, looked at once per check because it takes longer
    (os.getcwd, os.chdir),
    (lambda: dict(os.environ), lambda old: (os.environ.clear(), os.environ.update(old))),
    (sys.getrecursionlimit, sys.setrecursionlimit),
]
EXERCISES = (rmsnorm, rope, swiglu, gqa, full_model, train, generate, scaling_out, parts)
PATCHABLE = (builtins, math, torch, torch.nn.functional, *EXERCISES, sys.modules[__name__])


class _TimeUp(SystemExit):
    """Thrown into a thread whose time is up; as a SystemExit it dies there without a word."""


class _Printed(io.StringIO):
    def write(self, text):
        return super().write(text[: max(0, PRINTED - self.tell())])


@contextlib.contextmanager
def _state_put_back(state):
    """Start from torch's defaults; afterwards put back settings, and names in torch, math and builtins."""
    settings = [(ask, put_back, ask()) for ask, put_back in state]
    names = [(module, dict(vars(module))) for module in PATCHABLE]
    methods = dict(vars(torch.Tensor))
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    try:
        yield
    finally:
        for module, before in names:
            module.__dict__.update(before)
        for name in [name for name, now in vars(torch.Tensor).items() if now is not methods.get(name)]:
            setattr(torch.Tensor, name, methods[name]) if name in methods else delattr(torch.Tensor, name)
        for ask, put_back, before in settings:
            with contextlib.suppress(OSError):  # a folder that was deleted
                if ask() == before:
                    continue
            put_back(before)


def _run(task, seconds):
    """What the task returns, or None when time is up. It runs in a thread of its own, which is stopped at the end."""
    outcome = []

    def work():
        with contextlib.suppress(_TimeUp):
            outcome.append(task())

    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        thread.join(seconds)
    finally:  # done, or time is up, or the stop button
        for _ in range(40):
            if not thread.is_alive():
                break
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TimeUp))
            thread.join(0.05)
    return outcome[0] if outcome else None


def _raised(error):
    """The Problem that an exception of the function is: its kind, its text and the line it comes from."""
    if isinstance(error, parts.Wrong):
        return Problem(error.message, error.hint)
    kind, text = type(error).__name__, " ".join(str(error).split())[:200]
    skip = (__file__, os.path.dirname(parts.__file__), TORCH)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(skip)]
    line = f', in the line "{frames[-1].line.strip()[:100]}"' if frames and frames[-1].line else ""
    hint = next((hint for pattern, hint in ERROR_HINTS if re.search(pattern, f"{kind}: {text}", re.IGNORECASE)), "")
    return Problem(f"it raises {kind}: {text}{line}.", hint)


def _is_todo(error):
    """Whether somebody wrote `raise NotImplementedError`; PyTorch says it of an operation that it lacks."""
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    code = last.tb_frame.f_code
    is_written = dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS" and not code.co_filename.startswith(TORCH)
    return isinstance(error, NotImplementedError) and is_written


ERROR_HINTS = [
    (r"NotImplementedError", "PyTorch cannot take this step with such a tensor: print its dtype and its device."),
    (r"KeyboardInterrupt|SystemExit", "Your function should neither exit nor interrupt: return a result."),
    (r"RecursionError", "Does your function call itself without end?"),
    (r"view size is not compatible", "The input need not be contiguous: does .reshape work where .view does not?"),
    (r"leaf Variable|in-place operation\.$", "Does your function change its input in place? Work on a copy."),
    (r"modified by an inplace operation", "Does an in-place step overwrite what the gradient needs? Write y = y * ..."),
    (r"numpy|ScalarType", "Do you stay in torch? numpy loses the gradient and knows no bfloat16."),
    (r"without overflow", "Is your hiding number too large for float16? Use float('-inf')."),
    (r"(same|different) dtype|scalar type|have the same", "Do two tensors differ in dtype? Convert one: .to(x.dtype)."),
    (r"cannot assign .* as parameter", "A module wants a Parameter: assign the other module's own, without .data."),
    (r"TypeError.*NoneType", "What is None here? A function without return gives None; an argument may be None, too."),
    (r"TypeError.*(positional|keyword) argument", "Does your function take the arguments in the text, in that order?"),
    (r"mat1 and mat2|size of tensor|shapes? .*(invalid|mismatch)|size mismatch|Expected size|must match|broadcast",
     "Two shapes do not fit: print both. Is a transpose (or a keepdim=True) missing?"),
    (r"Boolean value of Tensor", "A tensor has many answers, `if` needs one: choose entry by entry, with torch.where."),
    (r"values to unpack", "Does your code expect a fixed number of dimensions, or take apart the wrong one? Count from "
     "the end: chunk and unbind take the first unless told dim=-1."),
    (r"out of bounds", "Do you index with a number that is not an index, or past the end? Print it, and the shape."),
    (r"Dimension out of range|too many indices|IndexError",
     "Does your code assume a fixed number of dimensions? Count from the end: dim=-1."),
    (r"NameError", "Is a name misspelt, or an import missing?"),
]  # fmt: skip


# -------------------------------------------------------------------------------------------- comparing

ROUNDING = {torch.float16: 5e-3, torch.bfloat16: 3e-2}  # relative to the largest entry; other floats 2e-5
TYPE_HINTS = {
    "NoneType": 'Does your function end with "return"? Printing shows a value but does not hand it back.',
    "ndarray": "Do you stay in torch? numpy loses the gradient and knows no bfloat16.",
    "list": "Can you join the list into one tensor, with torch.stack or torch.cat?",
    "tuple": "Is there a comma too many after return? One result is expected.",
    "generator": "Do you use yield where return is meant?",
    "coroutine": "Is the function declared async? A plain def is expected.",
}


@dataclass
class Foreign:
    """Stands for a returned object that is not looked at any further."""

    type_name: str


def _plain(value):
    """The value without the powers of its class: tensors and tuples of tensors; numbers as they are."""
    if issubclass(type(value), torch.Tensor):
        plain = value if type(value) is torch.Tensor else torch.Tensor.as_subclass(value, torch.Tensor)  # not if sparse
        return plain.detach()
    if type(value) in (int, float):
        return value
    if type(value) in (tuple, list) and value and all(issubclass(type(part), torch.Tensor) for part in value):
        return tuple(map(_plain, value)) if type(value) is tuple else Foreign("list")
    return Foreign(type(value).__name__)


def _call(function, case, names):
    """The function's answer to a case (or the gradients it lets through), and the names of inputs that it changed."""
    inputs = case.fresh_inputs()
    try:
        with _state_put_back(STATE):
            answer = function(*inputs)
        if answer is Ellipsis:
            raise NotImplementedError
    except BaseException as error:
        if isinstance(error, _TimeUp) or _is_todo(error):
            raise
        raise _raised(error) from None
    try:
        with torch._C.DisableTorchFunctionSubclass():
            plain = _plain(answer)
            if case.gradients and isinstance(plain, torch.Tensor):
                if plain.numel() > 10**6:  # a right one has a few dozen
                    raise Problem(f"the result has the shape {tuple(plain.shape)}.", "Print the shape of each step.")
                if not answer.requires_grad:
                    raise Problem("the values are right, but no gradient reaches the input.", GRAPH_CUT)
                plain = gradients_through(answer, inputs)
                asking = (name for name, value in zip(names, inputs, strict=True) if getattr(value, "requires_grad", 0))
                missed = [name for name, gradient in zip(asking, plain, strict=True) if gradient is None]
                if missed:
                    raise Problem(f"the values are right, but no gradient reaches {' and '.join(missed)}.", GRAPH_CUT)
    except RuntimeError as error:  # of the backward pass, or from a tensor of an unusual kind
        raise _raised(error) from None
    return plain, [name for name, now, was in zip(names, inputs, case.inputs, strict=True) if _differs(now, was)]


GRAPH_CUT = "Is the graph cut by .detach(), .item(), torch.tensor(...) or torch.no_grad()?"


def _differs(now, was):
    return isinstance(was, torch.Tensor) and (now.shape != was.shape or not torch.equal(now.detach(), was))


def _agree(got, want, tolerance, scale_of=None):
    """Whether two answers are the same up to rounding; dtype does not count here, shapes do."""
    scale_of = want if scale_of is None else scale_of
    if isinstance(got, tuple) and isinstance(want, tuple) and len(got) == len(want) == len(scale_of):
        return all(_agree(g, w, tolerance, s) for g, w, s in zip(got, want, scale_of, strict=True))
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return type(got) is type(want) and not isinstance(got, tuple) and got == want
    if got.shape != want.shape or got.device != want.device:
        return False
    finite = scale_of[scale_of.isfinite()]
    scale = finite.abs().max().item() if finite.numel() and finite.dtype != torch.bool else 0.0
    room = max(ROUNDING.get(dtype, 2e-5) for dtype in (got.dtype, want.dtype)) * tolerance * scale
    return torch.allclose(got.double(), want.double(), rtol=0.0, atol=room, equal_nan=True)


def _compare(got, want, exercise, what="the result"):
    """Raise the Problem that the answer has, if any."""
    if isinstance(want, tuple):
        if not isinstance(got, tuple) or len(got) != len(want):
            found = getattr(got, "type_name", f"{len(got)} tensors" if isinstance(got, tuple) else "one tensor")
            hint = TYPE_HINTS.get(found, "Return all of them, with commas: return first, second")
            raise Problem(f"{what} is {found}, expected {len(want)} tensors.", hint)
        for place, (g, w) in enumerate(zip(got, want, strict=True), start=1):
            _compare(g, w, exercise, f"result {place}")
        return
    kind = "a tensor" if isinstance(want, torch.Tensor) else "a whole number (int)"
    if type(got) is not type(want):
        name = got.type_name if isinstance(got, Foreign) else type(got).__name__
        hint = TYPE_HINTS.get(name, f"Return {kind}." if isinstance(want, torch.Tensor) else "Round, then int(...).")
        raise Problem(f"{what} has the type {name}, expected {kind}.", hint)
    if not isinstance(want, torch.Tensor):
        if got != want:
            raise Problem(f"{what} is {got}, expected {want}.", look_up=True)
        return
    if got.layout != torch.strided or got.device != want.device:
        hint = "Return a plain tensor on the input's device."
        raise Problem(f"{what} is a {got.layout} tensor on the device {got.device}.", hint)
    if got.shape != want.shape:
        hint = "Is a keepdim=True, a transpose or a reshape missing (or one too many)?"
        raise Problem(f"{what} has the shape {tuple(got.shape)}, expected {tuple(want.shape)}.", hint, True)
    allowed = (torch.float32, torch.float64) if exercise.any_float else (want.dtype,)
    if got.dtype not in allowed:
        hint = exercise.dtype_hint or f"Should the result have the input's dtype? Convert it back: .to({want.dtype})."
        message = f"{what} has the dtype {got.dtype}, expected {want.dtype}."
        raise Problem(message, hint, not _agree(got, want, exercise.tolerance))
    if not _agree(got, want, exercise.tolerance):
        raise Problem(_difference(got, want, what), "", True)


def _difference(got, want, what):
    """Where two tensors of one shape and dtype differ, in words."""
    if want.dtype == torch.bool:
        row, column = (got != want).nonzero()[0].tolist()
        return f"row {row}, column {column} is {bool(got[row, column])}, expected {bool(want[row, column])}."
    if not got.isfinite().all() and want.isfinite().all():
        return f"{what} holds nan or inf."
    largest = (got.double() - want.double()).abs().nan_to_num().max().item()
    scale = want.double().abs().max().item()
    return f"{what} is off by up to {largest:.1g} (its largest entry should be {scale:.1g})."


# --------------------------------------------------------------------------------------------- judging


def _judge(function, exercise: Exercise, notes: dict) -> CheckResult:
    """Run every case, then name the mistake in the first that fails; notes["case"] is the one that is running."""
    name = exercise.name
    if not callable(function):
        hint = f"Hand over the function without calling it: check_{name}({name})."
        return CheckResult(name, "failed", f"A function is expected, not {type(function).__name__}.", hint)
    if _is_empty(function):
        return CheckResult(name, "todo", TODO)
    answers, failed = [], None  # failed: the first case that fails, and its problem
    for case, want in zip(exercise.cases, exercise.wanted, strict=True):
        notes["case"], got = case.label, None
        try:
            got, changed = _call(exercise.adapt(function), case, exercise.parameters)
            _compare(got, want, exercise)
            if changed:
                raise Problem(f"the result is right, but the input {changed[0]} was changed in place.", IN_PLACE)
        except NotImplementedError:
            if case is exercise.cases[0]:
                return CheckResult(name, "todo", TODO)
            failed = failed or (case, Problem("it raises NotImplementedError.", "Is a branch still empty?"))
        except Problem as problem:
            failed = failed or (case, problem)
        answers.append(got)
    if not failed:
        cases = f"{len(answers)} cases" if len(answers) > 1 else "the one case"
        return CheckResult(name, "passed", f"{_label(function)} agrees with the specification in {cases}.")
    case, problem = failed
    known = exercise.name_mistake(answers, exercise.cases.index(case), _agree) if problem.look_up else ""
    hint = known or problem.hint or case.hint or (GRAPH_CUT if case.gradients and problem.look_up else exercise.hint)
    return CheckResult(name, "failed", f"Case {case.label}: {problem.message}", hint)


TODO = "Replace the body of the function, then run this cell again."
IN_PLACE = "Does your function change its input in place? Work on a copy: x = x.clone()."


def _is_empty(function):
    """Whether the body is nothing but a docstring, `pass` or `...`."""
    if type(function) is not types.FunctionType:
        return False
    steps = [step for step in dis.get_instructions(function) if step.opname not in ("RESUME", "NOP")]
    return all(step.opname in RETURNS and step.argval in (None, ...) for step in steps)


RETURNS = ("LOAD_CONST", "RETURN_VALUE", "RETURN_CONST")  # what Python makes of `pass`, `...` and `return None`


def _label(function):
    name = function.__name__ if type(function) is types.FunctionType else ""
    return name if name.isidentifier() else "Your function"


def _judge_whatever_happens(function, exercise, notes):
    """As `_judge`; an answer that cannot even be looked at is a wrong one."""
    try:
        return _judge(function, exercise, notes)
    except _TimeUp:
        raise
    except BaseException as error:
        message = f"The answer cannot be compared ({type(error).__name__} while looking at it)."
        return CheckResult(exercise.name, "failed", message, "Return a plain result.")


def check_of(exercise: Exercise):
    """The public check of an exercise; it takes its name from the specification."""

    def check(function, seconds: float = 10.0) -> CheckResult:
        printed, notes = _Printed(), {"case": "of the call"}
        with _state_put_back(STATE + WORLD), warnings.catch_warnings(), contextlib.redirect_stderr(_Printed()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(printed):
                _run(lambda: exercise.wanted, 60)  # the specification first, before the function can change anything
                result = _run(lambda: _judge_whatever_happens(function, exercise, notes), seconds)
        if printed.getvalue():
            print(printed.getvalue())
        message = f"Case {notes['case']}: no answer after {seconds:g} seconds."
        if result is not None:
            return result
        return CheckResult(exercise.name, "failed", message, "Is there a loop that never ends?")

    check.__name__ = check.__qualname__ = f"check_{exercise.name}"
    check.__doc__ = f"Check your `{exercise.name}({', '.join(exercise.parameters)})`. {exercise.text}"
    return check
