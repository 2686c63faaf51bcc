"""Sphinx settings of the website. `build.py` prepares the pages and then calls Sphinx with these."""

from importlib import import_module
from pathlib import Path

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode

from helpers.plots import HATCH, HIDDEN, INK, KEY, QUERY

# The colours of the figures, and what goes with them: CSS names each by its key here, `var(--query)`.
LIGHT = {
    "query": QUERY, "key": KEY, "key-text": "#b34700", "hidden": HIDDEN, "hatch": HATCH, "ink": INK, "brand": "#00527f",
}  # fmt: skip
DARK = {  # where a page is dark; the rest stays
    "query": "#56b4e9", "key": "#ff9d5c", "key-text": "#ff9d5c", "hidden": "#3a3a3a", "hatch": "#6a6a6a",
    "ink": "#e0e0e0", "brand": "#7cc4f2",
}  # fmt: skip
# All of MathJax in one file: JupyterLab has it only inside its bundle, nbconvert takes it from a network.
MATHJAX = Path(import_module("sphinx-mathjax-offline").__file__).parent / "static" / "mathjax" / "tex-svg.js"

project = "LLaMA in notebooks"
copyright = "the authors of the course; MIT licence"
extensions = ["myst_nb"]
suppress_warnings = [
    "myst.header",  # a notebook may go from "##" to "####"
    "toc.not_included",  # a text that only other texts link to
]

# The notebooks are shown as they were run: nothing is executed here, so the build needs no kernel.
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # explorers are pictures here; the widgets' scripts would come from a network
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/png", 1), ("html", "text/markdown", 2)]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_heading_slug_func = "teaching.website.build.slug"

html_theme = "furo"
html_title = "LLaMA in notebooks"
html_static_path = ["static", str(MATHJAX)]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
mathjax_path = MATHJAX.name
# A menu would make every formula a stop of the Tab key; the scale suits the letters of a sans serif around it.
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"scale": 0.85}}
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
    for theme, known in (("light", LIGHT), ("dark", DARK))
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


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
