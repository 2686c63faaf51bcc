"""Which device is picked, that seeds repeat the draws, and what is said when memory is full."""

import random
import re
import weakref

import pytest
import torch

from helpers import train
from helpers.cache import KVCache
from helpers.checkpoint import load_checkpoint
from helpers.device import explain_out_of_memory, is_out_of_memory, pick_device, set_seed, wait_for
from helpers.generate import generate, stream
from helpers.model import Llama
from helpers.text import TINY_LLAMA
from tests.support.fake_device import fake_accelerator
from tests.support.models import TINY, make_model


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    """Whatever the shell says, these tests begin without COURSE_DEVICE and leave the random state alone."""
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    python, pytorch = random.getstate(), torch.get_rng_state()
    yield
    random.setstate(python)
    torch.set_rng_state(pytorch)


@pytest.fixture
def machine(monkeypatch):
    """A function that lets this machine seem to have these accelerators."""

    def has(*present):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in present)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in present)

    return has


@pytest.mark.parametrize(
    ("present", "picked"), [((), "cpu"), (("cuda",), "cuda"), (("mps",), "mps"), (("cuda", "mps"), "cuda")]
)
def test_the_accelerator_is_picked_when_there_is_one(machine, present, picked):
    machine(*present)
    assert pick_device() == torch.device(picked)


@pytest.mark.parametrize("value", ["cpu", "CPU", " cpu "])
def test_course_device_overrides(machine, monkeypatch, value):
    machine("cuda", "mps")
    monkeypatch.setenv("COURSE_DEVICE", value)
    assert pick_device() == torch.device("cpu")


def test_course_device_chooses_among_accelerators(machine, monkeypatch):
    machine("cuda", "mps")
    monkeypatch.setenv("COURSE_DEVICE", "mps")
    assert pick_device() == torch.device("mps")


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_course_device_counts_as_unset(machine, monkeypatch, value):
    machine("cuda")
    monkeypatch.setenv("COURSE_DEVICE", value)
    assert pick_device() == torch.device("cuda")


@pytest.mark.parametrize("value", ["tpu", "gpu", "cuda:0", "meta"])
def test_an_unknown_device_is_named_with_the_choices(machine, monkeypatch, value):
    machine("mps")
    monkeypatch.setenv("COURSE_DEVICE", value)
    with pytest.raises(
        ValueError, match=rf"COURSE_DEVICE='{value}' is not known: use one of \['cpu', 'mps'\], or unset the variable"
    ):
        pick_device()


@pytest.mark.parametrize("value", ["cuda", "mps"])
def test_an_absent_device_is_named_with_the_choices(machine, monkeypatch, value):
    machine()
    monkeypatch.setenv("COURSE_DEVICE", value)
    with pytest.raises(
        ValueError, match=rf"COURSE_DEVICE='{value}' is not present on this machine: use one of \['cpu'\], or unset"
    ):
        pick_device()


def draws(seed):
    generator = set_seed(seed)
    return random.random(), torch.rand(3).tolist(), torch.rand(3, generator=generator).tolist()


def test_the_same_seed_gives_the_same_draws():
    assert draws(3) == draws(3)
    assert all(a != b for a, b in zip(draws(3), draws(4), strict=True))


def test_the_default_seed_is_0():
    default = set_seed()
    torch.testing.assert_close(torch.rand(3, generator=default), torch.rand(3, generator=set_seed(0)))


def test_the_generator_draws_on_the_cpu():
    assert set_seed().device == torch.device("cpu")


@pytest.mark.parametrize(("kind", "waits"), [("cpu", 0), ("mps", 1), ("cuda", 1)])
def test_waiting_for_the_device(kind, waits):
    with fake_accelerator("mps" if kind == "cpu" else kind) as fake:
        wait_for(torch.device(kind))
        assert fake.waits == waits


# ------------------------------------------------------------------------------------------ memory is full

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
OTHERS = [
    RuntimeError("Expected all tensors to be on the same device"),
    ValueError("out of memory is not what this says"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", FULL.values(), ids=FULL)
def test_a_full_memory_is_explained(error):
    with pytest.raises(torch.OutOfMemoryError) as raised, explain_out_of_memory("pass a smaller batch_size"):
        raise error
    assert str(raised.value) == "out of memory: pass a smaller batch_size"
    assert raised.value.__cause__ is error


def test_what_has_failed_is_not_kept_in_memory():
    """Jupyter keeps the last error, and with it every frame that it passed."""

    def forward():
        activations = torch.ones(3)
        kept.append(weakref.ref(activations))
        raise FULL["MPS"]

    kept = []
    with pytest.raises(torch.OutOfMemoryError) as raised, explain_out_of_memory("pass a smaller batch_size"):
        forward()
    assert raised.value.__cause__.__traceback__ is not None
    assert kept[0]() is None


def test_a_training_step_that_has_failed_is_not_kept_in_memory(monkeypatch):
    def backward(loss):
        kept.append(weakref.ref(loss))
        raise FULL["MPS"]

    kept = []
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        learn()
    assert raised.value.__cause__ is FULL["MPS"]
    assert kept[0]() is None


def test_it_is_explained_once():
    outer, inner = explain_out_of_memory("outer"), explain_out_of_memory("inner")
    with pytest.raises(torch.OutOfMemoryError, match=r"^out of memory: inner$"), outer, inner:
        raise FULL["MPS"]


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_pass_unchanged(error):
    with pytest.raises(type(error)) as raised, explain_out_of_memory("pass a smaller batch_size"):
        raise error
    assert raised.value is error
    assert raised.value.__cause__ is None


def test_a_real_request_that_no_memory_holds():
    with pytest.raises(torch.OutOfMemoryError, match="ask for less") as raised, explain_out_of_memory("ask for less"):
        torch.empty(2**58, dtype=torch.int8)
    assert is_out_of_memory(raised.value.__cause__)


def new_cache():
    return KVCache(TINY, 3, 40, torch.float32, "cpu")


def learn():
    return train.train(make_model(), lambda: torch.arange(64).repeat(3), steps=2, batch_size=6)


# what is done, which call inside finds memory full, what is said
PLACES = {
    "training, forward": (learn, (Llama, "forward"), "batch_size=6 windows of max_seq_len=64 .*smaller batch_size"),
    "training, backward": (learn, (torch.Tensor, "backward"), "batch_size=6 windows.*smaller batch_size"),
    "training, step": (learn, (torch.optim.AdamW, "step"), "batch_size=6 windows.*smaller batch_size"),
    "writing": (
        lambda: generate(make_model(), torch.ones(5, 7, dtype=torch.int64), 2), (Llama, "forward"),
        "5 prompts of 7 tokens.*fewer, or shorter"),
    "streaming": (
        lambda: list(stream(make_model(), torch.ones(5, 7, dtype=torch.int64), 2)), (Llama, "forward"),
        "5 prompts of 7 tokens.*fewer, or shorter"),
    "opening": (
        lambda: load_checkpoint(TINY_LLAMA, device="cpu"), (torch.Tensor, "to"),
        "tiny-llama: 1,[0-9,]+ weights as torch.float32 do not fit on cpu: pass dtype=torch.bfloat16"),
    "a cache": (new_cache, (torch, "zeros"), "a cache of 3 rows and 40 tokens needs .*fewer rows or fewer"),
}  # fmt: skip


@pytest.mark.parametrize("error", [FULL["CUDA"], FULL["MPS"], FULL["Linux"]], ids=["CUDA", "MPS", "Linux"])
@pytest.mark.parametrize("place", PLACES)
def test_the_setting_to_change_is_named(monkeypatch, place, error):
    does, inside, words = PLACES[place]
    monkeypatch.setattr(*inside, raising(error))
    with pytest.raises(ValueError if place == "a cache" else torch.OutOfMemoryError) as raised:
        does()
    assert re.search(words, str(raised.value))
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_full_memory_is_not_called_so(monkeypatch, place):
    does, inside, _ = PLACES[place]
    error = RuntimeError("the device was lost")
    monkeypatch.setattr(*inside, raising(error))
    with pytest.raises(RuntimeError) as raised:
        does()
    assert raised.value is error


def raising(error):
    def fails(*args, **kwargs):
        raise error

    return fails
