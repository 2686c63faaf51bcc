"""Grade what a class handed in: a page of the whole class, a table for the gradebook, and feedback for each student.

    python -m teaching.classroom.grade FOLDER --only 01 02 --jobs 2      # make grade FOLDER=... ARGS="--only 01 02"

docs/teaching.md has the way through. Results go to a folder of their own (report.py); FOLDER is never written to.

Each exercise gets a fresh kernel, so that a broken one costs no other. The notebook is not run from top to bottom, but
cut, as checks/notebook.py says; names that it does not bind are taken from the course's own notebook. Reading happens
inside the sandbox as well.

Nothing that is printed counts, and a check or a module that was replaced in the ways that were tried does not
(sandbox_kernel.py says how). But function and check live in one process: "passed" is no proof. An answer that reaches
for the means to deceive, as sandbox_reader.py knows them, is named under "To look at yourself".
"""

import argparse
import contextlib
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path

from teaching.classroom.find_submissions import Submissions
from teaching.classroom.report import STATUSES, Row, keep_rows, new_folder, write_results
from teaching.classroom.sandbox import REMEDY, Died, Sandbox, TimeUp, find_sandbox, fresh_kernel
from teaching.classroom.submissions import COURSE, Assignment, judge_submission, read_course
from tools.course import notebooks_of, one_line

OF_CHECK = {"passed": "passed", "failed": "not yet", "todo": "not attempted"}


def run_exercise(exercise: Assignment, code: str, seconds: float, sandbox: Sandbox | None):
    """(status, seen, hint) of a learner's code in a fresh kernel, whatever it does; seconds count code and check."""
    try:
        with fresh_kernel(sandbox) as ask:
            end = time.monotonic() + seconds
            reply = ask({"code": code}, seconds)
            if reply["status"] != "ok":
                seen = f"{reply.get('ename', reply['status'])}: {one_line(reply.get('evalue', ''))}"
                seen += f" (line: {one_line(line, 100)})" if (line := reply.get("line")) else ""
                hint = "It happens before the check. Does the notebook run from top to bottom in a fresh kernel?"
                return "does not run", seen, hint
            most = min(10.0, seconds / 2)  # for the function alone; 10 is the checks' own limit
            asked = {"function": exercise.function, "check": exercise.check, "seconds": most}
            return _verdict(ask(asked, max(0.1, end - time.monotonic())))
    except TimeUp:
        return "timed out", f"No answer after {seconds:g} seconds.", "Is there a loop that never ends?"
    except Died as error:
        return "crashed", str(error), "Does it exit, start others, or need more memory than there is?"
    except Exception as error:  # of the grader: no kernel can be started, the disk is full, an unexpected message
        return "not graded", f"{type(error).__name__}: {one_line(error)}", "Grade this one again, or by hand."


def _verdict(reply):
    """What the check said, in words of our own."""
    match reply.get("verdict"):
        case [str(status), str(seen), str(hint)] if status in OF_CHECK:
            status = "timed out" if re.search(r"no answer after \S+ seconds\b", seen) else OF_CHECK[status]
            seen = re.sub(r"\n\s*", " | ", seen)  # numbers that a check shows in lines of their own
            return status, one_line(seen, 800), one_line(hint, 500)
    return "not graded", f"The check gave no verdict ({one_line(reply.get('ename', ''))}).", "Look at this one by hand."


def run_all(work: list[Row], seconds: float, sandbox: Sandbox | None, jobs: int, keep) -> None:
    """Run what needs a kernel and settle its row, and `keep` it; rows that are not reached stay "not graded".

    What ends early beside others may have been ended by what they took: it is run again, alone.
    """
    again, done = [], count(1)

    def run(row, alone=jobs == 1):
        start = time.monotonic()
        verdict = run_exercise(row.assignment, row.answer.code, seconds, sandbox)
        if not alone and verdict[0] in ("crashed", "not graded"):
            again.append(row)  # not settled: after Ctrl+C nobody is told what is doubted here
        else:
            row.settle(*verdict, time.monotonic() - start)
            keep(row)
            say(row, f"{next(done)} of {len(work)}: ")

    with ThreadPoolExecutor(jobs) as pool:  # on Ctrl+C it waits for those that run, and begins no other
        list(pool.map(run, work))
    for row in again:
        run(row, alone=True)


def say(row: Row, place="") -> None:
    """Tell in the terminal how an exercise went."""
    print(f"{place}{one_line(row.student)}, {row.notebook}, {row.exercise}: {row.status}", flush=True)


def grade(arguments: argparse.Namespace, sandbox: Sandbox | None) -> None:
    """Grade a folder, and write the results whatever happens on the way."""
    course, folder = read_course(arguments.only), arguments.folder.resolve()
    notebooks = [path.stem for path in notebooks_of(COURSE)]
    with tempfile.TemporaryDirectory(prefix="grade-") as scratch:
        found = Submissions(folder, notebooks, Path(scratch))
        if not arguments.only:
            handed_in = {notebook for student in found.students.values() for notebook in student.files}
            course = {notebook: asked for notebook, asked in course.items() if notebook in handed_in}
        tell(found, list(course), arguments.only)
        graded = {name: [] for name in found.students}
        for name, student in found.students.items():
            for notebook, (exercises, cells) in course.items():
                files = [file.path for file in student.counting(notebook)]
                answers = judge_submission(files, exercises, cells, sandbox)
                graded[name] += [Row(name, *one) for one in zip(exercises, answers, strict=True)]

    rows = list(chain(*graded.values()))
    for row in rows:
        if row.answer.status:
            row.settle(row.answer.status, row.answer.seen, row.answer.hint)
            if STATUSES[row.status][1] == "bad":
                say(row)
    results = new_folder(folder)
    work = [row for row in rows if not row.answer.status]
    try:
        keep = keep_rows(results, [row for row in rows if row.answer.status])
        run_all(work, arguments.seconds, sandbox, arguments.jobs, keep)
    except KeyboardInterrupt:
        sys.exit(f'grade: stopped. What was not reached is "not graded" in {results}.')
    finally:
        write_results(results, graded, found, sandbox is not None)
    print(f"{results}: class.html, grades.csv, exercises.csv, and in feedback/ a page for each student.")


@contextlib.contextmanager
def stops_as_by_hand():
    """Inside the `with`, a shutdown and a terminal that closes stop as Ctrl+C does; nohup stays nohup."""
    ends = [one for name in ("SIGTERM", "SIGHUP") if (one := getattr(signal, name, None))]  # Windows has no SIGHUP
    ends = {one: signal.getsignal(one) for one in ends if signal.getsignal(one) != signal.SIG_IGN}
    for one in ends:
        signal.signal(one, signal.default_int_handler)
    try:
        yield
    finally:
        for one, former in ends.items():
            signal.signal(one, former)


def tell(found, notebooks: list[str], only: list[str] | None) -> None:
    """Say in the terminal what counts, and what was not understood.

    Raises:
        SystemExit: if nobody handed in a notebook with exercises.
    """
    unread = [f"{one_line(name)}: {one_line(one)}" for name, own in found.students.items() for one in own.unread]
    unread += [f"nobody's: {one_line(one)}" for one in found.nobodys]
    if unread:
        print(f"Not understood, and not graded: {len(unread)}. Give notebooks the names that they have in the course,")
        print("in a folder for each student, or as student__02_rope.ipynb. class.html has all of these:")
        print(*(f"  {one}" for one in unread[:30]), sep="\n")
    for name, student in found.students.items():
        for said in student.remarks(notebooks):
            print(f"{one_line(name)}: {one_line(said, 500)}")
    if not notebooks:
        sys.exit("grade: no notebook of the course with exercises was handed in; such a name is 02_rope.ipynb.")
    nothing = [one_line(name) for name, own in found.students.items() if not own.files.keys() & set(notebooks)]
    if nothing:
        print(f"Handed in nothing that counts: {', '.join(nothing)}.")
    print(f"{len(found.students)} students; graded: {', '.join(notebooks)}", end="")
    print("." if only else " (name others with --only).", flush=True)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command's arguments, checked before anything runs."""
    parser = argparse.ArgumentParser(prog="python -m teaching.classroom.grade", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the submissions; a zip of the class: unpack it first")
    parser.add_argument("--only", nargs="+", metavar="NOTEBOOK", help="such as 01 05.4 (default: those handed in)")
    parser.add_argument("--jobs", type=int, default=1, help="exercises at the same time (default: 1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each exercise (default: 60)")
    parser.add_argument("--no-isolation", action="store_true", help="run students' programs as you, unprotected")
    chosen = parser.parse_args(arguments)
    if not chosen.folder.is_dir():
        parser.error(f"{chosen.folder} is no folder; is it a zip of the class? Then unpack it first.")
    if not (chosen.seconds > 0 and chosen.jobs > 0):
        parser.error(f"--seconds {chosen.seconds:g} and --jobs {chosen.jobs} must be above 0.")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    """Grade the folder that the command names, if students' programs can be isolated or need not be."""
    chosen = read_arguments(arguments)
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show stops nothing
    sandbox, fault = (None, "") if chosen.no_isolation else find_sandbox()
    if fault:
        sys.exit(f"Students' programs cannot be isolated: {fault}. Nothing was run.\n{REMEDY}")
    print("NOT ISOLATED: programs run as you, with your network and your files." if chosen.no_isolation else
          "Isolated by bubblewrap: no network, and no file but the course's packages.", flush=True)  # fmt: skip
    try:
        with stops_as_by_hand():
            grade(chosen, sandbox)
    except (OSError, ValueError) as error:
        sys.exit(f"grade: {one_line(error, 2000)}")
    except KeyboardInterrupt:
        sys.exit("grade: stopped.")


if __name__ == "__main__":
    main()
