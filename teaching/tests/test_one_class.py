"""The folder of a class: its slides, its questions in GIFT, and what is handed out."""

import re

import pytest

from teaching.classroom import one_class
from teaching.classroom.plan import Question

NASTY = r"a ~ b = {c} # d: \(\frac{1}{2}\) & “é·”"


@pytest.mark.parametrize(
    ("options", "answer", "lines"),
    [(("1", "2"), "2", "\n  ~1\n  =2\n"), ((), 3.0, "#3.0"), ((), 30, "#30"), ((), NASTY, "")],
)
def test_a_quiz_gets_the_questions_as_they_are(options, answer, lines):
    gift = one_class.gift_of("5: a", Question(NASTY, passage=f"<b>{NASTY}</b>", options=options, answer=answer))
    hidden = re.sub(r"\\(.)", lambda found: chr(0xE000 + ord(found[1])), gift)  # what is escaped means nothing
    said, name, text, rest = re.fullmatch(r"(//.*\n)?::(.*)::\[html\]<b>(.*)</b>\{([^}]*)\}\n", hidden).groups()
    shown = re.sub("[\ue000-\ue0ff]", lambda found: chr(ord(found[0]) - 0xE000), name + text)
    assert (shown, rest, bool(said)) == (f"5: a{one_class._html(NASTY)}", lines, not lines)


def test_the_folder_of_a_class_has_its_stops_only_and_nothing_is_written_over(tmp_path, build, capsys):
    one_class.main(["5", "--folder", str(tmp_path)])
    assert 'ARGS="--only 05.3"' in capsys.readouterr().out
    slides = (tmp_path / "slides" / "class_5.html").read_text(encoding="utf-8")
    assert (slides.count('class="predict'), slides.count('class="title"')) == (6, 1)  # of 10 questions
    assert (tmp_path / "votes" / "class_5.gift.txt").read_text(encoding="utf-8").count("\n::5.") == 5
    assert [path.stem for path in (tmp_path / "homework" / "notebooks").iterdir()] == ["05_full_model"]
    with pytest.raises(SystemExit, match="is there already and not an empty folder"):
        one_class.main(["5", "--folder", str(tmp_path)])
