"""What the tests themselves promise: none depends on the one before, and none leaves this machine."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.course import ROOT

TESTS = """
import contextlib, socket, subprocess, sys, torch

def test_leaves_things_behind():
    torch.set_printoptions(precision=2)
    torch.set_default_dtype(torch.float64)

def test_starts_afresh_and_speaks_to_this_machine():
    assert str(torch.tensor([0.12345])) == "tensor([0.1235])"
    assert torch.get_default_dtype() == torch.float32
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert socket.getaddrinfo("localhost", 80)

def test_swallows_the_error():
    with contextlib.suppress(OSError):
        socket.create_connection(("192.0.2.1", 80), timeout=0.01)

def test_child():
    subprocess.run([sys.executable, "-c", "import socket; socket.getaddrinfo('course.invalid', 80)"])
"""


@pytest.mark.slow
def test_each_test_starts_afresh_and_a_run_fails_if_a_worker_or_its_child_leaves_this_machine(tmp_path):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "COURSE_NETWORK_LOG"}
    (temporary := tmp_path / "temporary").mkdir()
    environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", "test_it.py"]
    done, _ = (
        subprocess.run(command + more, cwd=tmp_path, env=environment, capture_output=True, text=True)
        for more in ([], ["--markers"])
    )
    assert not list(temporary.glob("course-*"))
    assert (done.returncode, "4 passed" in done.stdout) == (1, True), done.stdout + done.stderr
    assert re.findall(r"^socket\.\w+ (.*) by ", done.stdout, re.M) == ["'192.0.2.1'", "'course.invalid'"]
