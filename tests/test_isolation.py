"""What the tests themselves promise: none depends on the one before, and none leaves this machine."""

import os
import subprocess
import sys

import pytest

from tests.support.course import ROOT

pytestmark = pytest.mark.slow  # each starts a pytest of its own
STAYS = """
import socket, torch

def test_leaves_things_behind():
    torch.set_printoptions(precision=2)
    torch.set_default_dtype(torch.float64)

def test_starts_afresh_and_speaks_to_this_machine():
    assert str(torch.tensor([0.12345])) == "tensor([0.1235])"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert socket.getaddrinfo("localhost", 80)
"""
TALKS = """
def test_swallows_the_error():
    import contextlib, socket
    with contextlib.suppress(OSError):
        socket.create_connection(("192.0.2.1", 80), timeout=0.01)
"""
ASKS_A_CHILD = """
def test_child():
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "import socket; socket.getaddrinfo('course.invalid', 80)"])
"""


@pytest.mark.parametrize(
    ("tests", "code", "said", "more"),
    [(STAYS, 0, "2 passed", ()), (TALKS, 1, "'192.0.2.1'", ()), (ASKS_A_CHILD, 1, "'course.invalid'", ("-n", "1"))],
    ids=["stays here", "speaks to elsewhere", "a child of one of xdist's workers does"],
)
def test_a_run_fails_if_it_leaves_this_machine_and_each_test_starts_afresh(tmp_path, tests, code, said, more):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_it.py").write_text(tests, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "COURSE_NETWORK_LOG"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", *more]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr
