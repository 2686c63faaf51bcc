"""The class's server: its configuration says what the page about it says, and a student's copy is never overwritten."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from traitlets.config.loader import PyFileConfigLoader

ROOT = Path(__file__).parents[2]
HUB = ROOT / "deploy" / "jupyterhub"
PAGE = ROOT / "docs" / "classroom-server.md"
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
            monkeypatch.setenv(f"CLASS_{name}", value)
        monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/node" if node else None)
        return PyFileConfigLoader(str(HUB / "jupyterhub_config.py")).load_config()

    return load


# ------------------------------------------------------------------------------------------ one machine


def test_only_named_people_may_log_in_and_only_from_this_machine(load):
    config = load(TEACHERS="Prof")
    assert config.Authenticator.allowed_users == {"ada", "grace", "prof"}
    assert config.Authenticator.admin_users == {"prof"}
    assert config.FirstUseAuthenticator.create_users is False
    assert config.JupyterHub.bind_url == "http://127.0.0.1:8000"
    assert {role["name"] for role in config.JupyterHub.load_roles} == {"idle-culler"}


def test_the_load_test_gets_in_only_with_its_token(load):
    services = load(LOAD_TEST_TOKEN="t" * 32).JupyterHub.services
    assert services[-1] == {"name": "load-test", "api_token": "t" * 32}


@pytest.mark.parametrize("spawner", ["simple", "systemd"])
def test_memory_is_limited_with_every_spawner(load, spawner):
    config = load(SPAWNER=spawner, MEMORY="5G")
    assert config.Spawner.mem_limit == "5G"
    assert config.Spawner.environment["CLASS_MEMORY"] == ("5G" if spawner == "simple" else "")
    assert config.SystemdSpawner.dynamic_users is True if spawner == "systemd" else not config.SystemdSpawner


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


def test_the_page_lists_every_setting_and_its_default():
    code = (HUB / "jupyterhub_config.py").read_text(encoding="utf-8")
    read = set(re.findall(r'environ\.get\("(CLASS_\w+)"', code)) - {"CLASS_LOAD_TEST_TOKEN"}
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `CLASS_")]
    assert {name for row in rows for name in re.findall(r"`(CLASS_\w+)`", row.split("|")[1])} == read
    defaults = dict(re.findall(r'environ\.get\("(CLASS_(?:MEMORY|PORT))", "(\w+)"\)', code))
    assert len(defaults) == 2
    assert all(any(name in row and f"`{value}`" in row for row in rows) for name, value in defaults.items())


# ------------------------------------------------------------------------------- a student's server starts


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
def test_the_copy_comes_before_the_server_and_memory_is_limited(start):
    done = start('echo "pull $*"')
    assert done.stdout.splitlines() == ["pull course  llama-notebooks", "server --port=1", str(3 * 1024**2)]


@linux
def test_a_course_that_belongs_to_the_teacher_may_be_copied(start, tmp_path):
    for _ in range(2):
        start("true")
    trusted = (tmp_path / ".gitconfig").read_text(encoding="utf-8")
    assert re.findall(r"directory = (\S+)", trusted) == ["course", "course/.git"]


@linux
def test_a_failed_pull_leaves_the_student_with_the_old_copy(start):
    done = start("exit 1", memory="")
    assert done.stdout.startswith("server --port=1")
    assert "the student's copy stays as it is" in done.stderr


@linux
def test_an_update_of_the_course_never_overwrites_a_student(tmp_path):
    who = {f"GIT_{role}_{what}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = os.environ | who | {"HOME": str(tmp_path), "GIT_CONFIG_GLOBAL": "/dev/null"}

    def run(*command, cwd=tmp_path):
        subprocess.run(command, cwd=cwd, env=settings, check=True, capture_output=True, timeout=300)

    def pull():
        run(sys.executable, "-m", "nbgitpuller.pull", str(course), "", "copy")

    course, copy = tmp_path / "course", tmp_path / "copy"
    course.mkdir()
    run("git", "init", "--quiet", "--initial-branch=main", cwd=course)
    (course / "exercise.py").write_text("answer = None\n", encoding="utf-8")
    (course / "text.md").write_text("old\n", encoding="utf-8")
    run("git", "add", ".", cwd=course)
    run("git", "commit", "--quiet", "-m", "first", cwd=course)
    pull()
    (copy / "exercise.py").write_text("answer = 42\n", encoding="utf-8")
    (copy / "mine.md").write_text("my notes\n", encoding="utf-8")
    (course / "exercise.py").write_text("answer = ...\n", encoding="utf-8")  # the same line
    (course / "text.md").write_text("new\n", encoding="utf-8")
    (course / "mine.md").write_text("the teacher's file of that name\n", encoding="utf-8")
    run("git", "add", ".", cwd=course)
    run("git", "commit", "--quiet", "-m", "second", cwd=course)
    pull()
    assert (copy / "exercise.py").read_text(encoding="utf-8") == "answer = 42\n"
    assert (copy / "text.md").read_text(encoding="utf-8") == "new\n"
    assert "my notes\n" in [path.read_text(encoding="utf-8") for path in copy.glob("mine*")]


# ------------------------------------------------------------------------------------------- Kubernetes

NUMBER, TEXT, SWITCH = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}


def section(**keys):
    return {"type": "object", "additionalProperties": False, "properties": keys}


# The part of chart 4's values.schema.yaml that values.yaml uses, with the chart's names and types.
CHART = section(
    proxy=section(service=section(type=TEXT)),
    hub=section(config={"type": "object"}, concurrentSpawnLimit=NUMBER),
    singleuser=section(
        image=section(name=TEXT, tag=TEXT),
        cmd={"type": "array", "items": TEXT},
        defaultUrl=TEXT,
        memory=section(limit={"type": ["number", "string"]}, guarantee={"type": ["number", "string"]}),
        cpu=section(limit={"type": "number"}, guarantee={"type": "number"}),
        extraEnv={"type": "object", "additionalProperties": TEXT},
        storage=section(capacity=TEXT, homeMountPath=TEXT),
        startTimeout=NUMBER,
        lifecycleHooks=section(postStart={"type": "object"}),
    ),
    prePuller=section(hook=section(enabled=SWITCH), continuous=section(enabled=SWITCH)),
    cull=section(enabled=SWITCH, timeout=NUMBER, every=NUMBER),
)


def values():
    return yaml.safe_load((HUB / "values.yaml").read_text(encoding="utf-8"))


def test_the_values_fit_the_chart():
    jsonschema.validate(values(), CHART)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values() | {"singleUser": {}}, CHART)


def test_one_machine_and_kubernetes_agree(load):
    config, chart = load(), values()
    assert chart["singleuser"]["memory"]["limit"] == config.Spawner.mem_limit
    assert chart["singleuser"]["defaultUrl"] == config.Spawner.default_url
    assert chart["hub"]["config"]["JupyterHub"]["authenticator_class"] == config.JupyterHub.authenticator_class
    notebook = config.Spawner.default_url.removeprefix("/lab/tree/llama-notebooks/")
    assert (ROOT / notebook).is_file()


def test_the_image_copies_what_exists():
    text = (HUB / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    sources = [name for line in re.findall(r"^COPY (.*)$", text, re.M) for name in line.split()[:-1]]
    assert len(sources) >= 4
    assert [name for name in sources if not (ROOT / name).exists()] == []


def test_the_limit_is_above_what_every_notebook_needs(load):
    table = (ROOT / "benchmarks" / "costs.md").read_text(encoding="utf-8")
    peaks = [
        float(row[1].replace(",", "")) for row in re.findall(r"^\| (\d\d_\w+) \| \d+ \| ([\d,]+) \|$", table, re.M)
    ]
    assert len(peaks) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    limit = float(load().Spawner.mem_limit.removesuffix("G")) * 1024
    assert limit > 1.3 * max(peaks)
