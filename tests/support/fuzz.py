"""How a fuzz test draws its cases, and the limits of time and memory that every case keeps to."""

import os
import re
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A few cases, the same on every run. `COURSE_FUZZ=nightly` draws many more, and new ones every night.
NIGHTLY = os.environ.get("COURSE_FUZZ") == "nightly"
few = settings(
    max_examples=1000 if NIGHTLY else 40, derandomize=not NIGHTLY, deadline=None, database=None,
    print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip


@contextmanager
def time_limit(seconds=30):
    """Fail after so many seconds, on systems that can; the slowest case takes less than one."""

    def ring(*_):
        pytest.fail(f"no end after {seconds} seconds")  # no Exception: no `except Exception` may hide it

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def at_most(kilobytes):
    """Fail if this process uses so much more memory at any moment (on Linux)."""
    own = Path("/proc/self")
    if not own.exists():
        yield
        return

    def used(line):
        return int(re.search(rf"{line}:\s+(\d+)", (own / "status").read_text())[1])

    before = used("VmRSS")
    (own / "clear_refs").write_text("5")  # the peak starts again from what is in use
    yield
    assert used("VmHWM") - before < kilobytes
