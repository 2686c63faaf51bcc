"""The website: links, descriptions, no request to elsewhere, axe-core, keyboard, phones, zoom."""

import html
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from tests.support.course import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
# The other pages have the same colours.
IN_THE_DARK = ("index", "live", "broken", "notebooks/02_rope", "notebooks/03_swiglu", "docs/glossary")


def test_links_lead_to_pages_of_the_site(build):
    file = ROOT / "docs" / "glossary.md"
    assert build.relink("[map](../README.md#the-map) [`x`](../helpers/model.py)", file) == "[map](../index.md) `x`"
    assert build.relink("`[x](y.md)` [t](teaching.md#a)", file) == "`[x](y.md)` [t](teaching.md#a)"
    with pytest.raises(ValueError, match=r"glossary\.md links to no\.md, which does not exist: correct the link"):
        build.relink("[x](no.md)", file)


def test_a_page_names_the_repository_only_if_somebody_said_it(build, monkeypatch):
    monkeypatch.delenv("COURSE_REPOSITORY", raising=False)
    assert "github" not in build.links_of("02_rope")
    monkeypatch.setenv("COURSE_REPOSITORY", "someone/llama")
    assert build.links_of("02_rope").count("/someone/llama/") == 5
    monkeypatch.setenv("COURSE_REPOSITORY", "https://github.com/someone/llama")
    with pytest.raises(ValueError, match="is no place on GitHub: write owner/name"):
        build.links_of("02_rope")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), ValueError("a link"), KeyboardInterrupt()])
def test_what_fails_leaves_the_last_site_whole(build, monkeypatch, tmp_path, error):
    def stops(folder):
        (folder / "half").mkdir(parents=True)
        raise error

    monkeypatch.setattr(build, "build_site", stops)
    last = {tmp_path / "page.html", tmp_path / ".nojekyll"}
    for path in last:
        path.write_text("the last one")
    with pytest.raises((SystemExit, KeyboardInterrupt), match=str(error.args[-1]) if error.args else None):
        build.main(["--out", str(tmp_path)])
    assert {path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {"the last one"}
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == last


def test_no_folder_but_a_site_is_replaced(build, tmp_path):
    (tmp_path / "letter").touch()
    with pytest.raises(SystemExit, match="holds something else, which would be lost"):
        build.main(["--out", str(tmp_path)])
    assert [path.name for path in tmp_path.rglob("*")] == ["letter"]


class Page:
    """One page: what it points to and whether it loads that, its ids, the descriptions of its pictures."""

    def __init__(self, path):
        self.text = path.read_text(encoding="utf-8")
        self.targets, self.ids, self.alts = [], set(), []
        for tag, more in re.findall(r"<([a-z]+)\s([^>]*)>", self.text):
            has = {name: html.unescape(value) for name, value in re.findall(r'([\w-]+)="([^"]*)"', more)}
            self.ids.add(has.get("id"))
            self.alts += [has.get("alt", "")] if tag == "img" else []
            loads = tag in ("img", "script", "source", "iframe", "link") and has.get("rel") != "canonical"
            self.targets += [(has[name], loads) for name in ("href", "src") if has.get(name)]


@pytest.fixture(scope="module")
def pages(site):
    """Every page of the site, by its path inside it."""
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


@pytest.mark.slow
def test_every_page_can_be_reached(pages):
    targets = [(name, urlsplit(target).path) for name, page in pages.items() for target, _ in page.targets]
    linked = {os.path.normpath(os.path.join(os.path.dirname(name), path)) for name, path in targets}
    wanted = {f"notebooks/{path.stem}.html" for path in NOTEBOOKS}
    wanted |= {"docs/teaching.html", "docs/classroom-server.html", "live.html", "broken.html"}
    assert wanted <= linked


@pytest.mark.slow
def test_links_inside_resolve_and_nothing_is_loaded_from_elsewhere(site, pages):
    broken = []
    for name, page in pages.items():
        for target, loads in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                broken += [f"{name} loads {target}"] * bool(loads and parts.netloc)
                continue
            file = (site / name).parent / unquote(parts.path) if parts.path else site / name
            other = pages.get(os.path.relpath(file, site))
            if not file.is_file():
                broken.append(f"{name}: {target}")
            elif "=" not in parts.fragment and other and unquote(parts.fragment) not in {"", *other.ids}:
                broken.append(f"{name}: {target} (no such id)")
    assert broken == []


@pytest.mark.slow
def test_every_picture_is_on_its_page_and_described_and_what_answers_is_folded(pages):
    assert [name for name, page in pages.items() if not all(map(str.strip, page.alts))] == []
    for path in NOTEBOOKS:
        page, cells = pages[f"notebooks/{path.stem}.html"], nbformat.read(path, as_version=4).cells
        for told in (output.get("metadata", {}) for cell in cells for output in cell.get("outputs", [])):
            alt = told.get("image/png", {}).get("alt", "")
            assert any(own.startswith(alt) for own in page.alts), alt
        asked = sum("predict" in cell.metadata.get("tags", []) for cell in cells)
        assert page.text.count('<div class="predict">') == asked
        for part, kind in (("outputs_hidden", "answer"), ("source_hidden", "drawing")):
            folded = sum(part in cell.metadata.get("jupyter", {}) for cell in cells)
            assert page.text.count(f'<details class="{kind}">') == folded
        folded = sum(bool(cell.metadata.get("jp-MarkdownHeadingCollapsed")) for cell in cells)
        assert page.text.count('<details class="solutions">') == folded
        assert "not attempted" not in page.text
        assert "<details open" not in page.text


def axe(page, tags=WCAG):
    """What axe-core finds on the whole page."""
    import axe_playwright_python

    page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    return page.evaluate("tags => checks.axe(tags)", tags)


def cut_on(page, tries=100):
    """What is still cut when the page has come to rest: it hears of a new width a moment later."""
    while (cut := page.evaluate("checks.cut()")) and (tries := tries - 1):
        page.wait_for_timeout(100)
    return cut


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_cut_on_a_phone_or_enlarged(site, open_page, pages, scheme):
    """A page of 1280 px at 200 % zoom has 640 px of its own, two of the screen's for each; a phone has 360."""
    found = []
    page = open_page("index.html", 640, color_scheme=scheme, device_scale_factor=2)
    for name in pages if scheme == "light" else (f"{name}.html" for name in IN_THE_DARK):
        page.goto((site / name).as_uri(), wait_until="load")
        page.evaluate("checks.drawn()")
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        if scheme == "light":
            found += [f"{name}: not drawn: {formula}" for formula in page.evaluate("checks.notDrawn()")]
            for width in (640, 360):
                page.set_viewport_size({"width": width, "height": 800})
                page.wait_for_function("width => innerWidth === width", arg=width)
                found += [f"{name} at {width} px: {cut}" for cut in cut_on(page)]
        found += [f"{name}: {violation}" for violation in axe(page, WCAG if scheme == "light" else ["color-contrast"])]
    assert found == []
