"""How an answer is judged: hand over your function; read whether it is right, and if not, what it seems to do instead.

    check_rms_norm(rms_norm)     # the function itself, without calling it

Every check compares the function with a slow, obvious specification on inputs chosen so that mistakes show, and looks
its answers up among the known mistakes; both are in the file that is named after the notebook. What none of
them explains is not guessed at, but shown: the smallest failing case, in numbers. Checks run on the CPU on fixed
numbers, so that a verdict is the same on every machine, and need no other exercise to be solved.

A check raises nothing, whatever the function raises or returns, and puts back torch's and Python's seeds, the default
dtype and the gradient mode. It ends an endless loop after `seconds` if it runs in the main thread, as in a notebook,
and the system has a timer (Windows has none). Elsewhere, and in one long call such as `10**10**9`, the learner has the
stop button, whose KeyboardInterrupt a check lets through, and the grader has a time limit of its own.
"""

import contextlib
import dis
import functools
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
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode

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
    message: str  # what was seen, and below it, in lines of their own, numbers to work out by hand
    hint: str = ""  # the mistake, as a question or a fact

    def __bool__(self):
        return self.status == "passed"

    def __repr__(self):
        hint = f"\nHint: {self.hint}" if self.hint else ""
        return f"{self.name}: {self._in_words()}. {self.message}{hint}"

    def _repr_html_(self):
        hint = f"<br><em>Hint:</em> {html.escape(self.hint)}" if self.hint else ""
        head = f"<strong>{html.escape(self.name)}: {self._in_words()}.</strong>"
        seen, _, numbers = self.message.partition("\n")
        numbers = f"<pre>{html.escape(numbers)}</pre>" if numbers else ""
        return f"<div>{head} {html.escape(seen)}{numbers}{hint}</div>"

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


class _Watch(TorchFunctionMode):
    names = ()  # of torch's functions that are called

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names += (getattr(function, "__name__", ""),)
        return function(*args, **(kwargs or {}))


def _call(function, case, exercise, stages):
    """The function's answer to a case (or the gradients it lets through), and what else is wrong with it."""
    inputs, names, watch = case.fresh_inputs(), exercise.parameters, _Watch()
    try:
        with watch if exercise.forbid else contextlib.nullcontext(), stages or contextlib.nullcontext():
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
        if name in watch.names:
            return answer, Wrong(f"the result is right, but it calls torch's {name}, which this exercise rules out.")
    for name, now, was in zip(names, inputs, case.inputs, strict=True):
        if _has_changed(now, was):
            hint = f"Work on a copy: dict({name})." if isinstance(was, dict) else IN_PLACE
            return answer, Wrong(f"the result is right, but the input {name} was changed in place.", hint)
    return answer, None


def _has_changed(now, was):
    if isinstance(was, dict):
        return now.keys() != was.keys() or any(_has_changed(now[name], was[name]) for name in was)
    return isinstance(was, torch.Tensor) and (now.shape != was.shape or not torch.equal(now.detach(), was))


IN_PLACE = "Work on a copy, such as x.clone()."
GRAPH_CUT = "Is the graph cut by .detach(), .item(), torch.tensor(...), nn.Parameter(...) or torch.no_grad()?"


def _gradients(answer, inputs, names):
    asking = [name for name, value in zip(names, inputs, strict=True) if getattr(value, "requires_grad", False)]
    gradients = gradients_through(answer, inputs) if answer.requires_grad else [None] * len(asking)
    missed = [name for name, gradient in zip(asking, gradients, strict=True) if gradient is None]
    if missed:
        raise Wrong(f"the values are right, but no gradient reaches {' and '.join(missed)}.", GRAPH_CUT)
    return gradients


HERE, TORCH = os.path.dirname(__file__), os.path.dirname(torch.__file__)
OURS = (HERE, os.path.join(os.path.dirname(HERE), "helpers"), TORCH)


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
    there = ", ".join(f"{word} {_kind(value)}" for word, value in there.items() if isinstance(value, torch.Tensor))
    line = (f', in the line "{line.strip()[:100]}"' if line else "") + (f" with {there}" if there else "")
    text = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split())[:200].rstrip("."))))
    hint = next((hint for pattern, hint in ERROR_HINTS if re.search(pattern, text, re.IGNORECASE)), "")
    return Wrong(f"it raises {text}{line}.", hint, pair=None)


ERROR_HINTS = [  # facts that the error itself establishes
    (r"SystemExit", "Your function should neither exit nor interrupt: return a result."),
    (r"view size is not compatible", "This tensor is not contiguous in memory: .reshape works where .view does not."),
    (r"leaf Variable|in-place operation\.$", "Does your function change its input in place? Work on a copy."),
    (r"modified by an inplace operation", "Does an in-place step overwrite what the gradient needs? Write y = y * ..."),
    (r"numpy|ScalarType", "Do you stay in torch? numpy loses the gradient and knows no bfloat16."),
    (r"TypeError.*NoneType", "Something here is None: an argument, or the answer of a function without return."),
    (r"only one element|to Scalar", "math's functions, float() and .item() take one number; torch's take many."),
    (r"return_types", "max, min, sort and topk along a dimension return two tensors: .values and .indices."),
    (r"Boolean value of Tensor", "Many entries have no one truth: torch.where takes each alone, .all() joins them."),
]  # fmt: skip


# -------------------------------------------------------------------------------------------- comparing

ROUNDING = {torch.float16: 5e-3, torch.bfloat16: 3e-2}  # relative to the largest entry; other floats 2e-5
FEW = 12  # so many numbers are shown in full
TYPE_HINTS = {
    "NoneType": 'A function that ends without "return" gives None: printing shows a value but does not hand it back.',
    "ndarray": "Do you stay in torch? numpy loses the gradient and knows no bfloat16.",
    "tuple": "One result is expected: a comma too many after return makes it a tuple.",
    "generator": "A generator comes from yield, or from ( ... for ... ): return a result.",
}


def _apart(got, want, tolerance, scale_of):
    """Where two tensors of one shape differ by more than rounding, which is relative to the largest entry."""
    finite = scale_of[scale_of.isfinite()]
    scale = finite.abs().max().item() if finite.numel() and finite.dtype != torch.bool else 0.0
    room = max(ROUNDING.get(dtype, 2e-5) for dtype in (got.dtype, want.dtype)) * tolerance * scale
    return ~torch.isclose(got.double(), want.double(), rtol=0.0, atol=room, equal_nan=True)


def _agree(got, want, tolerance, scale_of=None):
    """Whether two answers are the same up to rounding; dtype does not count here, shapes do."""
    scale_of = want if scale_of is None else scale_of
    if isinstance(got, tuple) and isinstance(want, tuple) and len(got) == len(want) == len(scale_of):
        return all(_agree(g, w, tolerance, s) for g, w, s in zip(got, want, scale_of, strict=True))
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return isinstance(got, int | float) and type(got) is type(want) and got == want
    return got.shape == want.shape and got.device == want.device and not _apart(got, want, tolerance, scale_of).any()


def _compare(got, want, exercise, parts, what="the result"):
    """Raise what is wrong with an answer, if anything is; `parts` names those of a tuple."""
    if isinstance(want, tuple):
        if not isinstance(got, tuple) or len(got) != len(want):
            found = f"a tuple of {len(got)}" if isinstance(got, tuple) else type(got).__name__
            found = "one tensor" if isinstance(got, torch.Tensor) else found
            hint = TYPE_HINTS.get(found, "Return all of them, with commas: return first, second")
            raise Wrong(f"{what} is {found}, expected {len(want)} tensors.", hint)
        for place, (g, w) in enumerate(zip(got, want, strict=True)):
            _compare(g, w, exercise, (), parts[place] if parts else f"result {place + 1}")
        return
    is_tensor = isinstance(want, torch.Tensor)
    if not isinstance(got, torch.Tensor) if is_tensor else type(got) is not type(want):
        name, kind = type(got).__name__, "a tensor" if is_tensor else "a whole number (int)"
        message = f"{what} has the type {name}, expected {kind}."
        raise Wrong(message, TYPE_HINTS.get(name, ""), pair=(got, want))
    if not is_tensor:
        if got != want:
            raise Wrong(f"{what} is {got}, expected {want}.", look_up=True, pair=None)
        return
    if got.layout != torch.strided or got.device != want.device:
        hint = "Return a plain tensor on the input's device."
        raise Wrong(f"{what} is a {got.layout} tensor on the device {got.device}.", hint)
    if got.shape != want.shape:
        raise Wrong(f"{what} has the shape {tuple(got.shape)}, expected {tuple(want.shape)}.", "", True, (got, want))
    apart = _apart(got.to(want.dtype), want, exercise.tolerance, want).nonzero().tolist()
    if got.dtype != want.dtype:
        hint = exercise.dtype_hint or f"The values are right: .to({want.dtype}) converts them." * (not apart)
        pair = (got, want) if apart else ()
        raise Wrong(f"{what} has the dtype {got.dtype}, expected {want.dtype}.", hint, bool(apart), pair)
    if apart:
        raise Wrong(_difference(got, want, tuple(apart[0]), what), "", True, (got, want), tuple(apart[0]))


def _difference(got, want, place, what):
    """Where two tensors of one shape and dtype differ, in words; place is the first that does."""
    if not want.is_floating_point():
        where = f"row {place[0]}, column {place[1]}" if len(place) == 2 else f"{what} at {list(place)}"
        return f"{where} is {got[place].item()}, expected {want[place].item()}."
    if not got.isfinite().all() and want.isfinite().all():
        return f"{what} holds nan or inf."
    largest = (got.double() - want.double()).abs().nan_to_num().max().item()
    return f"{what} is off by up to {largest:.1g} (its largest entry should be {want.double().abs().max().item():.1g})."


def _kind(tensor):
    """Shape of a tensor, and its dtype where that is not the usual one."""
    usual = tensor.dtype in (torch.float32, torch.int64, torch.bool)
    return str(tuple(tensor.shape)) + ("" if usual else str(tensor.dtype).replace("torch.", " "))


def _shown(value, digits=4, place=None):
    """A value in few digits; of a tensor with many numbers its shape, and what is at a place."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.layout == torch.strided and 0 < value.numel() <= FEW:
            return (_kind(value).partition(")")[2] + " " + _shown(value.tolist(), digits)).lstrip()
        there = value[place].float() if place and value.is_floating_point() else place and value[place]
        return f"shape {_kind(value)}" + (f", at {list(place)} {_shown(there, digits)}" if place else "")
    if isinstance(value, list):
        return f"[{', '.join(_shown(one, digits) for one in value)}]"
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 and digits == 4 else f"{value:.{digits}g}"
    return repr(value)[:60] if isinstance(value, int | str | None) else type(value).__name__


def _in_numbers(exercise, case, problem):
    """Lines that show the arguments of a case, the answer and what is expected."""
    place, pair = problem.place, problem.pair or ()
    seen = {d: {re.sub(r"^[a-z]\w+ ", "", _shown(value, d, place)) for value in pair} for d in (4, 6, 8)}
    digits = next((d for d in seen if len(seen[d]) == 2), 4)  # so many that the two can be told apart
    rows = pair[1].shape[:-1] if place else None  # an argument with the same rows shows the row of the place
    lines = []
    for name, value in zip(exercise.parameters, case.inputs, strict=True):
        lines.append((name, _shown(value, 4, place[:-1] if rows == getattr(value, "shape", ())[:-1] else None)))
    if case.gradients:
        lines.append(("of", "(y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)).sum(), y is the result"))
    lines += [(whose, _shown(value, digits, place)) for whose, value in zip(("yours", "expected"), pair, strict=False)]
    width = max((len(label) for label, _ in lines), default=0)
    return "".join(f"\n  {label:<{width}}  {text}" for label, text in lines)


def _size(case, want):
    """What makes a case large: gradients, half precision, something special, numbers that are not shown in full."""
    values = (*case.inputs, *want) if isinstance(want, tuple) else (*case.inputs, want)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    many = sum(tensor.numel() for tensor in tensors if tensor.numel() > FEW)
    return bool(case.gradients), any(tensor.dtype in ROUNDING for tensor in tensors), bool(case.hint), many


def _name_mistake(exercise, answers, failing):
    """The hint of the known mistake that gives the first wrong answer, and else yours or a right one; or ""."""
    # nan, inf and half precision (unless nothing else fails) contradict none: they may have another cause
    half = [_size(*pair)[1] for pair in zip(exercise.cases, exercise.wanted, strict=True)]
    only_half, tolerance = all(half[place] for place in failing), exercise.tolerance
    clear = [place for place, answer in enumerate(answers) if _is_finite(answer) and (only_half or not half[place])]
    best_hint, most, first = "", 0, failing[0]
    for hint, theirs in exercise.mistaken:
        if not _agree(answers[first], theirs[first], tolerance, exercise.wanted[first]):
            continue
        same = [_agree(*trio[:2], tolerance, trio[2]) for trio in zip(answers, theirs, exercise.wanted, strict=True)]
        sound = [one is None or _agree(one, want, tolerance) for one, want in zip(theirs, exercise.wanted, strict=True)]
        explained = [place for place in failing if same[place] and not sound[place]]
        if len(explained) > most and explained[0] == first and all(same[place] or sound[place] for place in clear):
            best_hint, most = hint, len(explained)
    return best_hint


def _is_finite(answer):
    parts = answer if isinstance(answer, tuple) else (answer,)
    return all(isinstance(part, int) or (isinstance(part, torch.Tensor) and part.isfinite().all()) for part in parts)


# --------------------------------------------------------------------------------------------- judging

TODO = "Replace the body of the function, then run this cell again."


def _is_empty(function):
    """Whether the body is nothing but a docstring, `pass`, `...` or `return None`."""
    if not inspect.isfunction(function):
        return False
    steps = [step for step in dis.get_instructions(function) if step.opname not in ("RESUME", "NOP")]
    names = ("LOAD_CONST", "RETURN_VALUE", "RETURN_CONST")
    return all(step.opname in names and step.argval in (None, ...) for step in steps)


def _answer(function, exercise, case, want):
    """The function's answer to one case, and what is wrong with it, or None."""
    got, parts, stages = None, exercise.parts, exercise.stages and exercise.stages()
    if case.gradients:
        floats = [value.is_floating_point() if isinstance(value, torch.Tensor) else False for value in case.inputs]
        parts = [f"the gradient for {name}" for name, asks in zip(exercise.parameters, floats, strict=True) if asks]
    try:
        got, problem = _call(exercise.adapt(function), case, exercise, stages)
        _compare(got, want, exercise, parts)
        return got, problem
    except NotImplementedError:
        if case is exercise.cases[0]:
            raise
        return None, Wrong("it raises NotImplementedError.", "Is a branch still empty?")
    except Wrong as wrong:
        wrong.in_stages = stages and functools.partial(stages.explain, case, got, wrong)  # if it is shown
        return got, wrong
    except _TimeUp as time_up:
        time_up.case, time_up.stages = case, stages
        raise


def _judge(function, exercise, seconds):
    """Run every case, then name the mistake in the first that fails, or show the smallest in numbers."""
    name, wanted, found = exercise.name, exercise.wanted, []  # the specification does not count against the time

    def run_all():
        for case, want in zip(exercise.cases, wanted, strict=True):
            found.append(_answer(function, exercise, case, want))

    try:
        _run(run_all, seconds)
    except NotImplementedError:
        return CheckResult(name, "todo", TODO)
    except _TimeUp as stopped:
        problem = Wrong(f"no answer after {seconds:g} seconds.")
        message = stopped.stages.explain(stopped.case, None, problem)[1] if stopped.stages else problem.message
        return CheckResult(
            name, "failed", f"Case {stopped.case.label}: {message}", "Is there a loop that never ends, or far too long?"
        )
    answers, problems = zip(*found, strict=True)
    failing = [place for place, problem in enumerate(problems) if problem]
    if not failing:
        cases = f"{len(answers)} cases" if len(answers) > 1 else "the one case"
        return CheckResult(name, "passed", f"{_label(function)} agrees with the specification in {cases}.")
    shown, known = failing[0], ""
    if problems[shown].look_up:
        known = _name_mistake(exercise, answers, failing)
        wrong = [place for place in failing if problems[place].look_up]
        shown = shown if known else min(wrong, key=lambda place: _size(exercise.cases[place], wanted[place]))
    if exercise.stages and not known:
        return _in_stages(exercise, problems, failing)
    case, problem = exercise.cases[shown], problems[shown]
    message, hint = f"Case {case.label}: {problem.message}", known or problem.hint
    if not hint and problem.pair != ():
        message += f" Failing cases: {len(failing)} of {len(answers)}." * (len(answers) > 1)
        message += _in_numbers(exercise, case, problem)
        special = [place for place, other in enumerate(exercise.cases) if other.hint == case.hint]
        hint = case.hint if failing == special and len(special) < len(answers) else ""
    return CheckResult(name, "failed", message, hint)


def _in_stages(exercise, problems, failing):
    """What is wrong in the case in which the fewest stages are right."""
    found = []
    for place in failing:
        explain = getattr(problems[place], "in_stages", None)
        found.append((*(explain() if explain else (0, problems[place].message, problems[place].hint)), place))
    _, message, hint, place = min(found, key=lambda one: one[0])
    return CheckResult(exercise.name, "failed", f"Case {exercise.cases[place].label}: {message}", hint)


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


def names_slips(right: dict, known: list | tuple, speaks_against: Callable, what: str):
    """The `adapt` of an exercise whose answer names the slip of each of several models or loops.

    Args:
        right: {letter: its slip}.
        known: the slips to choose from.
        speaks_against: of a letter and a wrong slip, the experiment that speaks against it.
        what: word for one of them, such as "model".
    """
    *letters, last = right
    keys, example = f"{', '.join(letters)} and {last}", ", ".join(f'"{letter}": "..."' for letter in right)

    def adapt(function):
        def probe():
            answer = function()
            if answer is ...:
                raise NotImplementedError
            if not isinstance(answer, dict) or set(answer) != set(right):
                hint = TYPE_HINTS["NoneType"] if answer is None else f"Return {{{example}}}."
                raise Wrong(f"a dictionary with the keys {keys} is expected.", hint)
            for letter, slip in answer.items():
                if str(slip) not in known:
                    hint = f"Choose from: {', '.join(known)}."
                    raise Wrong(f"{what} {letter}: {str(slip)[:40]!r} is not in the list.", hint)
            missed = [letter for letter in right if answer[letter] != right[letter]]
            if missed:
                hint = f"{what.capitalize()} {missed[0]}: {speaks_against(missed[0], answer[missed[0]])}"
                raise Wrong(f"{len(right) - len(missed)} of {len(right)} are right.", hint)
            return len(right)

        return probe

    return adapt
