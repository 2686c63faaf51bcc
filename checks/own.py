"""The learner's own functions, out of the notebooks that they are written in: `my_parts()` finds those that pass.

The notebooks are read as files, as the grader does (checks/notebook.py): of each the functions of its exercises are run
and what these need, nothing else. A function is the learner's part if its check passes.
"""

import ast
import linecache
from collections.abc import Callable
from pathlib import Path

from checks.notebook import ENDING, Notebook, read_cells, read_notebook
from checks.parts import NOT_FOUND, Parts
from checks.run import undisturbed


def _checks_of(through):
    """The checks of a model's parts, and of what notebooks 05 to 07 ask to write; loaded, and their cases made, now."""
    from checks.apply_rope import check_apply_rope_halves
    from checks.gqa import check_causal_visible, check_gqa_layer, check_rows
    from checks.rmsnorm import check_rms_norm
    from checks.rope import check_rope_angles
    from checks.swiglu import check_swiglu

    parts = check_rms_norm, check_rope_angles, check_apply_rope_halves, check_swiglu, check_causal_visible, check_rows
    if through <= 4:
        return parts, ()
    from checks.generate import check_greedy_with_cache, check_judge, check_sample
    from checks.my_llama import check_my_llama
    from checks.train import check_accumulated_step, check_training_loop

    written = check_gqa_layer, check_my_llama, check_training_loop, check_accumulated_step
    return parts, (*written, check_sample, check_greedy_with_cache, check_judge)


def my_parts(folder: str | Path = ".", through: int = 4) -> Parts:
    """The learner's own parts, from the notebooks in a folder; the course's for those that are not there or not right.

    A notebook may have any name. One that cannot be read costs its own parts only, and is named.

    Args:
        folder: of the notebooks.
        through: 4 asks for the parts of a model; 7 for what notebooks 05 to 07 ask to write, too.
    """
    own, missing, notebooks, broken = {}, {}, {}, []
    for path in sorted(path for path in Path(folder).glob("*") if ENDING.search(path.name)):
        try:
            notebooks[path.name] = read_notebook(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            broken.append(path.name)
    where = f" Put your notebooks 01 to {through:02} beside this one (in Colab upload them: folder icon at the left), "
    nowhere = f"{NOT_FOUND}{where}then run this cell again."
    nowhere += f" {' and '.join(broken)} cannot be read." if broken else ""
    with undisturbed():
        parts, later = _checks_of(through)
    for check in (*parts, *later):
        name = check.exercise.name
        one, reasons = f"my_{name.removeprefix('my_')}", []
        for file in notebooks:
            function, why = define(notebooks[file], one, file)
            if function:
                if result := check(function):
                    own[name] = function
                    break
                why = f"its exercise in {file} does not pass. {result.message.splitlines()[0]}"
                if "NameError" in why:
                    why += " Only its cell and those above it are read: move what is missing there."
                if result.status == "todo":
                    why = _fault(notebooks[file], one, file) or f"its exercise in {file} {NOT_DONE}"
            if why:
                reasons.append(why)
        else:
            missing[name] = min(reasons or [nowhere], key=lambda why: why.endswith(NOT_DONE))  # better one that tried
    return Parts(own, missing, {check.exercise.name: check.exercise.specification for check in later})


NOT_DONE = "is not done yet."
LINES = "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F"
DEFAULT_IMPORTS = read_cells([LINES]).statements


def define(notebook: Notebook, name: str, file: str) -> tuple[Callable | None, str]:
    """The function of a notebook that has this name, or why it cannot be used; neither if it is not there."""
    if not (nodes := notebook.needs(name, DEFAULT_IMPORTS)):
        return None, _fault(notebook, name, file)
    where = f"<{name} in {file}>"
    text = "\n".join(notebook.cells)
    lines = [f"{line}\n" for line in text.split("\n")]
    linecache.cache[where] = len(text), None, lines, where  # so that errors show the line
    names = {"__name__": "__main__"}
    try:
        exec(compile(ast.Module(nodes, []), where, "exec"), names)
        return names[name], ""
    except (Exception, SystemExit) as error:
        return None, f"its cell in {file} does not run ({type(error).__name__}: {str(error)[:80]})."


def _fault(notebook, name, file):
    fault = notebook.fault_of(name)
    return f"its cell in {file} does not run. {fault}" if fault else ""
