"""The notebooks, or the whole suite, on machines that differ: threads, vector widths, folders, homes, no network.

    python benchmarks/surroundings.py                                    every setting, notebooks only; about an hour
    python benchmarks/surroundings.py "no network" "two learners at once"  these
    python benchmarks/surroundings.py --suite --repeat 10 "as it is"     the whole suite, ten times in a row

Each result becomes a line of benchmarks/surroundings.md; lines of other settings stay as they are. Linux only: what
closes the network and write-protects folders is bubblewrap.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "benchmarks" / "surroundings.md"
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=600"]
OPEN = ["bwrap", "--dev-bind", "/", "/"]
HEAD = """# The same results in other surroundings

Written by `python benchmarks/surroundings.py`. "notebooks" are all eight under nbval, strict; "suite" is every test.

| setting | what ran | result | date |
|---|---|---|---|
"""


def pytest(*arguments, root=ROOT, prefix=(), **environment):
    """Start pytest in a checkout; everything it starts finds the helpers of that checkout."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)} | environment
    environment.pop("COURSE_NETWORK_LOG", None)
    command = [*prefix, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NBVAL, *arguments]
    return subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def side_by_side(what):
    """Two workers, each with whole files, as in `make test`."""
    return ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *what]


def checkout(folder: Path) -> Path:
    """A copy of what git tracks and of new files, in folder."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def with_environment(**environment):
    return lambda what, scratch: [pytest(*side_by_side(what), **environment)]


def no_network(what, scratch):
    return [pytest(*side_by_side(what), prefix=[*OPEN, "--unshare-net"])]


def empty_home(what, scratch):
    return [pytest(*side_by_side(what), HOME=str(scratch))]


def read_only_home(what, scratch):
    prefix = [*OPEN, "--ro-bind", str(scratch), str(scratch)]
    return [pytest(*side_by_side(what), prefix=prefix, HOME=str(scratch))]


def read_only_checkout(what, scratch):
    """The learner works on a copy of the notebooks; the checkout with the helpers cannot be written."""
    copy = shutil.copytree(ROOT / "notebooks", scratch / "notebooks")
    prefix = [*OPEN, "--ro-bind", str(ROOT), str(ROOT)]
    return [pytest(*side_by_side(["-p", "conftest", str(copy)]), prefix=prefix)]


def spaces_and_letters(what, scratch):
    copy = checkout(scratch / "Übungen für Zoë, 日本 (1)")
    return [pytest(*side_by_side(what), root=copy)]


def random_order(what, scratch, **environment):
    notebooks = [str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb")]
    random.shuffle(notebooks)
    print(*notebooks)
    return [pytest(*notebooks, **environment)]


def each_alone(what, scratch, **environment):
    return (pytest(str(path), **environment) for path in sorted((ROOT / "notebooks").glob("*.ipynb")))


def two_learners(what, scratch):
    """Two people run everything at once, from one checkout and one home."""
    return [pytest("notebooks"), pytest("notebooks")]


SETTINGS = {
    "as it is": with_environment(),
    "2 threads, avx2, each notebook alone": partial(each_alone, OMP_NUM_THREADS="2", ATEN_CPU_CAPABILITY="avx2"),
    "4 threads, random order, one process": partial(random_order, OMP_NUM_THREADS="4"),
    "vectors: none (ATEN_CPU_CAPABILITY=default)": with_environment(ATEN_CPU_CAPABILITY="default"),
    "vectors: avx512": with_environment(ATEN_CPU_CAPABILITY="avx512"),
    "no network": no_network,
    "empty home": empty_home,
    "read-only home": read_only_home,
    "read-only checkout, copied notebooks": read_only_checkout,
    "path with spaces and letters": spaces_and_letters,
    "two learners at once": two_learners,
}
NOTEBOOKS_ONLY = (each_alone, random_order, read_only_checkout, two_learners)  # whatever is asked for


def result_of(name, what):
    """What pytest printed last, of each process of a setting, and the output of those that failed."""
    if name == "vectors: avx512" and "avx512f" not in Path("/proc/cpuinfo").read_text():
        return "not run: this processor has none", ""
    ends, failed, start = [], "", time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for process in SETTINGS[name](what, Path(folder)):
            output = process.communicate()[0]
            last = re.findall(r"^=* ?(\d+ (?:passed|failed).*?) in [\d.]+s", output, re.M)
            ends.append(last[-1] if last else "no result")
            failed += output if process.returncode else ""
    minutes = (time.perf_counter() - start) / 60
    return f"{', '.join(ends)} in {minutes:.0f} min", failed


def note(name, what, result):
    """Put one line into the table."""
    lines = TABLE.read_text(encoding="utf-8")[len(HEAD) :].splitlines() if TABLE.exists() else []
    start = f"| {name} | {what} |"
    lines = [line for line in lines if not line.startswith(start)] + [f"{start} {result} | {date.today()} |"]
    TABLE.write_text(HEAD + "\n".join(sorted(lines)) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"one or more of: {', '.join(SETTINGS)}")
    parser.add_argument("--suite", action="store_true", help="the whole suite, not the notebooks alone")
    parser.add_argument("--repeat", type=int, default=1, help="how often in a row")
    chosen = parser.parse_args()
    if unknown := set(chosen.settings) - SETTINGS.keys():
        parser.error(f"{sorted(unknown)} are no settings: choose from {list(SETTINGS)}")
    for name in chosen.settings or SETTINGS:
        for turn in range(1, chosen.repeat + 1):
            run = getattr(SETTINGS[name], "func", SETTINGS[name])  # of a partial its function
            kind = "suite" if chosen.suite and run not in NOTEBOOKS_ONLY else "notebooks"
            what = f"{kind}, run {turn} of {chosen.repeat}" if chosen.repeat > 1 else kind
            result, failed = result_of(name, [] if kind == "suite" else ["notebooks"])
            print(f"{name}, {what}: {result}", failed, sep="\n", flush=True)
            note(name, what, result)


if __name__ == "__main__":
    main()
