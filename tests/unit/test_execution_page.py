"""Consistency of docs/execution.md with the code: transitions, states, names and metrics."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import a2a_celery
from a2a_celery import Turn
from a2a_celery.execution.agents.blocking_turn import BlockingTurn
from a2a_celery.execution.celery.celery_events import EXECUTION_EVENT
from a2a_celery.execution.events.activities import ACTIVITY_DELAY, MAX_NAME, Execution
from a2a_celery.execution.events.observers import DETAILS
from a2a_celery.lifecycle import execution
from a2a_celery.lifecycle.execution import CHECKPOINT_STATES, EXECUTION_TRANSITIONS, ExecutionState
from a2a_celery.lifecycle.own_metadata import EXECUTION, NAMESPACE
from a2a_celery.telemetry.names import SpanEvent

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "execution.md").read_text(encoding="utf-8")
TRANSITIONS = PAGE.partition("| state | next states |\n| --- | --- |\n")[2].partition("\n\n")[0]


def test_the_state_machine_is_the_table_of_transitions() -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| ([A-Z_, ]+) \|$", TRANSITIONS, re.MULTILINE)

    assert {state: set(targets.split(", ")) for state, targets in rows} == EXECUTION_TRANSITIONS
    assert len(rows) == len(EXECUTION_TRANSITIONS)


def test_each_state_is_explained_once() -> None:
    states = re.findall(r"^\| ([A-Z_]+) \|", PAGE.replace(TRANSITIONS, ""), re.MULTILINE)

    assert states == list(ExecutionState)


def test_the_checkpoint_states_are_named() -> None:
    sentence = PAGE.partition(" are the *checkpoint states*")[0].rpartition("\n")[2]

    assert set(re.findall(r"[A-Z]{2,}", sentence)) == CHECKPOINT_STATES


def test_all_named_objects_exist() -> None:
    for name in ("ExecutionStateMachine", "IllegalTransition", "InvalidSaved", "current_execution", "current_turn"):
        assert f"`{name}" in PAGE or f".{name}" in PAGE
        assert hasattr(a2a_celery, name) or hasattr(execution, name)
    for name in (
        "state",
        "history",
        "is_checkpoint",
        "add_listener",
        "remove_listener",
        "transition",
        "try_transition",
    ):
        assert f"`{name}`" in PAGE
        assert hasattr(Execution, name)
    for kind in (Turn, BlockingTurn, Execution):
        assert callable(kind.model_call)
        assert callable(kind.tool_call)
    for name in (EXECUTION_EVENT, SpanEvent.EXECUTION, NAMESPACE + EXECUTION, *DETAILS):
        assert f"`{name}`" in PAGE


def test_numbers_are_those_of_the_code() -> None:
    lua = (ROOT / "a2a_celery" / "store" / "scripts" / "lib" / "events.lua").read_text(encoding="utf-8")

    assert f"truncated to {MAX_NAME} characters" in PAGE
    assert "the newest 1,000 transitions" in PAGE
    assert "local MAX_ACTIVITIES = 1000 " in lua
    assert ACTIVITY_DELAY == 0.5
    assert " ".join(PAGE.split()).count("half a second") == 2


def test_the_example_is_python() -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None

    ast.parse(example[1])
