"""Right answers pass, wrong ones get the hint that fits or numbers, and every known mistake gets its own hint."""

import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import checks
from checks import judge
from checks.base import MARGIN, MEMORY, Case, Exercise, Harness
from checks.notebook import read_notebook
from checks.own import define
from checks.scaling_out import MERGE_ATTENTION
from checks.swiglu import silu
from tests.support.answers import RIGHT, WRONG, right_answer_to
from tests.support.course import ROOT
from tests.support.no_solution import assert_tells_no_solution

EXERCISES = {name[6:]: getattr(checks, name).exercise for name in checks.FILE_OF if name.startswith("check_")}


def check_of(exercise):
    """The check, with a limit that a busy machine does not reach."""
    return functools.partial(getattr(checks, f"check_{exercise}"), seconds=120)


def narrow(exercise, times, monkeypatch):
    """Change the room that answers have: what passes with less, or fails with more, is not decided by the last bit."""
    monkeypatch.setattr(EXERCISES[exercise], "tolerance", times * EXERCISES[exercise].tolerance)


@pytest.mark.parametrize(("off", "times"), [(0.99, 1 - MARGIN), (1.01, 1 + MARGIN)])
def test_an_answer_that_passes_or_fails_by_one_percent_is_noticed(off, times, monkeypatch):
    exercise = Exercise(silu, [Case("float64", (torch.tensor([1.0, -2.0], dtype=torch.float64),))], [])
    monkeypatch.setitem(EXERCISES, "silu", exercise)
    answers = lambda x: torch.nn.functional.silu(x) * (1 + off * 2e-5)  # noqa: E731
    before = judge.check_of(exercise)(answers).status
    narrow("silu", times, monkeypatch)
    assert {before, judge.check_of(exercise)(answers).status} == {"passed", "failed"}


def helps(result):
    """Whether a result says more than "wrong": a hint, an error, a rule, a stage, or yours and what is expected."""
    said = "it raises", "rules out", "Next is", "expected ", "yourself"
    return result.hint or any(words in result.message for words in said)


SLOW = "mend_split-sums_in_bfloat16", "add_family-another_eps"  # more than a second


def pairs(table):
    names = {f"{exercise}-{name}": (exercise, name) for exercise in table for name in table[exercise]}
    return [pytest.param(*pair, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, pair in names.items()]


def test_every_exercise_has_its_check_and_answers_and_fitting_cases():
    rooms = [importlib.import_module(f"checks.{path.stem}") for path in Path(checks.__file__).parent.glob("[a-z]*.py")]
    made = [getattr(value, "exercise", value) for room in rooms for value in vars(room).values()]
    made = {value.name: value for value in made if isinstance(value, Exercise)}
    assert made == EXERCISES, "write the check of every Exercise into FILES of checks/__init__.py"
    assert set(RIGHT) == set(EXERCISES) >= set(WRONG), "write right and wrong answers in tests/support/answers"
    for name, exercise in EXERCISES.items():
        assert exercise.mistakes or name in WRONG, f"{name}: write wrong answers in tests/support/answers"
        for case in exercise.cases:
            assert isinstance(case.inputs, tuple), case.label
            inspect.signature(exercise.specification).bind(*case.inputs)  # an argument may have a default
            tensors = [value for value in case.inputs if isinstance(value, torch.Tensor)]
            assert case.hint != MEMORY or not all(value.is_contiguous() for value in tensors), case.label


@pytest.mark.parametrize(("exercise", "name"), pairs(RIGHT))
def test_right_answer_passes_with_a_margin(exercise, name, monkeypatch):
    narrow(exercise, 1 - MARGIN, monkeypatch)
    result = check_of(exercise)(RIGHT[exercise][name])
    assert result.status == "passed", result
    assert result.hint == ""


@pytest.mark.parametrize(("exercise", "name"), pairs(WRONG))
def test_wrong_answer_is_rejected_with_a_margin_and_with_the_words_that_fit(exercise, name, monkeypatch):
    narrow(exercise, 1 + MARGIN, monkeypatch)
    words, program = WRONG[exercise][name]
    result = check_of(exercise)(program)
    assert result.status == "failed", result
    shown = re.sub(', in the line "[^\n]*', "", str(result))  # which may be the answer's own, with its words
    assert all(part in shown for part in words.split(" … ")), result
    assert helps(result), result
    assert_tells_no_solution(exercise, result)


def solution(stem, name):
    return define(read_notebook((ROOT / "notebooks" / f"{stem}.ipynb").read_bytes()), name, stem)[0]


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_speeds_of_the_angles_solution_are_those_of_transformers_bit_by_bit(head_dim):
    scale = {"rope_type": "default", "rope_theta": 500_000.0}
    config = LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=scale)
    speeds = solution("02_rope", "solution_rope_angles")(torch.ones(1, dtype=torch.int64), head_dim, 500_000.0)[0]
    assert torch.equal(speeds, LlamaRotaryEmbedding(config).inv_freq)


@pytest.mark.parametrize("case", [case for case in MERGE_ATTENTION.cases if "sees no key" in case.label])
def test_a_rank_that_sees_no_key_leaves_each_gradient_that_of_the_other_ranks(case):
    solved = solution("09_scaling_out", "merge_attention_solved")
    for merge in (MERGE_ATTENTION.specification, solved, right_answer_to("merge_attention")):
        given = [value.requires_grad_() for value in case.fresh_inputs()]
        merge(*given).square().sum().backward()
        outputs, logsumexps = (value.detach().clone() for value in given)
        outputs[logsumexps.isinf()] = 0.0
        outputs.requires_grad_(), logsumexps.requires_grad_()
        (logsumexps.softmax(0)[..., None] * outputs).sum(0).square().sum().backward()
        for one, want in zip(given, (outputs, logsumexps), strict=True):
            torch.testing.assert_close(one.grad, want.grad)


LONG = "judge", "mend_split", "add_family", "training_loop", "my_llama"  # each writes, trains or opens models


@pytest.mark.parametrize(
    "exercise", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in EXERCISES]
)
def test_every_known_mistake_is_named_with_a_margin(exercise, monkeypatch):
    narrow(exercise, 1 + MARGIN, monkeypatch)
    for hint, program in EXERCISES[exercise].mistakes:
        result = check_of(exercise)(program)
        assert result.status == "failed", hint
        assert result.hint == hint, result
        assert_tells_no_solution(exercise, result)


# exercises whose answer is compared as it is; a harness looks at it in another way first
PLAIN = [name for name, exercise in EXERCISES.items() if exercise.harness.run is Harness.run]
TENSOR_IN = [name for name in PLAIN if isinstance(next(iter(EXERCISES[name].cases[0].inputs), 0), torch.Tensor)]
TENSOR_OUT = [name for name in PLAIN if isinstance(EXERCISES[name].wanted[0], torch.Tensor)]
TENSOR_IN_AND_OUT = [name for name in TENSOR_OUT if name in TENSOR_IN]
GRADED = [name for name in TENSOR_OUT if any(case.gradients for case in EXERCISES[name].cases)]
SEVERAL = [name for name in GRADED if any(len(case.asking()) > 1 for case in EXERCISES[name].cases)]
ANYWHERE = [name for name in EXERCISES if any("meta" in case.also for case in EXERCISES[name].cases)]
BATCHED = ["rms_norm", "apply_rope_halves", "apply_rope_interleaved", "rows", "swiglu"]


def _on_the_cpu(y):
    return tuple(map(_on_the_cpu, y)) if isinstance(y, tuple) else torch.zeros(y.shape, dtype=y.dtype).copy_(y)


HABITS = {  # name: (what is done to the right result y, of which x is the first input; words; exercises)
    "prints instead of returning": (lambda y, x: print(y), "return", PLAIN),
    "returns numpy": (lambda y, x: y.detach().float().numpy(), "stay in torch", TENSOR_OUT),
    "returns a tuple": (lambda y, x: (y,), "comma", TENSOR_OUT),
    "returns text": (lambda y, x: str(y), "", PLAIN),
    "changes an input": (
        lambda y, x: (y, x.detach().zero_())[0], "was changed in place.\nHint: Work on a copy", TENSOR_IN),
    "has x ask for gradients": (lambda y, x: (y, x.requires_grad_())[0], "was changed in place", BATCHED),
    "returns integers": (lambda y, x: y.int(), "", TENSOR_OUT),
    "returns half precision": (lambda y, x: y.half(), "", TENSOR_OUT),
    "returns float32 always": (lambda y, x: y.float(), "dtype", [*BATCHED, "rope_permutation"]),
    "cuts the graph": (lambda y, x: y.detach(), "no gradient reaches ", GRADED),
    "is off by a twentieth": (lambda y, x: y * 1.05 + 0.01, "", TENSOR_IN_AND_OUT),
    "leaves gradients off": (lambda y, x: (y, torch.set_grad_enabled(False))[0], "stay changed", PLAIN),
    "leaves another dtype": (lambda y, x: (y, torch.set_default_dtype(torch.float64))[0], "stay changed", PLAIN),
    "no gradient if x asks for none": (lambda y, x: y if x.requires_grad else y.detach(), "it alone asks", SEVERAL),
    "stays on the CPU": (lambda y, x: _on_the_cpu(y), "device=x.device", ANYWHERE),
    "takes one batch only": (lambda y, x: y if len(x) == 1 else 1 / 0, "", BATCHED),
}  # fmt: skip


@pytest.mark.parametrize("name", HABITS)
def test_habit_of_a_tired_student_is_rejected(name):
    change, words, exercises = HABITS[name]
    for exercise in exercises:
        right = right_answer_to(exercise)
        result = check_of(exercise)(lambda *inputs: change(right(*inputs), inputs[0]))  # noqa: B023
        assert result.status == "failed", result
        assert helps(result), result
        assert words in str(result), result
