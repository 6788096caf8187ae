"""Client messages that the agent's code reads in order: answers to its questions, and messages that arrive while the
agent works on a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextvars import ContextVar
from hashlib import sha256

from a2a.types import Message

from ...concurrency import LeanEvent
from ...errors import ConfigError
from ...store.runs.commands import Claim, RunLost
from ...store.runs.messages import read_messages
from .settlement import RunStore

CURRENT_MESSAGES: ContextVar[tuple[list[str], ...]] = ContextVar("a2a_celery_call_messages", default=())
"""Names of the messages that the journal call that is being executed has read, as the last list. The lists before it
belong to the calls around this call."""


def add_messages(names: Iterable[str]) -> None:
    """Add the names of messages that the current journal call, and therefore each call around it, has read."""
    for messages in CURRENT_MESSAGES.get():
        messages.extend(names)


class MessageSequence:
    """Client messages in the order in which the agent's code reads them.

    A message that a recorded call has read is skipped, because a later run does not execute the call.

    Attributes:
        position: Number of messages that have been read or skipped.
    """

    __slots__ = ("_messages", "_recorded", "position")

    def __init__(self, recorded: frozenset[str] = frozenset()) -> None:
        self._messages: list[tuple[str, Message]] = []
        self._recorded = recorded
        self.position = 0

    @property
    def is_read(self) -> bool:
        """True if all messages have been read or skipped."""
        return self.position >= len(self._messages)

    def add(self, index: int, message: Message) -> None:
        """Add the message at `index` in the task's history."""
        self._messages.append((message_name(index, message), message))
        self._skip_recorded()

    def next(self) -> Message | None:
        """Return the next message, or None if there is none."""
        self._skip_recorded()  # `position` may have been set
        if self.is_read:
            return None
        name, message = self._messages[self.position]
        self.position += 1
        self._skip_recorded()
        add_messages([name])
        return message

    def _skip_recorded(self) -> None:
        while not self.is_read and self._messages[self.position][0] in self._recorded:
            self.position += 1


def message_name(index: int, message: Message) -> str:
    """Return the name under which the journal records that a call has read the message at `index` in the history.

    The name contains a digest of the message's id, because a requeued task has other messages at the same indexes.
    """
    return f"{index}-{sha256(message.message_id.encode()).hexdigest()[:16]}"


def recorded_messages(claim: Claim) -> frozenset[str]:
    """Return the names of the messages that recorded calls have read."""
    return frozenset(name for entry in (claim.journal or {}).values() for name in entry.messages)


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
        self._messages = MessageSequence()
        self._earlier_count = self._received_count = 0
        self._arrived = LeanEvent()
        self._reading = asyncio.Lock()

    @property
    def read_count(self) -> int:
        """Number of messages that the agent has read, excluding messages of earlier turns; see `replay`."""
        return max(0, self._messages.position - self._earlier_count)

    async def replay(self, claim: Claim) -> None:
        """Let the agent first read again the messages that it read before earlier questions of `Turn.ask`.

        The replay is needed because the agent's code is executed again from the beginning. Messages that recorded calls
        have read are not read again, but count as read. The journal and the blob references in `claim` must be
        resolved.

        Raises:
            CancelledError: Another worker has the run.
        """
        recorded, history = recorded_messages(claim), claim.task.history
        self._messages = MessageSequence(recorded)
        self._earlier_count = len(claim.read_messages)
        for index in claim.read_messages:
            self._messages.add(index, history[index])
        if recorded and self.is_enabled:
            known_indexes = (*claim.turn_messages, *claim.read_messages)
            if recorded.difference(message_name(index, history[index]) for index in known_indexes):
                await self._receive()

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
            return list(iter(self._messages.next, None))

    async def wait(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            ConfigError: See `poll`.
            CancelledError: See `poll`.
        """
        self._require_enabled()
        while True:
            async with self._reading:
                message = self._messages.next()
                if message is None:
                    self._arrived.clear()
                    await self._receive()
                    message = self._messages.next()
                if message is not None:
                    return message
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
            raise ConfigError(
                f"agent {self._claim.scope.agent!r} receives no messages while it works: only functions and executors "
                "with on_message='steer' receive them, and Celery tasks cannot have this option"
            )

    async def _receive(self) -> None:
        claim = self._claim
        answer = await self._store.run(
            read_messages(self._store.keys, claim.ref, token=claim.token, received=self._received_count)
        )
        if isinstance(answer, RunLost):
            self._on_lost()
            raise asyncio.CancelledError
        self._received_count += len(answer)
        for index, message in answer:
            self._messages.add(index, message)
