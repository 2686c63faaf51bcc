"""What is told of an exercise holds no line of a solution."""

import functools
import json
import re

from checks.verdict import SECTION_OF
from tests.support.course import ROOT

TRIVIAL = re.compile(r".{0,12}|import .*|from .* import .*|return [\w, ]+")  # names alone


@functools.cache
def solution_lines(number):
    """The lines of a notebook's solutions."""
    (path,) = (ROOT / "notebooks").glob(f"0{number}_*.ipynb")
    sources = ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    lines = {line.strip() for line in "\n".join(sources).partition("\n## Solutions")[2].splitlines()}
    return {line for line in lines if not TRIVIAL.fullmatch(line)}


def assert_tells_no_solution(exercise, result):
    """What a check says holds no line of a solution."""
    if exercise in SECTION_OF:  # else no notebook asks for it
        assert [line for line in solution_lines(SECTION_OF[exercise][0]) if line in str(result)] == []
