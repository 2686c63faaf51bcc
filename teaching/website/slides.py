"""Slides of each notebook, for a class: a deck for reveal.js, which reads everything from its own folder.

What a slide shows, by rules that are the same for every notebook:

- The title cell: its title, its first sentence, its question. A heading of level 2 starts a column, one of level 3 a
  slide below: the heading and the text's first paragraph, as many of its sentences as have 45 words. The rest goes
  into the speaker notes (key S).
- A text cell with the tag `predict`: its question, above it the short paragraph before it, if no slide has shown it
  yet, below it the options from the cell's metadata. Then the code cells up to the first that prints or draws, if
  they have at most 12 lines; what they print comes one key later. *What you saw*: its first paragraph, of at most 70
  words.
- Every picture, alone and as large as the slide; its description is the alt text and stands in the notes.
- *What you can now say* and what an exercise asks: whole. Everything else is left out.

slides.css says how large the letters are at most; templates/slides.html makes them smaller until a slide fits.
"""

import base64
import html
import re
import shutil
from importlib import import_module
from pathlib import Path

import nbformat
import sphinx_revealjs
from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from teaching.website import colors

LEAD_WORDS, ANSWER_WORDS, CODE_LINES, OUTPUT_LINES = 45, 70, 12, 12
WIDE, HIGH = 1280, 656  # a picture's most [px]
FILES = Path(__file__).parent
# Packages for their files alone: JupyterLab has MathJax only inside its bundle, nbconvert takes both from a network.
REVEAL = Path(sphinx_revealjs.__file__).parent / "_static" / "revealjs"
# MathJax, which draws the formulas of the slides and of the site, in one file.
MATHJAX = Path(import_module("sphinx-mathjax-offline").__file__).parent / "static" / "mathjax" / "tex-svg.js"
# A menu would make every formula a stop of the Tab key; the scale suits the letters of a sans serif around it.
MATHJAX_SETTINGS = {"options": {"enableMenu": False}, "svg": {"scale": 0.85}}
LEFT_OUT = ("Check yourself", "Where this lives", "Solutions")
WHOLE = "What you can now say"
LIST = re.compile(r"^(?:\d+\.|[-*]) ", re.M)
NUMBERS = re.compile(r"numbers above|(these|those)( two)? (numbers|rows|lines)")  # of the output before a question
FOLD = re.compile(r"<details><summary>(.*?)</summary>(.*?)</details>", re.S)


def _formula(tex, how):
    return html.escape(rf"\[{tex}\]" if how["display_mode"] else rf"\({tex}\)")


markdown = MarkdownIt("commonmark", {"html": True}).enable("table").use(dollarmath_plugin, renderer=_formula)


class Deck:
    """The slides of one notebook: columns that are filled from top to bottom and from left to right.

    Args:
        notebook: as nbformat reads it, with links that work from the slides.
    """

    def __init__(self, notebook):
        self.columns, self.heading, self.printed = [], "", []
        asked = left_out = False
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "markdown":
                title = re.match(r"## (.*)", cell.source)
                left_out = title[1].startswith(LEFT_OUT) if title else left_out
            if left_out:
                continue
            if number == 0:
                self._add_title(cell.source)
            elif cell.cell_type == "code":
                asked = self._add_code(cell, asked)
            elif "predict" in cell.metadata.get("tags", []):
                text, question = split_prediction(cell.source)
                self._add_text(text)
                self._add_question(text, question, cell.metadata.get("questions", []))
                asked = True
            else:
                self._add_text(cell.source)

    def _add(self, content, notes="", kind="", column=False):
        # One more slide below the last one, or at the top of a new column.
        notes = f'<aside class="notes">{markdown.render(notes)}</aside>' if notes.strip() else ""
        if column:
            self.columns.append([])
        self.columns[-1].append(f'<section class="{kind}">\n{content}\n{notes}</section>')

    def _add_below_heading(self, content, notes="", kind=""):
        # A slide without a heading of its own repeats the section's, in small letters.
        self._add(f'<p class="above">{markdown.renderInline(self.heading)}</p>\n{content}', notes, kind)

    def _add_title(self, text):
        title, lead = re.match(r"# (.*?)\n+(.*?)\n\n", text, re.S).groups()
        question = re.findall(r"^\*\*Question:\*\*.*", text, re.M)
        shown = "\n\n".join([f"# {title}", lead, *question])
        self._add(markdown.render(shown), text.partition("\n")[2], "title", column=True)

    def _add_text(self, text):
        for part in re.split(r"^(?=#{2,3} )", text, flags=re.M):
            heading = re.match(r"(#{2,3}) (.*)\n*", part)
            if heading:
                self.heading, part = heading[2], part[heading.end() :]
                whole = self.heading == WHOLE or self.heading.startswith("Exercise ")
                shown, notes = (FOLD.sub("", part), "") if whole else _split(part, LEAD_WORDS)
                shown = markdown.render(f"## {self.heading}\n\n{shown}")
                self._add(shown, notes, "dense" if whole else "heading", column=len(heading[1]) == 2)
            for summary, answer in FOLD.findall(part):
                if summary.startswith("What you saw"):
                    shown, notes = _split(answer, ANSWER_WORDS)
                    shown, notes = (shown, notes) if shown else (answer, "")
                    content = f"<h3>{summary}</h3>\n{markdown.render(shown)}"
                    self._add_below_heading(content, notes, "answer")

    def _add_question(self, text, question, data):
        question = question.removeprefix("**Predict.**").strip()
        before = re.split(r"\n\s*\n", FOLD.sub("", text).strip())[-1]  # what the question may refer to
        before = re.sub(r"^#+ .*\n?", "", before).strip()
        shown = "".join(slide.partition("<aside")[0] for slide in self.columns[-1][-1:])
        if _count(before) > LEAD_WORDS or before.startswith(("|", "```", "<")) or markdown.render(before) in shown:
            before = ""
        answers = [one["options"] for one in data if "options" in one and not one["ask"].startswith("Tutorials say")]
        before = f'<div class="before">{markdown.render(before)}</div>\n' if before else ""
        if NUMBERS.search(question):
            printed = html.escape("\n".join(self.printed[:OUTPUT_LINES]))
            before += f'<pre class="before">{printed}</pre>\n'
        content = f"<h3>Predict</h3>\n{before}{markdown.render(question)}{_options(answers)}"
        self._add_below_heading(content, kind="predict")

    def _add_code(self, cell, asked):
        # Return whether the question is still to be answered by one of the next cells.
        pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        for output in pictures:
            alt, (width, height) = output.metadata["image/png"]["alt"], picture_size(output)
            scale = min(WIDE / width, HIGH / height)
            shape = f'width="{scale * width:.0f}" height="{scale * height:.0f}" alt="{html.escape(alt)}"'
            png = "".join(output.data["image/png"].split())
            self._add_below_heading(f'<img {shape} src="data:image/png;base64,{png}">', alt, "figure")
        code = cell.source.strip()
        printed = "\n".join(_printed(output) for output in cell.outputs).strip("\n").splitlines()
        self.printed = printed or self.printed
        if asked and not pictures and code.count("\n") < CODE_LINES:
            if len(printed) > OUTPUT_LINES:
                printed = [*printed[:OUTPUT_LINES], "…"]
            colored = highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))
            result = html.escape("\n".join(printed))
            result = f'<pre class="fragment result">{result}</pre>' if printed else ""
            self._add_below_heading(f'<pre class="code"><code>{colored}</code></pre>\n{result}', kind="run")
        return asked and not pictures and not printed

    def html(self) -> str:
        """All slides."""
        return "\n".join("<section>\n" + "\n".join(column) + "\n</section>" for column in self.columns)


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


def _options(answers):
    # The answers that the questions of a slide offer: a line for each of one question, one line for each of several.
    lines = [[f"<li>{markdown.renderInline(one)}</li>" for one in offered] for offered in answers]
    kind = "options" if len(answers) == 1 else "options in-line"
    return "".join(f'\n<ol class="{kind}" type="A">{"".join(line)}</ol>' for line in lines)


def _split(text, words):
    # What is shown, and what goes into the notes. Shown is the first paragraph, or as many of its sentences as are
    # short enough; a sentence that leads to what is left out stays out, too, and a formula after it is shown with it.
    first, _, rest = FOLD.sub("", text).strip().partition("\n\n")
    if first.startswith(("|", "```")):
        return "", text
    if rest.startswith("$$") and _count(first) < words:
        formula, _, rest = rest.partition("\n\n")
        return f"{first}\n\n{formula}", rest
    sentences = [first] if LIST.search(first) else re.split(r"(?<=[.!?]) (?=[A-Z*`$])", first.replace("\n", " "))
    shown = list(sentences)
    while shown and (_count(" ".join(shown)) > words or shown[-1].endswith(":")):
        shown.pop()
    return " ".join(shown), "\n\n".join(part for part in (" ".join(sentences[len(shown) :]), rest) if part)


def _count(text):
    # Words, a formula being one.
    return len(re.sub(r"\$.*?\$", "x", text, flags=re.S).split())


def picture_size(output) -> tuple[int, int]:
    """Width and height of an output's PNG [px]; they stand in its bytes 16 to 23."""
    header = base64.b64decode("".join(output.data["image/png"][:64].split()))
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


def _printed(output):
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    return "" if {"image/png", "text/html", "text/markdown"} & data.keys() else data.get("text/plain", "")


def make_slides(notebooks, folder: Path, relink):
    """Write one HTML file per notebook, a page that lists them, reveal.js and MathJax into `folder`.

    Args:
        notebooks: paths.
        folder: is made.
        relink: takes Markdown and the notebook's path, returns the Markdown with links between the site's sources.
    """
    for name in ("dist/reveal.js", "dist/reveal.css", "plugin/notes/notes.js", "LICENSE"):
        (folder / "reveal" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REVEAL / name, folder / "reveal" / name)
    shutil.copy(MATHJAX, folder)
    css = colors.css() + (FILES / "static" / "slides.css").read_text(encoding="utf-8")
    for scheme in ("light", "dark"):
        code = HtmlFormatter(style=f"a11y-high-contrast-{scheme}").get_style_defs("pre.code")
        css += f"@media (prefers-color-scheme: {scheme}) {{\n{code}\n}}\n"
    (folder / "slides.css").write_text(css, encoding="utf-8")
    entries = []
    for path in notebooks:
        print(f"Slides of {path.stem}", flush=True)
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":  # a notebook's link leads to its slides, a text's to its page
                text = re.sub(r"\]\(([^():#\s]+)\.ipynb(?:#[^()\s]*)?\)", r"](\1.html)", relink(cell.source, path))
                cell.source = re.sub(r"\]\(([^():#\s]+)\.md\b", r"](\1.html", text)
        title, deck = re.match(r"# (.*)", notebook.cells[0].source)[1], Deck(notebook)
        page = filled("slides", title=title, slides=deck.html(), mathjax=MATHJAX_SETTINGS)
        (folder / f"{path.stem}.html").write_text(page, encoding="utf-8")
        entries.append((path.stem, title, sum(map(len, deck.columns))))
    (folder / "index.html").write_text(filled("slides_index", entries=entries), encoding="utf-8")


TEMPLATES = Environment(loader=FileSystemLoader(FILES / "templates"), autoescape=True, trim_blocks=True)


def filled(template: str, **parts) -> str:
    """One of the templates, with its parts put in."""
    return TEMPLATES.get_template(f"{template}.html").render(parts)
