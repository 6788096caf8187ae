"""Methods of `Turn` that read the messages which arrive while the agent works, and their blocking variants."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from a2a.types import Message

from ...execution.agents.running_agent import loop_method
from ...execution.agents.turn_members import BlockingTurnMembers, TurnMembers
from .messages import messages_of


class SteeringMethods(TurnMembers):
    """Methods of `Turn` for steering messages."""

    @loop_method
    async def poll_messages(self) -> list[Message]:
        """Return the messages that have arrived since the last call, oldest first; see ``docs/durable-work.md``.

        Raises:
            ConfigError: The agent is not registered with ``on_message="steer"``.
        """
        return await messages_of(self._run).poll()

    @loop_method
    async def incoming(self) -> AsyncGenerator[Message, None]:
        """Return an endless async iterator over the messages that arrive. Leave the loop with ``break``.

        Raises:
            ConfigError: The agent is not registered with ``on_message="steer"``. Raised during the iteration.
        """
        messages = messages_of(self._run)
        while True:
            yield await messages.wait()


class BlockingSteeringMethods(BlockingTurnMembers):
    """Blocking variants of `SteeringMethods`."""

    def poll_messages(self) -> list[Message]:
        """See `Turn.poll_messages`."""
        return self._wait_for(lambda: messages_of(self._turn._run).poll())

    def incoming(self) -> Iterator[Message]:
        """See `Turn.incoming`."""
        while True:
            yield self._wait_for(lambda: messages_of(self._turn._run).wait())
