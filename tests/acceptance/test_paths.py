"""Short end-to-end tests of all components, for each pool and broker, in the change tier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from a2a_celery.lifecycle.outcomes import AGENT_FAILED
from tests.conftest import require_broker
from tests.support.clients import talk
from tests.support.clients.bindings import ServedFleet, message_json, rest, rpc, serve_fleet, stream
from tests.support.receivers.posts import DELIVERING, body_with_config, require_signed, states
from tests.support.receivers.receiver import receiver
from tests.support.waiting import eventually
from tests.tiers import EVERY_CELL, FIRST_CELL, MORE_CELLS

pytestmark = pytest.mark.change

CELLS = [FIRST_CELL, *MORE_CELLS[EVERY_CELL], ("prefork", "rabbitmq")]


@pytest.fixture(scope="module", params=CELLS, ids="-".join)
def served_fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    pool, broker = request.param
    require_broker(broker)
    with serve_fleet(tmp_path_factory.mktemp(pool), broker, pool=pool, grpc=False, **DELIVERING) as served_fleet:
        served_fleet.fleet.watcher()
        yield served_fleet


def test_a_message_is_answered_by_a_worker(served_fleet: ServedFleet) -> None:
    task = talk.send(served_fleet.gateway, "sync-echo", "hello")

    assert talk.state(task) == "COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "hello"}]


def test_a_blocking_response_has_the_joined_text_that_get_task_returns(served_fleet: ServedFleet) -> None:
    task = talk.send(served_fleet.gateway, "count", "5")

    assert task["artifacts"][0]["parts"] == [{"text": "0 1 2 3 4 "}]
    assert task == talk.read(served_fleet.gateway, "count", task)


async def test_a_stream_has_every_chunk_in_order(served_fleet: ServedFleet) -> None:
    async with (
        httpx.AsyncClient() as http,
        stream(http, served_fleet.gateway, "/message:stream", message_json("5"), agent="count") as frames,
    ):
        events = [frame async for frame in frames]

    chunks = [event.data["artifactUpdate"]["artifact"] for event in events if "artifactUpdate" in event.data]
    assert "".join(part["text"] for chunk in chunks for part in chunk["parts"]) == "0 1 2 3 4 "
    assert [event.version for event in events] == sorted({event.version for event in events})
    assert events[-1].data["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def test_a_question_waits_for_its_answer(served_fleet: ServedFleet) -> None:
    question_task = talk.send(served_fleet.gateway, "ask")
    answer = message_json("7", taskId=question_task["id"], contextId=question_task["contextId"])

    answered_task = rpc(served_fleet.gateway, "SendMessage", answer, agent="ask")["result"]["task"]

    assert talk.state(question_task) == "INPUT_REQUIRED"
    assert talk.state(answered_task) == "COMPLETED"
    assert answered_task["id"] == question_task["id"]


def read_metadata(served_fleet: ServedFleet, task: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a task of the agent "suspended"."""
    return dict(talk.read(served_fleet.gateway, "suspended", task).get("metadata", {}))


def test_a_suspended_run_continues_at_its_time_and_by_a_signal(served_fleet: ServedFleet) -> None:
    task = talk.send(served_fleet.gateway, "suspended", returnImmediately=True)
    eventually(lambda: read_metadata(served_fleet, task).get("a2a_celery/waitsFor") == "go")

    body = {"name": "go", "payload": "now"}
    reply = rest(served_fleet.gateway, "POST", f"/tasks/{task['id']}:signal", body, agent="suspended")

    assert (reply.status_code, reply.json()["resumed"]) == (202, True)
    eventually(lambda: talk.state(talk.read(served_fleet.gateway, "suspended", task)) == "COMPLETED")
    parts = talk.read(served_fleet.gateway, "suspended", task)["artifacts"][0]["parts"]
    assert parts == [{"text": "go now, without late"}]


def test_a_failure_does_not_reveal_its_cause(served_fleet: ServedFleet) -> None:
    task = talk.send(served_fleet.gateway, "fail")

    assert talk.state(task) == "FAILED"
    assert task["status"]["message"]["parts"][0]["text"] == AGENT_FAILED
    assert "secret" not in str(task)


def test_a_cancel_stops_the_agent(served_fleet: ServedFleet) -> None:
    task = talk.send(served_fleet.gateway, "silent", returnImmediately=True)
    eventually(lambda: talk.state(talk.read(served_fleet.gateway, "silent", task)) == "WORKING")

    assert talk.state(talk.cancel_task(served_fleet.gateway, "silent", task)) == "CANCELED"
    assert talk.state(talk.send(served_fleet.gateway, "echo")) == "COMPLETED", "the agent still occupies its worker"


def test_a_webhook_receives_each_event_signed(served_fleet: ServedFleet) -> None:
    with receiver() as hooks:
        body = body_with_config(message_json("hello"), hooks.url("/hook"))
        task = rest(served_fleet.gateway, "POST", "/message:send", body, agent="echo").json()["task"]
        posts = eventually(lambda: p if states(p := hooks.requests("/hook"))[-1:] == ["COMPLETED"] else [])

    assert states(posts) == ["SUBMITTED", "WORKING", "artifact", "COMPLETED"]
    assert posts[-1].json()["statusUpdate"]["taskId"] == task["id"]
    require_signed(posts)
