"""The website and the slides: links, descriptions, no request to elsewhere, axe-core, explorers by keyboard, phones."""

import functools
import http.server
import importlib.util
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from tests.browser.lab import chromium

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXPLORERS = sorted(
    {name for path in NOTEBOOKS for name in re.findall(r"(?<!import )\b(explore_\w+)\(\)", path.read_text())}
)
NEEDED = ("sphinx", "myst_nb", "furo", "latex2mathml", "ziamath", "sphinx_revealjs", "axe_playwright_python")
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
IN_THE_DARK = ("index.html", "02_rope.html", "03_swiglu.html", "glossary.html")  # the others have the same colours
MEGABYTE = 1_000_000
STATE = """async control => {
    const figure = control.closest('figure'), picture = figure.querySelector('img');
    await picture.decode();
    return [picture.src, picture.alt, figure.querySelector('figcaption').textContent,
        control.getAttribute('aria-valuetext') ?? control.value];
}"""
TOO_LARGE = """() => Reveal.getSlides().map(slide => {
    const { h, v } = Reveal.getIndices(slide); Reveal.slide(h, v);
    return `${slide.scrollWidth} x ${slide.scrollHeight}: ${slide.textContent.trim().slice(0, 60)}`;
}).filter(text => { const [width, height] = text.match(/\\d+/g).map(Number); return width > 1280 || height > 720; })"""
# Contrast takes most of axe's time. It is computed once for each kind of text, that is, for each chain of tags and
# classes; coloured letters in code whose kind has been seen become plain text before.
AXE = """async tags => {
    const kind = element => {
        const path = [];
        for (let at = element; at; at = at.parentElement) path.push(at.tagName, at.getAttribute('class'));
        return `${path}`;
    };
    const first = new Map();
    for (const letters of document.querySelectorAll('pre span')) {
        if (first.has(kind(letters))) letters.replaceWith(letters.textContent); else first.set(kind(letters), letters);
    }
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const element = walk.currentNode.parentElement;
        if (walk.currentNode.data.trim() && !first.has(kind(element))) first.set(kind(element), element);
    }
    for (const element of first.values()) element.setAttribute('data-first-of-its-kind', '');
    axe.configure({ rules: [{ id: 'color-contrast', selector: '[data-first-of-its-kind]' }] });
    const result = await axe.run(document, { runOnly: tags, resultTypes: ['violations'] });
    return result.violations.map(rule =>
        `${rule.id}: ${rule.nodes.slice(0, 3).map(node => node.html.slice(0, 150)).join(' | ')}`);
}"""


def missing(what):
    """Skip, or fail where CI must have it."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must test the site: {what}")
    pytest.skip(f"{what}; un-skip when it is there")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a site that was built from nothing."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        missing(f"{', '.join(absent)} not installed: `pip install -e '.[site]'`")
    out = tmp_path_factory.mktemp("site") / "site"
    built = subprocess.run(
        [sys.executable, ROOT / "docs" / "build_site.py", out], cwd=out.parent, capture_output=True, text=True
    )
    assert built.returncode == 0, f"the site was not built:\n{built.stdout[-2000:]}\n{built.stderr[-4000:]}"
    return out


# ------------------------------------------------------------------------------------------------- without a browser


class Page(HTMLParser):
    """One page: what it points to, its ids, its pictures."""

    def __init__(self, path):
        super().__init__()
        self.targets, self.ids, self.pictures, self.tags = [], set(), [], []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.ids.add(attributes.get("id"))
        if tag == "img":
            self.pictures.append(attributes)
        loads = tag in ("img", "script", "source", "iframe") or (tag == "link" and attributes.get("rel") != "canonical")
        for name in ("href", "src"):
            if attributes.get(name):
                self.targets.append((attributes[name], loads))


@pytest.fixture(scope="module")
def pages(site):
    """Every page of the site, by its path inside it."""
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_notebook_and_the_start_page_are_there(pages):
    assert {"index.html", "search.html", *(f"{path.stem}.html" for path in NOTEBOOKS)} <= set(pages)
    for name in (*(path.stem for path in NOTEBOOKS), "teaching", "glossary", "slides/index"):
        assert f'href="{name}.html"' in pages["index.html"].text


def test_internal_links_and_pictures_resolve(site, pages):
    broken = []
    for name, page in pages.items():
        for target, _ in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (site / name).parent / unquote(parts.path) if parts.path else site / name
            other = pages.get(os.path.relpath(file, site))
            if not file.is_file():
                broken.append(f"{name}: {target}")
            elif parts.fragment and other and unquote(parts.fragment) not in other.ids:
                broken.append(f"{name}: {target} (no such id)")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(pages):
    assert [(name, target) for name, page in pages.items() for target, loads in page.targets
            if loads and urlsplit(target).netloc] == []  # fmt: skip


def test_every_picture_is_described_as_in_its_notebook(pages):
    assert [name for name, page in pages.items() if any(not p.get("alt", "").strip() for p in page.pictures)] == []
    for path in NOTEBOOKS:
        described = [picture["alt"] for picture in pages[f"{path.stem}.html"].pictures]
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                alt = output.get("metadata", {}).get("image/png", {}).get("alt")
                assert alt is None or any(text.startswith(alt) for text in described), f"{path.name}: {alt}"


def test_formulas_are_mathml_and_no_tex_is_left(pages):
    for path in NOTEBOOKS:
        text = pages[f"{path.stem}.html"].text
        formulas = sum(cell.source.count("$") // 2 for cell in nbformat.read(path, as_version=4).cells
                       if cell.cell_type == "markdown")  # fmt: skip
        assert not formulas or "<math" in text
        prose = re.sub(r"<(pre|code|script|title|style)\b.*?</\1>", "", text, flags=re.S)
        assert re.findall(r"\\(?:frac|sqrt|omega|text|mathrm|cdot|big)\w*|\$[^$\n]{1,40}\$", prose) == []


def test_solutions_are_folded(pages):
    for path in NOTEBOOKS:
        folded = sum(bool(cell.metadata.get("jp-MarkdownHeadingCollapsed")) for cell in nbformat.read(path, 4).cells)
        assert pages[f"{path.stem}.html"].text.count('<details class="solutions">') == folded
    assert not any("<details open" in page.text for page in pages.values())


@pytest.mark.parametrize("name", EXPLORERS)
def test_explorer_has_frames_of_modest_size(site, name):
    files = list((site / "explorers").glob(f"{name}-*.png"))
    assert len(files) >= 10
    assert len({file.read_bytes() for file in files}) > len(files) / 2
    assert sum(file.stat().st_size for file in files) < MEGABYTE


def test_every_chapter_prediction_and_figure_has_a_slide(pages):
    for path in NOTEBOOKS:
        deck, cells = pages[f"slides/{path.name.replace('.ipynb', '.html')}"], nbformat.read(path, as_version=4).cells
        for cell in cells:
            for output in cell.get("outputs", []):
                alt = output.get("metadata", {}).get("image/png", {}).get("alt")
                assert alt is None or any(picture["alt"].startswith(alt) for picture in deck.pictures), alt
        assert deck.text.count('<section class="predict">') == sum(
            "predict" in cell.metadata.get("tags", []) for cell in cells
        )
        assert "Solutions" not in deck.text


# ------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def served(site):
    """The site's address on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    try:
        with chromium() as browser:
            yield browser
    except LookupError as error:
        missing(error)


@pytest.fixture
def open_page(browser):
    """A function that opens an address; a request to elsewhere or an error on a page makes the test fail in the end."""
    contexts, troubles = [], []

    def open_page(address, width=1280, scheme="light", local=("http://127.0.0.1", "data:")):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda sent: sent.url.startswith(local) or troubles.append(f"request: {sent.url}"))
        page.on("requestfailed", lambda sent: "ABORTED" in sent.failure or troubles.append(f"failed: {sent.url}"))
        page.on("console", lambda said: said.type == "error" and troubles.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: troubles.append(f"page: {error}"))
        page.goto(address, wait_until="load")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="module")
def axe():
    """The text of axe.min.js."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "tags"), [("light", WCAG), ("dark", ["color-contrast"])])
def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(served, open_page, pages, axe, scheme, tags):
    found, page = [], open_page(f"{served}/index.html", width=360, scheme=scheme)
    for name in pages:
        if scheme == "dark" and name not in IN_THE_DARK:
            continue
        page.goto(f"{served}/{name}", wait_until="load")
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0:
            found.append(f"{name}: {wide} px wider than 360 px")
        page.evaluate(axe)
        found += [f"{name}: {violation}" for violation in page.evaluate(AXE, tags)]
    assert found == []


@pytest.mark.browser
def test_axe_notices_a_grey_word_and_a_picture_without_description(open_page, served, axe):
    page = open_page(f"{served}/index.html")
    page.evaluate(
        "document.querySelector('article p').innerHTML = '<i style=\"color: #bbb\">pale</i><img src=\"data:,\">'"
    )
    page.evaluate(axe)
    noticed = {violation.split(":")[0] for violation in page.evaluate(AXE, WCAG)}
    assert noticed == {"color-contrast", "image-alt"}


@pytest.mark.browser
@pytest.mark.parametrize("name", EXPLORERS)
def test_explorer_answers_the_keyboard(served, open_page, pages, name):
    """Home and the arrow keys move each control through all its values, and what is shown and said follows."""
    where = next((page for page, content in pages.items() if f'id="{name}"' in content.text), None)
    assert where, f"no page shows {name}"
    figure = open_page(f"{served}/{where}").locator(f"#{name}")
    controls = figure.locator("input, select").all()

    def state(control):
        return control.evaluate(STATE)

    assert len(controls) >= 2
    for control in controls:
        assert control.evaluate("control => control.labels[0].textContent.length") > 2
        size = control.evaluate("control => control.options?.length ?? Number(control.max) + 1")
        control.focus()
        control.press("Home")
        seen = [state(control)]
        for _ in range(size - 1):
            control.press("ArrowDown" if control.evaluate("control => control.matches('select')") else "ArrowRight")
            seen.append(state(control))
        for part, what in ((0, "picture"), (2, "caption"), (3, "spoken value")):
            assert len({now[part] for now in seen}) == size, f"{what} does not follow {seen[0][3]} to {seen[-1][3]}"
        assert len({now[1] for now in seen}) > size / 2, "too few descriptions"  # settings may look alike


@pytest.mark.browser
def test_pages_work_from_the_disk(site, open_page):
    page = open_page((site / "02_rope.html").as_uri(), local=("file://", "data:"))
    fold = page.locator("details").first
    fold.locator("summary").press("Enter")
    assert fold.get_attribute("open") is not None
    page.goto((site / "search.html").as_uri() + "?q=softmax")
    page.locator("#search-results li a").first.wait_for(timeout=10_000)
    assert page.locator("#search-results li a", has_text="Grouped-query attention").count()


@pytest.mark.browser
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_slides_fit_the_screen(served, open_page, path):
    page = open_page(f"{served}/slides/{path.stem}.html")
    page.wait_for_function("() => window.Reveal?.isReady()")
    page.keyboard.press("Space")
    assert page.evaluate("Reveal.getSlidePastCount()") == 1
    assert page.evaluate(TOO_LARGE) == []
    assert page.evaluate("Reveal.getSlides().length") > 15


@pytest.mark.browser
def test_watching_for_requests_notices_one(served, open_page, browser):
    noticed = []
    page = browser.new_context().new_page()
    page.on("request", lambda sent: noticed.append(sent.url))
    page.set_content("<img src='http://example.invalid/picture.png' alt='not there'>")
    page.context.close()
    assert noticed == ["http://example.invalid/picture.png"]
