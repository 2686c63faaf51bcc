"""What the kit's tests get, beside what every test of the course gets (conftest.py)."""

import importlib.util
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.course import ROOT
from tests.support.lab import quiet_context


@pytest.fixture(scope="session")
def build():
    """The module teaching.website.build."""
    if not importlib.util.find_spec("myst_nb"):
        what = "the site's programs are not installed: `pip install -e '.[teaching]'`"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(what)
    return importlib.import_module("teaching.website.build")


@pytest.fixture(scope="session")
def site(build, tmp_path_factory):
    """The folder of a site that was built from nothing."""
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "teaching.website.build", "--out", out]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, f"the site was not built:\n{built.stdout[-2000:]}\n{built.stderr[-4000:]}"
    return out


@pytest.fixture
def open_page(browser, site):
    """A function that opens a page of the site, on a day; its formulas are drawn, its model is ready."""
    with ExitStack() as contexts:

        def open_page(name="live.html", width=1280, height=800, day=None, **more):
            # With less motion the theme's drawers do not slide: what axe sees does not depend on the moment.
            more |= {"viewport": {"width": width, "height": height}, "reduced_motion": "reduce"}
            context = contexts.enter_context(quiet_context(browser, **more))
            context.set_default_timeout(120_000)
            context.add_init_script(path=Path(__file__).with_name("website.js"))
            page = context.new_page()
            if day:
                page.clock.set_fixed_time(day)
            page.goto(f"{site.as_uri()}/{name}", wait_until="load")
            page.evaluate("checks.drawn()")
            return page

        yield open_page
