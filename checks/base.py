"""What an exercise is made of: a specification, the inputs it is compared on, and the known mistakes.

The specification is written to be obviously right, not fast: loops and float64. The inputs are chosen so that mistakes
show: gains other than 1, sizes of 1e-3 and 300, float16 and bfloat16, transposed memory, positions that do not start at
0. The mistakes are programs too: the one whose answers are the learner's answers names the mistake.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch

# fmt: off


@dataclass
class Case:
    """One set of inputs; with gradients the gradients through the function are compared instead of the values."""

    label: str
    inputs: tuple
    hint: str = ""  # used when no known mistake explains the answer
    gradients: bool | int = False  # True: of all tensors; a number: of so many inputs from the left

    def fresh_inputs(self):
        """Copies, with the same layout in memory."""
        asks = len(self.inputs) if self.gradients is True else int(self.gradients)
        return tuple(
            self._fresh(value, place < asks) if isinstance(value, torch.Tensor) else value
            for place, value in enumerate(self.inputs)
        )

    def _fresh(self, tensor, asks):
        copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu").copy_(tensor)
        return copy.requires_grad_(asks and tensor.is_floating_point())


class Wrong(Exception):
    """Raised by an exercise's own `adapt`: what is wrong with the answer, and the hint."""

    def __init__(self, message, hint):
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass
class Exercise:
    """A specification with its cases and its known mistakes, (hint, program) in order of likelihood."""

    specification: Callable
    cases: list[Case]
    mistakes: list[tuple[str, Callable]]
    any_float: bool = False  # float32 and float64 are both fine
    dtype_hint: str = ""
    tolerance: float = 1.0  # times the usual rounding
    hint: str = "Does your formula give the right numbers on four numbers by hand?"
    adapt: Callable = lambda function: function  # to a function that can be compared, where the answer is no tensor
    answers_of: dict = field(default_factory=dict)  # of each mistake, filled when first needed

    @property
    def name(self):
        """Name of the exercise, taken from its specification."""
        return self.specification.__name__

    @property
    def text(self):
        """What to compute, in one sentence."""
        return self.specification.__doc__

    @property
    def parameters(self):
        """Names of what the learner's function takes, in order."""
        code = self.specification.__code__
        return code.co_varnames[: code.co_argcount]

    @cached_property
    def wanted(self):
        """The specification's answers, one per case."""
        return [self._wanted(case) for case in self.cases]

    def _wanted(self, case):
        inputs = case.fresh_inputs()
        answer = self.adapt(self.specification)(*inputs)
        return gradients_through(answer, inputs) if case.gradients else answer

    def name_mistake(self, answers, failed, agree):
        """The hint of the known mistake that gives the answer of the failed case and most of the others, or ""."""
        best_hint, best_count = "", 0
        for hint, program in self.mistakes + COMMON_MISTAKES:
            if program not in self.answers_of:
                self.answers_of[program] = [self._attempt(program, case) for case in self.cases]
            theirs = self.answers_of[program]
            same = [
                answer is not None and other is not None and agree(answer, other, self.tolerance, want)
                for answer, other, want in zip(answers, theirs, self.wanted, strict=True)
            ]
            if same[failed] and sum(same) > best_count and not agree(theirs[failed], self.wanted[failed], 0.3):
                best_hint, best_count = hint, sum(same)
        return best_hint

    def _attempt(self, program, case):
        try:
            return None if case.gradients else self.adapt(program)(*case.fresh_inputs())
        except (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError, Wrong):
            return None  # this mistake cannot be made here


def gradients_through(answer, inputs):
    """Gradients of a weighted sum of the answer for every input that asks for one; None where none arrives."""
    weigh = torch.linspace(0.5, 1.5, answer.numel(), dtype=torch.float64).reshape(answer.shape)
    wanted = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    gradients = torch.autograd.grad((answer.cpu().double() * weigh).sum(), wanted, allow_unused=True)
    return tuple(None if gradient is None else gradient.detach() for gradient in gradients)


COMMON_MISTAKES = [
    ("Do you return an input unchanged?", lambda *inputs: inputs[0]),
    ("Is the result filled? It holds only zeros.", lambda *inputs: torch.zeros_like(inputs[0])),
]
BATCH = "Does your code assume a batch of one?"
LEADING = "Does your code assume a fixed number of dimensions? Count from the end: dim=-1."
FLOAT16 = "float16 ends at 65504: do you compute in float32 and convert back at the end?"
MEMORY = "The input need not be contiguous: does .reshape work where .view does not?"


def draw(*shape, seed=0, scale=1.0, shift=0.0):
    """Normal random numbers, the same on every machine up to rounding."""
    generator = torch.Generator(device="cpu").manual_seed(1000 * len(shape) + seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu") * scale + shift


def gain(dim):
    """Entries from 0.5 to 2, so that a forgotten gain shows."""
    return torch.linspace(0.5, 2.0, dim, dtype=torch.float32)


def turned(tensor, first=0, second=1):
    """The same numbers, stored with two dimensions swapped in memory: not contiguous."""
    return tensor.transpose(first, second).contiguous().transpose(first, second)


def each(dtype, *inputs):
    """The inputs with every floating tensor in another dtype."""
    return tuple(
        value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in inputs
    )
