"""Recall: asked before told, kept in one file, wrong and sure comes back first."""

import datetime
import io
import json

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
    assert capsys.readouterr().out.count("Right.") == 3
    from_earlier(notebook, *(f"guess {'B' if right == 'A' else 'A'}" for right in rights(notebook)))
    assert capsys.readouterr().out.count("No, ") == 3
    assert all(len(days) == 1 and days[0][1:] == ["sure", True] for days in json.loads(kept.read_text()).values())


@pytest.mark.parametrize("answers", [("B", "?", "?"), ("sure B",) * 2, ("sure D",) * 3, (2, 2, 2)])
def test_an_answer_that_cannot_be_read_is_refused_and_nothing_kept(answers, kept):
    with pytest.raises(ValueError, match=r"cannot be read|answers for"):
        from_earlier("04", *answers)
    assert not kept.exists()


def test_wrong_and_sure_comes_back_first_and_right_ever_later():
    day, wrong = datetime.date(2026, 11, 1), {"01 scale": "guess", "01 centre": "sure"}
    kept = {name: [[day.isoformat(), sure, False]] for name, sure in wrong.items()}
    kept |= {name: [[day.isoformat(), sure, True]] for name, sure in {"02 zero": "sure", "02 shift": "guess"}.items()}

    def asked(days):
        return [name for name in due(kept, "02", day + datetime.timedelta(days)) if name in kept]

    assert [asked(0), asked(1), asked(3)] == [[], ["01 centre"], ["01 centre", "01 scale", "02 shift"]]
    assert asked(9) == ["01 centre", "01 scale", "02 zero", "02 shift"]
    kept["02 zero"] *= 2  # right twice in a row
    assert asked(9) == ["01 centre", "01 scale", "02 shift"]
    assert {name[:2] for name in due(kept, "02", day)} == {"00", "01", "02"}


def test_the_command_asks_what_is_due_stops_at_an_empty_line_and_changes_no_damaged_file(monkeypatch, capsys, kept):
    monkeypatch.setattr("sys.stdin", io.StringIO("B\nsure A\n\n"))
    recall.main(["--up-to", "01"])
    assert "cannot be read" in capsys.readouterr().out
    assert len(json.loads(kept.read_text())) == 1
    from_earlier("02", "sure A", "sure A", "sure A")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    recall.main([])
    assert "notebooks 00 to 01." in capsys.readouterr().out  # 06 asks one of these, too, and was not begun
    kept.write_text('{"01 scale": 3}')
    with pytest.raises(ValueError, match="mend it, or move it away"):
        recall.main([])
    assert kept.read_text() == '{"01 scale": 3}'
