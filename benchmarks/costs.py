"""What the course itself costs: time and memory of each notebook, time to import each helper. Prints markdown tables.

Nothing else should run meanwhile. Run: python benchmarks/costs.py (a few minutes; --quick leaves the notebooks out).
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def seconds_of(code, repeats=3):
    """Median seconds of a fresh Python that runs this code."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def notebook_cost(path):
    """Seconds to run a copy of a notebook, and the highest memory of its kernel [MB]."""
    code = (
        "import resource, sys; from pathlib import Path; from tests.make_notebooks import execute; "
        "seconds = execute(Path(sys.argv[1])); "
        "print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, folder)
        done = subprocess.run([sys.executable, "-c", code, copy], check=True, cwd=ROOT, capture_output=True, text=True)
    seconds, peak = done.stdout.split()
    return float(seconds), float(peak) / (1024 if sys.platform == "linux" else 1024**2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave the notebooks out")
    if not parser.parse_args().quick:
        print("| notebook | seconds | peak memory of its kernel [MB] |\n|---|---|---|")
        for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
            seconds, peak = notebook_cost(path)
            print(f"| {path.stem} | {seconds:.0f} | {peak:,.0f} |", flush=True)
        print()
    bare, torch_alone = seconds_of("pass"), seconds_of("import torch")
    print(f"Importing torch takes {torch_alone - bare:.1f} s. On top of it:\n")
    print("| helper | import [s] |\n|---|---|")
    for path in [*sorted((ROOT / "helpers").glob("*.py")), ROOT / "helpers" / "explorers"]:
        if path.stem != "__init__":
            more = seconds_of(f"import torch, helpers.{path.stem}") - torch_alone
            print(f"| {path.stem} | {max(0.0, more):.1f} |", flush=True)


if __name__ == "__main__":
    main()
