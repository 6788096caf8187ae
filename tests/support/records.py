"""What the store has of a task, read past the gateway: its whole log."""

from __future__ import annotations

from typing import Any

from a2a.types import TaskState, TaskStatusUpdateEvent

from a2a_celery.lifecycle import LogEntry
from a2a_celery.lifecycle.states import is_terminal
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.log.pages import read_log


def log_of(store_url: str, task: dict[str, Any]) -> list[LogEntry]:
    """Every entry of the task's log; fails if it has more or fewer than the task's version says."""
    store = SyncStore(store_url)
    try:
        page = store.run(read_log(Keys(), task["id"], 0, limit=100_000))
    finally:
        store.close()
    assert page.version == len(page.entries)
    return page.entries


def states_in(log: list[LogEntry]) -> list[str]:
    """The states that the log's status updates say, in order, without their prefix."""
    said = [entry.event.status.state for entry in log if isinstance(entry.event, TaskStatusUpdateEvent)]
    return [TaskState.Name(state).removeprefix("TASK_STATE_") for state in said]


def endings_in(log: list[LogEntry]) -> list[str]:
    """Those of its states that are terminal: one, if the task has ended."""
    return [state for state in states_in(log) if is_terminal(TaskState.Value(f"TASK_STATE_{state}"))]
