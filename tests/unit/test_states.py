"""Table of task states. The table is complete, and no transition leaves a terminal state."""

from __future__ import annotations

import pytest
from a2a.types import TaskState

from a2a_celery.lifecycle import INTERRUPTED, LEGAL, TERMINAL, is_interrupted, is_legal, is_terminal
from a2a_celery.lifecycle.states import INPUT_REQUIRED, SUBMITTED, WORKING

STATES = [state for state in TaskState.values() if state != TaskState.TASK_STATE_UNSPECIFIED]


def test_every_state_of_the_protocol_is_in_the_table() -> None:
    assert set(LEGAL) == set(STATES)


@pytest.mark.parametrize("state", STATES, ids=TaskState.Name)
def test_a_state_leads_nowhere_exactly_if_it_is_terminal(state: TaskState) -> None:
    assert (LEGAL[state] == frozenset()) == is_terminal(state) == (state in TERMINAL)


@pytest.mark.parametrize("state", sorted(set(STATES) - TERMINAL), ids=TaskState.Name)
def test_a_live_state_may_lead_to_any_end_and_to_working(state: TaskState) -> None:
    assert TERMINAL | {WORKING} <= LEGAL[state]


def test_only_a_pause_is_submitted_again() -> None:
    assert {state for state in STATES if is_legal(state, SUBMITTED)} == INTERRUPTED


def test_a_pause_is_not_terminal() -> None:
    assert not INTERRUPTED & TERMINAL
    assert is_interrupted(INPUT_REQUIRED)
    assert not is_interrupted(WORKING)


def test_an_unknown_state_is_never_legal() -> None:
    assert not is_legal(TaskState.TASK_STATE_UNSPECIFIED, WORKING)
    assert not is_legal(WORKING, TaskState.TASK_STATE_UNSPECIFIED)
