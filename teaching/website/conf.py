"""Sphinx settings of the website. `build.py` prepares the pages and then calls Sphinx with these."""

import html
import json
import re
from pathlib import Path

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode

from teaching.website import preview
from teaching.website.downloads import address
from teaching.website.slides import MATHJAX, MATHJAX_SETTINGS
from teaching.website.terms import mark_terms

project = "LLaMA in notebooks"
copyright = "the authors of the course; MIT licence"
extensions = ["myst_nb"]
suppress_warnings = [
    "myst.header",  # a notebook may go from "##" to "####"
    "toc.not_included",  # a text that only other texts link to
]

# The notebooks are shown as they were run: nothing is executed here, so the build needs no kernel.
nb_execution_mode = "off"
nb_render_markdown_format = "commonmark"
nb_ipywidgets_js = {}  # explorers are frames here (frames.py); the widgets' scripts would come from a network
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/png", 1), ("html", "text/markdown", 2)]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "LLaMA in notebooks"
html_baseurl = f"{address()}/" if address() else ""
html_static_path = ["static", str(MATHJAX)]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
mathjax_path = MATHJAX.name
mathjax3_config = MATHJAX_SETTINGS
html_favicon = "static/icon.svg"
html_copy_source = False
html_use_index = False
html_additional_pages = {"search": "search.html"}  # in place of Sphinx's search, which knows no sections
templates_path = ["templates"]
html_permalinks_icon = "#"
html_theme_options = {
    "light_css_variables": {
        "color-foreground-primary": "#1f2328",
        **dict.fromkeys(("color-brand-primary", "color-brand-content", "color-link-underline"), "#00527f"),
        "color-link-underline--visited": "var(--color-link--visited)",  # a link is underlined, not only blue
    },
    "dark_css_variables": {
        **dict.fromkeys(("color-brand-primary", "color-brand-content", "color-link-underline"), "#7cc4f2"),
        "color-link-underline--visited": "var(--color-link--visited)",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def _give_captions_a_level(app, pagename, templatename, context, doctree):
    # The theme gives the navigation's captions the role of a heading; a screen reader needs its level, too.
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


DESCRIPTIONS = {  # of pages that do not begin with a sentence on what they are
    "live": "A small LLaMA runs in this page: type, switch off one of its parts, and see what it writes then.",
    "CONTRIBUTING": "How to report a fault in the course, and how to change it.",
    "slides/index": "One deck of slides per notebook, for a class; they need no network.",
    "search": "Search the notebooks, the glossary and the other pages of the course.",
}


def _add_preview(app, pagename, templatename, context, doctree):
    # The description is the first paragraph; the start page has the name of the whole.
    first = doctree.next_node(nodes.paragraph) if doctree else None
    words = DESCRIPTIONS.get(pagename) or (first.astext() if first else html_title)
    title = html_title if pagename == "index" else re.sub("<.*?>", "", context.get("title") or pagename.capitalize())
    tags = preview.tags(html.unescape(title), " ".join(words.split()), f"{pagename}.html")
    context["metatags"] = f"{context.get('metatags') or ''}\n{tags}\n"


def _open_fold(self, node):
    # The package's own summary has a label ("Toggle hidden content") in place of its words.
    kind, words = "answer", "Show the figure" if node.next_node(nodes.image) else "Show what it prints"
    if "above-input" in node["classes"]:
        kind, words = "drawing", "Show the code of this figure"
    self.body.append(f'<details class="{kind}"><summary>{words}</summary>\n')


def _close_fold(self, node):
    self.body.append("</details>\n")


def _collect_sections(app, doctree, docname):
    # For the search: page, anchor, the page's title, the section's title, its text without that of its sections.
    tree, folds = doctree.deepcopy(), 0
    for node in list(tree.findall(nodes.Element)):  # what is folded answers a question: no excerpt gives it away
        if isinstance(node, nodes.raw):
            folds += node.astext().count("<details") - node.astext().count("</details")
        elif folds and isinstance(node.parent, nodes.section) and not isinstance(node, nodes.section | nodes.title):
            node.parent.remove(node)
    left_out = (nodes.raw, nodes.math_block, HideCodeCellNode)  # of a formula in a line, the letters are left
    for node in list(tree.findall(lambda node: isinstance(node, (*left_out, nodes.math)))):
        words = re.sub(r"\\[a-zA-Z]+|[\\{}$]", "", node.astext()) if isinstance(node, nodes.math) else ""
        node.parent.replace(node, nodes.Text(words))
    for section in tree.findall(nodes.section):
        parts = [part for part in section.children[1:] if not isinstance(part, nodes.section)]
        texts = [text.astext() for part in parts for text in part.findall(nodes.TextElement)
                 if not isinstance(text.parent, nodes.TextElement)]  # fmt: skip
        title, text = section.next_node(nodes.title).astext(), " ".join(" ".join(texts).split())
        app.sections.append((f"{docname}.html", section["ids"][0], app.env.titles[docname].astext(), title, text))


def _write_sections(app, exception):
    # A script, because a page that was opened from a disk may not fetch data.
    script = json.dumps(sorted(app.sections), ensure_ascii=False, separators=(",", ":"))
    if not exception:
        Path(app.outdir, "_static", "sections.js").write_text(f"window.sections = {script};\n", encoding="utf-8")


def _search_here(app):
    app.builder.search, app.sections = False, []


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", _search_here)
    app.connect("doctree-resolved", _collect_sections)
    app.connect("doctree-resolved", mark_terms, priority=900)  # after the search has read the text
    app.connect("build-finished", _write_sections)
    app.add_node(HideCodeCellNode, override=True, html=(_open_fold, _close_fold))
    app.connect("html-page-context", _add_preview)
    app.connect("html-page-context", _give_captions_a_level, priority=900)  # after the theme, which makes the tree
