"""Messages that arrive while the agent works on a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from a2a.types import Message, TaskState

from ...errors import ConfigError
from ...execution.events.queue import RunEventQueue
from ...execution.open_run import OpenRun
from ...store.runs.commands import EndRefused
from ..feature import RunFeature
from .section import SteeringSection, read_messages


class IncomingMessages(RunFeature):
    """Messages that arrive during a turn, in the order of the log. A run reads each message once.

    Every run of the turn starts with the first message, even if an earlier run was lost, was retried, or asked a
    question with `Turn.ask`. A message that no run has read begins the next turn.
    """

    EXECUTOR_KEY = "a2a_incoming"

    def __init__(self, run: OpenRun, events: RunEventQueue) -> None:
        claim = run.claim
        self._run = run
        self._events = events
        self._messages: list[Message] = [claim.task.history[index] for index in claim.value_of(SteeringSection)]
        self._earlier_count = len(self._messages)
        self._read_count = 0
        self._reading = asyncio.Lock()

    async def section_for_end(self, state: TaskState, refusal: EndRefused | None = None) -> None:
        """Record how many messages the agent has read, excluding messages of earlier turns. Return no section."""
        self._run.count_read(max(0, self._read_count - self._earlier_count))

    async def poll(self) -> list[Message]:
        """Query the store once, and return the messages that have arrived but were not read yet.

        Raises:
            CancelledError: Another worker has the run.
        """
        async with self._reading:
            await self._receive()
            messages = self._messages[self._read_count :]
            self._read_count = len(self._messages)
            return messages

    async def wait(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            CancelledError: See `poll`.
        """
        while True:
            async with self._reading:
                if self._read_count == len(self._messages):
                    self._run.message_arrived.clear()
                    await self._receive()
                if self._read_count < len(self._messages):
                    self._read_count += 1
                    return self._messages[self._read_count - 1]
            await self._run.message_arrived.wait()

    async def follow(self) -> AsyncGenerator[Message, None]:
        """Yield messages as they arrive. The iterator never ends.

        Raises:
            CancelledError: See `poll`.
        """
        while True:
            yield await self.wait()

    async def _receive(self) -> None:
        """Read the messages that have arrived since the last call."""
        run, claim = self._run, self._run.claim
        received_count = len(self._messages) - self._earlier_count
        received = await self._events.run_fenced(
            lambda _: read_messages(run.keys, claim.ref, token=claim.token, received=received_count)
        )
        self._messages += received


async def open_messages(run: OpenRun, events: RunEventQueue) -> IncomingMessages:
    """Return the messages that arrive during the turn of a run.

    The agent first reads again the messages that it read before earlier questions of `Turn.ask`, because its code is
    executed again from the beginning.
    """
    return IncomingMessages(run, events)


def messages_of(run: OpenRun) -> IncomingMessages:
    """Return the messages that arrive during the turn of a run.

    Raises:
        ConfigError: The agent is not registered with ``on_message="steer"``.
    """
    messages = run.feature(IncomingMessages)
    if messages is None:
        raise ConfigError(
            f"agent {run.claim.scope.agent!r} receives no messages while it works: only functions and executors with "
            "on_message='steer' receive them, and Celery tasks cannot have this option"
        )
    return messages
