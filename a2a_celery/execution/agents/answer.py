"""Client's answers to the questions of `Turn.ask`, and the message with which the agent is called."""

from __future__ import annotations

from a2a.helpers import get_message_text
from a2a.types import Message

from ...store.runs.commands import Claim


class Answer(str):
    """Client's answer to a question of `Turn.ask`.

    The string is the text of the answer.

    Attributes:
        message: The complete A2A message of the answer, with all its parts.
    """

    __slots__ = ("message",)
    message: Message

    @classmethod
    def of(cls, message: Message) -> Answer:
        """Return the answer in `message`."""
        answer = cls(get_message_text(message))
        answer.message = message
        return answer


def message_and_answers(claim: Claim) -> list[Message]:
    """Return a list of the message with which the agent is called and the client's answers to `Turn.ask` so far."""
    if not claim.ask_count:
        return [claim.request.message]
    return [claim.task.history[index] for index in claim.turn_messages]
