"""What was handed in: whose file is which notebook, under the names that browsers, mail and platforms leave.

docs/teaching.md (2. Collect) says how a folder of submissions may look; LAYOUTS in teaching/tests/test_submissions.py
has every kind of name. What is wrong with a zip costs the one who handed it in. Nothing in the folder is written to or
run.
"""

import errno
import io
import os
import re
import tempfile
import time
import unicodedata
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from tools.course import one_line
from tools.hand_out import COPIED, HANDOUT

LARGEST_FILE = 50_000_000  # bytes of a notebook
LARGEST_UNPACKED = 2**29  # bytes that the zips of one entry of a class's folder together may need
LARGEST_CLASS = 2**33  # bytes that all of them may take on the disk: more stops the run
LARGEST_LIST = 2**24  # bytes of the list of files at the end of a zip
MOST_FILES = 100_000  # in the zips of one entry together
DEEPEST = 3  # zips inside zips
COPY = r"(?:copy|kopie|copie|c[oó]pia|kopia|kopi|копия|副本|コピー)"  # as systems say it in other languages
COPY_OF = rf"(?:{COPY}[ _]\w{{2,3}}[ _])*"  # "Copy of ", "Kopie von ", Colab's "Copy_of_"
AGAIN = rf"(?:[ _–-]*(?:\(\d+\)|{COPY} ?\d*|\d{{1,3}}))*+"  # " (1)", "-1", " - Copy (2)", "-Copy1"
ENDING = r"(?:\.ipynb)+(?:\.txt|\.json)?"  # mail and some browsers add one; where endings are hidden, people do
UNPACKED = re.compile(rf"(?:{ENDING}|\.zip)$", re.I)
OWNERS = (  # who, and the name that the file had
    r"(.+)_assignsubmission_(?:file|onlinetext)_?(.*)",  # Moodle
    r"(?:LATE_)?(anon_\w+?)_\d+_(.+)",  # Canvas, names hidden
    r"(.+?)(?:_LATE)?(_\d+)_\d+_(.+)",  # Canvas
    r"(.+)__(.*)",
)
NOT_THEIRS = {Path(name).parts[0] for name in COPIED} | {path.name for path in HANDOUT.iterdir()}  # was handed out


@dataclass(frozen=True)
class File:
    """A notebook that was handed in."""

    path: Path
    shown: str  # where it was found, from the folder of submissions on: "anna.zip/02_rope.ipynb"
    date: tuple  # when it was saved last [s], then the numbers in its name: of 02_rope and 02_rope (1), the second


@dataclass
class Student:
    """What somebody handed in."""

    page: str  # name of the page of feedback
    files: dict = field(default_factory=dict)  # notebook: its files
    unread: list = field(default_factory=list)  # what was not understood, and why

    def counting(self, notebook: str) -> list[File]:
        """The files of a notebook, oldest first: the last one counts."""
        return sorted(self.files.get(notebook, []), key=lambda file: file.date)

    def remarks(self, notebooks: list[str]) -> list[str]:
        """Sentences on notebooks that were handed in more than once."""
        said = []
        for notebook in filter(self.files.get, notebooks):
            *others, last = self.counting(notebook)
            if others:
                not_those = ", ".join(file.shown for file in others)
                said.append(f"{notebook} was handed in {len(others) + 1} times: {last.shown} counts, not {not_those}.")
        return said


def owner(name: str) -> tuple[str, str]:
    """Whose file a name says it is, and the file's own name; ("", name) if it does not say."""
    for pattern in OWNERS:
        if found := re.fullmatch(pattern, name, re.S):
            *who, own = found.groups()
            return "".join(who), own
    return "", name


def hidden(name: str) -> bool:
    """Whether a program, not a student, put this there."""
    return name.startswith(".") or name in ("__MACOSX", "__pycache__") or name.endswith(".egg-info")


class ZipFile(io.FileIO):
    """A zip that was handed in. `zipfile` reads the list of its files at once, however long it says to be."""

    def read(self, size=-1):
        """The next bytes."""
        if size > LARGEST_LIST:
            raise ValueError(f"its list of files has more than {LARGEST_LIST:,} bytes")
        return super().read(size)


class Submissions:
    """The students of a folder of submissions, and the files that are nobody's.

    Links are not followed; zips are unpacked below `scratch`. `notebooks` are the course's, without ending.

    Raises:
        ValueError: if nobody handed in anything.
    """

    def __init__(self, folder: Path, notebooks: list[str], scratch: Path):
        self.students, self.nobodys = {}, []
        self._scratch, self._pages, self._written = scratch, set(), 0
        self._pattern = re.compile(rf"{COPY_OF}({'|'.join(notebooks)}){AGAIN}{ENDING}", re.I)
        for entry in sorted(folder.iterdir()):
            (who, own), name = owner(entry.name), entry.name
            self._left, self._files_left = LARGEST_UNPACKED, MOST_FILES  # of this entry's zips
            if hidden(name):
                continue
            if entry.is_dir():
                self._read_folder(self._student(who or name, name), entry, name)
            elif who:
                self._read_file(self._student(who, name), entry, own, name)
            elif entry.suffix.lower() == ".zip":
                self._read_file(self._student(re.sub(r" ?\(\d+\)$", "", entry.stem), name), entry, name, name)
            else:
                self.nobodys.append(name)
        if not self.students:
            seen = f" (found: {', '.join(map(one_line, self.nobodys[:5]))})" if self.nobodys else ""
            raise ValueError(
                f"{folder} holds neither folders of students nor files like anna__{notebooks[0]}.ipynb{seen}: give the "
                "folder that holds them."
            )
        self.students = dict(sorted(self.students.items(), key=lambda one: one[0].casefold()))

    def _student(self, who, name):
        if who not in self.students:
            page = f"{who}_assignsubmission_file_feedback" if "_assignsubmission_" in name else who  # as Moodle wants
            self.students[who] = Student(self._new_page(page))
        return self.students[who]

    def _new_page(self, name):
        """A name for a page. On macOS and Windows two names that differ in capitals only are one file."""
        page, count = f"{name}.html", 1
        while (key := unicodedata.normalize("NFC", page).casefold()) in self._pages:
            count += 1
            page = f"{name} ({count}).html"
        self._pages.add(key)
        return page

    def _read_folder(self, student, folder, shown):
        def unreadable(error):
            student.unread.append(f"{shown} ({error.strerror}: {Path(error.filename).name})")

        if folder.is_symlink():
            student.unread.append(f"{shown} (a link)")
            return
        for place, folders, names in os.walk(folder, onerror=unreadable):
            folders[:] = sorted(one for one in folders if not hidden(one))
            for one in sorted([*names, *(one for one in folders if one.endswith(".ipynb"))]):
                inside = Path(place, one).relative_to(folder)
                if not _handed_out(inside) or self._pattern.fullmatch(unicodedata.normalize("NFC", one)):
                    self._read_file(student, folder / inside, one, f"{shown}/{inside}")

    def _read_file(self, student, path, name, shown):
        """Sort one file in; name is the one that the student gave it."""
        file = File(path, shown, (int(path.lstat().st_mtime), *map(int, re.findall(r"\d+", name))))
        if found := self._pattern.fullmatch(unicodedata.normalize("NFC", name)):
            student.files.setdefault(found[1].lower(), []).append(file)
        elif name.lower().endswith(".zip") and shown.lower().count(".zip/") < DEEPEST:
            self._read_folder(student, self._unpack(student, path, shown), shown)
        elif not hidden(name):
            student.unread.append(shown)

    def _unpack(self, student, path, shown):
        """A folder with what is in a zip, with its dates; why something is not there stands in the student's `unread`.

        Notebooks and zips are unpacked; of all else there is an empty file.
        """
        place = Path(tempfile.mkdtemp(dir=self._scratch))
        if path.is_symlink() or not path.is_file():  # a pipe would be waited for
            student.unread.append(f"{shown} ({'a link' if path.is_symlink() else 'not a file'})")
            return place
        try:
            with ZipFile(path) as file, zipfile.ZipFile(file) as archive:
                files = list(_files_in(archive))
                self._files_left -= len(files)
                if self._files_left < 0:
                    raise ValueError(f"the zips hold more than {MOST_FILES:,} files")
                if sum(info.file_size for info, inside in files if UNPACKED.search(inside.name)) > self._left:
                    raise ValueError(f"the zips unpack to more than {LARGEST_UNPACKED:,} bytes")
                for info, inside in files:
                    try:
                        self._put(archive, info, inside, place)
                    except Exception as error:  # one broken file costs no other
                        student.unread.append(f"{shown}/{inside} ({_why(error)})")
        except Exception as error:  # whatever a broken, locked or hostile file does to zipfile
            student.unread.append(f"{shown} ({_why(error)})")
        if self._written > LARGEST_CLASS:
            raise ValueError(f"with {shown} the zips have unpacked to more than {LARGEST_CLASS:,} bytes: look at it")
        return place

    def _put(self, archive, info, inside, place):
        """Unpack a file, or leave an empty one in its place."""
        if UNPACKED.search(inside.name):
            made = archive.extract(info, place)
            size = os.path.getsize(made)  # the zip says whatever its sender wants
            self._left, self._written = self._left - size, self._written + size
            saved = time.mktime((*info.date_time, 0, 0, -1))
            os.utime(made, (saved, saved))
        elif not _handed_out(inside):
            folder = zipfile.ZipInfo(f"{inside.parent.as_posix()}/")
            Path(archive.extract(folder, place), inside.name).touch()  # below `place`, and nowhere else


def _files_in(archive):
    """(its entry, where it lies) of each file in a zip; the entry's name is a path that leaves no folder."""
    for info in archive.infolist():
        parts = [part for part in re.split(r"[/\\]", info.filename) if part not in ("", ".", "..")]
        folder = info.filename.endswith(("/", "\\"))  # Windows' own mark, which some programs write
        if parts and not folder and not any(map(hidden, parts)):
            info.filename = "/".join(parts)
            yield info, Path(info.filename)


def _why(error):
    """Why something is not unpacked. A full disk is the machine's fault, and stops the run."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        raise error
    said = one_line(error, 100)
    return said if said.startswith("the zips ") else f"cannot be unpacked: {said}"


def _handed_out(inside):
    """Whether a file lies in a folder that was handed out, or is one that was."""
    return bool(NOT_THEIRS & set(inside.parts)) or any(map(hidden, inside.parts))
