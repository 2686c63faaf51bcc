"""The checks: every wrong program is rejected with the fitting hint, every right one passes, nothing ever raises."""

import contextlib
import functools
import inspect
import math
import os
import random
import sys
import threading
import time

import pytest
import torch

import checks
from checks import judge, swiglu
from checks.base import Exercise
from tests.support.right_answers import RIGHT, right_answer_to
from tests.support.wrong_answers import HABITS, WRONG

EXERCISES = {
    value.name: value for module in checks.EXERCISES for value in vars(module).values() if isinstance(value, Exercise)
}
BATCHED = ["rms_norm", "apply_rope_halves", "apply_rope_interleaved", "attention_head", "repeat_kv", "swiglu"]
ANY_DTYPE = [*BATCHED, "silu", "silu_derivative", "rope_permutation"]
ADAPTED = [
    name for name, exercise in EXERCISES.items() if exercise.adapt(len) is not len and name != "top_p"
]  # no plain result
PLAIN = {name: exercise for name, exercise in EXERCISES.items() if name not in ADAPTED}
NO_TENSOR_IN = [
    name for name, value in PLAIN.items() if not isinstance(next(iter(value.cases[0].inputs), 0), torch.Tensor)
]
ONE_TENSOR_OUT = [name for name, value in PLAIN.items() if isinstance(value.wanted[0], torch.Tensor)]
APPLIES_TO = {
    "any": list(PLAIN),
    "tensor": ONE_TENSOR_OUT,
    "float": [name for name in ONE_TENSOR_OUT if name not in NO_TENSOR_IN],
    "takes a tensor": [name for name in PLAIN if name not in NO_TENSOR_IN],
    "any dtype": ANY_DTYPE,
    "batched": BATCHED,
}


def check_of(exercise):
    """The check, with a limit that a busy machine does not reach."""
    return functools.partial(getattr(checks, f"check_{exercise}"), seconds=120)


@functools.cache
def verdict(exercise, name):
    """What the check says about a wrong program."""
    return check_of(exercise)(WRONG[exercise][name][0])


def pairs(table):
    return [pytest.param(exercise, name, id=f"{exercise}-{name}") for exercise in table for name in table[exercise]]


# --------------------------------------------------------------------------------------------- right and wrong


def test_every_exercise_has_eight_wrong_and_three_right_programs():
    assert set(WRONG) == set(RIGHT) == set(EXERCISES)
    assert {name for name in vars(checks) if name.startswith("check_")} == {f"check_{name}" for name in EXERCISES}
    for exercise in EXERCISES:
        assert len(WRONG[exercise]) >= 8, exercise
        assert len(RIGHT[exercise]) >= 3, exercise


def test_every_case_has_the_inputs_of_its_exercise():
    for exercise in EXERCISES.values():
        for case in exercise.cases:
            assert isinstance(case.inputs, tuple), case.label
            assert len(case.inputs) == len(exercise.parameters), case.label


@pytest.mark.parametrize(("exercise", "name"), pairs(RIGHT))
def test_right_answer_passes(exercise, name):
    result = check_of(exercise)(RIGHT[exercise][name])
    assert result.status == "passed", result
    assert result
    assert result.hint == ""


class Silu:
    def __call__(self, x):
        return x * x.sigmoid()

    def method(self, x):
        return x * x.sigmoid()


@pytest.mark.parametrize(
    "program",
    [torch.nn.SiLU(), Silu(), Silu().method, functools.partial(torch.nn.functional.silu, inplace=False)],
    ids=["module", "object", "method", "partial"],
)
def test_right_answer_need_not_be_a_plain_function(program):
    result = checks.check_silu(program)
    assert result, result


@pytest.mark.parametrize(("exercise", "name"), pairs(WRONG))
def test_wrong_answer_is_rejected_with_the_hint_that_fits(exercise, name):
    words, result = WRONG[exercise][name][1], verdict(exercise, name)
    assert result.status == "failed", result
    assert not result
    assert words in result.hint, result


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_known_mistake_is_named(exercise):
    for hint, program in EXERCISES[exercise].mistakes:
        result = check_of(exercise)(program)
        assert result.hint == hint, result


@pytest.mark.parametrize("habit", HABITS)
def test_habit_of_a_tired_student_is_rejected(habit):
    wrap, words, kind = HABITS[habit]
    for exercise in APPLIES_TO[kind]:
        right = right_answer_to(exercise)
        result = check_of(exercise)(wrap(right))
        assert result.status == "failed", result
        assert words in result.hint, result
        assert result.hint, result


def test_rejections_come_from_many_cases():
    verdicts = [(exercise, verdict(exercise, name)) for exercise in PLAIN for name in WRONG[exercise]]
    labels = {(exercise, result.message.split(":")[0]) for exercise, result in verdicts}
    assert len(labels) > 3 * len(PLAIN)


def test_gradient_cases_see_a_graph_that_is_cut():
    for exercise, value in EXERCISES.items():
        if any(case.gradients for case in value.cases):
            right = right_answer_to(exercise)
            result = check_of(exercise)(lambda *inputs, right=right: right(*inputs).detach())
            assert "graph cut" in result.hint, result


def test_a_right_result_that_changes_its_input_is_rejected():
    def leaves_zeros(x):
        y = x * x.sigmoid()
        x.detach().zero_()
        return y

    result = checks.check_silu(leaves_zeros)
    assert (result.status, result.hint) == ("failed", checks.IN_PLACE)
    assert "the result is right, but the input x was changed in place" in result.message


def test_an_error_of_the_backward_pass_is_told():
    def overwrites_what_the_gradient_needs(x):
        gate = x.sigmoid()
        y = gate * x
        gate.zero_()
        return y

    result = checks.check_silu(overwrites_what_the_gradient_needs)
    assert "it raises RuntimeError: one of the variables needed for gradient computation" in result.message
    assert "in-place step" in result.hint


def test_gradients_are_not_asked_of_a_terabyte():
    def program(x):
        return x.sum().expand(2**37) if x.requires_grad else x * x.sigmoid()

    result = checks.check_silu(program)
    assert f"the result has the shape ({2**37},)" in result.message
    assert "Print the shape" in result.hint


def test_an_answer_that_changes_from_call_to_call_is_rejected():
    calls = []

    def right_at_first(x):
        calls.append(x)
        return torch.sigmoid(x) * x if len(calls) < 4 else x

    assert checks.check_silu(right_at_first).status == "failed"


# ------------------------------------------------------------------------------------------------ not attempted


def stub_raises(x, weight, eps):
    raise NotImplementedError


def stub_raises_with_text(x, weight, eps):
    """Divide by the root mean square."""
    raise NotImplementedError("your turn")


def stub_is_empty(x, weight, eps):
    """Divide by the root mean square."""


def stub_has_dots(x, weight, eps): ...


def stub_passes(x, weight, eps):
    pass


def stub_returns_none(x, weight, eps):
    return None


def stub_returns_dots(x, weight, eps):
    y = ...  # your code
    return y


def stub_is_half_done(x, weight, eps):
    x.float().pow(2).mean()
    raise NotImplementedError


@pytest.mark.parametrize("stub", [value for name, value in list(globals().items()) if name.startswith("stub_")])
def test_stub_is_not_attempted_yet(stub):
    result = checks.check_rms_norm(stub)
    assert (result.status, bool(result), result.hint) == ("todo", False, "")
    assert str(result) == ("rms_norm: not attempted yet. Replace the body of the function, then run this cell again.")


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_check_knows_a_stub(exercise):
    def stub(*inputs):
        raise NotImplementedError

    assert check_of(exercise)(stub).status == "todo"


def test_an_operation_that_pytorch_lacks_is_an_error_and_not_a_stub():
    """PyTorch raises NotImplementedError as well: here sparse has nothing to look at."""
    result = checks.check_silu(lambda x: x.to("meta").to_sparse())
    assert result.status == "failed"
    assert "it raises NotImplementedError: " in result.message
    assert "PyTorch cannot take this step" in result.hint
    forgot = type("Forgot", (torch.nn.Module,), {})()  # PyTorch itself has the line `raise NotImplementedError`
    assert checks.check_silu(forgot).status == "failed"


def test_a_branch_left_empty_is_not_a_stub():
    def half(x):
        if x.dtype == torch.float16:
            raise NotImplementedError
        return x * x.sigmoid()

    result = checks.check_silu(half)
    assert result.status == "failed"
    assert "branch" in result.hint


def test_an_empty_branch_that_the_second_case_reaches_is_not_a_stub():
    calls = []

    def first_only(x):
        calls.append(x)
        if len(calls) > 1:
            raise NotImplementedError
        return x * x.sigmoid()

    result = checks.check_silu(first_only)
    assert result.status == "failed"
    assert "branch" in result.hint


# ------------------------------------------------------------------------------- whatever the function may do


class Strange:
    def __getattr__(self, name):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        return True

    __hash__ = None


class StrangeError(Exception):
    def __str__(self):
        raise ValueError("no text")


class Agreeable(torch.Tensor):
    """A tensor that says yes to everything."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.tensor(True)


def agreeable(x):
    return torch.zeros_like(x).as_subclass(Agreeable)


def recursion(x):
    return recursion(x)


def raises(error):
    def program(x):
        raise error

    return program


def generator(x):
    yield x


async def coroutine(x):
    return x


RESULTS = [
    None, True, 3, 2.5, 1j, "text", b"bytes", [], (), {}, [[1.0], [2.0]], object(), Strange(), type, len, float("nan"),
    torch.tensor(1j), torch.zeros(0),
    torch.zeros(5, dtype=torch.bool), torch.zeros(2, 3, 4), torch.full((5,), math.nan),
    torch.zeros(5, device="meta"), torch.zeros(5).to_sparse(), torch.zeros(1).expand(10**9), torch.zeros(5).double(),
    torch.zeros(5, dtype=torch.complex64), torch.zeros(5, requires_grad=True), torch.nn.Linear(2, 2), torch.float32,
    (torch.zeros(5), torch.zeros(5)), (torch.zeros(5), Strange()), Exception("returned"), agreeable(torch.zeros(5)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", RESULTS, ids=range(len(RESULTS)))
def test_any_result_is_rejected_without_an_error(value):
    for exercise in ("silu", "rms_norm_backward", "hidden_dim", "causal_visible"):
        result = check_of(exercise)(lambda *inputs: value)
        assert result.status == "failed", value
        assert result.hint
        assert str(result)
        assert result._repr_html_()


@pytest.mark.filterwarnings("ignore")
def test_a_result_that_breaks_the_comparison_is_rejected_as_such():
    """A nested tensor has no shape: asking for it raises."""
    result = checks.check_silu(lambda x: torch.nested.nested_tensor([x]))
    assert result.status == "failed"
    assert "no answer after" not in result.message
    assert result.hint


@pytest.mark.parametrize("value", [torch.zeros(5).to_sparse(), torch.zeros(5, device="meta")])
def test_an_unusual_tensor_is_named(value):
    result = checks.check_silu(lambda x: value)
    assert f"the result is a {value.layout} tensor on the device {value.device}." in result.message
    assert "plain tensor" in result.hint


@pytest.mark.parametrize(
    ("exercise", "change", "words"),
    [
        ("silu", str, "the result has the type str, expected a tensor."),
        ("silu", torch.Tensor.tolist, "the result has the type list, expected a tensor."),
        ("silu", lambda y: y / 0, "the result holds nan or inf."),
        ("hidden_dim", float, "the result has the type float, expected a whole number (int)."),
        ("hidden_dim", str, "the result has the type str, expected a whole number (int)."),
        ("rms_norm_backward", lambda pair: (*pair, pair[0]), "the result is 3 tensors, expected 2 tensors."),
        ("rms_norm_backward", lambda pair: pair[0], "the result is one tensor, expected 2 tensors."),
        ("rms_norm_backward", list, "the result is list, expected 2 tensors."),
    ],
)
def test_a_result_of_another_kind_is_named(exercise, change, words):
    right = right_answer_to(exercise)
    result = check_of(exercise)(lambda *inputs: change(right(*inputs)))
    assert words in result.message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_tenth_too_much_is_wrong_in_half_precision_too(dtype):
    right = right_answer_to("rms_norm")
    result = checks.check_rms_norm(lambda x, *rest: right(x, *rest) * (1.1 if x.dtype == dtype else 1))
    assert "is off by up to" in result.message


def test_a_mistake_that_nobody_knows_gets_the_hint_of_its_exercise():
    result = checks.check_silu(lambda x: torch.sigmoid(x) * x + 0.37 * x.abs() + 0.2)
    assert result.hint == EXERCISES["silu"].hint


def test_the_result_that_is_wrong_is_counted_from_1():
    right = right_answer_to("rms_norm_backward")
    result = checks.check_rms_norm_backward(lambda *inputs: (right(*inputs)[0], 2 * right(*inputs)[1]))
    assert "result 2 is off by" in result.message


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "program",
    [
        raises(ValueError("wrong")), raises(KeyboardInterrupt()), raises(SystemExit(3)), raises(GeneratorExit()),
        raises(StrangeError()), raises(BaseExceptionGroup("many", [ValueError(), KeyError()])), raises(MemoryError()),
        recursion, generator, coroutine, agreeable, lambda: 1, lambda a, b, c, d: a,
        lambda *, x: x, torch.add, dict, int,
        Strange,
        lambda x: sys.exit(), lambda x: exit(0), lambda x: 1 / 0, lambda x: undefined(x), lambda x: x.nothing,  # noqa: F821
    ],
)  # fmt: skip
def test_any_error_is_a_verdict(program):
    result = checks.check_silu(program)
    assert result.status == "failed"
    assert result.hint
    assert "<div>" in result._repr_html_()


@pytest.mark.parametrize("thing", [None, 3, "rms_norm", torch.zeros(3), [], Strange()], ids=range(6))
def test_handing_over_something_else_than_a_function_is_explained(thing):
    result = checks.check_rms_norm(thing)
    assert result.status == "failed"
    assert "check_rms_norm(rms_norm)" in result.hint


def test_an_error_shows_its_kind_its_text_and_the_line():
    def broken(x):
        return x.reshape(7, 7)

    result = checks.check_silu(broken)
    assert "RuntimeError: shape '[7, 7]' is invalid" in result.message
    assert 'in the line "return x.reshape(7, 7)"' in result.message


def test_an_endless_loop_ends_and_the_case_is_named():
    turns = []

    def endless(x):
        while True:
            turns[:] = [x]

    start = time.monotonic()
    result = checks.check_silu(endless, seconds=0.2)
    assert time.monotonic() - start < 60
    assert result.message == "Case x = -2, -1, 0, 1, 3: no answer after 0.2 seconds."
    assert "never ends" in result.hint
    assert turns
    turns.clear()
    time.sleep(0.05)
    assert not turns, "the loop still runs"


def test_an_endless_loop_that_refuses_to_stop_is_left_behind():
    released = threading.Event()

    def stubborn(x):
        while not released.is_set():
            with contextlib.suppress(BaseException):
                time.sleep(0.01)

    start = time.monotonic()
    result = checks.check_silu(stubborn, seconds=0.2)
    released.set()
    assert time.monotonic() - start < 60
    assert "never ends" in result.hint


def test_checks_work_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(checks.check_silu(torch.nn.functional.silu)))
    thread.start()
    thread.join()
    assert results[0]


def test_the_stop_button_stops_the_check(monkeypatch):
    """A KeyboardInterrupt in the main thread comes from the user; state is put back all the same."""

    class Pressed(threading.Thread):
        def join(self, timeout=None):
            if timeout and timeout > 1 and self.daemon and len(joins) == 1:
                joins.append("pressed")
                raise KeyboardInterrupt
            joins.append("joined")
            super().join(timeout)

    joins = []
    monkeypatch.setattr(threading, "Thread", Pressed)
    with pytest.raises(KeyboardInterrupt):
        checks.check_silu(torch.nn.functional.silu)
    assert "pressed" in joins


def test_printing_is_shown_once_and_cut(capsys):
    def chatty(x):
        for _ in range(2000):
            print("still here, still wrong")
        return x

    checks.check_silu(chatty)
    shown = capsys.readouterr().out
    assert shown.startswith("still here")
    assert len(shown) <= checks.PRINTED + 1


# -------------------------------------------------------------------------------------------- state is put back


def change_everything(x):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_default_device("meta")
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.autograd.set_detect_anomaly(True)
    torch.manual_seed(123)
    random.seed(123)
    os.environ["LEFT_BEHIND"] = "1"
    os.environ.pop("PATH", None)
    os.chdir("/")
    sys.setrecursionlimit(5000)
    sys.stdout = None
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
    torch.allclose = torch.equal = lambda *inputs, **options: True
    torch.Tensor.double = lambda self: torch.zeros(())
    torch.Tensor.invented = 1
    math.sqrt = lambda x: 0.0
    judge._compare = swiglu.silu = lambda *inputs: None
    return x


def threads_in_a_new_thread():
    """What the next check would compute with; the thread that asks does not see it."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen


def everything():
    return [
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device(), torch.allclose, torch.equal,
        torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(), random.getstate(),
        torch.get_rng_state().tolist(), dict(os.environ), os.getcwd(), sys.getrecursionlimit(), sys.stdout,
        torch.Tensor.double,
        hasattr(torch.Tensor, "invented"), math.sqrt, judge._compare, swiglu.silu, torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled(), torch.is_inference_mode_enabled(),
        len, isinstance, threads_in_a_new_thread(),
    ]  # fmt: skip


def test_state_that_a_function_changes_is_put_back_and_helps_it_not():
    before = everything()
    result = checks.check_silu(change_everything)
    assert result.status == "failed"
    assert everything() == before


@pytest.mark.parametrize("exercise", ["rms_norm", "attention_head", "cross_entropy", "rope_angles"])
def test_state_that_the_learner_has_set_does_not_change_the_verdict(exercise):
    right = right_answer_to(exercise)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
            assert check_of(exercise)(right)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_dtype_that_the_learner_has_set_is_not_seen_by_the_function():
    torch.set_default_dtype(torch.float64)
    try:
        seen = []
        checks.check_silu(lambda x: seen.append(torch.ones(()).dtype))
    finally:
        torch.set_default_dtype(torch.float32)
    assert set(seen) == {torch.float32}


def test_checks_draw_no_random_numbers():
    before = torch.get_rng_state(), random.getstate()
    for exercise in EXERCISES:
        check_of(exercise)(right_answer_to(exercise))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


# ---------------------------------------------------------------------------------------------- what is shown


def test_success_takes_its_name_from_the_function_and_the_exercise():
    def my_first_norm(x, weight, eps):
        return RIGHT["rms_norm"]["rsqrt"](x, weight, eps)

    result = checks.check_rms_norm(my_first_norm)
    n_cases = len(EXERCISES["rms_norm"].cases)
    assert result.name == "rms_norm"
    assert str(result) == f"rms_norm: passed. my_first_norm agrees with the specification in {n_cases} cases."
    assert checks.check_silu(lambda x: x * x.sigmoid()).message.startswith("Your function agrees")
    for exercise, words in (("tie_weights", "in 2 cases."), ("block_plan", "in the one case.")):
        assert check_of(exercise)(right_answer_to(exercise)).message.endswith(words)


def test_failure_names_the_case_both_shapes_or_the_largest_difference():
    shape = checks.check_rms_norm(lambda x, weight, eps: x.sum())
    assert shape.message == "Case one row, eps 0.1: the result has the shape (), expected (1, 6)."
    value = checks.check_hidden_dim(lambda dim, multiple_of, multiplier: 4 * dim)
    assert "the result is 16384, expected 11008." in value.message
    mask = checks.check_causal_visible(lambda t, s: torch.ones(t, s).tril().bool())
    assert mask.message == "Case 3 queries, 7 keys: row 0, column 1 is False, expected True."
    dtype = checks.check_silu(lambda x: x.float() * x.float().sigmoid())
    assert "float16" in dtype.message
    assert "torch.float32, expected torch.float16" in dtype.message
    size = checks.check_silu(lambda x: x.sigmoid())
    assert size.message == "Case x = -2, -1, 0, 1, 3: the result is off by up to 2 (its largest entry should be 3)."


def test_html_is_escaped_and_says_the_same_words():
    result = checks.CheckResult("silu", "failed", "it raises <b>", "a < b?")
    assert result._repr_html_() == (
        "<div><strong>silu: not yet.</strong> it raises &lt;b&gt;<br><em>Hint:</em> a &lt; b?</div>"
    )


@pytest.mark.parametrize("exercise", EXERCISES)
def test_results_are_the_same_every_time(exercise):
    for program in (*RIGHT[exercise].values(), *(program for program, _ in list(WRONG[exercise].values())[:3])):
        assert check_of(exercise)(program) == check_of(exercise)(program)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_check_has_a_name_a_signature_and_a_sentence(exercise):
    check = getattr(checks, f"check_{exercise}")
    assert check.__name__ == f"check_{exercise}"
    assert check.__doc__.startswith(f"Check your `{exercise}({', '.join(EXERCISES[exercise].parameters)})`. ")
    assert list(inspect.signature(check).parameters) == ["function", "seconds"]


def test_checks_need_nothing_but_torch_and_the_standard_library():
    for module in (checks, *checks.EXERCISES):
        source = inspect.getsource(module)
        assert "transformers" not in source
        assert "import numpy" not in source
