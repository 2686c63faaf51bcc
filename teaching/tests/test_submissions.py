"""What is asked, who handed in what, and what of a notebook is run: read from files, without running anything."""

import os
import re
import shutil
import unicodedata
import zipfile
from unittest.mock import Mock

import pytest

import checks
from checks import notebook
from teaching.classroom import find_submissions, grade, sandbox, sandbox_reader, submissions
from tests.support.fuzz import time_limit
from tests.support.messy import FILES
from tests.support.submissions import COURSE, NORM, code_cell, handed_out, write
from tools.course import notebooks_of


def test_every_exercise_of_the_course_is_asked_and_as_handed_out_not_attempted_without_a_kernel(tmp_path):
    course = submissions.read_course()
    for stem in (path.stem for path in notebooks_of(COURSE)):
        exercises, cells = course.get(stem, ([], []))
        assert len(exercises) == (COURSE / f"{stem}.ipynb").read_text(encoding="utf-8").count('"exercise"')
        assert all(callable(getattr(checks, one.check)) for one in exercises)
        write(tmp_path / "a.ipynb", handed_out(stem))
        verdicts = submissions.judge_submission([tmp_path / "a.ipynb"], exercises, cells, None)
        assert [verdict.status for verdict in verdicts] == ["not attempted"] * len(exercises), stem


def test_what_cannot_be_read_in_time_or_opened_ends_in_a_sentence(tmp_path, monkeypatch):
    write(tmp_path / "a.ipynb", handed_out())
    exercises, cells = submissions.read_course([NORM])[NORM]

    def judged():
        verdict = submissions.judge_submission([tmp_path / "a.ipynb"], exercises, cells, None)[0]
        return verdict.status, verdict.seen

    monkeypatch.setattr(submissions, "READER", ["-c", "while True: pass"])
    monkeypatch.setattr(submissions, "READING", 0.5)
    assert judged() == ("broken notebook", "It could not be read in 0.5 seconds.")
    monkeypatch.setattr(submissions, "READER", ["-c", "import os; os._exit(1)"])
    assert judged() == ("broken notebook", "It could not be read: The program failed.")
    monkeypatch.setattr(type(tmp_path), "read_bytes", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert judged()[1] == "It could not be read: Permission denied."


def test_a_submission_is_read_inside_the_sandbox_only(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook.ast, "parse", None)  # in this process nothing can be read
    exercise = submissions.Assignment(NORM, "1", "my_rms_norm", "check_rms_norm", "", 0)
    write(tmp_path / "a.ipynb", {"cells": [code_cell("my_rms_norm = 1")]})
    found = submissions.judge_submission([tmp_path / "a.ipynb"], [exercise], [], sandbox.find_sandbox()[0])
    assert [one.code for one in found] == ["my_rms_norm = 1"]


MOODLE = "Anna Smith_1234567_assignsubmission_file"
COPIES = (  # names that browsers, Windows, Drive, Jupyter, macOS and mail give
    "02_rope-1.ipynb", "02_rope(2)-1.ipynb", "02_rope - Copy (2).ipynb", "Copy of Copy of 02_rope.ipynb",
    "02_rope-Copy1.ipynb", "02_rope copy 2.ipynb", "02_Rope.ipynb.txt", "Copy_of_02_rope.ipynb", "02_rope.ipynb.ipynb",
    "Kopie von 02_rope.ipynb", "02_rope – Kopie (2).ipynb", "Co\u0301pia de 02_rope.ipynb", "02_rope - 副本.ipynb",
)  # fmt: skip
LAYOUTS = {  # a file in the folder of submissions (of a zip: also a file in it): whose it is, and which notebook
    "ben/handout/notebooks/02_rope.ipynb": ("ben", "02_rope"),
    "d_e__f__02_rope.ipynb": ("d_e__f", "02_rope"),
    "numbers (1)/02_rope (1).ipynb": ("numbers (1)", "02_rope"),  # browsers
    "zip.zip/deep/02_rope.ipynb": ("zip", "02_rope"),
    "twice (1).zip/02_rope.ipynb": ("twice", "02_rope"),
    "mine/homework.zip/02_rope.ipynb": ("mine", "02_rope"),
    "above.zip/../02_rope.ipynb": ("above", "02_rope"),  # as `zip above.zip ../02_rope.ipynb` makes it
    "root.zip//Users/me/.././02_rope.ipynb": ("root", "02_rope"),
    "windows.zip/deep\\02_rope.ipynb": ("windows", "02_rope"),
    f"{MOODLE}_/02_rope.ipynb": ("Anna Smith_1234567", "02_rope"),
    "Ben Li_12_assignsubmission_file/02_rope.ipynb": ("Ben Li_12", "02_rope"),  # from Moodle 4.1 on
    "Eve Li_13_assignsubmission_file_02_rope.ipynb": ("Eve Li_13", "02_rope"),
    "smithanna_12345_67890_02_rope-1.ipynb": ("smithanna_12345", "02_rope"),  # Canvas
    "von_berg_LATE_5_67891_02_rope.ipynb": ("von_berg_5", "02_rope"),
    "LATE_anon_a1B2c_67892_02_rope.ipynb": ("anon_a1B2c", "02_rope"),
    "leekim_16_67893_homework.zip/notes.txt": ("leekim_16", None),
    "eve.zip/ben__02_rope.ipynb": ("eve", None),  # a zip is one person's, whatever names are in it
    **{f"{number}/{name}": (f"{number}", "02_rope") for number, name in enumerate(COPIES)},
}  # fmt: skip
NOTEBOOKS = ["00_start_here", "02_rope", "06_train", "07_generate"]


def found_in(folder, names=()):
    """Write these files, the last ones into zips; what is understood of the folder."""
    for name in names:
        outer, mark, inner = name.partition(".zip/")
        if not mark:
            write(folder / outer, "{}")
            continue
        folder.joinpath(outer).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / f"{outer}.zip", "a") as archive:
            archive.writestr(inner, "{}")
    scratch = folder.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    return find_submissions.Submissions(folder, NOTEBOOKS, scratch)


def test_names_as_people_browsers_mail_and_platforms_leave_them_are_understood_and_stay_in_their_folder(tmp_path):
    found = found_in(tmp_path / "in", [*LAYOUTS, "above.zip/deep\\", "above.zip/../../.."])
    got = {(who, notebook) for who, one in found.students.items() for notebook in one.files or [None]}
    assert got == {*LAYOUTS.values()}
    assert [one.shown for one in found.students["zip"].files["02_rope"]] == ["zip.zip/deep/02_rope.ipynb"]
    unread = [one for student in found.students.values() for one in student.unread]
    assert unread == ["eve.zip/ben__02_rope.ipynb", "leekim_16_67893_homework.zip/notes.txt"]
    assert found.nobodys == []
    assert found.students["Anna Smith_1234567"].page == f"{MOODLE}_feedback.html"  # as Moodle takes it back
    assert {path.name for path in tmp_path.iterdir()} == {"in", "scratch"}
    assert all(path.is_dir() for path in (tmp_path / "scratch").iterdir())  # one of each zip


PIPES = ["x.zip", "anna__02_rope.ipynb", "anna__x.zip", "ben/02_rope.ipynb", "ben/x.zip", "carl/my.ipynb", "notes.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here; runs on Linux and macOS")
def test_a_pipe_is_not_waited_for(tmp_path, capsys):
    for name in PIPES:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / "in" / name)
    said, asked = {}, [submissions.Assignment("02_rope", "1", "f", "check_f", "", 0)]
    with time_limit(60):
        for name, student in found_in(tmp_path / "in").students.items():
            files = [file.path for own in student.files.values() for file in own]
            said[name] = student.unread, submissions.judge_submission(files, asked, [], None)[0].seen
        with pytest.raises(SystemExit):
            grade.main([str(tmp_path / "in" / "x.zip"), "--no-isolation"])
    assert "x.zip is no folder; is it a zip of the class? Then unpack it first" in capsys.readouterr().err
    device = "It could not be read: it is a link, a folder or a device, not a file."
    assert said == {"anna": (["anna__x.zip (not a file)"], device), "ben": (["ben/x.zip (not a file)"], device),
                    "carl": (["carl/my.ipynb"], ""), "x": (["x.zip (not a file)"], "")}  # fmt: skip


def test_a_zip_that_lies_about_its_sizes_costs_its_sender_alone(tmp_path, monkeypatch):
    names = ["anna.zip/02_rope.ipynb", "eve.zip/02_rope.ipynb", "zoe.zip/02_rope.ipynb"]
    found_in(tmp_path / "in", names)
    eve = tmp_path / "in" / "eve.zip"
    data = bytearray(eve.read_bytes())
    at = data.index(b"PK\1\2") + 24  # what the list of files says of the size of the only one
    data[at : at + 4] = (2**31 - 1).to_bytes(4, "little")
    eve.write_bytes(data)
    found = found_in(tmp_path / "in").students
    assert {name: len(one.files) for name, one in found.items()} == {"anna": 1, "eve": 0, "zoe": 1}
    assert found["eve"].unread == ["eve.zip (the zips unpack to more than 536,870,912 bytes)"]
    monkeypatch.setattr(find_submissions, "LARGEST_CLASS", 3)  # it stops the run, and is nobody's fault
    with pytest.raises(ValueError, match=r"with zoe\.zip the zips have unpacked to more than 3 bytes"):
        found_in(tmp_path / "in")


def test_what_is_not_understood_is_named(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "linked").symlink_to(tmp_path)
    (tmp_path / "in" / "link.zip").symlink_to(tmp_path / "in" / "ben.zip")

    def scandir(place, scandir=os.scandir):
        if str(place).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(find_submissions, "LARGEST_UNPACKED", 1)
    found = found_in(tmp_path / "in", [
        "anna/essay.ipynb", "anna/02_rope_kept_2026-01-02_03-04-05.ipynb", "anna/02_rope.html", "anna/old.rar",
        "anna/locked/02_rope.ipynb", "broken.zip", "notes.txt", "02_rope.ipynb", "large.zip/02_rope.ipynb",
        "handed/helpers/model.py", "handed/Makefile", "handed/.git/x", "handed/02_rope.ipynb", "ben.zip/essay.docx",
    ])  # fmt: skip
    assert found.nobodys == ["02_rope.ipynb", "notes.txt"]
    assert {name: sorted(one.unread) for name, one in found.students.items()} == {
        "anna": ["anna (Permission denied: locked)", "anna/02_rope.html", "anna/02_rope_kept_2026-01-02_03-04-05.ipynb",
                 "anna/essay.ipynb", "anna/old.rar"],
        "ben": ["ben.zip/essay.docx"], "broken": ["broken.zip (cannot be unpacked: File is not a zip file)"],
        "handed": [], "large": ["large.zip (the zips unpack to more than 1 bytes)"], "linked": ["linked (a link)"],
        "link": ["link.zip (a link)"],
    }  # fmt: skip


def test_of_two_files_the_one_saved_last_counts_and_both_are_named(tmp_path):
    names = ["02_rope.ipynb", "02_rope (1).ipynb"]
    found_in(tmp_path / "in", [f"anna/{name}" for name in names])
    for dates, last, other in (([2e9, 1e9], *names), ([1e9, 2e9], *names[::-1]), ([1e9, 1e9], *names[::-1])):
        for name, date in zip(names, dates, strict=True):
            os.utime(tmp_path / "in" / "anna" / name, (date, date))
        anna = found_in(tmp_path / "in").students["anna"]
        assert anna.remarks(NOTEBOOKS) == [f"02_rope was handed in 2 times: anna/{last} counts, not anna/{other}."]
        assert anna.counting("02_rope")[-1].path.name == last
    with zipfile.ZipFile(tmp_path / "in" / "ben.zip", "w") as archive:
        for name, day in zip(names, (2, 1), strict=True):
            archive.writestr(zipfile.ZipInfo(name, (2026, 11, day, 12, 0, 0)), "{}")
    assert found_in(tmp_path / "in").students["ben"].counting("02_rope")[-1].path.name == names[0]


@pytest.mark.parametrize(("limit", "value", "words"), [
    ("LARGEST_LIST", 1000, "(cannot be unpacked: its list of files has more than 1,000 bytes)"),
    ("MOST_FILES", 99, "(the zips hold more than 99 files)"),
])  # fmt: skip
def test_a_zip_with_very_many_files_is_refused_before_they_are_listed_or_unpacked(
    tmp_path, monkeypatch, limit, value, words
):
    monkeypatch.setattr(find_submissions, limit, value)
    many = [f"ben.zip/{number}/02_rope.ipynb" for number in range(100)]
    found = found_in(tmp_path / "in", ["anna/02_rope.ipynb", *many])
    assert found.students["ben"].unread == [f"ben.zip {words}"]
    assert not list((tmp_path / "scratch").rglob("*.ipynb"))
    shutil.copy(tmp_path / "in" / "ben.zip", tmp_path / "in" / "carl.zip")
    found = found_in(tmp_path / "in", ["zoe.zip/02_rope.ipynb"])
    assert list(found.students["anna"].files) == list(found.students["zoe"].files) == ["02_rope"]


def test_names_that_differ_in_capitals_only_get_pages_that_are_two_files_everywhere(tmp_path):
    names = ["Anna", "anna", "Ju\u0308rgen", "J\u00fcrgen", "anna (2)"]
    found = found_in(tmp_path / "in", [f"{name}/02_rope.ipynb" for name in names])
    pages = {name: student.page for name, student in found.students.items()}
    assert pages["Anna"] == "Anna.html"
    assert len({unicodedata.normalize("NFC", page).casefold() for page in pages.values()}) == len(names)


EXERCISES, LENT = submissions.read_course([NORM])[NORM]


@pytest.mark.parametrize("label", FILES)
def test_the_grader_makes_of_a_messy_notebook_what_my_parts_makes_of_it(label):
    data, (wanted, _) = FILES[label]
    assert status_of(data) == wanted


def status_of(data):
    """What the grader says, without its sandbox."""
    asked, names = [(one.function, one.stub) for one in EXERCISES], {"__name__": ""}
    said = sandbox_reader.answers(notebook, data, asked, LENT)[0]
    try:
        exec(said.get("code", ""), names)
    except NameError:
        return "stops"
    return said.get("status") or grade.OF_CHECK[checks.check_rms_norm(names["my_rms_norm"]).status]


def test_no_published_solution_reaches_for_what_a_teacher_is_shown():
    for stem, (exercises, _) in submissions.read_course().items():
        data = (COURSE / f"{stem}.ipynb").read_bytes()
        code = "\n".join(notebook.read_notebook(data).cells)
        solved = [(re.findall(rf"\b{one.check}\((\w+)", code)[-1], "") for one in exercises]
        assert [one["reaches"] for one in sandbox_reader.answers(notebook, data, solved, [])] == [[]] * len(exercises)
