"""Reminders of open questions, which a watcher posts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack

from a2a.types import TaskStatusUpdateEvent

from ..blobs.references import encode
from ..codec import pack_metadata
from ..keys import Keys
from ..operation import Operation, script
from ..webhooks.push_configs import MAX_PUSH_CONFIGS, NewPushConfig, config_arguments


@dataclass(frozen=True, slots=True)
class Reminder:
    """Reminder that is due `after_us` µs after its question.

    `event` has the fields in which the reminder differs from the question: the message id and the metadata.
    """

    after_us: int
    event: TaskStatusUpdateEvent


def pack_reminders(keys: Keys, reminders: Sequence[Reminder], escalation: NewPushConfig | None) -> bytes:
    """Return the stored form of `reminders`, in the order of their times.

    `escalation` is the config of the webhook that receives the last reminder and all later events. It does not count
    against the limits of configs.
    """
    texts = [" ".join(str(reminder.after_us) for reminder in reminders).encode()]
    for reminder in reminders:
        texts += [encode(reminder.event), pack_metadata(reminder.event.metadata)]
    if escalation is not None:
        arguments = config_arguments(keys, escalation, max_configs=MAX_PUSH_CONFIGS + 1)
        texts += [text if isinstance(text, bytes) else str(text).encode() for text in arguments]
    return b"".join(pack(">I", len(text)) + text for text in texts)


def post_reminders(keys: Keys, *, limit: int, latest_us: int | None = None) -> Operation[int]:
    """Post up to `limit` due reminders. The result is the number of due reminders.

    `latest_us` is the latest time that the store's clock can show, in µs, if it has not jumped. None means any time.
    """
    latest = "" if latest_us is None else latest_us
    return Operation(script("post_reminders"), [keys.reminders], [keys.prefix, limit, latest], int)
