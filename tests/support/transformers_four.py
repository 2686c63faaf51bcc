"""The last transformers 4, in an environment of its own: what was trained with it may be read otherwise by 5."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.course import ROOT

PYTHON = Path(f"{sys.prefix}-transformers-4") / "bin" / "python"
QUIET = """
import transformers
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
print(transformers.__version__)
"""


def run_with_four(code: str, *arguments):
    """Run a program under transformers 4.57.6, or skip the test that calls this; in continuous integration it fails."""
    if not PYTHON.exists():
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing(f"{PYTHON} is not there: make test-all makes it, with transformers 4.57.6")
    words = [PYTHON, "-c", QUIET + code, *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["4.57.6"]), done.stderr
