"""Gather the notebooks of the class server's students into a folder that can be graded.

    make -C teaching/classroom/server collect FOLDER=../handed-in ARGS="--only 01 02"

Reads the hub's settings CLASS_STUDENTS and CLASS_STATE, and writes FOLDER/student/02_rope.ipynb with the date of the
student's file. Nothing is overwritten: a notebook that has changed since it was gathered is put beside it as
02_rope-1.ipynb, and grading takes the one with the latest date. The homes are only read, and no link in them is
followed, so that nobody hands in a file of somebody else.
"""

import argparse
import itertools
import os
import stat
import sys
from pathlib import Path

from teaching.classroom.handed_in import LARGEST_FILE, name_pattern
from tools.course import ROOT, notebooks_of, one_line

HERE = Path(__file__).parent


def open_below(home: Path, *parts: str) -> int:
    """Descriptor of a file or folder below a home, links not followed.

    Raises:
        OSError: if it is not there, or a link is on the way.
    """
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        above = descriptor
        try:
            descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def put(folder: Path, name: str, text: bytes, date: float) -> bool:
    """Write a notebook beside those that are there; whether it is new.

    Args:
        date: when it was saved last [s].
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem, ending = name[: -len(".ipynb")], ".ipynb"
    for count in itertools.count():
        path = folder / f"{stem}{f'-{count}' if count else ''}{ending}"
        if path.is_file() and path.read_bytes() == text:
            return False
        if not os.path.lexists(path):
            path.write_bytes(text)
            os.utime(path, (date, date))
            return True


def gather(home: Path, folder: Path, notebooks: list[str]) -> tuple[int, int]:
    """Put a student's notebooks into a folder: how many were found, and how many of them are new.

    Raises:
        OSError: if the home cannot be read, or has no copy of the course.
    """
    place, pattern, found, new = open_below(home, "llama-notebooks", "notebooks"), name_pattern(notebooks), 0, 0
    try:
        names = sorted(os.listdir(place))
    finally:
        os.close(place)
    for name in names:
        if not pattern.fullmatch(name) or not name.endswith(".ipynb"):
            continue
        try:
            with open(open_below(home, "llama-notebooks", "notebooks", name), "rb") as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST_FILE:
                    print(f"{one_line(home.name)}: {one_line(name)} is no file, or too large. Not gathered.")
                    continue
                new += put(folder, name, file.read(LARGEST_FILE), about.st_mtime)
                found += 1
        except OSError as error:
            print(f"{one_line(home.name)}: {one_line(name)} is not gathered: {error.strerror}.")
    return found, new


def main(arguments: list[str] | None = None) -> None:
    """Gather from every student of the hub's list, and say what was found."""
    parser = argparse.ArgumentParser(prog="collect", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to; it may hold what was gathered before")
    parser.add_argument("--only", nargs="+", metavar="NOTEBOOK", default=[], help="such as 01 02 (default: all)")
    chosen = parser.parse_args(arguments)
    names_file = Path(os.environ.get("CLASS_STUDENTS", HERE / "students.txt"))
    state = Path(os.environ.get("CLASS_STATE", Path.home() / ".llama-hub"))
    if not names_file.is_file():
        sys.exit(f"collect: {names_file} is missing. Point CLASS_STUDENTS to the file with the names, as for the hub.")
    try:
        stems = [path.stem for path in notebooks_of(ROOT / "notebooks", chosen.only)]
    except ValueError as error:
        sys.exit(f"collect: {error}")
    names = sorted({line.strip().lower() for line in names_file.read_text(encoding="utf-8").splitlines()} - {""})
    found = new = 0
    for name in names:
        homes = [home for home in (state / "homes" / name, Path("/var/lib", name)) if home.exists()]
        try:
            if not homes:
                print(f"{name}: no home in {state / 'homes'} or /var/lib. Never logged in?")
                continue
            counts = gather(homes[0], chosen.folder / name, stems)
            found, new = found + counts[0], new + counts[1]
        except OSError as error:
            print(f"{name}: {homes[0]} cannot be read ({error.strerror}). Not root, or no copy of the course in it?")
    print(f"{chosen.folder}: {len(names)} students, {found} notebooks, {new} of them new.")


if __name__ == "__main__":
    main()
