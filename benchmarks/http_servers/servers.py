"""Compared HTTP servers: their commands, their processes and a client for raw bytes."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from a2a_celery.cli.serve.gateway import GRACEFUL, H11, HTTPTOOLS
from tests.support.processes.fleet import Process, free_port
from tests.support.waiting import eventually

from .. import processor

APPLICATION = "benchmarks.http_servers.application:application"
GATEWAY = "a2a_celery.cli.serve.gateway:asgi"

FLOOD = 1 << 24
"""Maximum number of bytes that `Client.flood` sends."""

STALL = 1.0
"""Seconds after which a server that accepts no byte has stopped reading."""

CLOSE_LIMIT = 45.0
"""Maximum seconds that `Client.closing_time` waits."""


def uvicorn(protocol: str) -> list[str]:
    """Return the command of uvicorn with the options of ``a2a gateway``."""
    limits = ["--timeout-graceful-shutdown", str(GRACEFUL), "--timeout-keep-alive", "75"]
    quiet = ["--no-access-log", "--no-server-header", "--no-proxy-headers", "--log-level", "critical"]
    return [sys.executable, "-m", "uvicorn", "--http", protocol, "--ws", "none", *limits, *quiet]


def granian() -> list[str]:
    """Return the command of granian with one worker process, HTTP/1 only, and the gateway's limit for the shutdown.

    The time limit for headers is 30 seconds by default, like `HEAD_TIMEOUT`.
    """
    limits = ["--http", "1", "--no-ws", "--workers-kill-timeout", str(GRACEFUL)]
    return [sys.executable, "-m", "granian", "--interface", "asgi", *limits, "--log-level", "critical"]


SERVERS = {
    "h11": uvicorn(H11),
    "httptools": uvicorn(HTTPTOOLS),
    "granian": granian(),
    "plain-h11": uvicorn("h11"),
    "plain-httptools": uvicorn("httptools"),
}
"""Commands by name. The plain servers are uvicorn without the gateway's protocol classes."""


@dataclass(frozen=True, slots=True)
class Server:
    """Running server process on a port of 127.0.0.1."""

    process: Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> Client:
        """Open a connection."""
        return Client(self.port)

    def count(self, name: str) -> int:
        """Return a counter of the application."""
        return int(httpx.get(f"{self.url}/counts").json()[name])

    def memory(self) -> float:
        """Return the resident memory of the server, in bytes."""
        return processor.resident_kib(self.process.pid) * 1024

    def cpu(self) -> float:
        """Return the CPU time of the server so far, in seconds."""
        return processor.seconds({"server": self.process.pid})["server"]


class Client(socket.socket):
    """Blocking connection to a server."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.settimeout(20)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        self.connect(("127.0.0.1", port))

    def read(self, until: bytes | None = None) -> bytes:
        """Return the received bytes up to `until`, or all bytes until the server closes the connection."""
        data = b""
        with suppress(OSError):
            while (until is None or until not in data) and (piece := self.recv(1 << 16)):
                data += piece
        return data

    def flood(self, data: bytes) -> tuple[int, str]:
        """Send `data` repeatedly. Return the number of accepted bytes, and what ended the flood."""
        count = 0
        self.settimeout(STALL)
        try:
            while count < FLOOD:
                count += self.send(memoryview(data)[count % len(data) :])
        except TimeoutError:
            return count, "reading stops"
        except ConnectionError:
            return count, "closed"
        return count, "all accepted"

    def closing_time(self, *, slow: bool = False) -> float | None:
        """Return the seconds until the server closes the connection, or None after `CLOSE_LIMIT`. If `slow` is true,
        send a byte each second."""
        began = time.monotonic()
        self.settimeout(1)
        while time.monotonic() < began + CLOSE_LIMIT:
            try:
                if slow:
                    self.sendall(b"a")
                if not self.recv(1 << 16):
                    return time.monotonic() - began
            except TimeoutError:
                continue
            except ConnectionError:
                return time.monotonic() - began
        return None


@contextmanager
def running(name: str, folder: Path, app: str = APPLICATION, env: Mapping[str, str] = os.environ) -> Iterator[Server]:
    """Serve `app` with the server `name`."""
    port = free_port()
    command = [*SERVERS[name], "--port", str(port), *(["--factory"] if app == GATEWAY else []), app]
    server = Server(Process(name, command, dict(env), folder / f"{name}-{port}.log"), port)

    def is_listening() -> bool:
        assert server.process.is_running, server.process.output()[-3000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        eventually(is_listening, what=f"{name} listens")
        yield server
    finally:
        server.process.stop(within=0)
