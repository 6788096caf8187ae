"""Actions of operators through the gateway: their results, their audit log, and requests that must change nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.dead_letters.dead_letter import AlreadyRequeued, read_dead_letter
from a2a_celery.gateway.middleware.json_endpoint import MAX_BODY
from a2a_celery.gateway.operator import workers
from a2a_celery.gateway.operator.api import PATH
from a2a_celery.gateway.operator.task_actions import MAX_TASKS
from a2a_celery.lifecycle.signals import MAX_PAYLOAD_BYTES
from a2a_celery.lifecycle.states import CANCELED, COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.scan import read_states
from a2a_celery.telemetry.logs import ABOUT
from tests.gateway.test_operator_api import BOB, USERS, Site, serving

ACTIONS = (
    "/tasks:cancel",
    "/tasks/x:cancel",
    "/tasks/x:signal",
    "/dead-letters:requeue",
    "/dead-letters/x:requeue",
    "/webhooks/x/c:replay",
    "/workers/x:drain",
    "/workers/x:undrain",
)
HOSTILE_IDS = ("../../x", "<script>alert(1)</script>", "a\nb", "*", "x" * 5000, "x.1", "x:cancel", "{tag}", "\x00")


@pytest.fixture
async def site(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[Site]:
    async with serving(store, redis_server, keys, auth_api_keys=USERS, operators=["ops"]) as site:
        yield site


@pytest.fixture
def audit_lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "a2a_celery.gateway.operator.audit")
    return caplog


async def act(site: Site, path: str, body: Any = None, key: str = "operator-key", **headers: str) -> httpx.Response:
    """Send a request with a JSON body, or without a body for None."""
    json = {} if body is None else {"json": body}
    return await site.http.post(PATH + path, headers={"X-API-Key": key, **headers}, **json)


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the lines of the audit log."""
    name = "a2a_celery.gateway.operator.audit"
    return [getattr(record, ABOUT) for record in caplog.records if record.name == name]


async def state_of(site: Site, task_id: str) -> Any:
    [state] = await site.store.run(read_states(site.keys, [task_id]))
    return state


async def test_selected_tasks_are_cancelled_with_a_result_for_each(
    site: Site, audit_lines: pytest.LogCaptureFixture
) -> None:
    queued_id = await site.seeds.create_task(BOB)
    running_id = (await site.seeds.claim_run(scope=BOB)).ref.task_id
    ended_id = await site.seeds.create_task_in(COMPLETED, scope=BOB)
    body = {"tasks": [queued_id, running_id, ended_id, "gone", queued_id]}

    first = await act(site, "/tasks:cancel", body)
    second = await act(site, "/tasks:cancel", body)

    assert first.json()["results"] == [
        {"task": queued_id, "result": "canceled"},
        {"task": running_id, "result": "requested"},
        {"task": ended_id, "result": "ended", "state": "TASK_STATE_COMPLETED"},
        {"task": "gone", "result": "missing"},
    ]
    assert second.json()["results"][0] == {"task": queued_id, "result": "ended", "state": "TASK_STATE_CANCELED"}
    assert await state_of(site, queued_id) == CANCELED
    fields = {"action": "cancel.requested", "operator": "ops"}
    assert audited(audit_lines)[:4] == [
        {**fields, "result": "canceled", "agent": "echo", "task": queued_id},
        {**fields, "result": "requested", "agent": "echo", "task": running_id},
        {**fields, "result": "ended", "agent": "echo", "task": ended_id},
        {**fields, "result": "missing", "task": "gone"},
    ]
    assert f"task {queued_id}: cancel.requested by the operator 'ops': canceled" in audit_lines.text


async def test_one_task_is_cancelled_by_its_address(site: Site) -> None:
    task_id = await site.seeds.create_task(BOB)

    assert (await act(site, f"/tasks/{task_id}:cancel")).json() == {"task": task_id, "result": "canceled"}
    assert (await act(site, "/tasks/gone:cancel")).status_code == 404


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "tasks: Send a list of 1 to 100 ids of tasks."),
        ({"tasks": []}, "tasks: Send a list"),
        ({"tasks": "x"}, "tasks: Send a list"),
        ({"tasks": [f"t{i}" for i in range(MAX_TASKS + 1)]}, "tasks: Send a list"),
        ({"tasks": [7]}, "tasks: Each id is a string"),
        ({"tasks": ["x" * 300]}, "tasks: Each id is a string"),
        ({"tasks": ["x"], "state": "TASK_STATE_WORKING"}, "state: Unknown"),
    ],
)
async def test_a_wrong_selection_is_refused_with_the_rule(site: Site, body: dict[str, Any], text: str) -> None:
    answer = await act(site, "/tasks:cancel", body)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(text)


async def test_a_signal_is_stored_once_for_each_id(site: Site, audit_lines: pytest.LogCaptureFixture) -> None:
    task_id = (await site.seeds.claim_run(scope=BOB)).ref.task_id
    body = {"name": "approval", "payload": {"by": "Ann"}, "signalId": "once"}

    answers = [await act(site, f"/tasks/{task_id}:signal", body) for _ in range(2)]

    assert [answer.json() for answer in answers] == [{"task": task_id, "result": "stored"}] * 2
    fields = await site.store.redis.hgetall(site.keys.task(task_id).record)
    assert sum(b"approval" in value for value in fields.values()) <= 1
    expected = {"action": "signal.sent", "operator": "ops", "result": "stored", "task": task_id, "signal": "approval"}
    expected["agent"] = "echo"
    assert audited(audit_lines) == [expected] * 2
    assert (
        f"task {task_id}: signal.sent by the operator 'ops': stored, signal 'approval', agent 'echo'"
        in audit_lines.text
    )
    assert "Ann" not in audit_lines.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "no spaces"}, "name"),
        ({"name": "a", "signalId": ""}, "signalId"),
        ({"name": "a", "payload": "x" * MAX_PAYLOAD_BYTES}, "payload"),
        ({"name": "a", "tenant": "acme"}, "tenant"),
        ({"name": "a", "sender": "app"}, "sender"),
    ],
)
async def test_a_wrong_signal_is_refused_with_the_field(site: Site, body: dict[str, Any], field: str) -> None:
    task_id = (await site.seeds.claim_run(scope=BOB)).ref.task_id

    answer = await act(site, f"/tasks/{task_id}:signal", body)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field}: ")


async def test_an_ended_task_receives_no_signal(site: Site, audit_lines: pytest.LogCaptureFixture) -> None:
    task_id = await site.seeds.create_task_in(COMPLETED, scope=BOB)

    ended = await act(site, f"/tasks/{task_id}:signal", {"name": "a"})

    assert ended.status_code == 400
    assert "has ended and receives no signals" in ended.json()["error"]["message"]
    assert (await act(site, "/tasks/gone:signal", {"name": "a"})).status_code == 404
    assert [fields["result"] for fields in audited(audit_lines)] == ["refused", "missing"]


async def test_a_caller_without_the_role_changes_nothing(site: Site, audit_lines: pytest.LogCaptureFixture) -> None:
    open_id, dead_id = await site.seeds.create_task(BOB), await site.dead_letter()
    paths = [path.replace("/x", f"/{open_id}") for path in ACTIONS if "webhooks" not in path]

    for key, status in (("bob-key", 403), ("wrong", 401)):
        for path in (*paths, f"/dead-letters/{dead_id}:requeue"):
            answer = await act(site, path, {"tasks": [open_id]} if path == "/tasks:cancel" else None, key)
            assert answer.status_code == status, path

    assert await state_of(site, open_id) != CANCELED
    assert not isinstance(await site.store.run(read_dead_letter(site.keys, dead_id)), AlreadyRequeued)
    assert audited(audit_lines) == []


@pytest.mark.parametrize("path", ACTIONS)
async def test_a_page_of_another_origin_cannot_act(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, path: str
) -> None:
    async with serving(store, redis_server, keys, operators=["*"]) as site:
        headers = {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
        answer = await site.http.post(PATH + path, headers=headers)

    assert answer.status_code == 403
    assert "A page of another origin" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ACTIONS)
async def test_large_bodies_and_other_media_types_are_refused(site: Site, path: str) -> None:
    form = {"X-API-Key": "operator-key", "Content-Type": "application/x-www-form-urlencoded"}
    text = {"X-API-Key": "operator-key", "Content-Type": "text/plain"}
    json = {"X-API-Key": "operator-key", "Content-Type": "application/json"}

    async def status(headers: dict[str, str], content: bytes) -> int:
        return (await site.http.post(PATH + path, headers=headers, content=content)).status_code

    assert await status(json, b'{"tasks": "' + b"x" * MAX_BODY + b'"}') == 413
    assert await status(form, b"tasks=x") == 400
    assert await status(text, b'{"tasks": ["x"]}') == 400
    assert await status(json, b"[1]") == 400
    assert await status(json, b"{") == 400
    assert (await site.http.get(PATH + path, headers={"X-API-Key": "operator-key"})).status_code in (404, 405)


@pytest.mark.parametrize("task_id", HOSTILE_IDS)
async def test_hostile_ids_reach_no_task_and_forge_no_line(
    site: Site, task_id: str, audit_lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "worker_reports", lambda _app, _timeout: {})
    other = await site.seeds.create_task(BOB)
    quoted = quote(task_id, safe="")

    for verb in ("cancel", "signal"):
        answer = await act(site, f"/tasks/{quoted}:{verb}", {"name": "a"} if verb == "signal" else None)
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 2000
    for verb in ("drain", "undrain"):
        answer = await act(site, f"/workers/{quoted}:{verb}")
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 2000

    assert await state_of(site, other) != CANCELED
    for record in audit_lines.records:
        assert len(record.getMessage()) < 1000


def report(prefix: str) -> dict[str, Any]:
    return {"pool": "threads", "queues": ["celery"], "drained": [], "settings": {"key_prefix": prefix}}


async def test_only_workers_of_the_fleet_are_drained_and_brought_back(
    store: AsyncStore,
    redis_server: EmbeddedRedis,
    keys: Keys,
    audit_lines: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[tuple[str, ...]] = []

    def ask(_app: object, command: str, _timeout: float, nodes: Sequence[str] = ()) -> dict[str, Any]:
        commands.append((command, *nodes))
        return {"w1@vm": {"queues": ["celery"], "returned": 2}} if list(nodes) == ["w1@vm"] else {}

    reports = {"w1@vm": report(keys.prefix), "w2@vm": report(keys.prefix), "w1@other": report("other")}
    monkeypatch.setattr(workers, "worker_reports", lambda _app, _timeout: reports)
    monkeypatch.setattr(workers, "ask_workers", ask)
    async with serving(store, redis_server, keys, auth_api_keys=USERS, operators=["ops"]) as site:
        drained = await act(site, "/workers/w1%40vm:drain")
        undrained = await act(site, "/workers/w1@vm:undrain")
        refusals = [await act(site, f"/workers/{name}:drain") for name in ("w1@other", "w9@vm", "w2@vm")]

    assert drained.json() == {"worker": "w1@vm", "queues": ["celery"], "returned": 2}
    assert undrained.json()["queues"] == ["celery"]
    assert commands == [("a2a_drain", "w1@vm"), ("a2a_undrain", "w1@vm"), ("a2a_drain", "w2@vm")]
    assert [refusal.status_code for refusal in refusals] == [400] * 3
    assert "No worker 'w9@vm' of this fleet replies" in refusals[1].json()["error"]["message"]
    assert [(line["action"], line["worker"], line["result"]) for line in audited(audit_lines)] == [
        ("worker.drained", "w1@vm", "done"),
        ("worker.undrained", "w1@vm", "done"),
        ("worker.drained", "w1@other", "missing"),
        ("worker.drained", "w9@vm", "missing"),
        ("worker.drained", "w2@vm", "silent"),
    ]
