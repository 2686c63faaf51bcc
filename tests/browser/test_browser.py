"""JupyterLab in a real browser: explorers moved by key, answers folded until their run, figures' code until a click.

One notebook runs as a learner runs it, from top to bottom; of the others only the cells that its explorers need.
"""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.support.lab import END_KERNELS, OUTPUTS, choose, explorers_in, jupyter_lab, opened, run_all, visit

pytestmark = pytest.mark.browser

PATHS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
NOTEBOOKS = {path.name: path for path in PATHS if explorers_in(path)}
WHOLE = min(NOTEBOOKS)
LEVEL = """
from explorers import Explorer, new_figure, slider

figure, ax = new_figure(1)
Explorer(figure, lambda level: f"{level:.1f}", {"level": slider("level", 0, 0, 5)}, "a line")
"""


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """A browser, the address and token of a JupyterLab, and the folder of its notebooks."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "notebooks").mkdir()
    place = f"--ServerApp.root_dir={folder / 'notebooks'}"
    with jupyter_lab(folder, place) as (_, address, _):
        yield browser, *address.split("/lab?token="), folder / "notebooks"


def write(path, cells):
    """A notebook of these cells; without the kernel's name JupyterLab would ask for it in a dialog."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_explorers_of_a_notebook_answer(lab, name):
    setup, *cells = (c for c in nbformat.read(NOTEBOOKS[name], as_version=4).cells if c.cell_type == "code")
    needed = cells if name == WHOLE else [cell for cell in cells if "explore_" in cell.source and "()" in cell.source]
    *where, folder = lab
    cells = [new_code_cell(cell.source, metadata=cell.metadata) for cell in (setup, *needed)]
    assert visit(*where, write(folder / name, cells)) == ([], len(explorers_in(NOTEBOOKS[name])))


def test_no_answer_is_seen_before_its_cell_is_run(lab):
    *where, folder = lab
    for path in PATHS:
        stored = shutil.copy(path, folder / f"stored_{path.name}")
        code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code" and cell.outputs]
        folds = [cell.metadata.get("jupyter", {}) for cell in code]
        folded = ["outputs_hidden" in fold for fold in folds]
        page = opened(*where, stored)
        drawn = "cell => cell.shown || cell.fold !== undefined"
        page.wait_for_function(f"size => ({OUTPUTS})().filter({drawn}).length === size", arg=len(code))
        seen = [cell for cell in page.evaluate(OUTPUTS) if cell["shown"] or cell["fold"] is not None]
        assert [not cell["shown"] for cell in seen] == folded, path.name
        assert [cell["code_folded"] for cell in seen] == ["source_hidden" in fold for fold in folds], path.name
        assert not any(cell["fold"] for cell in seen), path.name
        assert any(folded), path.name
        page.evaluate(END_KERNELS, where[2])
        page.close()


def test_run_all_leaves_the_solutions_folded(lab):
    """It ends in the last cell, whose section unfolds: so behind the solutions stands a page of its own."""
    *where, folder = lab
    fold, heights = {"jp-MarkdownHeadingCollapsed": True}, []
    solved = [new_code_cell("1"), new_markdown_cell("## Solutions", metadata=fold), new_code_cell("2")]
    for end in ([], [new_markdown_cell("## The end")]):
        page = opened(*where, write(folder / f"solved_{len(end)}.ipynb", [*solved, *end]))
        run_all(page, 2)
        page.wait_for_timeout(1000)
        heights.append(page.locator(".jp-CodeCell").nth(1).evaluate("cell => cell.offsetHeight"))
        page.evaluate(END_KERNELS, where[2])
        page.close()
    assert [height > 0 for height in heights] == [True, False]


SEEN = """() => [...document.querySelectorAll('.jp-OutputArea-child')].filter(output => output.offsetHeight).map(
    output => [output.querySelectorAll('img').length, output.textContent])"""


def test_a_saved_explorer_is_a_picture_when_its_kernel_has_gone(lab):
    """On the first day the controls alone are seen, on the second the picture and its words, and no error."""
    *where, folder = lab
    cells = [new_code_cell(LEVEL), new_code_cell("print('before')\n" + LEVEL)]
    page = opened(*where, path := write(folder / "second_day.ipynb", cells))
    run_all(page, 2)
    page.locator(".course-explorer figure img").nth(1).wait_for()
    first, printed, second = page.evaluate(SEEN)
    assert [first[0], printed[0], second[0]] == [1, 0, 1]
    assert all("level" in words for _, words in (first, second))
    page.keyboard.press("Control+s")
    page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty").wait_for(state="detached")
    page.evaluate(END_KERNELS, where[2])
    page.close()
    page = opened(*where, path)
    page.locator(".course-still").nth(1).wait_for()
    seen = page.evaluate(SEEN)
    page.evaluate(END_KERNELS, where[2])
    page.close()
    assert [pictures for pictures, _ in seen] == [1, 0, 0, 1, 0]
    assert not any("Error displaying widget" in words for _, words in seen)
    assert seen[1][1].endswith("0.0Settings: level 0. Run this cell to move it.")


def test_a_restart_leaves_the_stored_picture_until_the_cell_is_run_again(lab):
    """The dead slider would still move, beside a picture that does not."""
    *where, folder = lab
    page = opened(*where, write(folder / "restarted.ipynb", [new_code_cell(LEVEL)]))
    run_all(page, 1)
    page.locator(".course-explorer figure img").wait_for()
    choose(page, "Kernel", "Restart Kernel…")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    page.locator(".course-explorer.jupyter-widgets-disconnected").wait_for(state="attached")
    still = page.evaluate(SEEN)
    run_all(page, 1)
    page.locator(".course-explorer figure img").wait_for()
    alive = page.evaluate(SEEN)
    page.locator(".course-explorer .noUi-handle").press("ArrowRight")
    page.locator(".course-explorer figcaption", has_text="1.0Settings: level 1.").wait_for()
    page.evaluate(END_KERNELS, where[2])
    page.close()
    assert [pictures for pictures, _ in still] == [1, 0]
    assert still[1][1].endswith("0.0Settings: level 0. Run this cell to move it.")
    assert [pictures for pictures, _ in alive] == [1]
    assert alive[0][1].startswith("level")


PARTS = """
from explorers import Explorer, explore_xray, new_figure

figure, ax = new_figure(1)
where = {"left": (0, 0, 0.5, 1), "corner": (0.9, 0.9, 1, 1)}
Explorer(figure, lambda clicked: f"It is {clicked}.", {}, "two parts", where)
"""
MEASURED = """explorer => {
    const window = explorer.querySelector('.widget-gridbox'), box = one => one.getBoundingClientRect()
    const image = explorer.querySelector('img'), words = explorer.querySelector('figcaption')
    const whole = at => {
        window.scrollLeft = at
        const seen = box(window), said = box(words)
        return seen.left <= said.left && said.right <= seen.right && words.scrollWidth <= words.clientWidth
    }
    const sides = [...explorer.querySelectorAll('.course-part')].map(box).flatMap(part => [part.width, part.height])
    return [window.clientWidth, image.width, Math.min(...sides), whole(0) && whole(1000), window.scrollLeft]
}"""
PLACE = """(image, [x, y]) => {
    image.scrollIntoView()
    const {left, top, width, height} = image.getBoundingClientRect()
    return [left + x * width, top + y * height]
}"""


def test_on_a_narrow_page_a_picture_can_be_read_and_clicked_and_its_words_are_whole(lab):
    *where, folder = lab
    page = opened(*where, write(folder / "narrow.ipynb", [new_code_cell(PARTS), new_code_cell("explore_xray()")]))
    run_all(page, 2)
    page.set_viewport_size({"width": 700, "height": 1000})
    own, xray = page.locator(".course-explorer").nth(0), page.locator(".course-explorer").nth(1)
    for explorer in (own, xray):
        explorer.locator("figure img").scroll_into_view_if_needed()
        window, picture, smallest, whole, moved = explorer.evaluate(MEASURED)
        assert window < 500
        assert picture >= 660
        assert smallest >= 24
        assert whole
        assert moved == picture - window
    page.mouse.click(*own.locator("img").evaluate(PLACE, [0.95, 0.05]))
    own.locator("figcaption", has_text="It is corner.").wait_for()
    page.mouse.click(*xray.locator("img").evaluate(PLACE, [0.9, 0.76]))
    xray.locator("figcaption", has_text="clicked feed-forward of block 2, feed-forward of block 5.").wait_for()
    assert xray.evaluate("explorer => explorer.querySelector('.widget-gridbox').scrollLeft") == moved
    page.evaluate(END_KERNELS, where[2])
    page.close()
