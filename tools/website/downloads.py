"""The way in: what a visitor of the site can take along, and where the course lives.

Every notebook is there twice, as its page shows it and as it is handed out (no outputs, no solutions), and the whole
folder that is handed out is a zip: it runs anywhere with `make lab`. If the environment variable COURSE_REPOSITORY
names the course's place on GitHub ("owner/name"), the pages link to the source, Colab, Binder and the issues, too.
COURSE_SITE is the address at which the site will stand ("https://…"): a shared link then shows a picture.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

from tools.classroom.hand_out import student

ZIP = "llama-notebooks.zip"


def make_downloads(notebooks: list[Path], folder: Path) -> None:
    """Write the zip and both forms of every notebook into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        handed_out = student(Path(work, "site", "llama-notebooks"))
        folder.mkdir(parents=True)
        for path in handed_out:
            shutil.copy(path, folder / f"{path.stem}_to_do.ipynb")
        for path in notebooks:
            shutil.copy(path, folder)
        shutil.make_archive(folder / Path(ZIP).stem, "zip", Path(work, "site"))


def repository() -> str:
    """The course's place on GitHub, "owner/name", or "" if nobody said it.

    Raises:
        ValueError: if COURSE_REPOSITORY is not of that form.
    """
    name = os.environ.get("COURSE_REPOSITORY", "")
    if name and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"COURSE_REPOSITORY={name!r} is no place on GitHub: write owner/name.")
    return name


def address() -> str:
    """Where the site will stand, without a slash at its end, or "" if nobody said it.

    Raises:
        ValueError: if COURSE_SITE is no address.
    """
    site = os.environ.get("COURSE_SITE", "").rstrip("/")
    if site and not re.fullmatch(r"https?://[^\s\"'<>?#]+", site):
        raise ValueError(f"COURSE_SITE={site!r} is no address: write it as https://…")
    return site


def links_of(stem: str) -> str:
    """HTML with the ways from a notebook's page into the course."""
    own, links = f"../downloads/{stem}", {}
    links["this notebook to work in"] = f"{own}_to_do.ipynb"
    links["with outputs and solutions"] = f"{own}.ipynb"
    links["the whole course (zip)"] = f"../downloads/{ZIP}"
    if name := repository():
        links["source"] = f"https://github.com/{name}/blob/HEAD/notebooks/{stem}.ipynb"
        links["Colab"] = f"https://colab.research.google.com/github/{name}/blob/HEAD/notebooks/{stem}.ipynb"
        links["Binder"] = f"https://mybinder.org/v2/gh/{name}/HEAD?labpath=notebooks%2F{stem}.ipynb"
        links["report a fault"] = f"https://github.com/{name}/issues"
    shown = " · ".join(f'<a href="{target}"{"" if "://" in target else " download"}>{words}</a>'
                       for words, target in links.items())  # fmt: skip
    return f'<p class="way-in">Take it along: {shown}</p>'
