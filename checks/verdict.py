"""One verdict in JSON, for a learner's assistant: which exercises of a saved notebook pass, and what is wrong.

    python -m checks.verdict notebooks/02_rope.ipynb
    python -m checks.verdict notebooks/02_rope.ipynb --exercise 2 --step 2 --helps-opened 1

The notebook is read by the one reader (checks/notebook.py), as it was saved last; nothing else of it is run. What a
check says goes out as it is: first what was seen, with the smallest failing case in numbers where there is one; the
mistake that it names only with --step 2, so that a learner thinks about the case before being told. Only the first
exercise that fails is explained, so that a learner mends one thing at a time. Nothing here knows a solution; a line of
code comes out only if it is the learner's own, where it raised an error. The notebook has three helps folded below each
exercise. A file does not say which of them were opened: unless --helps-opened does, the first is next. Its text is
given; the others hold code, so they are named, for the learner to open.

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

import torch

import checks
from checks.notebook import read_notebook, stored_cells
from checks.own import define
from checks.run import PATIENCE, TimeUp, in_time

TAUGHT = {  # the section that teaches what an exercise asks for, by the name of its check, in the order of exercises
    "rms_norm": "1.1", "norm_probe": "1.3", "rms_norm_backward": "1.5",
    "rope_angles": "2.2", "apply_rope_halves": "2.4", "rope_permutation": "2.4",
    "swiglu": "3.3", "matrix_roles": "3.3", "cut_units": "3.5",
    "causal_visible": "4.5", "rows": "4.6", "gqa_layer": "4.3",
    "budget": "5.3", "properties": "5.7", "first_departure": "5.7", "my_llama": "5.2",
    "cut_heads": "5.8",
    "training_loop": "6.4", "accumulated_step": "6.8", "find_loop_slips": "6.4",
    "sample": "7.1", "greedy_with_cache": "7.3", "lookup_decoding": "7.7",
    "attention_with_sink": "8.7", "add_family": "8.2", "where_they_part": "8.10",
    "split_feed_forward": "9.1", "merge_attention": "9.7", "mend_split": "9.5",
}  # fmt: skip
HELPS = ("Hint", "First step", "Fuller hint")  # what the folds below an exercise are called
START, GRACE = 120.0, 30.0  # seconds to import torch and read the notebook; to answer after both limits
MEMORY = 2**32  # bytes beside what the checks themselves use
STATUS = {"passed": "passed", "failed": "not passed", "todo": "not attempted"}


def clip_words(text: str, most: int = 60) -> str:
    """A text of unknown origin as one line of so many words at most."""
    words = "".join(letter if letter.isprintable() else " " for letter in str(text)[:4000]).split()
    return " ".join(word[:400] for word in words[:most]) + (" …" if len(words) > most else "")


def outline(data: bytes) -> list[dict]:
    """The exercises of a notebook, in order, with what its text says about each: title, section and helps.

    An exercise is found by its function, or else by its heading; its number is its place in TAUGHT, whatever its
    heading says. Without its heading it has no title, without the folds no helps.

    Raises:
        ValueError, KeyError, TypeError, AttributeError or RecursionError: if it is no notebook.
    """
    notebook, (exercises, sections) = read_notebook(data), _text_of(data)
    functions = {name: "my_" + re.sub("^(my|find)_", "", name) for name in TAUGHT}
    there = [name for name, one in functions.items() if notebook.definition(one) or notebook.fault_of(one)]
    lesson = mode([TAUGHT[name][0] for name in there] or [section[0] for section in sections] or [""])
    found = []
    for number, name in enumerate((name for name in TAUGHT if TAUGHT[name][0] == lesson), start=1):
        title, helps = exercises.get(number, (f"{number}. {functions[name]}", []))
        taught = sections.get(TAUGHT[name], f"section {TAUGHT[name]}")
        if name in there or number in exercises:
            one = {"name": name, "number": number, "function": functions[name]}
            found.append(one | {"title": title, "helps": helps, "taught": taught})
    return found


def _text_of(data):
    """{number of an exercise: (its heading, its helps)}; {number of a section: its heading}."""
    cells = [cell for cell in stored_cells(data) if cell["cell_type"] != "code"]
    text = "\n".join("".join(cell.get("source", ""))[:50_000] for cell in cells)
    exercises, sections = {}, {}
    for part in re.split(r"^(?=## |### Exercise )", text, flags=re.M):
        if section := re.match(r"## ((\d\.\d+) .*)", part):
            sections.setdefault(section[2], clip_words(section[1], 15))
        if exercise := re.match(r"### Exercise ((\d{1,2})\..*)", part):
            _, helps = exercises.setdefault(int(exercise[2]), (clip_words(exercise[1], 12), []))
            for fold in part.split("<details><summary>")[1:]:
                title, _, inside = fold.partition("</details>")[0].partition("</summary>")
                if title in HELPS:
                    helps.append((title, clip_words(inside, 1000)))
    return exercises, sections


def inside(path: Path, exercises: list[dict], seconds: float, answers: Connection) -> None:
    """Send null once the notebook is read, then in JSON what the check says of each of these exercises."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.environ |= {"MPLBACKEND": "agg", "COURSE_DEVICE": "cpu"}
    os.chdir(path.parent)
    sys.path.insert(0, os.getcwd())  # for modules of the learner's own, beside the notebook
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no module resource, macOS no /proc
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    notebook = read_notebook(path.read_bytes())
    answers.send_bytes(b"null")
    for one in exercises:
        answers.send_bytes(json.dumps(_judged(notebook, one, path.name, seconds)).encode())


def _judged(notebook, one, file, seconds):
    most = min(10.0, seconds / PATIENCE)  # on the processor; 10 is the checks' own limit
    try:
        function, why = in_time(lambda: define(notebook, one["function"], file), seconds)
    except TimeUp as up:
        function, why = None, f"its cell in {file} does not end: {up}"
    if not function:
        why = why or f"no cell of {file} makes {one['function']}: was it renamed or deleted, or is its cell not Python?"
        return {"status": "does not run", "seen": why[0].upper() + why[1:]}
    return to_dict(getattr(checks, f"check_{one['name']}")(function, seconds=most))


def to_dict(result: checks.CheckResult) -> dict:
    """What a check found, for `verdict`."""
    cases = f"{result.right} of {result.cases} passed"
    return {"status": STATUS[result.status], "seen": result.message, "hint": result.hint, "cases": cases}


class NoVerdict(Exception):
    """Why no verdict can be given, in a sentence."""


def judge(path: Path, wanted: int | None = None, seconds: float = 60.0) -> list[tuple[dict, dict]]:
    """Exercises of a notebook, all or the one that is wanted, each with what its check says.

    Args:
        seconds: for each definition, and each check.

    Raises:
        NoVerdict: if the file cannot be read, or has no such exercise.
    """
    if not path.is_file() or path.suffix != ".ipynb":
        raise NoVerdict(f"There is no notebook {path.name}: give a path such as notebooks/02_rope.ipynb.")
    try:
        found = outline(path.read_bytes())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NoVerdict(f"{path.name} is no notebook ({type(error).__name__}: {clip_words(error, 15)}).") from error
    there = [one["number"] for one in found]
    if not found or wanted not in (None, *there):
        what = f"exercise {wanted}" if found else "exercise of the course"
        seen = f" It has {', '.join(map(str, there))}." if there else ""
        raise NoVerdict(f"{path.name} has no {what}: was its function renamed or deleted?{seen}")
    todo, answers = [one for one in found if wanted in (None, one["number"])], []
    while len(answers) < len(todo):  # an exercise that ends its process costs no other: a new one goes on behind it
        answers += _answers(path, todo[len(answers) :], seconds)
        if len(answers) < len(todo):
            answers.append({"status": "does not run", "seen": ENDED.format(2 * seconds)})
    return list(zip(todo, answers, strict=True))


def _answers(path, exercises, seconds):
    """What a new process says of these exercises, until it ends or is ended."""
    spawn, said = multiprocessing.get_context("spawn"), []
    answers, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=inside, args=(path, exercises, seconds, theirs), daemon=True)
    process.start()
    theirs.close()
    with contextlib.suppress(EOFError, OSError):  # it has ended
        while len(said) <= len(exercises) and answers.poll(2 * seconds + GRACE if said else START):
            said.append(json.loads(answers.recv_bytes()))
    process.kill()
    process.join()
    return said[1:]


ENDED = "Python ended, or had not answered after {:g} seconds. Does it exit, run for ever, or fill the memory?"


def verdict(file: str, judged: list[tuple[dict, dict]], helps_opened: int = 0, step: int = 1) -> dict:
    """The document: every exercise that was judged, and one explained, the first that was tried and does not pass."""
    entries, explained = [], False
    for one, answer in judged:
        entry = {"exercise": one["title"], "status": answer["status"]}
        if answer["status"] in ("passed", "not passed"):
            entry["cases"] = answer["cases"]
        if answer["status"] in ("not passed", "does not run") and not explained:
            explained = True
            entry |= _explained(one, answer, helps_opened, step)
        elif answer["status"] == "not attempted" and len(judged) == 1:
            entry["read_again"] = one["taught"]
        entries.append(entry)
    tried = {entry["status"] for entry in entries} - {"not attempted"}
    return {"notebook": clip_words(file, 5), "passed": tried == {"passed"}, "exercises": entries}


def _explained(one, answer, helps_opened, step):
    seen, *numbers = answer["seen"].split("\n")
    explained = {"seen": clip_words(seen)}
    if numbers:
        explained["in_numbers"] = [clip_words(line) for line in numbers[:12]]
    if step == 2 and answer.get("hint"):
        explained["the_check_says"] = clip_words(answer["hint"])
    if helps_opened < len(one["helps"]):
        title, text = one["helps"][helps_opened]
        explained["next_help"] = {"fold": title, "number": f"{helps_opened + 1} of {len(one['helps'])}"}
        if helps_opened == 0:
            explained["next_help"]["text"] = text
    return explained | {"read_again": one["taught"]}


class _Arguments(argparse.ArgumentParser):
    def error(self, message):
        raise NoVerdict(f"The command was not understood: {clip_words(message, 30)}.")


def main(arguments: list[str] | None = None) -> int:
    """Print the verdict; the exit status."""
    parser = _Arguments("python -m checks.verdict", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("notebook", type=Path, help="as it was saved: notebooks/02_rope.ipynb")
    parser.add_argument("--exercise", type=int, metavar="N", help="only this one (default: all)")
    parser.add_argument("--step", type=int, choices=(1, 2), default=1, help="2: also the mistake that the check names")
    parser.add_argument("--helps-opened", type=int, choices=range(4), default=0, help="folds already read (default: 0)")
    try:
        chosen = parser.parse_args(arguments)
        path = chosen.notebook.absolute()
        judged = judge(path, chosen.exercise)
        document = verdict(path.name, judged, chosen.helps_opened, chosen.step)
    except (NoVerdict, OSError) as error:
        document = {"error": clip_words(error)}
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(document, indent=1, ensure_ascii=not utf8))
    return 2 if "error" in document else 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
