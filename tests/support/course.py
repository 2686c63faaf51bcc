"""The course as files: its pages, its notebooks, and copies of it under git and make."""

import os
import shutil
from functools import cache
from pathlib import Path

import nbformat
import pytest

from tools.course import git

ROOT = Path(__file__).parents[2]
WHO = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
NO_MAKE = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of the one that tests


def pages() -> list[Path]:
    """What people read beside the notebooks."""
    return sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


@cache
def notebooks() -> dict[str, nbformat.NotebookNode]:
    """The notebooks by their stems."""
    return {path.stem: nbformat.read(path, as_version=4) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def commit_all(folder: Path) -> None:
    """A commit of everything that a folder holds, as somebody who has no settings of git."""
    if not shutil.which("git"):
        pytest.skip("git is not installed; runs where it is")
    for words in (["init", "--quiet"], ["add", "."], [*WHO, "commit", "--quiet", "-m", "x"]):
        git(folder, *words)
