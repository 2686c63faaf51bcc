"""Grade a folder of submissions: a table of every student and exercise, and a page of feedback for each student.

    python -m tools.classroom.grade FOLDER --csv grades.csv      # make grade FOLDER=... ARGS="--csv grades.csv"

FOLDER holds a folder per student with notebooks of the course under their own names, at any depth
(`anna/02_rope.ipynb`), or files `anna__02_rope.ipynb`, or both. A notebook may also have the name that it had in an
earlier version of the course. Nothing in the folder is run in place or written to.

What is run. Each exercise gets a fresh kernel, so that a broken one costs no other. The notebook is not run from top
to bottom, which would take minutes and stop at the first broken cell, but cut: the last definition of the exercise's
function, and every statement up to the end of its cell that binds a name it reads, and so on (imports, helper
functions and constants in cells of their own; `table["a"] = 1` counts as part of `table`). Names that the learner's
notebook does not bind are taken from the course's own, so that a deleted set-up cell costs nothing. All else is left
out: other exercises, prints, experiments, magics, and the learner's checks, edited or not. Which check belongs to
which function is read from the course's notebooks (cells tagged "exercise"), and the grader appends it.

What can be trusted. The check, and all of `checks` and `helpers`, is imported anew from the grader's own path after
the learner's code ran. It answers through the kernel's reply, with a number drawn after that code ran: nothing that is
printed counts, nor a check or a result that was replaced. But the function and the check live in one process, where a
program written to deceive can read the expected answers or change torch. No grader that shares a process prevents
this; read the code of a suspicious submission. A name that is bound through `exec`, `globals()` or a magic is not
seen, and gives a NameError.

Isolation. Students' programs run inside bubblewrap where it works (tools/classroom/isolate.py says what that keeps
from them). Where it does not work, nothing is run unless you add --no-isolation.
"""

import argparse
import ast
import contextlib
import csv
import io
import json
import os
import re
import secrets
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.classroom.hand_out import ROOT, write_beside
from tools.classroom.isolate import Died, TimeUp, fresh_kernel, one_line, why_not_isolated
from tools.classroom.submissions import Assignment, code_for, find_submissions, read_course, read_statements

STATUSES = {
    "passed": "The check passed.",
    "not yet": "The check found a case that fails.",
    "not attempted": "The function is as it was handed out, or still empty.",
    "no such function": "The notebook does not define the function.",
    "does not run": "The code stops before the check.",
    "timed out": "There was no answer in time.",
    "crashed": "The program ended Python.",
    "missing notebook": "The notebook was not handed in.",
    "broken notebook": "The file cannot be read as a notebook.",
    "several files": "More than one file was handed in for this notebook; none was graded.",
    "not graded": "The grader itself failed or was stopped. This says nothing about the answer.",
}
OF_CHECK = {"passed": "passed", "failed": "not yet", "todo": "not attempted"}
FORMULA = re.compile(r'((?:^|[;\t\r\n])[\s"]*)(?=[=+\-@＝＋－＠])')  # where a spreadsheet may see a cell begin
LARGEST_FILE = 50_000_000  # bytes of a notebook
# Our packages are found by their path, whatever the learner's code did to the search path or to loaded modules.
CHECK = """
def {name}(function):
    import importlib.util, json, sys
    for module in list(sys.modules):
        if module.partition(".")[0] in ("helpers", "checks"):
            del sys.modules[module]
    for package in ("helpers", "checks"):
        folder = {root!r} + "/" + package
        found = importlib.util.spec_from_file_location(
            package, folder + "/__init__.py", submodule_search_locations=[folder]
        )
        sys.modules[package] = importlib.util.module_from_spec(found)
        found.loader.exec_module(sys.modules[package])
    result = sys.modules["checks"].{check}(function, seconds={seconds})
    return json.dumps([{name!r}, result.status, result.message, result.hint])
"""


@dataclass
class Row:
    """One line of the table."""

    student: str
    notebook: str
    exercise: str
    status: str = "not graded"
    seen: str = "The run was stopped before this exercise."
    hint: str = ""
    seconds: float = 0.0
    isolation: str = "none"

    def settle(self, status, seen, hint, seconds=0.0):
        """Write down a verdict."""
        self.status, self.seen, self.hint, self.seconds = status, seen or STATUSES[status], hint, round(seconds, 1)


class Refused(Exception):
    """A verdict (status, seen, hint) that needs no kernel."""


# ------------------------------------------------------------------------------------ what was handed in


def read_cells(path: Path) -> list[str]:
    """Sources of a notebook's code cells.

    Raises:
        Refused: if the file is a link, too large, not JSON, or not a notebook.
    """
    advice = "Open it in JupyterLab, clear its outputs, save it, hand it in again."
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("broken notebook", "It is a link, a folder or a device, not a file.", advice)
        if found.st_size > LARGEST_FILE:
            seen = f"It has {found.st_size:,} bytes, more than {LARGEST_FILE:,}."
            raise Refused("broken notebook", seen, advice)
        notebook = json.loads(path.read_text(encoding="utf-8"))
        return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        seen = f"It is no notebook ({type(error).__name__}: {one_line(error, 150)})."
        raise Refused("broken notebook", seen, advice) from error


def judge_submission(files: list[Path], exercises: list[Assignment], course: list) -> list[str | Refused]:
    """For each exercise of one notebook the code to run, or the verdict where nothing need be run."""
    try:
        if not files:
            raise Refused("missing notebook", "", "Hand it in under the name that it has in the course.")
        if len(files) > 1:
            raise Refused("several files", f"Handed in: {', '.join(map(str, files))}.", "Hand in one.")
        sources = read_cells(files[0])
        own, faults = read_statements(sources)
    except Refused as verdict:
        return [verdict] * len(exercises)
    return [_code_or_verdict(exercise, sources, own, faults, course) for exercise in exercises]


def _code_or_verdict(exercise, sources, own, faults, course):
    for cell, fault in faults.items():
        if re.search(rf"\bdef {exercise.function}\b", sources[cell - 1]):
            hint = "Mend the line and run the cell: a notebook that is handed in should run from top to bottom."
            return Refused("does not run", f"Code cell {cell} is not Python: {fault}.", hint)
    definitions = [one for one in own if exercise.function in one.binds]
    if not definitions:
        hint = f"Was the cell deleted, or the function renamed? The grader looks for {exercise.function}."
        return Refused("no such function", f"No cell defines {exercise.function}.", hint)
    if ast.dump(definitions[-1].node) == exercise.stub:
        return Refused("not attempted", "", "")
    return code_for(exercise.function, own, course)


# ------------------------------------------------------------------------------------------- running it


def run_exercise(exercise: Assignment, code: str, seconds: float, submissions: Path | None):
    """(status, seen, hint) of a learner's code in a fresh kernel, whatever it does; seconds count code and check."""
    try:
        with fresh_kernel(submissions) as ask:
            end = time.monotonic() + seconds
            reply = ask(code, "", seconds)
            if reply["status"] != "ok":
                seen = f"{reply.get('ename', reply['status'])}: {one_line(reply.get('evalue', ''))}"
                hint = "It happens before the check. Does the notebook run from top to bottom in a fresh kernel?"
                return "does not run", seen, hint
            name = f"_verdict_{secrets.token_hex(16)}"
            most = min(10.0, seconds / 2)  # for the function alone; 10 is the checks' own limit
            check = CHECK.format(name=name, root=str(ROOT), check=exercise.check, seconds=most)
            reply = ask(check, f"{name}({exercise.function})", max(0.1, end - time.monotonic()))
            return _verdict(reply, name)
    except TimeUp:
        return "timed out", f"No answer after {seconds:g} seconds.", "Is there a loop that never ends?"
    except Died:
        return "crashed", "The program ended the kernel.", "Does it exit, or need more memory than there is?"
    except Exception as error:  # of the grader: no kernel can be started, the disk is full, an unexpected message
        return "not graded", f"{type(error).__name__}: {one_line(error)}", "Grade this one again, or by hand."


def _verdict(reply, name):
    """What the check said, if it is the check that says it."""
    answer = reply.get("user_expressions", {}).get("verdict", {})
    said = None
    with contextlib.suppress(KeyError, TypeError, ValueError, SyntaxError):
        said = json.loads(ast.literal_eval(answer["data"]["text/plain"]))
    match said:
        case [given, status, seen, hint] if given == name and status in OF_CHECK:
            status = "timed out" if re.search(r"no answer after \S+ seconds\.$", seen) else OF_CHECK[status]
            seen = re.sub(r"\n\s*", " | ", seen)  # numbers that a check shows in lines of their own
            return status, one_line(seen, 800), one_line(hint, 500)
    fault = f"{answer.get('ename', 'no verdict')}: {one_line(answer.get('evalue', ''))}"
    return "not graded", f"The check gave no verdict ({fault}).", "Look at this one by hand."


# ------------------------------------------------------------------------------------------------ the table


def run_all(work: list[tuple], seconds: float, submissions: Path | None, jobs: int) -> None:
    """Run what needs a kernel and settle its row; rows that are not reached stay "not graded"."""

    def run(one):
        row, exercise, code = one
        start = time.monotonic()
        row.settle(*run_exercise(exercise, code, seconds, submissions), time.monotonic() - start)
        print(f"{one_line(row.student)}, {row.notebook}, {row.exercise}: {row.status}", flush=True)

    pool = ThreadPoolExecutor(jobs)
    try:
        list(pool.map(run, work))
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl+C: ends when those that run have ended


def table(rows: list[Row]) -> str:
    """The rows as CSV, with a header; no text is taken for a formula, by spreadsheets that cut at ; either."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(vars(rows[0]))
    for row in rows:
        writer.writerow([FORMULA.sub(r"\1'", str(cell)) for cell in vars(row).values()])
    return text.getvalue()


def feedback(name: str, rows: list[Row], unread: list[Path]) -> str:
    """A student's page, in Markdown."""

    def plain(text):
        return re.sub(r"([\\`*_\[\]|<>&~$])", r"\\\1", one_line(text, 900))

    how = "without isolation from the machine" if rows[0].isolation == "none" else "in isolation (bubblewrap)"
    passed = sum(row.status == "passed" for row in rows)
    lines = [f"# {plain(name)}", "", f"{passed} of {len(rows)} exercises passed.", "", f"Graded {how}.", ""]
    for notebook in dict.fromkeys(row.notebook for row in rows):
        lines += [f"## {plain(notebook)}", "", "| exercise | status | what was seen | hint |", "|---|---|---|---|"]
        for row in rows:
            if row.notebook == notebook:
                lines.append(f"| {' | '.join(map(plain, (row.exercise, row.status, row.seen, row.hint)))} |")
        lines.append("")
    if unread:
        lines += ["Files that were not graded:", "", *(f"- {plain(path.name)}" for path in unread), ""]
    return "\n".join(lines)


def grade(arguments: argparse.Namespace, isolated: bool) -> list[Row]:
    """Grade a folder, write the table and the pages, whatever happens on the way; return the rows."""
    folder, course = arguments.folder.resolve(), read_course(arguments.course, arguments.only)
    students, strays = find_submissions(folder, list(course))
    rows, work = [], []
    for name, student in students.items():
        for notebook, (exercises, statements) in course.items():
            found = judge_submission(student.files.get(notebook, []), exercises, statements)
            for exercise, code in zip(exercises, found, strict=True):
                rows.append(Row(name, notebook, exercise.title, isolation="bubblewrap" if isolated else "none"))
                if isinstance(code, Refused):
                    rows[-1].settle(*code.args)
                else:
                    work.append((rows[-1], exercise, code))
    for path in strays:
        print(f"Nobody's, not graded: {one_line(path.name)} (name it student__{one_line(path.name)})")
    try:
        run_all(work, arguments.seconds, folder if isolated else None, arguments.jobs)
    finally:
        write_beside(arguments.csv, table(rows))
        for name, student in students.items():
            page = feedback(name, [row for row in rows if row.student == name], student.unread)
            try:
                arguments.feedback.mkdir(parents=True, exist_ok=True)
                write_beside(arguments.feedback / f"{name}.md", page)
            except OSError as error:
                print(f"{one_line(name)} gets no page of feedback: {one_line(error)}")
    return rows


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, checked before anything runs."""
    parser = argparse.ArgumentParser(prog="python -m tools.classroom.grade", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the submissions")
    parser.add_argument("--csv", type=Path, default=Path("grades.csv"), help="the table (default: grades.csv)")
    parser.add_argument("--feedback", type=Path, help="folder for a page per student (default: grades_feedback)")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each exercise (default: 60)")
    parser.add_argument("--jobs", type=int, default=1, help="exercises at the same time (default: 1)")
    parser.add_argument("--only", nargs="+", metavar="NOTEBOOK", help="such as 01_rmsnorm (default: all)")
    parser.add_argument("--course", type=Path, default=ROOT / "notebooks", help="the course's own notebooks")
    parser.add_argument("--no-isolation", action="store_true", help="run students' programs as you, unprotected")
    chosen = parser.parse_args(arguments)
    chosen.feedback = chosen.feedback or chosen.csv.with_name(f"{chosen.csv.stem}_feedback")
    if not chosen.folder.is_dir():
        parser.error(f"{chosen.folder} is not a folder.")
    if not (chosen.seconds > 0 and chosen.jobs > 0):
        parser.error(f"--seconds {chosen.seconds:g} and --jobs {chosen.jobs} must be above 0.")
    if not chosen.csv.absolute().parent.is_dir():
        parser.error(f"there is no folder for {chosen.csv}: make it first.")
    for path in (chosen.csv, chosen.feedback):
        if path.resolve().is_relative_to(chosen.folder.resolve()):
            parser.error(f"{path} lies in {chosen.folder}, where nothing is written: choose another place.")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    chosen = read_arguments(arguments)
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show stops nothing
    fault = "" if chosen.no_isolation else why_not_isolated(chosen.folder.resolve())
    if fault:
        sys.exit(
            f"Students' programs cannot be isolated: {fault}. They would run as you, with your network and your "
            "files. Nothing was run. Install bubblewrap (Linux), or work in a container or virtual machine that has "
            "neither network nor files to lose, and add --no-isolation."
        )
    print("NOT ISOLATED: programs run as you, with your network and your files." if chosen.no_isolation else
          "Isolated by bubblewrap: no network, nothing of yours can be written.", flush=True)  # fmt: skip
    try:
        rows = grade(chosen, not chosen.no_isolation)
    except (OSError, ValueError) as error:
        sys.exit(f"grade: {one_line(error, 1000)}")
    except KeyboardInterrupt:
        sys.exit(f"grade: stopped. {chosen.csv} holds what was graded until then.")
    print(f"{chosen.csv}: {len(rows)} rows. {chosen.feedback}: a page for each student.")


if __name__ == "__main__":
    main()
