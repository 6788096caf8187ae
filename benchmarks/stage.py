"""Where a run takes place: its options, and the sides that measures share, each started when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from tests.support.databases import Postgres

from . import sides
from .sides import Side

SHARED: dict[str, Callable[[Path], AbstractContextManager[Side]]] = {
    "ours": sides.ours,
    "asyncio": partial(sides.ours, name="asyncio", pool="asyncio", concurrency=100),
    "floor": sides.floor,
    "sdk": sides.sdk,
    "cluster": sides.cluster,
}


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    rounds: int = 5
    tasks: int = 100_000
    """Tasks in the store, at most."""
    waiting: int = 5_000
    """Agents that wait in one worker process."""
    pool: str = "asyncio"
    """The worker's, for those."""
    cluster: bool = False
    """Beside the SDK's cluster mode too, which needs PostgreSQL."""


class Stage:
    """Sides that run until the stack is closed, in folders of their own."""

    def __init__(self, folder: Path, stack: ExitStack, options: Options) -> None:
        self.options = options
        self._folder = folder
        self._stack = stack
        self._running: dict[str, Side] = {}

    def folder(self) -> Path:
        """A new one."""
        return Path(mkdtemp(dir=self._folder))

    def side(self, name: str) -> Side:
        """A shared side; it is idle unless somebody measures it."""
        if name not in self._running:
            self._running[name] = self._stack.enter_context(SHARED[name](self.folder()))
        return self._running[name]

    def sides(self, *names: str) -> list[Side]:
        """Shared sides; the SDK's cluster mode only where it was asked for."""
        return [self.side(name) for name in names if name != "cluster" or self.options.cluster]


def has_postgres() -> bool:
    """Whether the SDK's cluster mode can be measured here."""
    return Postgres.is_installed()
