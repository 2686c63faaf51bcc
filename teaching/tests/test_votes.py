"""Votes: the answers found in the text, the page that counts cards, Moodle's files, the folder of a class."""

import csv
import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from teaching.classroom import one_class
from tests.support.course import ROOT
from tests.support.lab import quiet_context
from tools.votes import answers_in, votes_of


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("What is it at 0.5: about 2, 7 or 12?", ["about 2", "7", "12"]),
        ("Is the result (1, 3), (−1, 3) or $(1, -3)$?", ["(1, 3)", "(−1, 3)", "$(1, -3)$"]),
        ("And the cache: does it fall, stay (a, b or c), or rise?", ["fall", "stay (a, b or c)", "rise"]),
        ("Is it larger or smaller?", []),
        ("Does it change in a model of one layer, of two, of three?", []),
    ],
)
def test_answers_are_those_that_the_question_offers(question, answers):
    assert answers_in(question) == answers


def test_each_claim_and_each_numbered_question_gets_a_vote():
    text, question = '**Tutorials say: "All."** Why?', "Two.\n1. Is it 3? And 4?\n2. Which? A drawing\nhelps."
    yes, claim = ["yes", "no"], ["true", "false", "true with a condition"]
    assert votes_of(text, question) == [
        ("", 'Tutorials say: "All."', "", claim),
        ("Two.", "Is it 3?", "And 4?", yes),
        ("Two. Is it 3?", "And 4?", "", yes),
        ("Two.", "Which?", "A drawing helps.", []),
    ]


@pytest.fixture
def page(tmp_path, browser, build):
    """The slides of notebook 07 in a browser."""
    from teaching.website.slides import make_slides

    make_slides([ROOT / "notebooks" / "07_generate.ipynb"], tmp_path, build.relink, frames=defaultdict(str))
    with quiet_context(browser, viewport={"width": 1280, "height": 720}) as context:
        page = context.new_page()
        page.goto((tmp_path / "07_generate.html").as_uri())
        yield page


GO = """number => { const { h, v } = Reveal.getIndices(document.querySelectorAll('section.predict')[number]);
    Reveal.slide(h, v) }"""


@pytest.mark.browser
def test_votes_are_counted_kept_and_saved(page, tmp_path):
    import axe_playwright_python

    box, numbers = page.locator("#vote"), page.locator("#vote input[type=number]")
    page.keyboard.press("v")
    assert not box.is_visible()  # nothing to vote on at the title
    page.evaluate(GO, 0)
    page.keyboard.press("v")
    assert box.locator("tbody th").all_text_contents() == ["about 2", "7", "12"]
    page.keyboard.type("9")  # the first number has the focus
    assert numbers.first.evaluate("one => getComputedStyle(one).color") == "rgba(0, 0, 0, 0)"  # until a second count
    page.get_by_label("One more: 7, after").click(click_count=3)
    page.get_by_label("One less: 12, after").click()  # stays 0
    assert box.locator("output").all_text_contents() == ["9", "3"]
    page.evaluate(Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8"))
    assert page.evaluate("async () => (await axe.run({ preload: false })).violations.map(found => found.id)") == []

    page.reload()
    page.evaluate(GO, 0)
    page.keyboard.press("v")
    assert [number.input_value() for number in numbers.all()] == ["9", "0", "0", "3", "0", "0"]
    with page.expect_download() as saved:
        box.get_by_text("Save all votes").click()
    saved.value.save_as(tmp_path / "votes.csv")
    rows = list(csv.DictReader((tmp_path / "votes.csv").read_text(encoding="utf-8-sig").splitlines()))
    counted = [[row[name] for name in ("deck", "option", "before", "after")] for row in rows]
    assert counted == [["07_generate", *row] for row in (["about 2", "9", "0"], ["7", "0", "3"], ["12", "0", "0"])]
    page.once("dialog", lambda asked: asked.accept())
    box.get_by_text("Clear all votes").click()
    assert numbers.first.input_value() == "0"


@pytest.mark.browser
def test_keys_in_the_vote_do_not_move_the_slides(page):
    box, where = page.locator("#vote"), "Object.values(Reveal.getIndices()).join()"
    page.evaluate(GO, 3)  # answers that the teacher writes
    at = page.evaluate(where)
    page.locator(".present > .vote").click()
    name = box.get_by_label("Answer A")
    name.fill("vivid")
    name.press("v")
    assert box.is_visible()  # a letter in a name closes nothing
    box.locator("#passage").click()  # takes the focus from the names
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    assert not box.is_visible()
    assert page.evaluate(f"[Reveal.isOverview(), {where}]") == [False, at]
    page.keyboard.press("Space")
    assert page.evaluate(where) != at


def test_moodle_gets_the_questions_as_they_are():
    nasty = r"a ~ b = {c} # d: \(\frac{1}{2}\) & <b>“é·”</b>"
    gift = one_class.gift_of("5: a", nasty, "2", ["1", "2"])  # hidden below: what is escaped means nothing
    hidden = re.sub(r"\\(.)", lambda found: chr(0xE000 + ord(found[1])), gift)
    name, text = re.fullmatch(r"::(.*)::\[html\](.*)\{\n  ~1\n  =2\n\}\n", hidden).groups()
    assert re.sub("[\ue000-\ue0ff]", lambda found: chr(ord(found[0]) - 0xE000), name + text) == f"5: a{nasty}"
    question = ET.fromstring(ET.tostring(one_class.xml_of("a", nasty, "2", ["1", "2"])))
    assert [question.findtext("questiontext/text"), question.find("answer[2]").get("fraction")] == [nasty, "100"]


def test_the_folder_of_a_class_has_its_stops_only_and_nothing_is_written_over(tmp_path, build, capsys):
    one_class.main(["5", "--folder", str(tmp_path)])
    assert 'ARGS="--only 05.4"' in capsys.readouterr().out
    assert (tmp_path / "slides" / "class_5.html").read_text(encoding="utf-8").count('class="predict') == 7  # of 12
    assert [path.stem for path in (tmp_path / "homework" / "notebooks").iterdir()] == ["05_full_model"]
    with pytest.raises(SystemExit, match="is there already and not an empty folder"):
        one_class.main(["5", "--folder", str(tmp_path)])
