"""Answers to every exercise, one file per notebook: the checks must accept the right ones and reject the wrong ones.

A right answer is written in another way than the others, and than the notebook's solution, which is judged there.
A wrong one shows what no known mistake of `checks` does: those are submitted too, by tests/checks.
"""

# ruff: noqa: F401  importing a file registers its answers
from tests.support.answers import (
    course,
    full_model,
    generate,
    gqa,
    my_llama,
    relatives,
    rmsnorm,
    rope,
    scaling_out,
    swiglu,
    train,
)
from tests.support.answers.register import RIGHT, WRONG, right_answer_to
