"""Execute and clean the committed notebooks: `make notebooks` (those whose source changed), `make notebooks ALL=1`.

A notebook's source is never changed: only outputs, and the metadata that would differ on every run. The result is
written beside the notebook and renamed, so that a stop at any moment leaves the old file or the new one.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from tools.classroom.hand_out import notebooks_of, write_beside

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
KEPT_CELL_METADATA = {"tags", "jp-MarkdownHeadingCollapsed", "jupyter"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def source_hash(notebook) -> str:
    """Fingerprint of everything an author writes: cell types, sources and tags, in order."""
    parts = [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def clean(notebook):
    """Drop what differs between runs and machines; keep sources, tags, ids, counts, outputs and the kernel's name."""
    for cell in notebook.cells:
        cell.metadata = {key: cell.metadata[key] for key in sorted(KEPT_CELL_METADATA & cell.metadata.keys())}
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                data.pop(WIDGET_VIEW, None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "source_hash": source_hash(notebook),
    }
    notebook.nbformat_minor = 5


def _joined(outputs):
    """Neighbouring texts of one stream become one; an overwritten line, as of a progress bar, keeps its last state."""
    kept = []
    for output in outputs:
        if kept and output.output_type == kept[-1].output_type == "stream" and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    for output in kept:
        if output.output_type == "stream":
            output.text = "\n".join(line.rsplit("\r", 1)[-1] for line in output.text.split("\n"))
    return kept


def is_up_to_date(notebook) -> bool:
    """Whether the stored outputs were made from these sources."""
    return notebook.metadata.get("source_hash") == source_hash(notebook)


def execute(path: Path) -> float:
    """Run one notebook on the CPU and replace it by its executed, cleaned form; return the seconds it took."""
    notebook = nbformat.read(path, as_version=4)
    os.environ["COURSE_DEVICE"] = "cpu"
    start = time.perf_counter()
    config = Config(KernelManager={"transport_encryption": "auto"})  # otherwise ipykernel warns at every start
    settings = {"timeout": 600, "kernel_name": "python3", "record_timing": False, "config": config}
    for attempt in (1, 2, 3):
        try:
            NotebookClient(notebook, resources={"metadata": {"path": path.parent}}, **settings).execute()
            break
        except RuntimeError as error:  # another program has taken one of the kernel's ports
            if attempt == 3 or "Kernel died before" not in str(error):
                raise
    seconds = time.perf_counter() - start
    clean(notebook)
    nbformat.validate(notebook)
    write_beside(path, nbformat.writes(notebook) + "\n")
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="notebooks to run; default: all")
    parser.add_argument("--all", action="store_true", help="also those whose source did not change")
    arguments = parser.parse_args()
    for path in arguments.notebooks or notebooks_of(NOTEBOOKS):
        if not arguments.all and is_up_to_date(nbformat.read(path, as_version=4)):
            print(f"{path.name}: unchanged")
            continue
        print(f"{path.name}: {execute(path):.0f} s")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
