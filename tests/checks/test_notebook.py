"""One reader for `my_parts` and the grader: notebooks as learners leave them, read in good time."""

import io
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from checks import my_parts, notebook
from tests.support.course import ROOT
from tests.support.messy import FILES
from tests.support.submissions import NORM

MAGICS = "\n".join(["%time 1" + " " * 370] * 499)


@pytest.mark.parametrize("label", FILES)
def test_my_parts_takes_what_a_messy_notebook_holds(label, tmp_path):
    data, (_, wanted) = FILES[label]
    (tmp_path / f"{NORM}.ipynb").write_bytes(data)
    with redirect_stdout(io.StringIO()):
        assert wanted in repr(my_parts(tmp_path))


DEF = "def f(x):\n    return x"
CELLS = [  # which IPython runs, or does not
    ">>> def f(x):\n...     return x\n... \n>>> f(1)\n1", f">>> {DEF}", "    >>> def f(x):\n    ...     return x",
    f"import math\n>>> {DEF}", "... def f(x):\n...     return x", "%%time\n>>> f = lambda x: x",
    "In [1]: def f(x):\n   ...:     return x\n   ...: ", "In [12]: import math\nIn [13]: f = abs",
    f'%time 1\n{DEF}\nclass Dots:\n    """\n    >>> 1\n    """\n    ...', "a = f = abs\nf = %time 1",
    "%time f = lambda x: x", "%prun f = abs", "%time def f(x): return x", f"%time {DEF}", "%timeit -n1 -r1 f = abs",
    "%%timeit -n1 -r1\nf = abs", "%%capture out\nf = abs", "%%writefile /dev/null\nf = abs",
    f"{DEF}\ny = f?", f"a = [abs]\n{DEF}\na[0]?", f"{DEF}\nlen(f.__name__)?", f"{DEF}\nf*?", f"{DEF}\n,f a",
    f"{DEF}\n;f a",
    f"{DEF}\n/f 1", f"a = {{}}\na['k'] = !true\n{DEF}", f"y = ! true\n{DEF}", f"!true\nz = 1\nw = f'{{z=!r}}'\n{DEF}",
    f"def g():\n    %time y = 1\n{DEF}", f"\ufeff{DEF}", f"\x0c{DEF}", f"{DEF}\n# a\u2028%b\n%time 1",
    "import asyncio\nf = await asyncio.sleep(0, abs)", f"{DEF}\nls", "def f(x):\n\u00a0   return x",
]  # fmt: skip


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_defines_what_ipython_defines(cell):
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        shell.run_cell(cell, store_history=False, silent=True)
    assert (notebook.read_cells([cell]).definition("f") is not None) == ("f" in shell.user_ns)


CHANGES = [  # of a table in place, in a cell above the function that reads it
    "t[0], t[1] = (1.0, 2.0)", "torch.nn.init.constant_(t[:2], 1.0)", "_ = t[0].copy_(torch.tensor(2.0))", "t.add_(1)",
    "torch.add(t, 1, out=t)", "setattr(t, 'note', 1)", "vars(t).update(note=1)",
    "vars(t)['note'] = 1", "if True:\n    t[0] = 1", "t.note = 1\ndel t.note",
    "_ = print(t.fill_(3))", "up = t\nup[1] = 1", "up = t[1:]\nup += 1\nup.add_(1)", "a, b = t, 0\na[0] = 2",
    "for one in (t, t):\n    one[0] += 1",
    "def fill(table):\n    table[0] = 1\nfill(t)", "def fill():\n    t[0] = 1\nfill()",
    "def put(x):\n    x[0] = 5\n    return x\nn = put(t)",
    "def term(g):\n    t[2] = g()\n    return g\n@term\ndef three():\n    return 3.0",
    "up = t\nup += 1", "for i, one in enumerate(t):\n    one += i", "(up := t)[0] = 1",
    "def fill(table):\n    table[0] = 1\ndef both(table):\n    fill(table)\nfor i in range(2):\n    both(t)",
    "def fill():\n    up = t\n    up[0] = 1\ngo = fill\ngo()", "def grow():\n    global t\n    t = t + 1\ngrow()",
    "def put(v):\n    t[0] = v\n_ = list(map(put, (1.0, 2.0)))", "put = lambda x, v: x.add_(v)\nput(t, 2)",
    "class Fill:\n    def run(self, table):\n        table[0] = 3\nn = Fill().run(t)",
]  # fmt: skip


REGISTER = "class Register(list):\n    def __call__(self, g):\n        self.append(g)"
TABLE = "table = {'a': [1], 'b': [2]}"
ABOVE = {  # cells above f, and what f returns
    "a registry that is an object": ([f"{REGISTER}\nterms = Register()", "@terms\ndef g():\n    pass"], "len(terms)"),
    "by subclass": (["class A:\n    pass", "class B(A):\n    pass", "class C(B):\n    pass"],
                    "len(A.__subclasses__()[0].__subclasses__())"),
    "by instance": (["a = []\nclass Rule:\n    def __init__(self):\n        a.append(self)", "Rule()"], "len(a)"),
    "by type": (["import functools\n@functools.singledispatch\ndef d(x):\n    return 0",
                 "_ = d.register(int, lambda x: 7)"], "d(1)"),
    "in a comprehension": (["a = []", "[a.append(i) for i in range(3)]"], "a"),
    "popped": ([TABLE, "last = table.pop('a')"], "table"),
    "entries, in a loop": ([TABLE, "for name, row in table.items():\n    row += [name]"], "table"),
    "a heap": (["import heapq\na = [5]", "heapq.heappush(a, 2)"], "a"),
    "partial": (["from functools import partial\na = []\ndef put(to, v):\n    to.append(v)",
                 "go = partial(put, a)\ngo(3)"], "a"),
    "the name of a loop, used before it is bound anew": (["for k in (1, 2):\n    pass\ny = k\nk = 9"], "y"),
    "bound again and again": (["k = 1\ndef g():\n    return k\ny = g()\nk = 2\nz = g()\nk = 7"], "(y, z, k)"),
    "an experiment that fails": (["def g(x):\n    return x / 2", "g('a')"], "g(1)"),
    **{change: (["import torch\nt = torch.zeros(3)", f"{change}\nprint(t)"], "(t.tolist(), vars(t))")
       for change in CHANGES},
}  # fmt: skip


@pytest.mark.parametrize("label", ABOVE)
def test_what_an_answer_reads_is_as_the_cells_leave_it(label):
    cells, returned = ABOVE[label]
    needs, some, all_of_it = notebook.read_cells([*cells, f"def f():\n    return {returned}"]).needs("f", []), {}, {}
    assert "print(t)" not in [notebook.ast.unparse(node) for node in needs]
    exec(compile(notebook.ast.Module(needs, []), "needs", "exec"), some)
    for cell in cells:
        with suppress(TypeError):
            exec(cell, all_of_it)
    assert some["f"]() == eval(returned, all_of_it)


LATER = {  # definitions below a right one, and what the kernel's f gives then
    "f = undefined(3)": 1, "@undefined\ndef f(x):\n    return 2": 1, "def f(x, y=undefined):\n    return 2": 1,
    "from nowhere import f": 1, "f = undefined(f)\nf = undefined(3)": 1, "K = undefined\nf = abs if K else 0": 1,
    "g = f\nf = lambda x: g(x) + 1": 2, "f = abs": 0, "def f(x):\n    return 3": 3, "f = undefined(3)\nf = abs": 0,
}  # fmt: skip


@pytest.mark.parametrize("later", LATER)
def test_a_definition_that_fails_leaves_the_one_above_it(later):
    cells = ["def f(x):\n    raise NotImplementedError", "def f(x):\n    return x + 1", *later.split("\nf =", 1)]
    cells[3:] = [f"f ={cell}" for cell in cells[3:]]
    needs, names = notebook.read_cells(cells).needs("f", []), {}
    exec(compile(notebook.ast.Module(needs, []), "needs", "exec"), names)
    assert names["f"](0) == LATER[later]
    assert "NotImplementedError" not in "".join(map(notebook.ast.unparse, needs))


def test_an_answer_that_reads_an_object_of_the_course_takes_no_demonstration_along():
    read = notebook.read_notebook((ROOT / "notebooks" / "05_full_model.ipynb").read_bytes())
    assert len(read.parts("my_llama_solved", [])) < 10


def test_the_name_of_a_loop_is_not_asked_for_elsewhere():
    cells = ["for kind in 'ab':\n    print(kind)", "t = {}\nfor kind in 'cd':\n    t[kind] = 1\ndef f():\n    return t"]
    assert [one.cell for one in notebook.read_cells(cells).parts("f", [])] == [2, 2, 2]
    cells = [cells[0], "kind = 1\ndef f():\n    return kind"]
    assert [one.cell for one in notebook.read_cells(cells).parts("f", [])] == [2, 2]


@pytest.mark.parametrize("cell", ["%%writefile f.py\n" + DEF, f">>> {DEF})", "async def  f(x)", "f: int = ("])
def test_a_function_in_a_cell_that_is_not_python_is_told_as_such(cell):
    found = notebook.read_cells([cell])
    assert not found.definition("f")
    assert found.fault_of("f").startswith("Code cell 1 is not Python: ")
    assert not found.fault_of("g")


BUSY = [
    MAGICS, "'''\\" + "(" * 190_000, "%a \\\n" * 60_000, "a. " * 60_000, "((" * 90_000, " " * 190_000 + "?",
    ";a\n" * 30_000, "%time ((((((\n" * 15_000, "a['b']" * 33_000 + "!", "." * 190_000, ">>> (\n" * 30_000,
    "(\n" + "f\n" * 90_000,
]  # fmt: skip


@pytest.mark.parametrize("cell", BUSY)
def test_a_cell_made_to_keep_a_reader_busy_does_not(cell):
    start = time.process_time()
    notebook.read_cells([cell]).fault_of("f")
    assert time.process_time() - start < 2  # 0.3 alone; minutes where it is kept busy


def test_the_reader_needs_no_other_file_of_ours_and_no_torch():
    """It starts in a moment inside the grader's walls, for every notebook anew."""
    code = f"import runpy, sys; runpy.run_path({notebook.__file__!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "checks", "helpers", "IPython"} & set(loaded.split())
