"""Build the website and the slides from the committed notebooks, without running them: `make site`, `make slides`.

The pages are prepared in a folder of their own (alt texts, explorers as frames, folded solutions, links), then Sphinx
makes HTML of them with the settings in `conf.py`. `slides.py` makes the slides, which become the
folder `slides` of the site. Nothing is fetched, and no page of the result fetches.
"""

import argparse
import functools
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import nbformat
import torch
from nbformat.v4 import new_markdown_cell, new_output

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent
sys.path[:0] = [str(SITE), str(ROOT)]  # the helpers of this checkout, installed or not

from frames import make_frames  # noqa: E402
from slides import make_slides, png_size, split_prediction  # noqa: E402

from helpers import plots  # noqa: E402
from helpers.checkpoint import load_checkpoint  # noqa: E402
from helpers.model import attention_weights, causal_visible, repeat_kv  # noqa: E402
from helpers.text import TINY_LLAMA, encode, load_tokenizer  # noqa: E402
from tools.classroom.hand_out import notebooks_of  # noqa: E402

NOTEBOOKS = notebooks_of(ROOT / "notebooks")
MORE = {  # pages beside the chapters, in the start page's words; other files get a page when a page links to them
    "docs/teaching.md": "[Teaching with it](docs/teaching.md): five classes of 90 minutes, a workshop, or self-study.",
    "docs/glossary.md": "[Glossary](docs/glossary.md): every term, and the notebook that explains it.",
    "docs/classroom-server.md": "[A server for a class](docs/classroom-server.md): one machine, many learners.",
    "CONTRIBUTING.md": "[Contributing](CONTRIBUTING.md): how to report a fault, and how to change the course.",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"(^`{3,}.*?^`{3,}|`[^`\n]+`)", re.S | re.M)
ONE_LINE_ANSWER = re.compile(r"^<details><summary>([^<\n]*)</summary>(.+?)</details>$", re.M)
TERM = re.compile(r"^- \*\*(.+?)\*\*", re.M)  # of the glossary; each gets an anchor, so that a link can lead to it
# "78. Most" at the start of a line is a sentence, not the 78th entry of a list.
NUMBER = re.compile(r"^((?:\d\. |<details><summary>[^<]*</summary>)?\d{2,})\.(?=\s|$)", re.M)
EXPLORER = re.compile(r"^(explore_\w+)\(\)", re.M)
LENSES_ALT = (
    "Left: six arrows from one point, each turned 29 degrees further than the one before. Right: a triangle of "
    "attention weights over a sentence, bright just below the diagonal; the future, above it, is hatched."
)


# ------------------------------------------------------------------------------------------------- links


class Pages:
    """Which file of the repository becomes which page; linking to a file asks for its page.

    Attributes:
        wanted: files that are still to be prepared, relative to the repository.
        pictures: files that texts show; they keep their place.
    """

    def __init__(self):
        self.wanted, self.known, self.pictures = [], set(), set()

    def name(self, file: str) -> str:
        """The page's name, without an extension, and note that it is wanted."""
        if file not in self.known:
            self.known.add(file)
            self.wanted.append(file)
        folder, stem = posixpath.split(posixpath.splitext(file)[0])
        if folder in ("notebooks", "docs"):
            return stem
        return posixpath.join("files", folder, stem)

    def relink(self, text: str, file: str, page: str = "") -> str:
        """Markdown of one file with its links to other files turned into links to their pages, seen from `page`.

        Raises:
            ValueError: a link to a file that does not exist.
        """

        def replace(match):
            is_picture, words, target = match.groups()
            if target[0] == "#":
                return f"[{words}](#{slug(target[1:])})"
            if re.match(r"[a-z]+:", target):
                return match[0]
            path, _, anchor = target.partition("#")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
            if not (ROOT / path).exists():
                raise ValueError(f"{file} links to {target}, and {path} does not exist: correct the link.")
            if is_picture:
                self.pictures.add(path)
                return f"![{words}]({posixpath.relpath(path, posixpath.dirname(page or self.name(file)) or '.')})"
            if path == "README.md":
                to, anchor = "index", ""  # the start page is the site's README
            elif path.endswith((".ipynb", ".md", ".py")):
                to = self.name(path)
            else:
                return words  # a folder or a file of data has no page
            section = re.search(r", (\d\.\d+)$", words)  # "06, 6.3", as the glossary says it, leads to that section
            if section and path.endswith(".ipynb") and not anchor:
                anchor = _heading(ROOT / path, section[1])
            link = posixpath.relpath(to, posixpath.dirname(page or self.name(file)) or ".")
            if path == "docs/glossary.md" and slug(anchor) in _terms(ROOT / path):
                return f'<a href="{link}.html#{slug(anchor)}">{words}</a>'  # not a heading: Sphinx cannot resolve it
            extension = ".ipynb" if path.endswith(".ipynb") else ".md"
            return f"[{words}]({link}{extension}{'#' + slug(anchor) if anchor else ''})"

        parts = CODE.split(text)  # every second part is code, in which nothing is a link
        codes = iter(parts[1::2])
        hidden = NUMBER.sub(r"\1\\.", "\x00".join(parts[::2]))
        return re.sub("\x00", lambda _: next(codes), LINK.sub(replace, hidden))


@functools.cache
def _headings(path):
    cells = nbformat.read(path, as_version=4).cells
    return re.findall(r"^## (.*)$", "\n".join(cell.source for cell in cells if cell.cell_type == "markdown"), re.M)


@functools.cache
def _terms(path):
    # Anchors of the glossary's terms that no heading has.
    text = path.read_text(encoding="utf-8")
    return set(map(slug, TERM.findall(text))) - set(map(slug, re.findall(r"^#+ (.*)$", text, re.M)))


def _heading(path, number):
    # The heading of that number, or nothing where it holds a formula, whose anchor is not its text.
    return next((h for h in _headings(path) if h.startswith(f"{number} ") and "$" not in h), "")


def slug(heading: str) -> str:
    """A heading's anchor, from the heading or from JupyterLab's form of the anchor."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


# ------------------------------------------------------------------------------------------------- notebooks


def prepare_notebook(path: Path, pages: Pages, frames_of):
    """A notebook as its page needs it: described pictures, explorers as frames, folded solutions."""
    notebook = nbformat.read(path, as_version=4)
    file, cells, folded = path.relative_to(ROOT).as_posix(), [], False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _prepare_text(cell, pages.relink(cell.source, file))
            if cell.metadata.get("jp-MarkdownHeadingCollapsed"):
                cell.source += '\n\n<details class="solutions"><summary>Show the solutions</summary>\n\n'
                folded = True
        else:
            _prepare_outputs(cell, frames_of)
        cells.append(cell)
    if folded:
        cells.append(new_markdown_cell("</details>", id="end-of-solutions"))
    notebook.cells = cells
    return notebook


def _prepare_text(cell, text):
    text = ONE_LINE_ANSWER.sub(r"<details><summary>\1</summary>\n\n\2\n\n</details>", text)
    if "predict" in cell.metadata.get("tags", []):
        before, question = split_prediction(text)
        text = f'{before}<div class="predict">\n\n{question}\n\n</div>'
    return text


def _prepare_outputs(cell, frames_of):
    explorer = EXPLORER.search(cell.source)
    if explorer:
        page = frames_of(explorer[1])
        kept = [output for output in cell.outputs if "image/png" not in output.get("data", {})]
        cell.outputs = [*kept, new_output("display_data", {"text/html": page})]
        return
    for output in cell.outputs:
        alt = output.get("metadata", {}).get("image/png", {}).get("alt")
        if alt:
            width = _width(output)
            caption = re.sub(r"([\\`*_$<>\[\]{}])", r"\\\1", alt)
            image = {"alt": alt, "classes": "wide" if width > 600 else "narrow", "width": f"{width}px"}
            cell.metadata["mystnb"] = {"image": image, "figure": {"caption": caption}}
            for stream in cell.outputs:
                if stream.output_type == "stream":
                    stream.text = stream.text.replace(f"Figure: {alt}\n", "")
    cell.outputs = [output for output in cell.outputs if output.output_type != "stream" or output.text]


def _width(output) -> int:
    # How wide a picture is shown [CSS px]: what its metadata say, for it may hold more pixels, or else its own width.
    stored = output.metadata["image/png"].get("width")
    return int(stored) if stored else png_size(output.data["image/png"])[0]


# ------------------------------------------------------------------------------------------------- start page


@torch.no_grad()
def _looking_back():
    # The attention weights of one head of the bundled model, over the pieces of a text: it looks at the token before.
    model, tokenizer = load_checkpoint(TINY_LLAMA), load_tokenizer()
    tokens = encode(tokenizer, "The name of a local variable is bound in the block")[None]
    (cos, sin, _), visible = model.rotation_and_mask(tokens.shape[1]), causal_visible(tokens.shape[1], tokens.shape[1])
    x, layer, head = model.tok_embeddings(tokens), 5, 2
    for block in model.layers[:layer]:
        x = block(x, cos, sin, visible)
    block = model.layers[layer]
    q, k, _ = block.attention.project(block.attention_norm(x), cos, sin)
    weights = attention_weights(q, repeat_kv(k, block.attention.n_rep), visible)[0, head]
    return weights, visible, [tokenizer.decode([token]).strip() for token in tokens[0].tolist()]


def draw_lenses(file: Path):
    """The picture of the two lenses: a query that turns with its position, and what a trained head looks at."""
    plots.use_course_style()
    figure, (angle, mask) = plt.subplots(1, 2, figsize=(8.0, 4.1), dpi=160, width_ratios=(1, 1.1))
    turns = 0.5 * torch.arange(6)  # [rad], half a radian per position
    arrows = 2 * torch.stack([turns.cos(), turns.sin()], dim=1)
    plots.plot_vectors(arrows, colors=plots.QUERY, ax=angle, title="Angle lens: how far does a part turn a vector?")
    for position, (x, y) in enumerate(arrows.tolist()):
        place = (1.1 * x, 1.1 * y) if position else (x, y - 0.2)
        words, side = f"{position}" if position else "position 0", "left" if x * position > 0 else "right"
        angle.text(*place, words, ha=side, va="center")
    plots.draw_arc(angle, 0.0, 0.5, 1.1, "29°")
    angle.set(xlim=(-2.2, 2.4), ylim=(-1.3, 2.5), xticks=[], yticks=[], xlabel="", ylabel="")
    angle.spines[:].set_visible(False)
    weights, visible, pieces = _looking_back()
    plots.plot_attention(weights, visible=visible, ax=mask, labels=pieces, colorbar=False)
    mask.set(title="Mask lens: which positions can see each other?", xlabel="looked at", ylabel="looks")
    figure.savefig(file)
    plt.close(figure)


def chapters() -> str:
    """The README's table of notebooks with their minutes."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(r"^\| notebook \|.*?(?=^[^|])", text, re.S | re.M)
    if not table:
        raise ValueError("README.md has no table that starts with '| notebook |': the start page shows it.")
    return table[0]


# ------------------------------------------------------------------------------------------------- the whole


def prepare(source: Path, frames_of):
    """Write the pages into `source`."""
    pages = Pages()
    chapter_files = [path.relative_to(ROOT).as_posix() for path in NOTEBOOKS]
    source.mkdir(parents=True, exist_ok=True)
    draw_lenses(source / "lenses.png")
    start = (SITE / "index.md").read_text(encoding="utf-8")
    for name, text in {
        "chapters": chapters(),
        "lenses_alt": LENSES_ALT,
        "further": "\n".join(f"- {words}" for words in MORE.values()),
        "chapter_pages": "\n".join(map(pages.name, chapter_files)),
        "further_pages": "\n".join(map(pages.name, MORE)),
    }.items():
        start = start.replace(f"{{{name}}}", text)
    written = {source / "lenses.png", _write(source / "index.md", pages.relink(start, "README.md", "index"))}
    while pages.wanted:
        file = pages.wanted.pop(0)
        path, target = ROOT / file, source / pages.name(file)
        if path.suffix == ".ipynb":
            text = nbformat.writes(prepare_notebook(path, pages, frames_of))
        elif path.suffix == ".md":
            text = pages.relink(path.read_text(encoding="utf-8"), file)
            text = re.sub(r"(?<=\d)–(?=\d)", "\u2060–\u2060", text)  # 10–16 stays on one line
            if file == "docs/glossary.md":
                text = TERM.sub(lambda term: f'- <span id="{slug(term[1])}"></span>{term[0][2:]}', text)
        else:
            text = f"# `{file}`\n\n`````python\n{path.read_text(encoding='utf-8')}`````\n"
        if file not in (*chapter_files, *MORE):
            text = f"---\norphan: true\n---\n\n{text}"
        written.add(_write(target.with_name(target.name + (path.suffix if path.suffix == ".ipynb" else ".md")), text))
    for picture in pages.pictures:
        written.add(source / picture)
        (source / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / picture, source / picture)
    for left in {path for path in source.rglob("*") if path.is_file()} - written:
        left.unlink()


def _write(path, text):
    # Only what changed, so that a second build is quick.
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def build_pages(out: Path, frames_of) -> int:
    """Prepare the pages and let Sphinx make them; return its exit status, which is not 0 after any warning."""
    from sphinx.cmd.build import build_main

    work = out.parent / f"{out.name}-pages"
    prepare(work, frames_of)
    flags = ["-b", "html", "-c", SITE, "-d", work.parent / f"{out.name}-doctrees", "-W", "--keep-going", "-q"]
    status = build_main([str(word) for word in (*flags, work, out)])
    (out / ".nojekyll").touch()  # GitHub Pages would otherwise leave out folders that begin with _
    return status


def build_slides(out: Path, frames_of):
    """Make the slides; their links lead to the site's pages."""
    pages = Pages()

    def relink(text, path):
        text = pages.relink(text, path.relative_to(ROOT).as_posix()).replace('<a href="', '<a href="../')
        return re.sub(r"\]\(([^()\s:#]+)\.(?:ipynb|md)(#[^()\s]*)?\)", r"](../\1.html\2)", text)

    def frames_from_below(name):
        return frames_of(name).replace('"explorers/', '"../explorers/')

    make_slides(NOTEBOOKS, out / "slides", relink, frames_from_below)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "site", help="folder for the site")
    parser.add_argument("--slides", action="store_true", help="only the slides")
    parser.add_argument("--clean", action="store_true", help="remove that folder first")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    if arguments.clean:
        for folder in (out, out.parent / f"{out.name}-pages", out.parent / f"{out.name}-doctrees"):
            shutil.rmtree(folder, ignore_errors=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    frames_of = functools.cache(lambda name: make_frames(name, out / "explorers"))
    build_slides(out, frames_of)
    status = 0 if arguments.slides else build_pages(out, frames_of)
    if status == 0:
        print(f"Open {os.path.relpath(out / ('slides/index.html' if arguments.slides else 'index.html'))}")
    sys.exit(status)


if __name__ == "__main__":
    main()
