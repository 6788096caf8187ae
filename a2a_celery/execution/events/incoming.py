"""Messages of the client that arrive while the agent works on a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from a2a.types import Message

from ...concurrency import LeanEvent
from ...errors import ConfigError
from ...store.runs.commands import Claim, RunLost
from ...store.runs.messages import read_messages
from .settlement import RunStore


class IncomingMessages:
    """Messages that arrive during a turn, in the order of the log. A run reads each message once.

    Every run of the turn starts with the first message, even if an earlier run was lost, was retried, or asked a
    question with `Turn.ask`. A message that no run has read begins the next turn.

    Args:
        store: Store of the run.
        claim: Claim of the run.
        is_enabled: True for an agent with ``on_message="steer"``.
        on_lost: Function that is called if the run is lost.
    """

    def __init__(self, store: RunStore, claim: Claim, *, is_enabled: bool, on_lost: Callable[[], None]) -> None:
        self._store = store
        self._claim = claim
        self.is_enabled = is_enabled
        self._on_lost = on_lost
        self._earlier: list[Message] = []  # lists, because an empty deque takes 600 bytes in each run
        self._received: list[Message] = []
        self._arrived = LeanEvent()
        self._reading = asyncio.Lock()
        self.read_count = 0
        """Number of messages that the agent has read, excluding the messages of `replay`."""

    def replay(self, claim: Claim) -> None:
        """Let the agent first read again the messages that it read before earlier questions of `Turn.ask`.

        The replay is needed because the agent's code is executed again from the beginning. The blob references in
        `claim` must be resolved.
        """
        self._earlier.extend(claim.task.history[index] for index in claim.read_messages)

    def notify(self) -> None:
        """Wake the reader, because a message may have arrived."""
        self._arrived.set()

    async def poll(self) -> list[Message]:
        """Query the store once, and return the messages that have arrived but were not read yet.

        Raises:
            ConfigError: The agent is not registered with ``on_message="steer"``.
            CancelledError: Another worker has the run.
        """
        self._require_enabled()
        async with self._reading:
            await self._receive()
            return [self._next() for _ in range(len(self._earlier) + len(self._received))]

    async def wait(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            ConfigError: See `poll`.
            CancelledError: See `poll`.
        """
        self._require_enabled()
        while True:
            async with self._reading:
                if not self._earlier and not self._received:
                    self._arrived.clear()
                    await self._receive()
                if self._earlier or self._received:
                    return self._next()
            await self._arrived.wait()

    async def follow(self) -> AsyncGenerator[Message, None]:
        """Yield messages as they arrive. The iterator never ends.

        Raises:
            ConfigError: See `poll`.
            CancelledError: See `poll`.
        """
        while True:
            yield await self.wait()

    def _require_enabled(self) -> None:
        if not self.is_enabled:
            agent = self._claim.scope.agent
            raise ConfigError(f"agent {agent!r} receives no messages while it works: give it on_message='steer'")

    async def _receive(self) -> None:
        claim = self._claim
        received_count = self.read_count + len(self._received)
        answer = await self._store.run(
            read_messages(self._store.keys, claim.ref, token=claim.token, received=received_count)
        )
        if isinstance(answer, RunLost):
            self._on_lost()
            raise asyncio.CancelledError
        self._received.extend(answer)

    def _next(self) -> Message:
        if self._earlier:
            return self._earlier.pop(0)
        self.read_count += 1
        return self._received.pop(0)
