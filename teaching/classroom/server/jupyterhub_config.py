"""JupyterHub for a class on one machine; docs/classroom-server.md says what to set and why.

Settings come from the environment, each with a default that starts at once:

    CLASS_HOST      address to listen on (127.0.0.1; a public one needs TLS in front of it)
    CLASS_PORT      port to listen on (8000)
    CLASS_STATE     folder of the hub's own files and, without systemd, of the students' homes (~/.llama-hub)
    CLASS_STUDENTS  file with one student's name per line (students.txt beside this file)
    CLASS_TEACHERS  names of the teachers, separated by commas; they see everybody's server
    CLASS_COURSE    git address of the course that is copied for each student (this checkout)
    CLASS_MEMORY    limit per student, as in 3G; with systemd for all processes together, without for each of them
    CLASS_SPAWNER   systemd or simple (systemd where it runs and the hub is root)
"""

import os
import shutil
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
course = here.parents[2]
state = Path(os.environ.get("CLASS_STATE", Path.home() / ".llama-hub")).resolve()
state.mkdir(parents=True, exist_ok=True)
memory = os.environ.get("CLASS_MEMORY", "3G")
is_root = os.geteuid() == 0
spawner = os.environ.get("CLASS_SPAWNER", "systemd" if is_root and Path("/run/systemd/system").exists() else "simple")
load_test_token = os.environ.get("CLASS_LOAD_TEST_TOKEN")  # load_test.py: may start and use every server
names_file = Path(os.environ.get("CLASS_STUDENTS", here / "students.txt"))
if not names_file.is_file():
    sys.exit(
        f"{names_file} is missing: write one student's name per line into it, or point CLASS_STUDENTS to the file."
    )
students = {line.strip().lower() for line in names_file.read_text(encoding="utf-8").splitlines() if line.strip()}
teachers = {name.strip().lower() for name in os.environ.get("CLASS_TEACHERS", "").split(",") if name.strip()}
if not students | teachers:
    sys.exit(f"{names_file} holds no name: write one student's name per line into it.")

c = get_config()  # noqa: F821 (jupyterhub defines it)
host, port = os.environ.get("CLASS_HOST", "127.0.0.1"), os.environ.get("CLASS_PORT", "8000")
c.JupyterHub.bind_url = f"http://{host}:{port}"
c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")
c.JupyterHub.db_url = f"sqlite:///{state / 'hub.sqlite'}"
c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
c.ConfigurableHTTPProxy.command = [str(here / "node_modules" / ".bin" / "configurable-http-proxy")]

# Everybody chooses a password at the first login; a name that is not on the list cannot log in.
c.JupyterHub.authenticator_class = "firstuseauthenticator.FirstUseAuthenticator"
c.FirstUseAuthenticator.dbm_path = str(state / "passwords.dbm")
c.FirstUseAuthenticator.create_users = False
c.Authenticator.allowed_users = students | teachers
c.Authenticator.admin_users = teachers

# A student's server: a copy of the course that belongs to the student, the teacher's checkout only read.
c.Spawner.cmd = [str(here / "student.sh")]
c.Spawner.default_url = "/lab/tree/llama-notebooks/notebooks/00_start_here.ipynb"
c.Spawner.environment = {
    "CLASS_COURSE": os.environ.get("CLASS_COURSE", str(course)),
    "CLASS_BIN": str(Path(sys.executable).parent),
    "CLASS_MEMORY": memory if spawner == "simple" else "",
    "OMP_NUM_THREADS": "1",  # many students share few cores: more threads each would only wait for one another
    "OMP_WAIT_POLICY": "PASSIVE",  # and who asks for more lets go of the core while they wait
}
c.Spawner.mem_limit = memory
c.Spawner.start_timeout = c.Spawner.http_timeout = 180  # a whole class logs in within the same minute,
c.JupyterHub.concurrent_spawn_limit = 0  # and nobody is told to come back later
c.JupyterHub.init_spawners_timeout = 60

if spawner == "systemd":  # each student another user and a limit on all of the student's processes together
    c.JupyterHub.spawner_class = "systemdspawner.SystemdSpawner"
    c.SystemdSpawner.dynamic_users = True
    c.SystemdSpawner.unit_name_template = "class-{USERNAME}"
    c.SystemdSpawner.isolate_tmp = c.SystemdSpawner.isolate_devices = True
    c.SystemdSpawner.readonly_paths = [str(course)]
    homes = [Path("/var/lib", name) for name in sorted(students | teachers)]  # links, once systemd has made them
    if taken := [home.name for home in homes if home.is_dir() and not home.is_symlink()]:
        sys.exit(f"/var/lib holds folders of programs named {', '.join(taken)}: give these people other names.")
elif spawner == "simple":  # all students one user of the machine: among people who trust each other, and for tests
    c.JupyterHub.spawner_class = "simple"
    c.SimpleLocalProcessSpawner.home_dir_template = str(state / "homes" / "{username}")
    if is_root and not load_test_token:
        sys.exit("without systemd every student would be root: start the hub as an ordinary user of the machine.")
    c.Spawner.args = ["--allow-root"] if is_root else []
else:
    sys.exit(f"CLASS_SPAWNER={spawner!r} is not known: use systemd or simple.")

# Servers that nobody has used for an hour are stopped; the files stay.
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=3600", "--cull-every=300"],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
if load_test_token:
    c.JupyterHub.services.append({"name": "load-test", "api_token": load_test_token})
    c.JupyterHub.load_roles.append(
        {
            "name": "load-test",
            "scopes": ["admin:users", "admin:servers", "access:servers"],
            "services": ["load-test"],
        }
    )
if shutil.which("node") is None:
    sys.exit("node is missing: the hub's proxy needs Node.js 20 or later; install it, then run setup again.")
