"""Outcomes of runs in docs/agents.md and docs/lifecycle.md, whose states and texts must equal those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

from a2a.types import TaskState

from a2a_celery.execution.run import REFUSALS
from a2a_celery.lifecycle import (
    LEGAL,
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
    final_event,
    outcomes,
)
from a2a_celery.lifecycle.states import INTERRUPTED, TERMINAL

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
STATES = {
    outcomes.CANCELED_BY_CLIENT: "CANCELED",
    outcomes.CANCELED_BY_OPERATOR: "CANCELED",
    outcomes.CANCELED_BY_AGENT: "CANCELED",
    outcomes.CANCELED_WITH_RUN: "CANCELED",
    outcomes.NO_ANSWER: "FAILED",
    outcomes.NEEDS_INPUT: "INPUT_REQUIRED",
    outcomes.NEEDS_AUTHORIZATION: "AUTH_REQUIRED",
}
"""States of the final texts that no call to `Failure` or `Refused` names."""
SENTENCES = {name: value for name, value in vars(outcomes).items() if name.isupper() and str(value).endswith(".")}


def table_rows() -> list[tuple[str, str, str]]:
    """Return the event, the states and the text for the client of each table row."""
    section = TEXT.partition("## How a run can end\n")[2].partition("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [(event.strip(), states.strip(), reads.strip()) for event, states, reads in table[2:]]


def states_in_docs() -> dict[str, str]:
    """Return the state for each text of the table."""
    return {sentence: state for _, state, reads in table_rows() for sentence in re.findall(r'"(.+?)"', reads)}


@cache
def states_in_code() -> dict[str, str]:
    """Return the state for each text with which the code ends a run."""
    states = {outcomes.AGENT_FAILED: state_of(Failure()), **STATES}
    for call in calls_of("Failure", "Refused"):
        for name in (node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)):
            if name in SENTENCES:
                kind = Failure if ast.unparse(call.func) == "Failure" else Refused
                states[SENTENCES[name]] = state_of(kind(SENTENCES[name]))
    return states


def calls_of(*functions: str) -> Iterator[ast.Call]:
    """Yield the calls of `functions` with positional arguments in the package. Parse only modules with such a name."""
    for path in (ROOT / "a2a_celery").rglob("*.py"):
        code = path.read_text(encoding="utf-8")
        if any(name in code for name in functions):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in functions and node.args:
                    yield node


def state_of(outcome: Outcome) -> str:
    """Return the name of the state in the final event of `outcome`."""
    event = final_event(outcome, "t", "c")
    assert event is not None
    return TaskState.Name(event.status.state).removeprefix("TASK_STATE_")


def test_every_text_of_the_code_is_in_the_table_with_its_state() -> None:
    assert states_in_docs() == states_in_code()


def test_every_text_of_the_table_is_used() -> None:
    assert set(states_in_code()) == set(SENTENCES.values())


def test_every_outcome_leaves_a_state_of_the_table() -> None:
    ends: list[Outcome] = [Completed(), Rejection(), Refused(""), Failure(), Canceled()]
    ends += [Paused(state) for state in INTERRUPTED]
    ends += [Retried(2, 4, "")]
    going_on = {Delegated, Lost, Superseded, Suspended}  # a later run or a different system completes the task
    assert {type(outcome) for outcome in ends} | going_on == set(get_args(Outcome)), "an outcome is not compared here"

    states_of_table = {state.strip() for _, states, _ in table_rows() for state in states.split(",")}

    assert states_of_table == {state_of(outcome) for outcome in ends}


def test_the_errors_that_refuse_a_message_are_named() -> None:
    sentence = TEXT.partition("To refuse a message, an agent raises one of these errors")[2].partition(". Any other")[0]

    assert re.findall(r"`(\w+Error)`", sentence) == [error.__name__ for error in REFUSALS]


def test_the_table_exists_once() -> None:
    head = "| what happens | state | the client reads |"
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]

    assert [page.name for page in pages if head in page.read_text(encoding="utf-8")] == ["agents.md"]


def test_the_life_of_a_task_is_the_table_of_transitions() -> None:
    def name(state: TaskState) -> str:
        return TaskState.Name(state).removeprefix("TASK_STATE_")

    page = (ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    table = page.partition("| state | next states |\n| --- | --- |\n")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", table, re.MULTILINE))

    expected = {name(state): {name(target) for target in targets} for state, targets in LEGAL.items()}
    expected |= {name(state): {"none"} for state in TERMINAL}
    assert {state: set(targets.split(", ")) for state, targets in rows.items()} == expected


def test_every_link_of_a_page_has_a_target() -> None:
    loss_texts = {
        f"{page.name}: {target}"
        for page in (ROOT / "docs").rglob("*.md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    }

    assert loss_texts == set()
