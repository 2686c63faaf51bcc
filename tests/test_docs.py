"""The pages for people: links resolve, the glossary is in order and true."""

import re
from urllib.parse import unquote

import pytest

from tests.support.course import ROOT, notebooks, pages

NOTEBOOKS = {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
GLOSSARY = re.sub(r"\n {2}", " ", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
# term, what stands behind it, explanation, number of the notebook, section, its file
ENTRIES = re.findall(r"^- \*\*(.+?)\*\*(.*?): (.+?) \[(0\d), ([^\]]+)\]\(\.\./notebooks/([^)]+)\)$", GLOSSARY, re.M)
NAMED = {"start": "start", "exercises": "Exercises", "end": "Where this lives"}  # sections without a number


def sections_of(notebook):
    """The cells of a notebook by section: {"1.3" or a heading: [cell, ...]}; "start" is before the first."""
    sections, current = {"start": []}, "start"
    for cell in notebook.cells:
        heading = re.match(r"## (?:(\d\.\d+) |(.*))", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            current = heading[1] or heading[2].strip()
        sections.setdefault(current, []).append(cell)
    return sections


SECTIONS = {stem[:2]: sections_of(notebook) for stem, notebook in notebooks().items()}
NUMBERED = {name for sections in SECTIONS.values() for name in sections if re.match(r"\d\.", name)}


def text_of(path):
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n".join(cell.source for cell in notebooks()[path.stem].cells if cell.cell_type == "markdown")


def anchors_of(path):
    """Of a page as GitHub and MyST make them; JupyterLab keeps a heading's signs and capitals."""
    headings = [heading.strip() for heading in re.findall(r"^#+ (.*)$", text_of(path), re.M)]
    if path.suffix != ".ipynb":
        headings = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in headings}


def links_of(path):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text_of(path), flags=re.M | re.S)
    return [a or b for a, b in re.findall(r"\]\(([^)\s]+)\)|href=[\"']([^\"']+)", text)]


@pytest.mark.parametrize("path", [*pages(), *NOTEBOOKS.values()], ids=lambda path: path.name)
def test_internal_links_lead_to_a_file_and_to_a_heading_that_are_there(path):
    for link in links_of(path):
        if re.match(r"[a-z]+:", link):  # to another site: not ours to check
            continue
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert not anchor or target.suffix not in (".md", ".ipynb") or anchor in anchors_of(target), link


def test_sections_that_errors_name_are_there():
    rooms = ("helpers", "explorers", "beyond", "checks", "tools")
    sources = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    said = "".join(path.read_text(encoding="utf-8") for path in sources)
    named = {section for _, section in re.findall(r"notebook (\d\d), section ([\d.]*\d)", said)}
    assert named - NUMBERED == set() < named


def words_of(text):
    """Text without signs of markup, so that "**gated** layer" and "gated layer" are one."""
    return re.sub(r"[\s*`_\-–]+", " ", text.casefold())


def test_a_term_is_in_the_section_that_its_entry_names():
    assert len(ENTRIES) == GLOSSARY.count("\n- ") > 120
    texts = {
        f"{number}, {name}": words_of(" ".join(cell.source for cell in cells))
        for number, sections in SECTIONS.items()
        for name, cells in sections.items()
    }
    for term, _, _, number, section, file in ENTRIES:
        assert NOTEBOOKS[number].name == file, term
        is_in = re.compile(rf"\b{re.escape(words_of(term))}").search
        if not is_in(texts.get(f"{number}, {NAMED.get(section, section)}", "")):
            holds = [place for place, text in texts.items() if is_in(text)]
            pytest.fail(f"{term} is not in {number}, {section}; it is in {' · '.join(holds[:5]) or 'no section'}")


def test_each_term_has_one_chinese_term_and_no_two_the_same():
    chinese = [re.findall(r"(?<=, )[^,]*[\u4e00-\u9fff][^,]*", more) for _, more, *_ in ENTRIES]
    assert [entry[0] for entry, terms in zip(ENTRIES, chinese, strict=True) if len(terms) != 1] == []
    assert len({terms[0] for terms in chinese}) == len(chinese)


def test_the_page_of_readers_names_the_versions_that_its_programs_install():
    source = "".join((ROOT / "benchmarks" / f"{name}.py").read_text("utf-8") for name in ("readers", "conventions"))
    page = (ROOT / "docs" / "readers.md").read_text("utf-8")
    versions = re.findall(r'"[\w-]+(?:\[cpu\])?==([\d.]+)', source)
    assert [version for version in versions if version not in page] == [] != versions


def test_each_claim_has_a_verdict_and_a_cell_that_is_there():
    page = (ROOT / "docs" / "claims.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \| \[(\d\d)[^\]]*\]\(\.\./notebooks/([^)]+)\), `([\w-]+)` \|$", page, re.M)
    assert len(rows) == page.count("\n| ") - page.count("\n| said ") > 30
    for said, verdict, number, file, cell in rows:
        assert NOTEBOOKS[number].name == file, said
        assert re.match("true|false|half true|not shown|not seen|only if", verdict), f"{said}: begin with the verdict"
        assert cell in {one.id for one in notebooks()[NOTEBOOKS[number].stem].cells}, f"{said}: no cell {cell}"
