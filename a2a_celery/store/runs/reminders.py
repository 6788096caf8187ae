"""Reminders of open questions, and the command with which a watcher posts reminders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack

from a2a.types import TaskStatusUpdateEvent

from ..blobs.references import encode
from ..codec import pack_metadata
from ..keys import Keys
from ..operation import Operation
from ..verbs import Key, verb
from ..webhooks.push_configs import MAX_PUSH_CONFIGS, NewPushConfig, config_arguments


@dataclass(frozen=True, slots=True)
class Reminder:
    """Reminder of a question.

    Attributes:
        after_us: µs between the question and the reminder.
        event: Status event with only the fields in which the reminder differs from the question: the message id and the
            metadata.
    """

    after_us: int
    event: TaskStatusUpdateEvent


def pack_reminders(keys: Keys, reminders: Sequence[Reminder], escalation: NewPushConfig | None) -> bytes:
    """Return the stored form of reminders.

    Args:
        keys: Keys of the deployment.
        reminders: Reminders in the order of their times.
        escalation: Config of the webhook that receives the last reminder and all later events, or None. The config does
            not count toward the limits of configs.
    """
    texts = [" ".join(str(reminder.after_us) for reminder in reminders).encode()]
    for reminder in reminders:
        texts += [encode(reminder.event), pack_metadata(reminder.event.metadata)]
    if escalation is not None:
        arguments = config_arguments(keys, escalation, max_configs=MAX_PUSH_CONFIGS + 1)
        texts += [text if isinstance(text, bytes) else str(text).encode() for text in arguments]
    return b"".join(pack(">I", len(text)) + text for text in texts)


@verb
def _post_reminders(reminders: Key, prefix: str, limit: int) -> None: ...


def post_reminders(keys: Keys, *, limit: int) -> Operation[int]:
    """Post up to `limit` due reminders.

    Args:
        keys: Keys of the deployment.
        limit: Maximum number of reminders.

    Returns:
        The number of due reminders that this call has processed, at most `limit`, or 0 if no reminder is due.
    """
    return Operation(*_post_reminders(keys.reminders, keys.prefix, limit), int)
