"""Notebooks as learners leave them, and what is made of each by the grader and by `my_parts`."""

import json

from checks.parts import COURSE
from tests.support.submissions import NORM, code_cell, handed_out

SET_UP = "import torch\nfrom torch.nn import functional as F"
HEAD, CHECK = "def my_rms_norm(x, weight, eps):\n", "\n\n\ncheck_rms_norm(my_rms_norm)"
LINE = "(y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)"
RIGHT = f"{HEAD}    y = x.float()\n    return {LINE}"
ALL_CELLS = ["".join(cell["source"]) for cell in handed_out()["cells"] if cell["cell_type"] == "code"]
STUB = next(source for source in ALL_CELLS if "def my_rms_norm" in source)
HELPER = "def widen(x):\n    return x.float()"
WIDEN_STUB = "def widen(x):\n    raise NotImplementedError"
HELPED = RIGHT.replace("x.float()", "widen(x)")
WITH_ZERO = RIGHT.replace("+ eps", "+ eps + ZERO")
PROMPTED = ">>> " + RIGHT.replace("\n", "\n... ")
CLASS = f"class Norm:\n    def __call__(self, x, weight, eps):\n        y = x.float()\n        return {LINE}"
PASSES, WRONG, STOPS, BROKEN, TEXT, NOTHING, NOT_DONE, NO_FILE = (
    # what the grader says, and words of what my_parts says
    ("passed", f"1 of {len(COURSE)} parts are yours: rms_norm"),
    ("not yet", f"its exercise in {NORM}.ipynb does not pass."),
    ("stops", f"its cell in {NORM}.ipynb does not run (NameError"),
    ("does not run", f"its cell in {NORM}.ipynb does not run. Code cell 2 is not Python: "),
    ("does not run", f"its cell in {NORM}.ipynb does not run. It is a text cell: Esc, then Y, makes it code."),
    ("no such function", "no notebook in this folder has the exercise."),
    ("not attempted", f"its exercise in {NORM}.ipynb is not done yet."),
    ("broken notebook", f"{NORM}.ipynb cannot be read."),
)  # fmt: skip

MESSY = {  # code cells, and what both readers make of them
    "a helper further down in the cell": ([SET_UP, HELPED + "\n" + HELPER + CHECK], PASSES),
    "a helper in a later cell": ([SET_UP, HELPED + CHECK, HELPER], WRONG),  # it does not run from top to bottom
    "an import in another cell": (["import torch as t", RIGHT.replace("torch", "t") + CHECK], PASSES),
    "everything from a module": (["from torch import *", RIGHT.replace("torch.", "") + CHECK], PASSES),
    "an import inside the function": ([RIGHT.replace(HEAD, HEAD + "    import torch\n") + CHECK], PASSES),
    "the set-up is gone": ([RIGHT + CHECK], PASSES),
    "a cell magic that runs the cell": ([SET_UP, "%%time\n" + RIGHT + CHECK], PASSES),
    "a shell line with a quote": ([SET_UP, "!echo it's \\\n  (here\n" + RIGHT + CHECK], PASSES),
    "a remainder that looks like a magic": ([SET_UP, "ZERO = (4\n% 2)\n!ls\n" + WITH_ZERO + CHECK], PASSES),
    "text that looks like a magic": ([SET_UP, "!ls\nZERO = len('''\n%time\n''') * 0\n" + WITH_ZERO], PASSES),
    "the check is edited": ([SET_UP, RIGHT + "\n\ndef check_rms_norm(f): print('fine')" + CHECK], PASSES),
    "the checks at their old place": ([SET_UP, "from helpers.checks import check_rms_norm", RIGHT + CHECK], PASSES),
    "an annotated constant": ([SET_UP, "ZERO: float = 0.0", WITH_ZERO + CHECK], PASSES),
    "the stub above the answer": ([SET_UP, STUB, RIGHT + CHECK], PASSES),
    "the stub below the answer": ([SET_UP, RIGHT + CHECK, STUB], PASSES),
    "the stub below the answer in its cell": ([SET_UP, RIGHT + "\n\n" + STUB], PASSES),
    "all cells below the answer once more": ([SET_UP, RIGHT + CHECK, *ALL_CELLS], PASSES),
    "all cells once more, and then a wrong answer": ([SET_UP, RIGHT + CHECK, *ALL_CELLS, HEAD + "    return x"], WRONG),
    "an answer that needs one above a stub": ([SET_UP, HELPER, WIDEN_STUB, HELPED + CHECK, STUB, WIDEN_STUB], PASSES),
    "nothing but stubs": ([SET_UP, STUB, *ALL_CELLS], NOT_DONE),
    "an object": ([SET_UP, CLASS, "my_rms_norm = Norm()" + CHECK], PASSES),
    "another name": ([SET_UP, RIGHT.replace("my_", "our_"), "my_rms_norm = our_rms_norm" + CHECK], PASSES),
    "a decorator of one's own": ([SET_UP, "def same(f):\n    return f", "@same\n" + RIGHT + CHECK], PASSES),
    "a function inside": ([SET_UP, f"{HEAD}    def g(y):\n        return {LINE}\n    return g(x.float())"], PASSES),
    "asynchronous": ([SET_UP, "async " + RIGHT + CHECK], WRONG),
    "waiting at the top": ([SET_UP, "import asyncio\nawait asyncio.sleep(0)", RIGHT + CHECK], PASSES),
    "tabs, Windows' line ends": ([SET_UP, f"{RIGHT}\n%time 1".replace("    ", "\t").replace("\n", "\r\n")], PASSES),
    "from the future": ([SET_UP, "from __future__ import annotations\n" + RIGHT.replace("x,", "x: A,")], PASSES),
    "not Python": ([SET_UP, RIGHT.replace("eps):", "eps)") + CHECK], BROKEN),
    "not Python, and a stub": ([SET_UP, HEAD + "    return (x", STUB], BROKEN),
    "half of it in another cell": ([SET_UP, RIGHT + CHECK, "def my_rms_norm(x, weight"], PASSES),
    "deleted, but named": ([SET_UP, "# def my_rms_norm(x): ...\nprint('hello'"], NOTHING),
    "a line that stops": ([SET_UP, "ZERO = nobody", WITH_ZERO + CHECK], STOPS),
    "the prompts of a session": ([">>> import torch", PROMPTED + CHECK.replace("\n\n\n", "\n>>> ")], PASSES),
    "removed again": ([SET_UP, RIGHT + CHECK + "\ndel my_rms_norm"], PASSES),
    "a first definition that fails": ([SET_UP, "@nobody\n" + RIGHT, CLASS, "my_rms_norm = Norm()" + CHECK], PASSES),
    "a second definition that fails": ([SET_UP, RIGHT + CHECK, "my_rms_norm = nobody()"], PASSES),
}  # fmt: skip


def stored(cells):
    return {"cells": [code_cell(source) for source in cells], "metadata": {}, "nbformat": 4}


def files():
    """{label: (what the file holds, what both make of it)}, the notebooks above and other formats."""
    for label, (cells, wanted) in MESSY.items():
        yield label, (json.dumps(stored(cells)).encode(), wanted)
    right = stored([SET_UP, RIGHT + CHECK])
    bare = [{"cell_type": "code", "source": [RIGHT[:20], RIGHT[20:]]}, {"cell_type": "raw", "source": "def ("}]
    text = [{"cell_type": "markdown", "source": (RIGHT + CHECK).splitlines(keepends=True)}]
    old = [{"cell_type": "code", "input": [line + "\n" for line in RIGHT.split("\n")], "language": "python"}]
    yield "byte order mark", (b"\xef\xbb\xbf" + json.dumps(right).encode(), PASSES)
    yield "no metadata, and a raw cell", (json.dumps({"cells": bare}).encode(), PASSES)
    yield "turned into text by the key M", (json.dumps({"cells": text}).encode(), TEXT)
    yield "in a text beside the stub", (json.dumps({"cells": [*text, code_cell(STUB)]}).encode(), NOT_DONE)
    both = {"cells": bare, "worksheets": [{"cells": [code_cell(STUB)]}], "nbformat": 4}
    yield "two formats, of which Jupyter shows this", (json.dumps(both).encode(), PASSES)
    two = [{"cells": []}, {"cells": old}]
    yield "two worksheets", (json.dumps({"worksheets": two, "nbformat": 3}).encode(), PASSES)
    yield "format 3", (json.dumps({"worksheets": [{"cells": old}], "nbformat": 3}).encode(), PASSES)
    for text in (b"", b"{", b"[1]", b"{}", b'{"cells": [1]}', b'{"cells": 2}', b"\xff\xfe", b"[" * 100_000):
        yield f"no notebook: {text[:20]}", (text, NO_FILE)


FILES = dict(files())
