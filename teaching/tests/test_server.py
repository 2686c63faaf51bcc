"""The class's server: its configuration says what the page about it says, and a student's copy is never overwritten."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from traitlets.config.loader import PyFileConfigLoader

from teaching.classroom.server import collect
from tests.support.course import ROOT
from tests.support.submissions import write

HUB = ROOT / "tools" / "classroom" / "server"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the hub runs on Linux")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the hub runs on Linux")


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The configuration that a hub would read, with these settings."""

    def load(names="Ada\n grace \n", node=True, user=1000, **settings):
        monkeypatch.setattr("os.geteuid", lambda: user)
        for name in [name for name in os.environ if name.startswith("CLASS_")]:
            monkeypatch.delenv(name)
        (tmp_path / "names.txt").write_text(names, encoding="utf-8")
        settings = {"STUDENTS": f"{tmp_path}/names.txt", "STATE": f"{tmp_path}/state", "SPAWNER": "simple"} | settings
        for name, value in settings.items():
            if value:
                monkeypatch.setenv(f"CLASS_{name}", value)
        monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/node" if node else None)
        return PyFileConfigLoader(str(HUB / "jupyterhub_config.py")).load_config()

    return load


def test_only_named_people_may_log_in_from_this_machine_and_secrets_lie_elsewhere(load, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load(TEACHERS="Prof", STATE="")
    assert config.JupyterHub.cookie_secret_file == str(tmp_path / ".llama-hub" / "cookie_secret")
    assert config.Spawner.environment["CLASS_COURSE"] == str(ROOT)
    assert config.Authenticator.allowed_users == {"ada", "grace", "prof"}
    assert config.Authenticator.admin_users == {"prof"}
    assert config.FirstUseAuthenticator.create_users is False
    assert config.JupyterHub.bind_url == "http://127.0.0.1:8000"
    assert {role["name"] for role in config.JupyterHub.load_roles} == {"idle-culler"}  # no token, no load test
    assert load(LOAD_TEST_TOKEN="t").JupyterHub.services[-1] == {"name": "load-test", "api_token": "t"}


@pytest.mark.parametrize(("spawner", "for_each"), [("simple", "5G"), ("systemd", "")])
def test_memory_is_limited_with_every_spawner(load, spawner, for_each):
    config = load(SPAWNER=spawner, MEMORY="5G")
    assert (config.Spawner.mem_limit, config.Spawner.environment["CLASS_MEMORY"]) == ("5G", for_each)
    assert config.SystemdSpawner.get("dynamic_users", False) == (spawner == "systemd")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"names": "\n"}, r"holds no name: write one student's name per line"),
        ({"STUDENTS": "/nowhere/names.txt"}, r"/nowhere/names.txt is missing"),
        ({"SPAWNER": "docker"}, r"CLASS_SPAWNER='docker' is not known: use systemd or simple"),
        ({"user": 0}, r"every student would be root: start the hub as an ordinary user"),
        ({"node": False}, r"node is missing: the hub's proxy needs Node.js"),
    ],
)
def test_a_wrong_setting_stops_the_hub_with_a_sentence(load, settings, says):
    with pytest.raises(SystemExit, match=says):
        load(**settings)


def test_a_student_is_not_given_a_folder_of_the_system(load, monkeypatch):
    monkeypatch.setattr(Path, "is_dir", lambda path: path in (Path("/var/lib/ada"), Path("/var/lib/grace")))
    monkeypatch.setattr(Path, "is_symlink", lambda path: path == Path("/var/lib/grace"))  # as systemd makes a home
    with pytest.raises(SystemExit, match=r"folders of programs named ada: give these people other names"):
        load(SPAWNER="systemd")


@pytest.fixture
def start(tmp_path):
    """Run student.sh with stand-ins for gitpuller and the server; what it printed."""

    def start(puller, memory="3G"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name, text in {"gitpuller": puller, "jupyterhub-singleuser": 'echo "server $*"; ulimit -d'}.items():
            program = tmp_path / "bin" / name
            program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            program.chmod(0o755)
        settings = {"CLASS_BIN": f"{tmp_path}/bin", "CLASS_COURSE": "course", "CLASS_MEMORY": memory}
        return subprocess.run(
            [HUB / "student.sh", "--port=1"], env=os.environ | settings | {"HOME": str(tmp_path)}, text=True,
            capture_output=True, timeout=300, check=True,
        )  # fmt: skip

    return start


@linux
def test_the_teachers_course_is_copied_before_the_server_starts_or_the_old_copy_stays(start, tmp_path):
    for _ in range(2):  # a second start adds nothing to what git trusts
        said = start('echo "pull $*"').stdout.splitlines()
        assert said == ["pull course  llama-notebooks", "server --port=1", str(3 * 1024**2)]
    trusted = (tmp_path / ".gitconfig").read_text(encoding="utf-8")
    assert re.findall(r"directory = (\S+)", trusted) == ["course", "course/.git"]
    done = start("exit 1", memory="")
    assert done.stdout.startswith("server --port=1")
    assert "the student's copy stays as it is" in done.stderr


@linux
def test_every_homes_notebooks_are_gathered_and_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    (tmp_path / "names.txt").write_text("Ada\ngrace\nzoe\n")
    monkeypatch.setenv("CLASS_STUDENTS", str(tmp_path / "names.txt"))
    monkeypatch.setenv("CLASS_STATE", str(tmp_path / "state"))
    ada, grace = (tmp_path / "state" / "homes" / name / "llama-notebooks" / "notebooks" for name in ("ada", "grace"))
    for name in ("02_rope.ipynb", "02_rope-Copy1.ipynb", "01_rmsnorm.ipynb", "mine.ipynb"):
        write(ada / name, name)
    grace.mkdir(parents=True)
    (grace / "02_rope.ipynb").symlink_to(ada / "02_rope.ipynb")  # another's work is not handed in
    os.mkfifo(grace / "02_rope-1.ipynb")
    os.utime(ada / "02_rope.ipynb", (1e9, 1e9))
    to = tmp_path / "handed-in"

    def gathered():
        collect.main([str(to), "--only", "02"])
        return capsys.readouterr().out

    said = gathered()
    assert "zoe: no home in" in said
    assert "02_rope.ipynb is not gathered: Too many" in said
    (ada / "02_rope.ipynb").write_text("more")
    gathered()
    assert "2 notebooks, 0 of them new" in gathered()
    assert {str(path.relative_to(to)): path.read_text() for path in to.rglob("*.ipynb")} == {
        "ada/02_rope.ipynb": "02_rope.ipynb",
        "ada/02_rope-1.ipynb": "more",
        "ada/02_rope-Copy1.ipynb": "02_rope-Copy1.ipynb",
    }
    assert (to / "ada" / "02_rope.ipynb").stat().st_mtime == 1e9
