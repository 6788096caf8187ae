"""Execution states of a run: the states, the table of legal transitions, and the state machine.

The machine knows no runs, workers or stores: the worker drives one machine for each run. The clock is an argument. The
lock is needed because agents also work in threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from threading import Lock
from types import MappingProxyType
from typing import Any, Self

from .saved import InvalidSaved, Scalar, fields_of, is_scalar

logger = logging.getLogger(__name__)

HISTORY_LIMIT = 1000
"""How many transitions a machine remembers, the newest ones."""

SAVED_VERSION = 1
"""Of the form that `to_dict` gives."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class ExecutionState(StrEnum):
    """State of a run's execution."""

    IDLE = "IDLE"  # nothing runs; a run that begins moves it on
    INITIALIZING = "INITIALIZING"  # a run began; its agent moves it on, or its end
    MODEL_CALL = "MODEL_CALL"  # the agent called a model; its next step moves it on, or the run's end
    TOOL_EXECUTION = "TOOL_EXECUTION"  # the agent called a tool; its next step moves it on, or the run's end
    COMPLETED = "COMPLETED"  # the agent has done what it was asked; the next message moves it on
    INTERRUPTED = "INTERRUPTED"  # the agent waits for its client, whose answer moves it on
    CANCELLED = "CANCELLED"  # somebody asked for its end; nothing goes on from here but by IDLE
    ERROR = "ERROR"  # it failed, was stopped or refused; nothing goes on from here but by IDLE


_IDLE, _INITIALIZING, _MODEL_CALL, _TOOL_EXECUTION, _COMPLETED, _INTERRUPTED, _CANCELLED, _ERROR = ExecutionState

CHECKPOINT_STATES: frozenset[ExecutionState] = frozenset({_IDLE, _INTERRUPTED, _COMPLETED})
"""Between two steps for sure: what an agent has made of its conversation is whole here, and may be saved."""

ENDS: frozenset[ExecutionState] = frozenset({_COMPLETED, _INTERRUPTED, _CANCELLED, _ERROR})
"""A run that is over has left its machine in one of these."""

_STEPS = frozenset({_MODEL_CALL, _TOOL_EXECUTION})

EXECUTION_TRANSITIONS: Mapping[ExecutionState, frozenset[ExecutionState]] = MappingProxyType(
    {
        _IDLE: frozenset({_INITIALIZING}),
        # An agent may have no model, or no steps that it tells.
        _INITIALIZING: _STEPS | ENDS,
        # A state that repeats itself is the next call of a model, or of a tool.
        _MODEL_CALL: _STEPS | ENDS,
        _TOOL_EXECUTION: _STEPS | ENDS,
        _COMPLETED: frozenset({_IDLE, _INITIALIZING}),
        _INTERRUPTED: frozenset({_IDLE, _INITIALIZING}),
        _CANCELLED: frozenset({_IDLE}),
        _ERROR: frozenset({_IDLE}),
    }
)
"""From a state to the states that may follow it."""


class IllegalTransition(ValueError):
    """`after` can't follow `before`; the message says what can."""

    def __init__(self, before: ExecutionState, after: ExecutionState) -> None:
        legal = ", ".join(state for state in ExecutionState if state in EXECUTION_TRANSITIONS[before])
        super().__init__(f"an execution can't go from {before} to {after}; from {before} it may go to {legal}")
        self.before = before
        self.after = after


@dataclass(frozen=True, slots=True)
class Transition:
    """Transition number `number` of a machine.

    `at_us` is when, in µs since the epoch; `detail` says more, by names that the caller chose (model, tool).
    """

    number: int
    before: ExecutionState
    after: ExecutionState
    at_us: int
    detail: Mapping[str, Scalar] = field(default_factory=dict, hash=False)

    @property
    def at(self) -> datetime:
        """When it was, in UTC."""
        return _EPOCH + timedelta(microseconds=self.at_us)

    def to_dict(self) -> dict[str, Any]:
        """Itself as JSON."""
        return {
            "number": self.number,
            "from": self.before.value,
            "to": self.after.value,
            "at_us": self.at_us,
            "detail": dict(self.detail),
        }


Listener = Callable[[Transition], object]


def system_clock() -> int:
    """µs since the epoch, by this machine's clock."""
    return (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)


class ExecutionStateMachine:
    """An execution's state, moved by legal transitions only. Any thread may use it.

    `clock` gives µs since the epoch; the newest `history_limit` transitions are remembered.
    """

    def __init__(
        self,
        state: ExecutionState = ExecutionState.IDLE,
        *,
        clock: Callable[[], int] = system_clock,
        history_limit: int = HISTORY_LIMIT,
    ) -> None:
        if history_limit < 1:
            raise ValueError(f"history_limit = {history_limit}: a machine remembers 1 transition or more")
        self._state = ExecutionState(state)
        self._clock = clock
        self._history: list[Transition] = []  # a deque takes 600 bytes when empty, for as long as an agent waits
        self._history_limit = history_limit
        self._lock = Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._untold: list[tuple[Transition, tuple[Listener, ...], Context]] = []
        self._telling = False

    @property
    def state(self) -> ExecutionState:
        """Current state."""
        return self._state

    @property
    def history(self) -> tuple[Transition, ...]:
        """The newest transitions, oldest first."""
        with self._lock:
            return tuple(self._history)

    @property
    def is_checkpoint(self) -> bool:
        """True if the agent's session may be saved in this state."""
        return self._state in CHECKPOINT_STATES

    def may(self, to: ExecutionState) -> bool:
        """Return True if `to` can follow the current state."""
        return to in EXECUTION_TRANSITIONS[self._state]

    def transition(self, to: ExecutionState, **detail: Scalar) -> Transition:
        """Moves to `to`. Listeners have heard of it when this returns, unless one of them made it, or another thread is
        telling them just now: then they hear of it next, behind what came before.

        Raises:
            IllegalTransition: `to` can't follow.
            ValueError: `to` is no state.
            TypeError: a value of `detail` is no `Scalar`.
        """
        after = ExecutionState(to)
        for name, value in detail.items():
            if not is_scalar(value):
                raise TypeError(f"{name} = {value!r}: a detail is text, a finite number, True, False or None")
        with self._lock:
            made = self._move(after, detail)
        self._tell()
        return made

    def try_transition(self, to: ExecutionState, **detail: Scalar) -> bool:
        """`transition`, but an illegal one only gives False."""
        try:
            self.transition(to, **detail)
        except IllegalTransition:
            return False
        return True

    def add_listener(self, listener: Listener) -> None:
        """Has `listener` called with each transition from now on: once each, in their order, in the context in which
        they were made. What it raises is logged, and harms nobody. One that is there already is still called once."""
        with self._lock:
            if listener not in self._listeners:
                self._listeners = (*self._listeners, listener)

    def remove_listener(self, listener: Listener) -> None:
        """`listener` hears of no transition that is made from now on; one that is not there is no error."""
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one != listener)

    def restore(self, saved: Iterable[Transition]) -> None:
        """Continue from the `saved` transitions of earlier runs, oldest first; no listener hears of them.

        A run that was lost could not save its end, and a run that begins saves no return to IDLE: both are filled in.
        The history begins anew after a gap that nothing explains.
        """
        with self._lock:
            for made in saved:
                if made.before is ExecutionState.IDLE:
                    self._fill_in_idle(made.at_us)
                if made.before is not self._state:
                    self._history.clear()
                number = self._history[-1].number + 1 if self._history else made.number
                self._state = made.after
                self._remember(replace(made, number=number))

    def return_to_idle(self) -> None:
        """Prepare for a run that begins: leave a state that INITIALIZING can't follow; no listener hears of it."""
        with self._lock:
            if not self.may(ExecutionState.INITIALIZING):
                self._fill_in_idle(self._clock())

    def to_dict(self) -> dict[str, Any]:
        """State and history as JSON, for `from_dict`. Listeners are not in it."""
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
        """The machine that `to_dict` gave; it goes on from there.

        Raises:
            InvalidSaved: `saved` is nothing that `to_dict` gives; the message names the field.
        """
        fields = fields_of(saved, "", {"version": int, "state": str, "history": list})
        if fields["version"] != SAVED_VERSION:
            raise InvalidSaved("version", f"{fields['version']} is not known here, {SAVED_VERSION} is")
        machine = cls(_state(fields["state"], "state"), clock=clock, history_limit=history_limit)
        last: Transition | None = None
        for n, entry in enumerate(fields["history"]):
            last = _transition(entry, f"history[{n}]", last)
            machine._remember(last)
        if last is not None and last.after is not machine._state:
            raise InvalidSaved("state", f"{machine._state} is not where its history ends, {last.after} is")
        return machine

    def _move(self, after: ExecutionState, detail: Mapping[str, Scalar]) -> Transition:
        """Makes the transition; called with the lock."""
        if not self.may(after):
            raise IllegalTransition(self._state, after)
        number = self._history[-1].number + 1 if self._history else 1
        made = Transition(number, self._state, after, self._clock(), MappingProxyType(dict(detail)))
        self._state = after
        self._remember(made)
        if self._listeners:
            self._untold.append((made, self._listeners, copy_context()))
        return made

    def _fill_in_idle(self, at_us: int) -> None:
        """Remember what leads to IDLE, at `at_us`; called with the lock."""
        if not self._history:
            return
        if self._state not in ENDS and self._state is not ExecutionState.IDLE:
            self._fill_in(ExecutionState.ERROR, at_us, {"reason": "lost"})
        if self._state is not ExecutionState.IDLE:
            self._fill_in(ExecutionState.IDLE, at_us, {})

    def _fill_in(self, after: ExecutionState, at_us: int, detail: dict[str, Scalar]) -> None:
        self._remember(Transition(self._history[-1].number + 1, self._state, after, at_us, MappingProxyType(detail)))
        self._state = after

    def _remember(self, made: Transition) -> None:
        self._history.append(made)
        del self._history[: -self._history_limit]

    def _tell(self) -> None:
        """Tells what is untold. Whoever comes while somebody is at it leaves it to them: so there is one order, and a
        listener may make transitions itself."""
        while True:
            with self._lock:
                if self._telling or not self._untold:
                    return
                self._telling = True
                made, listeners, context = self._untold.pop(0)
            for listener in listeners:
                try:
                    context.run(listener, made)
                except BaseException:  # a cancellation, say, is no Exception, and meant for the agent
                    logger.exception("a listener failed at the transition from %s to %s", made.before, made.after)
            self._telling = False


def _transition(entry: Any, where: str, previous: Transition | None) -> Transition:
    wanted = {"number": int, "from": str, "to": str, "at_us": int, "detail": dict}
    fields = fields_of(entry, where, wanted)
    before, after = _state(fields["from"], f"{where}.from"), _state(fields["to"], f"{where}.to")
    if after not in EXECUTION_TRANSITIONS[before]:
        raise InvalidSaved(f"{where}.to", str(IllegalTransition(before, after)))
    if previous is not None and before is not previous.after:
        raise InvalidSaved(f"{where}.from", f"{before} does not follow {previous.after}")
    number = fields["number"]
    if number < 1 or (previous is not None and number != previous.number + 1):
        raise InvalidSaved(f"{where}.number", f"{number} does not follow {previous.number if previous else 0}")
    if not 0 <= fields["at_us"] <= _LAST_US:
        raise InvalidSaved(f"{where}.at_us", f"{fields['at_us']} is no time")
    for name, value in fields["detail"].items():
        if not isinstance(name, str) or not is_scalar(value):
            raise InvalidSaved(f"{where}.detail", f"{name!r}: {value!r} is no text, number, True, False or None")
    return Transition(number, before, after, fields["at_us"], MappingProxyType(dict(fields["detail"])))


def _state(value: str, where: str) -> ExecutionState:
    try:
        return ExecutionState(value)
    except ValueError:
        raise InvalidSaved(where, f"{value!r} is none of {', '.join(ExecutionState)}") from None
