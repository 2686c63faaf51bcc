"""How a learner's function is run on all cases: within its time, with its printing caught and all settings put back."""

import contextlib
import dis
import inspect
import io
import os
import random
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode

from checks.base import GRAPH_CUT, NUMPY, ONLY_GRADIENTS, Wrong, gradients_through, largest
from checks.compare import ROUNDING, compare
from checks.explain import shape_of

PRINTED = 2000  # characters of the function's own printing that are shown
HERE, TORCH = os.path.dirname(__file__), os.path.dirname(torch.__file__)
OURS = (*(os.path.join(os.path.dirname(HERE), room) for room in ("checks", "helpers", "explorers", "beyond")), TORCH)


class TimeUp(BaseException):
    """The function has used up its time, in words. No learner's `except Exception` may catch this."""


class NewKernel(Exception):
    """The function needs a name that a cell above binds, and no such cell was run: no case says anything of it."""


class _Printed(io.StringIO):
    def write(self, text):
        return super().write(text[: max(0, PRINTED - self.tell())])


@contextlib.contextmanager
def _full_precision():
    """Matrix products of float32 in float32; "medium" would round their inputs to bfloat16 on some processors."""
    switch = getattr(torch.backends.mkldnn, "matmul", None)
    if switch is None:  # torch before 2.9; later the older call raises once the newer switch was used
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
    else:
        precision, switch.fp32_precision = switch.fp32_precision, "ieee"
    try:
        yield
    finally:
        if switch is None:
            torch.set_float32_matmul_precision(precision)
        else:
            switch.fp32_precision = precision


@contextlib.contextmanager
def undisturbed():
    """Start from torch's defaults, keep what is printed for the end, and put back what anybody has set."""
    dtype, state, printed, threads = torch.get_default_dtype(), random.getstate(), _Printed(), torch.get_num_threads()
    device = torch.get_default_device()
    here = torch.device("cpu") if device.type != "cpu" else contextlib.nullcontext()  # the first slows each call
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)  # several wait for each other on a busy machine, and the wait counts as work
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),
            torch.enable_grad(),
            here,
            _full_precision(),
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(printed),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)
        if device.type == "cpu":
            torch.set_default_device(None)  # cpu, said aloud, slows each call
        elif torch.get_default_device() != device:
            torch.set_default_device(device)
        torch.set_num_threads(threads)
        random.setstate(state)
        print(printed.getvalue(), end="")


PATIENCE = 6  # times the processor's seconds: so long may a function take by the clock, asleep or on a busy machine


def in_time(task, seconds):
    """Run the task, and stop it by TimeUp if this thread can have a timer.

    Seconds are counted on the processor, so that a machine which others use, too, refuses no right answer.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return task()
    start, busy = time.monotonic(), time.thread_time()

    def ring(number, frame):
        worked, passed = time.thread_time() - busy, time.monotonic() - start
        if os.path.dirname(frame.f_code.co_filename) == HERE:  # never between two lines of a check
            return
        if worked >= seconds:
            raise TimeUp(f"no answer after {seconds:g} seconds on the processor.")
        if passed >= PATIENCE * seconds:
            raise TimeUp(f"no answer after {PATIENCE * seconds:g} seconds, {worked:.1f} of them on the processor.")

    before = signal.signal(signal.SIGALRM, ring)
    # in the place of no handler: an alarm that another thread took is handled late, when the timer is off
    handler = before if callable(before) else lambda *_: None
    # again and again: the time may not be used up, and a bare `except:` may catch the first TimeUp
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        return task()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


TODO = "Replace the body of the function, then run this cell again."
ENDLESS = "Is there a loop that never ends, or far too long? Or does it sleep, or wait for something such as input?"


@dataclass
class Outcome:
    """What one case showed: the answer, what is wrong with it, and what watched the stages of a whole model."""

    got: object = None
    problem: Wrong | None = None
    watch: object = None


def run_cases(function, exercise, seconds):
    """The outcome of every case; and what is to be said at once, (status, message) or with a hint, or None."""
    if is_empty(function):
        return [], ("todo", TODO)
    wanted, outcomes = exercise.wanted, []  # the specification does not count against the time

    def run_all():
        for case, want in zip(exercise.cases, wanted, strict=True):
            wrong = sum(outcome.problem is not None for outcome in outcomes)
            if wrong == exercise.harness.max_failures or (wrong and case.stochastic):
                return
            outcomes.append(Outcome())
            _run(function, exercise, case, want, outcomes[-1])

    try:
        in_time(run_all, seconds)
    except NotImplementedError:
        return [], ("todo", TODO)
    except NewKernel as new:
        return [], ("failed", str(new), "Click this cell, Run → Run All Above Selected Cell, then run it again.")
    except TimeUp as up:
        outcomes[-1].problem = Wrong(str(up), ENDLESS)
    if not any(outcome.problem for outcome in outcomes):
        from checks.borrowed import borrowed  # only a right answer is read

        if theirs := borrowed(function, exercise.allow):
            return outcomes, ("failed", f"The result is right, but it calls {theirs}: write it yourself.")
    return outcomes, None


def _run(function, exercise, case, want, outcome):
    """Find out what one case shows; a stub raises NotImplementedError in the first."""
    parts = [f"the gradient for {exercise.parameters[place]}" for place in case.asking()] or exercise.harness.parts
    outcome.watch = watch = exercise.harness.stages and exercise.harness.stages()
    try:
        outcome.got, problem = call(function, case, exercise, watch)
        compare(outcome.got, want, exercise, parts)
        for other in case.beside():
            also, beside = call(function, other, exercise, None)
            problem = problem or beside
            for one, right in zip(also, exercise._wanted(other), strict=True) if other.gradients and not beside else ():
                room = 4 * ROUNDING.get(other.inputs[case.asking()[0]].dtype, 5e-3) * largest(right)
                if not largest(one.float() - right.float()) <= room:
                    where = f"in {one.dtype}" if one.dtype != torch.float32 else "of one input alone"
                    raise Wrong(f"the gradients are right in float32, but not {where}.", ONLY_GRADIENTS)
            made = [one for one in (also if isinstance(also, tuple) else [also]) if isinstance(one, torch.Tensor)]
            if made and getattr(other.inputs[0], "is_meta", False) and not all(one.is_meta for one in made):
                raise Wrong("the result stays on the CPU, also if the inputs are on another device.", DEVICE)
        outcome.problem, outcome.watch = problem, None
    except NotImplementedError:
        if case is exercise.cases[0]:
            raise
        outcome.problem, outcome.watch = Wrong("it raises NotImplementedError.", "Is a branch still empty?"), None
    except Wrong as problem:
        outcome.problem = problem


class _Calls(TorchFunctionMode):
    names = ()  # of torch's functions that are called

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names += (getattr(function, "__name__", ""),)
        return function(*args, **(kwargs or {}))


def call(function, case, exercise, watch):
    """The function's answer to a case (or the gradients it lets through), and what else is wrong with it."""
    inputs, names, calls, ours = case.fresh_inputs(), exercise.parameters, _Calls(), _parts_of_the_model()
    settings = torch.is_grad_enabled(), torch.get_default_dtype()

    def from_learner(*inputs, **named):
        if (answer := function(*inputs, **named)) is ...:  # a hole, and no refusal
            raise NotImplementedError(...)
        return answer

    try:
        with calls if exercise.forbid else contextlib.nullcontext(), watch or contextlib.nullcontext():
            answer = exercise.harness.run(from_learner, *inputs)
        if inspect.iscoroutine(answer):
            answer.close()  # Python would warn of it, at any later moment
        if case.gradients and isinstance(answer, torch.Tensor):
            answer = _gradients(answer, inputs, names, case)
    except (Exception, SystemExit) as error:
        if any(getattr(one, "is_meta", False) for one in inputs) and not re.search(OF_DEVICES, str(error)):
            return None, None  # there are no numbers on meta, so a print or an assert may fail: only devices count
        if isinstance(error, Wrong) or _is_todo(error):
            raise
        raise raised(error, exercise.hints) from None
    finally:
        changed, left = _put_back(ours), settings != (torch.is_grad_enabled(), torch.get_default_dtype())
        torch.set_grad_enabled(settings[0]), torch.set_default_dtype(settings[1])
    if changed:
        return answer, Wrong(f"the result is right, but the course's {changed[0]} is another one afterwards.", LEFT)
    if left:
        return answer, Wrong("the result is right, but torch's gradients or default dtype stay changed.", SETTINGS)
    if called := [name for name in exercise.forbid if name in calls.names]:
        return answer, Wrong(f"the result is right, but it calls torch's {called[0]}, which this exercise rules out.")
    for place, (name, now, was) in enumerate(zip(names, inputs, case.inputs, strict=False)):
        if _has_changed(now, was) or getattr(now, "requires_grad", False) != (place in case.asking()):
            is_deep = isinstance(was, dict) and any(isinstance(one, dict) for one in was.values())
            copied = f"copy.deepcopy({name})" if is_deep else f"{type(was).__name__}({name})"
            copy = f"copy: {copied}" if isinstance(was, dict | list) else f"copy, such as {name}.clone()"
            return answer, Wrong(f"the result is right, but input {name} was changed in place.", f"Work on a {copy}.")
    return answer, None


OF_DEVICES = "same device|expected device|out of meta"
DEVICE = "A new tensor is on the CPU unless told otherwise: torch.zeros(..., device=x.device), if x is the input."
SETTINGS = "`with torch.no_grad():` ends with its block. A tensor gets its dtype alone: torch.zeros(..., dtype=...)."
LEFT = "`with replaced(part, forward):` puts back at its end what it replaced; `edits.patch` changes one module."


def _parts_of_the_model(modules=("helpers.model", "beyond.families.edits")):
    """What these modules and their classes hold, {(owner, name): function or class}, if they are loaded."""
    owners = [sys.modules[name] for name in modules if name in sys.modules]
    owners += [one for room in owners for one in vars(room).values() if getattr(one, "__module__", 0) == room.__name__]
    return {(owner, name): one for owner in owners for name, one in vars(owner).items() if callable(one)}


def _put_back(before):
    """Put back the parts that a function has replaced or added, and name them."""
    now = _parts_of_the_model({owner.__name__ for owner, _ in before if inspect.ismodule(owner)})
    changed = [key for key in now | before if before.get(key) is not now.get(key)]
    for owner, name in changed:
        setattr(owner, name, before[owner, name]) if (owner, name) in before else delattr(owner, name)
    return [f"{owner.__name__}.{name}" for owner, name in changed]


def _has_changed(now, was):
    if isinstance(was, dict):
        return now.keys() != was.keys() or any(_has_changed(now[name], was[name]) for name in was)
    if isinstance(was, list):
        return len(now) != len(was) or any(map(_has_changed, now, was))
    if not isinstance(was, torch.Tensor):
        return isinstance(was, int | float | str) and (type(now) is not type(was) or now != was)
    if not isinstance(now, torch.Tensor) or (now.shape, now.dtype) != (was.shape, was.dtype):
        return True
    if was.is_meta:  # without numbers
        return False
    return bool(((now != was) & ((now == now) | (was == was))).any())  # nan is not equal to itself


def _gradients(answer, inputs, names, case):
    asking = [names[place] for place in case.asking()]
    gradients = gradients_through(answer, inputs) if answer.requires_grad else [None] * len(asking)
    if missed := [name for name, gradient in zip(asking, gradients, strict=True) if gradient is None]:
        where = "" if inputs[0].dtype == torch.float32 else f" in {inputs[0].dtype}"
        where += ", if it alone asks for one" if isinstance(case.gradients, tuple) else ""
        raise Wrong(f"the values are right, but no gradient reaches {' and '.join(missed)}{where}.", GRAPH_CUT)
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


def raised(error, own):
    """An exception of the function as a Wrong: its kind, its text, the line it comes from, and the tensors there."""
    steps = zip(traceback.walk_tb(error.__traceback__), traceback.extract_tb(error.__traceback__), strict=True)
    steps = [(frame, step.line or "") for (frame, _), step in steps if not step.filename.startswith(OURS)]
    frame, line = steps[-1] if steps else (None, "")
    found, names = (frame.f_locals, frame.f_globals) if frame else ({}, {})  # a notebook alone has `In`, its cells
    missing = error.name if type(error) is NameError and len(names.get("In", ())) > 1 else None
    if missing and ("torch" not in names or missing in ("math", "nn", "F")):  # which the cells above bind
        return NewKernel(f"`{missing}` is not defined: this kernel is new.")
    there = {word: found.get(word) for word in re.findall(r"[^\W\d]\w*", line)}
    there = ", ".join(f"{word} {shape_of(value)}" for word, value in there.items() if isinstance(value, torch.Tensor))
    line = (f', in the line "{line.strip()[:100]}"' if line else "") + (f" with {there}" if there else "")
    words = " ".join(str(error).split()).partition(" Hint: ")[0]  # PyTorch's own hint looks like one of ours
    text = ": ".join(filter(None, (type(error).__name__, words[:200].rstrip("."))))
    whole = f"{type(error).__name__}: {words}"
    fitting = [hint for words, hint in (*own.items(), *ERROR_HINTS) if re.search(words, whole, re.IGNORECASE)]
    return Wrong(f"it raises {text}{line}.", fitting[0] if fitting else "", pair=None)


ERROR_HINTS = [  # facts that the error itself establishes
    (r"SystemExit", "Your function should neither exit nor interrupt: return a result."),
    (OF_DEVICES, DEVICE),
    (r"view size is not compatible", "This tensor is not contiguous in memory: .reshape works where .view does not."),
    (r"leaf Variable|in-place operation\.$", "Does your function change its input in place? Work on a copy."),
    (r"modified by an inplace operation", "Does an in-place step overwrite what the gradient needs? Write y = y * ..."),
    (r"does not require grad", GRAPH_CUT),
    (r"Expected target size", "cross_entropy takes the vocabulary in dimension 1: flatten(0, 1) both, or logits.mT."),
    (r"numpy|ScalarType", NUMPY),
    (r"TypeError.*NoneType", "Something here is None: an argument, or the answer of a function without return."),
    (r"only one element|to Scalar", "math's functions, float() and .item() take one number; torch's take many."),
    (r"dtype|expected scalar type", "Two dtypes meet: torch.zeros(...) makes float32, torch.zeros_like(x) that of x. "
     "A bool times a Python number is float32, too: .masked_fill keeps the dtype."),
    (r"return_types", "max, min, sort and topk along a dimension return two tensors: .values and .indices."),
    (r"Boolean value of Tensor", "Many entries have no one truth: torch.where takes each alone, .all() joins them."),
]  # fmt: skip
