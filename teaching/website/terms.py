"""Terms of the glossary, explained where a notebook uses them: the word opens its entry.

A word is marked once per page, at its first use after the section that its entry names: before that section the entry
could tell an answer, and in it the text explains the word itself. Questions, headings, code, captions and links stay
as they are, and so do words that often mean something else.
"""

import html
import re
from pathlib import Path

from docutils import nodes

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ENTRY = re.compile(r"^- \*\*(.+?)\*\*(.*?): (.+?) \[(0\d), ([^\]]+)\]\(\.\./notebooks/([^)]+)\)$", re.M)
AMBIGUOUS = re.compile(
    "base|bound|core|edit|exchange|family|halves|kernel|key|merge|opening|pair|port|process|reach|reaction|scaling|step|"
    "strict|surprise|up|value|weight|window|Hub|transformer"
)
QUESTIONS = ("From earlier", "Check yourself", "Where this lives", "Solutions")  # sections that ask, or only list
UNTOUCHED = (
    nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.figure
)  # fmt: skip
LAST = 99


def entries(text: str) -> dict[str, tuple[tuple[int, int], str, str]]:
    """The glossary's entries by their terms.

    Args:
        text: of the glossary.

    Returns:
        for each term the place that explains it, (notebook, section); its anchor; its sentences in HTML.
    """
    found = {}
    for term, more, says, number, section, _ in ENTRY.findall(re.sub(r"\n {2}", " ", text)):
        name = f"<b>{html.escape(term)}</b>{_inline(more)}: {_inline(says)}"
        found[term] = (int(number), _place(section)), re.sub(r"[^\w\- ]", "", term.lower()).replace(" ", "-"), name
    return found


def _inline(text):
    # The few signs of Markdown that an entry's sentences have.
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)


def _place(section):
    # A section's number within its notebook: 4 of "2.4 Which two ..."; the text before the first one is 0.
    number = re.match(r"\d\.(\d+)", section)
    return int(number[1]) if number else 0 if section == "start" else LAST


def _pattern(terms):
    # The longest first, so that "base model" is not "base"; a term with capitals is met with these only.
    parts = [
        re.escape(term) if re.search("[A-Z]", term) else f"(?i:{re.escape(term)})"
        for term in sorted(terms, key=len, reverse=True)
    ]
    return re.compile(rf"(?<![\w/-])({'|'.join(parts)})(?:s|es)?(?![\w/-])")


def mark_terms(app, doctree, docname):
    """Make links of the terms on a notebook's page; Sphinx calls it with each page."""
    if not docname.startswith("notebooks/"):
        return
    known = entries(GLOSSARY.read_text(encoding="utf-8"))
    lower, pattern, place, asks, marked = {t.lower(): t for t in known}, _pattern(known), 0, 0, set()
    notebook, skipped = int(docname.rpartition("/")[2][:2]), False

    def link(match):
        term = match[1] if match[1] in known else lower[match[1].lower()]
        taught, anchor, tip = known[term]
        if term in marked or AMBIGUOUS.fullmatch(term) or taught >= (notebook, place):
            return match[0]
        marked.add(term)
        target = f'href="../docs/glossary.html#{anchor}" data-tip="{html.escape(tip)}"'
        return f'\0<a class="term" {target}>\0{match[0]}\0</a>\0'

    for node in list(doctree.findall()):
        if isinstance(node, nodes.title) and isinstance(node.parent, nodes.section):
            heading = node.astext()
            if (number := _place(heading)) and number != LAST:
                place, skipped = number, False
            elif heading.startswith((*QUESTIONS, "Exercises", "What you can now say")):
                place, skipped = LAST, heading.startswith(QUESTIONS)
                place = 0 if heading.startswith("From earlier") else place
        elif isinstance(node, nodes.raw):
            asks += node.astext().count('<div class="predict"') - (node.astext().strip() == "</div>" and asks > 0)
        elif isinstance(node, nodes.Text) and not asks and not skipped and not _inside(node, UNTOUCHED):
            parts = pattern.sub(link, str(node)).split("\0")
            if len(parts) > 1:
                new = [nodes.raw("", part, format="html") if part.startswith(("<a class", "</a>")) else nodes.Text(part)
                       for part in parts if part]  # fmt: skip
                node.parent.replace(node, new)


def _inside(node, kinds):
    while node := node.parent:
        if isinstance(node, kinds) or "cell_output" in node.get("classes", ()):
            return True
    return False
