"""What the tests themselves promise: none depends on the one before, and none leaves this machine."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.course import ROOT

pytestmark = pytest.mark.slow  # each starts a pytest of its own
TESTS = '''
import pytest, socket, torch

def test_leaves_things_behind():
    torch.set_printoptions(precision=2)
    torch.set_default_dtype(torch.float64)
    assert str(torch.tensor([0.12345])) == "tensor([0.12])"

def test_starts_afresh():
    """
    >>> import torch; torch.tensor([0.12345])
    tensor([0.1235])
    """
    assert str(torch.tensor([0.12345])) == "tensor([0.1235])"
    assert torch.tensor([0.5]).dtype == torch.float32

def test_speaks_to_this_machine():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert socket.getaddrinfo("localhost", 80)
'''
TALK = """
def test_swallows_the_error():
    import contextlib, socket
    with contextlib.suppress(OSError):
        socket.create_connection(("192.0.2.1", 80), timeout=0.01)
"""
ASK_A_CHILD = """
def test_child():
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "import socket; socket.getaddrinfo('course.invalid', 80)"])
"""
START_A_PYTEST = f"""{TALK}
def test_another_session():
    import subprocess, sys
    subprocess.run([sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "test_it.py"])
"""
FAILS_ONCE = """
import pathlib, pytest

def once(name):
    tried = pathlib.Path(name)
    if not tried.exists():
        tried.touch()
        raise AssertionError(f"{name} was late")

@pytest.mark.browser
def test_page(): once("a page")

def test_function(): once("a function")
"""


def run(tmp_path, tests, *arguments, **more):
    """pytest on a file with these tests, under the project's conftest.py."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_it.py").write_text(tests, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in ("COURSE_NETWORK_LOG", "CI")} | more
    command = [sys.executable, "-m", "pytest", "-q", "--doctest-modules", "-p", "no:cacheprovider", "test_it.py"]
    return subprocess.run([*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)


def test_no_test_hands_its_state_to_the_next(tmp_path):
    done = run(tmp_path, TESTS)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("tests", "named", "workers"),
    [(TALK, "'192.0.2.1'", ()), (ASK_A_CHILD, "'course.invalid'", ("-n", "1")), (START_A_PYTEST, "'192.0.2.1'", ())],
    ids=["this process", "a child of one of xdist's workers", "before a test that starts pytest"],
)
def test_a_connection_to_elsewhere_fails_the_run(tmp_path, tests, named, workers):
    done = run(tmp_path, tests, *workers)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{tests.count('def test_')} passed" in done.stdout
    assert named in done.stdout


@pytest.mark.parametrize(("ci", "again"), [({"CI": "true"}, ["test_page"]), ({}, [])], ids=["in CI", "at home"])
def test_a_browser_gets_a_second_try_in_ci_and_nothing_else_does(tmp_path, ci, again):
    done = run(tmp_path, FAILS_ONCE, "-rR", "-n", "1", **ci)  # in one of xdist's workers, as make test-all does
    assert f"{2 - len(again)} failed" in done.stdout, done.stdout + done.stderr
    assert re.findall(r"^RERUN test_it\.py::(\w+)", done.stdout, re.M) == again
