"""Metadata that this package writes into status events, and how long a task keeps it.

Each key is in the namespace `NAMESPACE`. Older keys are also written without it, for older clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.types import TaskState

from .events import jsonable
from .states import WORKING

NAMESPACE = "a2a_celery/"
"""Prefix of each key."""

ATTEMPT = "attempt"
MAX_ATTEMPTS = "maxAttempts"
NEXT_ATTEMPT_AT = "nextAttemptAt"
CONTINUES_AT = "continuesAt"
WAITS_FOR = "waitsFor"
RETURNED_ATTEMPT = "returnedAttempt"
CAUSE = "cause"
CELERY_STATE = "celery_state"
EXECUTION = "execution"
PARENT_TASK_ID = "parentTaskId"
"""Id of the parent task, in the metadata of a message that an agent sends and of the task that it starts."""
CANCEL_WITH_PARENT = "cancelWithParent"
"""False in the metadata of such a message if its task is not canceled with the parent."""

_NAMESPACE_ONLY = frozenset({CAUSE, PARENT_TASK_ID, CANCEL_WITH_PARENT, CONTINUES_AT, WAITS_FOR})
"""Keys that never come without the namespace."""


def own_metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `fields`, named by the keys above, as metadata of an event."""
    plain = {name: value for name, value in fields.items() if name not in _NAMESPACE_ONLY}
    return plain | {NAMESPACE + name: value for name, value in fields.items()}


def retry_metadata(attempt: int, max_attempts: int | None, when: str, cause: str) -> dict[str, Any]:
    """Return the metadata of a retry without unknown fields; see `Retried`."""
    fields = {ATTEMPT: attempt, MAX_ATTEMPTS: max_attempts, NEXT_ATTEMPT_AT: when, CAUSE: cause}
    return own_metadata({name: value for name, value in fields.items() if value})


def suspension_metadata(when: str, signal: str) -> dict[str, Any]:
    """Return the metadata of a suspended run without unknown fields; see `Suspended`."""
    return own_metadata({name: value for name, value in {CONTINUES_AT: when, WAITS_FOR: signal}.items() if value})


def progress_metadata(state: str, meta: Any) -> dict[str, Any]:
    """Return the metadata of a Celery task's `state`, which it set by ``update_state`` with `meta`.

    Raises:
        InvalidAgentResponseError: `meta` has no form in JSON.
    """
    shown = jsonable(meta)
    if not isinstance(shown, dict):
        shown = {} if shown is None else {"meta": shown}
    return {**shown, **own_metadata({CELERY_STATE: state})}


def _keys(*names: str) -> tuple[str, ...]:
    return tuple(own_metadata(dict.fromkeys(names)))


WAIT_KEYS = _keys(NEXT_ATTEMPT_AT, CAUSE, CONTINUES_AT, WAITS_FOR)
"""Keys that a task keeps until its next status."""

DELAY_KEYS = tuple(NAMESPACE + name for name in (NEXT_ATTEMPT_AT, CONTINUES_AT, WAITS_FOR))
"""Keys of which a task has at least one while its run is delayed or suspended."""

RUN_KEYS = _keys(CELERY_STATE, EXECUTION)
"""Keys that a task keeps while it is WORKING."""


def outdated_keys(state: TaskState) -> tuple[str, ...]:
    """Return the keys that a task drops when it enters `state`. The status event may set them again."""
    return WAIT_KEYS if state == WORKING else WAIT_KEYS + RUN_KEYS
