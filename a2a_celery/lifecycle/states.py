"""The states of an A2A task and the transitions between them: the one table everything else reads.

The store's scripts get this very table (see ``store.operation``), so Python and Lua can't disagree.

Source: A2A specification 4.1.3 (TaskState), 3.1 (which states end an operation).
"""

from collections.abc import Mapping

from a2a.types import TaskState

SUBMITTED = TaskState.TASK_STATE_SUBMITTED  # accepted; a worker will claim its run
WORKING = TaskState.TASK_STATE_WORKING  # a run is under way
INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED  # the client moves it on, with a message
AUTH_REQUIRED = TaskState.TASK_STATE_AUTH_REQUIRED  # the client moves it on, or an authority out of band
COMPLETED = TaskState.TASK_STATE_COMPLETED
FAILED = TaskState.TASK_STATE_FAILED
CANCELED = TaskState.TASK_STATE_CANCELED
REJECTED = TaskState.TASK_STATE_REJECTED

TERMINAL: frozenset[TaskState] = frozenset({COMPLETED, FAILED, CANCELED, REJECTED})
"""Nothing leaves these; the first one written wins."""

INTERRUPTED: frozenset[TaskState] = frozenset({INPUT_REQUIRED, AUTH_REQUIRED})
"""The task waits for its client; a blocking call returns here."""

_GOING_ON = frozenset({WORKING, INPUT_REQUIRED, AUTH_REQUIRED})

LEGAL: Mapping[TaskState, frozenset[TaskState]] = {
    SUBMITTED: _GOING_ON | TERMINAL,
    WORKING: _GOING_ON | TERMINAL,
    # SUBMITTED again is the next turn: the client's message was accepted and waits for a worker.
    INPUT_REQUIRED: _GOING_ON | TERMINAL | {SUBMITTED},
    AUTH_REQUIRED: _GOING_ON | TERMINAL | {SUBMITTED},
    COMPLETED: frozenset(),
    FAILED: frozenset(),
    CANCELED: frozenset(),
    REJECTED: frozenset(),
}
"""From a state to the states it may become. A state that repeats itself (WORKING, say) is a new status of it."""


def is_terminal(state: TaskState) -> bool:
    """Return True if no state can follow `state`."""
    return state in TERMINAL


def is_interrupted(state: TaskState) -> bool:
    """Return True if a task in `state` waits for its client."""
    return state in INTERRUPTED


def is_legal(before: TaskState, after: TaskState) -> bool:
    """Return True if a task may change from `before` to `after`."""
    return after in LEGAL.get(before, frozenset())
