"""Which known mistake explains the wrong answers: the one that gives the same; else a fact of relations.py."""

import torch

from checks.compare import agree
from checks.explain import is_half


def name_mistake(exercise, outcomes, failing):
    """The hint of the known mistake that explains the most wrong answers, the first among them; and which these are."""
    if not outcomes[failing[0]].problem.look_up:
        return "", failing
    # nan, inf and half precision (unless nothing else fails) contradict none: they may have another cause
    answers, best = [outcome.got for outcome in outcomes], ("", [])
    half = [is_half(*pair) for pair in zip(exercise.cases, exercise.wanted, strict=True)]
    only_half = all(half[place] for place in failing)
    clear = [place for place, answer in enumerate(answers) if _is_finite(answer) and (only_half or not half[place])]
    for place, (hint, theirs) in enumerate(exercise.mistake_outputs):
        if best[1] and place >= len(exercise.mistakes):  # the rest are facts that hold for any exercise
            break
        explained = _explained(exercise, answers, theirs, failing, clear)
        if len(explained) > len(best[1]):
            best = hint, explained
    return best if best[1] else ("", failing)


def _explained(exercise, answers, theirs, failing, clear):
    """Which wrong answers a mistake gives; none if not the first, or if a clear answer speaks against it."""

    def is_yours(place):
        if exercise.harness.same_answer:
            return exercise.harness.same_answer(answers[place], theirs(place))
        return agree(answers[place], theirs(place), exercise.tolerance, exercise.wanted[place])

    def is_right(place):
        want = exercise.wanted[place]
        return theirs(place) is None or agree(theirs(place), want, exercise.tolerance, want)

    if not is_yours(failing[0]) or is_right(failing[0]):
        return []
    if not all(is_yours(place) or is_right(place) for place in clear):
        return []
    return [place for place in failing if is_yours(place) and not is_right(place)]


def _is_finite(answer):
    parts = answer if isinstance(answer, tuple) else (answer,)
    return all(isinstance(x, int) or (isinstance(x, torch.Tensor) and (x.is_meta or x.isfinite().all())) for x in parts)
