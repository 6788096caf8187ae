"""What a run needs of the worker process it is in."""

from __future__ import annotations

from typing import Protocol

from ..agents import Agent
from ..config import Settings
from ..dispatch import Publisher
from ..store import AsyncStore, Keys
from ..store.runs import RunRef
from .adapters import Adapter
from .force import Stop
from .leases import LeaseKeeper


class Host(Protocol):
    """A worker process, as its runs see it."""

    settings: Settings
    keys: Keys
    store: AsyncStore
    publisher: Publisher
    leases: LeaseKeeper
    runner_id: str

    async def adapter(self, agent: Agent) -> Adapter:
        """The agent's code, ready to be called."""
        ...

    def force(self, ref: RunRef, stop: Stop) -> None:
        """Ends the agent of that run, which ignores `stop`, with this process; returns if that can't be."""
        ...
