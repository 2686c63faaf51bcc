"""What an exercise is made of: a specification, the inputs it is compared on, and the known mistakes.

The specification is written to be obviously right, not fast: float64, unless the mistakes are changes of its own text.
The inputs are chosen so that mistakes show: gains other than 1, sizes of 1e-3 and 300, float16 and bfloat16,
transposed memory, positions that do not start at 0. The mistakes are programs too: if one of them
gives the learner's answers, its hint names the mistake.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import torch


class Wrong(Exception):
    """What is wrong with an answer, and how to help.

    Args:
        message, hint: what was seen; the mistake, as a question or a fact.
        look_up: whether a known mistake may explain it.
        pair: (yours, expected), shown in numbers below the arguments; None: the arguments alone; (): nothing.
        place: index of the first number that differs.
    """

    def __init__(self, message, hint="", look_up=False, pair=(), place=None):
        super().__init__(message)
        self.message, self.hint, self.look_up, self.pair, self.place = message, hint, look_up, pair, place


@dataclass(eq=False)  # so that what belongs to a case can be kept
class Case:
    """One set of inputs. With `gradients`, the gradients through the function are compared instead of its values."""

    label: str
    inputs: tuple
    hint: str = ""  # what is special here: shown if all cases with this hint fail, and no others
    gradients: bool | int | tuple = False  # True: of all tensors; a number: of the first so many inputs; or which
    stochastic: bool = False  # skipped once a case has failed, and when matching mistakes
    also: str = ""  # "half", "meta" or both: gradients hold in half precision, about; it runs on another device

    def __post_init__(self):
        if unknown := sorted({*self.also.split(", ")} - OTHERS.keys()):
            raise ValueError(f"case {self.label!r}: also={self.also!r} names {unknown}: write 'half', 'meta' or both.")

    def fresh_inputs(self):
        """Copies, with the same layout in memory; numbers, also named ones, as they are."""
        inputs = tuple(value if isinstance(value, int) else copy.deepcopy(value) for value in self.inputs)
        for place in self.asking():
            inputs[place].requires_grad_()
        return inputs

    def asking(self):
        """The places of the inputs that ask for a gradient."""
        if isinstance(self.gradients, tuple):
            return self.gradients
        asked = self.inputs[: None if self.gradients is True else int(self.gradients)]
        return [i for i, x in enumerate(asked) if isinstance(x, torch.Tensor) and x.is_floating_point()]

    def beside(self):
        """What must hold as well: each input alone asks for a gradient; other dtypes; another device."""
        asking = self.asking()
        yield from (replace(self, gradients=(place,)) for place in asking if len(asking) > 1)
        for other in (other for word in self.also.split(", ") for other in OTHERS[word]):
            moved = range(len(self.inputs)) if other == "meta" else asking
            inputs = (x.to(other) if i in moved and torch.is_tensor(x) else x for i, x in enumerate(self.inputs))
            yield replace(self, inputs=tuple(inputs), gradients=other != "meta" and self.gradients)


@dataclass
class Harness:
    """How an answer is run, and compared, where it is no plain tensor."""

    run: Callable = lambda function, *inputs: function(*inputs)  # what is compared
    parts: tuple = ()  # names of the parts of an answer that is a tuple
    same_answer: Callable | None = None  # (answer, a known mistake's) -> whether they are one, where both are drawn
    stages: Callable | None = None  # () -> a context around each call, whose .explain says which stages are right
    angles: bool = False  # whether the numbers are radians: they are shown in degrees, too
    max_failures: int = 1000  # after so many failing cases the next ones are not run: where a case takes long


@dataclass
class Exercise:
    """A specification with its cases and its known mistakes, (hint, program), the likeliest first."""

    specification: Callable
    cases: list[Case]
    mistakes: list[tuple[str, Callable]]
    tolerance: float = 1.0  # times the usual rounding
    forbid: tuple = ()  # names of torch's functions that a right answer may not call: ("silu",) or AUTOGRAD
    allow: tuple = ()  # what of the course's an answer may name: functions, classes, or all of a package, ("helpers.",)
    hints: dict = field(default_factory=dict)  # {words of an error: what they say here}
    harness: Harness = field(default_factory=lambda: Harness())

    @property
    def name(self):
        """Name of the exercise, taken from its specification."""
        return self.specification.__name__

    @property
    def parameters(self):
        """Names of the arguments that the learner's function takes, in order."""
        code = self.specification.__code__
        return code.co_varnames[: code.co_argcount]

    @cached_property
    def wanted(self):
        """The specification's answers, one per case."""
        return [self._wanted(case) for case in self.cases]

    def _wanted(self, case):
        inputs = case.fresh_inputs()
        answer = self.harness.run(self.specification, *inputs)
        return gradients_through(answer, inputs) if case.gradients else answer

    @cached_property
    def mistake_outputs(self):
        """For every mistake its hint, and a function from the number of a case to its answer, computed once."""
        from checks.relations import of_arguments  # only for a wrong answer

        programs = [*self.mistakes, ("Yours is the first argument, unchanged.", lambda *inputs: inputs[0])]
        facts = self._facts(0)
        if facts and self.harness.run is Harness.run:  # what a harness runs may take long
            programs += of_arguments(self.specification, self.parameters)
        made = [(hint, cache(partial(self._attempt, program))) for hint, program in programs]
        facts_of = cache(self._facts)
        return made + [(fact, lambda place, fact=fact: facts_of(place).get(fact)) for fact in facts]

    def _facts(self, place):
        """{fact: the right answer to a case, changed so}."""
        from checks.relations import of_result

        case = self.cases[place]
        return {} if case.gradients or case.stochastic else dict(of_result(self.wanted[place]))

    def _attempt(self, program, place):
        case = self.cases[place]
        try:
            return None if case.gradients or case.stochastic else self.harness.run(program, *case.fresh_inputs())
        except Exception:
            return None  # this mistake cannot be made here


_source = cache(inspect.getsource)  # of a few programs, for all their bugs


def mutate(program, *changes):
    """The program, without decorators, with a bug: the first text of `changes` becomes the second, and so on by twos.

    Example:
        >>> mutate(gain, "2.0", "3.0")(2)
        tensor([0.5000, 3.0000])
    """
    source = "def " + _source(program).partition("def ")[2]
    for said, instead in zip(changes[::2], changes[1::2], strict=True):
        if source.count(said) != 1:
            raise ValueError(f"{program.__name__} does not say {said!r} once: change the bug with it.")
        source = source.replace(said, instead)
    made, above = {}, "\n" * (program.__code__.co_firstlineno - 1)  # so that a traceback shows the place
    exec(compile(above + source, inspect.getfile(program), "exec"), program.__globals__, made)
    return made[program.__name__]


def gradients_through(answer, inputs):
    """Gradients of a weighted sum of the answer for every input that asks for one; None where none arrives."""
    weigh = torch.linspace(0.5, 1.5, answer.numel(), dtype=torch.float64).reshape(answer.shape)
    wanted = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    gradients = torch.autograd.grad((answer.cpu().double() * weigh).sum(), wanted, allow_unused=True)
    return tuple(None if gradient is None else gradient.detach() for gradient in gradients)


MARGIN = 0.03  # so far from a limit, relative to it, is what a case tells apart: a processor's last bit moves it less


def require_margin(what: str, within=(), beyond=()):
    """Refuse a case near a limit which right and wrong rules do not pass or miss clearly enough.

    Args:
        within, beyond: what a right rule accepts and what it must refuse, each divided by its limit, float64.
    """
    near = [float(ratio) for ratio in within if not ratio <= 1 - MARGIN]
    near += [float(ratio) for ratio in beyond if not ratio >= 1 + MARGIN]
    if near:
        said = f"{what}: {near[0]:.4f} of the limit, expected at most {1 - MARGIN} of it where a right answer stays"
        raise ValueError(f"{said} within, at least {1 + MARGIN} where a wrong one is beyond: move the case away.")


def largest(tensor):
    """The largest size of a number, in float64."""
    return tensor.detach().double().abs().max().item()


ONLY_GRADIENTS = "Only the gradients are wrong. Is a part of the graph cut, by .detach(), .item() or no_grad()?"
GRAPH_CUT = "Is the graph cut by .detach(), .item(), torch.tensor(...), nn.Parameter(...) or torch.no_grad()?"
NUMPY = "Do you stay in torch? numpy loses the gradient and knows no bfloat16."
TYPE_HINTS = {  # by the type of an answer
    "NoneType": 'A function that ends without "return" gives None: printing shows a value but does not hand it back.',
    "ndarray": NUMPY,
    "tuple": "One result is expected: a comma too many after return makes it a tuple.",
    "generator": "A generator comes from yield, or from ( ... for ... ): return a result.",
}
AUTOGRAD = ("grad", "backward", "_make_dual")  # to forbid: what .backward(), torch.autograd and torch.func call
OTHERS = {"": (), "half": (torch.float16, torch.bfloat16), "meta": ("meta",)}  # what the words of Case.also stand for
BATCH = "Does your code assume a batch of one?"
LEADING = "Does your code assume a fixed number of dimensions? Count from the end: dim=-1."
MEMORY = "The input need not be contiguous: does .reshape work where .view does not?"


def draw(*shape, seed=0, scale=1.0, shift=0.0):
    """Normal random numbers, the same on every machine up to rounding."""
    generator = torch.Generator(device="cpu").manual_seed(1000 * len(shape) + seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu") * scale + shift


def gain(dim):
    """Entries from 0.5 to 2, so that a forgotten gain shows."""
    return torch.linspace(0.5, 2.0, dim, dtype=torch.float32)


def strided(tensor, first=0, second=1):
    """The same numbers, stored with two dimensions swapped in memory."""
    return tensor.transpose(first, second).contiguous().transpose(first, second)


def each(dtype, *inputs):
    """The inputs with every floating tensor in another dtype."""
    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
