"""Reminders for the questions of `Turn.ask`, and the webhook that receives the last reminder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias
from uuid import uuid4

from a2a.types import Message, TaskPushNotificationConfig, TaskStatus, TaskStatusUpdateEvent

from ...crypto.sealing import sealer_of
from ...delays import require_delay
from ...errors import ConfigError
from ...lifecycle.own_metadata import ESCALATED, REMINDER, own_metadata
from ...push import Subscription, TargetRefused, check_config
from ...settings import Settings
from ...store import Keys
from ..webhooks.config_section import ConfigSection, NewPushConfig
from ..webhooks.push_configs import ESCALATION
from .question_section import QuestionSection, Reminder, escalation_section

RemindAfter: TypeAlias = float | Sequence[float] | None
"""Seconds from a question to its reminder, or an ascending sequence for several reminders, or None for no reminder."""

MAX_REMINDERS = 10


@dataclass(frozen=True, slots=True)
class Reminders:
    """Reminders for one question.

    Attributes:
        after: Seconds from the question to each reminder, ascending.
        escalate_to: URL of the webhook that receives the last reminder and all later events of the task, or "".
    """

    after: tuple[float, ...] = ()
    escalate_to: str = ""

    @classmethod
    def of(cls, remind_after: RemindAfter, escalate_to: str | None, settings: Settings) -> Reminders:
        """Return the reminders for the arguments of `Turn.ask`.

        Raises:
            ValueError: An argument is invalid, or webhooks may not be posted to the URL.
            ConfigError: `escalate_to` is set without `secret_key`, which encrypts stored webhook configs.
        """
        if remind_after is None:
            if escalate_to is not None:
                raise ValueError("escalate_to needs remind_after: the last reminder goes to the webhook too")
            return cls()
        delays = tuple(remind_after) if isinstance(remind_after, Sequence) else (remind_after,)
        for seconds in delays:
            require_delay("remind_after", seconds)
        ascending = all(previous < seconds for previous, seconds in pairwise((0.0, *delays)))
        if not ascending or not 0 < len(delays) <= MAX_REMINDERS:
            raise ValueError(f"remind_after = {remind_after!r}: 1 to {MAX_REMINDERS} times above 0, in ascending order")
        if escalate_to is not None:
            _require_webhook(escalate_to, settings)
        return cls(delays, escalate_to or "")

    def section(self, task_id: str, keys: Keys, settings: Settings) -> QuestionSection:
        """Return the section of a question with these reminders."""
        last = len(self.after)
        reminders = [
            Reminder.of(int(seconds * 1_000_000), _event(number, escalates=bool(self.escalate_to) and number == last))
            for number, seconds in enumerate(self.after, start=1)
        ]
        return QuestionSection(escalation=self._config(task_id, keys, settings), reminders=reminders)

    def _config(self, task_id: str, keys: Keys, settings: Settings) -> ConfigSection | None:
        sealer = sealer_of(settings.secret_keys) if self.escalate_to else None
        if sealer is None:
            return None
        config = TaskPushNotificationConfig(id=ESCALATION, task_id=task_id, url=self.escalate_to)
        sealed_config = sealer.seal(Subscription(config).to_bytes(), task_id, ESCALATION)
        return escalation_section(keys, NewPushConfig(ESCALATION, sealed_config, sealer.fingerprint))


def _event(number: int, *, escalates: bool) -> TaskStatusUpdateEvent:
    """Return an event with the fields in which a reminder differs from its question."""
    fields = {REMINDER: number} | ({ESCALATED: True} if escalates else {})
    status = TaskStatus(message=Message(message_id=str(uuid4())))
    return TaskStatusUpdateEvent(status=status, metadata=own_metadata(fields))


def _require_webhook(url: str, settings: Settings) -> None:
    if not settings.secret_keys:
        raise ConfigError("escalate_to needs a2a_secret_key, as webhooks of clients do")
    if not isinstance(url, str):
        raise ValueError(f"escalate_to = {url!r}: the URL of a webhook")
    try:
        check_config(TaskPushNotificationConfig(url=url), settings.push_networks)
    except TargetRefused as e:
        raise ValueError(f"escalate_to = {url!r}: {e.rule}") from None
