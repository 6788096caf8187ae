"""Execution states of a run: the table of legal transitions, the state machine and the stored activities.

A worker drives one machine for each run. The machine itself does not depend on runs, workers or stores. A lock protects
the machine, because agents may run in threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from threading import Lock
from types import MappingProxyType
from typing import Any, Self

from .saved_json import InvalidSaved, Scalar, fields_of, is_scalar

logger = logging.getLogger(__name__)

HISTORY_LIMIT = 1000
"""Maximum number of transitions in the history of a state machine. The oldest transitions are dropped."""

SAVED_VERSION = 1
"""Version of the format that `to_dict` returns."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class ExecutionState(StrEnum):
    """State of a run's execution."""

    IDLE = "IDLE"  # no run is executing, until the next run begins
    INITIALIZING = "INITIALIZING"  # a run has begun, until the agent's first step or the end of the run
    MODEL_CALL = "MODEL_CALL"  # the agent has called a model, until its next activity or the end of the run
    TOOL_EXECUTION = "TOOL_EXECUTION"  # the agent has called a tool, until its next activity or the end of the run
    COMPLETED = "COMPLETED"  # the agent has finished the request, until the next message
    INTERRUPTED = "INTERRUPTED"  # the agent waits for its client, a time or a signal, until the next run begins
    CANCELLED = "CANCELLED"  # the run was cancelled; only IDLE can follow
    ERROR = "ERROR"  # the run failed, was stopped or was refused; only IDLE can follow


_IDLE, _INITIALIZING, _MODEL_CALL, _TOOL_EXECUTION, _COMPLETED, _INTERRUPTED, _CANCELLED, _ERROR = ExecutionState

CHECKPOINT_STATES: frozenset[ExecutionState] = frozenset({_IDLE, _INTERRUPTED, _COMPLETED})
"""States in which the conversation of the agent is consistent and may be saved."""

ENDS: frozenset[ExecutionState] = frozenset({_COMPLETED, _INTERRUPTED, _CANCELLED, _ERROR})
"""Execution states of a run that has ended."""

_ACTIVITIES = frozenset({_MODEL_CALL, _TOOL_EXECUTION})

EXECUTION_TRANSITIONS: Mapping[ExecutionState, frozenset[ExecutionState]] = MappingProxyType(
    {
        _IDLE: frozenset({_INITIALIZING}),
        # An agent may have no model, or may not report its activities.
        _INITIALIZING: _ACTIVITIES | ENDS,
        # A repeated state is the next call of a model or a tool.
        _MODEL_CALL: _ACTIVITIES | ENDS,
        _TOOL_EXECUTION: _ACTIVITIES | ENDS,
        _COMPLETED: frozenset({_IDLE, _INITIALIZING}),
        _INTERRUPTED: frozenset({_IDLE, _INITIALIZING}),
        _CANCELLED: frozenset({_IDLE}),
        _ERROR: frozenset({_IDLE}),
    }
)
"""States that may follow each state."""


class IllegalTransition(ValueError):
    """Error for a state `after` that cannot follow the state `before`. The message lists the legal states."""

    def __init__(self, before: ExecutionState, after: ExecutionState) -> None:
        legal = ", ".join(state for state in ExecutionState if state in EXECUTION_TRANSITIONS[before])
        super().__init__(f"an execution cannot go from {before} to {after}; legal states: {legal}")
        self.before = before
        self.after = after


@dataclass(frozen=True, slots=True)
class Transition:
    """Transition of the execution state machine.

    Attributes:
        number: Number of the transition, counted from 1 for each state machine.
        before: State before the transition.
        after: State after the transition.
        at_us: Time of the transition in µs since 1970.
        detail: Details from the caller by name, such as ``model`` and ``tool``.
    """

    number: int
    before: ExecutionState
    after: ExecutionState
    at_us: int
    detail: Mapping[str, Scalar] = field(default_factory=dict, hash=False)

    @property
    def at(self) -> datetime:
        """Time of the transition in UTC."""
        return _EPOCH + timedelta(microseconds=self.at_us)

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "from": self.before.value,
            "to": self.after.value,
            "at_us": self.at_us,
            "detail": dict(self.detail),
        }


Listener = Callable[[Transition], object]


def system_clock() -> int:
    """Return the time of the system clock, in µs since 1970."""
    return (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)


class ExecutionStateMachine:
    """State machine of an execution, which allows only legal transitions. Thread-safe.

    Args:
        state: Initial state.
        clock: Function that returns the time in µs since 1970.
        history_limit: Maximum number of transitions in `history`.

    Raises:
        ValueError: `history_limit` is less than 1.
    """

    def __init__(
        self,
        state: ExecutionState = ExecutionState.IDLE,
        *,
        clock: Callable[[], int] = system_clock,
        history_limit: int = HISTORY_LIMIT,
    ) -> None:
        if history_limit < 1:
            raise ValueError(f"history_limit = {history_limit}: must be at least 1")
        self._state = ExecutionState(state)
        self._clock = clock
        self._history: list[Transition] = []  # an empty deque takes 600 bytes in each waiting run
        self._history_limit = history_limit
        self._lock = Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._pending: list[tuple[Transition, tuple[Listener, ...], Context]] = []
        self._notifying = False

    @property
    def state(self) -> ExecutionState:
        return self._state

    @property
    def history(self) -> tuple[Transition, ...]:
        """Newest transitions, oldest first."""
        with self._lock:
            return tuple(self._history)

    @property
    def is_checkpoint(self) -> bool:
        """True if the agent's session may be saved in this state."""
        return self._state in CHECKPOINT_STATES

    def may(self, to: ExecutionState) -> bool:
        """Return True if `to` is a legal next state."""
        return to in EXECUTION_TRANSITIONS[self._state]

    def transition(self, to: ExecutionState, **detail: Scalar) -> Transition:
        """Change the state to `to` and call the listeners.

        If a listener or another thread makes a further transition while the listeners are being called, the nested or
        concurrent call returns immediately. The active call passes each such transition to the listeners, in order.

        Raises:
            IllegalTransition: `to` cannot follow the current state.
            ValueError: `to` is not a state.
            TypeError: A value of `detail` is not a `Scalar`.
        """
        state_after = ExecutionState(to)
        for name, value in detail.items():
            if not is_scalar(value):
                raise TypeError(f"{name} = {value!r}: must be a string, a finite number, True, False or None")
        with self._lock:
            transition = self._move(state_after, detail)
        self._notify_listeners()
        return transition

    def try_transition(self, to: ExecutionState, **detail: Scalar) -> bool:
        """Change the state to `to` like `transition`, but return False if the transition is illegal."""
        try:
            self.transition(to, **detail)
        except IllegalTransition:
            return False
        return True

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` with each later transition, in order.

        The listener runs in the contextvars context of the code that made the transition. Exceptions of the listener
        are logged. Adding a listener a second time has no effect.
        """
        with self._lock:
            if listener not in self._listeners:
                self._listeners = (*self._listeners, listener)

    def remove_listener(self, listener: Listener) -> None:
        """Stop calling `listener` with later transitions. An unknown listener is ignored."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other != listener)

    def restore(self, saved: Iterable[Transition]) -> None:
        """Continue from the `saved` transitions of earlier runs, oldest first, without calling listeners.

        The end of a lost run and the return to IDLE are not saved, and are therefore added. After any other gap, the
        history restarts.
        """
        with self._lock:
            for transition in saved:
                if transition.before is ExecutionState.IDLE:
                    self._fill_in_idle(transition.at_us)
                if transition.before is not self._state:
                    self._history.clear()
                number = self._history[-1].number + 1 if self._history else transition.number
                self._state = transition.after
                self._remember(replace(transition, number=number))

    def return_to_idle(self) -> None:
        """Return to IDLE if INITIALIZING cannot follow the current state. Listeners are not called."""
        with self._lock:
            if not self.may(ExecutionState.INITIALIZING):
                self._fill_in_idle(self._clock())

    def to_dict(self) -> dict[str, Any]:
        """Return the state and the history, without listeners, as a JSON object for `from_dict`."""
        with self._lock:
            return {
                "version": SAVED_VERSION,
                "state": self._state.value,
                "history": [transition.to_dict() for transition in self._history],
            }

    @classmethod
    def from_dict(
        cls, saved: Any, *, clock: Callable[[], int] = system_clock, history_limit: int = HISTORY_LIMIT
    ) -> Self:
        """Return a machine that continues from the result of `to_dict`.

        Raises:
            InvalidSaved: `saved` is invalid. The message contains the name of the invalid field.
        """
        fields = fields_of(saved, "", {"version": int, "state": str, "history": list})
        if fields["version"] != SAVED_VERSION:
            raise InvalidSaved("version", f"{fields['version']} is unknown; supported: {SAVED_VERSION}")
        machine = cls(_state(fields["state"], "state"), clock=clock, history_limit=history_limit)
        last: Transition | None = None
        for n, entry in enumerate(fields["history"]):
            last = _transition(entry, f"history[{n}]", last)
            machine._remember(last)
        if last is not None and last.after is not machine._state:
            raise InvalidSaved("state", f"{machine._state} is not {last.after}, the last state of the history")
        return machine

    def _move(self, state_after: ExecutionState, detail: Mapping[str, Scalar]) -> Transition:
        if not self.may(state_after):
            raise IllegalTransition(self._state, state_after)
        transition = self._add(state_after, self._clock(), dict(detail))
        if self._listeners:
            self._pending.append((transition, self._listeners, copy_context()))
        return transition

    def _fill_in_idle(self, at_us: int) -> None:
        """Add the missing transitions that lead to IDLE, with the time `at_us`. The caller holds the lock."""
        if self._state not in ENDS and self._state is not ExecutionState.IDLE:
            self._add(ExecutionState.ERROR, at_us, {"reason": "lost"})
        if self._state is not ExecutionState.IDLE:
            self._add(ExecutionState.IDLE, at_us, {})

    def _add(self, state_after: ExecutionState, at_us: int, detail: dict[str, Scalar]) -> Transition:
        number = self._history[-1].number + 1 if self._history else 1
        transition = Transition(number, self._state, state_after, at_us, MappingProxyType(detail))
        self._state = state_after
        self._remember(transition)
        return transition

    def _remember(self, transition: Transition) -> None:
        self._history.append(transition)
        del self._history[: -self._history_limit]

    def _notify_listeners(self) -> None:
        """Call the listeners with pending transitions, in order, unless another call is active.

        The active call also processes transitions that become pending while it runs.
        """
        while True:
            with self._lock:
                if self._notifying or not self._pending:
                    return
                self._notifying = True
                transition, listeners, context = self._pending.pop(0)
            for listener in listeners:
                try:
                    context.run(listener, transition)
                except BaseException:  # includes cancellations, because a listener must not cancel the agent
                    text = "a listener failed at the transition from %s to %s"
                    logger.exception(text, transition.before, transition.after)
            self._notifying = False


def _transition(entry: Any, path: str, previous: Transition | None) -> Transition:
    types = {"number": int, "from": str, "to": str, "at_us": int, "detail": dict}
    fields = fields_of(entry, path, types)
    state_before, state_after = _state(fields["from"], f"{path}.from"), _state(fields["to"], f"{path}.to")
    if state_after not in EXECUTION_TRANSITIONS[state_before]:
        raise InvalidSaved(f"{path}.to", str(IllegalTransition(state_before, state_after)))
    if previous is not None and state_before is not previous.after:
        raise InvalidSaved(f"{path}.from", f"{state_before} does not follow {previous.after}")
    number = fields["number"]
    if number < 1 or (previous is not None and number != previous.number + 1):
        raise InvalidSaved(f"{path}.number", f"{number} does not follow {previous.number if previous else 0}")
    if not 0 <= fields["at_us"] <= _LAST_US:
        raise InvalidSaved(f"{path}.at_us", f"{fields['at_us']} is not a time")
    for name, value in fields["detail"].items():
        if not isinstance(name, str) or not is_scalar(value):
            raise InvalidSaved(f"{path}.detail", f"{name!r}: {value!r} is not a string, a number, True, False or None")
    return Transition(number, state_before, state_after, fields["at_us"], MappingProxyType(dict(fields["detail"])))


def _state(value: str, path: str) -> ExecutionState:
    try:
        return ExecutionState(value)
    except ValueError:
        raise InvalidSaved(path, f"{value!r} is not one of {', '.join(ExecutionState)}") from None


_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def runner_id(process: str, node: str) -> str:
    """Return the id of a worker process in the store.

    The id begins with the id of the process, because scripts compare the beginning of the id with the prefix of a
    process. The node name follows, by which Celery and operators identify the worker.
    """
    return f"{process}:{node}" if node else process


def worker_of(runner: str) -> str:
    """Return the node name of the worker in a runner's id, or the id of the process if the id has no node name."""
    process, _, node = runner.partition(":")
    return node or process


def process_of(runner: str) -> str:
    """Return the id of the process in a runner's id, or "" if `runner` is ""."""
    return runner.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Activity:
    """Stored transition of a run.

    Attributes:
        run: Number of the run.
        attempt: Number of the run in its turn.
        runner: Id of the worker process; see `runner_id`.
        transition: Transition of the run's state machine, with a time of the worker's clock.
    """

    run: int
    attempt: int
    runner: str
    transition: Transition


def encode_activity(activity: Activity) -> bytes:
    """Return `activity` as a JSON array for storage, because an array is smaller than an object."""
    transition = activity.transition
    content = [transition.number, transition.before, transition.after, transition.at_us, dict(transition.detail)]
    return _to_json([activity.run, activity.attempt, activity.runner, *content]).encode("utf-8", "replace")


def decode_activity(content: bytes) -> Activity:
    run, attempt, runner, number, state_before, state_after, at_us, detail = json.loads(content)
    transition = Transition(
        number, ExecutionState(state_before), ExecutionState(state_after), at_us, MappingProxyType(detail)
    )
    return Activity(run, attempt, runner, transition)
