"""A run's execution: the machine that the run drives, and that its agent moves by saying what it calls.

::

    async with turn.model_call(model="some-model"):
        answer = await model.complete(prompt)
    async with turn.tool_call("search"):
        found = await search(answer)

The machine shows the step that was begun last of those that are still open: a model that a tool calls, several tools at
once. When that step ends, it goes back to the newest that is open; when none is, it stays until the next one begins, or
the run ends. Steps after the end of the task, as events then, count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType

from a2a.types import TaskState

from ..lifecycle import Canceled, Completed, Failed, HandedOn, Lost, Outcome, Paused, Refused, Rejected, Retried
from ..lifecycle import states as task_states
from ..lifecycle.execution import (
    ENDS,
    HISTORY_LIMIT,
    ExecutionState,
    ExecutionStateMachine,
    system_clock,
)
from ..lifecycle.outcomes import OUT_OF_TIME
from ..lifecycle.saved import Scalar

MAX_NAME = 200
"""Characters of a model's or tool's name that are kept: some models make up names of tools."""

CURRENT_EXECUTION: ContextVar[Execution] = ContextVar("a2a_celery_execution")
"""The execution that the agent's code works for."""

Choice = tuple[ExecutionState, dict[str, Scalar]]
"""A state, and what is to be said of it."""


class OpenStep:
    """A step of an agent, as a context manager for ``async with`` and ``with``; in any thread, once."""

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
    """The machine of one run, with the steps that its agent has open."""

    def __init__(
        self,
        state: ExecutionState = ExecutionState.IDLE,
        *,
        clock: Callable[[], int] = system_clock,
        history_limit: int = HISTORY_LIMIT,
    ) -> None:
        super().__init__(state, clock=clock, history_limit=history_limit)
        self._open: list[OpenStep] = []

    def model_call(self, model: str = "") -> OpenStep:
        """The agent calls a model, as long as the block runs; `model` is its name, "" for none.

        Raises:
            TypeError: it is no text.
        """
        return OpenStep(self, ExecutionState.MODEL_CALL, {"model": _name(model)} if model != "" else {})

    def tool_call(self, name: str) -> OpenStep:
        """The agent calls the tool `name`, as long as the block runs.

        Raises:
            TypeError, ValueError: it is no text, or an empty one.
        """
        if name == "":
            raise ValueError("turn.tool_call(name): name the tool")
        return OpenStep(self, ExecutionState.TOOL_EXECUTION, {"tool": _name(name)})

    def finish(self, outcome: Outcome, state: TaskState) -> None:
        """The run ended with `outcome`, its task in `state`; nothing happens if its agent has ended the task before."""
        if self.state not in ENDS:
            after, detail = end_of(outcome, state)
            self.try_transition(after, **detail)

    def _begin(self, step: OpenStep) -> None:
        def choose() -> Choice:
            self._open.append(step)
            return step.state, step.detail

        self._go_where(choose)

    def _end(self, step: OpenStep) -> None:
        def choose() -> Choice | None:
            newest = self._open[-1] is step
            self._open.remove(step)
            if not newest or not self._open:
                return None
            return self._open[-1].state, self._open[-1].detail

        self._go_where(choose)

    def _go_where(self, choose: Callable[[], Choice | None]) -> None:
        """Makes the transition that `choose` gives, if it is legal; nobody else makes one meanwhile."""
        with self._lock:
            choice = choose()
            if choice is not None and self.may(choice[0]):
                self._move(*choice)
        self._tell()


def end_of(outcome: Outcome, state: TaskState) -> Choice:
    """The state that a run ends in, and why it was an error, in a word of ours: what the agent said is its client's."""
    match outcome:
        case Completed():
            return end_in(state)
        case Paused():
            return ExecutionState.INTERRUPTED, {}
        case HandedOn():
            return ExecutionState.COMPLETED, {"reason": "handed on"}
        case Canceled():
            return ExecutionState.CANCELLED, {}
        case Failed(text, reference):
            known: dict[str, Scalar] = {} if reference is None else {"reference": reference}
            return ExecutionState.ERROR, {"reason": "out of time" if text == OUT_OF_TIME else "failed", **known}
        case Rejected() | Refused():
            return ExecutionState.ERROR, {"reason": "rejected"}
        case Retried():
            return ExecutionState.ERROR, {"reason": "retried"}
        case Lost():
            return ExecutionState.ERROR, {"reason": "lost"}


def end_in(state: TaskState) -> Choice:
    """The state of a run that leaves its task in `state`; one that is left open is completed by its end."""
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
    """The execution that this code runs in: for an SDK executor, a library, a tool, wherever there is no `Turn`.

    It has ``model_call`` and ``tool_call`` as a turn has. None: no A2A task runs this; or it runs in a thread that was
    started without its caller's context (``asyncio.to_thread`` passes it on).
    """
    return CURRENT_EXECUTION.get(None)


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r}: the name of a model or tool is text, not {type(name).__name__}")
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
