"""The website and the slides: links, descriptions, no request to elsewhere, axe-core, keyboard, phones, zoom."""

import base64
import functools
import http.server
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.support.lab import chromium, explorers_in

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXPLORERS = sorted({name for path in NOTEBOOKS for name in explorers_in(path)})
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
# Slides wider or higher than the screen, and words too small for the last row: under 24 px, code under 18 px.
UNREADABLE = """() => Reveal.getSlides().flatMap(slide => {
    const { h, v } = Reveal.getIndices(slide), found = []; Reveal.slide(h, v);
    const begin = slide.textContent.trim().slice(0, 60);
    if (slide.scrollWidth > 1280 || slide.scrollHeight > 720)
        found.push(`${slide.scrollWidth} x ${slide.scrollHeight}: ${begin}`);
    const walk = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const element = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || element.closest('aside, script, math') || !element.getClientRects().length)
            continue;
        const size = Reveal.getScale() * parseFloat(getComputedStyle(element).fontSize);
        if (size < (element.closest('pre, code') ? 18 : 24))
            found.push(`letters of ${size.toFixed(1)} px: ${walk.currentNode.data.trim().slice(0, 40)}`);
    }
    return found;
})"""
# All slides of a deck at once, one below the other, so that axe sees each.
ALL_SLIDES = """() => {
    for (const slide of document.querySelectorAll('.slides section')) {
        slide.classList.remove('past', 'present', 'future', 'stack');
        for (const name of ['hidden', 'aria-hidden', 'inert']) slide.removeAttribute(name);
        slide.style.cssText = 'display: block; position: static; visibility: visible; opacity: 1; transform: none; '
            + 'height: auto; overflow: visible';
    }
    for (const part of document.querySelectorAll('.fragment')) part.style.cssText = 'opacity: 1; visibility: visible';
    for (const part of document.querySelectorAll('.backgrounds, .controls, .progress')) part.remove();
    for (const part of document.querySelectorAll('html, body, .reveal, .slides'))
        part.style.cssText = 'position: static; overflow: visible; height: auto; width: auto; transform: none; zoom: 1';
    return [...document.querySelectorAll('.slides section section')].filter(slide => slide.offsetHeight < 40).length;
}"""
# What a reader of a narrow or enlarged page would miss: words and pictures cut at the right edge, boxes that scroll
# and cannot be reached with Tab, controls that lie on each other.
MISSED = """() => {
    const page = document.documentElement, found = [], say = element => element.outerHTML.slice(0, 120);
    if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} px wide`);
    const box = element => {
        for (let at = element; at && at !== document.body; at = at.parentElement)
            if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX) && at.scrollWidth > at.clientWidth + 1)
                return at;
    };
    for (const element of document.querySelectorAll('article *, .list *')) {
        if (!element.getClientRects().length || element.closest('math, script, .headerlink')) continue;
        const shows = element.matches('img, input, select') || [...element.childNodes].some(
            node => node.nodeType === 3 && node.data.trim());
        if (!shows || element.getBoundingClientRect().right <= page.clientWidth + 1) continue;
        const inside = box(element);
        if (!inside) found.push(`cut: ${say(element)}`);
        else if (inside.tabIndex < 0 && !inside.matches('.content')) found.push(`out of reach: ${say(inside)}`);
    }
    for (const controls of document.querySelectorAll('.frames-controls')) {
        const boxes = [...controls.children].map(child => child.getBoundingClientRect());
        boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
            if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
                found.push(`overlap: ${say(controls.children[i])}`);
        }));
    }
    return [...new Set(found)].slice(0, 8);
}"""
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


@pytest.fixture(scope="module")
def builder():
    """tools/website/build.py as a module."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        missing(f"{', '.join(absent)} not installed: `pip install -e '.[site]'`")
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    module, before = importlib.util.module_from_spec(spec), list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


# ------------------------------------------------------------------------------------------------- by hand


def png(width, height):
    """The first bytes of a PNG, in base64; only its size is read."""
    return base64.b64encode(
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + bytes(40)
    ).decode()


def picture(pixels, height, **more):
    """A code cell that shows a picture of that many pixels."""
    output = new_output(
        "display_data", {"image/png": png(pixels, height)}, metadata={"image/png": {"alt": "A", **more}}
    )
    return new_code_cell("plots.show(fig, alt)", outputs=[output])


@pytest.mark.parametrize(
    ("cell", "width", "kind"),
    [
        (picture(880, 400), 880, "wide"),
        (picture(1760, 800, width=880), 880, "wide"),
        (picture(880, 880, width=440), 440, "narrow"),
        (picture(440, 440), 440, "narrow"),
    ],
    ids=["no width", "twice as dense", "twice as dense, narrow", "narrow"],
)
def test_a_picture_is_as_wide_as_its_metadata_say(builder, tmp_path, monkeypatch, cell, width, kind):
    monkeypatch.setattr(builder, "ROOT", tmp_path)
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "one.ipynb")
    (prepared,) = builder.prepare_notebook(tmp_path / "one.ipynb", builder.Pages(), None).cells
    assert prepared.metadata["mystnb"]["image"] == {"alt": "A", "classes": kind, "width": f"{width}px"}


def slides_of(builder, *cells):
    """The HTML of the slides of a notebook with a title and these cells, one string each."""
    notebook = new_notebook(cells=[new_markdown_cell("# T\n\nLead.\n\n"), *cells])
    deck = sys.modules["slides"].deck_of(notebook, lambda text: text, None)
    return [slide for column in deck.columns for slide in column][1:]


def test_a_denser_picture_is_not_larger_on_a_slide(builder):
    plain, dense = slides_of(builder, picture(880, 400), picture(1760, 800, width=880))
    shape = r'width="(\d+)" height="(\d+)"'
    assert re.search(shape, plain).groups() == re.search(shape, dense).groups() == ("1280", "582")


def test_a_question_brings_the_paragraph_before_it_and_its_result(builder):
    ask = new_markdown_cell("Two matrices are swapped.\n\n**Predict.** Does it crash?", metadata={"tags": ["predict"]})
    define = new_code_cell("def swap(a, b):\n    return b, a")
    run = new_code_cell("swap(1, 2)", outputs=[new_output("execute_result", {"text/plain": "(2, 1)"})])
    question, code, result = slides_of(builder, ask, define, run, new_code_cell("later()"))
    assert question.index("Two matrices") < question.index("Does it crash?")
    assert "fragment" not in code
    assert "(2, 1)" in result


def test_a_long_first_paragraph_gives_its_first_sentences(builder):
    heading, list_ = slides_of(
        builder,
        new_markdown_cell("## 1.1 A\n\nShort and clear. " + "Long " * 50 + "end."),
        new_markdown_cell("<details><summary>What you saw</summary>\n\n1. One.\n2. Two.\n\n</details>"),
    )
    assert "<p>Short and clear.</p>" in heading
    assert "Long" in heading.split("<aside")[1]
    assert list_.count("<li>") == 2


def test_a_link_to_a_term_leads_to_its_entry(builder):
    def relink(target):
        return builder.Pages().relink(f"[words](../docs/glossary.md{target})", "notebooks/01_rmsnorm.ipynb")

    assert relink("") == "[words](glossary.md)"
    assert relink("#r") == "[words](glossary.md#r)"
    assert relink("#residual-stream") == '<a href="glossary.html#residual-stream">words</a>'


def test_the_workflow_publishes_what_make_site_writes():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "site.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["build"]["steps"]
    assert any(step.get("run", "").startswith("make site") for step in steps)
    assert [step["with"]["path"] for step in steps if "upload-pages" in step.get("uses", "")] == ["build/site"]
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["deploy"]["permissions"] == {"pages": "write", "id-token": "write"}


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


def test_pages_without_jekyll(site):
    assert (site / ".nojekyll").is_file()


def test_the_glossary_can_be_linked_term_by_term(pages):
    terms = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.M)
    assert {re.sub(r"[^\w\- ]", "", term.lower()).replace(" ", "-") for term in terms} <= pages["glossary.html"].ids
    for path in NOTEBOOKS:
        assert 'href="glossary.html"' in pages[f"{path.stem}.html"].text.partition("<article")[2], path.name


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
        shown = pages[f"{path.stem}.html"].pictures
        described = [picture["alt"] for picture in shown]
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                alt = output.get("metadata", {}).get("image/png", {}).get("alt")
                assert alt is None or any(text.startswith(alt) for text in described), f"{path.name}: {alt}"
                width = output.get("metadata", {}).get("image/png", {}).get("width")
                if width and not re.search(r"^explore_", cell.source, re.M):
                    picture = next(p for p in shown if p["alt"] == alt)
                    said = {picture.get("width"), picture.get("style", "")}  # docutils writes one or the other
                    assert {str(width), f"width: {width}px;"} & said, f"{path.name}: {alt}"


def test_formulas_are_mathml_and_no_tex_is_left(pages):
    for path in NOTEBOOKS:
        text = pages[f"{path.stem}.html"].text
        formulas = sum(cell.source.count("$") // 2 for cell in nbformat.read(path, as_version=4).cells
                       if cell.cell_type == "markdown")  # fmt: skip
        assert not formulas or "<math" in text
        prose = re.sub(r"<(pre|code|script|title|style)\b.*?</\1>", "", text, flags=re.S)
        assert re.findall(r"\\(?:frac|sqrt|omega|text|mathrm|cdot|big)\w*|\$[^$\n]{1,40}\$", prose) == []


def test_no_number_at_the_start_of_a_sentence_became_a_list(pages):
    """In Markdown "78. Most guess more" is the 78th entry of a list, and its number is cut at the edge."""
    start = re.compile(r'<ol[^>]* start="(\d\d+)"')
    assert [(name, number) for name, page in pages.items() for number in start.findall(page.text)] == []


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
        assert deck.text.count('<section class="predict ') == sum(
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

    def open_page(address, width=1280, scheme="light", local=("http://127.0.0.1", "data:"), density=1):
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=density)
        context.set_default_timeout(120_000)
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


def missed_on(page, seconds=10):
    """What is still cut or out of reach when the page has come to rest: it hears of a new width a moment later."""
    end = time.monotonic() + seconds
    while (missed := page.evaluate(MISSED)) and time.monotonic() < end:
        page.wait_for_timeout(100)
    return missed


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "tags"), [("light", WCAG), ("dark", ["color-contrast"])])
def test_axe_finds_nothing_and_nothing_is_cut_on_a_phone_or_enlarged(served, open_page, pages, axe, scheme, tags):
    """A page of 1280 px at 200 % zoom has 640 px of its own, two of the screen's for each; a phone has 360."""
    found, page = [], open_page(f"{served}/index.html", width=640, scheme=scheme, density=2)
    for name in pages:
        if scheme == "dark" and name not in IN_THE_DARK:
            continue
        page.goto(f"{served}/{name}", wait_until="load")
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        if scheme == "light":
            for width in (640, 360):
                page.set_viewport_size({"width": width, "height": 800})
                page.wait_for_function("width => innerWidth === width", arg=width)
                found += [f"{name} at {width} px: {missed}" for missed in missed_on(page)]
        if re.match(r"slides/\d", name):
            page.wait_for_function("() => window.Reveal?.isReady()")
            assert page.evaluate(ALL_SLIDES) == 0, f"{name}: slides that axe would not see"
        page.evaluate(axe)
        found += [f"{name}: {violation}" for violation in page.evaluate(AXE, tags)]
    assert found == []


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "place"), [("index", "article p"), ("slides/07_scaling_out", ".slides > section:last-child li:last-child")]
)
def test_axe_notices_a_grey_word_and_a_picture_without_description(open_page, served, axe, name, place):
    page = open_page(f"{served}/{name}.html")
    page.evaluate(
        'place => { document.querySelector(place).innerHTML = \'<i style="color: #bbb">pale</i><img src="data:,">\' }',
        place,
    )
    if "slides" in name:
        page.wait_for_function("() => window.Reveal?.isReady()")
        page.evaluate(ALL_SLIDES)
    page.evaluate(axe)
    noticed = {violation.split(":")[0] for violation in page.evaluate(AXE, WCAG)}
    assert noticed == {"color-contrast", "image-alt"}


@pytest.mark.browser
def test_what_is_cut_or_out_of_reach_is_noticed(open_page, served):
    page = open_page(f"{served}/index.html", width=360)
    assert missed_on(page) == []
    page.evaluate("""() => { document.querySelector('article p').innerHTML =
        '<b style="position: absolute; left: 300px; width: 200px">cut off here</b>'
        + '<span style="display: block; overflow-x: auto"><i style="display: block; width: 900px">far</i></span>' }""")
    assert {missed.split(":")[0] for missed in missed_on(page, seconds=1)} >= {"cut", "out of reach"}


@pytest.mark.browser
def test_links_in_text_are_underlined(open_page, served):
    """Not blue alone: a line that is as easy to see as the words."""
    page = open_page(f"{served}/index.html")
    for name in ("index", "glossary", "01_rmsnorm", "slides/index", "slides/00_start_here"):
        page.goto(f"{served}/{name}.html")
        lines = page.evaluate("""() => [...document.querySelectorAll('article a, .list a, .slides a')]
            .filter(link => link.textContent.trim() && !link.matches('.headerlink')).map(link => getComputedStyle(link))
            .map(style => [style.textDecorationLine, style.textDecorationColor === style.color])""")
        assert lines == [["underline", True]] * len(lines), name
        assert lines or "slides/0" in name


@pytest.mark.browser
def test_an_explorer_is_reached_and_moved_without_a_mouse(open_page, served):
    page = open_page(f"{served}/04_gqa.html")
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = false; })")
    reached, at = [], "document.activeElement"
    while len(reached) < 250 and reached[-2:] != ["INPUT", "SELECT"]:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(f"{at}.tagName"))
        line = page.evaluate(
            f"(({{outlineStyle, outlineWidth}}) => outlineStyle + outlineWidth)(getComputedStyle({at}))"
        )
        assert not line.startswith("none"), f"the focus is not seen: {page.evaluate(at + '.outerHTML')[:150]}"
    assert reached[-2:] == ["INPUT", "SELECT"], "Tab does not lead to the explorer's controls"
    caption = page.locator(":focus").evaluate_handle("control => control.closest('figure').querySelector('.finding')")
    before = caption.evaluate("caption => caption.textContent")
    page.keyboard.press("ArrowDown")
    assert caption.evaluate("caption => caption.textContent") != before


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
    page.locator("#search-results li a", has_text="Grouped-query attention").first.wait_for()  # they come one by one


@pytest.mark.browser
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_slides_fit_the_screen_and_can_be_read_from_afar(served, open_page, path):
    page = open_page(f"{served}/slides/{path.stem}.html")
    page.set_viewport_size({"width": 1280, "height": 720})
    page.wait_for_function("() => window.Reveal?.isReady()")
    page.keyboard.press("Space")
    assert page.evaluate("Reveal.getSlidePastCount()") == 1
    assert page.evaluate(UNREADABLE) == []
    assert page.evaluate("Reveal.getSlides().length") > 15


def at_the_explorer(served, open_page):
    """The deck of notebook 07 at the slide of its explorer."""
    page = open_page(f"{served}/slides/07_scaling_out.html")
    page.wait_for_function("() => window.Reveal?.isReady()")
    page.evaluate("""() => { const { h, v } = Reveal.getIndices(document.querySelector('section.explorer'));
        Reveal.slide(h, v) }""")
    return page


@pytest.mark.browser
def test_an_explorer_on_a_slide_keeps_the_arrow_keys_to_itself(served, open_page):
    page = at_the_explorer(served, open_page)
    for _ in range(5):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "range":
            break
    where = "JSON.stringify(Reveal.getIndices())"
    at, said = page.evaluate(where), page.locator(".present .finding").last.text_content()
    page.keyboard.press("ArrowRight")
    assert page.locator(".present .finding").last.text_content() != said
    assert page.evaluate(where) == at


@pytest.mark.browser
def test_a_slider_moved_with_the_mouse_gives_the_keys_back(served, open_page):
    page = at_the_explorer(served, open_page)
    box, where = page.locator(".present input[type=range]").last.bounding_box(), "JSON.stringify(Reveal.getIndices())"
    at, said = page.evaluate(where), page.locator(".present .finding").last.text_content()
    page.mouse.click(box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2)
    assert page.locator(".present .finding").last.text_content() != said
    page.keyboard.press("Space")
    assert page.evaluate(where) != at


@pytest.mark.browser
def test_arrow_keys_scroll_a_wide_box_and_stay_on_the_page(served, open_page):
    page = open_page(f"{served}/03_swiglu.html", width=360)
    box = page.locator("article pre[tabindex]:visible").first
    box.focus()
    box.press("ArrowRight")
    page.wait_for_function("() => document.activeElement.scrollLeft > 0")
    assert page.url == f"{served}/03_swiglu.html"


@pytest.mark.browser
def test_watching_for_requests_notices_one(served, open_page, browser):
    noticed = []
    page = browser.new_context().new_page()
    page.on("request", lambda sent: noticed.append(sent.url))
    page.route("http://example.invalid/**", lambda route: route.abort())
    page.set_content("<img src='http://example.invalid/picture.png' alt='not there'>")
    page.context.close()
    assert noticed == ["http://example.invalid/picture.png"]
