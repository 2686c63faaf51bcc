"""How a learner's function is run: within its time, with what it prints caught and every setting put back."""

import contextlib
import dis
import inspect
import io
import os
import random
import re
import signal
import threading
import traceback
import warnings

import torch
from torch.overrides import TorchFunctionMode

from checks.base import GRAPH_CUT, NUMPY, Wrong, gradients_through
from checks.explain import shape_of

PRINTED = 2000  # characters of the function's own printing that are shown
HERE, TORCH = os.path.dirname(__file__), os.path.dirname(torch.__file__)
OURS = (HERE, os.path.join(os.path.dirname(HERE), "helpers"), TORCH)


class TimeUp(BaseException):
    """The function has used up its time. No learner's `except Exception` may catch this."""


class _Printed(io.StringIO):
    def write(self, text):
        return super().write(text[: max(0, PRINTED - self.tell())])


@contextlib.contextmanager
def undisturbed():
    """Start from torch's defaults, keep what is printed for the end, and put back what anybody has set."""
    dtype, state, printed = torch.get_default_dtype(), random.getstate(), _Printed()
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.device("cpu"),
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(printed),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)
        random.setstate(state)
        print(printed.getvalue(), end="")


def in_time(task, seconds):
    """Run the task, and stop it by TimeUp after so many seconds if this thread can have a timer."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return task()

    def ring(number, frame):
        if os.path.dirname(frame.f_code.co_filename) != HERE:  # never between two lines of a check
            raise TimeUp

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 0.01)  # again and again: a bare `except:` may catch the first
    try:
        return task()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


class _Calls(TorchFunctionMode):
    names = ()  # of torch's functions that are called

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names += (getattr(function, "__name__", ""),)
        return function(*args, **(kwargs or {}))


def call(function, case, exercise, watch):
    """The function's answer to a case (or the gradients it lets through), and what else is wrong with it."""
    inputs, names, calls = case.fresh_inputs(), exercise.parameters, _Calls()
    try:
        with calls if exercise.forbid else contextlib.nullcontext(), watch or contextlib.nullcontext():
            answer = function(*inputs)
        if answer is ...:
            raise NotImplementedError
        if case.gradients and isinstance(answer, torch.Tensor):
            answer = _gradients(answer, inputs, names)
    except (Exception, SystemExit) as error:
        if isinstance(error, Wrong) or _is_todo(error):
            raise
        raise _raised(error) from None
    for name in exercise.forbid:
        if name in calls.names:
            return answer, Wrong(f"the result is right, but it calls torch's {name}, which this exercise rules out.")
    for name, now, was in zip(names, inputs, case.inputs, strict=True):
        if _has_changed(now, was):
            hint = f"Work on a copy: dict({name})." if isinstance(was, dict) else IN_PLACE
            return answer, Wrong(f"the result is right, but the input {name} was changed in place.", hint)
    return answer, None


IN_PLACE = "Work on a copy, such as x.clone()."


def _has_changed(now, was):
    if isinstance(was, dict):
        return now.keys() != was.keys() or any(_has_changed(now[name], was[name]) for name in was)
    return isinstance(was, torch.Tensor) and (now.shape != was.shape or not torch.equal(now.detach(), was))


def _gradients(answer, inputs, names):
    asking = [name for name, value in zip(names, inputs, strict=True) if getattr(value, "requires_grad", False)]
    gradients = gradients_through(answer, inputs) if answer.requires_grad else [None] * len(asking)
    missed = [name for name, gradient in zip(asking, gradients, strict=True) if gradient is None]
    if missed:
        raise Wrong(f"the values are right, but no gradient reaches {' and '.join(missed)}.", GRAPH_CUT)
    return gradients


def is_empty(function):
    """Whether the body is nothing but a docstring, `pass`, `...` or `return None`."""
    if not inspect.isfunction(function):
        return False
    steps = [step for step in dis.get_instructions(function) if step.opname not in ("RESUME", "NOP")]
    names = ("LOAD_CONST", "RETURN_VALUE", "RETURN_CONST")
    return all(step.opname in names and step.argval in (None, ...) for step in steps)


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
    """An exception of the function as a Wrong: its kind, its text, the line it comes from, and the tensors there."""
    steps = zip(traceback.walk_tb(error.__traceback__), traceback.extract_tb(error.__traceback__), strict=True)
    steps = [(frame.f_locals, step.line or "") for (frame, _), step in steps if not step.filename.startswith(OURS)]
    found, line = steps[-1] if steps else ({}, "")
    there = {word: found.get(word) for word in re.findall(r"[^\W\d]\w*", line)}
    there = ", ".join(f"{word} {shape_of(value)}" for word, value in there.items() if isinstance(value, torch.Tensor))
    line = (f', in the line "{line.strip()[:100]}"' if line else "") + (f" with {there}" if there else "")
    words = " ".join(str(error).split()).partition(" Hint: ")[0]  # PyTorch's own hint looks like one of ours
    text = ": ".join(filter(None, (type(error).__name__, words[:200].rstrip("."))))
    hint = next((hint for pattern, hint in ERROR_HINTS if re.search(pattern, text, re.IGNORECASE)), "")
    return Wrong(f"it raises {text}{line}.", hint, pair=None)


ERROR_HINTS = [  # facts that the error itself establishes
    (r"SystemExit", "Your function should neither exit nor interrupt: return a result."),
    (r"view size is not compatible", "This tensor is not contiguous in memory: .reshape works where .view does not."),
    (r"leaf Variable|in-place operation\.$", "Does your function change its input in place? Work on a copy."),
    (r"modified by an inplace operation", "Does an in-place step overwrite what the gradient needs? Write y = y * ..."),
    (r"numpy|ScalarType", NUMPY),
    (r"TypeError.*NoneType", "Something here is None: an argument, or the answer of a function without return."),
    (r"only one element|to Scalar", "math's functions, float() and .item() take one number; torch's take many."),
    (r"return_types", "max, min, sort and topk along a dimension return two tensors: .values and .indices."),
    (r"Boolean value of Tensor", "Many entries have no one truth: torch.where takes each alone, .all() joins them."),
]
