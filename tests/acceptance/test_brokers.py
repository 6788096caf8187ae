"""Publication of runs to each broker, also while the broker is unavailable. Celery messages do not contain the client's
message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from tests.support.clients.bindings import (
    message_json,
    rest,
    sdk_client,
    send,
    serve_fleet,
    state,
    texts,
    wait_for_state,
)
from tests.support.processes.fleet import Fleet, running_fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind

SECRET = "the colour of my front door"


@pytest.fixture
def second_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """Stopped Redis server with a known address, for use as a broker."""
    server = EmbeddedRedis(data=tmp_path / "broker")
    yield server
    server.stop()


async def test_a_message_runs_over_either_broker(tmp_path: Path, broker: str) -> None:
    with serve_fleet(tmp_path, broker, pool="threads", grpc=False) as served_fleet:
        async with sdk_client(served_fleet.gateway, "full", streaming=False) as client:
            task = await send(client, "over a broker")

    assert state(task) == "COMPLETED"
    assert texts(task)[0] == "over a broker!"


async def test_a_message_accepted_during_an_outage_of_the_broker_runs_after_it(
    tmp_path: Path, second_redis: EmbeddedRedis
) -> None:
    with running_fleet(tmp_path, CELERY_BROKER_URL=second_redis.broker_url, A2A_REDISPATCH_AFTER="2") as fleet:
        gateway = fleet.gateway()
        fleet.watcher()
        async with sdk_client(gateway, "echo", streaming=False) as client:
            tasks = [await send(client, str(number), immediately=True) for number in range(3)]
            assert {state(task) for task in tasks} == {"SUBMITTED"}
            eventually(lambda: "not published" in fleet.logs(), what="the watcher fails to publish")

            second_redis.start()
            fleet.worker(pool="threads")

            ended_tasks = [await wait_for_state(client, task.id, "COMPLETED", "FAILED") for task in tasks]

    assert [texts(task) for task in ended_tasks] == [["0"], ["1"], ["2"]]


async def test_two_fleets_on_one_broker_run_each_its_own_tasks(tmp_path: Path, broker: str) -> None:
    """The second fleet has fewer agents. No watcher runs, so no run is republished."""
    other = {"A2A_KEY_PREFIX": "other"}
    with running_fleet(tmp_path, broker) as fleet:
        gateways = [fleet.gateway(), fleet.gateway(**other)]
        fleet.worker(pool="threads")
        fleet.worker(pool="prefork", app="tests.support.agents.few_agents", **other)
        for gateway, agent in ((gateways[0], "echo"), (gateways[1], "echo"), (gateways[0], "full")):
            async with sdk_client(gateway, agent, streaming=False) as client:
                tasks = [await send(client, str(number), immediately=True) for number in range(6)]
                ended_tasks = [
                    await wait_for_state(client, task.id, "COMPLETED", "FAILED", "REJECTED") for task in tasks
                ]
            assert [state(task) for task in ended_tasks] == ["COMPLETED"] * 6

        doctor = fleet.command("a2a", "doctor")

    assert "belongs to another fleet: A2A_KEY_PREFIX is 'other' there, and 'a2a' here" in doctor.stdout


async def test_an_unreachable_broker_delays_no_answer_and_is_no_error(tmp_path: Path) -> None:
    with running_fleet(tmp_path, CELERY_BROKER_URL="amqp://guest:topsecret@127.0.0.1:1//") as fleet:
        gateway = fleet.gateway()
        async with sdk_client(gateway, "echo", streaming=False) as client:
            task = await send(client, "hello", immediately=True)
            assert state(await wait_for_state(client, task.id, "SUBMITTED")) == "SUBMITTED"
        eventually(lambda: "will be published by the watcher" in gateway.output())

        assert "Traceback" not in gateway.output()
        assert "topsecret" not in gateway.output()


def test_a_celery_message_has_no_content_of_the_client_s_message(tmp_path: Path, broker: str) -> None:
    with serve_fleet(tmp_path, broker, pool=None, grpc=False) as served_fleet:
        headers = {"Authorization": "Bearer s3cr3t", "Cookie": "session=s3cr3t"}
        body = message_json(SECRET) | {"configuration": {"returnImmediately": True}, "metadata": {"note": SECRET}}
        task = rest(served_fleet.gateway, "POST", "/message:send", body, **headers).json()["task"]

        (message,) = _queued_messages(served_fleet.fleet)

        text = json.dumps(message)
        assert SECRET not in text
        assert "s3cr3t" not in text
        assert message["headers"]["id"] == f"{task['id']}.1"
        assert message["headers"]["task"] == "a2a.echo"
        assert message["headers"]["argsrepr"] == repr((task["id"], 1))
        assert message["args"][:2] == [[task["id"], 1], {}]


def test_publishing_waits_for_no_result(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
        url = fleet.redis.broker_url.replace("virtual_host=1", "virtual_host=2")
        gateway = fleet.gateway(CELERY_RESULT_BACKEND=url)
        fleet.worker(pool="threads", CELERY_RESULT_BACKEND=url)
        for number in range(5):
            assert rest(gateway, "POST", "/message:send", message_json(str(number))).status_code == 200

        client = redis.Redis.from_url(fleet.redis.store_url)
        channels = client.pubsub_channels("*")

    assert not [channel for channel in channels if b"celery-task-meta" in channel]


def _queued_messages(fleet: Fleet) -> list[dict[str, Any]]:
    """Wait for messages in the fleet's queue, and return their headers, arguments and bodies."""
    messages: list[dict[str, Any]] = []
    with kombu.Connection(fleet.broker_url) as connection:
        queue = connection.SimpleQueue(fleet.queue)

        def has_message() -> bool:
            try:
                message = queue.get(block=False)
            except queue.Empty:
                return bool(messages)
            messages.append({"headers": message.headers, "args": message.payload, "body": str(message.body)})
            message.ack()
            return False

        eventually(has_message, what="a message waits in the broker")
        queue.close()
    return messages
