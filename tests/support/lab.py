"""A headless Chromium, a private JupyterLab, and a visit that runs a notebook there and moves every control in it."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import sync_playwright

from tests.support.course import ROOT

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # otherwise cells out of sight are not on the page
    "docmanager-extension/plugin": {"autosave": False},
}
# PyTorch's, where a build for CUDA finds CUDA's compiler and no GPU: nothing is wrong.
HARMLESS = re.compile(r"(\S+ \S+ \d+ torch/utils/cpp_extension\.py:\d+\] )?No CUDA runtime is found, using .*")
OUTPUTS = """() => [...document.querySelectorAll('.jp-Notebook .jp-CodeCell')].map(cell => ({
    prompt: cell.querySelector('.jp-InputPrompt').textContent.trim(),
    shown: cell.querySelectorAll('.jp-OutputArea-output').length,
    fold: cell.querySelector('.jp-OutputPlaceholder')?.textContent.trim(),
    code_folded: cell.querySelector('.jp-InputPlaceholder') !== null,
    text: [...cell.querySelectorAll('.jp-OutputArea-output')].map(output => output.textContent).join('\\n'),
    bad: [...cell.querySelectorAll('[data-mime-type$="jupyter.error"], [data-mime-type$="jupyter.stderr"]')]
        .map(output => output.textContent.trim()),
}))"""
HAS_RUN = f"""size => {{
    const cells = ({OUTPUTS})(), prompts = cells.map(cell => cell.prompt)
    const stopped = cells.some(cell => cell.bad.length) && prompts.includes('[ ]:') && !prompts.includes('[*]:')
    return stopped || (cells.length === size && prompts.every(prompt => /^(\\[\\d+\\]:)?$/.test(prompt)))
}}"""
OPEN_FOLDS = "() => document.querySelectorAll('.jp-InputPlaceholder [title]').forEach(one => one.click())"
IDLE = re.compile(r"\| Idle")
END_KERNELS = """async token => {
    const headers = {Authorization: `token ${token}`}
    for (const kernel of await (await fetch('/api/kernels', {headers})).json())
        await fetch(`/api/kernels/${kernel.id}`, {method: 'DELETE', headers})
}"""


@contextmanager
def chromium():
    """A headless browser. Without one the test is skipped, in CI it fails, and either says the remedy."""
    names = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, names)), playwright.chromium.executable_path)
        if not Path(path).exists():
            missing = pytest.fail if os.environ.get("CI") else pytest.skip
            missing("no Chromium: `apt-get install chromium fonts-dejavu-core`, or `playwright install chromium`")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def quiet_context(browser, **options):
    """Pages of their own; a request to elsewhere or anything on the console is an error in the end."""
    troubles, context = [], browser.new_context(**options)
    own = re.compile("file:|data:|blob:")
    context.on("request", lambda sent: own.match(sent.url) or troubles.append(f"request: {sent.url}"))
    context.on("console", lambda said: troubles.append(f"console: {said.text}"))
    context.on("weberror", lambda error: troubles.append(f"page: {error.error}"))
    yield context
    context.close()
    assert troubles == [], troubles


def explorers_in(path):
    """Names of the explorers that a notebook shows without its own data: a site or a test can make them."""
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return re.findall(r"\b(explore_\w+)\((?:\"[^\"]*\"(?:, )?)*\)", "\n".join(code))


@contextmanager
def jupyter_lab(folder: Path, *arguments):
    """What `make lab` runs, with files of its own in `folder`; yields the process, its address and its log."""
    for name, content in SETTINGS.items():
        file = folder / "jupyterlab_settings_dir" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    own = ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR",
           "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")  # fmt: skip
    environment = os.environ | {name: str(folder / name.lower()) for name in own} | {"COURSE_DEVICE": "cpu"}
    command = [sys.executable, "-m", "tools.lab", "--no-browser", "--port=0", *arguments]
    log, end = folder / "lab.log", time.monotonic() + 300
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=out, stderr=out)
    try:
        while not (address := re.search(r"^http\S+(?=\n\Z)", log.read_text(), re.M)):
            assert server.poll() is None, log.read_text()[-3000:]  # as root it would end without --allow-root
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.1)
        yield server, address[0], log
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # seen once, after it had said that it stops
            server.kill()


def opened(browser, address: str, token: str, notebook: Path):
    """A page on which JupyterLab shows a notebook, its kernel idle."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(120_000)
    page.goto(f"{address}/lab/workspaces/{notebook.stem}/tree/{notebook.name}?token={token}")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    page.locator("#jp-main-statusbar", has_text=IDLE).wait_for()
    return page


def choose(page, menu: str, item: str):
    """Choose an item of the menu bar, once the kernel is idle: Run All before is lost."""
    page.locator("#jp-main-statusbar", has_text=IDLE).wait_for()
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{menu}$")).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{item}$")).click()


def run_all(page, size: int):
    """Choose Run All, and wait until each of so many code cells has run, or one of them has raised."""
    choose(page, "Run", "Run All Cells")
    page.wait_for_function(HAS_RUN, arg=size, timeout=600_000)  # it stops at a cell that raises


def visit(browser, address: str, token: str, notebook: Path) -> tuple[list[str], int]:
    """Open a notebook, choose Run All, move every control by key; what goes wrong, and how many explorers there are."""
    problems = []
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    page = opened(browser, address, token, notebook)
    page.on("console", lambda said: said.type == "error" and problems.append(f"console: {said.text}"))
    page.on("pageerror", lambda error: problems.append(f"page: {error}"))
    run_all(page, len(cells))
    page.evaluate(OPEN_FOLDS)  # code in a fold has no number
    explorers = page.locator(".course-explorer").all()
    for number, explorer in enumerate(explorers, start=1):
        explorer.scroll_into_view_if_needed()
        kinds = (".noUi-handle", ".widget-toggle-button:not(.mod-active)", "[type=checkbox]", ".course-part")
        controls = [one for kind in kinds for one in explorer.locator(kind).all()]
        for place, control in enumerate(controls, start=1):
            said = _move(page, explorer, control)
            problems += [f"explorer {number}, control {place}: {words}" for words in said]
    for number, (cell, seen) in enumerate(zip(cells, page.evaluate(OUTPUTS), strict=False), 1):
        bad = [text for text in seen["bad"] if not HARMLESS.fullmatch(text)]
        bad += [sign for sign in ("Error displaying widget", "Loading widget") if sign in seen["text"]]
        if "raises-exception" in cell.metadata.get("tags", []):
            bad = []
        if cell.metadata.get("jupyter") and (seen["code_folded"] or not seen["shown"]):
            bad.append("its code or what it printed stays folded")
        if seen["prompt"] == "[ ]:":
            bad.append("was not run")
        problems += [f"code cell {number}: {text}" for text in bad]
    page.evaluate(END_KERNELS, token)
    page.close()
    return problems, len(explorers)


def _move(page, explorer, control):
    figure, high = explorer.locator("figure"), control.get_attribute("aria-valuemax")
    choice = control.evaluate("control => control.matches('.widget-toggle-button')")

    def seen():  # of a choice the caption, too: two may look alike
        return figure.inner_html() if choice else figure.locator("img").get_attribute("src")

    before, end = seen(), time.monotonic() + 20
    control.focus()
    below = high and float(control.get_attribute("aria-valuenow")) < float(high)
    page.keyboard.press("Space" if not high else "ArrowRight" if below else "ArrowLeft")
    while seen() == before and time.monotonic() < end:
        time.sleep(0.05)
    if (after := seen()) == before:
        yield "the picture did not change"
    while after != before:  # let it come to rest: a late picture is no answer
        time.sleep(0.2)
        before, after = after, seen()
    yield from explorer.locator("[role=alert]").all_text_contents()
