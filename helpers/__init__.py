"""The course's shared code, small enough to read in an afternoon; start with model.py.

README, *What is where*, names each file. An import line names the file to open, but `model` passes LlamaConfig, PRESETS
and KVCache on. Pictures that move are in `explorers`; other models, fast decoding and processes are in `beyond`.
"""

import sys


class AnotherVersionError(ImportError):
    """A notebook asks for what this course does not have; Jupyter shows the text alone, without a traceback."""

    def _render_traceback_(self):
        return [str(self)]


def _show_import_error(shell, kind, error, traceback, tb_offset=None):
    if (error.name or "").split(".")[0] in ("helpers", "explorers", "beyond", "checks"):
        advice = "Is it spelt right? Then the notebook was made for another version of the course: "
        advice += "`make reset NOTEBOOK=…` makes a fresh one and keeps yours."
        kind, error = AnotherVersionError, AnotherVersionError(f"{error}. {advice}")
    shell.showtraceback((kind, error, traceback), tb_offset)


if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
    shell.set_custom_exc((ImportError,), _show_import_error)
