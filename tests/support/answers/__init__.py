"""Answers to every exercise, one file per notebook: the checks must accept the right ones and reject the wrong ones.

A right answer is written in another way than the others, and than the notebook's solution, which is judged there.
A wrong one shows what no known mistake of `checks` does: those are submitted too, by tests/checks.
"""

import pkgutil
from importlib import import_module

from tests.support.answers.register import RIGHT, WRONG, right_answer_to

__all__ = ["RIGHT", "WRONG", "right_answer_to"]
for file in pkgutil.iter_modules(__path__):  # importing a file registers its answers
    import_module(f"{__name__}.{file.name}")
