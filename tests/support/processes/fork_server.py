"""Fork server that has imported Celery, the SDK and a2a_celery, and forks the processes of fleets.

A fresh process of a fleet spends two to three seconds of CPU time on imports. A forked process spends none. `start`
returns an object with the interface of `subprocess.Popen`. A process that must not inherit the imports is started with
`subprocess.Popen`.
"""

from __future__ import annotations

import array
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from tests.support import ROOT

PRELOADED = (
    "a2a_celery",
    "a2a_celery.operations.submitter",
    "a2a_celery.features.families.agent_calls",
    "a2a_celery.agent_cards",
    "a2a_celery.cli.commands",
    "a2a_celery.cli.serve.h11_protocol",
    "a2a_celery.client.calling",
    "a2a_celery.execution.agent_worker",
    "a2a_celery.gateway.asgi",
    "a2a_celery.watcher.service",
    "billiard.heap",
    "billiard.popen_fork",
    "billiard.synchronize",
    "celery.app.control",
    "celery.app.log",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.pidbox",
    "celery.worker.strategy",
    "cffi.cparser",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "uvicorn",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
)

ADK = (
    "a2a_celery.frameworks.adk",
    "google.adk.a2a.executor.a2a_agent_executor",
    "google.adk.apps.app",
    "google.adk.flows.llm_flows.auto_flow",
    "google.adk.runners",
    "google.adk.tools.function_tool",
)
AGENT_FRAMEWORK = ("a2a_celery.frameworks.agent_framework", "agent_framework._agents")
LANGGRAPH = ("a2a_celery.frameworks.langgraph", "langgraph.checkpoint.memory", "langgraph.graph", "langgraph.prebuilt")
LLAMAINDEX = ("a2a_celery.frameworks.llamaindex", "llama_index.core.agent.workflow", "workflows.plugins.basic")
OPENAI_AGENTS = ("a2a_celery.frameworks.openai_agents", "agents.testing")
PYDANTIC_AI = ("a2a_celery.frameworks.pydantic_ai", "pydantic_ai.models.function")
STRANDS = ("a2a_celery.frameworks.strands", "strands")

FRAMEWORKS = {
    "tests.support.agents.early_stops": (*ADK, *AGENT_FRAMEWORK, *STRANDS),
    "tests.support.agents.framework_agents": (
        *ADK,
        *AGENT_FRAMEWORK,
        *LLAMAINDEX,
        *OPENAI_AGENTS,
        *PYDANTIC_AI,
        *STRANDS,
    ),
    "tests.support.agents.langgraph_agents": LANGGRAPH,
    "tests.support.agents.llamaindex_agents": LLAMAINDEX,
    "workers.app": (
        *(*ADK, *AGENT_FRAMEWORK, *LANGGRAPH, *LLAMAINDEX, *OPENAI_AGENTS, *PYDANTIC_AI, *STRANDS),
        "llama_index.core.llms.mock",
    ),
}
"""Additional modules that a server imports, by app. Each of these apps has a separate server.

A server skips frameworks that are not installed, because CrewAI's environment has no other framework.
"""

CUSTOM_POOL = "CELERY_CUSTOM_WORKER_POOL"
"""Environment variable that Celery reads at import. A forked process reads the variable again."""

FRESH = ("COVERAGE_", "GRPC_", "OTEL_", "PROMETHEUS_", "PYTHON", "SENTRY_")
"""Prefixes of environment variables that other modules, or the interpreter, read at import or start. Sentry must patch
Celery before the worker's modules are imported."""

FRESH_PROCESSES = "FRESH_PROCESSES"
"""Environment variable for benchmarks. If the test process has the variable, every process starts a fresh
interpreter."""

UNBUFFERED = "PYTHONUNBUFFERED"
"""The only variable with the prefix PYTHON that does not require a fresh interpreter."""


def start(
    command: list[str], env: Mapping[str, str], output: IO[bytes], errors: IO[bytes] | None = None
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Run `command` in the repository's root, in a new session and process group.

    Args:
        command: Command. ``[sys.executable, "-m", module, …]`` is forked, unless `env` needs a fresh interpreter.
        env: The complete environment of the process.
        output: File that receives standard output.
        errors: File that receives standard error, or None for `output`.
    """
    if _needs_fresh_interpreter(command, env):
        errors = errors or output
        return subprocess.Popen(command, env=env, cwd=ROOT, stdout=output, stderr=errors, start_new_session=True)
    frameworks = next((FRAMEWORKS[word] for word in command if word in FRAMEWORKS), ())
    return _server(frameworks).fork(command, env, output, errors or output)


def _needs_fresh_interpreter(command: list[str], env: Mapping[str, str]) -> bool:
    """Return True if a fork is impossible.

    This holds for programs that are not Python modules, for gevent, which patches modules at import, and for
    environments with a changed variable that is read at import.
    """
    if FRESH_PROCESSES in os.environ:
        return True
    changed_names = (name for name in env if name.startswith(FRESH) and env[name] != os.environ.get(name))
    return (
        command[:2] != [sys.executable, "-m"]
        or "gevent" in command
        or any(name != UNBUFFERED for name in changed_names)
    )


class ForkedProcess:
    """Child process of the fork server, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, command: list[str], pid: int, status: int) -> None:
        """Create the client side of a forked process.

        Args:
            command: Command of the process.
            pid: Id of the process.
            status: Read end of the pipe to which the server writes the exit status.
        """
        self.args = command
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, which is negative if a signal ended the process, or None if the process is running."""
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has exited and return the exit code.

        Raises:
            subprocess.TimeoutExpired: The process still runs after `timeout` seconds. None means no limit.
        """
        code = self._read_status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process unless the process has exited."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _read_status(self, timeout: float | None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            if self.returncode is None:
                timeout_ms = None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
                poll = select.poll()  # select() accepts no file descriptor above 1023
                poll.register(self._status, select.POLLIN)
                if poll.poll(timeout_ms):
                    data = os.read(self._status, 4)
                    os.close(self._status)
                    assert data, f"the fork server ended before process {self.pid}"
                    self.returncode = os.waitstatus_to_exitcode(struct.unpack("i", data)[0])
            return self.returncode


class _Server:
    """Client of one server process."""

    def __init__(self, frameworks: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("A2A_", "CELERY_"))}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.fork_server", str(server_socket.fileno()), *frameworks],
            cwd=ROOT,
            env={**env, UNBUFFERED: "1", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[server_socket.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        server_socket.close()

    def fork(self, command: list[str], env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]) -> ForkedProcess:
        readable, writable = os.pipe()
        request = json.dumps({"command": command, "env": dict(env)}).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [request], [output.fileno(), errors.fileno(), writable])
                reply = self._socket.recv(64)
        finally:
            os.close(writable)
        assert reply, "the fork server ended; its traceback is in the output of this test run"
        return ForkedProcess(command, int(reply), readable)


@functools.cache
def _server(frameworks: tuple[str, ...]) -> _Server:
    return _Server(frameworks)


def _serve(control: socket.socket, frameworks: list[str]) -> None:
    """Fork a process for each request until the client closes its socket. Return only in forked processes."""
    for module in PRELOADED:
        importlib.import_module(module)
    for module in frameworks:
        with suppress(ModuleNotFoundError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"an import started a thread, which a fork would lose: {threading.enumerate()}"

    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_reader, False)
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}  # process id: write end of its status pipe
    while True:
        ready, _, _ = select.select([control, wake_reader], [], [])
        if wake_reader in ready:
            with suppress(BlockingIOError):
                os.read(wake_reader, 4096)
            _reap(statuses)
        if control not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not data:
            os._exit(0)
        output, errors, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (wake_reader, wake_writer, control.detach(), status, *statuses.values()):
                os.close(descriptor)
            _become(json.loads(data), output, errors)
            return
        os.close(output)
        os.close(errors)
        statuses[pid] = status
        control.send(str(pid).encode())


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        descriptor = statuses.pop(pid)
        with suppress(BrokenPipeError):
            os.write(descriptor, array.array("i", [status]).tobytes())
        os.close(descriptor)


def _become(request: dict[str, Any], output: int, errors: int) -> None:
    """Set up the session, output and environment of the forked process, and run the requested module."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.environ.clear()
    os.environ.update(request["env"])
    importlib.import_module("celery.concurrency").ALIASES["custom"] = os.environ.get(CUSTOM_POOL)
    if "coverage" in sys.modules:
        importlib.import_module("tests.tools.measure_coverage").enter_context(os.environ.get("PYTEST_CURRENT_TEST", ""))
    _, _, module, *sys.argv[1:] = request["command"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
