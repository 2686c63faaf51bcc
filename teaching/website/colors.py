"""The colours of the site, the slides and the page of a class: those of the figures, and what goes with them.

CSS names each by its key here, `var(--query)`; no other file of the kit holds one of these values.
"""

from helpers.plots import HATCH, HIDDEN, INK, KEY, QUERY

LIGHT = {
    "query": QUERY, "key": KEY, "key-text": "#b34700", "hidden": HIDDEN, "hatch": HATCH, "ink": INK, "brand": "#00527f",
    "grey": "#595959", "pale": "#7fa8bf", "code": "#f4f4f4", "paper": "#ffffff", "mark": "#ffd34d",
}  # fmt: skip
DARK = {  # where a page is dark; the rest stays
    "query": "#56b4e9", "key": "#ff9d5c", "key-text": "#ff9d5c", "hidden": "#3a3a3a", "hatch": "#6a6a6a",
    "ink": "#e0e0e0", "brand": "#7cc4f2", "grey": "#a8a8a8", "pale": "#4f7c96", "code": "#2b2b2b", "paper": "#131416",
}  # fmt: skip


def css() -> str:
    """A page's colours as its system asks; the theme of the site has its own button, and takes them from `conf.py`."""
    light, dark = ("".join(f" --{name}: {value};" for name, value in one.items()) for one in (LIGHT, DARK))
    return (
        f":root {{ color-scheme: light dark;{light} }}\n@media (prefers-color-scheme: dark) {{\n:root {{{dark} }}\n}}\n"
    )
