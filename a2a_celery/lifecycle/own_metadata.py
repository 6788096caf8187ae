"""Metadata that this package writes to tasks, status events and messages, and the keys that a new status removes.

Each key is written with the prefix `NAMESPACE`. Keys outside `_NAMESPACE_ONLY` are also written without the prefix, for
clients that were written for releases without the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.types import TaskState

from .events import jsonable, portable_metadata
from .states import WORKING

NAMESPACE = "a2a_celery/"
"""Prefix of each key."""

ATTEMPT = "attempt"
MAX_ATTEMPTS = "maxAttempts"
NEXT_ATTEMPT_AT = "nextAttemptAt"
CONTINUES_AT = "continuesAt"
WAITS_FOR = "waitsFor"
REMINDER = "reminder"
"""Number of the reminder, from 1, in the metadata of a question that is repeated because it was not answered."""
ESCALATED = "escalated"
"""True in the metadata of a reminder that is also sent to the escalation webhook."""
ASKED = "asked"
"""True in the metadata of the message of a question of `Turn.ask`, which returns the answer to the agent."""
RETURNED_ATTEMPT = "returnedAttempt"
CAUSE = "cause"
CELERY_STATE = "celery_state"
EXECUTION = "execution"
REFERENCE = "reference"
ERROR = "error"
COMMAND = "command"
STOP_REASON = "stopReason"
USAGE = "usage"
"""Tokens by model, in the metadata of the final status of a turn. See ``frameworks.usage``."""
PARENT_TASK_ID = "parentTaskId"
"""Id of the parent task, in the metadata of a message that an agent sends and of the task that the message starts."""
CANCEL_WITH_PARENT = "cancelWithParent"
"""False in the metadata of a message that an agent sends, if the task that the message starts is not cancelled with its
parent."""

CALLED_BY_PARENT = "calledByParent"
"""True in the metadata of a message that `Turn.call` sends. A parent that is resubmitted uses the task again."""

_NAMESPACE_ONLY = frozenset(
    {CAUSE, PARENT_TASK_ID, CANCEL_WITH_PARENT, CALLED_BY_PARENT, CONTINUES_AT, WAITS_FOR, REMINDER, ESCALATED, ASKED}
    | {USAGE}
)
"""Keys that are never written without the prefix."""


def own_metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with `fields` under the prefixed keys and, except for `_NAMESPACE_ONLY`, under the plain keys."""
    plain = {name: value for name, value in fields.items() if name not in _NAMESPACE_ONLY}
    return plain | {NAMESPACE + name: value for name, value in fields.items()}


def retry_metadata(attempt: int, max_attempts: int | None, when: str, cause: str) -> dict[str, Any]:
    """Return the metadata of a retry, without empty values. See `Retried`."""
    fields = {ATTEMPT: attempt, MAX_ATTEMPTS: max_attempts, NEXT_ATTEMPT_AT: when, CAUSE: cause}
    return own_metadata({name: value for name, value in fields.items() if value})


def suspension_metadata(when: str, signal: str) -> dict[str, Any]:
    """Return the metadata of a suspended run, without empty values. See `Suspended`."""
    return own_metadata({name: value for name, value in {CONTINUES_AT: when, WAITS_FOR: signal}.items() if value})


def progress_metadata(state: str, meta: Any) -> dict[str, Any]:
    """Return the metadata for a `state` and `meta` that a Celery task has passed to ``update_state``.

    Raises:
        InvalidAgentResponseError: `meta` cannot be represented in JSON.
    """
    metadata = jsonable(meta)
    if not isinstance(metadata, dict):
        metadata = {} if metadata is None else {"meta": metadata}
    return portable_metadata({**metadata, **own_metadata({CELERY_STATE: state})})


def _keys(*names: str) -> tuple[str, ...]:
    return tuple(own_metadata(dict.fromkeys(names)))


WAIT_KEYS = _keys(NEXT_ATTEMPT_AT, CAUSE, CONTINUES_AT, WAITS_FOR, REMINDER, ESCALATED)
"""Keys that remain in a task until its next status."""

DELAY_KEYS = tuple(NAMESPACE + name for name in (NEXT_ATTEMPT_AT, CONTINUES_AT, WAITS_FOR))
"""Keys of which a task has at least one while its run is delayed or suspended."""

RUN_KEYS = _keys(CELERY_STATE, EXECUTION)
"""Keys that remain in a task while the task is WORKING."""


def outdated_keys(state: TaskState) -> tuple[str, ...]:
    """Return the keys that a new status in `state` removes from the task. The status event may set these keys again."""
    return WAIT_KEYS if state == WORKING else WAIT_KEYS + RUN_KEYS
