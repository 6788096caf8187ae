"""Large parts on a complete fleet. Each binding returns all parts, or an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from a2a.types import GetTaskRequest, ListTasksRequest, Message, Part, Role, SendMessageRequest

from a2a_celery.lifecycle.outcomes import OUT_OF_REACH
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.blobs.blob_store import THRESHOLD
from tests.support.clients.bindings import BINDINGS, ServedFleet, message_json, rest, sdk_client, serve_fleet
from tests.support.receivers.receiver import receiver
from tests.support.waiting import eventually

SIZES = (THRESHOLD - 500, THRESHOLD + 1000)


LARGE = THRESHOLD + 50_000
"""Size in bytes of a part that is a blob."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the object store."""
    return tmp_path_factory.mktemp("blobs") / "store"


@pytest.fixture(scope="module")
def served_fleet(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(
        tmp_path_factory.mktemp("fleet"),
        app="tests.support.agents.large_part_agents",
        concurrency=2,
        A2A_BLOB_URL=folder.as_uri(),
        A2A_SECRET_KEY="s" * 32,
        A2A_ALLOW_NETWORKS="127.0.0.0/8",
    ) as served_fleet:
        served_fleet.fleet.watcher()
        yield served_fleet


@pytest.fixture(scope="module")
def redis_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    """Fleet without an object store."""
    folder = tmp_path_factory.mktemp("fleet")
    with serve_fleet(folder, app="tests.support.agents.large_part_agents", concurrency=2) as served_fleet:
        yield served_fleet


def parts() -> list[Part]:
    """Return parts of different kinds, with sizes around the threshold."""
    all_parts = [Part(raw=bytes(n % 251 for n in range(size)), filename=f"{size}.bin") for size in SIZES]
    all_parts += [Part(text="ä€" * (size // 5), media_type="text/plain") for size in SIZES]
    data = Part(media_type="application/json")
    data.data.struct_value.update({"rows": ["r" * 100] * 300, "n": 1.25, "none": None})
    data.metadata.update({"k": "v"})
    return [*all_parts, data]


def parts_request(*sent: Part, **fields: object) -> SendMessageRequest:
    return SendMessageRequest(
        message=Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=sent, **fields)  # type: ignore[arg-type]
    )


async def require_all_parts(served_fleet: ServedFleet, binding: str) -> str:
    """Send parts to an agent that returns them. Require that all readers get all parts. Return the id of the task."""
    expected_parts = parts()
    async with sdk_client(served_fleet.gateway, "mirror", binding) as client:
        events = [event async for event in client.send_message(parts_request(*expected_parts))]
        task_id = events[0].task.id
        task = await client.get_task(GetTaskRequest(id=task_id))
        task_list = (
            await client.list_tasks(ListTasksRequest(include_artifacts=True, context_id=task.context_id))
        ).tasks
        related_events = [
            event async for event in client.send_message(parts_request(Part(text="?"), reference_task_ids=[task_id]))
        ]

    assert list(events[0].task.history[0].parts) == expected_parts
    [chunk] = [e.artifact_update for e in events if e.artifact_update.artifact.artifact_id == "given"]
    assert list(chunk.artifact.parts) == expected_parts
    assert list(task.history[0].parts) == list(task.artifacts[0].parts) == expected_parts
    assert list(task_list) == [task]
    part_sizes = [len(part.SerializeToString()) for artifact in task.artifacts for part in artifact.parts]
    assert any(f"seen {part_sizes}" in part.text for e in related_events for part in e.artifact_update.artifact.parts)
    return str(task_id)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_every_client_reads_the_sent_parts(served_fleet: ServedFleet, folder: Path, binding: str) -> None:
    task_id = await require_all_parts(served_fleet, binding)

    assert len(list((folder / "a2a" / f"task-{task_id}").iterdir())) >= 2


@pytest.mark.parametrize("binding", BINDINGS)
async def test_every_client_reads_the_parts_that_redis_stores(redis_fleet: ServedFleet, binding: str) -> None:
    task_id = await require_all_parts(redis_fleet, binding)

    store = SyncStore(redis_fleet.fleet.redis.store_url)
    assert store.redis.hlen(Keys().blobs_of(task_id)) >= 2
    assert store.redis.exists(Keys().blobs) == 0
    store.close()


def test_webhooks_and_another_gateway_receive_the_whole_event(served_fleet: ServedFleet) -> None:
    second_gateway = served_fleet.fleet.gateway()
    with receiver() as hook:
        body = message_json(str(LARGE)) | {
            "configuration": {"taskPushNotificationConfig": {"url": hook.url()}, "returnImmediately": False}
        }
        task = rest(served_fleet.gateway, "POST", "/message:send", body, agent="make").json()["task"]
        stored_task = rest(second_gateway, "GET", f"/tasks/{task['id']}", agent="make").json()

        def posted_parts() -> list[dict[str, object]]:
            posts = [json.loads(got.body) for got in hook.requests()]
            return [post["artifactUpdate"]["artifact"] for post in posts if "artifactUpdate" in post]

        eventually(lambda: bool(posted_parts()), what="the artifact is posted")

    assert stored_task["artifacts"] == task["artifacts"] == posted_parts()
    assert len(stored_task["artifacts"][0]["parts"][0]["raw"]) > LARGE


def test_an_outage_of_the_object_store_is_reported_and_loses_nothing(served_fleet: ServedFleet, folder: Path) -> None:
    task = rest(served_fleet.gateway, "POST", "/message:send", message_json(str(LARGE)), agent="make").json()["task"]
    unreachable = folder.with_name("away")
    folder.rename(unreachable)
    folder.write_text("a file where the folder was")
    try:
        response = rest(served_fleet.gateway, "GET", f"/tasks/{task['id']}", agent="make")
        list_response = rest(served_fleet.gateway, "GET", "/tasks?includeArtifacts=true", agent="make")
        light = rest(served_fleet.gateway, "GET", "/tasks", agent="make")
        refused_response = rest(served_fleet.gateway, "POST", "/message:send", message_json("y" * LARGE), agent="echo")
        failed_task = rest(
            served_fleet.gateway, "POST", "/message:send", message_json(str(LARGE)), agent="make"
        ).json()["task"]
    finally:
        folder.unlink()
        unreachable.rename(folder)
    second_response = rest(served_fleet.gateway, "GET", f"/tasks/{task['id']}", agent="make")
    echo_list = rest(served_fleet.gateway, "GET", "/tasks", agent="echo").json()

    assert [answer.status_code for answer in (response, list_response, refused_response)] == [503, 503, 503]
    assert "SERVICE_UNAVAILABLE" in response.text
    assert light.status_code == 200
    assert echo_list["totalSize"] == 0
    assert failed_task["status"]["state"] == "TASK_STATE_FAILED"
    assert failed_task["status"]["message"]["parts"] == [{"text": OUT_OF_REACH}]
    assert failed_task["status"]["message"]["metadata"]["reference"] in served_fleet.worker.output()  # type: ignore[union-attr]
    assert second_response.json() == task


def test_a_watcher_removes_the_blobs_of_expired_tasks(served_fleet: ServedFleet, folder: Path) -> None:
    task = rest(served_fleet.gateway, "POST", "/message:send", message_json(str(LARGE)), agent="make").json()["task"]
    blobs = folder / "a2a" / f"task-{task['id']}"
    assert list(blobs.iterdir())
    store = SyncStore(served_fleet.fleet.redis.store_url)
    store.redis.delete(*store.redis.keys(f"*{task['id']}*"))
    store.redis.zadd(Keys().blobs, {task["id"]: 1})  # make the removal of the task's blobs due
    store.close()

    eventually(lambda: not blobs.exists(), what="the blobs are removed")
