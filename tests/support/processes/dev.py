"""Harness for the supervisor of ``a2a dev`` and ``a2a-celery demo``."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from time import monotonic

import httpx
import psutil

from tests.support.waiting import LIMIT, eventually

STOP = 5.0
"""Documented maximum number of seconds for a shutdown."""

STOP_MARGIN = 10.0
"""Additional seconds for a loaded machine. The total is shorter than the minute for which the agents work."""


class Dev:
    """Supervisor under test, and the processes that the supervisor has started.

    Attributes:
        env: Environment in which the commands of the app find the fleet.
    """

    def __init__(self, command: list[str], folder: Path, log: Path, **env: str) -> None:
        self.log = log
        self._known: dict[int, psutil.Process] = {}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("A2A_", "CELERY_"))}
        runtime = log.with_suffix(".runtime")
        runtime.mkdir(mode=0o700)
        self.env = {**clean, "XDG_RUNTIME_DIR": str(runtime)}
        with log.open("wb") as output:
            self.popen = subprocess.Popen(
                command, cwd=folder, env={**self.env, **env}, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def url(self) -> str:
        """Gateway's address."""
        match = re.search(r"^# Ready: \d+ agents? at (\S+)", self.output(), re.MULTILINE)
        assert match, self.output()
        return match[1]

    @property
    def home(self) -> Path:
        """Folder of the embedded Redis."""
        match = re.search(r"embedded Redis at unix://(\S+)/redis.sock", self.output())
        assert match, self.output()
        return Path(match[1])

    @property
    def block(self) -> str:
        """Output from the line "# Ready" on, which suggests commands."""
        match = re.search(r"^# Ready:.*^# Ctrl-C stops everything$", self.output(), re.MULTILINE | re.DOTALL)
        assert match, self.output()
        return match[0]

    @property
    def address_files(self) -> list[Path]:
        """Address files of running supervisors."""
        return list(Path(self.env["XDG_RUNTIME_DIR"]).rglob("*.json"))

    def command(self, step: int) -> str:
        """Return the suggested command with the number `step`."""
        match = re.search(rf"^# {step}\. .*?\n(.*?)\n#", self.block, re.MULTILINE | re.DOTALL)
        assert match, self.block
        return match[1]

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_ready(self) -> Dev:
        def ready() -> bool:
            assert self.popen.poll() is None, self.output()
            return "# Ctrl-C stops everything" in self.output()

        eventually(ready, what="it says what to try")
        self.processes()
        return self

    def processes(self) -> list[psutil.Process]:
        """Return all descendants of the supervisor that this method has ever found, including terminated processes."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.popen.pid).children(recursive=True):
                self._known[process.pid] = process
        return list(self._known.values())

    def child(self, *words: str) -> psutil.Process:
        """Return the direct child of the supervisor whose command line contains `words`."""
        for process in psutil.Process(self.popen.pid).children():
            if set(words) <= set(" ".join(process.cmdline()).split()):
                return process
        raise AssertionError(f"no child {words}: {self.output()}")

    def end(self) -> None:
        """Stop the supervisor, and kill processes that a failed test left running."""
        self.processes()
        with suppress(subprocess.TimeoutExpired):
            self.popen.terminate()
            self.popen.wait(2 * STOP)
        self.popen.kill()
        for process in self._known.values():
            with suppress(psutil.NoSuchProcess):  # psutil detects that the id belongs to another process
                process.kill()
        self.popen.wait(10)

    def require_stopped(self, since: float) -> None:
        """Require that no process and no folder remains `STOP` + `STOP_MARGIN` seconds after `since`."""
        remaining = max(0.0, STOP + STOP_MARGIN - (monotonic() - since))
        eventually(
            lambda: not any(map(_alive, self._known.values())), within=remaining, what=f"all gone: {self._alive()}"
        )
        eventually(lambda: not self.home.exists(), what="its folder is gone")

    def _alive(self) -> list[str]:
        return [" ".join(p.cmdline()) for p in self._known.values() if _alive(p)]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def busy(dev: Dev, agent: str, text: str) -> str:
    """Start a task, wait until the task is WORKING, and return its id."""
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]}
    task = httpx.post(
        f"{dev.url}/agents/{agent}/message:send",
        headers={"A2A-Version": "1.0"},
        json={"message": message, "configuration": {"returnImmediately": True}},
        timeout=LIMIT,
    ).json()["task"]

    def works() -> bool:
        content = httpx.get(
            f"{dev.url}/agents/{agent}/tasks/{task['id']}", headers={"A2A-Version": "1.0"}, timeout=LIMIT
        )
        return bool(content.json()["status"]["state"] == "TASK_STATE_WORKING")

    eventually(works, what="the agent works")
    return str(task["id"])
