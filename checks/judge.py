"""How an answer is judged: hand over your function; read whether it is right, and if not, what it seems to do instead.

    check_rms_norm(rms_norm)     # the function itself, without calling it

Every check calls the function on inputs chosen so that mistakes show (run.py), compares its answers with those of a
slow, obvious specification (compare.py), and looks up wrong ones among the known mistakes (mistakes.py); the file named
after the notebook has all three. The smallest failing case is shown in numbers (explain.py). Checks run on the CPU on
fixed numbers, so that a verdict is the same on every machine, and need no other exercise to be solved.

A check raises no Exception, whatever the function raises or returns, and puts back torch's and Python's seeds, the
default dtype and the gradient mode. It ends an endless loop after `seconds` on the processor, and an answer that waits
after six times that in wall-clock time, if it runs in the main thread, as in a notebook, and the system has a timer
(Windows has none). Elsewhere, and in one long call such as `10**10**9`, the learner has the stop button, whose
KeyboardInterrupt a check lets through, and the grader has a time limit of its own.
"""

import html
from dataclasses import dataclass

from checks.base import Exercise
from checks.run import run_cases, undisturbed


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
        seen, *numbers = self.message.split("\n")
        hint = [f"Hint: {self.hint}"] if self.hint else []
        return "\n".join([f"{self.name}: {self._in_words()}. {seen}", *hint, *numbers])

    def _repr_html_(self):
        hint = f"<br><em>Hint:</em> {html.escape(self.hint)}" if self.hint else ""
        head = f"<strong>{html.escape(self.name)}: {self._in_words()}.</strong>"
        seen, _, numbers = self.message.partition("\n")
        numbers = f"<pre>{html.escape(numbers)}</pre>" if numbers else ""
        return f"<div>{head} {html.escape(seen)}{hint}{numbers}</div>"

    def _in_words(self):
        return {"todo": "not attempted yet", "passed": "passed", "failed": "not yet"}[self.status]


def check_of(exercise: Exercise, seconds: float = 10.0):
    """The public check of an exercise; it takes its name from the specification."""
    name, usual = exercise.name, seconds

    def check(function, seconds: float = usual) -> CheckResult:
        if not callable(function):
            hint = f"Hand over the function without calling it: check_{name}({name})."
            return CheckResult(name, "failed", f"A function is expected, not {type(function).__name__}.", hint)
        try:
            with undisturbed():
                outcomes, said = run_cases(function, exercise, seconds)
                failing = [place for place, outcome in enumerate(outcomes) if outcome.problem]
                if failing:
                    from checks.explain import show  # only of a wrong answer
                    from checks.mistakes import name_mistake

                    hint, explained = name_mistake(exercise, outcomes, failing)
                    said = ("failed", *show(exercise, outcomes, explained, hint))
        except Exception as error:  # an answer that cannot even be looked at, such as a nested tensor without a shape
            message = f"The answer cannot be compared ({type(error).__name__} while looking at it)."
            return CheckResult(name, "failed", message, "Return a plain result.")
        cases = len(exercise.cases) if outcomes else 0
        several = f"{cases} cases" if cases > 1 else "the one case"
        own = getattr(function, "__name__", "")
        whose = own if own.isidentifier() else "Your function"
        said = said or ("passed", f"{whose} agrees with the specification in {several}.")
        return CheckResult(name, *said, right=len(outcomes) - len(failing), cases=cases)

    check.exercise = exercise
    check.__name__ = check.__qualname__ = f"check_{name}"
    check.__doc__ = f"Check your `{name}({', '.join(exercise.parameters)})`. {exercise.specification.__doc__}"
    return check
