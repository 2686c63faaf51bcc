"""A newer version comes under a learner's work: answers are put back, and no word is lost, wherever it is stopped."""

import json
import shutil
import subprocess

import pytest

from tests.support.submissions import write
from tools import update

WHO = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
STUB = "from checks import check_{0}\n\n\ndef my_{0}(x):\n    raise NotImplementedError\n\n\ncheck_{0}(my_{0})"
ANSWER = "import math\n\n\ndef my_{0}(x):\n    return x  # mine: {0}\n\n\n%time my_{0}(1)\ncheck_{0}(my_{0}, seconds=9)"


def notebook(*cells, solved=("a",)):
    """Exercises or other cells, then the course's own solutions."""
    exercise = {"tags": ["exercise"]}
    made = [{"cell_type": "code", "source": one, "metadata": exercise if "check_" in one else {}} for one in cells]
    made.append({"cell_type": "markdown", "source": "## Solutions", "metadata": {}})
    made += [{"cell_type": "code", "source": ANSWER.format(f"{name}"), "metadata": {}} for name in solved]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def clone(tmp_path):
    """A clone one version behind, whose notebook was answered in cells that the newer version changes, too."""
    if not shutil.which("git"):
        pytest.skip("git is not installed; runs where it is")
    origin, mine = tmp_path / "origin", tmp_path / "mine"
    path = origin / "notebooks" / "02_rope.ipynb"
    write(path, notebook(*map(STUB.format, "abcd")))
    write(origin / "helpers.py", "old")
    for words in (["init", "--quiet"], ["add", "."], [*WHO, "commit", "--quiet", "-m", "x"]):
        update.git(origin, *words)
    update.git(tmp_path, "clone", "--quiet", "origin", "mine")
    begun = STUB.format("c").replace("    raise", "    y = x + 1\n    raise")
    write(mine / path.relative_to(origin), notebook(*map(ANSWER.format, "ab"), begun, STUB.format("d"), "my notes = ("))
    (mine / "helpers.py").write_text("tried")
    write(path, notebook("new text", *(STUB.replace("import", "import pi,").format(name) for name in "acd")))
    (origin / "helpers.py").write_text("new")
    write(origin / "notebooks" / "03_new.ipynb", "{}")
    for words in (["add", "."], [*WHO, "commit", "--quiet", "-m", "newer"]):
        update.git(origin, *words)
    return mine


def texts(folder):
    return {path.name: path.read_text() for path in [*folder.glob("*.py"), *folder.glob("notebooks/*")]}


def test_an_update_puts_answers_into_the_fresh_notebook_and_names_what_it_could_not_place(clone, capsys):
    before = texts(clone)
    update.update(clone, None)
    after = texts(clone)
    kept = next(name for name in after if name.startswith("02_rope_kept_"))
    assert set(before.values()) <= set(after.values())  # every file that was changed is there, as it was
    assert after["helpers.py"] == "new"
    cells = ["".join(cell["source"]) for cell in json.loads(after["02_rope.ipynb"])["cells"]]
    answer = ANSWER.format("a").replace("\ncheck_a(my_a, seconds=9)", "\n\n\ncheck_a(my_a)")
    assert cells[:2] == ["new text", "from checks import pi, check_a\n" + answer]
    assert [cell.replace("import pi,", "import") for cell in cells[2:4]] == [STUB.format("c"), STUB.format("d")]
    said = capsys.readouterr().out
    assert "my_a put back; not put back: my_c (not finished), my_b (no exercise any more). All that you wrote:" in said
    update.update(clone, None)  # nothing new: nothing happens
    update.update(clone, clone / "notebooks" / kept)  # the answer that is there stays
    assert texts(clone) == after
    assert "nothing put back; not put back: my_a (there is an answer already)" in capsys.readouterr().out


@pytest.mark.parametrize("step", range(13))
def test_stopped_at_any_step_nothing_is_lost_and_the_copy_gives_the_answers_back(clone, monkeypatch, step):
    before, steps = texts(clone), iter(range(99))

    def stops(function):
        def one(*arguments, **named):
            if next(steps) == step:
                raise KeyboardInterrupt
            return function(*arguments, **named)

        return one

    for name in ("git", "write_beside", "new_file"):
        monkeypatch.setattr(update, name, stops(getattr(update, name)))
    monkeypatch.setattr(shutil, "copy2", stops(shutil.copy2))
    with pytest.raises(KeyboardInterrupt):
        update.update(clone, None)
    assert set(before.values()) <= set(texts(clone).values())
    monkeypatch.undo()
    update.update(clone, None)
    for kept in clone.glob("notebooks/*_kept_*"):
        if kept.stat().st_size:
            update.update(clone, kept)
    assert "mine: a" in texts(clone)["02_rope.ipynb"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(["git", "remote", "set-url", "origin", "/nowhere"], "git fetch: .*. Nothing was changed"),
     (["git", "branch", "--unset-upstream"], "git rev-parse: .*upstream"),
     (["git", *WHO, "commit", "-qam", "mine"], "commits of its own"),
     (["cp", "helpers.py", "notebooks/03_new.ipynb"], "git merge: .* Nothing was changed")],  # of a new one's name
)  # fmt: skip
def test_a_clone_that_cannot_be_updated_is_left_as_it_was(clone, spoil, words):
    subprocess.run(spoil, cwd=clone, check=True)
    before = texts(clone)
    with pytest.raises(ValueError, match=words):
        update.update(clone, None)
    assert texts(clone) == before


def test_a_handed_out_folder_takes_the_answers_of_an_older_one(clone, monkeypatch, tmp_path):
    write(tmp_path / "new" / "notebooks" / "02_rope.ipynb", notebook(STUB.format("a"), solved=()))
    monkeypatch.setattr(update, "ROOT", tmp_path / "new")
    update.main(["--from", str(clone)])
    assert "mine: a" in texts(tmp_path / "new")["02_rope.ipynb"]
    with pytest.raises(SystemExit, match=r"origin/helpers\.py: neither a folder with notebooks of the course nor one"):
        update.main(["--from", str(clone.parent / "origin" / "helpers.py")])
