"""Build the website from the committed notebooks, without running them: `make site`.

The pages are prepared in a temporary folder that mirrors the repository: pictures get their descriptions; solutions,
the outputs that answer a question, and code that only draws are folded. Sphinx makes HTML of
them with the settings in `conf.py`. Nothing is fetched, and no page of the result fetches anything from elsewhere. What
is built takes the place of the last one when it is whole.
"""

import argparse
import base64
import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader
from nbformat.v4 import new_markdown_cell
from PIL import Image

from helpers.assets import ASSETS
from helpers.model import count_parameters
from helpers.plots import printed
from helpers.text import TINY_LLAMA, load_tokenizer
from helpers.train import TINY
from tools import hand_out
from tools.course import ROOT, in_solutions, notebooks_of
from tools.notebooks import EMPTY_OUTPUT

SITE = Path(__file__).parent
LIVE = SITE / "live"
MILLIONS = f"{count_parameters(TINY) / 1e6:.1f}"  # parameters of tiny-llama
NOTEBOOKS = notebooks_of(ROOT / "notebooks")
TEXTS = ("*.md", "docs/*.md", "benchmarks/*.md")  # get a page each
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^():#\s]+)(#[^()\s]*)?\)")  # to a file of the repository
CODE = re.compile(r"(^`{3,}.*?^`{3,}|`[^`\n]+`)", re.S | re.M)
ONE_LINE_ANSWER = re.compile(r"^<details><summary>([^<\n]*)</summary>(.+?)</details>$", re.M)
ZIP = "llama-notebooks.zip"
EXPLORER = re.compile(r"^explore_\w+\(", re.M)
ONLY_RUN = ("shift-enter", "earlier-by-hand", "earlier-write")  # cells that tell a reader nothing


def relink(text: str, file: Path) -> str:
    """Markdown of one file with its links as the site needs them.

    Links between Markdown files and notebooks stay as they are, for the site has the folders of the repository. The
    README's page is the start page. Other files have no page: of a link to one, the words are left.

    Raises:
        ValueError: a link to a file that does not exist.
    """

    def replace(match):
        picture, words, target, anchor = match.groups()
        path = file.parent / target
        if not path.exists():
            raise ValueError(f"{file.relative_to(ROOT)} links to {target}, which does not exist: correct the link.")
        if path.samefile(ROOT / "README.md"):
            return f"[{words}]({os.path.relpath(ROOT / 'index.md', file.parent)})"
        section = re.search(r", (\d\.\d+)$", words)  # the glossary's "06, 6.4" leads to that section
        if path.suffix == ".ipynb" and section and not anchor:
            return f"[{words}]({target}#{slug(section[1])})"
        return match[0] if picture or path.suffix in (".md", ".ipynb") else words

    codes = iter(CODE.findall(text))  # in code nothing is a link, but a link's words may hold code
    return re.sub("\x00", lambda _: next(codes), LINK.sub(replace, CODE.sub("\x00", text)))


def slug(heading: str) -> str:
    """What a link calls a heading: its number, or as on GitHub its words (`myst_heading_slug_func` in `conf.py`)."""
    number = re.match(r"\d\.\d+", heading)
    return number[0] if number else re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def start_page() -> str:
    """The start page: `index.md` with a row per notebook of the README's table.

    Raises:
        ValueError: a notebook without a row in the table.
    """
    readme, cards, minutes = (ROOT / "README.md").read_text(encoding="utf-8"), [], []
    for path in NOTEBOOKS:
        row = re.search(rf"^\| \[(.+?)\]\(notebooks/{path.name}\) \| (.+?) \| (\d+) \| (\d*)", readme, re.M)
        if not row:
            raise ValueError(f"The start page's card of {path.name} has no row in README.md's table.")
        question = row[2][0].upper() + row[2][1:]
        cards.append(f"| {row[1]} | [{question}](notebooks/{path.stem}.ipynb) | {row[3]} |")
        minutes.append((int(row[3]), int(row[4] or 0)))
    reading, exercises = (round(sum(part) / 60) for part in zip(*minutes, strict=True))
    text, cited = (path.read_text(encoding="utf-8") for path in (SITE / "index.md", ROOT / "CITATION.cff"))
    filled = {"cards": "\n".join(cards), "first_minutes": minutes[0][0], "hours": reading, "exercise_hours": exercises,
              "millions": MILLIONS, "citation": cited.strip()}  # fmt: skip
    for name, value in filled.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def write_live(out: Path):
    """Write the live page's scripts into `out`, and its model: weights, config, tokenizer, and four passages.

    All of it is one classic script, because a page that was opened from a disk may not fetch files.
    """
    out.mkdir(parents=True, exist_ok=True)
    for path in (*LIVE.glob("*.js"), *LIVE.glob("*.css")):
        shutil.copy(path, out)
    weights = (TINY_LLAMA / "model.safetensors").read_bytes()
    data = {name: json.loads((TINY_LLAMA / f"{name}.json").read_text("utf-8")) for name in ("config", "tokenizer")}
    # Four paragraphs of 40 to 60 tokens from the part of the reference that tiny-llama has not read, evenly spread.
    tokenizer, held_out = load_tokenizer(), (ASSETS / "held_out.txt").read_text(encoding="utf-8")
    paragraphs = [paragraph.strip() for paragraph in held_out.split("\n\n")]
    fitting = [text for text in paragraphs if 40 <= len(tokenizer.encode(text).ids) <= 60]
    passages = fitting[len(fitting) // 8 :: len(fitting) // 4][:4]
    data |= {"passages": passages, "weights": base64.b64encode(weights).decode()}
    script = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    (out / "data.js").write_text(f"window.liveData = {script};\n", encoding="utf-8")


def make_downloads(folder: Path) -> None:
    """Write every notebook into `folder`, as it is here and as it is handed out, and the hand-out as a zip."""
    with tempfile.TemporaryDirectory() as work:
        handed_out = hand_out.student(Path(work, "llama-notebooks"))
        folder.mkdir(parents=True)
        for path in handed_out:
            shutil.copy(path, folder / f"{path.stem}_to_do.ipynb")
        for path in NOTEBOOKS:
            shutil.copy(path, folder)
        shutil.make_archive(str(folder / Path(ZIP).stem), "zip", work)


def links_of(stem: str) -> str:
    """HTML with the ways from a notebook's page into the course: take it along, and how to run it.

    Raises:
        ValueError: if the environment variable COURSE_REPOSITORY, where the course lives on GitHub, is no owner/name.
    """
    name = os.environ.get("COURSE_REPOSITORY", "").rstrip("/")
    if name and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"COURSE_REPOSITORY={name!r} is no place on GitHub: write owner/name.")
    pages = Environment(loader=FileSystemLoader(SITE / "templates"), autoescape=True, trim_blocks=True)
    known = {"stem": stem, "own": f"../downloads/{stem}", "zip": ZIP, "until": hand_out.READERS.get(stem[:2])}
    return pages.get_template("way_in.html").render(known, name=name)


def notebook_page(path: Path):
    """A notebook as its page needs it: described pictures, folded answers and solutions, nothing that only runs."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id not in ONLY_RUN]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = relink(cell.source, path)
            cell.source = ONE_LINE_ANSWER.sub(r"<details><summary>\1</summary>\n\n\2\n\n</details>", cell.source)
            if "predict" in cell.metadata.get("tags", []):
                before, asks, question = cell.source.rpartition("**Predict")  # it begins the last paragraph
                cell.source = f'{before}<div class="predict">\n\n{asks}{question}\n\n</div>'
            if cell.metadata.get("jp-MarkdownHeadingCollapsed"):
                cell.source += '\n\n<details class="solutions"><summary>Show the solutions</summary>\n\n'
        else:
            _prepare_outputs(cell)
    inside = in_solutions([(cell.cell_type, cell.source) for cell in notebook.cells])
    if any(inside):
        notebook.cells.insert(len(inside) - inside[::-1].index(True), new_markdown_cell("</details>", id="solved"))
    notebook.cells.insert(1, new_markdown_cell(links_of(path.stem), id="way-in"))
    return notebook


def _prepare_outputs(cell):
    # What is tagged hide-output answers a question, and hide-input draws: a title would give the answer away.
    cell.outputs = [one for one in cell.outputs if one != EMPTY_OUTPUT and ": not attempted yet" not in str(one)]
    if "plots.use_course_style()" in cell.source:  # the imports
        cell.metadata.setdefault("tags", []).append("hide-input")
    for output in cell.outputs:
        if alt := (stored := output.get("metadata", {}).get("image/png", {})).get("alt"):
            # A stored width [px] comes first, for the picture may hold more pixels than it is wide.
            png = io.BytesIO(base64.b64decode(output.data["image/png"]))
            width = int(stored.get("width") or Image.open(png).width)
            image = {"alt": alt, "classes": "wide" if width > 600 else "narrow", "width": f"{width}px"}
            more = " A picture here; in JupyterLab its controls move." if EXPLORER.search(cell.source) else ""
            plain = re.sub(r"([\\`*_$<>\[\]{}])", r"\\\1", alt)  # Markdown that shows it as it is
            cell.metadata["mystnb"] = {"image": image, "figure": {"caption": plain + more}}
            for stream in cell.outputs:
                if stream.output_type == "stream":
                    stream.text = stream.text.replace(f"{printed(alt)}\n", "")  # the caption says it
    cell.outputs = [output for output in cell.outputs if output.output_type != "stream" or output.text]


def prepare(source: Path):
    """Write the pages into `source`, in the folders that they have in the repository."""
    texts = [path for pattern in TEXTS for path in ROOT.glob(pattern) if path != ROOT / "README.md"]
    pages = {path: relink(path.read_text(encoding="utf-8"), path) for path in texts}
    pages |= {ROOT / "index.md": start_page()}
    pages |= {ROOT / path.name: path.read_text("utf-8").replace("{millions}", MILLIONS) for path in LIVE.glob("*.md")}
    pages |= {path: nbformat.writes(notebook_page(path)) for path in NOTEBOOKS}
    (xray,) = (cell for cell in nbformat.read(NOTEBOOKS[5], 4).cells if cell.source.endswith("explore_xray()"))
    source.mkdir(parents=True, exist_ok=True)
    (source / "x-ray.png").write_bytes(base64.b64decode(xray.outputs[0].data["image/png"]))
    for path, text in pages.items():
        page = source / path.relative_to(ROOT)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def build_site(out: Path):
    """Write the whole site into `out`.

    Raises:
        ValueError: if a link or a setting is wrong, or Sphinx warns, which says why itself.
    """
    try:
        import myst_nb  # noqa: F401
        from sphinx.cmd.build import build_main
    except ModuleNotFoundError as error:
        what = "the site's programs are not installed: make site installs them, or pip install -e '.[teaching]'"
        raise ValueError(f"{what} ({error}).") from error

    print("The pages: this takes longest", flush=True)
    with tempfile.TemporaryDirectory() as work:
        prepare(Path(work, "pages"))
        flags = ["-b", "html", "-c", SITE, "-d", Path(work, "doctrees"), "-W", "--keep-going", "-q"]
        if build_main([str(word) for word in (*flags, Path(work, "pages"), out)]):
            raise ValueError("Sphinx says above what is wrong.")
    print("The live page and the downloads", flush=True)
    write_live(out / "_static" / "live")
    make_downloads(out / "downloads")
    (out / ".nojekyll").touch()  # GitHub Pages would otherwise leave out folders that begin with _


def main(arguments: list[str] | None = None):
    """Build the site, and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m teaching.website.build", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder of the site; is replaced")
    out = parser.parse_args(arguments).out.resolve()
    try:
        if out.exists() and any(out.iterdir()) and not (out / ".nojekyll").is_file():
            raise ValueError(f"{out} holds something else, which would be lost: give another folder.")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as beside:
            build_site(Path(beside, "new"))
            with contextlib.suppress(FileNotFoundError):
                out.rename(Path(beside, "old"))
            Path(beside, "new").rename(out)
    except (OSError, ValueError) as error:
        sys.exit(f"Not built; what was there is as it was. {error}")
    print(f"Open {os.path.relpath(out / 'index.html')}")


if __name__ == "__main__":
    main()
