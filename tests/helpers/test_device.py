"""Which device is picked, that seeds repeat the draws, and what is said when memory is full."""

import random
import weakref

import pytest
import torch

from helpers import train
from helpers.device import explain_out_of_memory, is_out_of_memory, pick_device, set_seed, synchronize
from tests.support.models import make_model


@pytest.fixture
def picked(monkeypatch):
    """A function: which device is picked if COURSE_DEVICE has this value and these accelerators are present?"""

    def picked(value, *present):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in present)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in present)
        monkeypatch.setenv("COURSE_DEVICE", value)
        return pick_device().type

    return picked


def test_the_accelerator_is_picked_when_there_is_one(picked):
    """Without COURSE_DEVICE; an empty one counts as none."""
    assert picked("") == "cpu"
    assert picked("", "cuda") == picked(" ", "cuda", "mps") == "cuda"
    assert picked("", "mps") == "mps"


def test_course_device_overrides(picked):
    for value, device in {"cpu": "cpu", " CPU ": "cpu", "mps": "mps"}.items():
        assert picked(value, "cuda", "mps") == device


def test_the_same_seed_gives_the_same_draws():
    def draws(*seed):
        generator = set_seed(*seed)
        assert generator.device.type == "cpu"
        return random.random(), torch.rand(3).tolist(), torch.rand(3, generator=generator).tolist()

    assert draws(3) == draws(3)
    assert all(a != b for a, b in zip(draws(3), draws(4), strict=True))
    assert draws() == draws(0)


def test_waiting_for_the_device(monkeypatch):
    waited = []
    for kind in ("cuda", "mps"):
        monkeypatch.setattr(getattr(torch, kind), "synchronize", lambda kind=kind: waited.append(kind))
    for kind in ("cpu", "mps", "cuda"):
        synchronize(torch.device(kind))
    assert waited == ["mps", "cuda"]


FULL = {  # as PyTorch says it
    "CUDA": torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 8 GiB"
    ),
    "MPS": RuntimeError("MPS backend out of memory (MPS allocated: 18.10 GB, max allowed: 18.13 GB)."),
    "MPS, one tensor": RuntimeError("Invalid buffer size: 40.00 GB"),
    "Linux": RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
    "Windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4000000 bytes."),
    "Python": MemoryError(),
}


@pytest.mark.parametrize("error", FULL.values(), ids=FULL)
def test_a_full_memory_is_explained_once(error):
    outer, inner = explain_out_of_memory("outer"), explain_out_of_memory("pass a smaller batch_size")
    with pytest.raises(torch.OutOfMemoryError) as raised, outer, inner:
        raise error
    assert str(raised.value) == "out of memory: pass a smaller batch_size"
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("two devices"), ValueError("out of memory"), KeyboardInterrupt()])
def test_other_errors_pass_unchanged(error):
    with pytest.raises(type(error)) as raised, explain_out_of_memory("pass a smaller batch_size"):
        raise error
    assert raised.value is error
    assert raised.value.__cause__ is None


def test_a_real_request_that_no_memory_holds():
    with pytest.raises(torch.OutOfMemoryError, match="ask for less") as raised, explain_out_of_memory("ask for less"):
        torch.empty(2**58, dtype=torch.int8)
    assert is_out_of_memory(raised.value.__cause__)


def test_a_training_step_that_has_failed_is_not_kept_in_memory(monkeypatch):
    """Jupyter keeps the last error, and with it every frame that it passed."""

    def backward(loss):
        kept.append(weakref.ref(loss))
        raise FULL["MPS"]

    kept = []
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        train.train(make_model(), lambda: torch.arange(64).repeat(3), steps=2, batch_size=6)
    assert raised.value.__cause__.__traceback__ is not None
    assert kept[0]() is None
