"""What is handed out holds no solution and works on its own; a fresh copy never costs a learner's text."""

import json
import re
import subprocess
import sys
from unittest.mock import Mock

import nbformat
import pytest

from tests.support.course import NO_MAKE, commit_all
from tests.support.submissions import COURSE
from tools import course, hand_out


def run(*command, cwd, **more):
    return subprocess.run(command, cwd=cwd, env=NO_MAKE | more, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hand") / "out"
    hand_out.main(["student", str(folder)])
    return folder


def test_no_solution_and_no_output_is_handed_out(handed):
    assert not list(handed.rglob("__pycache__"))
    for path in sorted(COURSE.glob("[0-9][0-9]_*.ipynb")):
        ours, theirs = (nbformat.read(place / path.name, as_version=4) for place in (COURSE, handed / "notebooks"))
        nbformat.validate(theirs)
        begin, end = (next((n for n, cell in enumerate(ours.cells) if cell.source.startswith(heading)), None)
                      for heading in ("## Solutions", "## The end"))  # fmt: skip
        assert (begin is None) == (path.stem[:2] == "00")
        del ours.cells[slice(begin, end) if begin else slice(0)]
        for cell, original in zip(theirs.cells, ours.cells, strict=True):
            assert cell.source == original.source.replace("; solutions are at the end", "")
            folds = [one.metadata.pop("jupyter", {}) for one in (cell, original)]
            assert folds[0] == {part: True for part in folds[1] if part == "source_hidden"}  # no output is left
            assert (cell.cell_type, cell.id, cell.metadata) == (original.cell_type, original.id, original.metadata)
            assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)
        assert "olutions" not in (handed / "notebooks" / path.name).read_text(encoding="utf-8")


def test_a_page_behind_the_solutions_is_none_of_them():
    texts = "## Exercises", "## Solutions", "### 1", "# a comment", "## The end"
    cells = [{"cell_type": "code" if text == "# a comment" else "markdown", "metadata": {}, "source": [text]}
             for text in texts]  # fmt: skip
    kept = course.without_solutions({"cells": cells, "metadata": {}})["cells"]
    assert [cell["source"][0] for cell in kept] == ["## Exercises", "## The end"]


@pytest.mark.slow
def test_the_folder_works_on_its_own(handed):
    """The first code cell of a notebook imports what the notebook needs."""
    steps = ["import checks, helpers; print(helpers.__file__, checks.__file__)"]
    for path in handed.glob("notebooks/0[1-9]_*.ipynb"):
        steps.append(next(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"))
    said = run(sys.executable, "-c", "\n".join(steps), cwd=handed, PYTHONPATH=str(handed), MPLBACKEND="agg")
    assert said.splitlines()[0] == f"{handed}/helpers/__init__.py {handed}/checks/__init__.py"


def test_its_verbs_work_without_the_rest_of_the_course(handed):
    verbs = [line.split()[0] for line in run("make", "-s", "help", cwd=handed).splitlines()]
    assert verbs == ["help", "lab", "update"]
    texts = [path.read_text(encoding="utf-8") for name in ("*.py", "Makefile", "*.md") for path in handed.rglob(name)]
    assert not any(re.search(r"\bteaching\b[./]", text) for text in texts)  # no line of the teaching kit
    module, notebook = re.search(r"python -m (tools\.\S+) (\S+)", run("make", "-n", "lab", cwd=handed)).groups()
    assert (handed / f"{module.replace('.', '/')}.py").is_file()
    assert (handed / notebook).is_file()


def test_a_full_folder_is_not_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(SystemExit, match="is there already and not an empty folder"):
            hand_out.main(["student", str(place)])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_some_notebooks_are_handed_out_and_what_they_read_of_others_is_said(tmp_path, capsys):
    hand_out.main(["student", str(tmp_path / "out"), "--only", "02", "05_full_model"])
    assert [path.stem[:2] for path in sorted(tmp_path.glob("out/notebooks/*"))] == ["02", "05"]
    assert "05 can use what learners wrote in 01, 03, 04" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no notebook of the course begins with 98"):
        hand_out.main(["student", str(tmp_path / "more"), "--only", "02", "98"])
    assert not (tmp_path / "more").exists()


STUB = "def my_f(x):\n    raise NotImplementedError"
SOLVED = {  # cells in which a solution would be handed out; {0} is the heading of the function, {1} its check
    "the stub behind the answer": "{0}\n    return x\n    raise NotImplementedError{1}",
    "a case that is left out": "{0}\n    if x is None:\n        raise NotImplementedError\n    return x{1}",
    "another name": "def g(x):\n    return x\n\nmy_f = g  # raise NotImplementedError{1}",
    "decorated": "@lambda f: lambda x: x\n{0}\n    raise NotImplementedError{1}",
    "asynchronous": "async {0}\n    return x  # raise NotImplementedError{1}",
    "in the check": STUB + "\n\ncheck_f(lambda x: x)\n{1}",
    "kept in a comment": "{0}\n    # return x\n    raise NotImplementedError{1}",
    "kept in a text": "{0}\n    'of x'\n    'return x'\n    raise NotImplementedError{1}",
    "kept in the docstring": '{0}\n    """of x\n    return x"""\n    raise NotImplementedError{1}',
    "kept in the error": "{0}\n    raise NotImplementedError(x + 1){1}",
    "not Python": "%time 1\n" + STUB + "{1}",
    "imported under its name": "from course import (\n    g,\n    f as my_f,\n)\n" + STUB + "{1}",
    "a cell above": ["{0}\n    return x", STUB + "{1}"],
    "a cell below": [STUB + "{1}", "my_f = max"],
    "a cell below, not Python": [STUB + "{1}", ">>> {0}\n...     return x"],
    "in the place of its cell": ["{0}\n    return x"],
    "turned into text": ["exercise: {0}\n    return x{1}"],
    "with a check of its own": [STUB + "{1}", "def other(x):\n    return x{1}".replace("my_f", "other")],
    "from earlier, without a tag": ["def again_f(x):\n    return x\n\n\ncheck_f(again_f)"],
}  # fmt: skip


def a_course(folder, *sources, heading="## Solutions"):
    """A course of one notebook, its exercises tagged where they define `my_f`."""
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    cells = []
    for source in (one.replace("{0}", "def my_f(x):").replace("{1}", "\n\n\ncheck_f(my_f)") for one in sources):
        tags = {"tags": ["exercise"]} if "check_f(my_f)" in source else {}
        kind = "markdown" if source.startswith(("text: ", "exercise: ")) else "code"
        cells.append({"cell_type": kind, "metadata": tags, "source": source})
    notebook = {"cells": [*cells, {"cell_type": "markdown", "metadata": {}, "source": heading}], "metadata": {}}
    path = folder / "notebooks" / "01_norm.ipynb"
    path.write_text(json.dumps(notebook))
    return path


@pytest.mark.parametrize("form", SOLVED)
def test_an_exercise_that_is_solved_in_any_form_and_cell_is_not_handed_out(form, tmp_path):
    sources = SOLVED[form] if isinstance(SOLVED[form], list) else [SOLVED[form]]
    a_course(tmp_path, *sources)
    with pytest.raises(ValueError, match=r"01_norm.*: the exercise \w+ is solved here, or may be: .*make reset"):
        hand_out.student(tmp_path / "out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notebooks"]


def test_what_other_programs_note_is_not_handed_out(tmp_path, monkeypatch):
    monkeypatch.setattr(hand_out, "COPIED", ())
    path = a_course(tmp_path, STUB + "{1}", "text: Read")
    notebook = json.loads(path.read_text())
    for part in (notebook, *notebook["cells"]):
        part["metadata"]["mine"] = "return x"
    path.write_text(json.dumps(notebook))
    (written,) = hand_out.student(tmp_path / "out", tmp_path)
    assert "return x" not in written.read_text()


def test_a_notebook_that_was_changed_is_named(learner, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hand_out, "COPIED", ())
    hand_out.student(tmp_path / "out", learner.parents[1])
    assert capsys.readouterr().out.startswith("01_norm.ipynb: it differs from the last commit")
    commit_all(learner.parents[1])
    hand_out.student(tmp_path / "again", learner.parents[1])
    assert capsys.readouterr().out == ""


def test_an_answer_in_another_notebook_is_not_handed_out(tmp_path):
    a_course(tmp_path, "my_f = max").rename(tmp_path / "notebooks" / "02_rope.ipynb")
    a_course(tmp_path, STUB + "{1}")
    with pytest.raises(ValueError, match=r"02_rope.*: the exercise my_f is solved here"):
        hand_out.student(tmp_path / "out", tmp_path)


def test_a_course_whose_solutions_cannot_be_found_is_refused_and_copies_are_not_the_course(tmp_path):
    a_course(tmp_path, STUB + "{1}", heading="## Answers")
    for copy in ("01_a-Copy1", "01_a_kept_2026-01-02_03-04-05"):  # no part of the course: they could not be read
        (tmp_path / "notebooks" / f"{copy}.ipynb").touch()
    with pytest.raises(ValueError, match='no heading "## Solutions": put it before'):
        hand_out.student(tmp_path / "out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notebooks"]


@pytest.fixture
def learner(tmp_path):
    """A clone whose notebook the learner has changed."""
    name = a_course(tmp_path / "origin", "fresh").name
    commit_all(tmp_path / "origin")
    course.git(tmp_path, "clone", "--quiet", "origin", "mine")
    path = tmp_path / "mine" / "notebooks" / name
    path.write_text(path.read_text().replace("fresh", "my work"))
    return path


def test_reset_takes_the_courses_version_also_after_a_commit_of_the_learner(learner, capsys):
    commit_all(learner.parents[1])
    hand_out.main(["reset", str(learner)])
    assert "my work" not in learner.read_text()
    course.git(learner.parent, "branch", "--unset-upstream")
    hand_out.main(["reset", str(learner)])
    assert "my work" in learner.read_text()
    assert "is as git has it. Did you commit an answer in it?\ngit log --oneline" in capsys.readouterr().out


def test_reset_gives_a_fresh_copy_and_resets_within_a_second_lose_nothing(learner, monkeypatch, capsys):
    stopped = Mock(**{"datetime.now.return_value.strftime.return_value": "2026-01-02_03-04-05"})
    monkeypatch.setattr(course, "datetime", stopped)
    fresh = course.course_version(learner).decode()
    for work in ("first", "second", "third"):
        learner.write_text(work)
        hand_out.main(["reset", str(learner)])
        assert learner.read_text() == fresh
        assert "01_norm_kept_2026-01-02_03-04-05" in capsys.readouterr().out
    assert hand_out.reset(learner) is None  # it is fresh: nothing to keep
    learner.unlink()  # a missing notebook comes back
    assert hand_out.reset(learner) is None
    texts = [path.read_text() for path in learner.parent.iterdir()]
    assert sorted(texts) == sorted(["first", fresh, "second", "third"])


def test_reset_without_a_fresh_copy_changes_nothing(learner):
    mine = learner.with_name("mine.ipynb")
    mine.write_text("mine")
    with pytest.raises(SystemExit, match=r"no fresh copy of .*mine\.ipynb: .*Copy it from where"):
        hand_out.main(["reset", str(mine)])
    assert sorted(learner.parent.iterdir()) == [learner, mine]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("step", ["shutil.copy2", "os.fsync", "os.replace"])
def test_a_reset_that_is_stopped_at_a_step_keeps_the_learners_text(learner, monkeypatch, step):
    monkeypatch.setattr(step, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        hand_out.reset(learner)
    assert "my work" in learner.read_text()
