"""Client messages of a turn that the agent's code receives: the message with which it is called, and the answers to its
questions."""

from __future__ import annotations

from a2a.types import Message

from ...store.runs.commands import Claim


class AnswerSequence:
    """Answers to `Turn.ask` in the order in which the agent's code receives them.

    An answer that a recorded call has received is skipped, because a later run does not execute the call.

    Args:
        claim: Claim of the run.
        indexes: Indexes of the answers in the task's history.

    Attributes:
        position: Number of answers that have been received or skipped.
    """

    __slots__ = ("_claim", "_indexes", "_recorded", "position")

    def __init__(self, claim: Claim, indexes: tuple[int, ...]) -> None:
        self._claim = claim
        self._indexes = indexes
        self._recorded = {index for entry in (claim.journal or {}).values() for index in entry.answers}
        self.position = 0
        self._skip_recorded()

    def next(self) -> tuple[int, Message] | None:
        """Return the next answer with its index in the history, or None if there is none."""
        self._skip_recorded()  # `position` may have been set
        if self.position >= len(self._indexes):
            return None
        index = self._indexes[self.position]
        self.position += 1
        self._skip_recorded()
        return index, self._claim.task.history[index]

    def _skip_recorded(self) -> None:
        while self.position < len(self._indexes) and self._indexes[self.position] in self._recorded:
            self.position += 1


def message_and_answers(claim: Claim) -> tuple[Message, AnswerSequence]:
    """Return the message with which the agent is called, and the client's answers to `Turn.ask` so far."""
    if not claim.ask_count:
        return claim.request.message, AnswerSequence(claim, ())
    first, *later = claim.turn_messages
    return claim.task.history[first], AnswerSequence(claim, tuple(later))
