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
import zipfile
from pathlib import Path

import tools.hand_out as hand_out
from teaching.website.slides import filled

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
        # One date for all, that of what changed last: the same course gives the same bytes.
        when = max(path.stat().st_mtime for path in [*notebooks, hand_out.ROOT / "pyproject.toml"])
        with zipfile.ZipFile(folder / ZIP, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(one for one in site.rglob("*") if one.is_file()):
                os.utime(path, (when, when))
                archive.write(path, path.relative_to(site))


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
    """HTML with the ways from a notebook's page into the course: take it along, its slides, how to run it."""
    own, name = f"../downloads/{stem}", told("COURSE_REPOSITORY")
    ways = [
        f'<a class="button" href="{own}_to_do.ipynb" download>Download this notebook</a>',
        f'<a href="{own}.ipynb" download>with outputs and solutions</a>',
        f'<a href="../slides/{stem}.html">Slides</a>',
    ]
    if name:
        place = f"{name}/blob/HEAD/notebooks/{stem}.ipynb"
        ways += [
            f'<a href="https://colab.research.google.com/github/{place}">Open in Colab</a>',
            f'<a href="https://mybinder.org/v2/gh/{name}/HEAD?labpath=notebooks%2F{stem}.ipynb">Binder</a>',
            f'<a href="https://github.com/{place}">Source</a>',
            f'<a href="https://github.com/{name}/issues">Report a fault</a>',
        ]
    return f'<div class="way-in">\n{chr(10).join(ways)}\n</div>\n{_run_it(stem, own, name)}'


def _run_it(stem, own, name):
    # The fold that says how to run the notebook; in Colab an address replaces the two uploads.
    parts = {"own": own, "name": name, "stem": stem, "zip": ZIP, "mine": ""}
    if stem[:2] in hand_out.READERS:
        until = hand_out.READERS[stem[:2]]
        said = f"This notebook can use what you wrote in 01 to {until:02}: upload those notebooks into"
        parts["mine"] = f"<li>{said} <em>Files</em> too.</li>"
    parts["steps"] = filled("colab_github" if name else "colab", **parts)
    return filled("run_it", **parts)
