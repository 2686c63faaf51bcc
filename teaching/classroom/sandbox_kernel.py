"""What runs inside the sandbox: IPython, which answers the grader's questions through pipes, a line of JSON each.

A question is {"code"}, which is run as a cell, or {"function", "check", "seconds"}, which hands a function of those
cells to a check. What the code prints goes nowhere; what it reads is empty.

The function and its check live in one process. So the checks are loaded before the learner's code, and kept from it as
far as that goes; nothing that reads a question or writes an answer is looked up in a module once that code has run; and
the number that an answer must bear is read when the answer is there. A program that goes through frames, the garbage
collector, files or memory, or changes torch, gets past all of it: sandbox_reader.py names such programs.
"""

import json
import os
import sys
import traceback
from importlib import import_module
from pkgutil import iter_modules

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import checks

CHECKS = [getattr(checks, name) for name in checks.FILE_OF]  # each is loaded now, not when it is asked for
FILES = [import_module(f"checks.{file.name}") for file in iter_modules(checks.__path__)]  # nor what names a mistake
MEMORY = 2**32  # bytes of address space beside what is in use now; the sandbox watches the memory that is really used


def limit_memory() -> None:
    """Let an allocation that is far too large fail with a MemoryError, which is clearer than a dead program."""
    try:
        import resource

        with open("/proc/self/statm") as pages:
            memory = int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ImportError, OSError, ValueError):  # Windows has no module resource; macOS has no /proc
        pass


def run(shell: InteractiveShell, code: str) -> dict:
    """Run a cell; how that went."""
    done = shell.run_cell(code, store_history=False, silent=True)
    if error := done.error_before_exec or done.error_in_exec:
        lines = [one.line for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith("<ipython")]
        reply = {"status": "error", "ename": type(error).__name__, "evalue": str(error)[:2000]}
        return reply | {"line": lines[-1] if lines else ""}  # of the cell's own code, where it stopped
    return {"status": "ok"}


def main() -> None:
    """Answer until there is no question any more."""
    questions, answers, write = os.fdopen(os.dup(0), encoding="utf-8"), os.dup(1), os.write
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    text, read = json.encoder.encode_basestring_ascii, json.JSONDecoder().scan_once
    encode = json.encoder.c_make_encoder(None, None, text, None, ": ", ", ", False, False, False)
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    names, modules = shell.user_ns, sys.modules
    limit_memory()

    def ours():
        rooms = ("checks", "helpers", "explorers", "beyond")
        return {name: modules[name] for name in list(modules) if name.partition(".")[0] in rooms}

    kept = ours()

    def judge(function, check, seconds):
        for name in ours():
            del modules[name]
        modules.update(kept)
        try:
            result = getattr(checks, check)(names[function], seconds=seconds)
            return {"status": "ok", "verdict": [result.status, result.message, result.hint]}
        except BaseException as error:  # such as KeyboardInterrupt, which a check lets through
            return {"status": "error", "ename": type(error).__name__}

    for line in questions:
        question = read(line, 0)[0]
        if "code" in question:
            for name in ours():  # the learner's code imports checks of its own; a model's classes must be the same
                if name.startswith("checks"):
                    del modules[name]
            reply = run(shell, question["code"])
        else:
            reply = judge(**question)
        write(answers, ("".join(encode({"id": next(questions).strip(), "reply": reply}, 0)) + "\n").encode())


main()
