"""What is told of an exercise holds no line of a solution."""

import functools
import itertools
import json
import re

from checks import verdict
from tests.support.course import ROOT

TRIVIAL = re.compile(r".{0,12}|import .*|from .* import .*|return [\w, ]+")  # names alone


@functools.cache
def lesson_of(number):
    """What a notebook says about its exercises, by their names, and the lines of its solutions."""
    (path,) = (ROOT / "notebooks").glob(f"0{number}_*.ipynb")
    sources = ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    lines = {line.strip() for line in "\n".join(sources).partition("\n## Solutions")[2].splitlines()}
    said = {one["name"]: one for one in verdict.outline(path.read_bytes())}
    return said, {json.dumps(line, ensure_ascii=False)[1:-1] for line in lines if not TRIVIAL.fullmatch(line)}


def assert_tells_no_solution(exercise, result):
    """However many helps were opened: what the check says, and no line of a solution."""
    if exercise not in verdict.TAUGHT:  # a check that no notebook asks for
        return
    said, solution = lesson_of(verdict.TAUGHT[exercise][0])
    assert exercise in said, f"no cell makes the function of {exercise}: add the exercise's cells to its notebook"
    for opened, step in itertools.product(range(4), (1, 2)):
        document = verdict.verdict("02_rope.ipynb", [(said[exercise], verdict.to_dict(result))], opened, step)
        text = json.dumps(document, indent=1, ensure_ascii=False)
        assert [line for line in solution if line in text] == []
        expected = verdict.clip_words(result.hint, 25).rstrip(" …") if step == 2 else ""
        assert expected in document["exercises"][0].get("the_check_says", "")
        assert step == 2 or "the_check_says" not in document["exercises"][0]
