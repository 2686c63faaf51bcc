"""What runs inside the walls: IPython, which answers the grader's questions through pipes, a line of JSON each.

A question is {"id", "code", "expression"}: the code is run as a cell, then the expression is evaluated. The answer has
the fields of a Jupyter kernel's reply. What the code prints goes nowhere; what it reads is empty.
"""

import json
import os
import traceback

import torch  # noqa: F401  # it takes seconds, which are not the learner's
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

MEMORY = 2**32  # bytes of address space beside what is in use now; the walls watch the memory that is really used


def limit_memory() -> None:
    """Let an allocation that is far too large fail with a MemoryError, which is clearer than a dead program."""
    try:
        import resource

        with open("/proc/self/statm") as pages:
            memory = int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ImportError, OSError, ValueError):  # Windows has no module resource; macOS has no /proc
        pass


def answer(shell: InteractiveShell, code: str, expression: str) -> dict:
    """Run a cell, evaluate an expression; the fields of a Jupyter kernel's reply."""
    done = shell.run_cell(code, store_history=False, silent=True)
    if error := done.error_before_exec or done.error_in_exec:
        lines = [one.line for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith("<ipython")]
        reply = {"status": "error", "ename": type(error).__name__, "evalue": str(error)[:2000]}
        return reply | {"line": lines[-1] if lines else ""}  # of the cell's own code, where it stopped
    wanted = {"verdict": expression} if expression else {}
    return {"status": "ok", "user_expressions": shell.user_expressions(wanted)}


def main() -> None:
    """Answer until there is no question any more."""
    questions, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    limit_memory()
    for line in questions:
        question = json.loads(line)
        reply = answer(shell, question["code"], question["expression"])
        print(json.dumps({"id": question["id"], "reply": reply}), file=answers, flush=True)


main()
