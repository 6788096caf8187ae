"""Short end-to-end tests of all components, for each pool and broker. They are in the change tier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from a2a_celery.lifecycle.outcomes import AGENT_FAILED
from tests.conftest import require_broker
from tests.support import talk
from tests.support.clients import Served, message_json, rest, rpc, serving, stream
from tests.support.posts import DELIVERING, require_signed, states, with_config
from tests.support.receiver import receiver
from tests.support.waiting import eventually
from tests.tiers import EVERY_CELL, FIRST_CELL, MORE_CELLS

pytestmark = pytest.mark.change

CELLS = [FIRST_CELL, *MORE_CELLS[EVERY_CELL], ("prefork", "rabbitmq")]


@pytest.fixture(scope="module", params=CELLS, ids="-".join)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pool, broker = request.param
    require_broker(broker)
    with serving(tmp_path_factory.mktemp(pool), broker, pool=pool, grpc=False, **DELIVERING) as served:
        served.fleet.watcher()
        yield served


def test_a_message_is_answered_by_a_worker(served: Served) -> None:
    task = talk.send(served.gateway, "sync-echo", "hello")

    assert talk.state(task) == "COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "hello"}]


async def test_a_stream_has_every_chunk_in_order(served: Served) -> None:
    async with (
        httpx.AsyncClient() as http,
        stream(http, served.gateway, "/message:stream", message_json("5"), agent="count") as frames,
    ):
        events = [frame async for frame in frames]

    chunks = [event.data["artifactUpdate"]["artifact"] for event in events if "artifactUpdate" in event.data]
    assert "".join(part["text"] for chunk in chunks for part in chunk["parts"]) == "0 1 2 3 4 "
    assert [event.version for event in events] == sorted({event.version for event in events})
    assert events[-1].data["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def test_a_question_waits_for_its_answer(served: Served) -> None:
    asked = talk.send(served.gateway, "ask")
    answer = message_json("7", taskId=asked["id"], contextId=asked["contextId"])

    answered = rpc(served.gateway, "SendMessage", answer, agent="ask")["result"]["task"]

    assert talk.state(asked) == "INPUT_REQUIRED"
    assert talk.state(answered) == "COMPLETED"
    assert answered["id"] == asked["id"]


def read_metadata(served: Served, task: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a task of the agent "suspended"."""
    return dict(talk.read(served.gateway, "suspended", task).get("metadata", {}))


def test_a_suspended_run_continues_at_its_time_and_by_a_signal(served: Served) -> None:
    task = talk.send(served.gateway, "suspended", returnImmediately=True)
    eventually(lambda: read_metadata(served, task).get("a2a_celery/waitsFor") == "go")

    body = {"name": "go", "payload": "now"}
    reply = rest(served.gateway, "POST", f"/tasks/{task['id']}:signal", body, agent="suspended")

    assert (reply.status_code, reply.json()["resumed"]) == (202, True)
    eventually(lambda: talk.state(talk.read(served.gateway, "suspended", task)) == "COMPLETED")
    parts = talk.read(served.gateway, "suspended", task)["artifacts"][0]["parts"]
    assert parts == [{"text": "go now, without late"}]


def test_a_failure_does_not_reveal_its_cause(served: Served) -> None:
    task = talk.send(served.gateway, "fail")

    assert talk.state(task) == "FAILED"
    assert task["status"]["message"]["parts"][0]["text"] == AGENT_FAILED
    assert "secret" not in str(task)


def test_a_cancel_stops_the_agent(served: Served) -> None:
    task = talk.send(served.gateway, "silent", returnImmediately=True)
    eventually(lambda: talk.state(talk.read(served.gateway, "silent", task)) == "WORKING")

    assert talk.state(talk.canceled(served.gateway, "silent", task)) == "CANCELED"
    assert talk.state(talk.send(served.gateway, "echo")) == "COMPLETED", "the agent still occupies its worker"


def test_a_webhook_receives_each_event_signed(served: Served) -> None:
    with receiver() as hooks:
        body = with_config(message_json("hello"), hooks.url("/hook"))
        task = rest(served.gateway, "POST", "/message:send", body, agent="echo").json()["task"]
        posts = eventually(lambda: p if states(p := hooks.received("/hook"))[-1:] == ["COMPLETED"] else [])

    assert states(posts) == ["SUBMITTED", "WORKING", "artifact", "COMPLETED"]
    assert posts[-1].json()["statusUpdate"]["taskId"] == task["id"]
    require_signed(posts)
