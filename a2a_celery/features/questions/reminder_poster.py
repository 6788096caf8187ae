"""Watcher role that posts reminders of questions that clients have not answered."""

from __future__ import annotations

import logging

from ...operations.service import TaskService
from ...store import Keys
from ...store.operation import Operation
from ...store.verbs import Key, Reply, verb

logger = logging.getLogger(__name__)

REMINDER_BATCH = 100
"""Maximum number of reminders that one script call posts."""


def reminder_index(keys: Keys) -> str:
    """Return the key of the sorted set of the tags of tasks whose open question has a reminder, scored by the time of
    the next reminder in µs. A task is removed after the answer or the last reminder, or when it ends."""
    return f"{keys.prefix}:reminders"


def post_reminders(keys: Keys, *, limit: int) -> Operation[int]:
    """Post up to `limit` due reminders.

    Returns:
        The number of due reminders that this call has processed, at most `limit`, or 0 if no reminder is due.
    """
    return _post_reminders(keys, reminder_index(keys), limit)


@verb
def _post_reminders(keys: Keys, index: Key, limit: int) -> Reply[int]:
    return Reply(int)


class ReminderPoster:
    """Watcher role that repeats questions whose reminders are due. Each reminder is posted by only one watcher."""

    name = "reminder poster"
    every = 0.5
    channel = ""

    def __init__(self, service: TaskService) -> None:
        self._store = service.store
        self._keys = service.keys

    async def tick(self) -> None:
        """Post all due reminders."""
        while reminder_count := await self._store.run(post_reminders(self._keys, limit=REMINDER_BATCH)):
            logger.info("%d reminders of questions were posted", reminder_count)
