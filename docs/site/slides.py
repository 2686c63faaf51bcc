"""Slides from the notebooks, one HTML file per notebook, shown by a copy of reveal.js that lies beside them.

Which cell becomes a slide follows from its tags, headings and outputs alone, so a notebook needs no settings for it:

- The title cell: its title, its first sentence, its question.
- Every heading of level 2 starts a column, every heading of level 3 a slide below: the heading and the text's first
  paragraph, if it has at most 45 words. What follows goes into the speaker notes (key S).
- A text cell with the tag `predict`: its question, alone on a slide.
- The first code cell after a prediction, if it has at most 12 lines: the code, and its printed result one key later.
- Every picture, alone and as large as the slide; its description is the alt text and stands in the notes.
- Every explorer, with its slider.
- *What you saw*: its first paragraph, of at most 70 words; the rest goes into the notes.
- *What you can now say*: whole. Everything else is left out: other texts and code, hints, *Check yourself*, *Where this
  lives*, solutions.
"""

import base64
import html
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import sphinx_revealjs
from markdown_it import MarkdownIt
from mathml import font_css, to_mathml
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

LEAD_WORDS, ANSWER_WORDS, CODE_LINES, OUTPUT_LINES = 45, 70, 12, 12
STYLE = "a11y-high-contrast-light"
REVEAL = Path(sphinx_revealjs.__file__).parent / "_static" / "revealjs"
FILES = ("dist/reveal.js", "dist/reveal.css", "dist/reset.css", "plugin/notes/notes.js", "LICENSE")
LEFT_OUT = ("Check yourself", "Where this lives", "Solutions")
WHOLE = ("What you can now say",)
FOLD = re.compile(r"<details><summary>(.*?)</summary>(.*?)</details>", re.S)

markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
markdown.use(dollarmath_plugin, renderer=lambda tex, how: to_mathml(tex, "block" if how["display_mode"] else "inline"))


@dataclass
class Deck:
    """Columns of slides, filled from top to bottom and from left to right."""

    columns: list = field(default_factory=list)
    heading: str = ""

    def add(self, content: str, notes: str = "", kind: str = "", column: bool = False):
        """One more slide below the last one, or at the top of a new column."""
        notes = f'<aside class="notes">{markdown.render(notes)}</aside>' if notes.strip() else ""
        slide = f'<section class="{kind}">\n{content}\n{notes}</section>'
        if column or not self.columns:
            self.columns.append([])
        self.columns[-1].append(slide)

    @property
    def above(self) -> str:
        """The section's heading, small, for slides that have no heading of their own."""
        return f'<p class="above">{markdown.renderInline(self.heading)}</p>\n'

    def html(self) -> str:
        """All slides."""
        return "\n".join("<section>\n" + "\n".join(column) + "\n</section>" for column in self.columns)


def deck_of(notebook, relink, frames_of) -> Deck:
    """The slides of one notebook, by the rules above.

    Args:
        notebook: as nbformat reads it.
        relink: takes a text cell's Markdown, returns it with links that work from the slide.
        frames_of: takes an explorer's name, returns the HTML of its frames.
    """
    deck, asked, left_out = Deck(), False, False
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            title = re.match(r"## (.*)", cell.source)
            left_out = title[1].startswith(LEFT_OUT) if title else left_out
            if not left_out:
                predict = "predict" in cell.metadata.get("tags", [])
                _add_text(deck, relink(cell.source), predict, first=number == 0)
                asked = predict or asked
        elif not left_out:
            asked = _add_code(deck, cell, asked, frames_of)
    return deck


def _add_text(deck, text, predict, first):
    if first:
        title, lead = re.match(r"# (.*?)\n+(.*?)\n\n", text, re.S).groups()
        question = re.search(r"\*\*Question:\*\*\s*(.*)", text)
        shown = f"# {title}\n\n{lead}" + (f"\n\n**Question:** {question[1]}" if question else "")
        deck.add(markdown.render(shown), text.partition("\n")[2], "title", column=True)
        return
    text, question = split_prediction(text) if predict else (text, "")
    for part in re.split(r"^(?=#{2,3} )", text, flags=re.M):
        heading = re.match(r"(#{2,3}) (.*)\n*", part)
        if heading:
            deck.heading, body = heading[2], part[heading.end() :]
            shown, notes = _split(body, 10_000 if heading[2] in WHOLE else LEAD_WORDS)
            kind = "heading dense" if len(shown.split()) > LEAD_WORDS else "heading"
            deck.add(markdown.render(f"## {heading[2]}\n\n{shown}"), notes, kind, column=len(heading[1]) == 2)
        else:
            body = part
        for summary, answer in FOLD.findall(body):
            if summary.startswith("What you saw"):
                shown, notes = _split(answer, ANSWER_WORDS)
                shown, notes = (shown, notes) if shown else (answer, "")
                deck.add(f"{deck.above}<h3>{summary}</h3>\n{markdown.render(shown)}", notes, "answer")
    if question:
        question = question.removeprefix("**Predict.**").strip()
        deck.add(f"{deck.above}<h3>Predict</h3>\n{markdown.render(question)}", "", "predict")


def split_prediction(text: str) -> tuple[str, str]:
    """A text cell cut before the paragraph that asks for a prediction: what stands before it, and the question.

    Raises:
        ValueError: no paragraph asks, although the cell has the tag `predict`.
    """
    place = text.find("**Predict")
    if place < 0:
        raise ValueError(f"this cell has the tag predict and no **Predict.** in it: {text[:60]!r}")
    start = text.rfind("\n\n", 0, place) + 2 if "\n\n" in text[:place] else 0
    return text[:start], text[start:]


def _split(text, words):
    # What is shown, and what goes into the notes: the first paragraph (with the list or formula after it), if short.
    text = FOLD.sub("", text).strip()
    shown, count = [], 0
    blocks = re.split(r"\n\s*\n", text)
    for block in blocks[: 1 if words < 1000 else None]:
        count += len(re.sub(r"\$.*?\$", "x", block, flags=re.S).split())
        if count > words or block.startswith(("|", "```")):
            break
        shown.append(block)
    return "\n\n".join(shown), "\n\n".join(blocks[len(shown) :])


def _add_code(deck, cell, asked, frames_of):
    explorer = re.search(r"^(explore_\w+)\(\)", cell.source, re.M)
    if explorer:
        deck.add(frames_of(explorer[1]), kind="explorer")
        return False
    pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
    for output in pictures:
        alt, png = output.metadata["image/png"]["alt"], "".join(output.data["image/png"].split())
        width, height = (int.from_bytes(base64.b64decode(png[:64])[place : place + 4]) for place in (16, 20))
        scale = min(1280 / width, 640 / height)
        shape = f'width="{scale * width:.0f}" height="{scale * height:.0f}" alt="{html.escape(alt)}"'
        deck.add(f'{deck.above}<img {shape} src="data:image/png;base64,{png}">', alt, "figure")
    lines = cell.source.strip().splitlines()
    printed = "\n".join(_printed(output) for output in cell.outputs).strip("\n")
    if asked and not pictures and len(lines) <= CODE_LINES:
        code = highlight(cell.source, PythonLexer(), HtmlFormatter(nowrap=True))
        shown = printed.splitlines()
        shown = "\n".join(shown[:OUTPUT_LINES] + ["…"] * (len(shown) > OUTPUT_LINES))
        result = f'<pre class="fragment result" style="{_large(shown)}">{html.escape(shown)}</pre>' if shown else ""
        code = f'<pre class="code" style="{_large(cell.source)}"><code>{code}</code></pre>'
        deck.add(f"{deck.above}{code}\n{result}", kind="run")
    return False


def _large(text):
    # As large as the longest line allows: a letter is about 0.6 of the font's size wide.
    longest = max(map(len, text.splitlines()))
    return f"font-size: {min(30, max(16, int(1180 / 0.61 / longest)))}px"


def _printed(output):
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    return "" if {"image/png", "text/html", "text/markdown"} & data.keys() else data.get("text/plain", "")


def make_slides(notebooks, folder: Path, relink, frames_of):
    """Write one HTML file per notebook, a page that lists them, and reveal.js, into `folder`.

    Args:
        notebooks: paths.
        folder: is made.
        relink: as in `deck_of`, with the notebook's path as second argument.
        frames_of: as in `deck_of`.

    Raises:
        FileNotFoundError: the installed package does not carry reveal.js where it is expected.
    """
    for name in FILES:
        if not (REVEAL / name).exists():
            raise FileNotFoundError(
                f"sphinx-revealjs was expected to carry {REVEAL / name}: install sphinx-revealjs 3."
            )
        (folder / "reveal" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REVEAL / name, folder / "reveal" / name)
    colors = HtmlFormatter(style=STYLE).get_style_defs("pre.code")
    css = (Path(__file__).parent / "static" / "slides.css").read_text(encoding="utf-8")
    (folder / "slides.css").write_text(f"{font_css()}{css}\n{colors}\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).parent / "static" / "site.js", folder / "site.js")
    entries = []
    for path in notebooks:
        notebook = nbformat.read(path, as_version=4)
        title = re.match(r"# (.*)", notebook.cells[0].source)[1]
        deck = deck_of(notebook, lambda text, path=path: relink(text, path), frames_of)
        (folder / f"{path.stem}.html").write_text(_page(title, deck.html()), encoding="utf-8")
        count = sum(map(len, deck.columns))
        entries.append(f'<li><a href="{path.stem}.html">{html.escape(title)}</a>, {count} slides</li>')
    (folder / "index.html").write_text(INDEX.format(entries="\n".join(entries)), encoding="utf-8")


def _page(title, slides):
    return PAGE.format(title=html.escape(title), slides=slides)


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: slides</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="reveal/dist/reset.css">
<link rel="stylesheet" href="reveal/dist/reveal.css">
<link rel="stylesheet" href="slides.css">
</head>
<body>
<main class="reveal"><div class="slides">
{slides}
</div></main>
<script src="reveal/dist/reveal.js"></script>
<script src="reveal/plugin/notes/notes.js"></script>
<script>
Reveal.initialize({{
  width: 1280, height: 720, margin: 0.06, center: false, hash: true, slideNumber: "c/t", transition: "none",
  controlsTutorial: false, scrollActivationWidth: null, plugins: [RevealNotes],
  keyboardCondition: event => !event?.target?.matches?.("input, select"),
}});
</script>
<script src="site.js"></script>
</body>
</html>
"""

INDEX = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Slides: LLaMA in notebooks</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="slides.css">
</head>
<body class="list">
<main>
<h1>Slides: LLaMA in notebooks</h1>
<p>One deck per notebook, made from its headings, predictions and figures. Space goes on, Shift and Space goes back, S
opens the speaker's notes, Escape shows all slides, F fills the screen. An explorer's slider takes the arrow keys while
it has the focus.</p>
<ul>
{entries}
</ul>
<p><a href="../index.html">The course</a></p>
</main>
</body>
</html>
"""
