"""Answers to the questions of an agent, in the order in which its code receives them."""

from __future__ import annotations

from a2a.types import Message

from ...execution.agents.running_agent import RunningAgent
from ..feature import RunFeature


class AnswerSequence(RunFeature):
    """Answers to `Turn.ask` that a run receives, in order.

    An answer that a recorded call has received is skipped, because a later run does not execute the call.

    Attributes:
        position: Number of answers that have been received or skipped.
    """

    __slots__ = ("_claim", "_indexes", "_recorded", "position")

    def __init__(self, agent: RunningAgent) -> None:
        claim = self._claim = agent.run.claim
        self._indexes = claim.turn.answers
        self._recorded = {index for entry in (claim.journal.entries or {}).values() for index in entry.answers}
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
