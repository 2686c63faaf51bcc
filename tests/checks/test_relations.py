"""A wrong answer that no known mistake explains is told what it is to the right one, and only what is so."""

import math

import pytest
import torch

from checks.base import Case, Exercise
from checks.judge import check_of


def outer(a, b):
    """a (N,), b (N,) -> their outer sum a + 2 b, (N, N)."""
    return a[:, None] + 2 * b


def two(a, b):
    return a + b, a - b


A, B = torch.tensor([1.0, 4.0, -2.0]), torch.tensor([3.0, 0.5, 7.0])
FACTS = [
    (outer, lambda a, b: outer(a, b).T, "Yours is the expected result transposed."),
    (outer, lambda a, b: outer(b, a), "Yours is right for a and b exchanged."),
    (outer, lambda a, b: 2 * math.pi * outer(a, b), "Yours is 2π times the expected result."),
    (outer, lambda a, b: outer(a, b).flip(-1), "Yours is the expected result with its columns in reverse order."),
    (outer, lambda a, b: a, "Yours is the first argument, unchanged."),
    (outer, lambda a, b: outer(a, b).T if a is not b and a[0] == 1 else outer(a, b) + 1, ""),  # so in one case only
    (outer, lambda a, b: outer(a, b) + 1, ""),
    (two, lambda a, b: two(a, b)[::-1], "Yours has the two results exchanged."),
]


@pytest.mark.parametrize(("specification", "program", "fact"), FACTS)
def test_a_fact_is_said_where_it_explains_every_case(specification, program, fact):
    exercise = Exercise(specification, [Case("first", (A, B)), Case("second", (B, 3 * A))], [])
    said = check_of(exercise)(program)
    assert (said.status, said.hint) == ("failed", fact)
    assert "yours" in said.message or fact.startswith("Yours is the first")  # with the numbers below


def test_an_exercises_own_mistake_comes_before_a_fact_that_explains_more():
    def contrary(a, b):
        if a[0] != 1:
            raise ValueError("this mistake cannot be made here")
        return -outer(a, b)

    known = [("Is the sign right?", contrary)]
    exercise = Exercise(outer, [Case("first", (A, B)), Case("second", (B, 3 * A))], known)
    assert check_of(exercise)(lambda a, b: -outer(a, b)).hint == "Is the sign right?"


def test_of_one_number_no_fact_is_said():
    """6 is twice 3 in many ways."""

    def scaled(x, gain):
        return x * gain

    said = check_of(Exercise(scaled, [Case("one number", (torch.tensor([1.0]), 3.0))], []))(
        lambda x, gain: x + gain + 2
    )
    assert said.hint == ""


def test_a_mask_is_told_that_it_is_inverted():
    def causal(n):
        return torch.ones(n, n, dtype=torch.bool).tril()

    said = check_of(Exercise(causal, [Case("three", (3,))], []))(lambda n: ~causal(n))
    assert said.hint == "Yours is the contrary of the expected result: True where it is False."
