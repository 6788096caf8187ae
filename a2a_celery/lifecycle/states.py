"""States of an A2A task and the legal transitions between them.

``store.operation`` generates the tables of the store's scripts from this module, so Python and Lua agree.

Source: A2A specification 4.1.3 (TaskState), 3.1 (which states end an operation).
"""

from collections.abc import Mapping

from a2a.types import TaskState

SUBMITTED = TaskState.TASK_STATE_SUBMITTED  # accepted; a worker will claim its run
WORKING = TaskState.TASK_STATE_WORKING  # a run is executing
INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED  # a message from the client continues the task
AUTH_REQUIRED = TaskState.TASK_STATE_AUTH_REQUIRED  # the client, or an authority out of band, continues the task
COMPLETED = TaskState.TASK_STATE_COMPLETED
FAILED = TaskState.TASK_STATE_FAILED
CANCELED = TaskState.TASK_STATE_CANCELED
REJECTED = TaskState.TASK_STATE_REJECTED

TERMINAL: frozenset[TaskState] = frozenset({COMPLETED, FAILED, CANCELED, REJECTED})
"""States that no other state can follow. The first terminal state that is written is therefore final."""

INTERRUPTED: frozenset[TaskState] = frozenset({INPUT_REQUIRED, AUTH_REQUIRED})
"""States in which the task waits for its client. A blocking call returns when the task enters such a state."""

_GOING_ON = frozenset({WORKING, INPUT_REQUIRED, AUTH_REQUIRED})

LEGAL: Mapping[TaskState, frozenset[TaskState]] = {
    SUBMITTED: _GOING_ON | TERMINAL,
    WORKING: _GOING_ON | TERMINAL,
    # SUBMITTED begins the next turn: the client's message waits for a worker.
    INPUT_REQUIRED: _GOING_ON | TERMINAL | {SUBMITTED},
    AUTH_REQUIRED: _GOING_ON | TERMINAL | {SUBMITTED},
    COMPLETED: frozenset(),
    FAILED: frozenset(),
    CANCELED: frozenset(),
    REJECTED: frozenset(),
}
"""States that may follow each state. If a state may follow itself, such as WORKING, the task receives a new status."""


def short_name(state: TaskState) -> str:
    """Return the name of a state without its prefix, such as "COMPLETED"."""
    return TaskState.Name(state).removeprefix("TASK_STATE_")


def is_terminal(state: TaskState) -> bool:
    """Return True if no state can follow `state`."""
    return state in TERMINAL


def is_interrupted(state: TaskState) -> bool:
    """Return True if a task in `state` waits for its client."""
    return state in INTERRUPTED


def is_legal(state: TaskState, next_state: TaskState) -> bool:
    """Return True if a task may change from `state` to `next_state`."""
    return next_state in LEGAL.get(state, frozenset())
