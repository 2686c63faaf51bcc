"""Bring the committed notebooks up to date: `make notebooks`, or `python -m tools.notebooks [NAMES] [--all] [--text]`.

Without names those are executed that differ from the last commit. Where helpers changed, the tests say which notebooks
show something else now: name these. Where only words changed, --text is enough: it executes none and keeps the outputs.

A cell whose text says something about a timing states it as metadata, `"claim": "cached < full"`. Outputs are stored
only if the claim is true in the kernel after the cell. A notebook's source is never changed.
"""

import argparse
import ast
import base64
import builtins
import io
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import ValidationError
from nbformat.v4 import new_output
from PIL import Image, ImageChops
from traitlets.config import Config

from tools.course import KEPT_CELL_METADATA, ROOT, changed_notebooks, notebooks_of, write_beside

NOTEBOOKS = ROOT / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_SECONDS = 600  # that a cell may take
INVISIBLE = 8  # of 255: how far a colour of a picture may move
FOLDS = {"source_hidden": "hide-input", "outputs_hidden": "hide-output"}  # JupyterLab's words, and other tools' tags
# JupyterLab shows a folded output's first line; that of this empty one is empty
EMPTY_OUTPUT = new_output("display_data")


class Stopped(Exception):
    """A cell did not come to its end, or what it claims does not hold."""


FAILURES = (Stopped, CellExecutionError, ValidationError, OSError, RuntimeError, ValueError, SyntaxError)


def clean(notebook) -> None:
    """Drop what differs between runs and machines; keep sources, tags, ids, counts and outputs.

    Fold the outputs between a cell tagged "predict" and the next text, and the code of cells tagged "figure",
    which only draw: a title would answer the question above. Explorers stay open: a learner is to find them. What is
    folded is tagged, too: MyST and Jupyter Book know the tags alone.
    """
    asked = False
    for cell in notebook.cells:
        cell.metadata = {key: cell.metadata[key] for key in sorted(KEPT_CELL_METADATA & cell.metadata.keys())}
        if cell.cell_type == "markdown":
            asked = "predict" in cell.metadata.get("tags", [])
            continue
        for output in cell.outputs:
            output.get("data", {}).pop(WIDGET_VIEW, None)  # whose widget is gone
        cell.outputs = [output for output in cell.outputs if output.get("data") != {}]  # also not EMPTY_OUTPUT
        tags = [tag for tag in cell.metadata.pop("tags", []) if tag not in FOLDS.values()]
        if "explore_" not in cell.source:
            folds = {"source_hidden": "figure" in tags, "outputs_hidden": asked and bool(cell.outputs)}
            if folded := {part: True for part, hidden in folds.items() if hidden}:
                cell.metadata["jupyter"] = folded
                tags += map(FOLDS.get, folded)
            if "outputs_hidden" in folded:
                cell.outputs.insert(0, EMPTY_OUTPUT)
        cell.metadata |= {"tags": tags} if tags else {}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat_minor = 5


def store(path: Path, notebook) -> bool:
    """Clean a notebook and write it, unless the file is so already; return whether it was written."""
    clean(notebook)
    nbformat.validate(notebook)
    text = nbformat.writes(notebook) + "\n"
    if differs := text != path.read_text(encoding="utf-8"):
        write_beside(path, text)
    return differs


def smaller(png: bytes) -> bytes:
    """A picture in 256 colours where nobody can see the difference, else in its own; never larger than it was."""
    picture, file, clear = Image.open(io.BytesIO(png)), io.BytesIO(), {}
    alpha = picture.convert("RGBA").getchannel("A")
    levels = {level for _, level in alpha.getcolors()}
    if picture.mode != "P" and levels <= {0, 255}:
        colours = picture.convert("RGB")
        palette = colours.quantize(257 - len(levels), Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        moved = ImageChops.difference(colours, palette.convert("RGB")).getextrema()
        if max(most for _, most in moved) <= INVISIBLE:
            picture = palette
            if 0 in levels:  # round corners: they take the colour that is left, a second white
                picture.putpalette((picture.getpalette() + [255] * 768)[:765] + [255] * 3)
                picture.paste(255, mask=ImageChops.invert(alpha))
                clear = {"transparency": 255}
    picture.save(file, "PNG", optimize=True, **clear)
    return min(png, file.getvalue(), key=len)


async def check_claim(client, cell, number: int) -> None:
    """Evaluate a cell's claim in the kernel that has just run the cell.

    Raises:
        Stopped: if it is not true; the text gives the values of its names and what to do.
    """
    claim = cell.metadata["claim"]
    named = [node for node in ast.walk(ast.parse(claim, mode="eval")) if isinstance(node, ast.Name)]
    bound = {node.id for node in named if isinstance(node.ctx, ast.Store)} | set(dir(builtins))
    wanted = [f"bool({claim})", *sorted({node.id for node in named} - bound)]
    sent = client.kc.execute("", silent=True, user_expressions={one: one for one in wanted})
    answers = (await client.async_wait_for_reply(sent))["content"]["user_expressions"]
    found = {
        one: answer["data"]["text/plain"] if answer["status"] == "ok" else f"{answer['ename']}: {answer['evalue']}"
        for one, answer in answers.items()
    }
    if found[wanted[0]] != "True":
        values = ", ".join(f"{one} = {' '.join(found[one].split())[:200]}" for one in wanted)
        raise Stopped(
            f"cell {number} claims {claim}, but {values}: the machine was busy, or the text is wrong: run it again "
            "with nothing else running, or change the text. Nothing was written."
        )


def execute(path: Path) -> float:
    """Run one notebook on the CPU and replace it by its executed, cleaned form; return the seconds it took.

    Raises:
        CellExecutionError: if a cell raises that does not say so with a tag; nothing is written then, nor below.
        Stopped: if new outputs contradict the text, or a cell ends its kernel or takes longer than CELL_SECONDS.
    """
    notebook = nbformat.read(path, as_version=4)
    os.environ["COURSE_DEVICE"] = "cpu"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as in `make lab`
    start, begun = time.perf_counter(), []
    settings = {"timeout": CELL_SECONDS, "kernel_name": "python3", "record_timing": False, "coalesce_streams": True}

    async def after(cell, cell_index, execute_reply):
        if "claim" in cell.metadata and execute_reply["content"]["status"] == "ok":
            await check_claim(client, cell, cell_index + 1)

    with tempfile.TemporaryDirectory() as place:
        manager = {"transport_encryption": "auto", "connection_file": f"{place}/kernel.json"}  # else ipykernel warns
        if os.name == "posix":
            manager["transport"] = "ipc"  # no port, which another program might take first
        client = NotebookClient(
            notebook, resources={"metadata": {"path": path.parent}}, config=Config(KernelManager=manager), **settings
        )
        client.on_cell_start = lambda cell, cell_index: begun.append(cell_index + 1)
        client.on_cell_executed = after
        try:
            client.execute()
        except DeadKernelError as error:
            what = "ended its kernel: did it call exit, or was memory full?"
            raise Stopped(f"cell {begun[-1]} {what} Nothing was written.") from error
        except CellTimeoutError as error:
            raise Stopped(f"cell {begun[-1]} takes longer than {CELL_SECONDS} s. Nothing was written.") from error
    seconds = time.perf_counter() - start
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "execution_count" in output:
                output.execution_count = cell.execution_count
            if png := output.get("data", {}).get("image/png"):
                output.data["image/png"] = base64.b64encode(smaller(base64.b64decode(png))).decode()
    store(path, notebook)
    return seconds


def main(arguments: list[str] | None = None) -> None:
    """Execute notebooks, or only clean them; one that fails does not stop the others.

    A line begins before its notebook does, so that it names what runs.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as 06_train, or 06 (default: what differs from the last commit)")
    parser.add_argument("--all", action="store_true", help="execute all of them")
    parser.add_argument("--text", action="store_true", help="execute none: only clean them (default: all)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.names or chosen.all or chosen.text:
            paths = notebooks_of(NOTEBOOKS, [Path(name).stem for name in chosen.names])
        else:
            paths = changed_notebooks(NOTEBOOKS)
    except ValueError as error:
        parser.error(f"{error} Name the notebooks, such as 06, or say --all.")
    if not paths:
        print("No notebook differs from the last commit: name those to execute, such as 06, or say --all.")
    failed = []
    for path in paths:
        print(f"{path.stem}: ", end="", flush=True)
        try:
            if chosen.text:
                print("cleaned, not executed" if store(path, nbformat.read(path, as_version=4)) else "unchanged")
            else:
                print(f"{execute(path):.0f} s")
        except FAILURES as error:
            print(f"failed. {error}", flush=True)
            failed.append(path.stem)
    if failed:
        sys.exit(f"Left as they were: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
