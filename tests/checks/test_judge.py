"""Whatever a learner's function raises or returns, a check gives a verdict, says why, and leaves the settings alone."""

import contextlib
import functools
import math
import random
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import checks
from checks import judge, swiglu
from checks.base import AUTOGRAD, Case, Exercise, draw, require_margin
from checks.compare import agree
from checks.full_model import small_llama
from checks.run import PRINTED, in_time, undisturbed
from checks.swiglu import silu
from tests.support.answers import right_answer_to

CASES = [
    Case("x = -2, -1, 0, 1, 3", (torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0]),)),
    Case("x of shape (2, 3, 5)", (draw(2, 3, 5, scale=2.0),)),
    Case("one number, shape ()", (torch.tensor(-0.7),)),
    Case("float16, up to 300", (torch.tensor([-300.0, -12.0, -1.0, 0.5, 12.0, 300.0]).half(),)),
]
GRADIENTS_TOO = [
    Case("gradients", (torch.tensor([-2.0, 0.0, 1.5]),), gradients=True),
    Case("gradients at -300 and 300", (torch.tensor([-300.0, 300.0]),), gradients=True),
    Case("gradients in float16", (torch.tensor([-300.0, -12.0, 0.5, 300.0]).half(),), gradients=True),
]
check_silu = judge.check_of(Exercise(silu, CASES + GRADIENTS_TOO, []))  # short, and in no notebook


@pytest.mark.parametrize("body", [
    '"""Divide by the root mean square."""\n    raise NotImplementedError("your turn")',
    '"""Divide by the root mean square."""',
    "...",
    "return None",
    "y = ...  # your code\n    return y",
    "x.float().pow(2).mean()\n    raise NotImplementedError",
])  # fmt: skip
def test_stub_is_not_attempted_yet(body):
    made = {}
    exec(f"def stub(x, weight, eps):\n    {body}", made)
    result = checks.check_rms_norm(made["stub"])
    assert (result.status, bool(result), result.hint) == ("todo", False, "")
    assert str(result) == "rms_norm: not attempted yet. Replace the body of the function, then run this cell again."


@pytest.mark.parametrize(("wrong", "right"), [(lambda x: False, 7), (lambda x: x.ndim == 0, 6), (lambda x: True, 0)])
def test_a_result_counts_the_cases_that_are_right(wrong, right):
    result = check_silu(lambda x: x if wrong(x) else F.silu(x.float()).to(x.dtype))
    assert (result.right, result.cases) == (right, 7)


def test_two_answers_agree_where_both_hold_nan_and_nowhere_else():
    """Else a known mistake that gives nan would not be named."""
    nan, one = torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0])
    assert agree(nan, nan.clone(), 1, one)
    assert not any(agree(got, want, 1, one) for got, want in ((nan, one), (one, nan), (nan.flip(0), nan)))


class Silu:
    def __call__(self, x):
        return x * x.sigmoid()


PROGRAMS = {torch.nn.SiLU(): "Your function", Silu(): "Your function", functools.partial(F.silu): "Your function"}
PROGRAMS |= {Silu().__call__: "__call__", F.silu: "silu"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_right_answer_need_not_be_a_plain_function_and_is_named(program):
    assert str(check_silu(program)) == f"silu: passed. {PROGRAMS[program]} agrees with the specification in 7 cases."
    assert judge.check_of(Exercise(silu, CASES[:1], []))(program).message.endswith("in the one case.")


SHAPES = st.lists(st.integers(0, 3), max_size=4)
CHANGES = [torch.Tensor.half, torch.Tensor.long, torch.Tensor.bool, torch.Tensor.to_sparse, torch.Tensor.requires_grad_]
CHANGES += [torch.nn.Parameter, lambda y: y, lambda y: y / 0, lambda y: y.to("meta")]
TENSORS = st.builds(lambda shape, change: change(torch.full(shape, 0.5)), SHAPES, st.sampled_from(CHANGES))
THINGS = st.sampled_from([None, object(), len, torch.nn.Linear(2, 2), torch.float32, Exception("returned")])
SINGLE = TENSORS | THINGS | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text()
RESULTS = st.recursive(SINGLE, lambda one: st.lists(one) | st.tuples(one, one) | st.dictionaries(st.text(), one))
JUDGED = ["rms_norm", "rms_norm_backward", "causal_visible", "matrix_roles", "rows"]


@given(RESULTS, st.sampled_from([*JUDGED, "my_llama"]))
def test_whatever_is_returned_is_a_verdict_that_says_why(result, exercise):
    verdict = getattr(checks, f"check_{exercise}")(lambda *inputs: result)
    assert verdict.status == "failed"
    assert verdict.hint or "expected" in verdict.message
    assert verdict._repr_html_()


def recursion(x):
    return recursion(x)


def raises(error):
    def program(x):
        raise error

    return program


@pytest.mark.parametrize("program", [
    raises(SystemExit(3)), raises(MemoryError()), raises(StopIteration(3)), raises(RuntimeError("x" * 10**5)),
    raises(Warning("as an error")), recursion, lambda: 1, torch.add, dict, Silu, lambda x: undefined(x),  # noqa: F821
])  # fmt: skip
def test_any_error_is_a_verdict(program):
    result = check_silu(program)
    assert result.status == "failed"
    assert result.hint or "it raises" in result.message
    assert len(str(result)) < 1000


def test_an_error_shows_its_kind_its_text_its_line_and_the_shapes_there_and_no_cause():
    result = looked_at(lambda x, gain, power: x.reshape(7, 7), SMALL, LARGE)
    assert "it raises RuntimeError: shape '[7, 7]' is invalid" in result.message
    assert ', in the line "' in result.message
    assert " with x (2,)." in result.message
    assert "\n  gain   3" in result.message
    assert result.hint == ""


def but(exercise, change):
    return lambda *inputs: change(right_answer_to(exercise)(*inputs))


SWIGLU, BACKWARD = "swiglu", "rms_norm_backward"
SAID = [  # an exercise, a wrong program, and words of what is said of it, in their order
    *[("rms_norm", thing, "Hint: Hand over the function without calling it: check_rms_norm(rms_norm)")
      for thing in (None, 3, "rms_norm", torch.zeros(3), [])],
    ("silu", lambda x: x.to("meta").to_sparse(), "it raises NotImplementedError: "),  # PyTorch lacks it: no stub
    ("silu", type("Forgot", (torch.nn.Module,), {})(), "not yet"),  # PyTorch has `raise NotImplementedError`, too
    ("silu", lambda x: raises(NotImplementedError)(x) if x.dtype == torch.float16 else F.silu(x),
     "\nHint: Is a branch still empty?"),
    (SWIGLU, but(SWIGLU, torch.Tensor.to_sparse), "the result is a torch.sparse_coo tensor on the device cpu."),
    (SWIGLU, but(SWIGLU, torch.Tensor.double), "Hint: The values are right: .to(torch.float32) converts them."),
    (SWIGLU, but(SWIGLU, lambda y: (one for one in y)), "Hint: A generator comes from yield"),
    (SWIGLU, but(SWIGLU, lambda y: torch.nested.nested_tensor([y])), "Hint: Return a plain result."),  # has no shape
    (SWIGLU, but(SWIGLU, lambda y: (y, y)), "is a tuple of 2, expected a tensor.\nHint: Return one result"),
    (BACKWARD, but(BACKWARD, lambda pair: (2 * pair[0], pair[1])), "grad_x is off by up to"),
    (BACKWARD, but(BACKWARD, lambda pair: (*pair, pair[0])), "the result is a tuple of 3, expected 2 tensors."),
    (BACKWARD, but(BACKWARD, lambda pair: pair[0]), "is one tensor, expected 2 tensors.\nHint: Return all of them"),
    (BACKWARD, but(BACKWARD, list), "a list of 2, expected 2 tensors.\nHint: Return all of them as a tuple"),
    (BACKWARD, but(BACKWARD, lambda pair: (pair[0], None)), " has the type NoneType, expected a tensor."),
    ("budget", lambda vocab_size, *sizes: (4 * vocab_size + 1, 7), "count is 41, expected 172. … \n  vocab_size "),
    ("causal_visible", lambda t, s: torch.arange(s).expand(t, -1) == 0, "row 0, column 1 is False, expected True."),
    ("silu", lambda x: (lambda gate: (gate * x, gate.zero_())[0])(x.sigmoid()), "Hint: Does an in-place step"),
    ("silu", lambda x: x / (1 + math.exp(-x)), "math's functions, float() and .item() take one number"),
    ("silu", lambda x: F.silu(x) if x > -100 else 0 * x, "torch.where takes each alone"),
    ("silu", lambda x: torch.from_numpy(x.numpy() / (1 + np.exp(-x.numpy()))), "numpy loses the gradient"),
    ("silu", lambda x: F.silu(x) + 0 * x.flatten().dot(torch.ones(x.numel())), ".masked_fill keeps the dtype"),
]  # fmt: skip


@pytest.mark.parametrize(("exercise", "program", "words"), SAID, ids=[words for *_, words in SAID])
def test_what_is_wrong_is_said(exercise, program, words):
    said = (check_silu if exercise == "silu" else getattr(checks, f"check_{exercise}"))(program)
    assert said.status == "failed"
    shown = re.sub(', in the line "[^\n]*', "", repr(said))  # which may be the row itself, with its words
    assert re.search(".*".join(map(re.escape, words.split(" … "))), shown, re.DOTALL), said
    assert "Hint" not in said.message  # PyTorch's messages have hints of their own


def test_a_family_that_no_small_model_is_made_of_is_told_with_the_reason():
    said = checks.check_add_family(lambda: None, "gemma4_text").message
    assert said.startswith("This check makes no small random 'gemma4_text'")
    assert "'head_dim' is a per-layer attribute" in said


def of_a_cell(body, **names):
    """A function whose cell stands in a notebook that binds these names."""
    source = f"def silu(x):\n    {body}"
    names = {"In": ["", source]} | names
    exec(source, names)
    return names["silu"]


def test_after_a_restart_no_case_fails_and_the_cells_above_are_named():
    new = check_silu(of_a_cell("return x * torch.sigmoid(x)"))
    assert (new.status, new.cases) == ("failed", 0)
    assert repr(new) == (
        "silu: not yet. `torch` is not defined: this kernel is new.\n"
        "Hint: Click this cell, Run → Run All Above Selected Cell, then run it again."
    )
    assert "`F` is not defined: this kernel is new" in repr(check_silu(of_a_cell("return F.silu(x)", torch=torch)))
    assert check_silu(of_a_cell("return x * torch.sigmoid(x)", torch=torch))
    graded = of_a_cell("return x * trch.sigmoid(x)", In=[""])  # cut out of its notebook, with what it needs
    for wrong in (graded, of_a_cell("return x * trch.sigmoid(x)", torch=torch), of_a_cell("y = y * x", torch=torch)):
        assert "Failing cases: 7 of 7" in repr(check_silu(wrong)), checks.check_silu(wrong)


TIMER = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer: the stop button is left")


def endless(x):
    while True:
        pass


def endless_with_a_bare_except(x):
    while True:
        with contextlib.suppress(BaseException):
            float("x")


@TIMER
@pytest.mark.parametrize("program", [endless, endless_with_a_bare_except])
def test_an_endless_loop_ends_and_the_case_is_named(program, monkeypatch):
    monkeypatch.setattr("checks.run.PATIENCE", 600)  # on a busy machine the clock's limit would come first
    result = check_silu(program, seconds=0.1)
    assert result.message == "Case x = -2, -1, 0, 1, 3: no answer after 0.1 seconds on the processor."
    assert "never ends" in result.hint
    late = check_silu(lambda x: F.silu(x) if x.ndim == 1 else program(x), seconds=0.3)
    assert late.message.startswith("Case x of shape (2, 3, 5): no answer")


@TIMER
def test_an_alarm_that_comes_late_harms_nothing():
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process
    try:
        assert in_time(lambda: 1, 1)
        assert signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)


@TIMER
def test_seconds_count_on_the_processor_and_what_sleeps_ends_all_the_same():
    naps = iter([0.5])
    assert check_silu(lambda x: (time.sleep(next(naps, 0)), F.silu(x))[1], seconds=0.4)
    asleep = check_silu(lambda x: time.sleep(99), seconds=0.05)
    assert re.search(r"no answer after 0\.3 seconds, 0\.\d of them on the processor\.$", asleep.message)
    assert "sleep" in asleep.hint


def test_checks_work_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.extend(map(check_silu, (F.silu, lambda x: x))))
    thread.start()
    thread.join()
    assert [result.status for result in results] == ["passed", "failed"]


def helper(x):
    return silu(x)


class Layer(torch.nn.Module):
    def forward(self, x):
        return helper(x)


def imported_inside(x):
    from checks.swiglu import silu as own

    return own(x)


BORROWING = [silu, helper, Layer(), Layer().forward, lambda x: (lambda: silu(x))(), imported_inside]
BORROWING += [functools.partial(helper), torch.no_grad()(lambda x: silu(x)), lambda x, own=silu: own(x)]
BORROWING += [lambda x: next(map(checks.swiglu.silu, [x])), type("Own", (), {"__call__": lambda self, x: silu(x)})()]


@pytest.mark.parametrize("program", BORROWING)
def test_an_answer_that_names_the_courses_function_is_refused_in_whatever_way_it_calls_it(program):
    check = judge.check_of(Exercise(silu, CASES, []))
    said = "silu: not yet. The result is right, but it calls the course's silu: write it yourself."
    assert repr(check(program)) == said
    assert judge.check_of(Exercise(silu, CASES, [], allow=("silu",)))(program)
    assert judge.check_of(Exercise(silu, CASES, [], allow=("checks.swiglu.",)))(program)


block, sizes = small_llama("new").layers[0], small_llama("new").config  # a notebook's names: a block, and a value
double = torch.Tensor.double  # a method without a module


def test_what_only_has_such_a_name_is_not_refused():
    def silu(x: checks.CheckResult) -> Layer:
        """As checks.swiglu.silu does."""
        block = double(x).to(x.dtype)
        rows = [row * block.reshape(-1)[n].sigmoid() for n, row in enumerate(block.reshape(-1))]
        return torch.stack(rows).view_as(block) * (sizes.n_layers > 1)

    assert "calls the course's TransformerBlock" in repr(check_silu(lambda x: x * x.sigmoid() if block else x))
    assert check_silu(silu)
    assert check_silu(lambda x: torch.nn.SiLU()(silu(x)) * 0 + silu(x))


def settings():
    return [
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), random.getstate(),
        torch.get_rng_state().tolist(), torch.get_default_device(), torch.get_num_threads(),
        getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),  # "cpu", set aloud, would slow each call
    ]  # fmt: skip


def changes_settings(x):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    torch.manual_seed(123)
    random.seed(123)
    return x


def test_settings_that_a_function_changes_are_put_back_also_after_the_stop_button():
    def stopped(x):
        changes_settings(x)
        raise KeyboardInterrupt

    before = settings()
    assert check_silu(changes_settings).status == "failed"
    assert settings() == before
    assert check_silu(lambda x: torch.set_default_device("cpu") or x).status == "failed"
    assert settings() == before
    with pytest.raises(KeyboardInterrupt):
        check_silu(stopped)
    assert settings() == before


@pytest.mark.parametrize("exercise", ["rms_norm", "rows", "accumulated_step", "rope_angles", "budget"])
def test_settings_of_the_learner_do_not_change_the_verdict(exercise):
    torch.set_default_dtype(torch.float64)  # put back after every test, by conftest.py
    with torch.inference_mode(), torch.device("meta"):
        assert getattr(checks, f"check_{exercise}")(right_answer_to(exercise))
    seen = []
    check_silu(lambda x: seen.append(torch.ones(()).dtype))
    assert set(seen) == {torch.float32}


HALVED = """
import torch
switch = torch.backends.mkldnn.matmul
{}
import checks
inside = set()
right = lambda x, weight, eps: inside.add(switch.fp32_precision) or torch.nn.functional.rms_norm(x, x.shape[-1:])
checks.check_rms_norm(right)
print(inside, switch.fp32_precision)
"""


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="this torch has no such switch")
@pytest.mark.parametrize("how", ["torch.set_float32_matmul_precision('medium')", "switch.fp32_precision = 'bf16'"])
def test_products_are_computed_in_full_whatever_a_new_kernel_has_set(how):
    done = subprocess.run([sys.executable, "-c", HALVED.format(how)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "{'ieee'} bf16"


def test_an_older_torch_has_the_older_call(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "matmul", None, raising=False)
    torch.set_float32_matmul_precision("medium")
    try:
        with undisturbed():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("load", [lambda: checks.__getattr__("check_sample"), lambda: checks.my_parts("no", 7)])
def test_cases_are_made_under_torchs_defaults_whenever_they_are_loaded(load, monkeypatch):
    monkeypatch.delitem(sys.modules, "checks.generate", raising=False)
    for name in ("generate", "check_sample"):  # which loading binds
        monkeypatch.setattr(checks, name, None, raising=False)
    torch.set_default_dtype(torch.float64)
    load()
    assert sys.modules["checks.generate"].SAMPLE.cases[0].inputs[0].dtype == torch.float32
    assert torch.get_default_dtype() == torch.float64


def scaled(x, gain, power=1):
    """x times gain."""
    return x * gain


def looked_at(program, *cases, known=(), **options):
    """What a check of `scaled` says about a program."""
    return judge.check_of(Exercise(scaled, list(cases), list(known), **options))(program, seconds=120)


X = torch.tensor([1.0, -2.0])
SMALL, LARGE = Case("small", (X, 3, 1)), Case("large", (torch.ones(2, 3, 4), 3, 1))
HALF, GRADIENTS = Case("half", (X.half(), 3, 1)), Case("gradients", (X, 3, 1), gradients=True)


def test_an_unknown_mistake_is_shown_in_numbers_and_not_guessed_at():
    result = looked_at(lambda x, gain, power: x * gain + 0.12345678, LARGE, HALF, SMALL)
    assert str(result).split("\n") == [
        "scaled: not yet. Case small: the result is off by up to 0.123: -5.877 at [1], expected -6. "
        "Failing cases: 3 of 3.",
        "  x         [1, -2]",
        "  gain      3",
        "  power     1",
        "  yours     [3.123, -5.877]",
        "  expected  [3, -6]",
    ]
    assert result.hint == ""


ONE, IDS = Case("one number", (torch.tensor([0.4621]), 3, 1)), Case("ids", (torch.tensor([4, 5]), 3, 1))
BIG, THIRDS = Case("big", (12345 * X, 1, 1)), Case("thirds", (torch.tensor([1 / 3]), 1, 1))


def last_doubled(y):
    return torch.cat((y[..., :-1], 2 * y[..., -1:]), dim=-1)


@pytest.mark.parametrize(("case", "change", "words"), [
    (SMALL, lambda y: y[..., None], "\n  yours     [[3], [-6]]\n  expected  [3, -6]"),
    (SMALL, lambda y: y / 0, "the result holds nan or inf: 2 of 2 are inf."),
    (SMALL, lambda y: (y - y) / (y - y[0]), "holds nan or inf: 1 of 2 are nan."),
    (SMALL, lambda y: y.tolist(), "\n  yours     [3, -6]\n  expected  [3, -6]"),
    (BIG, lambda y: y - 23456, "is off by up to 23456: -11111 at [0], expected 12345."),
    (ONE, lambda y: y - 0.0033, "the result is 1.383, expected 1.386."),
    (ONE, lambda y: y * 1.00004, "the result is 1.38636, expected 1.3863."),  # four digits would hide it
    (SMALL, lambda y: y * 1.00004, "\n  yours     [3.00012, -6.00024]\n  expected  [3, -6]"),
    (IDS, lambda y: y + 1, "the result at [0] is 13, expected 12. … \n  yours     [13, 16]\n  expected  [12, 15]"),
    (THIRDS, torch.Tensor.half,
     "dtype torch.float16, expected torch.float32. … \n  yours     float16 [0.333252]\n  expected  [0.333333]"),
    (LARGE, last_doubled,
     "\n  x         shape (2, 3, 4), at [0, 0] [1, 1, 1, 1]\n … \n  yours     shape (2, 3, 4), at [0, 0, 3] 6\n"),
])  # fmt: skip
def test_numbers_are_shown_in_so_many_digits_that_they_differ(case, change, words):
    result = looked_at(lambda x, gain, power: change(x * gain), case)
    assert all(part in result.message for part in words.split(" … "))
    assert result.hint == ""


def test_of_the_failing_cases_the_smallest_is_shown():
    special, long = Case("special", (X, 3, 1), "Is x special?"), Case("long", (torch.ones(4, 6), 3, 1))
    ranked = [ONE, Case("many digits", (100 * torch.ones(12), 3, 1)), special, long, HALF, GRADIENTS]
    for place, smallest in enumerate(ranked):
        shown = looked_at(lambda x, gain, power: x + gain, *reversed(ranked[place:]))
        assert f"Case {smallest.label}: " in shown.message
    twice = lambda *given: torch.cat([right_answer_to("rope_angles")(*given)] * 2, dim=-1)  # noqa: E731
    assert "yours      [[0, 0, 0, 0], [1, 0.1, 1, 0.1]" in checks.check_rope_angles(twice).message  # not one on meta


def test_a_gradient_is_named_and_says_of_what():
    result = looked_at(lambda x, gain, power: x.detach() * gain + 0 * x, SMALL, GRADIENTS)
    assert "the gradient for x is off by up to" in result.message
    assert "\n  of        (y * torch.linspace(0.5, 1.5, y.numel())" in result.message
    assert "\n  yours     [0, 0]\n  expected  [1.5, 4.5]" in result.message
    assert "Is a part of the graph cut" in result.hint


def test_the_hint_of_special_cases_is_shown_only_if_exactly_they_fail():
    special, other = Case("special", (X, 0, 1), "Is a gain of 0 special?"), Case("other", (2 * X, 0, 1), SMALL.hint)
    wrong_for_0 = lambda x, gain, power: x * (gain or 1)  # noqa: E731
    assert looked_at(wrong_for_0, SMALL, special).hint == special.hint
    assert looked_at(wrong_for_0, SMALL, special, other).hint == ""  # another cause is possible
    assert looked_at(lambda x, gain, power: x + 1, special).hint == ""  # no other case passes
    assert looked_at(lambda x, gain, power: x + gain + 1, SMALL, special).hint == ""


def test_a_mistake_that_is_named_is_shown_in_numbers_all_the_same_in_the_smallest_case_that_it_explains():
    known = [("Is it times, not plus?", lambda x, gain, power: x + gain)]
    smaller = Case("another fault", (torch.tensor([2.0]), 2, 1))  # where the known mistake is right
    result = looked_at(lambda x, gain, power: x + gain * (gain > 2), LARGE, HALF, smaller, SMALL, known=known)
    assert str(result).split("\n") == [
        "scaled: not yet. Case small: the result is off by up to 7: 1 at [1], expected -6.",
        "Hint: Is it times, not plus?",
        *["  x         [1, -2]", "  gain      3", "  power     1", "  yours     [4, 1]", "  expected  [3, -6]"],
    ]


def test_a_known_mistake_is_named_only_if_no_answer_contradicts_it():
    known = [("Is it times, not plus?", lambda x, gain, power: x + gain)]
    both = SMALL, Case("gain 5", (X, 5, 1))
    assert looked_at(lambda x, gain, power: x + gain, *both, known=known).hint == known[0][0]
    assert looked_at(lambda x, gain, power: x + 3, *both, known=known).hint == ""
    overflows = Case("large gain", (X, 4e38, 1))  # a second fault: yours is inf where the known mistake is not
    assert looked_at(lambda x, gain, power: (x + gain) * 2 / 2, *both, overflows, known=known).hint == known[0][0]


def outer(a, b):
    """a (N,), b (N,) -> their outer sum a + 2 b, (N, N)."""
    return a[:, None] + 2 * b


def two(a, b):
    return a + b, a - b


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


A, B = torch.tensor([1.0, 4.0, -2.0]), torch.tensor([3.0, 0.5, 7.0])
TWO = [Case("a, b", (A, B)), Case("b, 3 a", (B, 3 * A))]
FACTS = [  # a specification, its cases, a wrong program, and what is said of it where no known mistake explains it
    (outer, TWO, lambda a, b: outer(a, b).T, "Yours is the expected result transposed."),
    (outer, TWO, lambda a, b: outer(b, a), "Yours is right for a and b exchanged."),
    (outer, TWO, lambda a, b: 2 * math.pi * outer(a, b), "Yours is 2π times the expected result."),
    (outer, TWO, lambda a, b: outer(a, b).flip(-1), "Yours is the expected result with its columns in reverse order."),
    (outer, TWO, lambda a, b: a, "Yours is the first argument, unchanged."),
    (outer, TWO, lambda a, b: outer(a, b).T if a[0] == 1 else outer(a, b) + 1, ""),  # so in one case only
    (outer, TWO, lambda a, b: outer(a, b) + 1, ""),
    (two, TWO, lambda a, b: two(a, b)[::-1], "Yours has the two results exchanged."),
    (causal, [Case("3", (3,))], lambda n: ~causal(n),
     "Yours is the contrary of the expected result: True where it is False."),
    (scaled, [Case("1", (torch.tensor([1.0]), 3.0))], lambda x, gain: x + gain + 2, ""),  # 6 is twice 3 in many ways
]  # fmt: skip


@pytest.mark.parametrize(("specification", "cases", "program", "fact"), FACTS)
def test_a_fact_is_said_where_it_explains_every_case(specification, cases, program, fact):
    said = judge.check_of(Exercise(specification, cases, []))(program)
    assert (said.status, said.hint) == ("failed", fact)
    if cases is TWO:  # with the numbers below
        assert "yours" in said.message or fact.startswith("Yours is the first")


def test_an_exercises_own_mistake_comes_before_a_fact_that_explains_more():
    known = [("Is the sign right?", lambda a, b: outer(a, b) * (-1 if a[0] == 1 else 1))]
    assert judge.check_of(Exercise(outer, TWO, known))(lambda a, b: -outer(a, b)).hint == "Is the sign right?"


def by_backward(x, gain, power):
    z = x.detach().clone().requires_grad_()
    (z * z * gain / 2).sum().backward()
    return z.grad


FORBIDDEN = {  # torch's name of a function, and a program that calls it
    "silu": lambda x, gain, power: torch.nn.SiLU()(x) / x.sigmoid() * gain,
    "backward": by_backward,
    "grad": lambda x, gain, power: torch.func.grad(lambda z: (z * z * gain / 2).sum())(x),
    "_make_dual": lambda x, gain, power: torch.func.jvp(lambda z: z * gain, (x,), (x,))[1],
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_function_is_seen_and_neither_ones_own_of_that_name_nor_the_gradients_of_the_check(name):
    def silu(x):
        return x

    result = looked_at(FORBIDDEN[name], SMALL, forbid=("silu", *AUTOGRAD))
    assert f"the result is right, but it calls torch's {name}, which this exercise rules out." in result.message
    assert looked_at(lambda x, gain, power: silu(x) * gain, SMALL, GRADIENTS, forbid=("silu", *AUTOGRAD))


def test_printing_is_shown_and_cut(capsys):
    check_silu(lambda x: [print("still here, still wrong") for _ in range(2000)] and x)
    shown = capsys.readouterr().out
    assert shown.startswith("still here")
    assert len(shown) == PRINTED


def test_html_is_escaped_and_says_the_same_words():
    shown = checks.CheckResult("silu", "failed", "it raises <b>\n  x  <1>\n  y  2", "a < b?")._repr_html_()
    assert "</strong> it raises &lt;b&gt;<br><em>Hint:</em> a &lt; b?<pre>  x  &lt;1&gt;\n  y  2</pre></div>" in shown


def test_a_case_that_tells_right_from_wrong_by_one_percent_is_refused(monkeypatch):
    require_margin("a port", within=[0.97], beyond=[1.03])
    for near in ({"within": [0.99]}, {"beyond": [2.0, 1.01]}, {"beyond": [float("nan")]}):
        with pytest.raises(ValueError, match=r"a port: (0.99|1.01|nan).* move the case away"):
            require_margin("a port", **near)
    with pytest.raises(ValueError, match=r"also='half meta' names .*: write 'half', 'meta' or both"):
        Case("x", (), also="half meta")
    weights, x, y = swiglu._positive()  # a case of the course, with a limit just below what its wrong order gives
    up, gate, down = weights[1], weights[2], weights[0]
    off = (swiglu.swiglu(x.double(), up, gate, down) - y).abs().max().item()
    monkeypatch.setattr(swiglu, "ATOL", off / 1.01)
    with pytest.raises(ValueError, match=r"matrix_roles: 1.01.* move the case away"):
        swiglu._positive()
