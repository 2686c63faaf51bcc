"""What a wrong answer is to the right one, whatever the exercise: facts about the numbers, which tell no solution.

A fact is a change of the right result, or of the arguments that the specification gets. It is said where no known
mistake of the exercise explains anything.
"""

import math
from itertools import combinations

import torch

FACTORS = {"-1": -1, "2": 2, "1/2": 1 / 2, "2π": 2 * math.pi, "1/2π": 0.5 / math.pi, "180/π": 180 / math.pi}
CHANGES = {
    "Yours holds only zeros.": torch.zeros_like,
    "Yours is the contrary of the expected result: True where it is False.": torch.logical_not,
    "Yours is True everywhere.": torch.ones_like,
    "Yours is the expected result transposed.": lambda want: want.mT,
    "Yours has the first two dimensions of the expected result exchanged.": lambda want: want.transpose(0, 1),
    "Yours is the expected result with its rows in reverse order.": lambda want: want.flip(-2),
    "Yours is the expected result with its columns in reverse order.": lambda want: want.flip(-1),
    "Yours is the expected result with its halves exchanged.": lambda want: torch.cat(want.chunk(2, -1)[::-1], -1),
    **{f"Yours is {name} times the expected result.": lambda want, factor=factor: want * factor
       for name, factor in FACTORS.items()},
}  # fmt: skip
FOR_BOOLEANS = (torch.logical_not, torch.ones_like)


def of_result(want):
    """(fact, the right result so changed): a result is tensors, with more than one number; any other has no facts."""
    parts = want if isinstance(want, tuple) else (want,)
    if not all(isinstance(part, torch.Tensor) for part in parts) or sum(part.numel() for part in parts) < 2:
        return
    if len(parts) == 2:
        yield "Yours has the two results exchanged.", (parts[1], parts[0])
    for fact, change in CHANGES.items():
        if all((change in FOR_BOOLEANS) <= (part.dtype == torch.bool) for part in parts):
            try:
                changed = tuple(map(change, parts))
            except (IndexError, RuntimeError):  # too few dimensions
                continue
            yield fact, changed if isinstance(want, tuple) else changed[0]


def of_arguments(specification, parameters):
    """(fact, program): the specification with two of its arguments exchanged."""
    for a, b in combinations(range(len(parameters)), 2):

        def exchanged(*inputs, a=a, b=b):
            inputs = [*inputs]
            inputs[a], inputs[b] = inputs[b], inputs[a]
            return specification(*inputs)

        yield f"Yours is right for {parameters[a]} and {parameters[b]} exchanged.", exchanged
