"""Recall: asked before told, kept in one file, wrong and sure comes back first."""

import datetime
import io
import json
import re
import subprocess
import sys

import pytest

from checks import recall
from checks.recall import CARDS, EARLIER, due, from_earlier
from tests.support.course import ROOT


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(recall, "KEPT", tmp_path / "runs" / "recall.json")
    return recall.KEPT


def rights(notebook):
    return [CARDS[name].right for name in EARLIER[notebook]]


@pytest.mark.parametrize("notebook", EARLIER)
def test_a_notebook_asks_about_earlier_ones_and_tells_nothing_before_all_is_answered(notebook, capsys, kept):
    for answers in (("?", "?", "?"), ("sure A", "?", "guess C")):
        from_earlier(notebook, *answers)
        asked = capsys.readouterr().out
        assert not kept.exists()
        assert not any(CARDS[name].why in asked for name in EARLIER[notebook])
    assert all(CARDS[name].question in asked and name[:2] < notebook for name in EARLIER[notebook])
    (path,) = (ROOT / "notebooks").glob(f"{notebook}_*.ipynb")
    assert f'from_earlier(\\"{notebook}\\", \\"?\\", \\"?\\", \\"?\\")' in path.read_text(encoding="utf-8")
    from_earlier(notebook, *(f"sure {right}" for right in rights(notebook)))
    assert re.findall(r"^\d\. Right\.", capsys.readouterr().out, re.M) == ["1. Right.", "2. Right.", "3. Right."]
    asked_on = kept.read_text()
    from_earlier(notebook, *(f"guess {'B' if right == 'A' else 'A'}" for right in rights(notebook)))
    assert capsys.readouterr().out.count("No, ") == 3
    assert all(json.loads(kept.read_text())[name] == json.loads(asked_on)[name] for name in EARLIER[notebook])


@pytest.mark.parametrize("answers", [("B", "?", "?"), ("sure B",) * 2, ("sure D",) * 3, (2, 2, 2)])
def test_an_answer_that_cannot_be_read_is_refused_and_nothing_kept(answers, kept):
    with pytest.raises(ValueError, match=r"cannot be read|answers for"):
        from_earlier("04", *answers)
    assert not kept.exists()


@pytest.fixture
def on(monkeypatch):
    """A function that sets the day of November, or of later months, on which answers are given."""
    day = [1]

    class Date(datetime.date):
        @classmethod
        def today(cls):
            return cls(2026, 10, 31) + datetime.timedelta(day[0])

    monkeypatch.setattr(recall.datetime, "date", Date)
    return lambda number: day.__setitem__(0, number) or Date.today()


def test_a_cell_that_is_run_again_does_not_count_as_remembering(kept, on):
    def answered_on(day, *answers):
        on(day)
        from_earlier("04", *answers)
        return json.loads(kept.read_text())

    as_it_stands = [f"sure {right}" for right in rights("04")]
    first = answered_on(1, *as_it_stands)
    assert all(answered_on(day, *as_it_stands) == first for day in (1, 2, 3, 5, 8))
    assert first["03 token"][0] == "2026-11-05"
    again = answered_on(9, *(answer.lower().replace("sure", "fairly") for answer in as_it_stands))
    assert again["03 token"] == ["2026-11-19", 10]


def test_wrong_and_sure_comes_back_first_and_right_ever_later(on):
    kept, day = {}, on(1)
    for name, *answer in (("01 scale", "guess", "A"), ("01 centre", "sure", "A"), ("02 zero", "sure", "C")):
        recall._keep(kept, name, answer)
    recall._keep(kept, "02 shift", ("guess", "B"))

    def asked(days):
        return [name for name in due(kept, "02", day + datetime.timedelta(days)) if name in kept]

    assert [asked(0), asked(1), asked(3)] == [[], ["01 centre"], ["01 centre", "01 scale", "02 shift"]]
    assert asked(4) == ["01 centre", "01 scale", "02 shift", "02 zero"]
    on(5)
    recall._keep(kept, "02 zero", ("fairly", "C"))  # right twice in a row
    assert ["02 zero" in asked(days) for days in (13, 14)] == [False, True]
    assert {name[:2] for name in due(kept, "02", day)} == {"00", "01", "02"}


def test_of_twelve_cards_two_are_new_while_there_are_any():
    day, names = datetime.date(2026, 11, 1), list(CARDS)
    kept = {name: [str(day), 1] for name in names[:20]}
    assert due(kept, "09", day) == [*sorted(names[:20])[:10], *names[20:22]]
    assert due({}, "09", day) == names[:12]
    assert due({name: [str(day), 1] for name in names}, "09", day) == sorted(names)[:12]


def test_the_command_asks_what_is_due_stops_at_an_empty_line_and_changes_no_damaged_file(monkeypatch, capsys, kept):
    monkeypatch.setattr("sys.stdin", io.StringIO("B\nsure A\n\n"))
    recall.main([])
    said = capsys.readouterr().out
    assert "cannot be read" in said
    assert "notebooks 00 to 00." in said  # none has begun with its questions yet
    assert list(json.loads(kept.read_text())) == ["00 leak"]
    from_earlier("04", "sure A", "sure A", "sure A")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    recall.main([])
    assert "notebooks 00 to 03." in capsys.readouterr().out
    from_earlier("09", "sure A", "sure A", "sure A")
    recall.main([])
    assert "notebooks 00 to 09." in capsys.readouterr().out  # the last one's own cards, too
    kept.write_text('{"01 scale": 3}')
    with pytest.raises(ValueError, match="mend it, or move it away"):
        recall.main([])
    assert kept.read_text() == '{"01 scale": 3}'


def test_what_a_notebook_keeps_while_the_command_waits_stays(monkeypatch, kept):
    lines = iter(["sure A", ""])

    def answer(_):
        if (line := next(lines)) == "sure A":
            from_earlier("02", "sure A", "sure A", "sure A")
        return line

    monkeypatch.setattr("builtins.input", answer)
    recall.main([])
    assert {name[:2] for name in json.loads(kept.read_text())} > {"00", "02"}


def test_the_command_starts_without_a_warning():
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "checks.recall", "--help"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
