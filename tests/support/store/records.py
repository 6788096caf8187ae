"""Functions that read a task's log from the store, without the gateway."""

from __future__ import annotations

from typing import Any

from a2a.types import TaskState, TaskStatusUpdateEvent

from a2a_celery.lifecycle import LogEntry
from a2a_celery.lifecycle.states import is_terminal
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.log.pages import read_log


def log_of(store_url: str, task: dict[str, Any]) -> list[LogEntry]:
    """Return all entries of a task's log. Fail if the number of entries differs from the task's version."""
    store = SyncStore(store_url)
    try:
        page = store.run(read_log(Keys(), task["id"], 0, limit=100_000))
    finally:
        store.close()
    assert page.version == len(page.entries)
    return page.entries


def states_in(log: list[LogEntry]) -> list[str]:
    """Return the states of the status updates in a log, in order and without the prefix."""
    states = [entry.event.status.state for entry in log if isinstance(entry.event, TaskStatusUpdateEvent)]
    return [TaskState.Name(state).removeprefix("TASK_STATE_") for state in states]


def endings_in(log: list[LogEntry]) -> list[str]:
    """Return the terminal states in a log, without the prefix. The log of a terminal task has exactly one terminal
    state."""
    return [state for state in states_in(log) if is_terminal(TaskState.Value(f"TASK_STATE_{state}"))]
