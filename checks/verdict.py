"""One verdict in JSON, for a learner's assistant: which exercises of a saved notebook pass, and what is wrong.

    python -m checks.verdict notebooks/02_rope.ipynb
    python -m checks.verdict notebooks/02_rope.ipynb --exercise 2 --step 2

The notebook is read by the one reader (checks/notebook.py), as it was saved last; nothing else of it is run. What a
check says goes out as it is: first what was seen, with the smallest failing case in numbers where there is one; the
mistake that it names only with --step 2, so that a learner thinks about the case before being told. Only the first
exercise that fails is explained, so that a learner mends one thing at a time. Nothing here knows a solution; a line of
code comes out only if it is the learner's own, where it raised an error.

Learners' functions run in a process of their own, in the notebook's folder, with limits of time and memory. This keeps
a bug from hanging the command or spoiling its JSON. It is no wall: for grades there is `make grade`.

Exit status: 0 if something was attempted and all of it passed, 1 if not, 2 if no verdict can be given.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mode

import checks
from checks.notebook import Notebook, read_notebook
from checks.own import define
from checks.run import PATIENCE, TimeUp, in_time, undisturbed

SECTION_OF = {  # the notebook of each exercise, in their order, and words of the heading that teaches what it asks for
    "rms_norm": "1 norm do to an arrow", "norm_probe": "1 bugs does that test miss",
    "rms_norm_backward": "1 the gradient",
    "rope_angles": "2 how fast", "apply_rope_halves": "2 make a pair", "rope_permutation": "2 make a pair",
    "swiglu": "3 three matrices", "matrix_roles": "3 three matrices", "cut_units": "3 trained model need",
    "causal_visible": "4 which mask", "rows": "4 sharing save", "gqa_layer": "4 query head reads",
    "budget": "5 the parameters", "properties": "5 would have noticed", "first_departure": "5 would have noticed",
    "my_llama": "5 forward pass", "cut_heads": "5 which head",
    "training_loop": "6 training step", "accumulated_step": "6 which predictions", "find_loop_slips": "6 training step",
    "sample": "7 next token chosen", "greedy_with_cache": "7 step read", "judge": "7 one token at a time",
    "attention_with_sink": "8 attend to nothing", "add_family": "8 an edit", "where_they_part": "8 finds which bug",
    "split_feed_forward": "9 two ranks", "merge_attention": "9 long texts", "mend_split": "9 split learn",
}  # fmt: skip
HEADING = r"^##(?:# Exercise)? ((\d+(?:\.\d+)?)\.? .*)"  # "## 2.4 Which two …" or "### Exercise 2. Turn …"
MAX_CHARACTERS = 1000  # characters of a text of unknown origin
START = 60.0  # seconds to import torch and to answer, beside what a definition and a check may take
MEMORY = 2**32  # bytes beside what the checks themselves use
STATUS = {"passed": "passed", "failed": "not passed", "todo": "not attempted"}
ENDED = "Python ended, or had not answered after {:g} seconds. Does it exit, run for ever, or fill the memory?"


def clipped(text: object) -> str:
    """A text of unknown origin as one line of so many characters at most."""
    line = " ".join(
        "".join(letter if letter.isprintable() else " " for letter in str(text)[: 2 * MAX_CHARACTERS]).split()
    )
    return line if len(line) <= MAX_CHARACTERS else line[:MAX_CHARACTERS] + " …"


def exercises_of(notebook: Notebook) -> list[tuple[int, str, str]]:
    """Number, name of the check and function of each exercise of the lesson that a notebook's functions belong to.

    An exercise whose function was lost is one of them; a notebook without any function of an exercise has none.
    """
    functions = {name: "my_" + re.sub("^(my|find)_", "", name) for name in SECTION_OF}
    there = [
        SECTION_OF[name][0] for name, one in functions.items() if notebook.definition(one) or notebook.fault_of(one)
    ]
    lesson = [name for name in SECTION_OF if there and SECTION_OF[name][0] == mode(there)]
    return [(number, name, functions[name]) for number, name in enumerate(lesson, start=1)]


def judge(path: Path, wanted: int | None = None, seconds: float = 10.0) -> list[dict]:
    """What is said of a notebook's exercises, all or the one that is wanted: the answers of `said_of`, with headings.

    Args:
        seconds: on the processor, for each check; a definition has six times that.

    Raises:
        ValueError: if the file is no notebook, or has no such exercise.
        OSError: if it cannot be opened.
    """
    try:
        notebook = read_notebook(path.read_bytes())
        exercises = exercises_of(notebook)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name} is no notebook ({type(error).__name__}: {error}).") from error
    todo = [one for one in exercises if wanted in (None, one[0])]
    if not todo:
        what = f"exercise {wanted}, but {len(exercises)} others" if exercises else "function that an exercise asks for"
        raise ValueError(f"{path.name} has no {what}.")
    answers = []
    while len(answers) < len(todo):  # an exercise that ends its process costs no other: a new one goes on behind it
        answers += _answers(path, todo[len(answers) :], seconds)
    headings = {number: clipped(heading) for heading, number in reversed(re.findall(HEADING, notebook.texts, re.M))}
    for (number, name, function), answer in zip(todo, answers, strict=True):
        answer["exercise"] = headings.get(str(number), f"{number}. {function}")
        sections = [heading for place, heading in headings.items() if "." in place]
        answer["taught"] = next(iter(taught_in(sections, name)), f"notebook 0{SECTION_OF[name][0]}")
    return answers


def taught_in(headings, name):
    """The headings that hold the words of the section that teaches an exercise; one in a notebook of the course."""
    return [heading for heading in headings if SECTION_OF[name][2:] in heading.lower()]


def _answers(path, exercises, seconds):
    """What a new process says of these exercises, and at the end that it has ended, if it did so before the last."""
    spawn, said, limit = multiprocessing.get_context("spawn"), [], START + 2 * PATIENCE * seconds
    answers, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=inside, args=(path, exercises, seconds, theirs), daemon=True)
    process.start()
    theirs.close()
    with contextlib.suppress(EOFError, OSError):
        while len(said) < len(exercises) and answers.poll(limit):
            said.append(json.loads(answers.recv_bytes()))
    process.kill()
    process.join()
    if len(said) < len(exercises):
        said.append({"status": "does not run", "seen": ENDED.format(limit)})
    return said


def inside(path: Path, exercises: list[tuple[int, str, str]], seconds: float, answers: Connection) -> None:
    """Send what is said of each of these exercises, in JSON."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.environ |= {"MPLBACKEND": "agg", "COURSE_DEVICE": "cpu"}
    os.chdir(path.parent)
    sys.path.insert(0, os.getcwd())  # for modules of the learner's own, beside the notebook
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no module resource, macOS no /proc
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    notebook = read_notebook(path.read_bytes())
    for _, name, function in exercises:
        answers.send_bytes(json.dumps(said_of(notebook, name, function, path.name, seconds)).encode())


def said_of(notebook: Notebook, name: str, asked: str, file: str, seconds: float) -> dict:
    """Status of an exercise and what was seen; if its check has run, also the hint, and how many cases passed."""
    try:
        function, why = in_time(undisturbed()(lambda: define(notebook, asked, file)), PATIENCE * seconds)
    except TimeUp as up:
        function, why = None, f"its cell in {file} does not end: {up}"
    if not function:
        why = why or f"no cell of {file} makes {asked}: was it renamed or deleted, or is its cell not Python?"
        return {"status": "does not run", "seen": why[0].upper() + why[1:]}
    result = getattr(checks, f"check_{name}")(function, seconds=seconds)
    cases = {"cases": f"{result.right} of {result.cases} passed"} if result.cases else {}
    return {"status": STATUS[result.status], "seen": result.message, "hint": result.hint, **cases}


def verdict(file: str, judged: list[dict], step: int = 1) -> dict:
    """The document: every exercise that was judged, and one explained: the first that fails, or is not attempted."""
    others = [one for one in judged if one["status"] != "passed"]
    explained = min(others, key=lambda one: one["status"] == "not attempted", default=None)
    entries = []
    for one in judged:
        entry = {key: one[key] for key in ("exercise", "status", "cases") if key in one}
        if one is explained:
            seen, *numbers = map(clipped, one["seen"].split("\n")[:20])
            mistake = clipped(one.get("hint", "")) if step == 2 else ""
            said = {"seen": seen, "in_numbers": numbers, "the_check_says": mistake, "read_again": one["taught"]}
            entry |= {key: value for key, value in said.items() if value}
        entries.append(entry)
    tried = {one["status"] for one in judged} - {"not attempted"}
    return {"notebook": clipped(file), "passed": tried == {"passed"}, "exercises": entries}


def main(arguments: list[str] | None = None) -> int:
    """Print the verdict; the exit status."""
    parser = argparse.ArgumentParser("python -m checks.verdict", description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path, help="as it was saved: notebooks/02_rope.ipynb")
    parser.add_argument("--exercise", type=int, metavar="N", help="only this one (default: all)")
    parser.add_argument("--step", type=int, choices=(1, 2), default=1, help="2: also the mistake that the check names")
    chosen = parser.parse_args(arguments)
    path = chosen.notebook.absolute()
    try:
        document = verdict(path.name, judge(path, chosen.exercise), chosen.step)
    except (OSError, ValueError) as error:
        document = {"error": clipped(error)}
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(document, indent=1, ensure_ascii=not utf8))
    return 2 if "error" in document else 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
