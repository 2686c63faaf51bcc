"""What the course itself costs: installing, importing, running each notebook, redrawing each explorer.

Nothing else should run meanwhile; about five minutes. Writes benchmarks/costs.md. Run: python benchmarks/costs.py
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import explorers  # benchmarks/explorers.py, beside this file, as is speed.py
from speed import machine

ROOT = Path(__file__).parent.parent


def run(*command, **settings):
    """Seconds that a command takes, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True, **settings)
    return time.perf_counter() - start, done.stdout


def seconds_of(code, repeats=3):
    """Median seconds of a fresh Python that runs this code."""
    return statistics.median(run(sys.executable, "-c", code)[0] for _ in range(repeats))


def installation():
    """Seconds to install the course into an empty environment (pip may use its cache), its size [GB], its PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        seconds, _ = run(f"{folder}/bin/python", "-m", "pip", "install", "--quiet", str(ROOT))
        size = sum(path.lstat().st_size for path in Path(folder).rglob("*"))
        build = "import torch; print(torch.__version__, 'for', 'CUDA' if torch.version.cuda else 'the processor')"
        _, built_for = run(f"{folder}/bin/python", "-c", build)
    return seconds, size / 1e9, built_for.strip()


def notebook_cost(path):
    """Seconds to run a copy of a notebook, and the highest memory of its kernel [MB]."""
    code = (
        "import resource, sys; from pathlib import Path; from tools.notebooks import execute; "
        "seconds = execute(Path(sys.argv[1])); "
        "print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            cell["metadata"].pop("claim", None)  # these are judged where outputs are stored
        copy.write_text(json.dumps(notebook), encoding="utf-8")
        seconds, peak = run(sys.executable, "-c", code, copy)[1].split()
    return float(seconds), float(peak) / (1024 if sys.platform == "linux" else 1024**2)


def report(quick):
    """The lines of the page."""
    yield "# What the course costs"
    yield ""
    yield f"`python benchmarks/costs.py`, {machine()}, with nothing else running."
    if not quick:
        seconds, size, built_for = installation()
        yield f"Installing into an empty environment: {seconds:.0f} s, {size:.1f} GB."
        yield f"(PyTorch as the index gives it: {built_for}.)"
        yield ""
        yield "| notebook | seconds | peak memory of its kernel [MB] |"
        yield "|---|---|---|"
        for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
            seconds, peak = notebook_cost(path)
            yield f"| {path.stem} | {seconds:.0f} | {peak:,.0f} |"
    yield ""
    yield from explorers.report()
    yield ""
    bare, torch_alone = seconds_of("pass"), seconds_of("import torch")
    yield f"Importing torch takes {torch_alone - bare:.1f} s. On top of it:"
    yield ""
    yield "| helper | import [s] |"
    yield "|---|---|"
    for path in [*sorted((ROOT / "helpers").glob("*.py")), ROOT / "helpers" / "explorers"]:
        if path.stem != "__init__":
            more = seconds_of(f"import torch, helpers.{path.stem}") - torch_alone
            yield f"| {path.stem} | {max(0.0, more):.1f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave the installation and the notebooks out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "costs.md", help="the page goes here")
    arguments = parser.parse_args()
    lines = []
    for line in report(arguments.quick):
        lines.append(line)
        print(line, flush=True)
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
