"""Slides from the notebooks, one HTML file per notebook, shown by a copy of reveal.js that lies beside them.

Which cell becomes a slide follows from its tags, headings and outputs alone, so a notebook needs no settings for it:

- The title cell: its title, its first sentence, its question.
- Every heading of level 2 starts a column, every heading of level 3 a slide below: the heading and the text's first
  paragraph, as many of its sentences as have 45 words. What follows goes into the speaker notes (key S).
- A text cell with the tag `predict`: its question, and above it the paragraph before it, if it has at most 45 words
  and no slide has shown it yet.
- The code cells after a prediction up to the first that prints or draws, if they have at most 12 lines: the code, and
  its printed result one key later.
- Every picture, alone and as large as the slide; its description is the alt text and stands in the notes.
- Letters are as large as the number of words or lines allows.
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
WIDE, HIGH, WRAP = 1280, 656, 22  # a picture's most [px]; code in letters of 22 px goes on in a new line
STYLE = "a11y-high-contrast-light"
REVEAL = Path(sphinx_revealjs.__file__).parent / "_static" / "revealjs"
FILES = ("dist/reveal.js", "dist/reveal.css", "dist/reset.css", "plugin/notes/notes.js", "LICENSE")
LEFT_OUT = ("Check yourself", "Where this lives", "Solutions")
WHOLE = ("What you can now say",)
LIST = re.compile(r"^(?:\d+\.|[-*]) ", re.M)
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
    before = _last_paragraph(text)
    for part in re.split(r"^(?=#{2,3} )", text, flags=re.M):
        heading = re.match(r"(#{2,3}) (.*)\n*", part)
        if heading:
            deck.heading, body = heading[2], part[heading.end() :]
            shown, notes = _split(body, 10_000 if heading[2] in WHOLE else LEAD_WORDS)
            kind = "heading dense" if _count(shown) > LEAD_WORDS else f"heading {_size(shown)}"
            deck.add(markdown.render(f"## {heading[2]}\n\n{shown}"), notes, kind, column=len(heading[1]) == 2)
            before = "" if before in shown else before
        else:
            body = part
        for summary, answer in FOLD.findall(body):
            if summary.startswith("What you saw"):
                shown, notes = _split(answer, ANSWER_WORDS)
                shown, notes = (shown, notes) if shown else (answer, "")
                shown = f"{deck.above}<h3>{summary}</h3>\n{markdown.render(shown)}"
                deck.add(shown, notes, f"answer {_size(answer if not notes else shown)}")
    if question:
        question = question.removeprefix("**Predict.**").strip()
        size = _size(f"{before} {question}")
        before = f'<div class="before">{markdown.render(before)}</div>\n' if before else ""
        deck.add(f"{deck.above}<h3>Predict</h3>\n{before}{markdown.render(question)}", "", f"predict {size}")


def _last_paragraph(text):
    # What a question may refer to, if it is short.
    blocks = re.split(r"\n\s*\n", FOLD.sub("", text).strip())
    last = re.sub(r"^#+ .*\n?", "", blocks[-1]).strip()
    return "" if _count(last) > LEAD_WORDS or last.startswith(("|", "```", "<")) else last


def _count(text):
    # Words, a formula being one.
    return len(re.sub(r"\$.*?\$", "x", text, flags=re.S).split())


def _size(text):
    # A class for the style sheet: the fewer words, the larger.
    words = _count(text)
    return "huge" if words <= 26 else "large" if words <= 48 else "normal"


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
    # What is shown, and what goes into the notes: the whole text if that many words may be shown, or else the first
    # paragraph, as many of its sentences as are short enough; a sentence that leads to what is left out stays out, too.
    text = FOLD.sub("", text).strip()
    if _count(text) <= words and words > 1000:
        return text, ""
    first, _, rest = text.partition("\n\n")
    if first.startswith(("|", "```")):
        return "", text
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z*`$])", first.replace("\n", " ")) if not LIST.search(first) else [first]
    shown = list(sentences)
    if rest.startswith("$$") and _count(first) < words:  # the formula belongs to it
        formula, _, rest = rest.partition("\n\n")
        return f"{first}\n\n{formula}", rest
    while shown and (_count(" ".join(shown)) > words or shown[-1].endswith(":")):
        shown.pop()
    return " ".join(shown), "\n\n".join(part for part in (" ".join(sentences[len(shown) :]), rest) if part)


def _add_code(deck, cell, asked, frames_of):
    explorer = re.search(r"^(explore_\w+)\(\)", cell.source, re.M)
    if explorer:
        deck.add(frames_of(explorer[1]), kind="explorer")
        return False
    pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
    for output in pictures:
        alt, png = output.metadata["image/png"]["alt"], "".join(output.data["image/png"].split())
        width, height = png_size(png)
        scale = min(WIDE / width, HIGH / height)
        shape = f'width="{scale * width:.0f}" height="{scale * height:.0f}" alt="{html.escape(alt)}"'
        deck.add(f'{deck.above}<img {shape} src="data:image/png;base64,{png}">', alt, "figure")
    lines = cell.source.strip().splitlines()
    printed = "\n".join(_printed(output) for output in cell.outputs).strip("\n")
    if asked and not pictures and len(lines) <= CODE_LINES:
        shown = printed.splitlines()
        shown = shown[:OUTPUT_LINES] + ["…"] * (len(shown) > OUTPUT_LINES)
        size = f'style="font-size: {_code_size(lines, shown)}px"'
        code = highlight("\n".join(lines), PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
        code = zip(lines, code, strict=True)
        code = "".join(f'<span class="line"{_indent(line)}>{colored}\n</span>' for line, colored in code)
        result = "".join(f'<span class="line">{html.escape(line)}\n</span>' for line in shown)
        result = f'<pre class="fragment result" {size}>{result}</pre>' if shown else ""
        deck.add(f'{deck.above}<pre class="code" {size}><code>{code}</code></pre>\n{result}', kind="run")
    return asked and not pictures and not printed


def png_size(png: str) -> tuple[int, int]:
    """Width and height of a PNG in base64 [px]; they stand in bytes 16 to 23."""
    header = base64.b64decode("".join(png[:64].split()))
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


def _code_size(*parts):
    # The largest letters in which all lines are on the slide; a letter is about 0.61 of the font's size wide.
    for size in range(32, 16, -1):
        letters = int(1200 / 0.61 / size)
        rows = sum(-(-len(line) // (letters - 4)) if len(line) > letters else 1 for part in parts for line in part)
        fits = max(len(line) for part in parts for line in part) <= letters
        if (fits or size <= WRAP) and 1.4 * size * rows <= 540:
            break
    return size


def _indent(line):
    # Where a line that is too long goes on: four letters to the right of where it starts.
    deep = len(line) - len(line.lstrip()) + 4
    return f' style="padding-left: {deep}ch; text-indent: -{deep}ch"'


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
  width: 1280, height: 720, margin: 0.04, center: false, hash: true, slideNumber: "c/t", transition: "none",
  controlsLayout: "edges", controlsBackArrows: "hidden", controlsTutorial: false,
  scrollActivationWidth: null, plugins: [RevealNotes],
  keyboardCondition: event => !event?.target?.matches?.("input, select"),
}});
</script>
<script>
// A slider that was moved with the mouse gives the keys back to the deck; one that was reached by Tab keeps them.
let byMouse = false;
addEventListener("pointerdown", () => {{ byMouse = true; }}, true);
addEventListener("keydown", () => {{ byMouse = false; }}, true);
addEventListener("change", event => {{ if (byMouse) event.target.blur(); }}, true);
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
