"""pytest settings of the whole project: the same start for every test, no network, and repairs of nbval 0.11."""

import base64
import io
import os
import runpy
import secrets
import sys
import tempfile
from pathlib import Path
from queue import Empty

import matplotlib
import nbval.kernel
import numpy as np
import pytest
import torch
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell, IPyNbFile
from PIL import Image

from helpers.device import pick_device


def pytest_configure(config):
    """Notebooks store what they print on the CPU: on an accelerator only their assertions are in force."""
    os.environ.setdefault("COURSE_STEPS", "36")  # notebook 06 trains for a shorter time; all its assertions hold
    if config.option.nbval and pick_device().type != "cpu":
        config.option.nbval, config.option.nbval_lax = False, True
    if not os.access(Path.home(), os.W_OK) and "MPLCONFIGDIR" not in os.environ:
        cache = tempfile.TemporaryDirectory(prefix="course-matplotlib-")  # matplotlib would say so on stderr
        os.environ["MPLCONFIGDIR"] = cache.name
        config.add_cleanup(cache.cleanup)
    _stay_offline(config)
    if seed := os.environ.get("COURSE_ROUNDING"):
        runpy.run_path(str(ROUNDING))["start"](int(seed))


SLOWEST = ("06_train.ipynb", "07_generate.ipynb", "test_answers.py")  # in make test-all also what opens a browser


def pytest_collection_modifyitems(config, items):
    """In xdist's workers the longest files come first: then none ends alone. In CI a browser gets a second try.

    A second try is listed as RERUN at the end, and counted: a page that needs one is a fault to look for.
    """
    browsers = [item for item in items if item.get_closest_marker("browser")]
    for item in browsers:
        item.add_marker(pytest.mark.slow)
        if os.environ.get("CI"):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if hasattr(config, "workerinput"):
        longest = {item.path for item in browsers} | {item.path for item in items if item.path.name in SLOWEST}
        items.sort(key=lambda item: item.path not in longest)


SUPPORT = Path(__file__).parent / "tests" / "support"
OFFLINE, ROUNDING = SUPPORT / "offline", SUPPORT / "rounding.py"


def _stay_offline(config):
    # Here, in xdist's workers, and in every Python that the tests start: only this machine may be spoken to.
    folders = [str(OFFLINE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    if "COURSE_NETWORK_LOG" not in os.environ:
        # Made by the first line that is written: a run that is killed, or only prints its help, leaves no file.
        config.stash[LOG] = Path(tempfile.gettempdir(), f"course-network-{secrets.token_hex(8)}")
        os.environ["COURSE_NETWORK_LOG"] = str(config.stash[LOG])
    runpy.run_path(str(OFFLINE / "sitecustomize.py"))


LOG, TRIED = pytest.StashKey[Path](), pytest.StashKey[str]()


def pytest_sessionfinish(session):
    """A test that tried to leave the machine fails the run, even where the code under test swallowed the error."""
    log = session.config.stash.get(LOG, None)
    if log and log.exists():  # not in a worker, or a pytest that a test has started: the one that named the file looks
        session.config.stash[TRIED] = log.read_text(encoding="utf-8")
        log.unlink()
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Say which connection was tried, and by which process; and what make test has left out."""
    if config.option.markexpr == "not slow":
        terminalreporter.write_line("Slow tests were left out: make test-all runs them too.")
    if TRIED in config.stash:
        terminalreporter.section("network", red=True)
        terminalreporter.write_line(config.stash[TRIED] + "A test may speak to this machine only.")


@pytest.fixture(autouse=True)
def same_start():
    """Every test starts from the same random state, dtype and printing, without figures, whatever ran before."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    torch.set_printoptions(profile="default")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    from tests.support.lab import chromium

    with chromium() as browser:
        yield browser


# nbval counts cells from 0 among code cells; people count from 1 (computationalmodelling/nbval#171).
def _cells_from_1(self, collect=IPyNbFile.collect):
    for cell in collect(self):
        number = cell.cell_num + 1
        one = IPyNbCell.from_parent(self, name=f"Cell {number}", cell_num=number, cell=cell.cell, options=cell.options)
        one.output_timeout = 60  # seconds between two messages: a busy machine may pause for nbval's 5
        yield one


IPyNbFile.collect = _cells_from_1


# nbval compares no pictures: what is drawn must be what is stored, up to some points that another processor rounds.
def _compare_pictures_too(self, test, ref, skip_compare=None, compare=IPyNbCell.compare_outputs):
    same = compare(self, test, ref, skip_compare)
    drawn, stored = (
        [_pixels(out.data["image/png"]) for out in outputs if "image/png" in out.get("data", ())]
        for outputs in (test, ref)
    )
    for one, other in zip(drawn, stored, strict=True) if same and PINNED else ():
        if one.shape != other.shape or (abs(one - other).max(axis=-1) > 25).sum() > 100:
            self.comparison_traceback = ["The picture is not the stored one. On purpose? make notebooks ARGS=02"]
            same = False
    return same


def _pixels(png):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")).astype(int)


PINS = Path(__file__).with_name("constraints.txt")  # another matplotlib draws otherwise
PINNED = PINS.exists() and f"matplotlib=={matplotlib.__version__}\n" in PINS.read_text("utf-8")
IPyNbCell.compare_outputs = _compare_pictures_too


# nbval goes on after a cell that raised, so one fault shows as twenty: skip the rest of that notebook.
def pytest_runtest_setup(item):
    stopped_by = getattr(item.parent, "stopped_by", None)
    if isinstance(item, IPyNbCell) and stopped_by:
        pytest.skip(f"{stopped_by} raised")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if isinstance(item, IPyNbCell) and report.failed and call.when == "call":
        outputs = item.test_outputs or []
        kernel_is_dead = not item.parent.kernel.is_alive()
        if kernel_is_dead or any(output.output_type == "error" for output in outputs):
            item.parent.stopped_by = item.name
    return report


# nbval waits the whole time-out for a kernel that has died: look at it every second.
def _await_reply(self, msg_id, timeout=None):
    waited = 0
    while timeout is None or waited < timeout:
        try:
            message = self.get_message(stream="shell", timeout=1)
        except Empty:
            waited += 1
            if not self.is_alive():
                raise RuntimeError("the kernel died while it ran this cell (out of memory?)") from None
            continue
        if message["parent_header"].get("msg_id") == msg_id:
            return
    raise Empty


RunningKernel.await_reply = _await_reply


# A kernel may die at its start, when another process has taken one of the ports that were free a moment before. nbval
# gives up then, and leaves a file open: try again, and say in the end what the kernel wrote.
def _start_new_kernel(*args, stderr, attempts=3, start=nbval.kernel.start_new_kernel, **named):
    stderr.close()
    for attempt in range(1, attempts + 1):
        with tempfile.TemporaryFile() as written:
            try:
                manager, client = start(*args, stderr=written, **named)
                if seed := os.environ.get("COURSE_ROUNDING"):
                    code = f"import runpy; runpy.run_path({str(ROUNDING)!r})['start']({int(seed)})"
                    client.execute(code, silent=True, reply=True, timeout=60)
                return manager, client
            except RuntimeError as error:
                written.seek(0)
                error.add_note(
                    f"Attempt {attempt}. The kernel wrote: {written.read().decode(errors='replace')[-3000:]}"
                )
                if attempt == attempts:
                    raise


nbval.kernel.start_new_kernel = _start_new_kernel


# nbval kills its kernels: under coverage.py ask them to end, so that they write down what they ran.
def _stop(self):
    self.kc.stop_channels()
    self.km.shutdown_kernel(now=not any(name.startswith("COVERAGE_PROCESS") for name in os.environ))
    del self.km


RunningKernel.stop = _stop
