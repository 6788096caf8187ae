"""Execution state machine: transitions, history and listeners, compared with a model."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_celery.lifecycle.execution import (
    CHECKPOINT_STATES,
    ENDS,
    EXECUTION_TRANSITIONS,
    ExecutionState,
    ExecutionStateMachine,
    IllegalTransition,
    Transition,
)
from a2a_celery.lifecycle.saved_json import InvalidSaved

S = ExecutionState
ALL = list(ExecutionState)
TEXTS = st.text('aB0 \n"{\u00e4\u2028\U0001f600', max_size=5)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
DETAILS = st.dictionaries(st.sampled_from(["model", "tool", "reason", "n"]), SCALARS, max_size=3)
ATTEMPTS = st.lists(st.tuples(st.sampled_from(ALL), DETAILS), max_size=40)


def ticking(start: int = 1_000) -> Any:
    """Return a clock that advances by 1 µs at each call."""
    ticks = iter(range(start, start + 1_000_000))
    return lambda: next(ticks)


def through_json(state: dict[str, Any]) -> Any:
    """Return the saved state after a round trip through JSON."""
    return json.loads(json.dumps(state))


# copy of the documented table, to detect accidental changes
EXPECTED = {
    S.IDLE: {S.INITIALIZING},
    S.INITIALIZING: {S.MODEL_CALL, S.TOOL_EXECUTION, *ENDS},
    S.MODEL_CALL: {S.MODEL_CALL, S.TOOL_EXECUTION, *ENDS},
    S.TOOL_EXECUTION: {S.MODEL_CALL, S.TOOL_EXECUTION, *ENDS},
    S.COMPLETED: {S.IDLE, S.INITIALIZING},
    S.INTERRUPTED: {S.IDLE, S.INITIALIZING},
    S.CANCELLED: {S.IDLE},
    S.ERROR: {S.IDLE},
}


def test_the_table_is_the_documented_one() -> None:
    assert EXPECTED == EXECUTION_TRANSITIONS
    assert {S.IDLE, S.INTERRUPTED, S.COMPLETED} == CHECKPOINT_STATES


@given(ATTEMPTS, st.sampled_from(ALL))
def test_only_legal_transitions_happen_and_listeners_get_each_once_in_order(
    attempts: list[tuple[ExecutionState, dict[str, Any]]], start: ExecutionState
) -> None:
    machine = ExecutionStateMachine(start, clock=ticking())
    notifications: tuple[list[Transition], list[Transition]] = ([], [])
    for listener in notifications:
        machine.add_listener(listener.append)
    state, expected = start, []

    for target, detail in attempts:
        if target in EXPECTED[state]:
            expected.append((len(expected) + 1, state, target, 1_000 + len(expected), detail))
            assert machine.try_transition(target, **detail)
            state = target
        else:
            with pytest.raises(IllegalTransition):
                machine.transition(target, **detail)
            assert not machine.try_transition(target, **detail)
        assert machine.state is state
        assert machine.is_checkpoint == (state in CHECKPOINT_STATES)

    history = [(t.number, t.before, t.after, t.at_us, t.detail) for t in machine.history]
    assert history == expected
    assert list(notifications[0]) == list(notifications[1]) == list(machine.history)


@given(ATTEMPTS, st.sampled_from(ALL), st.integers(1, 40))
def test_a_saved_machine_is_restored_exactly_and_continues(
    attempts: list[tuple[ExecutionState, dict[str, Any]]], start: ExecutionState, limit: int
) -> None:
    machine = ExecutionStateMachine(start, clock=ticking(), history_limit=limit)
    for target, detail in attempts:
        machine.try_transition(target, **detail)

    restored_machine = ExecutionStateMachine.from_dict(
        through_json(machine.to_dict()), clock=ticking(5_000), history_limit=limit
    )

    assert restored_machine.to_dict() == machine.to_dict()
    assert (restored_machine.state, restored_machine.history) == (machine.state, machine.history)
    assert len(restored_machine.history) <= limit
    target = min(EXPECTED[machine.state])
    last_number = restored_machine.history[-1].number if restored_machine.history else 0
    assert restored_machine.transition(target).number == last_number + 1


def test_an_illegal_transition_names_where_it_is_where_to_and_what_may_be() -> None:
    machine = ExecutionStateMachine(S.COMPLETED)

    with pytest.raises(IllegalTransition, match=r"from COMPLETED to MODEL_CALL; .*: IDLE, INITIALIZING$"):
        machine.transition(S.MODEL_CALL)

    assert (machine.state, machine.history) == (S.COMPLETED, ())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), ["a"], {"a": 1}, b"bytes", object()])
def test_a_detail_that_is_no_plain_value_is_refused(value: Any) -> None:
    machine = ExecutionStateMachine()

    with pytest.raises(TypeError, match="tool = "):
        machine.transition(S.INITIALIZING, tool=value)

    assert machine.state is S.IDLE


@pytest.mark.parametrize("state", ["RUNNING", "", None, 1])
def test_an_unknown_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid ExecutionState"):
        ExecutionStateMachine().transition(state)
    with pytest.raises(ValueError, match="history_limit = 0"):
        ExecutionStateMachine(history_limit=0)


STEP = {"number": 1, "from": "IDLE", "to": "INITIALIZING", "at_us": 7, "detail": {"model": "m"}}
SAVED = {"version": 1, "state": "INITIALIZING", "history": [STEP]}


def with_step(**changes: Any) -> dict[str, Any]:
    """Return `SAVED` with a changed first history entry."""
    return {**SAVED, "history": [{**STEP, **changes}]}


GARBAGE: dict[str, tuple[Any, str]] = {
    "nothing": (None, "root: must be an object, not NoneType"),
    "a list": ([], "root: "),
    "no version": ({"state": "IDLE", "history": []}, "version: is missing"),
    "a version that is text": ({**SAVED, "version": "1"}, "version: '1' is not of type int"),
    "a version that is a truth": ({**SAVED, "version": True}, "version: True is not of type int"),
    "a later version": ({**SAVED, "version": 2}, "version: 2 is unknown; supported: 1"),
    "an unknown state": ({**SAVED, "state": "WORKING"}, "state: 'WORKING' is not one of IDLE, "),
    "a history that is none": ({**SAVED, "history": {}}, "history: {} is not of type list"),
    "a state where it does not end": ({**SAVED, "state": "IDLE"}, "state: IDLE is not INITIALIZING, the last state"),
    "an unknown field": ({**SAVED, "hsitory": []}, "hsitory: is unknown"),
    "an entry that is none": ({**SAVED, "history": ["x"]}, r"history\[0\]: must be an object, not str"),
    "an entry without a time": ({**SAVED, "history": [{}]}, r"history\[0\].number: is missing"),
    "a transition that is illegal": (with_step(to="ERROR"), r"history\[0\].to: .* from IDLE to ERROR"),
    "a state of no kind": (with_step(**{"from": "X"}), r"history\[0\].from: 'X' is not one of"),
    "a number below one": (with_step(number=0), r"history\[0\].number: 0 does not follow 0"),
    "a time beyond all": (with_step(at_us=10**40), r"history\[0\].at_us: 1000.* is not a time"),
    "a time before all": (with_step(at_us=-1), r"history\[0\].at_us: -1 is not a time"),
    "a time between": (with_step(at_us=1.5), r"history\[0\].at_us: 1.5 is not of type int"),
    "a detail with parts": (with_step(detail={"a": []}), r"history\[0\].detail: 'a': \[\] is not a string"),
    "a detail without a name": (with_step(detail={1: "a"}), r"history\[0\].detail: 1: 'a' is not a string"),
    "an unknown field of an entry": (with_step(more=1), r"history\[0\].more: is unknown"),
    "an entry twice": ({**SAVED, "history": [STEP, STEP]}, r"history\[1\].from: IDLE does not follow INITIALIZING"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused_by_the_field_at_fault(name: str) -> None:
    state, error = GARBAGE[name]
    assert ExecutionStateMachine.from_dict(SAVED).to_dict() == SAVED

    with pytest.raises(InvalidSaved, match=f"^{error}") as exc_info:
        ExecutionStateMachine.from_dict(state)

    assert isinstance(exc_info.value, ValueError)
    assert str(exc_info.value).startswith(f"{exc_info.value.field}: ")


JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))


@given(JSON)
def test_any_json_is_read_or_refused(state: Any) -> None:
    with pytest.raises(InvalidSaved):
        ExecutionStateMachine.from_dict(state)


def test_a_failing_listener_is_logged_without_other_effects(caplog: pytest.LogCaptureFixture) -> None:
    machine = ExecutionStateMachine()
    notifications: list[Transition] = []

    def fails(transition: Transition) -> None:
        raise SystemExit("a listener's own idea")

    machine.add_listener(fails)
    machine.add_listener(notifications.append)
    with caplog.at_level(logging.ERROR):
        machine.transition(S.INITIALIZING)
        machine.transition(S.COMPLETED)

    assert [t.after for t in notifications] == [S.INITIALIZING, S.COMPLETED]
    assert "a listener failed at the transition from IDLE to INITIALIZING" in caplog.text


def test_a_listener_may_make_a_transition_that_later_listeners_get_in_order() -> None:
    machine = ExecutionStateMachine()
    first: list[str] = []
    second: list[str] = []

    def mover(transition: Transition) -> None:
        first.append(transition.after)
        if transition.after is S.INITIALIZING:
            machine.transition(S.TOOL_EXECUTION, tool="t")
            assert machine.state is S.TOOL_EXECUTION

    machine.add_listener(mover)
    machine.add_listener(lambda transition: second.append(transition.after))
    machine.transition(S.INITIALIZING)

    assert first == second == [S.INITIALIZING, S.TOOL_EXECUTION]


def test_a_listener_gets_transitions_between_its_addition_and_removal() -> None:
    machine = ExecutionStateMachine()
    notifications: list[Transition] = []
    machine.transition(S.INITIALIZING)
    machine.add_listener(notifications.append)
    machine.add_listener(notifications.append)
    machine.transition(S.MODEL_CALL)
    machine.remove_listener(notifications.append)
    machine.remove_listener(notifications.append)
    machine.transition(S.COMPLETED)

    assert [t.after for t in notifications] == [S.MODEL_CALL]


def start_each(threads: list[Thread]) -> Iterator[Thread]:
    """Start each thread, and yield it."""
    for thread in threads:
        thread.start()
        yield thread


def test_many_threads_make_one_history_that_every_listener_gets() -> None:
    machine = ExecutionStateMachine(history_limit=100_000)
    notifications: list[Transition] = []
    machine.add_listener(notifications.append)
    machine.transition(S.INITIALIZING)
    count, each = 8, 400
    together = Barrier(count)

    def work(name: str) -> None:
        together.wait()
        for n in range(each):
            machine.transition(S.TOOL_EXECUTION if n % 2 else S.MODEL_CALL, tool=name)

    for thread in list(start_each([Thread(target=work, args=(str(n),)) for n in range(count)])):
        thread.join(20)

    history = machine.history
    assert notifications == list(history)
    assert [t.number for t in history] == list(range(1, count * each + 2))
    assert all(b.before is a.after for a, b in pairwise(history))
    ExecutionStateMachine.from_dict(machine.to_dict(), history_limit=100_000)


def test_a_thread_does_not_wait_for_a_listener_that_another_thread_runs() -> None:
    at: ContextVar[str] = ContextVar("at", default="elsewhere")
    at.set("here")
    machine = ExecutionStateMachine()
    is_called, may_continue = Event(), Event()
    notifications: list[tuple[ExecutionState, str]] = []

    def slow(transition: Transition) -> None:
        notifications.append((transition.after, at.get()))
        is_called.set()
        assert may_continue.wait(20)

    machine.add_listener(slow)
    other = Thread(target=machine.transition, args=(S.INITIALIZING,))
    other.start()
    assert is_called.wait(20)

    machine.transition(S.MODEL_CALL)  # while the listener runs in the other thread
    assert notifications == [(S.INITIALIZING, "elsewhere")]
    may_continue.set()
    other.join(20)

    assert notifications == [(S.INITIALIZING, "elsewhere"), (S.MODEL_CALL, "here")]


def test_each_state_has_a_comment() -> None:
    source = (Path(__file__).resolve().parents[2] / "a2a_celery" / "lifecycle" / "execution.py").read_text()

    assert all(re.search(rf'    {state} = "{state}"  # \w.*\w', source) for state in ALL)


def step(number: int, source: ExecutionState, target: ExecutionState, **detail: str) -> Transition:
    return Transition(number, source, target, 1_000 + number, detail)


def transitions_of(machine: ExecutionStateMachine) -> list[tuple[int, str, str, dict[str, Any]]]:
    return [(t.number, t.before, t.after, dict(t.detail)) for t in machine.history]


def test_a_restored_machine_has_its_last_state_and_continues_from_idle() -> None:
    machine = ExecutionStateMachine(clock=ticking(2_000))
    notifications: list[Transition] = []
    machine.add_listener(notifications.append)

    machine.restore([step(1, S.IDLE, S.INITIALIZING), step(2, S.INITIALIZING, S.TOOL_EXECUTION, tool="search")])
    machine.return_to_idle()

    assert transitions_of(machine) == [
        (1, S.IDLE, S.INITIALIZING, {}),
        (2, S.INITIALIZING, S.TOOL_EXECUTION, {"tool": "search"}),
        (3, S.TOOL_EXECUTION, S.ERROR, {"reason": "lost"}),
        (4, S.ERROR, S.IDLE, {}),
    ]
    assert notifications == []
    assert machine.transition(S.INITIALIZING).number == 5
    restored_machine = ExecutionStateMachine.from_dict(through_json(machine.to_dict()))
    assert restored_machine.history == machine.history


@pytest.mark.parametrize("end", [S.COMPLETED, S.INTERRUPTED])
def test_a_machine_that_is_between_two_messages_stays_there(end: ExecutionState) -> None:
    machine = ExecutionStateMachine()
    machine.restore([step(1, S.IDLE, S.INITIALIZING), step(2, S.INITIALIZING, end)])

    machine.return_to_idle()

    assert machine.state is end
    assert machine.transition(S.INITIALIZING).before is end


@pytest.mark.parametrize(
    ("state", "new_states"),
    [
        *((state, []) for state in (S.IDLE, S.COMPLETED, S.INTERRUPTED)),
        *((state, [S.IDLE]) for state in (S.CANCELLED, S.ERROR)),
        *((state, [S.ERROR, S.IDLE]) for state in (S.INITIALIZING, S.MODEL_CALL, S.TOOL_EXECUTION)),
    ],
)
def test_a_machine_without_a_history_returns_to_idle(state: ExecutionState, new_states: list[ExecutionState]) -> None:
    machine = ExecutionStateMachine(state, clock=ticking())
    notifications: list[Transition] = []
    machine.add_listener(notifications.append)

    machine.return_to_idle()

    assert [(number, state) for number, _, state, _ in transitions_of(machine)] == list(enumerate(new_states, 1))
    assert notifications == []
    assert machine.may(S.INITIALIZING)
    assert ExecutionStateMachine.from_dict(through_json(machine.to_dict())).history == machine.history


@pytest.mark.parametrize("end", [S.CANCELLED, S.ERROR])
def test_the_return_to_idle_between_two_runs_is_filled_in(end: ExecutionState) -> None:
    runs = [step(1, S.IDLE, S.INITIALIZING), step(2, S.INITIALIZING, end), step(4, S.IDLE, S.INITIALIZING)]
    machine = ExecutionStateMachine()

    machine.restore(runs)

    assert [state for _, _, state, _ in transitions_of(machine)] == [S.INITIALIZING, end, S.IDLE, S.INITIALIZING]
    assert [number for number, _, _, _ in transitions_of(machine)] == [1, 2, 3, 4]


def test_a_history_with_a_gap_begins_after_it() -> None:
    machine = ExecutionStateMachine()

    machine.restore([step(1, S.IDLE, S.INITIALIZING), step(7, S.TOOL_EXECUTION, S.COMPLETED)])

    assert transitions_of(machine) == [(7, S.TOOL_EXECUTION, S.COMPLETED, {})]
    assert machine.state is S.COMPLETED
