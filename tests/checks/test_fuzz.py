"""Whatever a learner hands in, a check answers: in time, within a gigabyte, and with Python as it was before.

A submission is made of what it does first (changes settings, replaces names, prints, spoils its inputs), how it ends
(an answer, right or spoilt or of any kind; an error; never), and the kind of callable that it is. As in
tests/test_fuzz.py, the same cases on every run, new ones at night.
"""

import builtins
import contextlib
import functools
import io
import math
import os
import random
import re
import sys
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import checks
from checks import judge, swiglu
from tests.checks.test_judge import EXERCISES, PLAIN, Agreeable, Strange, StrangeError, everything
from tests.support.fuzz import ODD, cases, limit_memory, time_limit  # noqa: F401
from tests.support.right_answers import right_answer_to

# --------------------------------------------------------------------------------------- what it does first


def tensors_of(inputs):
    return [value for value in inputs if isinstance(value, torch.Tensor)]


def in_place(*inputs):
    for tensor in tensors_of(inputs):
        with torch.no_grad():
            tensor.add_(1)


def attributes(*inputs):
    for tensor in tensors_of(inputs):
        tensor.requires_grad_(tensor.is_floating_point())
        tensor.shape_of_mine = (1, 2)


DEEDS = {
    "nothing": lambda *inputs: None,
    "the default dtype": lambda *inputs: torch.set_default_dtype(torch.float64),
    "the default device": lambda *inputs: torch.set_default_device("meta"),
    "no gradients": lambda *inputs: torch.set_grad_enabled(False),
    "inference": lambda *inputs: torch.inference_mode().__enter__(),
    "lower precision": lambda *inputs: torch.autocast("cpu", dtype=torch.bfloat16).__enter__(),
    "deterministic": lambda *inputs: torch.use_deterministic_algorithms(True),
    "threads": lambda *inputs: torch.set_num_threads(3),
    "anomalies": lambda *inputs: torch.autograd.set_detect_anomaly(True),
    "torch's seed": lambda *inputs: torch.manual_seed(7),
    "Python's seed": lambda *inputs: random.seed(7),
    "warnings are errors": lambda *inputs: warnings.simplefilter("error"),
    "a warning": lambda *inputs: warnings.warn("careful", stacklevel=1),
    "the environment": lambda *inputs: os.environ.clear(),
    "the folder": lambda *inputs: os.chdir("/"),
    "shallow recursion": lambda *inputs: sys.setrecursionlimit(200),
    "printing": lambda *inputs: print("<script>alert(1)</script>" * 1000),
    "no stdout": lambda *inputs: setattr(sys, "stdout", None),
    "equal": lambda *inputs: setattr(torch, "allclose", lambda *x, **options: True),
    "len": lambda *inputs: setattr(builtins, "len", lambda x: 3),
    "isinstance": lambda *inputs: setattr(builtins, "isinstance", lambda x, kinds: True),
    "a square root": lambda *inputs: setattr(math, "sqrt", lambda x: 1.0),
    "a method": lambda *inputs: setattr(torch.Tensor, "double", lambda self: torch.zeros(())),
    "the specification": lambda *inputs: setattr(swiglu, "silu", lambda x: x),
    "the checks": lambda *inputs: setattr(judge, "_compare", lambda *x: None),
    "its inputs": in_place,
    "attributes of its inputs": attributes,
    "tracing": lambda *inputs: sys.settrace(lambda *x: None),
}

# ------------------------------------------------------------------------------------------- how it ends


def each(change):
    """The change of a tensor, applied to every tensor of an answer; of a number it makes a tensor first."""

    def changed(answer):
        if isinstance(answer, tuple):
            return tuple(map(changed, answer))
        return change(answer if isinstance(answer, torch.Tensor) else torch.tensor(answer))

    return changed


def one_entry(value):
    def change(tensor):
        flat = tensor.clone().double().flatten()
        flat[len(flat) // 2] = value
        return flat.reshape(tensor.shape).to(tensor.dtype if tensor.is_floating_point() else torch.float32)

    return each(change)


SPOILT = {  # each makes a right answer wrong
    "nan": one_entry(math.nan),
    "inf": one_entry(-math.inf),
    "a tenth more": each(lambda tensor: tensor * 1.1),
    "one dimension more": each(lambda tensor: tensor[None]),
    "an entry less": each(lambda tensor: tensor.flatten()[1:]),
    "complex": each(lambda tensor: tensor.to(torch.complex64)),
    "float8": each(lambda tensor: tensor.to(torch.float8_e4m3fn)),
    "a gigabyte": each(lambda tensor: tensor.double().sum().expand(2**27)),
    "a terabyte": each(lambda tensor: tensor.double().sum().expand(2**37)),
    "sparse": each(lambda tensor: tensor.detach().to_sparse()),
    "without numbers": each(lambda tensor: tensor.to("meta")),
    "numpy": each(lambda tensor: tensor.detach().double().numpy()),
    "quantized": each(lambda tensor: torch.quantize_per_tensor(tensor.detach().float(), 0.1, 0, torch.qint8)),
    "nested": each(lambda tensor: torch.nested.nested_tensor([tensor.detach().float()])),
    "a list": lambda answer: [answer],
    "a tuple": lambda answer: (answer,),
    "three of it": lambda answer: (answer, answer, answer),
    "a dictionary": lambda answer: {"answer": answer},
    "its text": str,
    "a function of it": lambda answer: lambda: answer,
    "nothing": lambda answer: None,
}
DTYPES = [value for value in vars(torch).values() if type(value) is torch.dtype]
THINGS = {
    "strange": Strange(), "a class": Strange, "an object": object(), "print": print, "a module": torch,
    "an error": Exception("returned"), "a range": range(3), "bytes": b"4", "a set": {4},
}  # fmt: skip
LAYOUTS = {
    "plain": lambda tensor: tensor,
    "meta": lambda tensor: tensor.to("meta"),
    "sparse": lambda tensor: tensor.to_sparse(),
    "turned": lambda tensor: tensor.movedim(0, -1),
    "a parameter": torch.nn.Parameter,
    "conjugate": lambda tensor: tensor.to(torch.complex64).conj(),
    "agreeable": lambda tensor: tensor.as_subclass(Agreeable),
}


def built(recipe):
    """The value of a recipe, which is shown where a case fails; many of these values cannot be shown."""
    kind, *rest = recipe
    if kind == "tensor":
        shape, dtype, fill, layout = rest
        try:
            return LAYOUTS[layout](torch.full(shape, fill).to(dtype))
        except (RuntimeError, IndexError):  # PyTorch knows none of this kind
            return None
    if kind == "thing":
        return THINGS[rest[0]]
    if kind == "odd":
        return rest[0]
    parts = [built(part) for part in rest[0]]
    return {"list": list, "tuple": tuple, "dict": lambda parts: dict(enumerate(parts))}[kind](parts)


RECIPES = st.recursive(
    st.tuples(st.just("thing"), st.sampled_from(sorted(THINGS)))
    | st.tuples(st.just("odd"), ODD)
    | st.tuples(
        st.just("tensor"), st.lists(st.integers(0, 5), max_size=4), st.sampled_from(DTYPES),
        st.sampled_from([0.0, 1.0, -1.0, 0.5, math.nan, math.inf, 1e30]), st.sampled_from(sorted(LAYOUTS)),
    ),
    lambda inner: st.tuples(st.sampled_from(["list", "tuple", "dict"]), st.lists(inner, max_size=3)),
    max_leaves=4,
)  # fmt: skip
ERRORS = {
    "for a page": ValueError("<script>alert(1)</script>"), "without a text": StrangeError(),
    "the stop button": KeyboardInterrupt(), "an exit": SystemExit(0), "a generator's": GeneratorExit(),
    "an iterator's": StopIteration(3), "memory": MemoryError(), "depth": RecursionError("too deep"),
    "two": BaseExceptionGroup("two", [ValueError(), OSError()]), "a long one": RuntimeError("x" * 10**6),
    "a text": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), "an assertion": AssertionError(),
    "the checks' own": checks.Problem("a problem of its own", "and a hint"), "a warning": Warning("as an error"),
}  # fmt: skip


def deep(*inputs):
    return deep(*inputs)


def endless(*inputs):
    while True:
        pass


ACTS = {
    "too deep": deep, "too large": lambda *inputs: torch.zeros(10**15), "too many bytes": lambda *inputs: bytes(10**15),
    "no attribute": lambda *inputs: inputs.nothing, "a loop": endless,
    "an exit": lambda *inputs: sys.exit(3), "no key": lambda *inputs: {}[inputs],
}  # fmt: skip
ENDINGS = (
    st.tuples(st.just("right"), st.none()) | st.tuples(st.just("spoilt"), st.sampled_from(sorted(SPOILT)))
    | st.tuples(st.just("a value"), RECIPES) | st.tuples(st.just("an error"), st.sampled_from(sorted(ERRORS)))
    | st.tuples(st.just("an act"), st.sampled_from(sorted(ACTS)))
)  # fmt: skip

# ------------------------------------------------------------------------------------------- what it is


class Callable:
    """An object that can be called and is odd otherwise."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *inputs):
        return self.function(*inputs)

    def method(self, *inputs):
        return self.function(*inputs)

    def __getattr__(self, name):
        raise ValueError(name)

    def __eq__(self, other):
        raise ValueError("no comparison")

    __hash__ = None


def with_an_odd_name(function):
    function.__name__ = "<script>alert(1)</script>"
    return function


KINDS = {
    "a function": lambda function: function,
    "an odd name": with_an_odd_name,
    "an object": Callable,
    "a method": lambda function: Callable(function).method,
    "a part": functools.partial,
    "cached": functools.cache,
}


def submission(exercise, deeds, ending, kind):
    """The program that does the deeds and then ends so."""
    right = right_answer_to(exercise)
    how, what = ending

    def program(*inputs):
        for deed in deeds:
            DEEDS[deed](*inputs)
        if how == "an error":
            raise ERRORS[what]
        if how == "an act":
            return ACTS[what](*inputs)
        if how == "a value":
            return built(what)
        return SPOILT[what](right(*inputs)) if how == "spoilt" else right(*inputs)

    return KINDS[kind](program)


@pytest.mark.filterwarnings("ignore")
@cases("submission")
@given(
    st.sampled_from(sorted(EXERCISES)), st.lists(st.sampled_from(sorted(DEEDS)), max_size=2), ENDINGS,
    st.sampled_from(sorted(KINDS)),
)  # fmt: skip
def test_any_submission_gets_a_verdict_and_leaves_nothing_behind(exercise, deeds, ending, kind):
    before = everything()
    program = submission(exercise, deeds, ending, kind)
    with time_limit(), contextlib.redirect_stdout(io.StringIO()):
        result = getattr(checks, f"check_{exercise}")(program, seconds=0.3 if ending == ("an act", "a loop") else 25)
    assert everything() == before
    assert type(result) is checks.CheckResult
    assert result.status in ("passed", "failed")
    assert result.hint or result
    assert result.name == exercise
    assert "<script" not in result._repr_html_()
    assert len(str(result)) < 2000
    assert not re.search(r"answer cannot be compared \((Attribute|Name|Index|Key)Error", str(result))
    if exercise in PLAIN and ending[0] != "right":
        assert not result, str(result)
    if ending[0] == "right" and set(deeds) <= {"nothing", "torch's seed", "Python's seed", "printing", "the folder"}:
        assert result or kind == "cached", str(result)
