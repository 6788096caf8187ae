"""State machine of a run's execution, with the activities that its agent opens. Transitions are written together with
the run's events.

::

    async with turn.model_call(model="some-model"):
        answer = await model.complete(prompt)
    async with turn.tool_call("search"):
        found = await search(answer)

A model may call tools, and several tools may run at the same time. The machine is in the state of the newest open
activity. When this activity ends, the machine returns to the newest activity that is still open. If no activity is
open, the state does not change until the next activity or the end of the run. Activities after the end of the task are
ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from a2a.types import TaskState

from ...lifecycle import (
    Canceled,
    Completed,
    Delegated,
    Failure,
    Lost,
    Outcome,
    Paused,
    Refused,
    Rejection,
    Retried,
    Superseded,
    Suspended,
)
from ...lifecycle import states as task_states
from ...lifecycle.execution import ENDS, HISTORY_LIMIT, Activity, ExecutionState, ExecutionStateMachine, system_clock
from ...lifecycle.journal import RunRecord
from ...lifecycle.outcomes import INVALID_RESPONSE, OUT_OF_TIME
from ...lifecycle.saved_json import Scalar

if TYPE_CHECKING:  # agents use `current_execution` without the store
    from ..open_run import OpenRun

MAX_NAME = 200
"""Maximum length of a model's or tool's name. The limit is needed because some models invent names of tools."""

FAILURES = {OUT_OF_TIME: "out of time", INVALID_RESPONSE: "invalid response"}
"""Reason in the detail of an ERROR, by the text for the client. For other texts, the reason is "failed"."""

CURRENT_EXECUTION: ContextVar[Execution] = ContextVar("a2a_celery_execution")
"""Execution of the current run."""

Choice = tuple[ExecutionState, dict[str, Scalar]]
"""Next execution state, and the detail of the transition to this state."""


class OpenActivity:
    """Activity of an agent, as a context manager for ``async with`` and ``with``. An OpenActivity is thread-safe and
    can be used only once."""

    def __init__(self, execution: Execution, state: ExecutionState, detail: dict[str, Scalar]) -> None:
        self.state = state
        self.detail = detail
        self._execution = execution

    def __enter__(self) -> None:
        self._execution._begin(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._execution._end(self)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, at)


class Execution(ExecutionStateMachine):
    """State machine of one run, with the open activities of its agent."""

    def __init__(
        self,
        state: ExecutionState = ExecutionState.IDLE,
        *,
        clock: Callable[[], int] = system_clock,
        history_limit: int = HISTORY_LIMIT,
    ) -> None:
        super().__init__(state, clock=clock, history_limit=history_limit)
        self._open: list[OpenActivity] = []

    @property
    def has_open_activities(self) -> bool:
        return bool(self._open)

    def model_call(self, model: str = "") -> OpenActivity:
        """Return an activity for a model call.

        Args:
            model: Name of the model, or "" if it has no name.

        Raises:
            TypeError: The name is not text.
        """
        return OpenActivity(self, ExecutionState.MODEL_CALL, {"model": _name(model)} if model != "" else {})

    def tool_call(self, name: str) -> OpenActivity:
        """Return an activity for a call to the tool `name`.

        Raises:
            TypeError: The name is not text.
            ValueError: The name is empty.
        """
        if name == "":
            raise ValueError("turn.tool_call(name): name the tool")
        return OpenActivity(self, ExecutionState.TOOL_EXECUTION, {"tool": _name(name)})

    def finish(self, outcome: Outcome, state: TaskState) -> None:
        """Move to the end state for `outcome`, unless the agent has already ended the task.

        Args:
            outcome: Outcome of the run.
            state: State of the task.
        """
        if self.state not in ENDS:
            state_after, detail = end_of(outcome, state)
            self.try_transition(state_after, **detail)

    def finish_in(self, state: TaskState) -> None:
        """Move to the end state of a run whose agent has left the task in `state`."""
        state_after, detail = end_in(state)
        self.try_transition(state_after, **detail)

    def _begin(self, activity: OpenActivity) -> None:
        def choose() -> Choice:
            self._open.append(activity)
            return activity.state, activity.detail

        self._go_where(choose)

    def _end(self, activity: OpenActivity) -> None:
        def choose() -> Choice | None:
            newest = self._open[-1] is activity
            self._open.remove(activity)
            if not newest or not self._open:
                return None
            return self._open[-1].state, self._open[-1].detail

        self._go_where(choose)

    def _go_where(self, choose: Callable[[], Choice | None]) -> None:
        """Call `choose` under the lock of the machine, and make the returned transition if the transition is legal."""
        with self._lock:
            choice = choose()
            if choice is not None and self.may(choice[0]):
                self._move(*choice)
        self._notify_listeners()


def end_of(outcome: Outcome, state: TaskState) -> Choice:
    """Return the end state of a run, and the detail of the transition to this state. An error has a fixed reason, which
    contains no text from the agent."""
    match outcome:
        case Completed():
            return end_in(state)
        case Paused():
            return ExecutionState.INTERRUPTED, {}
        case Delegated():
            return ExecutionState.COMPLETED, {"reason": "delegated"}
        case Canceled():
            return ExecutionState.CANCELLED, {}
        case Failure(text, reference):
            detail: dict[str, Scalar] = {} if reference is None else {"reference": reference}
            return ExecutionState.ERROR, {"reason": FAILURES.get(text, "failed"), **detail}
        case Rejection() | Refused():
            return ExecutionState.ERROR, {"reason": "rejected"}
        case Suspended():
            return ExecutionState.INTERRUPTED, {"reason": "suspended"}
        case Superseded():
            return ExecutionState.CANCELLED, {}
        case Retried():
            return ExecutionState.ERROR, {"reason": "retried"}
        case Lost():
            return ExecutionState.ERROR, {"reason": "lost"}


def end_in(state: TaskState) -> Choice:
    """Return the end state of a run that leaves its task in `state`, and the detail of the transition to the end
    state."""
    match state:
        case task_states.FAILED:
            return ExecutionState.ERROR, {"reason": "failed"}
        case task_states.REJECTED:
            return ExecutionState.ERROR, {"reason": "rejected"}
        case task_states.CANCELED:
            return ExecutionState.CANCELLED, {}
        case task_states.INPUT_REQUIRED | task_states.AUTH_REQUIRED:
            return ExecutionState.INTERRUPTED, {}
        case _:
            return ExecutionState.COMPLETED, {}


def current_execution() -> Execution | None:
    """Return the execution of the current run, for code without a `Turn` such as SDK executors, libraries and tools.

    Returns:
        The execution, or None outside a run. A thread has an execution only if it was started with its caller's
        context, as ``asyncio.to_thread`` does.
    """
    return CURRENT_EXECUTION.get(None)


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r}: the name of a model or tool is text, not {type(name).__name__}")
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


ACTIVITY_DELAY = 0.5
"""Default maximum seconds that an activity waits to be written together with an event. If a worker is lost, only the
activities of this period are lost."""

MAX_UNWRITTEN = 512
"""Number of unwritten events and activities above which further activities are dropped."""


class ActivityRecorder:
    """Recorder of the activities of one run.

    Args:
        pending: The unwritten events and activities of the run's queue.
        run: The run.
        flush: Function that starts the writer of the queue.
        delay: Maximum seconds that an activity waits to be written together with an event.
        on_end: Function that receives the terminal state of the task, or None.
    """

    __slots__ = ("_delay", "_flush", "_has_ended", "_on_end", "_pending", "_run", "_timer")

    def __init__(
        self,
        pending: list[RunRecord],
        run: OpenRun,
        flush: Callable[[], None],
        delay: float,
        on_end: Callable[[TaskState], None] | None,
    ) -> None:
        self._pending = pending
        self._run = run
        self._flush = flush
        self._delay = delay
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False

    def record(self, activity: Activity) -> None:
        """Queue an activity, to be written with the next event or after the delay.

        An activity is dropped after the end of the task, if the run is lost, or if `MAX_UNWRITTEN` is reached.
        """
        if self._has_ended or self._run.is_lost or len(self._pending) >= MAX_UNWRITTEN:
            return
        self._pending.append(activity)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._write)

    def end(self, state: TaskState) -> None:
        """Call `on_end`, and accept no further activities."""
        if self._on_end is not None:
            self._on_end(state)
        self._has_ended = True

    def _write(self) -> None:
        self._timer = None
        self._flush()
