"""Write constraints.txt: the versions that are installed here, for `make` and CI to install again.

python -m tools.constraints      # make constraints, after a green make test-all
"""

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

OLDEST = "3.11.0"
HEADER = """\
# The versions of the last green run, written by `make constraints`.
# For pip they are limits, not a list to install: pip install -e . --constraint constraints.txt
"""
# What installs, the course itself, and what each build of torch brings in versions of its own.
LEFT_OUT = re.compile(r"pip|setuptools|wheel|uv|llama-notebooks|triton|(nvidia|cuda)-.*")


def constraints(installed: Iterable[Distribution]) -> list[str]:
    """Lines `name==version` that every system and Python can meet: no build (+cpu), none for newer Pythons only."""
    lines = set()
    for package in installed:
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        if OLDEST in SpecifierSet(package.metadata["Requires-Python"] or "") and not LEFT_OUT.fullmatch(name):
            lines.add(f"{name}=={package.version.split('+')[0]}")
    return sorted(lines)


if __name__ == "__main__":
    file = Path(__file__).parent.parent / "constraints.txt"
    file.write_text(HEADER + "".join(f"{line}\n" for line in constraints(distributions())), encoding="utf-8")
