"""A fleet of real processes that a test starts and stops: Redis, workers, gateways and watchers.

Every process leads a process group, so that a test can kill it with all its children, and none outlives the test.
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

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis

from .fork_server import start
from .waiting import LIMIT, eventually

AGENTS = "tests.support.agents"
RABBITMQ_URL = os.environ.get("TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
ASYNCIO_POOL = "a2a_celery.pool:AsyncioPool"
"""Value of CELERY_CUSTOM_WORKER_POOL for a worker with the pool "asyncio"."""

PORTS = range(
    10_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    32_768,
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
)
"""Ports of this test process. Concurrent test processes have other ports."""

_given: set[int] = set()


def free_port() -> int:
    """Return a free port that neither other tests nor the kernel assign before the server that needs it is up.

    The kernel also assigns the ports that it returns for port 0 to outgoing connections. A fleet opens many of these,
    and one of them could take the port before the server is up.
    """
    while True:
        port = random.SystemRandom().choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            _given.add(port)
            return port


class Process:
    """A process of a fleet. `log` is the file of its output."""

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
    def running(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        """Return the output of the process so far."""
        return self.log.read_text(errors="replace")

    def wait_for_output(self, text: str, within: float = LIMIT) -> None:
        """Wait until the output contains `text`. Fail if the process ends before it has printed `text`."""

        def printed() -> bool:
            running = self.running  # check before reading: a process may print the text and end
            if text in self.output():
                return True
            assert running, f"{self.name} ended:\n{self.output()[-3000:]}"
            return False

        eventually(printed, within=within, what=f"{self.name} prints {text!r}")

    def signal(self, number: int) -> None:
        """Send a signal to the process only."""
        self.popen.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and all its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, as if the machine failed."""
        self.signal_group(signal.SIGKILL)
        self.popen.wait(LIMIT)

    def terminate(self) -> None:
        """Send SIGTERM, but only once, because a second one makes a worker drop its runs."""
        if self.running and not self._terminated:
            self._terminated = True
            self.signal(signal.SIGTERM)

    def stop(self, within: float = LIMIT) -> int:
        """Send SIGTERM, and SIGKILL to the group after at most `within` seconds. Return the exit code."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(within)
        self.signal_group(signal.SIGKILL)
        code = self.popen.wait(LIMIT)
        self._output.close()
        return code


class Gateway(Process):
    """A gateway process. `url` is its HTTP address, and `grpc` its gRPC address, or "" without gRPC."""

    url: str
    grpc: str


class Fleet:
    """Processes with a Redis server and a broker ("redis" or "rabbitmq")."""

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
        """Start a stock Celery worker and return it when it is ready.

        Args:
            pool: Celery's name of the pool, or "asyncio".
            concurrency: Processes, threads or coroutines of the pool.
            app: Module of the app, or "" for the app of the fleet.
            mingle: Ask the other workers for their revoked tasks at the start. This takes a second.
            env: Additional environment variables.
        """
        name = f"worker-{len(self.processes)}"
        # RabbitMQ may be shared with other fleets, and a node's own queue is exclusive
        if pool == "asyncio":
            pool, env = "custom", {"CELERY_CUSTOM_WORKER_POOL": ASYNCIO_POOL, **env}
        arguments = ["-n", f"{name}-{self.queue}@%h", "-P", pool, "-c", str(concurrency), "-l", "INFO"]
        if not mingle:
            arguments.append("--without-mingle")
        worker = self._start(Process, name, ["worker", *arguments], env, app)
        worker.wait_for_output(" ready.")
        return worker

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
        """Start a gateway and, if `wait` is true, wait until it serves. With `instead_of`, use the address of that
        gateway."""
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
            eventually(lambda: self._alive(gateway), what="the gateway serves")
        return gateway

    def again(self, gateway: Gateway) -> Gateway:
        """Start a killed gateway again at its address."""
        process = Gateway(f"{gateway.name}-again", gateway.command, gateway.env, gateway.log)
        process.url, process.grpc = gateway.url, gateway.grpc
        self.processes.append(process)
        eventually(lambda: self._alive(process), what="the gateway serves again")
        return process

    def watcher(self, **env: str) -> Process:
        """Start a watcher and wait until it is ready."""
        watcher = self._start(Process, f"watcher-{len(self.processes)}", ["a2a", "watcher"], env)
        watcher.wait_for_output("watcher started")
        return watcher

    def start(self, name: str, *arguments: str, **env: str) -> Process:
        """Start ``celery -A … <arguments>``."""
        process: Process = self._start(Process, name, list(arguments), env)
        return process

    def command(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``celery -A … <arguments>`` to its end."""
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
        """Kill all processes, then stop Redis. Delete the fleet's queues and exchanges from RabbitMQ.

        A measurement of coverage loses the data of killed processes, so it stops them by SIGTERM.
        """
        if "COVERAGE_PROCESS_START" in os.environ:
            for process in reversed(self.processes):
                process.terminate()
        for process in reversed(self.processes):
            process.stop(within=10.0 if "COVERAGE_PROCESS_START" in os.environ else 0.0)
        self.redis.stop()
        if self.broker_url == RABBITMQ_URL:
            with kombu.Connection(self.broker_url) as connection:
                for queue in self.queues:
                    connection.default_channel.queue_delete(queue)
                control = f"{self.queue}-control.pidbox"
                for exchange in (control, f"reply.{control}", f"{self.queue}-events"):  # exist if TEST_ALONE was set
                    connection.default_channel.exchange_delete(exchange)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the fleet, for processes that are not started with ``celery``."""
        return dict(self._env)

    def environment_without(self, name: str) -> None:
        """Remove `name` from the environment of processes that start later."""
        del self._env[name]

    def logs(self) -> str:
        """Return the last output of every process, for a failure message."""
        return "\n".join(f"--- {p.name}\n{p.output()[-2000:]}" for p in self.processes)

    def _alive(self, gateway: Gateway) -> bool:
        assert gateway.running, f"the gateway ended:\n{gateway.output()[-3000:]}"
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
    """Run a fleet, and stop it when the block ends."""
    fleet = Fleet(folder, broker, **options)
    try:
        yield fleet
    except BaseException:
        sys.stderr.write(fleet.logs())
        raise
    finally:
        fleet.stop()
