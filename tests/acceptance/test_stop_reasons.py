"""Stop reasons that clients receive from framework agents that stop early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from a2a_celery.lifecycle.outcomes import CANCELED_BY_AGENT
from a2a_celery.lifecycle.own_metadata import NAMESPACE, STOP_REASON, own_metadata
from tests.support.agents.early_stops import REASONS
from tests.support.clients.talk import send
from tests.support.processes.fleet import Gateway, running_fleet


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_fleet(tmp_path_factory.mktemp("early"), app="tests.support.agents.early_stops") as fleet:
        fleet.worker(pool="threads")
        yield fleet.gateway()


def end(task: dict[str, Any]) -> tuple[str, str, str]:
    """Return the state of a task, the text of its status, and the text of its artifacts."""
    message = task["status"].get("message", {"parts": []})
    parts = [part for artifact in task.get("artifacts", []) for part in artifact["parts"]]
    texts = ["".join(part.get("text", "") for part in part_list) for part_list in (message["parts"], parts)]
    return task["status"]["state"].removeprefix("TASK_STATE_"), texts[0], texts[1]


@pytest.mark.parametrize("fails", [False, True], ids=["completes", "fails"])
@pytest.mark.parametrize("agent", REASONS)
def test_an_agent_that_stops_early_has_the_reason_of_its_framework(gateway: Gateway, agent: str, fails: bool) -> None:
    reason = REASONS[agent]

    task = send(gateway, f"{agent}-fails" if fails else agent, "hello")

    expected = ("FAILED", f"The agent stopped early: {reason}.") if fails else ("COMPLETED", "")
    assert end(task) == (*expected, "half")
    reasons = {name: value for name, value in task["metadata"].items() if name.removeprefix(NAMESPACE) == STOP_REASON}
    assert reasons == own_metadata({STOP_REASON: reason})


def test_an_agent_that_is_cancelled_within_strands_is_canceled(gateway: Gateway) -> None:
    task = send(gateway, "strands-cancelled", "hello")

    assert end(task) == ("CANCELED", CANCELED_BY_AGENT, "")
    assert "metadata" not in task
