"""Whatever a learner's function raises or returns, a check gives a verdict, says why, and leaves the settings alone."""

import functools
import random
import signal
import threading
import time

import pytest
import torch
from torch.nn import functional as F

import checks
from checks import judge
from tests.support.answers import right_answer_to

# ------------------------------------------------------------------------------------------------ not attempted


def stub_raises(x, weight, eps):
    """Divide by the root mean square."""
    raise NotImplementedError("your turn")


def stub_is_empty(x, weight, eps):
    """Divide by the root mean square."""


def stub_has_dots(x, weight, eps): ...


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
    assert str(result) == "rms_norm: not attempted yet. Replace the body of the function, then run this cell again."


def test_every_check_knows_a_stub_and_says_what_to_write():
    def stub(*inputs):
        raise NotImplementedError

    for name, check in vars(checks).items():
        if name.startswith("check_"):
            assert check(stub).status == "todo"
            names = ", ".join(check.exercise.parameters)
            assert check.__doc__.startswith(f"Check your `{name[6:]}({names})`. ")


def test_an_operation_that_pytorch_lacks_is_an_error_and_not_a_stub():
    result = checks.check_silu(lambda x: x.to("meta").to_sparse())  # PyTorch raises NotImplementedError as well
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
    assert (result.status, result.hint) == ("failed", "Is a branch still empty?")


# ------------------------------------------------------------------------------- what a function may be and return


class Silu:
    def __call__(self, x):
        return x * x.sigmoid()

    def method(self, x):
        return x * x.sigmoid()


@pytest.mark.parametrize("program", [torch.nn.SiLU(), Silu(), Silu().method, functools.partial(F.silu, inplace=False)])
def test_right_answer_need_not_be_a_plain_function(program):
    result = checks.check_silu(program)
    assert result, result
    assert result.message.startswith(("Your function agrees", "method agrees"))


@pytest.mark.parametrize("thing", [None, 3, "rms_norm", torch.zeros(3), []])
def test_handing_over_something_else_than_a_function_is_explained(thing):
    result = checks.check_rms_norm(thing)
    assert result.status == "failed"
    assert "check_rms_norm(rms_norm)" in result.hint


RESULTS = [
    None, True, 3, 2.5, 1j, "text", [], (), {}, [[1.0], [2.0]], object(), len, float("nan"), torch.zeros(0),
    torch.zeros(2, 3, 4), torch.full((5,), float("nan")), torch.zeros(5, device="meta"), torch.zeros(5).to_sparse(),
    torch.zeros(5, requires_grad=True), torch.nn.Parameter(torch.zeros(5)), torch.nn.Linear(2, 2), torch.float32,
    (torch.zeros(5), torch.zeros(5)), (torch.zeros(5), None), Exception("returned"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(RESULTS)))
def test_any_result_is_rejected_without_an_error(place):
    for exercise in ("silu", "rms_norm_backward", "hidden_dim", "causal_visible", "matrix_roles", "cache_write"):
        result = getattr(checks, f"check_{exercise}")(lambda *inputs: RESULTS[place])
        assert result.status == "failed", exercise
        assert result.hint
        assert result._repr_html_()


def test_a_tensor_without_a_shape_is_rejected_without_an_error():
    assert checks.check_silu(lambda x: torch.nested.nested_tensor([x])).hint == "Return a plain result."


@pytest.mark.parametrize(
    ("exercise", "change", "words"),
    [
        ("silu", torch.Tensor.tolist, "the result has the type list, expected a tensor."),
        ("silu", lambda y: y / 0, "the result holds nan or inf."),
        ("silu", torch.Tensor.to_sparse, "the result is a torch.sparse_coo tensor on the device cpu."),
        ("hidden_dim", float, "the result has the type float, expected a whole number (int)."),
        ("rms_norm_backward", lambda pair: (*pair, pair[0]), "the result is a tuple of 3, expected 2 tensors."),
        ("rms_norm_backward", lambda pair: pair[0], "the result is one tensor, expected 2 tensors."),
        ("rms_norm_backward", lambda pair: (pair[0], None), "result 2 has the type NoneType, expected a tensor."),
        ("rms_norm_backward", lambda pair: (pair[0], 2 * pair[1]), "result 2 is off by"),
    ],
)
def test_a_result_of_another_kind_is_named(exercise, change, words):
    right = right_answer_to(exercise)
    result = getattr(checks, f"check_{exercise}")(lambda *inputs: change(right(*inputs)))
    assert words in result.message


def test_yield_where_return_is_meant_is_named():
    def generator(x):
        yield x

    assert "yield" in checks.check_silu(generator).hint


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_tenth_too_much_is_wrong_in_half_precision_too(dtype):
    right = right_answer_to("rms_norm")
    result = checks.check_rms_norm(lambda x, *rest: right(x, *rest) * (1.1 if x.dtype == dtype else 1))
    assert "is off by up to" in result.message


def test_a_mistake_that_nobody_knows_gets_the_hint_of_its_exercise():
    result = checks.check_silu(lambda x: torch.sigmoid(x) * x + 0.37 * x.abs() + 0.2)
    assert result.hint == checks.check_silu.exercise.hint


def test_a_right_result_that_changes_its_input_is_rejected():
    def leaves_zeros(x):
        y = x * x.sigmoid()
        x.detach().zero_()
        return y

    result = checks.check_silu(leaves_zeros)
    assert (result.status, result.hint) == ("failed", judge.IN_PLACE)
    assert "the result is right, but the input x was changed in place" in result.message


# ---------------------------------------------------------------------------------------- errors, and the time


def recursion(x):
    return recursion(x)


def raises(error):
    def program(x):
        raise error

    return program


@pytest.mark.parametrize(
    "program",
    [
        raises(SystemExit(3)), raises(MemoryError()), raises(StopIteration(3)), raises(RuntimeError("x" * 10**6)),
        raises(Warning("as an error")), recursion, lambda: 1, torch.add, dict, Silu, lambda x: undefined(x),  # noqa: F821
    ],
)  # fmt: skip
def test_any_error_is_a_verdict(program):
    result = checks.check_silu(program)
    assert result.status == "failed"
    assert result.hint
    assert len(str(result)) < 1000


def test_an_error_shows_its_kind_its_text_and_the_line():
    def broken(x):
        return x.reshape(7, 7)

    result = checks.check_silu(broken)
    assert "RuntimeError: shape '[7, 7]' is invalid" in result.message
    assert 'in the line "return x.reshape(7, 7)"' in result.message


def test_an_error_of_the_backward_pass_is_told():
    def overwrites_what_the_gradient_needs(x):
        gate = x.sigmoid()
        y = gate * x
        gate.zero_()
        return y

    result = checks.check_silu(overwrites_what_the_gradient_needs)
    assert "it raises RuntimeError: one of the variables needed for gradient computation" in result.message
    assert "in-place step" in result.hint


TIMER = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer: the stop button is left")


def endless(x):
    while True:
        pass


def endless_with_a_bare_except(x):
    while True:
        try:  # noqa: SIM105
            float("x")
        except:  # noqa: E722
            pass


@TIMER
@pytest.mark.parametrize("program", [endless, endless_with_a_bare_except])
def test_an_endless_loop_ends_and_the_case_is_named(program):
    start = time.monotonic()
    result = checks.check_silu(program, seconds=0.2)
    assert time.monotonic() - start < 60
    assert result.message == "Case x = -2, -1, 0, 1, 3: no answer after 0.2 seconds."
    assert "never ends" in result.hint


@TIMER
def test_a_timer_of_the_learner_rings_after_the_check():
    rung = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rung.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        assert checks.check_silu(F.silu)
        assert rung.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_checks_work_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(checks.check_silu(F.silu)))
    thread.start()
    thread.join()
    assert results[0]


# --------------------------------------------------------------------------------------------- what is left behind


def settings():
    return [
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), random.getstate(),
        torch.get_rng_state().tolist(), torch.get_default_device(),
    ]  # fmt: skip


def changes_settings(x):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.manual_seed(123)
    random.seed(123)
    return x


def test_the_stop_button_stops_the_check_and_puts_the_settings_back():
    def stopped(x):
        changes_settings(x)
        raise KeyboardInterrupt

    before = settings()
    with pytest.raises(KeyboardInterrupt):
        checks.check_silu(stopped)
    assert settings() == before


def test_settings_that_a_function_changes_are_put_back():
    before = settings()
    assert checks.check_silu(changes_settings).status == "failed"
    assert settings() == before


@pytest.mark.parametrize("exercise", ["rms_norm", "attention_head", "cross_entropy", "rope_angles", "tie_weights"])
def test_settings_of_the_learner_do_not_change_the_verdict(exercise):
    torch.set_default_dtype(torch.float64)  # put back after every test, by conftest.py
    with torch.inference_mode(), torch.device("meta"):
        assert getattr(checks, f"check_{exercise}")(right_answer_to(exercise))
    seen = []
    checks.check_silu(lambda x: seen.append(torch.ones(()).dtype))
    assert set(seen) == {torch.float32}


# ---------------------------------------------------------------------------------------------- what is shown


def test_printing_is_shown_and_cut(capsys):
    def chatty(x):
        for _ in range(2000):
            print("still here, still wrong")
        return x

    checks.check_silu(chatty)
    shown = capsys.readouterr().out
    assert shown.startswith("still here")
    assert len(shown) == judge.PRINTED


def test_success_takes_its_name_from_the_function_and_the_exercise():
    def my_first_norm(x, weight, eps):
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    n_cases = len(checks.check_rms_norm.exercise.cases)
    words = f"rms_norm: passed. my_first_norm agrees with the specification in {n_cases} cases."
    assert str(checks.check_rms_norm(my_first_norm)) == words
    assert checks.check_silu(lambda x: x * x.sigmoid()).message.startswith("Your function agrees")
    assert checks.check_block_plan(right_answer_to("block_plan")).message.endswith("in the one case.")


def test_failure_names_the_case_both_shapes_or_the_largest_difference():
    shape = checks.check_rms_norm(lambda x, weight, eps: x.sum())
    assert shape.message == "Case one row, eps 0.1: the result has the shape (), expected (1, 6)."
    value = checks.check_hidden_dim(lambda dim, multiple_of, multiplier: 4 * dim)
    assert "the result is 16384, expected 11008." in value.message
    mask = checks.check_causal_visible(lambda t, s: torch.ones(t, s).tril().bool())
    assert mask.message == "Case 3 queries, 7 keys: row 0, column 1 is False, expected True."
    dtype = checks.check_silu(lambda x: x.float() * x.float().sigmoid())
    assert "torch.float32, expected torch.float16" in dtype.message
    size = checks.check_silu(lambda x: x.sigmoid())
    assert size.message == "Case x = -2, -1, 0, 1, 3: the result is off by up to 2 (its largest entry should be 3)."


def test_html_is_escaped_and_says_the_same_words():
    result = checks.CheckResult("silu", "failed", "it raises <b>", "a < b?")
    assert result._repr_html_() == (
        "<div><strong>silu: not yet.</strong> it raises &lt;b&gt;<br><em>Hint:</em> a &lt; b?</div>"
    )
