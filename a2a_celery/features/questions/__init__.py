"""Questions of agents: `Turn.ask`, the JSON Schema that an answer must match, and reminders.

Every agent can ask a question, so each further message to a task has a section. Clients and servers share the form of
a schema (``lifecycle/questions.py``) and its validation (``lifecycle/answers.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    from a2a.types import SendMessageRequest

    from ...lifecycle.references import Scope
    from ...settings import Settings
    from ...store import Keys
    from .answer_section import AnswerSection


@dataclass(frozen=True)
class Questions:
    """Questions of one agent."""

    OPTIONS: ClassVar[frozenset[str]] = frozenset()
    recognizes_repeats: ClassVar[bool] = False

    @classmethod
    def of_agent(cls, agent: str, options: Mapping[str, Any]) -> Self:
        """Return the questions of an agent."""
        return cls()

    def check_settings(self, agent: str, settings: Settings) -> None:
        """Accept all settings."""

    def section_for_message(self, keys: Keys, scope: Scope, request: SendMessageRequest) -> AnswerSection | None:
        """Return the section of a message that may answer a question. The first message of a task answers none."""
        if not request.message.task_id:
            return None
        from .answer_section import AnswerSection  # noqa: PLC0415 -- the SDK

        return AnswerSection()
