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

import tools.hand_out as hand_out

ZIP = "llama-notebooks.zip"


def make_downloads(notebooks: list[Path], folder: Path) -> None:
    """Write the zip and both forms of every notebook into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        handed_out = hand_out.student(Path(work, "site", "llama-notebooks"))
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
    """HTML with the ways from a notebook's page into the course: take it along, its slides, how to run it."""
    own, name = f"../downloads/{stem}", repository()
    ways = [
        f'<a class="button" href="{own}_to_do.ipynb" download>Download this notebook</a>',
        f'<a href="{own}.ipynb" download>with outputs and solutions</a>',
        f'<a href="../slides/{stem}.html">Slides</a>',
        '<button type="button" class="print">Print or PDF</button>',
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
    the_zip = f'<a href="../downloads/{ZIP}" download>the whole course (zip)</a>'
    colab = '<a href="https://colab.research.google.com">Colab</a>'
    local = f"Take {the_zip} and unpack it. In that folder <code>make lab</code> sets up everything once and opens"
    steps = [
        f'Take <a href="{own}_to_do.ipynb" download>this notebook</a> and {the_zip}; leave the zip as it is.',
        f"In {colab}, upload the notebook (<em>File</em>, <em>Upload notebook</em>), and the zip into <em>Files</em> "
        "(the folder icon at the left).",
        f"In a new first cell, run <code>%pip install --no-deps {ZIP}</code>. Then run the notebook from its top.",
    ]
    if name:
        steps = [
            f'<a href="https://colab.research.google.com/github/{name}/blob/HEAD/notebooks/{stem}.ipynb">Open it in '
            "Colab</a>; it comes with outputs and solutions.",
            f"In a new first cell, run <code>%pip install --no-deps git+https://github.com/{name}</code>. "
            "Then run the notebook from its top.",
        ]
    number = stem[:2]
    if number in hand_out.READERS:
        steps.append(
            f"This notebook can use what you wrote in 01 to {hand_out.READERS[number]:02}: upload those notebooks into "
            "<em>Files</em> too."
        )
    items = "\n".join(f"<li>{step}</li>" for step in steps)
    return f"""<details class="run"><summary>Run it: on your machine, or in Colab</summary>
<p><strong>On your machine.</strong> {local} the first notebook (Python 3.11 or newer; the README in it tells it for
Windows and without <code>make</code>).</p>
<p><strong>In Colab</strong>, with nothing installed here:</p>
<ol>
{items}
</ol>
</details>"""
