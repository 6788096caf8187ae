"""Reasons for which tasks end without a result."""

from __future__ import annotations

import re

import pytest
from a2a.types import Task, TaskStatus

from a2a_celery.cli.output import TASKS
from a2a_celery.lifecycle import Canceled, Failure, Outcome, Refused, Rejection, final_event, outcomes
from a2a_celery.lifecycle.end_reasons import EndReason, end_reason
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from tests.support import ROOT
from tests.support.store.seeds import CONTEXT, status

TEXTS = {
    name: text for name, text in vars(outcomes).items() if name.isupper() and isinstance(text, str) and " " in text
}


def reason_of(outcome: Outcome) -> tuple[EndReason | None, str]:
    event = final_event(outcome, "t", CONTEXT)
    assert event is not None
    return end_reason(event.status.state, event.status)


@pytest.mark.parametrize(
    "name", [name for name in TEXTS if not name.startswith("NEEDS_") and name != "CANCELED_BY_AGENT"]
)
def test_each_text_of_this_package_has_a_reason(name: str) -> None:
    outcome = Canceled(TEXTS[name]) if name.startswith("CANCELED") else Failure(TEXTS[name])

    assert reason_of(outcome)[0] not in (None, EndReason.BY_AGENT)


def test_a_failure_has_its_reference() -> None:
    assert reason_of(Failure(reference="0123")) == (EndReason.EXCEPTION, "0123")
    assert reason_of(Failure(outcomes.WORKER_LOST)) == (EndReason.LOST, "")


@pytest.mark.parametrize("outcome", [Failure("No such hotel."), Rejection(), Canceled()])
def test_an_end_by_the_agent_has_a_reason(outcome: Outcome) -> None:
    assert reason_of(outcome) == (EndReason.BY_AGENT, "")
    assert reason_of(Refused(outcomes.AGENT_REFUSED)) == (EndReason.REFUSED, "")


@pytest.mark.parametrize("state", [COMPLETED, INPUT_REQUIRED])
def test_other_states_have_no_reason(state) -> None:  # type: ignore[no-untyped-def]
    assert end_reason(state, status(state, outcomes.WORKER_LOST).status) == (None, "")


def test_a_list_of_the_caller_s_tasks_shows_reasons() -> None:
    failure = final_event(Failure(reference="0123"), "t", CONTEXT)
    assert failure is not None
    done = Task(id="done", context_id=CONTEXT, status=TaskStatus(state=COMPLETED))
    failed = Task(id="failed", context_id=CONTEXT, status=failure.status)

    lines = list(TASKS.lines([("echo", done), ("echo", failed)]))

    assert "REASON" in lines[0]
    assert "exception 0123" in lines[2]
    assert "REASON" not in next(TASKS.lines([("echo", done)]))


def test_the_page_names_the_reasons() -> None:
    text = (ROOT / "a2a_celery" / "gateway" / "ui" / "texts.js").read_text(encoding="utf-8")
    names = text.partition("END_REASONS = {")[2].partition("};")[0]

    assert re.findall(r"^  (\w+): ", names, re.MULTILINE) == list(EndReason)


def test_the_docs_list_the_reasons() -> None:
    section = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8").partition("| reason | the task |")[2]

    assert set(re.findall(r"^\| `(\w+)` \|", section.partition("\n\n")[0], re.MULTILINE)) == set(EndReason)
