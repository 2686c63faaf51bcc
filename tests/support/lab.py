"""A private JupyterLab, a headless Chromium, and a visitor that runs a notebook and moves every control in it."""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect, sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # otherwise cells out of sight are not on the page
    "docmanager-extension/plugin": {"autosave": False},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
}
# PyTorch's, where a build for CUDA finds CUDA's compiler and no GPU: nothing is wrong.
HARMLESS = re.compile(r"(\S+ \S+ \d+ torch/utils/cpp_extension\.py:\d+\] )?No CUDA runtime is found, using .*")
SIGNS_OF_TROUBLE = ("Error displaying widget", "Loading widget", "Traceback (most recent call last)")
OUTPUTS = """() => [...document.querySelectorAll('.jp-Notebook .jp-CodeCell')].map(cell => ({
    prompt: cell.querySelector('.jp-InputPrompt').textContent.trim(),
    shown: cell.querySelectorAll('.jp-OutputArea-output').length,
    fold: cell.querySelector('.jp-OutputPlaceholder')?.textContent.trim(),
    text: [...cell.querySelectorAll('.jp-OutputArea-output')].map(output => output.textContent).join('\\n'),
    bad: [...cell.querySelectorAll('[data-mime-type$="jupyter.error"], [data-mime-type$="jupyter.stderr"]')]
        .map(output => output.textContent.trim()),
}))"""
HAS_RUN = f"""size => {{
    const cells = ({OUTPUTS})(), prompts = cells.map(cell => cell.prompt)
    const stopped = cells.some(cell => cell.bad.length) && prompts.includes('[ ]:') && !prompts.includes('[*]:')
    return stopped || (cells.length === size && prompts.every(prompt => /^\\[\\d+\\]:$/.test(prompt)))
}}"""
END_KERNELS = """async token => {
    const headers = {Authorization: `token ${token}`}
    for (const kernel of await (await fetch('/api/kernels', {headers})).json())
        await fetch(`/api/kernels/${kernel.id}`, {method: 'DELETE', headers})
}"""


@contextmanager
def jupyter_lab(folder: Path):
    """JupyterLab on folder/notebooks, reachable from this machine only; yields its address and token."""
    private = {name: folder / name.lower() for name in (
        "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR",
        "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR",
    )}  # fmt: skip
    for name, content in SETTINGS.items():
        file = private["JUPYTERLAB_SETTINGS_DIR"] / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    token = secrets.token_hex(16)
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0",
        f"--ServerApp.root_dir={folder / 'notebooks'}", "--ServerApp.allow_root=True",
        "--KernelManager.transport_encryption=auto",
    ]  # fmt: skip
    environment = os.environ | {name: str(path) for name, path in private.items()}
    environment |= {"JUPYTER_TOKEN": token, "COURSE_DEVICE": "cpu"}
    with (folder / "lab.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        port = port_of(server, private["JUPYTER_RUNTIME_DIR"], folder / "lab.log")
        yield f"http://127.0.0.1:{port}", token
    finally:
        server.kill()
        server.wait()


def port_of(server, folder: Path, log: Path, seconds=300) -> int:
    """The port that a JupyterLab which was just started writes into its runtime folder, once it listens there."""
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        for path in folder.glob("jpserver-*.json"):
            text = path.read_text(encoding="utf-8")
            with socket.socket() as probe:
                if text.endswith("}") and probe.connect_ex(("127.0.0.1", port := json.loads(text)["port"])) == 0:
                    return port
        time.sleep(0.1)
    raise RuntimeError(
        f"JupyterLab did not start in {seconds} s, or ended ({server.poll()}).\n{log.read_text()[-3000:]}"
    )


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


def explorers_in(path):
    """Names of the explorers that a notebook shows."""
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return re.findall(r"\b(explore_\w+)\(", "\n".join(code))


class Visitor:
    """Opens one notebook, chooses Run All, moves every control by key, and notes every problem.

    Attributes:
        problems: sentences; empty when all is well.
        explorers: number of explorers on the page.
        moved: number of actions on their controls.
    """

    def __init__(self, browser, address: str, token: str, notebook: Path, patience: float = 20):
        self.problems, self.explorers, self.moved, self.patience = [], 0, 0, patience
        self.cells = [c for c in nbformat.read(notebook, as_version=4).cells if c.cell_type == "code"]
        self.page = browser.new_page(viewport={"width": 1400, "height": 1000})
        self.page.set_default_timeout(120_000)
        self.page.on("console", lambda said: said.type == "error" and self.problems.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"page: {error}"))
        try:
            self.page.goto(f"{address}/lab/workspaces/{notebook.stem}/tree/{notebook.name}?token={token}")
            self._run_all()
            for explorer in self.page.locator(".course-explorer").all():
                self.explorers += 1
                explorer.scroll_into_view_if_needed()
                for control in explorer.locator("select").all():  # first: an option may enable a slider
                    self._must_change(explorer, control, self._choose)
                for control in explorer.locator(".noUi-target").all():
                    self._must_change(explorer, control, self._press)
            self._look_at_outputs()
            self.page.evaluate(END_KERNELS, token)
        finally:
            self.page.close()

    def _run_all(self):
        self.page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
        self.page.locator("#jp-main-statusbar", has_text=re.compile(r"\| Idle")).wait_for()  # Run All before is lost
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
        self.page.wait_for_function(HAS_RUN, arg=len(self.cells), timeout=600_000)  # it stops at a cell that raises

    def _look_at_outputs(self):
        for number, (cell, seen) in enumerate(zip(self.cells, self.page.evaluate(OUTPUTS), strict=False), 1):
            if "raises-exception" not in cell.metadata.get("tags", []):
                bad = [text for text in seen["bad"] if not HARMLESS.fullmatch(text)]
                bad += [sign for sign in SIGNS_OF_TROUBLE if sign in seen["text"]]
                self.problems += [f"code cell {number}, error or stderr: {text}" for text in bad]
            if cell.metadata.get("jupyter") and not seen["shown"]:
                self.problems.append(f"code cell {number}: what it printed stays folded")
            if seen["prompt"] == "[ ]:":
                self.problems.append(f"code cell {number} was not run")

    def _choose(self, menu):
        size, index = menu.locator("option").count(), menu.evaluate("menu => menu.selectedIndex")
        menu.select_option(index=(index + 1) % size)

    def _press(self, slider):
        handle = slider.locator(".noUi-handle")
        now, high = (float(handle.get_attribute(f"aria-value{which}")) for which in ("now", "max"))
        handle.focus()
        self.page.keyboard.press("ArrowRight" if now < high else "ArrowLeft")

    def _must_change(self, explorer, control, act):
        row = control.locator("xpath=ancestor::*[contains(@class,'widget-inline-hbox')][1]")
        name = f"explorer {self.explorers}, {row.locator('.widget-label').text_content()}"
        picture = explorer.locator("figure img")
        before = picture.get_attribute("src")
        act(control)
        self.moved += 1
        try:
            expect(picture).not_to_have_attribute("src", before, timeout=1000 * self.patience)
        except AssertionError:
            self.problems.append(f"{name}: the picture did not change")
        while (after := picture.get_attribute("src")) != before:  # let it come to rest: a late picture is no answer
            time.sleep(0.2)
            before = after
        self.problems += [f"{name}: {warning}" for warning in explorer.locator("[role=alert]").all_text_contents()]
