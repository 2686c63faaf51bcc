"""Noise in the last bit of every matrix product, as if each came from another processor.

    COURSE_ROUNDING=1 pytest --nbval notebooks tests/checks       # 1 is the seed; make test-rounding runs several

Processors add the same products in different orders, so that a sum may differ in its last bit. What a notebook prints,
and what a test accepts, must not hang on that bit. Where COURSE_ROUNDING is set, conftest.py starts the noise in pytest
and in every kernel.
"""

import functools
import zlib

import torch
from torch._tensor_str import _Formatter
from torch.utils._python_dispatch import TorchDispatchMode

SUMS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "linear")


def _as_in_torch(function):
    # An error's line is looked for outside of PyTorch: this frame must not be taken for the learner's.
    function.__code__ = function.__code__.replace(co_filename=torch.__file__)
    return function


class LastBit(TorchDispatchMode):
    """While it is on, each number of a product or of attention is moved by -1, 0 or 1 unit in its last place.

    With an even seed the numbers of one result all move towards 0, or all away from it: independent moves lift the
    largest of many gaps, and so hide what stands just below a limit.

    The seed and the shape of a result decide the noise: the same call gives the same bits, as on one processor. What is
    0 or not finite stays, and so does a product of few whole numbers: every processor has it exactly.
    """

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed

    @_as_in_torch
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """The result of any operation, with noise if it is a sum of products."""
        result, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
        if (name not in SUMS and "attention" not in name) or all(map(_is_whole, args[:2])):
            return result
        if isinstance(result, torch.Tensor):
            return self._moved(result)
        return type(result)(self._moved(one) if isinstance(one, torch.Tensor) else one for one in result)

    def _moved(self, result):
        if type(result) is not torch.Tensor or not result.is_floating_point() or result.device.type != "cpu":
            return result
        step = _steps(self.seed, tuple(result.shape))
        if self.seed % 2 == 0:
            step = torch.where(result > 0, step, -step)  # a positive number moves towards 0 if its step is -1
        towards = torch.where(step > 0, torch.inf, -torch.inf).to(result.dtype)
        stays = (step == 0) | (result == 0) | ~result.isfinite()
        return torch.where(stays, result, torch.nextafter(result, towards))


def _is_whole(factor):
    small = isinstance(factor, torch.Tensor) and factor.numel() < 100 and factor.device.type != "meta"  # has no numbers
    return small and torch.equal(factor, factor.round())


@functools.lru_cache(maxsize=64)
def _steps(seed, shape):
    draw = torch.Generator().manual_seed(zlib.crc32(repr((seed, shape)).encode()))
    if seed % 2 == 0:  # all towards 0, or all away
        return torch.randint(0, 2, (), generator=draw).mul(2).sub(1).to(torch.int8).expand(shape)
    return torch.randint(-1, 2, shape, generator=draw, dtype=torch.int8)


def _printed(formatter, tensor, plain=_Formatter.__init__):
    # PyTorch prints 1. where all numbers are integers and 1.000 where one is not: what is nearly so hangs on a bit.
    plain(formatter, tensor)
    if tensor.is_floating_point() and not formatter.int_mode:
        finite = tensor[tensor.isfinite()].double()
        if ((finite - finite.round()).abs() <= 1e-6 * finite.abs().clamp(min=1)).all():
            formatter.format = lambda value: "an integer but for the last bit: round it"


def start(seed: int) -> None:
    """Put noise into this thread's products, until its process ends, and mark printed tensors that hang on it."""
    _Formatter.__init__ = _printed
    LastBit(seed).__enter__()
