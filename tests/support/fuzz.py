"""How a fuzz test draws and what every case keeps to: time, memory, and an error of ours."""

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from helpers.checkpoint import load_checkpoint

NIGHTLY = os.environ.get("COURSE_FUZZ") == "nightly"
CASES = {
    "config": 90, "config.json": 70, "safetensors": 70, "meta": 70, "declared size": 20, "tokens": 50, "generate": 50,
    "cache": 25, "text": 20, "tokenizer.json": 40, "train": 20, "run file": 20, "explorers": 40,
    "submission": 60,  # tests/test_fuzz_checks.py
}  # fmt: skip
HELPERS = Path(load_checkpoint.__code__.co_filename).parent
GIGABYTE = 2**30
SECONDS = 30  # of one case; the slowest takes less than one


def cases(name):
    """The number of cases of a target: the same in the normal setting, new ones every night."""
    return settings(
        max_examples=CASES[name] * (20 if NIGHTLY else 1), derandomize=not NIGHTLY, deadline=None, database=None,
        print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )  # fmt: skip


class Hang(BaseException):
    """A case ran longer than SECONDS; no `except Exception` may hide it."""


LINUX = sys.platform.startswith("linux")
PEAKS = []  # kilobytes in use at most, up to each moment at which counting starts again


def memory(line):
    """Kilobytes that this process uses now ("VmRSS"), or has used at most ("VmHWM"), or may address ("VmSize")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(text for text in lines if text.startswith(line)).split()[1])


def restart_peak():
    PEAKS.append(memory("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use


@pytest.fixture(scope="module", autouse=True)
def limit_memory():
    """No test of this file may take a gigabyte, and none can ask for two (on Linux, which can say so).

    Two, because PyTorch's allocator reserves addresses by the gigabyte and uses a part of them.
    """
    if not LINUX:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") * 1024 + 2 * GIGABYTE, before[1]))
    restart_peak()
    PEAKS[:] = [0]
    start = memory("VmRSS")
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert max(*PEAKS, memory("VmHWM")) - start < GIGABYTE / 1024


@contextmanager
def time_limit():
    def ring(*_):
        raise Hang

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


HUGE = st.sampled_from([10**6, 10**12, 2**31, 2**63 - 1, 2**63, 10**30, 10**400, -(2**63), -(10**400)])
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 70) | HUGE | st.floats() | st.text(max_size=6) | st.just("4")
    | st.sampled_from([5e-324, 1e-300, 1e308, -0.0, 1.0, 2.0, 0.5])
)  # fmt: skip
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
ODD = SCALARS | st.sampled_from([[], [1], {}, {"type": "linear"}, (), b"4", 1j, int, torch.tensor(3), torch.ones(2)])
