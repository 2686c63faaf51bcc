"""Votes at the slides' Predict cells: the answers found in the text, and the page that counts hands."""

import csv
import re
from collections import defaultdict
from pathlib import Path

import nbformat
import pytest

from tests.support.course import ROOT
from tests.support.lab import chromium
from tools.website.votes import answers_in, votes_of

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("What is it at 0.5: about 2, 7 or 12?", ["about 2", "7", "12"]),
        ("Is the result (1, 3), (−1, 3) or $(1, -3)$?", ["(1, 3)", "(−1, 3)", "$(1, -3)$"]),
        ("And the cache: does it fall, stay (a, b or c), or rise?", ["fall", "stay (a, b or c)", "rise"]),
        ("Can rank 0 compute it?", ["yes", "no"]),
        ("Is it larger or smaller?", []),
        ("Does it change in a model of one layer, of two, of three?", []),
        ("Which one, that of q, k or v?", []),
        ("Counted from 0: which head does it read?", []),
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_answer_comes_from_elsewhere_than_the_cell(path):
    from tools.website.slides import split_prediction

    for cell in nbformat.read(path, as_version=4).cells:
        if "predict" in cell.metadata.get("tags", []):
            for before, asked, _, answers in votes_of("", split_prediction(cell.source)[1]):
                assert answers == ["yes", "no"] or all(answer in f"{before} {asked}" for answer in answers), asked
                assert len(set(answers)) == len(answers) != 1, asked


@pytest.fixture
def deck(tmp_path):
    """The address of the slides of notebook 07."""
    pytest.importorskip("sphinx_revealjs", reason="the site's programs are not installed: `pip install -e '.[site]'`")
    from tools.website.build import relink
    from tools.website.slides import make_slides

    make_slides([ROOT / "notebooks" / "07_generate.ipynb"], tmp_path, relink, frames=defaultdict(str))
    return (tmp_path / "07_generate.html").as_uri()


@pytest.mark.browser
def test_votes_are_counted_kept_and_saved(deck, tmp_path):
    import axe_playwright_python

    axe, troubles = Path(axe_playwright_python.__file__).with_name("axe.min.js"), []
    where = "Object.values(Reveal.getIndices()).join()"
    go = """number => { const { h, v } = Reveal.getIndices(document.querySelectorAll('section.predict')[number]);
        Reveal.slide(h, v) }"""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.on("request", lambda sent: re.match("file:|data:|blob:", sent.url) or troubles.append(sent.url))
        page.on("console", lambda said: troubles.append(said.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(deck)
        page.keyboard.press("v")
        box, numbers = page.locator("#vote"), page.locator("#vote input[type=number]")
        assert not box.is_visible()  # nothing to vote on at the title
        page.evaluate(go, 0)
        at = page.evaluate(where)
        page.keyboard.press("v")
        assert "12" in box.locator("b").text_content()
        assert box.locator("tbody th").all_text_contents() == ["about 2", "7", "12"]
        page.keyboard.type("9")  # the first number has the focus
        page.keyboard.press("v")
        page.keyboard.press("v")
        page.get_by_label("One more: 7, after").click(click_count=3)
        page.get_by_label("One less: 12, after").click()  # stays 0
        assert box.locator("output").all_text_contents() == ["9", "3"]
        page.evaluate(axe.read_text(encoding="utf-8"))
        assert page.evaluate("async () => (await axe.run({ preload: false })).violations.map(found => found.id)") == []

        page.evaluate(go, 1)  # the address follows the slide a moment later
        page.wait_for_function("() => location.hash")
        page.reload()
        page.evaluate(go, 0)
        page.keyboard.press("v")
        assert [number.input_value() for number in numbers.all()] == ["9", "0", "0", "3", "0", "0"]
        with page.expect_download() as saved:
            box.get_by_text("Save all votes").click()
        saved.value.save_as(tmp_path / "votes.csv")
        rows = list(csv.DictReader((tmp_path / "votes.csv").read_text(encoding="utf-8-sig").splitlines()))
        assert [(row["option"], row["before"], row["after"]) for row in rows] == [
            ("about 2", "9", "0"), ("7", "0", "3"), ("12", "0", "0")]  # fmt: skip
        assert {row["deck"] for row in rows} == {"07_generate"}

        for answer, left in (("dismiss", "9"), ("accept", "0")):
            page.once("dialog", lambda asked, answer=answer: getattr(asked, answer)())
            box.get_by_text("Clear all votes").click()
            assert numbers.first.input_value() == left
        box.locator("#passage").click()  # takes the focus from the numbers
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Escape")
        assert not box.is_visible()
        assert page.evaluate("Reveal.isOverview()") is False
        assert page.evaluate(where) == at
        page.keyboard.press("Space")
        assert page.evaluate(where) != at
        page.evaluate(go, 1)
        page.locator(".present > .vote").click()
        name = box.get_by_label("Answer A")
        name.fill("vivid")
        name.press("v")
        assert box.is_visible()  # a letter in a name closes nothing
        box.get_by_text("Next").click()
        box.get_by_text("Previous").click()
        assert name.input_value() == "vividv"
    assert troubles == []
