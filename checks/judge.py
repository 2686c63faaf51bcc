"""How an answer is judged: hand over your function; read whether it is right, and if not, what it seems to do instead.

    check_rms_norm(rms_norm)     # the function itself, without calling it

Every check compares the function with a slow, obvious specification on inputs chosen so that mistakes show, and looks
its answers up among the known mistakes; both are in the file that is named after the notebook. Checks run on the CPU
on fixed numbers, so that a verdict is the same on every machine, and need no other exercise to be solved.

A check raises nothing, whatever the function raises or returns, and puts back torch's and Python's seeds, the default
dtype and the gradient mode. It ends an endless loop after `seconds` if it runs in the main thread, as in a notebook,
and the system has a timer (Windows has none). Elsewhere, and in one long call such as `10**10**9`, the learner has the
stop button, whose KeyboardInterrupt a check lets through, and the grader has a time limit of its own.
"""

import contextlib
import dis
import html
import inspect
import io
import os
import random
import re
import signal
import threading
import traceback
import warnings
from dataclasses import dataclass

import torch

from checks.base import Exercise, Wrong, gradients_through

# ---------------------------------------------------------------------------------------------- results


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What a check found. It is true when the function passed, and shows itself as the last line of a cell.

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


# ---------------------------------------------------------------------------------- calling the function

PRINTED = 2000  # characters of the function's own printing that are shown


class _TimeUp(BaseException):
    """The function has used up its time. No learner's `except Exception` may catch this."""


class _Printed(io.StringIO):
    def write(self, text):
        return super().write(text[: max(0, PRINTED - self.tell())])


@contextlib.contextmanager
def _settings_put_back():
    """Start from torch's defaults, and put back afterwards what the learner or the function has set."""
    dtype, state = torch.get_default_dtype(), random.getstate()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
        random.setstate(state)


def _run(task, seconds):
    """Run the task, and stop it by _TimeUp after so many seconds if this thread can have a timer."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return task()

    def ring(number, frame):
        if frame.f_code.co_filename != __file__:  # never between two lines of this file, such as those below
            raise _TimeUp

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 0.01)  # it rings on: a bare `except:` may catch the first
    try:
        return task()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def _call(function, case, names):
    """The function's answer to a case (or the gradients it lets through), and the names of inputs that it changed."""
    inputs = case.fresh_inputs()
    try:
        answer = function(*inputs)
        if answer is ...:
            raise NotImplementedError
        if case.gradients and isinstance(answer, torch.Tensor):
            answer = _gradients(answer, inputs, names)
    except (Exception, SystemExit) as error:
        if isinstance(error, Wrong) or _is_todo(error):
            raise
        raise _raised(error) from None
    return answer, [name for name, now, was in zip(names, inputs, case.inputs, strict=True) if _differs(now, was)]


GRAPH_CUT = "Is the graph cut by .detach(), .item(), torch.tensor(...) or torch.no_grad()?"


def _gradients(answer, inputs, names):
    asking = [name for name, value in zip(names, inputs, strict=True) if getattr(value, "requires_grad", False)]
    gradients = gradients_through(answer, inputs) if answer.requires_grad else [None] * len(asking)
    missed = [name for name, gradient in zip(asking, gradients, strict=True) if gradient is None]
    if missed:
        raise Wrong(f"the values are right, but no gradient reaches {' and '.join(missed)}.", GRAPH_CUT)
    return gradients


def _differs(now, was):
    return isinstance(was, torch.Tensor) and (now.shape != was.shape or not torch.equal(now.detach(), was))


HERE, TORCH = os.path.dirname(__file__), os.path.dirname(torch.__file__)


def _is_todo(error):
    """Whether somebody wrote `raise NotImplementedError`; PyTorch raises it too, for an operation that it lacks."""
    if not isinstance(error, NotImplementedError):
        return False
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    code = last.tb_frame.f_code
    return dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS" and not code.co_filename.startswith(TORCH)


def _raised(error):
    """An exception of the function as a Wrong: its kind, its text and the line it comes from."""
    kind, text = type(error).__name__, " ".join(str(error).split())[:200]
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((HERE, TORCH))
    ]
    line = f', in the line "{frames[-1].line.strip()[:100]}"' if frames and frames[-1].line else ""
    hint = next((hint for pattern, hint in ERROR_HINTS if re.search(pattern, f"{kind}: {text}", re.IGNORECASE)), "")
    return Wrong(f"it raises {kind}: {text}{line}.", hint)


ERROR_HINTS = [
    (r"NotImplementedError", "PyTorch cannot take this step with such a tensor: print its dtype and its device."),
    (r"SystemExit", "Your function should neither exit nor interrupt: return a result."),
    (r"RecursionError", "Does your function call itself without end?"),
    (r"view size is not compatible", "The input need not be contiguous: does .reshape work where .view does not?"),
    (r"leaf Variable|in-place operation\.$", "Does your function change its input in place? Work on a copy."),
    (r"modified by an inplace operation", "Does an in-place step overwrite what the gradient needs? Write y = y * ..."),
    (r"tokens have shape", "The model takes (batch, tokens): does your argmax keep its dimension? Use keepdim=True."),
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
    (r"Dimension out of range|too many indices|number of subscripts|IndexError",
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


def _agree(got, want, tolerance, scale_of=None):
    """Whether two answers are the same up to rounding; dtype does not count here, shapes do."""
    scale_of = want if scale_of is None else scale_of
    if isinstance(got, tuple) and isinstance(want, tuple) and len(got) == len(want) == len(scale_of):
        return all(_agree(g, w, tolerance, s) for g, w, s in zip(got, want, scale_of, strict=True))
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return isinstance(got, int | float) and type(got) is type(want) and got == want
    if got.shape != want.shape or got.device != want.device:
        return False
    finite = scale_of[scale_of.isfinite()]
    scale = finite.abs().max().item() if finite.numel() and finite.dtype != torch.bool else 0.0
    room = max(ROUNDING.get(dtype, 2e-5) for dtype in (got.dtype, want.dtype)) * tolerance * scale
    return torch.allclose(got.double(), want.double(), rtol=0.0, atol=room, equal_nan=True)


def _compare(got, want, exercise, what="the result"):
    """Raise what is wrong with an answer, if anything is."""
    if isinstance(want, tuple):
        if not isinstance(got, tuple) or len(got) != len(want):
            found = f"a tuple of {len(got)}" if isinstance(got, tuple) else type(got).__name__
            found = "one tensor" if isinstance(got, torch.Tensor) else found
            hint = TYPE_HINTS.get(found, "Return all of them, with commas: return first, second")
            raise Wrong(f"{what} is {found}, expected {len(want)} tensors.", hint)
        for place, (g, w) in enumerate(zip(got, want, strict=True), start=1):
            _compare(g, w, exercise, f"result {place}")
        return
    is_tensor = isinstance(want, torch.Tensor)
    if not isinstance(got, torch.Tensor) if is_tensor else type(got) is not type(want):
        name, kind = type(got).__name__, "a tensor" if is_tensor else "a whole number (int)"
        hint = TYPE_HINTS.get(name, "Return a tensor." if is_tensor else "Round, then int(...).")
        raise Wrong(f"{what} has the type {name}, expected {kind}.", hint)
    if not is_tensor:
        if got != want:
            raise Wrong(f"{what} is {got}, expected {want}.", look_up=True)
        return
    if got.layout != torch.strided or got.device != want.device:
        hint = "Return a plain tensor on the input's device."
        raise Wrong(f"{what} is a {got.layout} tensor on the device {got.device}.", hint)
    if got.shape != want.shape:
        hint = "Is a keepdim=True, a transpose or a reshape missing (or one too many)?"
        raise Wrong(f"{what} has the shape {tuple(got.shape)}, expected {tuple(want.shape)}.", hint, look_up=True)
    if got.dtype not in ((torch.float32, torch.float64) if exercise.any_float else (want.dtype,)):
        hint = exercise.dtype_hint or f"Should the result have the input's dtype? Convert it back: .to({want.dtype})."
        message = f"{what} has the dtype {got.dtype}, expected {want.dtype}."
        raise Wrong(message, hint, look_up=not _agree(got, want, exercise.tolerance))
    if not _agree(got, want, exercise.tolerance):
        raise Wrong(_difference(got, want, what), look_up=True)


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


def _name_mistake(exercise, answers, failed):
    """The hint of the known mistake that gives the answer of the failed case and most of the others, or ""."""
    best_hint, best_count = "", 0
    for hint, theirs in exercise.mistaken:
        trios = list(zip(answers, theirs, exercise.wanted, strict=True))
        answer, other, want = trios[failed]
        if _agree(answer, other, exercise.tolerance, want) and not _agree(other, want, 0.3):
            count = sum(_agree(answer, other, exercise.tolerance, want) for answer, other, want in trios)
            if count > best_count:
                best_hint, best_count = hint, count
    return best_hint


# --------------------------------------------------------------------------------------------- judging

TODO = "Replace the body of the function, then run this cell again."
IN_PLACE = "Does your function change its input in place? Work on a copy: x = x.clone()."


def _is_empty(function):
    """Whether the body is nothing but a docstring, `pass`, `...` or `return None`."""
    if not inspect.isfunction(function):
        return False
    steps = [step for step in dis.get_instructions(function) if step.opname not in ("RESUME", "NOP")]
    names = ("LOAD_CONST", "RETURN_VALUE", "RETURN_CONST")
    return all(step.opname in names and step.argval in (None, ...) for step in steps)


def _answer(function, exercise, case, want):
    """The function's answer to one case, and what is wrong with it, or None."""
    got = None
    try:
        got, changed = _call(exercise.adapt(function), case, exercise.parameters)
        _compare(got, want, exercise)
        if changed:
            raise Wrong(f"the result is right, but the input {changed[0]} was changed in place.", IN_PLACE)
    except NotImplementedError:
        if case is exercise.cases[0]:
            raise
        return None, Wrong("it raises NotImplementedError.", "Is a branch still empty?")
    except Wrong as wrong:
        return got, wrong
    return got, None


def _judge(function, exercise, seconds):
    """Run every case, then name the mistake in the first that fails."""
    name, wanted, found = exercise.name, exercise.wanted, []  # the specification does not count against the time

    def run_all():
        for case, want in zip(exercise.cases, wanted, strict=True):
            found.append(_answer(function, exercise, case, want))

    try:
        _run(run_all, seconds)
    except NotImplementedError:
        return CheckResult(name, "todo", TODO)
    except _TimeUp:
        message = f"Case {exercise.cases[len(found)].label}: no answer after {seconds:g} seconds."
        return CheckResult(name, "failed", message, "Is there a loop that never ends?")
    answers, problems = zip(*found, strict=True)
    failed = next((place for place, problem in enumerate(problems) if problem), None)
    if failed is None:
        cases = f"{len(answers)} cases" if len(answers) > 1 else "the one case"
        return CheckResult(name, "passed", f"{_label(function)} agrees with the specification in {cases}.")
    case, problem = exercise.cases[failed], problems[failed]
    known = _name_mistake(exercise, answers, failed) if problem.look_up else ""
    general = GRAPH_CUT if case.gradients and problem.look_up else exercise.hint
    hint = known or problem.hint or case.hint or general
    return CheckResult(name, "failed", f"Case {case.label}: {problem.message}", hint)


def _label(function):
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "Your function"


def check_of(exercise: Exercise):
    """The public check of an exercise; it takes its name from the specification."""
    name = exercise.name

    def check(function, seconds: float = 10.0) -> CheckResult:
        if not callable(function):
            hint = f"Hand over the function without calling it: check_{name}({name})."
            return CheckResult(name, "failed", f"A function is expected, not {type(function).__name__}.", hint)
        if _is_empty(function):
            return CheckResult(name, "todo", TODO)
        printed = _Printed()
        try:
            with _settings_put_back(), warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(printed):
                return _judge(function, exercise, seconds)
        except Exception as error:  # an answer that cannot even be looked at, such as a nested tensor without a shape
            message = f"The answer cannot be compared ({type(error).__name__} while looking at it)."
            return CheckResult(name, "failed", message, "Return a plain result.")
        finally:
            print(printed.getvalue(), end="")

    check.exercise = exercise
    check.__name__ = check.__qualname__ = f"check_{name}"
    check.__doc__ = f"Check your `{name}({', '.join(exercise.parameters)})`. {exercise.specification.__doc__}"
    return check
