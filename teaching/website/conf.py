"""Sphinx settings of the website. `build.py` prepares the pages and then calls Sphinx with these."""

import textwrap

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode

from teaching.website import colors
from teaching.website.build import ROOT
from teaching.website.downloads import told
from teaching.website.slides import MATHJAX, MATHJAX_SETTINGS

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
nb_ipywidgets_js = {}  # explorers are pictures here; the widgets' scripts would come from a network
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/png", 1), ("html", "text/markdown", 2)]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_heading_slug_func = "teaching.website.build.slug"

html_theme = "furo"
html_title = "LLaMA in notebooks"
html_baseurl = f"{site}/" if (site := told("COURSE_SITE")) else ""
html_static_path = ["static", str(MATHJAX), str(ROOT / "docs" / "lenses.png")]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
mathjax_path = MATHJAX.name
mathjax3_config = MATHJAX_SETTINGS
html_favicon = "static/icon.svg"
html_copy_source = False
html_use_index = False
html_show_search_summary = False  # a page that was opened from a disk may not fetch the others
templates_path = ["templates"]
html_permalinks_icon = "#"
html_theme_options = {  # a link is underlined, not only blue
    f"{theme}_css_variables": {
        "color-foreground-primary": known["ink"],
        **dict.fromkeys(("color-brand-primary", "color-brand-content", "color-link-underline"), known["brand"]),
        "color-link-underline--visited": "var(--color-link--visited)",
        **known,
    }
    for theme, known in (("light", colors.LIGHT), ("dark", colors.DARK))
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def _add_lead(app, pagename, templatename, context, doctree):
    # Of templates/page.html: the first paragraph.
    first = doctree.next_node(nodes.paragraph) if doctree else None
    lead = textwrap.shorten(first.astext() if first else html_title, 200, placeholder=" …")
    context |= {"lead": lead, "html_baseurl": html_baseurl}


def _open_fold(self, node):
    # The package's own summary has a label ("Toggle hidden content") in place of its words.
    kind, words = "answer", "Show the figure" if node.next_node(nodes.image) else "Show what it prints"
    if "above-input" in node["classes"]:
        kind, words = "drawing", "Show the code of this figure"
        if "plots.use_course_style()" in node.astext():
            kind, words = "imports", "Show the imports"
    self.body.append(f'<details class="{kind}"><summary>{words}</summary>\n')


def _close_fold(self, node):
    self.body.append("</details>\n")


def setup(app):
    """Called by Sphinx."""
    app.add_node(HideCodeCellNode, override=True, html=(_open_fold, _close_fold))
    app.connect("html-page-context", _add_lead)
