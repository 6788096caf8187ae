"""A Redis that dies and comes back with what it had, at the same address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2a_celery.cli.embedded import EmbeddedRedis


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
