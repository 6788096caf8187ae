"""Fleet of real processes for a test: Redis, workers, gateways and watchers.

Every process leads a process group, so that a signal to the group reaches all child processes. No process outlives the
test.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import httpx
import kombu
import psutil

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from tests.support.processes.fork_server import start
from tests.support.waiting import LIMIT, eventually

AGENTS = "tests.support.agents.basic"
RABBITMQ_URL = os.environ.get("TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
ASYNCIO_POOL = "a2a_celery.pool:AsyncioPool"
"""Value of CELERY_CUSTOM_WORKER_POOL for a worker with the pool "asyncio"."""

PORTS = range(
    10_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    32_768,
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
)
"""Ports for this test process. The ports of concurrent test processes are disjoint."""

_reserved_ports: set[int] = set()


def free_port() -> int:
    """Return a free port that neither another test nor the kernel takes before the server listens on it.

    The ports of `PORTS` are below the kernel's ephemeral ports. A port that the kernel returns for port 0 is ephemeral,
    and one of the fleet's many outgoing connections could take the port before the server listens.
    """
    while True:
        port = random.SystemRandom().choice(PORTS)
        if port in _reserved_ports:
            continue
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            _reserved_ports.add(port)
            return port


class Process:
    """Process of a fleet. `log` is the file with the output of the process."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.env = env
        self._terminated = False
        self._output = log.open("ab")
        self.popen = start(command, env, self._output)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        """Return the output of the process so far."""
        return self.log.read_text(errors="replace")

    def wait_for_output(self, text: str, within: float = LIMIT) -> None:
        """Wait until the output contains `text`. Fail if the process exits before the output contains `text`."""

        def has_printed() -> bool:
            is_running = self.is_running  # check before reading, because a process may print the text and exit
            if text in self.output():
                return True
            assert is_running, f"{self.name} ended:\n{self.output()[-3000:]}"
            return False

        eventually(has_printed, within=within, what=f"{self.name} prints {text!r}")

    def signal(self, number: int) -> None:
        """Send a signal to the process only."""
        self.popen.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and all its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def descendants(self) -> list[psutil.Process]:
        """Return all descendants of the process, also those in other process groups, such as the fleet of ``a2a dev``.
        The list is empty if the process has ended."""
        if self.is_running:
            with suppress(psutil.NoSuchProcess):
                return psutil.Process(self.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """Send SIGKILL to the process group, like a failure of the machine."""
        self.signal_group(signal.SIGKILL)
        self.popen.wait(LIMIT)

    def terminate(self) -> None:
        """Send SIGTERM unless it has already been sent. A second SIGTERM makes a worker drop its runs."""
        if self.is_running and not self._terminated:
            self._terminated = True
            self.signal(signal.SIGTERM)

    def stop(self, within: float = LIMIT) -> int:
        """Send SIGTERM, and after at most `within` seconds SIGKILL to the process group. Return the exit code."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(within)
        self.signal_group(signal.SIGKILL)
        code = self.popen.wait(LIMIT)
        self._output.close()
        return code


class Gateway(Process):
    """Gateway process. `url` is the HTTP URL. `grpc` is the gRPC address, or "" without gRPC."""

    url: str
    grpc: str


class Fleet:
    """Processes of one test, with a Redis server and a broker ("redis" or "rabbitmq")."""

    def __init__(self, folder: Path, broker: str = "redis", app: str = AGENTS, **env: str) -> None:
        self.folder = folder
        self.redis = EmbeddedRedis()
        self.redis.start()
        self.queue = f"test-{uuid4().hex[:8]}"
        self.queues = [self.queue]
        self.broker_url = self.redis.broker_url if broker == "redis" else RABBITMQ_URL
        self.processes: list[Process] = []
        self._app = app
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("A2A_", "CELERY_"))},
            "PYTHONUNBUFFERED": "1",
            "CELERY_BROKER_URL": self.broker_url,
            "A2A_STORE_URL": self.redis.store_url,
            "TEST_QUEUE": self.queue,
            "TEST_RESULTS": self.redis.broker_url,
            **env,
        }

    def worker(
        self, *, pool: str = "prefork", concurrency: int = 2, app: str = "", mingle: bool = False, **env: str
    ) -> Process:
        """Start a Celery worker and wait until the worker is ready.

        Args:
            pool: Celery's name of the pool, "asyncio", or "spawn" for prefork with spawned children.
            concurrency: Processes, threads or coroutines of the pool.
            app: Module of the app, or "" for the app of the fleet.
            mingle: Synchronize revoked tasks with the other workers at the start, which takes a second.
            env: Additional environment variables.
        """
        name = f"worker-{len(self.processes)}"
        # other fleets may share RabbitMQ, and the queue of a node name is exclusive
        if pool == "asyncio":
            pool, env = "custom", {"CELERY_CUSTOM_WORKER_POOL": ASYNCIO_POOL, **env}
        options = []
        if pool == "spawn":
            pool, options = "prefork", ["--pool-start-method", "spawn"]
        arguments = ["-n", f"{name}-{self.queue}@%h", "-P", pool, "-c", str(concurrency), "-l", "INFO", *options]
        if not mingle:
            arguments.append("--without-mingle")
        worker = self._start(Process, name, ["worker", *arguments], env, app)
        worker.wait_for_output(" ready.")
        return worker

    def node_name(self, worker: Process) -> str:
        """Return Celery's node name of a worker."""
        return f"{worker.name}-{self.queue}@{socket.gethostname()}"

    def gateway(
        self,
        *,
        grpc: bool = False,
        wait: bool = True,
        workers: int = 1,
        log_level: str = "info",
        access_log: bool = False,
        instead_of: Gateway | None = None,
        **env: str,
    ) -> Gateway:
        """Start a gateway. If `wait` is true, wait until the gateway serves. `instead_of` is a gateway whose address
        the new gateway reuses."""
        port = free_port() if instead_of is None else int(instead_of.url.rpartition(":")[2])
        command = ["a2a", "gateway", "--port", str(port), "--workers", str(workers), "--log-level", log_level]
        if access_log:
            command.append("--access-log")
        address = ""
        if grpc:
            grpc_port = free_port() if instead_of is None else int(instead_of.grpc.rpartition(":")[2])
            address = f"127.0.0.1:{grpc_port}"
            command += ["--grpc-port", str(grpc_port)]
            env = {"A2A_GRPC_PUBLIC_ADDRESS": address} | env
        gateway = self._start(Gateway, f"gateway-{len(self.processes)}", command, env)
        gateway.url, gateway.grpc = f"http://127.0.0.1:{port}", address
        if wait:
            eventually(lambda: self.is_serving(gateway), what="the gateway serves")
        return gateway

    def restart_gateway(self, gateway: Gateway) -> Gateway:
        """Start a new process at the address of a killed gateway."""
        process = Gateway(f"{gateway.name}-again", gateway.command, gateway.env, gateway.log)
        process.url, process.grpc = gateway.url, gateway.grpc
        self.processes.append(process)
        eventually(lambda: self.is_serving(process), what="the gateway serves again")
        return process

    def watcher(self, **env: str) -> Process:
        """Start a watcher and wait until the watcher has started."""
        watcher = self._start(Process, f"watcher-{len(self.processes)}", ["a2a", "watcher"], env)
        watcher.wait_for_output("watcher started")
        return watcher

    def start(self, name: str, *arguments: str, **env: str) -> Process:
        """Start ``celery -A … <arguments>``."""
        process: Process = self._start(Process, name, list(arguments), env)
        return process

    def command(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``celery -A … <arguments>`` to completion and return the result."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = start(self._celery(*arguments), {**self._env, **env}, output, errors)
            try:
                code = process.wait(LIMIT)
            finally:
                process.kill()
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(process.args, code, output.read().decode(), errors.read().decode())

    def stop(self) -> None:
        """Kill all processes, stop Redis, and delete the fleet's queues and exchanges from RabbitMQ.

        During a coverage measurement, send SIGTERM first, because a killed process loses its data.
        """
        if "COVERAGE_PROCESS_START" in os.environ:
            for process in reversed(self.processes):
                process.terminate()
        descendants = [child for process in self.processes for child in process.descendants()]
        for process in reversed(self.processes):
            process.stop(within=10.0 if "COVERAGE_PROCESS_START" in os.environ else 0.0)
        for child in descendants:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.redis.stop()
        if self.broker_url == RABBITMQ_URL:
            with kombu.Connection(self.broker_url) as connection:
                for queue in self.queues:
                    connection.default_channel.queue_delete(queue)
                control = f"{self.queue}-control.pidbox"
                for exchange in (control, f"reply.{control}", f"{self.queue}-events"):  # if TEST_ALONE was set
                    connection.default_channel.exchange_delete(exchange)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the fleet, for processes that the fleet does not start."""
        return dict(self._env)

    def set_variable(self, name: str, value: str) -> None:
        """Set the environment variable `name` of processes that start later."""
        self._env[name] = value

    def environment_without(self, name: str) -> None:
        """Remove the variable `name` from the environment of processes that start later."""
        del self._env[name]

    def logs(self) -> str:
        """Return the last 2000 characters of the output of every process."""
        return "\n".join(f"--- {p.name}\n{p.output()[-2000:]}" for p in self.processes)

    def is_serving(self, gateway: Gateway) -> bool:
        """Return True if the gateway responds."""
        assert gateway.is_running, f"the gateway ended:\n{gateway.output()[-3000:]}"
        try:
            return httpx.get(f"{gateway.url}/health/live", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def _start(self, kind, name, arguments, env, app=""):  # type: ignore[no-untyped-def]
        process = kind(name, self._celery(*arguments, app=app), {**self._env, **env}, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def _celery(self, *arguments: str, app: str = "") -> list[str]:
        return [sys.executable, "-m", "celery", "-A", app or self._app, *arguments]


@contextmanager
def running_fleet(folder: Path, broker: str = "redis", **options: str) -> Iterator[Fleet]:
    """Run a fleet while the block runs. If the block fails, print the output of the processes."""
    fleet = Fleet(folder, broker, **options)
    try:
        yield fleet
    except BaseException:
        sys.stderr.write(fleet.logs())
        raise
    finally:
        fleet.stop()
