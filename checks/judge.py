"""How an answer is judged: hand over your function; read whether it is right, and if not, what it seems to do instead.

    check_rms_norm(rms_norm)     # the function itself, without calling it

Every check compares the function with a slow, obvious specification on inputs chosen so that mistakes show, and looks
its answers up among the known mistakes; both are in the file that is named after the notebook. What none of
them explains is not guessed at, but shown: the smallest failing case, in numbers. Checks run on the CPU on fixed
numbers, so that a verdict is the same on every machine, and need no other exercise to be solved.

A check raises nothing, whatever the function raises or returns, and puts back torch's and Python's seeds, the default
dtype and the gradient mode. It ends an endless loop after `seconds` on the processor, and an answer that waits after
six times as long, if it runs in the main thread, as in a notebook, and the system has a timer (Windows has none).
Elsewhere, and in one long call such as `10**10**9`, the learner has the stop button, whose KeyboardInterrupt a check
lets through, and the grader has a time limit of its own.
"""

import html
from dataclasses import dataclass, replace

from checks.base import Exercise, Wrong
from checks.compare import compare, name_mistake
from checks.explain import in_numbers, size_of
from checks.run import NewKernel, TimeUp, borrowed, call, in_time, is_empty, undisturbed


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
    right: int = 0  # of how many cases; both 0 where none was run to its end
    cases: int = 0

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


@dataclass(frozen=True)
class Outcome:
    """What one case showed: the answer, what is wrong with it, and what watched the stages of a whole model."""

    got: object
    problem: Wrong | None
    watch: object = None

    def in_stages(self, case, right=()):
        """(How many stages are right, what is wrong in words, hint)."""
        if self.watch is None:
            return 0, self.problem.message, self.problem.hint
        return self.watch.explain(case, self.got, self.problem, right)


TODO = "Replace the body of the function, then run this cell again."
ENDLESS = "Is there a loop that never ends, or far too long?"
RUN_ABOVE = "Click this cell, Run → Run All Above Selected Cell, then run it again."
WAITS = "Does it sleep, or wait for something that does not come, such as input?"


def _judge(function, exercise, seconds):
    """Run every case; if some fail, name the mistake in the first of them, or show the smallest in numbers."""
    cases, wanted, outcomes = exercise.cases, exercise.wanted, []  # the specification does not count against the time
    watches = [exercise.stages and exercise.stages() for _ in cases]

    def run_all():
        for case, want, watch in zip(cases, wanted, watches, strict=True):
            if case.drawn and any(outcome.problem for outcome in outcomes):
                return
            outcomes.append(_outcome(function, exercise, case, want, watch))
            if sum(outcome.problem is not None for outcome in outcomes) == exercise.enough:
                return

    try:
        in_time(run_all, seconds)
    except NotImplementedError:
        return CheckResult(exercise.name, "todo", TODO)
    except NewKernel as new:
        return CheckResult(exercise.name, "failed", str(new), RUN_ABOVE)
    except TimeUp as up:
        case, watch = cases[len(outcomes)], watches[len(outcomes)]
        _, message, _ = Outcome(None, Wrong(str(up)), watch).in_stages(case)
        result = _failed(exercise, case, message, WAITS if up.waits else ENDLESS)
    else:
        result = _verdict(function, exercise, outcomes)
    return replace(result, right=sum(not outcome.problem for outcome in outcomes), cases=len(cases))


def _verdict(function, exercise, outcomes):
    """What the outcomes of all cases say."""
    cases, failing = exercise.cases, [place for place, outcome in enumerate(outcomes) if outcome.problem]
    if not failing and (theirs := borrowed(function, exercise.allow)):
        message = f"The result is right, but it calls {theirs}: write it yourself."
        return CheckResult(exercise.name, "failed", message)
    if not failing:
        several = f"{len(cases)} cases" if len(cases) > 1 else "the one case"
        return CheckResult(exercise.name, "passed", f"{_label(function)} agrees with the specification in {several}.")
    first = outcomes[failing[0]].problem
    hint = name_mistake(exercise, [outcome.got for outcome in outcomes], failing) if first.look_up else ""
    if hint:
        return _failed(exercise, cases[failing[0]], first.message, hint)
    if exercise.stages:
        return _show_stages(exercise, outcomes, failing)
    return _show_smallest(exercise, outcomes, failing)


def _outcome(function, exercise, case, want, watch):
    """What one case shows; a stub raises NotImplementedError in the first."""
    got, parts = None, exercise.parts
    if case.gradients:
        asked = zip(exercise.parameters, case.fresh_inputs(), strict=True)
        parts = [f"the gradient for {name}" for name, value in asked if getattr(value, "requires_grad", False)]
    try:
        got, problem = call(function, case, exercise, watch)
        compare(got, want, exercise, parts)
        return Outcome(got, problem)
    except NotImplementedError:
        if case is exercise.cases[0]:
            raise
        return Outcome(None, Wrong("it raises NotImplementedError.", "Is a branch still empty?"))
    except Wrong as problem:
        return Outcome(got, problem, watch)


def _show_stages(exercise, outcomes, failing):
    """What is wrong in the case in which the fewest stages are right."""
    right = {case.label for case, outcome in zip(exercise.cases, outcomes, strict=False) if not outcome.problem}
    found = [(*outcomes[place].in_stages(exercise.cases[place], right), place) for place in failing]
    _, message, hint, place = min(found, key=lambda one: one[0])
    return _failed(exercise, exercise.cases[place], message, hint)


def _show_smallest(exercise, outcomes, failing):
    """What is wrong in the first case that fails; if that can be shown in numbers, in the smallest."""
    shown = failing[0]
    if outcomes[shown].problem.look_up:
        wrong = [place for place in failing if outcomes[place].problem.look_up]
        shown = min(wrong, key=lambda place: size_of(exercise.cases[place], exercise.wanted[place]))
    case, problem = exercise.cases[shown], outcomes[shown].problem
    message, hint = problem.message, problem.hint
    if not hint and problem.pair != ():
        if len(outcomes) > 1:
            message += f" Failing cases: {len(failing)} of {len(outcomes)}."
        message += in_numbers(exercise, case, problem)
        special = [place for place, other in enumerate(exercise.cases) if other.hint == case.hint]
        hint = case.hint if failing == special and len(special) < len(outcomes) else ""
    return _failed(exercise, case, message, hint)


def _failed(exercise, case, message, hint):
    return CheckResult(exercise.name, "failed", f"Case {case.label}: {message}", hint)


def _label(function):
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "Your function"


def check_of(exercise: Exercise, seconds: float = 10.0):
    """The public check of an exercise; it takes its name from the specification."""
    name, usual = exercise.name, seconds

    def check(function, seconds: float = usual) -> CheckResult:
        if not callable(function):
            hint = f"Hand over the function without calling it: check_{name}({name})."
            return CheckResult(name, "failed", f"A function is expected, not {type(function).__name__}.", hint)
        if is_empty(function):
            return CheckResult(name, "todo", TODO)
        try:
            with undisturbed():
                return _judge(function, exercise, seconds)
        except Exception as error:  # an answer that cannot even be looked at, such as a nested tensor without a shape
            message = f"The answer cannot be compared ({type(error).__name__} while looking at it)."
            return CheckResult(name, "failed", message, "Return a plain result.")

    check.exercise = exercise
    check.__name__ = check.__qualname__ = f"check_{name}"
    check.__doc__ = f"Check your `{name}({', '.join(exercise.parameters)})`. {exercise.specification.__doc__}"
    return check
