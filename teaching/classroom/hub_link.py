"""A link that copies a course into a student's home on a JupyterHub and opens a notebook: `make hub-link ARGS=...`.

    python -m teaching.classroom.hub_link --hub https://hub.uni.example --repo https://git.example/course.git

The hub needs nbgitpuller, whose link this is (nbgitpuller.readthedocs.io/en/latest/link.html). Who opens the link
again gets what is new in the repository; what the student has changed stays.
"""

import argparse
import sys
from urllib.parse import quote, urlencode, urlsplit


def hub_link(hub: str, repo: str, branch: str = "main", notebook: str = "notebooks/00_start_here.ipynb") -> str:
    """The link.

    Args:
        hub: address of the JupyterHub, such as https://hub.uni.example or https://uni.example/jupyter.
        repo: address from which anybody may clone the course, such as https://git.example/course.git.
        branch: of the repository.
        notebook: what is opened, as a path inside the repository.

    Raises:
        ValueError: for an address without http(s) and a host, an address with a password or token, no branch, a
            notebook whose path leaves the repository or that is none.
    """
    for name, address in (("--hub", hub), ("--repo", repo)):
        parts = urlsplit(address)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{name} {address!r} is no plain web address: write it as https://host/path.")
        if parts.username is not None:
            raise ValueError(f"{name} holds a name or a token before the @: every student would read it. Leave it out.")
    folder = urlsplit(repo).path.rstrip("/").rpartition("/")[2].removesuffix(".git")
    if not folder:
        raise ValueError(
            f"--repo {repo!r} names no repository: write it as https://host/name or https://host/name.git."
        )
    if not branch.strip():
        raise ValueError("--branch is empty: write its name, such as main.")
    if notebook.startswith("/") or ".." in notebook.split("/") or not notebook.endswith(".ipynb"):
        raise ValueError(f"--open {notebook!r} is no notebook inside the repository: write notebooks/01_rmsnorm.ipynb.")
    asked = {"repo": repo, "branch": branch, "targetpath": folder, "urlpath": f"lab/tree/{folder}/{notebook}"}
    hub = hub.rstrip("/").removesuffix("/hub")
    return f"{hub}/hub/user-redirect/git-pull?{urlencode(asked, quote_via=quote)}"


def main(arguments: list[str] | None = None) -> None:
    """Print the link."""
    parser = argparse.ArgumentParser(prog="python -m teaching.classroom.hub_link", description=__doc__.splitlines()[0])
    parser.add_argument("--hub", required=True, help="address of the JupyterHub: https://hub.uni.example")
    parser.add_argument("--repo", required=True, help="address to clone: https://git.example/course.git")
    parser.add_argument("--branch", default="main", help="default: main")
    parser.add_argument("--open", default="notebooks/00_start_here.ipynb", metavar="NOTEBOOK",
                        help="what is opened (default: notebooks/00_start_here.ipynb)")  # fmt: skip
    chosen = parser.parse_args(arguments)
    try:
        print(hub_link(chosen.hub, chosen.repo, chosen.branch, chosen.open))
    except ValueError as error:
        sys.exit(f"hub-link: {error}")


if __name__ == "__main__":
    main()
