"""`AgentFleet`, which runs a gateway, a watcher and workers as processes, with an embedded Redis server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Self

from ..cli.dev.child import kill_group
from ..cli.dev.embedded_redis import EmbeddedRedis
from ..cli.dev.environment import broker_variables
from ..client import RemoteAgent
from ..clock import SYSTEM_CLOCK
from ..errors import A2ACeleryError
from ..settings.urls import RESULTS_VARIABLE
from .process_guard import ProcessGuard

START_TIMEOUT = 60.0
"""Default time within which each process must start, in seconds."""

STOP_TIMEOUT = 15.0
"""Seconds from SIGTERM to SIGKILL."""

LEASE_TTL = 3.0
"""Default `lease_ttl` of a fleet, in seconds. With a short lease, the runs of a killed worker are recovered quickly."""

OUTPUT_POLL_INTERVAL = 0.05

WORKER_READY = re.compile(r' ready\.("|$)', re.MULTILINE)
WATCHER_READY = re.compile(r"watcher started")
GATEWAY = ("a2a", "gateway", "--port", "0")
GATEWAY_READY = re.compile(r"running on (http://127\.0\.0\.1:\d+)")


class FleetError(A2ACeleryError):
    """Error for a process of an `AgentFleet` that did not start. The message ends with the last output of the
    process."""


class FleetProcess:
    """Process of a fleet, with its output in the file `log`."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def output(self) -> str:
        """Return the output so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, line: re.Pattern[str], timeout: float) -> re.Match[str]:
        """Wait for output that matches `line`, and return the first match.

        Raises:
            FleetError: The process ended, or its output has no match after `timeout` seconds.
        """
        deadline = SYSTEM_CLOCK.monotonic() + timeout
        while True:
            has_ended = self._popen.poll() is not None
            if match := line.search(self.output()):
                return match
            if has_ended or SYSTEM_CLOCK.monotonic() > deadline:
                reason = "ended" if has_ended else f"did not start within {timeout:g} s"
                raise FleetError(f"the {self.name} {reason}:\n{self.output()[-3000:]}")
            time.sleep(OUTPUT_POLL_INTERVAL)

    def kill(self) -> None:
        """Kill the process and its children, as if the machine had failed."""
        kill_group(self.pid)
        self._popen.wait()

    def terminate(self) -> None:
        """Ask the process to stop."""
        if self._popen.poll() is None:
            self._popen.terminate()

    def stop(self) -> None:
        """Stop the process, wait up to `STOP_TIMEOUT` seconds until it has ended, and kill the remaining processes
        of its group."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(STOP_TIMEOUT)
        self.kill()


class AgentFleet:
    """Gateway, watcher and workers of an app as processes, for tests that `AgentTester` does not support.

    ``with AgentFleet("acme.app") as fleet`` starts the processes in the current folder and stops them at the end. The
    processes use an embedded Redis server as store, broker and result backend (extra ``testing``) instead of the
    servers that the app configures. The processes also end if the test is killed.

    Args:
        app: App, as for ``celery -A``.
        workers: Number of worker processes.
        worker_options: Further arguments of ``celery worker``, for example ``["-P", "threads", "-c", "4"]``.
        settings: Settings by name that differ from those of the app. `lease_ttl` is 3 seconds by default.
        env: Further environment variables of the processes.
        start_timeout: Seconds within which each process must start.

    Attributes:
        url: Address of the gateway. Set only inside the ``with`` block.

    Raises:
        FleetError: A process did not start. Raised when the block begins.
        ConfigError: The Redis server is not installed or did not start. Raised when the block begins.
    """

    url: str

    def __init__(
        self,
        app: str,
        *,
        workers: int = 1,
        worker_options: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self._app = app
        self._worker_count = workers
        self._worker_options = list(worker_options)
        self._changes: dict[str, Any] = {"lease_ttl": LEASE_TTL, **(settings or {})}
        self._extra_env = dict(env or {})
        self._start_timeout = start_timeout
        self._processes: list[FleetProcess] = []
        self._workers: list[FleetProcess] = []
        self._started = 0
        self._secret = token_urlsafe(32)

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="a2a-fleet-"))
        self._guard = ProcessGuard()
        self._guard.add_folder(self._folder)
        try:
            self._redis = EmbeddedRedis()
            self._guard.add_folder(self._redis.home)
            self._redis.start()
            assert self._redis.process is not None
            self._guard.add_group(self._redis.process.pid)
            watcher, gateway = self._start("watcher", "a2a", "watcher"), self._start("gateway", *GATEWAY)
            for _ in range(self._worker_count):
                self.start_worker(wait=False)
            for worker in self._workers:
                worker.wait_for(WORKER_READY, self._start_timeout)
            watcher.wait_for(WATCHER_READY, self._start_timeout)
            self.url = gateway.wait_for(GATEWAY_READY, self._start_timeout)[1]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            process.stop()
        if hasattr(self, "_redis"):
            self._redis.stop()
        self._guard.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def agent(self, name: str, **options: Any) -> RemoteAgent:
        """Return a client of the agent `name`. `options` are arguments of `RemoteAgent`."""
        return RemoteAgent(f"{self.url}/agents/{name}/", **options)

    def kill_workers(self) -> None:
        """Kill all workers with SIGKILL. After the leases of their runs have expired, other workers execute the
        runs again."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def start_worker(self, *, wait: bool = True) -> None:
        """Start a further worker.

        Args:
            wait: False to return before the worker is ready.

        Raises:
            FleetError: The worker did not start.
        """
        arguments = ["-n", f"worker-{self._started}@%h", "--without-mingle", *self._worker_options, "-l", "INFO"]
        worker = self._start("worker", "worker", *arguments)
        self._workers.append(worker)
        if wait:
            worker.wait_for(WORKER_READY, self._start_timeout)

    def output(self) -> str:
        """Return the output of all processes so far, for the message of a failed test."""
        return "\n".join(f"--- {process.log.stem}\n{process.output()}" for process in self._processes)

    def _start(self, name: str, *arguments: str) -> FleetProcess:
        self._started += 1
        command = [sys.executable, "-m", "celery", "-A", self._app, *arguments]
        process = FleetProcess(name, command, self._env(), self._folder / f"{name}-{self._started}.log")
        self._guard.add_group(process.pid)
        self._processes.append(process)
        return process

    def _env(self) -> dict[str, str]:
        names = {name.removeprefix("a2a_"): value for name, value in self._changes.items()}
        settings = {f"A2A_{name.upper()}": _text(value) for name, value in names.items()}
        return {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            **broker_variables(self._extra_env, self._redis.broker_url),
            RESULTS_VARIABLE: self._redis.broker_url,
            "A2A_STORE_URL": self._redis.store_url,
            "A2A_PUBLIC_URL": "",
            "A2A_SECRET_KEY": self._secret,
            **settings,
            **self._extra_env,
        }


def _text(value: Any) -> str:
    """Return the value of a setting as text for an environment variable."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)
