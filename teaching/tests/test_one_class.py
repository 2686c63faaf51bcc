"""The folder of a class: its slides, and what is handed out."""

from teaching.classroom import one_class


def test_the_folder_of_a_class_has_its_stops_only(tmp_path, build, capsys):
    one_class.main(["5", "--folder", str(tmp_path)])
    assert 'ARGS="--only 05.3"' in capsys.readouterr().out
    slides = (tmp_path / "slides" / "class_5.html").read_text(encoding="utf-8")
    assert (slides.count('class="predict'), slides.count('class="title"')) == (4, 1)  # of 8 questions
    assert [path.stem for path in (tmp_path / "homework" / "notebooks").iterdir()] == ["05_full_model"]
