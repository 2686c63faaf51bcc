"""The way in: what a visitor of the site can take along, and where the course lives.

Every notebook is there twice, as its page shows it and as it is handed out (no outputs, no solutions), and the whole
folder that is handed out is a zip. docs/setup.md says what COURSE_REPOSITORY and COURSE_SITE add.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

import tools.hand_out as hand_out

PAGES = FileSystemLoader(Path(__file__).with_name("templates"))
ZIP = "llama-notebooks.zip"
FORMS = {
    "COURSE_REPOSITORY": (r"[\w.-]+/[\w.-]+", "no place on GitHub: write owner/name."),
    "COURSE_SITE": (r"https?://[^\s\"'<>?#]+", "no address: write it as https://…"),
}


def make_downloads(notebooks: list[Path], folder: Path) -> None:
    """Write the zip and both forms of every notebook into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        site = Path(work, "site")
        handed_out = hand_out.student(site / "llama-notebooks")
        folder.mkdir(parents=True)
        for path in handed_out:
            shutil.copy(path, folder / f"{path.stem}_to_do.ipynb")
        for path in notebooks:
            shutil.copy(path, folder)
        shutil.make_archive(str(folder / Path(ZIP).stem), "zip", site)


def told(name: str) -> str:
    """An environment variable of FORMS without a slash at its end, or "" if nobody set it.

    Raises:
        ValueError: if it is not of its form.
    """
    value, (form, remedy) = os.environ.get(name, "").rstrip("/"), FORMS[name]
    if value and not re.fullmatch(form, value):
        raise ValueError(f"{name}={value!r} is {remedy}")
    return value


def links_of(stem: str) -> str:
    """HTML with the ways from a notebook's page into the course: take it along, how to run it."""
    until, name = hand_out.READERS.get(stem[:2]), told("COURSE_REPOSITORY")
    page = Environment(loader=PAGES, autoescape=True, trim_blocks=True).get_template("way_in.html")
    return page.render(stem=stem, own=f"../downloads/{stem}", name=name, zip=ZIP, until=until)
