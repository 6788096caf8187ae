"""Client messages that the agent's code reads in order: the message with which it is called, and the answers to its
questions."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from hashlib import sha256

from a2a.types import Message

from ...store.runs.commands import Claim

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

    The name contains a digest of the message's id, because a resubmitted task has other messages at the same indexes.
    """
    return f"{index}-{sha256(message.message_id.encode()).hexdigest()[:16]}"


def recorded_messages(claim: Claim) -> frozenset[str]:
    """Return the names of the messages that recorded calls have read."""
    return frozenset(name for entry in (claim.journal or {}).values() for name in entry.messages)


def message_and_answers(claim: Claim) -> tuple[Message, MessageSequence]:
    """Return the message with which the agent is called, and the client's answers to `Turn.ask` so far."""
    answers = MessageSequence(recorded_messages(claim))
    if not claim.ask_count:
        return claim.request.message, answers
    history, (first, *later) = claim.task.history, claim.turn_messages
    for index in later:
        answers.add(index, history[index])
    return history[first], answers
