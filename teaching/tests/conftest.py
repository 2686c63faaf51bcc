"""What the kit's tests get, beside what every test of the course gets (conftest.py)."""

import importlib.util
import os

import pytest


@pytest.fixture(scope="session")
def build():
    """The module teaching.website.build."""
    if not importlib.util.find_spec("sphinx_revealjs"):
        what = "the site's programs are not installed: `pip install -e '.[teaching]'`"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(what)
    return importlib.import_module("teaching.website.build")
