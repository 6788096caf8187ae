"""Fields of JSON output in docs/operating.md, which must be exactly the fields that the commands print."""

from __future__ import annotations

import re
from typing import Any

import pytest
from a2a.types import TaskState

from a2a_celery.cli.operator.selection import SUMMARIES
from a2a_celery.cli.operator.stuck_tasks import STUCK, Stuck, Why
from a2a_celery.features.dead_letters.command import DEAD_LETTERS, requeued_fields
from a2a_celery.features.dead_letters.requeue import RequeuedTask
from a2a_celery.features.webhooks.command import DELIVERIES
from a2a_celery.features.webhooks.deliveries import Delivery
from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.store.admin.scan import TaskSummary
from tests.support import ROOT

PAGE = " ".join((ROOT / "docs" / "operating.md").read_text(encoding="utf-8").split())

TASK = TaskSummary(
    RunRef("t", 1), "echo", "c", Scope("echo"), TaskState.TASK_STATE_WORKING, 1, "", 1, 1, None, 0, 1, 1, 1.0, now_us=2
)
DELIVERY = Delivery("t", "w", "echo", "c", 1, 2, False, 3, 4, 5, {"reason": "r", "status": 500, "answer": "a"}, 6, 0, 7)
"""Delivery that fails."""


def documented_fields(sentence: str) -> set[str]:
    """Return the names in the list of fields that follows `sentence`."""
    assert sentence in PAGE
    fields = PAGE.partition(sentence)[2].partition(". ")[0]
    return set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", fields)))


@pytest.mark.parametrize(
    ("sentence", "entry"),
    [
        ("With `--json`, each task is an object with the fields", SUMMARIES.fields(TASK)),
        ("With `--stuck`, each task is an object with the fields", STUCK.fields(Stuck(TASK, Why.SIGNAL, 1.0))),
        ("each dead letter is an object with the fields", DEAD_LETTERS.fields(TASK)),
        ("each new task is an object with the fields", requeued_fields(RequeuedTask("t", "u", "agent"))),
        (
            "each webhook is an object with the fields",
            DELIVERIES.fields(DELIVERY) | {"address": "", "givenUpAt": "", "due": ""},
        ),
    ],
    ids=["list", "stuck", "requeue", "requeued", "deliveries"],
)
def test_the_page_has_these_fields_and_no_other(sentence: str, entry: dict[str, Any]) -> None:
    assert documented_fields(sentence) == set(entry)


def test_the_page_has_each_reason_to_wait() -> None:
    assert {why.code for why in Why} <= set(re.findall(r"`(\w+)`", PAGE))
