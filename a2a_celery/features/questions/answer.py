"""Answer that `Turn.ask` returns."""

from __future__ import annotations

from a2a.helpers import get_message_text
from a2a.types import Message


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
