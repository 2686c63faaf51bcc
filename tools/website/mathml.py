"""Formulas as MathML: TeX is converted when the site is built, and the browser draws it without any script.

The part of a mathematical font that the formulas need goes into the style sheet: without one, browsers guess where
exponents and roots stand. Also a small repair of the theme, for screen readers.
"""

import base64
import functools
import importlib.util
import io
import logging
import re
from pathlib import Path

from docutils import nodes
from fontTools import subset
from latex2mathml.converter import convert

SIGNS = "−×·⋅±′⊙∑∏∫√∞≈≠≤≥←→↔∈∂∇⌊⌋⌈⌉‖…⋯"
NAMES = r"\\(?:arctan|cos|sin|tan|ln|log(?:_2)?)"
BEFORE = [  # what TeX knows about spaces and the converter does not
    (r"\\tfrac(\d)(\d)", r"\\tfrac{\1}{\2}"),
    (rf"(?<=[A-Za-z}}]) *({NAMES})(?![A-Za-z])", r"\\,\1"),  # a cos: a space before the name
    (rf"({NAMES})(?: *(?=\\)| +(?=[A-Za-z0-9]))", r"\1\\,"),  # cos x: a space after it, unless a bracket follows
]
MINUS = "&#x02212;"  # a sign, not an operation, after another sign
UPRIGHT = r'<mi mathvariant="normal">([^<])</mi>'
AFTER = [
    (rf"(?:{UPRIGHT}){{2,}}", lambda letters: f"<mi>{''.join(re.findall(UPRIGHT, letters[0]))}</mi>"),  # one word
    (r"<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>"),  # infinity is a thing, not an operation
    (r"<mo[^>]*>&#x0007C;</mo>", '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>'),
    (rf"(<mo[^>]*>[^<]*</mo>|<mspace[^>]*>|<mrow>)<mo>{MINUS}", rf'\1<mo form="prefix" lspace="0" rspace="0">{MINUS}'),
    (r"<msup>(<mrow><mi>\w+</mi></mrow>|<mi>[^<]*</mi>)<mi>(?:&#x0*2032;|′)</mi></msup>", r'\1<mo lspace="0">′</mo>'),
]


def to_mathml(tex: str, display: str = "inline") -> str:
    """One formula as a `<math>` element.

    Args:
        tex: without the dollar signs.
        display: "inline" or "block".

    Raises:
        ValueError: names a formula that cannot be converted.
    """
    written = tex
    for pattern, better in BEFORE:
        written = re.sub(pattern, better, written)
    try:
        mathml = convert(written, display=display)
    except Exception as error:  # the library has no common class of errors
        raise ValueError(f"the formula {tex!r} cannot be converted to MathML: {type(error).__name__} {error}") from None
    for pattern, better in AFTER:
        mathml = re.sub(pattern, better, mathml)
    return mathml


@functools.cache
def font_css() -> str:
    """CSS that brings STIX Two Math (SIL Open Font License), reduced to letters, Greek and common signs.

    Raises:
        FileNotFoundError: the package ziamath does not carry the font where it is expected.
    """
    font_file = Path(importlib.util.find_spec("ziamath").origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"
    if not font_file.exists():
        raise FileNotFoundError(f"ziamath was expected to carry {font_file}: install ziamath 0.13.")
    options = subset.Options(flavor="woff", layout_features=["ssty", "dtls"], hinting=False)
    logging.getLogger("fontTools.subset").setLevel(logging.WARNING)
    font, smaller, packed = subset.load_font(font_file, options), subset.Subsetter(options), io.BytesIO()
    italic = [0x210E, *range(0x1D434, 0x1D468), *range(0x1D6FC, 0x1D71C)]  # single letters are drawn as these
    smaller.populate(unicodes=[*range(0x20, 0x7F), *range(0x391, 0x3CA), *italic, *map(ord, SIGNS)])
    smaller.subset(font)
    subset.save_font(font, packed, options)
    data = base64.b64encode(packed.getvalue()).decode()
    face = f'@font-face {{ font-family: "Course Math"; src: url("data:font/woff;base64,{data}") format("woff"); }}'
    return f'{face}\nmath {{ font-family: "Course Math", math; }}\n'


def _inline(self, node):
    self.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def _block(self, node):
    self.body.append(f'<div class="formula">{to_mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def _give_captions_a_level(app, pagename, templatename, context, doctree):
    # The navigation's captions have the role of a heading, which must say its level.
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def _write_font(app):
    (Path(app.outdir) / "_static").mkdir(parents=True, exist_ok=True)
    (Path(app.outdir) / "_static" / "math.css").write_text(font_css(), encoding="utf-8")


def setup(app):
    """Offer the renderer "mathml" to `html_math_renderer`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("builder-inited", _write_font)
    app.connect("html-page-context", _give_captions_a_level, priority=900)  # after furo, which makes the tree
    return {"parallel_read_safe": True, "parallel_write_safe": True}
