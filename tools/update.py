"""A newer version of the course under a learner's work: every answered function goes into the fresh notebook.

    python -m tools.update                       # make update: in a clone; fetches what is new
    python -m tools.update --from ../old         # make update FROM=../old: from an older folder, or a kept notebook

What a learner changed is first copied beside itself, under a dated name, and stays there. After a stop at any moment
the work is in the notebook or in that copy, and the next run says so. Answers are read as the grader reads them
(checks/notebook.py): what it finds before it finds after, with what it needs from other cells.

Exit status: 0 if everything is in the notebooks, 1 if something is not; it is named.
"""

import argparse
import ast
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from checks.notebook import (
    Notebook,
    Statement,
    is_stub,
    more_than_a_stub,
    read_cells,
    read_notebook,
    stored_cells,
    without_indent,
    without_prompts,
)
from tools import course
from tools.course import ROOT, UNREADABLE, notebooks_of, one_line

# ------------------------------------------------------------------------------------------ what is new


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """While one update runs, another raises ValueError. The lock goes when its process ends, however it ends."""
    with open(root / ".update.lock", "a") as file:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise ValueError("another update of this folder is running: wait until it has ended.") from error
        yield


def fetch(root: Path) -> list[Path]:
    """Bring a clone to the newest version; the copies of files that the learner changed, or that had a new one's name.

    Raises:
        ValueError: if nothing can be fetched or merged; every file is then as it was.
    """

    def names(*words):
        found = course.git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", *words)
        return [root / name for name in os.fsdecode(found).split("\0")[:-1]]

    course.git(root, "fetch", "--quiet")
    newest = course.git(root, "rev-parse", "@{upstream}").decode().strip()
    own, came = course.git(root, "rev-list", "--left-right", "--count", f"HEAD...{newest}").decode().split()
    if own != "0":
        raise ValueError("this clone has commits of its own: merge them yourself (git pull); nothing was changed.")
    if came == "0":
        return []
    changed = names("HEAD")
    in_the_way = [path for path in names("--diff-filter=A", "HEAD", newest) if path not in changed and path.is_file()]
    files = [*filter(Path.is_file, changed), *in_the_way]  # also what a stopped merge wrote
    kept = {path: copy for path in files if (copy := _kept(path, newest))}
    for path, copy in kept.items():
        print(f"{path.relative_to(root)}: yours is kept in {copy.relative_to(root)}", flush=True)
    try:
        if changed:
            course.git(root, "checkout", "--quiet", "HEAD", "--", *(str(path.relative_to(root)) for path in changed))
        for path in in_the_way:
            path.unlink()
        course.git(root, "merge", "--quiet", "--ff-only", newest)
    except BaseException:
        for path, copy in kept.items():
            course.copy_beside(copy, path)
        raise
    print(f"{came} change{'s' * (came != '1')} came; what is new: CHANGELOG.md", flush=True)
    return list(kept.values())


def _kept(path, newest):
    """A copy of a learner's file beside it, made now or before; None if the file is as the newest version has it."""
    data = path.read_bytes()
    with contextlib.suppress(ValueError):
        if course.committed(path, newest) == data:
            return None
    for copy in path.parent.glob("*_kept_*"):
        if copy.name.startswith(f"{path.stem}_kept_") and copy.read_bytes() == data:
            return copy
    course.copy_beside(path, copy := course.new_file(path))
    return copy


# ------------------------------------------------------------------------------------------ answers


@dataclass
class Old:
    """An older notebook of a learner, and what became of its answers."""

    path: Path
    notebook: Notebook
    cells: list[tuple[str, str]]  # type and text of each
    of: Path | None  # the notebook of the course that it is, if that can be told
    came: dict[str, set[int]] = field(default_factory=dict)  # functions, and the numbers of the code cells they took
    left: list[str] = field(default_factory=list)  # functions that did not, each with the reason

    def answer(self, name: str) -> Statement | None:
        """The statement that defines a function, if it is no stub."""
        found = self.notebook.definition(name)
        return found if found and not is_stub(found.node) else None


def _cells(data):
    """Type and text of each cell."""
    return [(cell["cell_type"], "".join(cell.get("source", cell.get("input", "")))) for cell in stored_cells(data)]


def _exercises(cells):
    """The functions that exercises ask for, each with the place of its cell among the code cells, and its text."""
    both = zip(cells, course.in_solutions(cells), strict=True)
    code = [(text, "" if inside else course.asks_for(text)) for (kind, text), inside in both if kind == "code"]
    return {name: (number, text) for number, (text, name) in enumerate(code) if name}


def read_old(files: list[Path], exercises: dict[Path, dict[str, str]]) -> tuple[list[Old], list[str]]:
    """Older notebooks, those that were saved last first; and what is wrong with files that cannot be read.

    Where its name does not tell what a file is, the `exercises` of each notebook of the course do.
    """
    old, broken = [], []
    for path in sorted(files, key=lambda path: (int(path.lstat().st_mtime), path.stem), reverse=True):
        try:
            notebook, cells = read_notebook(path.read_bytes()), _cells(path.read_bytes())
        except UNREADABLE as error:
            broken.append(f"{path}: cannot be read: {one_line(error, 80)}. Nothing is put back: mend it, or delete it.")
            continue
        named = [fresh for fresh in exercises if fresh.stem in path.name.lower()]
        define = [fresh for fresh in exercises if any(map(notebook.definition, exercises[fresh]))]
        old.append(Old(path, notebook, cells, [*named, *define, None][0]))
    return old, broken


def place(fresh: Path, old: list[Old]) -> None:
    """Put answers of older notebooks into the open exercises of a fresh one; an UNREADABLE one stays as it was."""
    data, came = fresh.read_bytes(), []
    stored, here, now = json.loads(data.decode("utf-8-sig")), _exercises(_cells(data)), read_notebook(data)
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    for name, (number, _) in here.items():
        there = [one for one in sorted(old, key=lambda one: one.of != fresh) if one.answer(name)]  # its own files first
        for one in old if not there else ():
            if one.of == fresh and (fault := one.notebook.fault_of(name)):
                one.left.append(f"{name} ({one_line(fault, 80).rstrip('.')})")
        if there and _is_empty(now, name, sources[number]):
            first, why = there[0], f"that of {there[0].path.name} was taken, the file that was saved last"
            taken = _sense(first.notebook.parts(name, []))
            if text := _text(first.notebook, name, sources, number, here):
                sources[number], code[number]["source"] = text, text.splitlines(keepends=True)
                code[number]["outputs"], code[number]["execution_count"] = [], None
                came.append((first, name))
            else:
                first.left.append(f"{name} (what it needs does not fit in)")
        else:
            taken, why = _sense(now.parts(name, []) or []), "its cell here is not empty any more"
            there = [one for one in there if one.of == fresh]
        for one in there:
            if _sense(one.notebook.parts(name, [])) != taken:
                one.left.append(f"{name} ({why})")
    if came:
        course.write_beside(fresh, json.dumps(stored, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    for one, name in came:
        one.came[name] = {part.cell for part in one.notebook.parts(name, [])}


def _is_empty(notebook, name, source):
    """Whether an exercise is as it was handed out: nobody has written into its cell, or answered in another."""
    found = notebook.definition(name)
    return found is not None and is_stub(found.node) and not more_than_a_stub(source)


def _text(old, name, sources, number, asked):
    """An exercise's cell with an old answer, and in front of it what it needs from other cells; None if that fails.

    The learner's own text is taken, if with it the reader finds in the new notebook what it found in the old one.
    """
    parts, home, stub = old.parts(name, []), old.definition(name).cell, sources[number]
    (wanted, imports), own = _sense(parts), old.cells[home - 1]
    if any(other in one.binds for one in old.statements if one.cell == home for other in asked if other != name):
        own = ""  # a cell with two exercises: each goes into its own

    def sense(text):
        new = read_cells([*sources[:number], text, *sources[number + 1 :]])
        found = new.definition(name)
        return _sense(new.parts(name, [])) if found and found.cell == number + 1 else ([], set())

    for text in dict.fromkeys((own, without_indent(without_prompts(own)), "")):
        others = [part for part in parts if part.cell != home or not text]
        there, lent = sense(_joined(text, stub, []))
        missing = [part for part in others if _imports(part) or ast.dump(part.node) not in there]
        for carried in (missing, others):
            made = _joined(text, stub, [_source_of(old, part, imports - lent) for part in carried])
            new, found = sense(made)
            if imports <= found and (new == wanted or (carried is others and new[-len(wanted) :] == wanted)):
                return made
    return None


def _sense(parts):
    """What an answer needs: its statements, in order, and what each of the names stands for that it imports."""
    read = {"*", "annotations"}.union(*(part.reads for part in parts))
    imports = {one for part in parts for name, one in _imports(part) if name in read}
    return [ast.dump(part.node) for part in parts if not _imports(part)], imports


def _imports(part):
    """(name, what it stands for) of each name of an import. The course may move its own: of those the name will do."""
    if not isinstance(part.node, ast.Import | ast.ImportFrom):
        return []
    module, found = getattr(part.node, "module", "") or "", []
    for alias in part.node.names:
        name = alias.asname or alias.name.partition(".")[0]
        ours = re.match(r"(helpers|checks)\b", module or alias.name)
        found.append((name, name if ours else f"{name} = {module}:{alias.name}"))
    return found


def _joined(answer, stub, carried):
    """A learner's cell with what it needs, and with the imports and the check of the fresh one."""
    lines = [line for line in answer.split("\n") if not re.match(r"check_\w+\(.*\)\s*$", line)]
    future = [number for number, line in enumerate(lines, 1) if line.startswith("from __future__ ")]
    below = [number for number, line in enumerate(lines) if line.strip() and not line.startswith("%%")]
    top = max(future) if future else [*below, len(lines)][0]
    imports = [one for one in carried if re.match("from |import ", one)]
    helpers = [f"\n\n{one}\n\n" for one in carried if one and one not in imports]
    imports += [line for line in stub.split("\n") if re.match("from |import ", line) and line not in lines]
    imports.sort(key=lambda line: not line.startswith("from __future__ "))
    check = stub.rstrip().split("\n")[-1]
    return "\n".join([*lines[:top], *imports, *helpers, *lines[top:]]).rstrip() + f"\n\n\n{check}"


def _source_of(notebook, part, imports):
    """A statement as the learner wrote it; of an import only these names."""
    node = part.node
    if names := _imports(part):
        aliases = [alias for alias, (_, one) in zip(node.names, names, strict=True) if one in imports]
        return ast.unparse(type(node)(**{**vars(node), "names": aliases})) if aliases else ""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    text = "\n".join("\n".join(notebook.cells).split("\n")[first - 1 : node.end_lineno])
    alone = [ast.dump(one.node) for one in read_cells([text]).statements] == [ast.dump(node)]
    return text if alone else ast.unparse(node)


# ------------------------------------------------------------------------------------------ what is said


def _report(one, asked):
    """Print what of an older notebook came, and what is there alone; whether all answers came.

    `asked` are the functions that the course asks for.
    """
    texts, statements, number, kept = set(), set(), 0, 0
    with contextlib.suppress(*UNREADABLE):  # also if there is none
        texts = {text for _, text in _cells(one.of.read_bytes())}
        statements = {ast.dump(part.node) for part in read_notebook(one.of.read_bytes()).statements}
    came, version, asks = set().union(*one.came.values()), _version(one), _exercises(one.cells).keys()
    for kind, text in one.cells:
        number += kind == "code"
        parts = [part for part in one.notebook.statements if kind == "code" and part.cell == number]
        said = {ast.dump(part.node) for part in parts if not ast.unparse(part.node).startswith("check_")}
        if not text.strip() or text in texts | version or (parts and number in came and said <= statements):
            continue
        kept += 1
        for part in parts:
            for name in sorted((part.binds & asks | {getattr(part.node, "name", "")}) - asked):
                if name.startswith("my_") and one.answer(name) == part:
                    one.left.append(f"{name} (no exercise here asks for it: it is only in {one.path.name})")
    words = [f"{', '.join(one.came) or 'nothing'} put back"]
    words += [f"not put back: {', '.join(one.left)}"] if one.left else []
    words += [f"only there{'' if version else ' or changed since'}: {kept} cell{'s' * (kept > 1)}"] if kept else []
    print(f"{one.of.name if one.of else one.path.name}: {'; '.join(words)}. All that you wrote: {one.path}")
    return not one.left


def _version(one):
    """The texts of the version of the course that a learner's notebook came from, if git has it."""
    for path, commit in (one.path, "HEAD"), (one.path.with_name(one.of.name if one.of else "-"), "ORIG_HEAD"):
        with contextlib.suppress(*UNREADABLE):
            return {text for _, text in _cells(course.committed(path, commit))}
    return set()


def _name_kept(root, exercises, known):
    """Print what is only in a copy that was kept, after a stop or a reset, or may be in one; whether nothing is."""
    files = [path for path in root.glob("notebooks/*_kept_*.ipynb") if path.stat().st_size and path not in known]
    (old, broken), only = read_old(files, exercises), {}
    for fresh, names in exercises.items():
        now = read_notebook(fresh.read_bytes()) if names else None
        for name, (_, source) in names.items():
            there = [one.path.relative_to(root) for one in old if one.of == fresh and one.answer(name)]
            if there and _is_empty(now, name, source):
                only.setdefault(there[0], []).append(name)
    for copy, names in only.items():
        print(f"{', '.join(names)}: only in {copy}. Put back: make update FROM={copy}. Not wanted: delete it.")
    print(*broken, sep="\n", end="\n" * bool(broken))
    return not only and not broken


def update(root: Path, source: Path | None) -> bool:
    """Bring what is new, or take a folder or notebook, and put its answers into the notebooks here; whether all are in.

    Raises:
        ValueError: if nothing new can be had, or there is no notebook of the course to take answers from.
    """
    with alone(root):
        if source:
            folder = source / "notebooks" if (source / "notebooks").is_dir() else source
            files = sorted(folder.glob("*.ipynb")) if folder.is_dir() else [folder] * (".ipynb" in folder.name)
        else:
            files = [path for path in fetch(root) if path.suffix == ".ipynb"]
        exercises = {}
        for fresh in notebooks_of(root / "notebooks"):
            exercises[fresh] = {}
            with contextlib.suppress(*UNREADABLE):
                exercises[fresh] = _exercises(_cells(fresh.read_bytes()))
        ours = {fresh.resolve() for fresh in exercises}
        old, broken = read_old([path for path in files if path.resolve() not in ours], exercises)
        if source and not broken and not any(one.of for one in old):
            raise ValueError(f"{source}: neither a folder with notebooks of the course nor one of them.")
        for fresh in exercises if old else ():
            try:
                place(fresh, old)
            except UNREADABLE as error:
                broken.append(f"{fresh}: cannot be read or written: {one_line(error, 80)}. Nothing is put into it.")
        print(*broken, sep="\n", end="\n" * bool(broken))
        asked = {name for names in exercises.values() for name in names}
        whole = [_report(one, asked) for one in old if one.of or not source]
        return all([not broken, *whole, bool(source) or _name_kept(root, exercises, files)])


def main(arguments: list[str] | None = None) -> None:
    """Update, and say in a sentence what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.update", description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, help="an older folder, or a notebook that was kept")
    try:
        whole = update(ROOT, parser.parse_args(arguments).source)
    except UNREADABLE as error:
        sys.exit(f"update: {error}")
    except KeyboardInterrupt:
        sys.exit("update: stopped. Do it again: what you wrote is in the notebooks or in the copies named here.")
    print("Is a notebook open in JupyterLab? Close its tab without saving, then open it again.")
    if not whole:
        sys.exit("Not everything that you wrote is in the notebooks: see above.")
    print("Up to date.")


if __name__ == "__main__":
    main()
