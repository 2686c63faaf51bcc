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


def scaled(x, gain):
    return x * gain


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


A, B = torch.tensor([1.0, 4.0, -2.0]), torch.tensor([3.0, 0.5, 7.0])
CASES = {scaled: [(torch.tensor([1.0]), 3.0)], causal: [(3,)]}
FACTS = [
    (outer, lambda a, b: outer(a, b).T, "Yours is the expected result transposed."),
    (outer, lambda a, b: outer(b, a), "Yours is right for a and b exchanged."),
    (outer, lambda a, b: 2 * math.pi * outer(a, b), "Yours is 2π times the expected result."),
    (outer, lambda a, b: outer(a, b).flip(-1), "Yours is the expected result with its columns in reverse order."),
    (outer, lambda a, b: a, "Yours is the first argument, unchanged."),
    (outer, lambda a, b: outer(a, b).T if a is not b and a[0] == 1 else outer(a, b) + 1, ""),  # so in one case only
    (outer, lambda a, b: outer(a, b) + 1, ""),
    (two, lambda a, b: two(a, b)[::-1], "Yours has the two results exchanged."),
    (causal, lambda n: ~causal(n), "Yours is the contrary of the expected result: True where it is False."),
    (scaled, lambda x, gain: x + gain + 2, ""),  # of one number no fact is said: 6 is twice 3 in many ways
]


def check(specification, known=()):
    cases = CASES.get(specification, [(A, B), (B, 3 * A)])
    return check_of(Exercise(specification, [Case(f"case {n}", inputs) for n, inputs in enumerate(cases)], [*known]))


@pytest.mark.parametrize(("specification", "program", "fact"), FACTS)
def test_a_fact_is_said_where_it_explains_every_case(specification, program, fact):
    said = check(specification)(program)
    assert (said.status, said.hint) == ("failed", fact)
    if specification in (outer, two):  # with the numbers below
        assert "yours" in said.message or fact.startswith("Yours is the first")


def test_an_exercises_own_mistake_comes_before_a_fact_that_explains_more():
    def contrary(a, b):
        if a[0] != 1:
            raise ValueError("this mistake cannot be made here")
        return -outer(a, b)

    assert check(outer, [("Is the sign right?", contrary)])(lambda a, b: -outer(a, b)).hint == "Is the sign right?"
