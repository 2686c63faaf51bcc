"""JupyterLab on the first notebook: what `make lab` runs. Arguments are those of `jupyter lab`.

    python -m tools.lab notebooks/00_start_here.ipynb --no-browser --port 9000

It starts for whoever calls it, root in a container included, and the address to open is the last line that it prints,
alone: where no browser opens by itself, nothing has to be searched for in the log.
"""

import os
import sys
import tempfile
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir
from jupyterlab.labapp import LabApp

from tools.course import ROOT  # JupyterLab shows all of ROOT: the notebooks link to ../docs/glossary.md

QUIET = [
    "--KernelManager.transport_encryption=auto",  # otherwise ipykernel warns at the start of every kernel
    "--LanguageServerManager.autodetect=False",  # otherwise a list of programs that are not installed comes last
]


def start(arguments: list[str]) -> None:
    """Run the server until it is stopped."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # of kernels: a thread that waits long lets go of the core
    if {"-h", "--help", "--help-all"} & set(arguments):
        LabApp.launch_instance(arguments)  # and ends there; initialize_server knows no help
    use_a_folder_that_can_be_written()
    as_root = ["--allow-root"] if getattr(os, "geteuid", lambda: -1)() == 0 else []
    ours = any(Path(one).resolve().is_relative_to(ROOT) for one in arguments if one.endswith(".ipynb"))
    root = [f"--ServerApp.root_dir={ROOT}"] if ours else []
    server = LabApp.initialize_server(argv=[*QUIET, *as_root, *root, *arguments])
    server.web_app.settings["page_config_hook"] = without_news
    server.io_loop.call_later(1, print_address, server)  # after what the server itself says at its start
    server.start()


def use_a_folder_that_can_be_written() -> None:
    """Let the server note what runs in a temporary folder where the home is full or read-only, and say so."""
    try:
        Path(place := jupyter_runtime_dir()).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="jupyter-runtime-")
        print(f"{place} cannot be written ({error.strerror}): {os.environ['JUPYTER_RUNTIME_DIR']} is used instead.")


def without_news(handler, page: dict) -> dict:
    """JupyterLab's page without its question, over the first cell, whether it may fetch news."""
    return page | {"disabledExtensions": [*page["disabledExtensions"], "@jupyterlab/apputils-extension:announcements"]}


def print_address(server) -> None:
    """Print where the notebook can be opened, token included."""
    place = server.local_url.partition("?")[0]
    token = server.identity_provider.token  # local_url hides one that was chosen by hand
    query = f"?token={token}" if token else ""
    file = server.file_to_run and Path(os.path.relpath(server.file_to_run, server.root_dir)).as_posix()
    page = f"/tree/{file}" if file else ""
    print(f"\nOpen this address in a browser (Ctrl+C here stops the course):\n{place}{page}{query}", flush=True)


if __name__ == "__main__":
    start(sys.argv[1:])
