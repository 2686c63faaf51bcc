"""Sphinx settings of the website. `build.py` prepares the pages and then calls Sphinx with these."""

from tools.website.slides import MATHJAX, MATHJAX_SETTINGS

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
nb_code_prompt_show, nb_code_prompt_hide = "Show what it prints", "Hide what it prints"
nb_ipywidgets_js = {}  # explorers are frames here (frames.py); the widgets' scripts would come from a network
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/png", 1), ("html", "text/markdown", 2)]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "LLaMA in notebooks"
html_static_path = ["static", str(MATHJAX)]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
mathjax_path = MATHJAX.name
mathjax3_config = MATHJAX_SETTINGS
html_favicon = "static/icon.svg"
html_copy_source = False
html_use_index = False
html_show_search_summary = False  # summaries are fetched, and a page opened from a disk may not fetch
html_permalinks_icon = "#"
html_theme_options = {
    "light_css_variables": {
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


def setup(app):
    """Called by Sphinx."""
    app.connect("html-page-context", _give_captions_a_level, priority=900)  # after the theme, which makes the tree
