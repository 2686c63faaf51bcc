"""How many students one machine carries: the course's own JupyterHub on loopback, everybody runs a notebook at once.

Needs the hub: make -C teaching/classroom/server setup. Then, with nothing else running:
python teaching/classroom/server/load_test.py

Students are simulated through the hub's REST interface and the kernels' websockets: start the server (which copies the
course), open the notebook, run each code cell when the one before has answered. Half-way one kernel is killed; that
student's files must be as they were saved, and the notebook must run from the top again. The table goes to
load_test.md beside this file.
"""

import argparse
import asyncio
import json
import os
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

HERE = Path(__file__).resolve().parent
TOKEN = secrets.token_hex(16)
PORT = 18_000
ADDRESS = f"127.0.0.1:{PORT}"
NOTE = "written by the student"


async def ask(path, method="GET", body=None, timeout=600):
    """The answer of the hub or of a student's server, as JSON."""
    request = HTTPRequest(
        f"http://{ADDRESS}{path}", method, {"Authorization": f"token {TOKEN}"}, request_timeout=timeout,
        body=None if method in ("GET", "DELETE") else json.dumps(body or {}),
    )  # fmt: skip
    answer = await AsyncHTTPClient().fetch(request)
    return json.loads(answer.body) if answer.body else None


def memory_of(pid):
    """Memory a process would free by ending, shared pages counted in part [MB]."""
    return int(re.search(r"Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[1]) / 1024


def available():
    """Memory the machine can still give [MB]."""
    return int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / 1024


class Student:
    """One simulated student."""

    def __init__(self, name, notebook):
        self.name, self.notebook = name, f"llama-notebooks/notebooks/{notebook}"
        self.started = self.ran = self.memory = self.pid = None

    async def log_in(self):
        """Start the server and wait until it answers."""
        begin = time.perf_counter()
        await ask(f"/hub/api/users/{self.name}/server", "POST")
        while not (await ask(f"/hub/api/users/{self.name}"))["servers"].get("", {}).get("ready"):
            await asyncio.sleep(1)
        self.started = time.perf_counter() - begin
        note = {"type": "file", "format": "text", "content": NOTE}
        await ask(f"/user/{self.name}/api/contents/llama-notebooks/note.txt", "PUT", note)
        self.kernel = (await ask(f"/user/{self.name}/api/kernels", "POST"))["id"]
        content = (await ask(f"/user/{self.name}/api/contents/{self.notebook}"))["content"]
        self.cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]

    async def work(self, stop_after=None):
        """Run the notebook's cells one after the other, or only the first few."""
        url = f"ws://{ADDRESS}/user/{self.name}/api/kernels/{self.kernel}/channels?session_id={uuid.uuid4().hex}"
        request = HTTPRequest(url, headers={"Authorization": f"token {TOKEN}"}, connect_timeout=600)
        socket = await websocket_connect(request, ping_interval=0, max_message_size=2**28)
        begin = time.perf_counter()
        self.pid = int(await self.run(socket, "import os; os.getpid()"))
        folder = str(Path(self.notebook).parent)
        await self.run(socket, f"os.chdir(os.path.join(os.path.expanduser('~'), {folder!r}))")
        for cell in self.cells[:stop_after]:
            await self.run(socket, cell)
        self.ran = time.perf_counter() - begin
        self.memory = memory_of(self.pid)
        socket.close()

    async def run(self, socket, code):
        """Execute one cell; its last value as text."""
        message = {
            "header": {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": self.name,
                       "session": uuid.uuid4().hex, "version": "5.3"},
            "parent_header": {}, "metadata": {}, "channel": "shell",
            "content": {"code": code, "silent": False, "store_history": True, "user_expressions": {},
                        "allow_stdin": False, "stop_on_error": True},
        }  # fmt: skip
        await socket.write_message(json.dumps(message))
        value, replied, idle = None, False, False
        while not (replied and idle):
            text = await socket.read_message()
            if text is None:
                raise ConnectionError(f"{self.name}: the connection was closed.")
            answer = json.loads(text)
            if answer["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            kind, content = answer["header"]["msg_type"], answer["content"]
            if kind == "execute_result":
                value = content["data"]["text/plain"]
            elif kind == "execute_reply":
                replied = True
                if content["status"] != "ok":
                    raise RuntimeError(f"{self.name}: {content.get('ename')}: {content.get('evalue')}\nin:\n{code}")
            elif kind == "status":
                idle = content["execution_state"] == "idle"
        return value

    async def lose_kernel(self):
        """The kernel dies in the middle; files must be as saved, and the notebook must run again."""
        await self.work(stop_after=len(self.cells) // 2)
        dead = self.pid
        os.kill(dead, signal.SIGKILL)
        await asyncio.sleep(10)  # the server starts it anew by itself
        note = await ask(f"/user/{self.name}/api/contents/llama-notebooks/note.txt")
        assert note["content"] == NOTE, f"{self.name}: the note is lost: {note['content']!r}"
        await self.work()
        assert self.pid != dead


async def listen(latencies, memory, stop):
    """How long the hub takes to answer, twice a second."""
    while not stop.is_set():
        begin = time.perf_counter()
        await ask("/hub/api/")
        latencies.append(time.perf_counter() - begin)
        memory.append(available())
        await asyncio.sleep(0.5)


async def lesson(names, notebook):
    """One row of the table: these students log in at once and run the notebook at once."""
    students = [Student(name, notebook) for name in names]
    latencies, memory, stop, before = [], [], asyncio.Event(), available()
    listener = asyncio.create_task(listen(latencies, memory, stop))
    begin = time.perf_counter()
    await asyncio.gather(*(student.log_in() for student in students))
    unlucky, *others = students
    await asyncio.gather(unlucky.lose_kernel(), *(student.work() for student in others))
    whole = time.perf_counter() - begin
    stop.set()
    await listener
    await asyncio.gather(*(ask(f"/hub/api/users/{student.name}/server", "DELETE") for student in students))
    for _ in range(60):
        left = [student.name for student in students if Path(f"/proc/{student.pid}").exists()]
        if not left:
            break
        await asyncio.sleep(1)
    assert not left, f"kernels of {left} are still there after their servers were stopped."

    def of(values, digits=0):
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"

    slow = sorted(latencies)[int(0.95 * len(latencies))]
    return (
        f"| {len(students)} | {of([s.started for s in students])} | {of([s.ran for s in others or students])} | "
        f"{whole:.0f} | {of([s.memory for s in students])} | {(before - min(memory)) / len(students):.0f} | "
        f"{1000 * statistics.median(latencies):.0f} / {1000 * slow:.0f} | {min(memory) / 1024:.1f} |"
    )


async def wait_for_hub(hub):
    """Until the hub answers; a hub that ends or stays silent is an error."""
    for _ in range(120):
        if hub.poll() is not None:
            sys.exit(f"the hub ended with exit status {hub.returncode}; its log is above.")
        try:
            return await ask("/hub/api/", timeout=2)
        except (OSError, HTTPClientError):
            await asyncio.sleep(0.5)
    sys.exit("the hub did not answer within a minute.")


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", nargs="+", type=int, default=[1, 5, 20])
    parser.add_argument("--notebook", default="01_rmsnorm.ipynb")
    parser.add_argument("--out", type=Path, default=HERE / "load_test.md")
    arguments = parser.parse_args()
    hub_command = Path(sys.executable).with_name("jupyterhub")
    if not hub_command.exists():
        sys.exit(f"{hub_command} is missing: make -C teaching/classroom/server setup installs it.")
    AsyncHTTPClient.configure(None, max_clients=500)
    lines = [
        "# A class on one machine",
        "",
        f"`python teaching/classroom/server/load_test.py`: {os.cpu_count()} cores, {available() / 1024:.0f} GiB of memory "
        f"free at the start, one thread per kernel. Everybody logs in at once and runs {arguments.notebook} at once; "
        "one student's kernel is killed half-way (files kept, notebook run again; in the time for all, not in the "
        "others' times). Medians (lowest–highest).",
        "",
        "| students | server ready [s] | notebook [s] | all done [s] | memory of a kernel [MB] | memory per student "
        "[MB] | hub answers, median / 95th percentile [ms] | memory left [GiB] |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        names = [f"student{number:02}" for number in range(max(arguments.students))]
        Path(folder, "students.txt").write_text("\n".join(names), encoding="utf-8")
        settings = {
            "CLASS_STATE": folder, "CLASS_STUDENTS": f"{folder}/students.txt", "CLASS_PORT": str(PORT),
            "CLASS_LOAD_TEST_TOKEN": TOKEN, "CLASS_SPAWNER": "simple",
        }  # fmt: skip
        log = Path(folder, "hub.log").open("w", encoding="utf-8")  # noqa: SIM115 (closed below, after the hub)
        hub = subprocess.Popen(
            [hub_command, "--config", "jupyterhub_config.py"], env=os.environ | settings, stderr=log, stdout=log,
            cwd=HERE, start_new_session=True,
        )  # fmt: skip
        try:
            await wait_for_hub(hub)
            for number in arguments.students:
                lines.append(await lesson(names[:number], arguments.notebook))
                print(lines[-1], flush=True)
        except BaseException:
            print(Path(folder, "hub.log").read_text(encoding="utf-8")[-5000:], file=sys.stderr)
            raise
        finally:
            hub.terminate()
            hub.wait(60)
            log.close()
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
