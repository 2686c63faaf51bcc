"""The device is the accelerator when there is one, COURSE_DEVICE overrides, and seeds repeat the draws."""

import random

import pytest
import torch

from helpers.device import pick_device, set_seed


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
