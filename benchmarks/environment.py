"""Options of a benchmark run, and the servers that the benchmarks share. Each server starts at its first use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from tests.support.processes.databases import Postgres

from . import servers
from .servers import Server

SHARED: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "a2a-celery": servers.this_project,
    "asyncio": partial(servers.this_project, name="asyncio", pool="asyncio", concurrency=100),
    "floor": servers.floor,
    "sdk": servers.sdk,
    "cluster": servers.cluster,
}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a benchmark run."""

    rounds: int = 5
    tasks: int = 100_000
    """Maximum number of tasks in the store."""
    waiting: int = 5_000
    """Number of waiting agents in one worker process."""
    pool: str = "asyncio"
    """Worker pool of the waiting agents."""
    cluster: bool = False
    """Include the SDK's cluster mode, which needs PostgreSQL."""


class Environment:
    """Environment of the benchmarks: options, folders and shared servers. The servers run until the stack is closed."""

    def __init__(self, folder: Path, stack: ExitStack, options: Options) -> None:
        self.options = options
        self._folder = folder
        self._stack = stack
        self._running: dict[str, Server] = {}

    def folder(self) -> Path:
        """Create a folder, and return its path."""
        return Path(mkdtemp(dir=self._folder))

    def server(self, name: str) -> Server:
        """Return a shared server, and start it if necessary. The server is idle except during its measurement."""
        if name not in self._running:
            self._running[name] = self._stack.enter_context(SHARED[name](self.folder()))
        return self._running[name]

    def servers(self, *names: str) -> list[Server]:
        """Return the named shared servers, without the SDK's cluster mode unless the options include it."""
        return [self.server(name) for name in names if name != "cluster" or self.options.cluster]


def has_postgres() -> bool:
    """Return True if this machine can run the SDK's cluster mode."""
    return Postgres.is_installed()
