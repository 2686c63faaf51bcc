"""The course as files: its pages and its notebooks."""

from functools import cache
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]


def pages() -> list[Path]:
    """What people read beside the notebooks."""
    return sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


@cache
def notebooks() -> dict[str, nbformat.NotebookNode]:
    """The notebooks by their stems."""
    return {path.stem: nbformat.read(path, as_version=4) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
