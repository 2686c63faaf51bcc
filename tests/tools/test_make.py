"""`make` says what is wrong before it installs, installs once, and works in a folder whose name has a space."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.support.course import NO_MAKE, ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="for Windows the README has a way without make")
# A Python of any version that makes an environment of itself and writes down what it is to run.
PYTHON = f"""#!/bin/sh
echo "$@" | head -n 1 >> calls
case "$1 $2" in "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;; "-m pip") test ! -e "no pip" ;;
"-c "*) exec '{sys.executable}' -c "import sys; sys.version_info = $(cat version); $2" ;; esac
"""
WHOLE, HANDOUT = "Makefile", "tools/handout/Makefile"


@pytest.fixture(params=[WHOLE, HANDOUT])
def course(request, tmp_path):
    """A folder with what make reads, of the whole course or of what is handed out; its Python only notes its calls."""
    folder = tmp_path / "a folder (é)"
    (folder / "tools" / "handout").mkdir(parents=True)
    shutil.copy(ROOT / request.param, folder)
    for place in ("tools/handout", "."):
        shutil.copy(ROOT / "tools" / "handout" / "setup.mk", folder / place)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "version").write_text("(3, 13)")
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    return folder


def make(folder, *words):
    """What `make` said and its exit status, and the calls of Python that it made."""
    done = subprocess.run(["make", "PYTHON=./python", *words], cwd=folder, env=NO_MAKE, capture_output=True, text=True)
    calls = folder / "calls"
    noted = calls.read_text().splitlines() if calls.exists() else []
    calls.unlink(missing_ok=True)
    return done.stdout + done.stderr, done.returncode, [call for call in noted if call[:2] == "-m"]


WRONG = {
    "student": "make student FOLDER=../handout", "tiny-llama": "FOLDER=runs/mine",
    "grade/FOLDER=": "make grade FOLDER=../handed-in", "reset": "NOTEBOOK=notebooks/02_rope.ipynb",
    "update": "make update FROM=../old", "lab/VENV=a b": 'VENV="a b"', "lab/CONSTRAINTS=a b": "for the space",
}  # fmt: skip


IN_BOTH = [(HANDOUT, words) for words in WRONG if words.startswith(("lab", "update"))]


@pytest.mark.parametrize(("course", "words"), [*((WHOLE, words) for words in WRONG), *IN_BOTH], indirect=["course"])
def test_what_is_missing_is_said_before_anything_is_installed(course, words):
    said, status, calls = make(course, "-j2", *words.split("/"))
    assert WRONG[words] in said
    assert (status, calls, (course / ".venv").exists()) == (2, [], False)


def test_it_says_what_it_installs_and_installs_once_even_if_a_file_is_dated_ahead(course):
    os.utime(course / "pyproject.toml", (time.time() + 9 * 3600,) * 2)
    said, status, calls = make(course, "lab", "ARGS=--port 9000")
    installed = ["-m venv .venv", "-m pip --version", "-m pip install --constraint constraints.txt -e ."]
    assert (status, calls[:3]) == (0, installed)
    assert "1.5 GB" in said
    assert calls[3].startswith("-m tools.lab")
    said, status, again = make(course, "lab", "ARGS=--port 9000")
    assert (status, again) == (0, calls[3:])
    assert "GB" not in said
    (course / "pyproject.toml").write_text("changed")
    assert len(make(course, "lab")[2]) == 3


def test_an_environment_without_pip_is_explained(course):
    (course / "no pip").touch()
    said, status, calls = make(course, "lab")
    assert "has no pip. Is another make setting it up?" in said
    assert (status, calls) == (2, ["-m venv .venv", "-m pip --version"])


@pytest.mark.parametrize(("version", "words", "made"), [
    ("(3, 10)", "3.11 or newer needed", False), ("(3, 14)", "newer than those tested", True), ("(3, 13)", "", True),
])  # fmt: skip
def test_an_old_python_is_refused_and_a_new_one_gets_a_remark(course, version, words, made):
    (course / "version").write_text(version)
    said, *_ = make(course, ".venv/bin/python")
    assert (course / ".venv").exists() == made, said
    assert words in said
    assert ("newer" in said) == bool(words)
