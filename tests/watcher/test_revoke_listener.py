"""Remote-control commands that operators send to workers, and that a watcher also handles."""

from __future__ import annotations

import logging
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from celery import Celery
from kombu.transport.memory import Transport

from a2a_celery.lifecycle.outcomes import CANCELED_BY_OPERATOR
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.lifecycle.states import CANCELED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import request_cancel
from a2a_celery.watcher.revoke_listener import TERMINATE_AFTER, BroadcastConsumer, Revoke, RevokeListener
from tests.support.clocks import ManualClock
from tests.support.store.seeds import ANN, CONTEXT, Seeds, status
from tests.support.waiting import LIMIT, eventually_async


def control_message(method: str, **arguments: Any) -> dict[str, Any]:
    return {"method": method, "arguments": arguments, "destination": None, "pattern": None, "matcher": None}


REVOKES = [
    (control_message("revoke", task_id="a.1", terminate=False, signal="SIGTERM"), Revoke(("a.1",), False)),
    (control_message("revoke", task_id=["a.1", "b"], terminate=True), Revoke(("a.1", "b"), True)),
    (control_message("revoke", task_id="a.1"), Revoke(("a.1",), False)),
    (control_message("terminate", task_id=["a.1"], signal="KILL"), Revoke(("a.1",), True)),
    (control_message("revoke", task_id="a.1") | {"destination": ["one@worker"]}, None),
    (control_message("revoke", task_id="a.1") | {"pattern": "one*", "matcher": "glob"}, None),
    (control_message("revoke", task_id=7), None),
    (control_message("revoke"), None),
    (control_message("ping"), None),
    ({"method": "revoke"}, None),
    ("revoke", None),
    (None, None),
]


@pytest.mark.parametrize(("body", "revoke"), REVOKES, ids=str)
def test_a_broadcast_is_a_revoke_for_all_workers_or_none(body: Any, revoke: Revoke | None) -> None:
    assert Revoke.of(body) == revoke


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def listener(store: AsyncStore, keys: Keys, clock: ManualClock) -> RevokeListener:
    return RevokeListener(store, keys, Celery(set_as_current=False), clock)


async def test_the_id_of_a_task_without_its_run_is_explained(
    seeds: Seeds, listener: RevokeListener, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await seeds.create_task()

    listener.receive(control_message("revoke", task_id=["no-run", task_id]))

    async def is_explained() -> bool:
        return f"revoking {task_id} has no effect" in caplog.text and f"revoke {task_id}.1," in caplog.text

    await eventually_async(is_explained)
    assert "no-run" not in caplog.text
    assert await seeds.states(task_id) == [SUBMITTED]
    await listener.stop()


async def until_canceled(seeds: Seeds, task_id: str) -> None:
    async def is_canceled() -> bool:
        return (await seeds.task(task_id)).status.state == CANCELED

    await eventually_async(is_canceled)


async def test_queued_runs_are_canceled_and_other_tasks_are_ignored(seeds: Seeds, listener: RevokeListener) -> None:
    first, second = await seeds.create_task(), await seeds.create_task()

    listener.receive(control_message("ping"))
    listener.receive(control_message("revoke", task_id=["no-run", "unknown.1", f"{first}.1", f"{second}.1"]))
    await until_canceled(seeds, second)

    assert await seeds.states(first) == await seeds.states(second) == [SUBMITTED, CANCELED]
    await listener.stop()


async def test_a_revoke_is_logged_only_for_a_task_that_had_not_ended(
    store: AsyncStore, keys: Keys, seeds: Seeds, listener: RevokeListener, caplog: pytest.LogCaptureFixture
) -> None:
    """CancelTask revokes the run of a task that it has already ended."""
    caplog.set_level(logging.INFO, "a2a_celery.watcher.revoke_listener")
    canceled, revoked = await seeds.create_task(), await seeds.create_task()
    await store.run(request_cancel(keys, ANN, canceled, CONTEXT))

    listener.receive(control_message("revoke", task_id=[f"{canceled}.1", f"{revoked}.1"]))

    async def is_logged() -> bool:
        return bool(caplog.messages)

    await eventually_async(is_logged)
    await listener.stop()
    assert caplog.messages == [f"an operator revoked run {revoked}.1: its task is CANCELED"]


async def test_workers_have_some_time_to_terminate_a_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, listener: RevokeListener, clock: ManualClock
) -> None:
    claim = await seeds.claim_run()
    record = keys.task(claim.ref.task_id).record

    listener.receive(control_message("revoke", task_id=claim.ref.name, terminate=True))
    await clock.until_waiting(TERMINATE_AFTER)
    assert await store.redis.hget(record, "cancel_requested") is None
    clock.advance(TERMINATE_AFTER)

    async def is_asked() -> bool:
        return bool(await store.redis.hget(record, "cancel_requested") == b"1")

    await eventually_async(is_asked)
    await seeds.settle_run(claim, status(CANCELED))
    assert await seeds.states(claim.ref.task_id) == [SUBMITTED, WORKING, CANCELED]
    message = (await seeds.task(claim.ref.task_id)).status.message
    assert (message.parts[0].text, dict(message.metadata)) == (
        CANCELED_BY_OPERATOR,
        own_metadata({"command": "terminate"}),
    )
    await listener.stop()


async def test_a_listener_that_stops_waits_for_no_worker(
    seeds: Seeds, listener: RevokeListener, clock: ManualClock
) -> None:
    claim = await seeds.claim_run()
    listener.receive(control_message("terminate", task_id=[claim.ref.name]))
    await clock.until_waiting(TERMINATE_AFTER)

    await listener.stop()

    assert await seeds.states(claim.ref.task_id) == [SUBMITTED, WORKING]


def test_a_broker_without_broadcasts_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Transport, "implements", Transport.implements.extend(exchange_type=frozenset(["direct"])))
    consumer = BroadcastConsumer(Celery(broker="memory://", set_as_current=False), lambda body: None)
    monkeypatch.setattr(consumer, "run", consumer.stop)  # called while broadcasts are consumed

    consumer.start()
    for thread in enumerate_threads():
        if thread.name == "a2a-revokes":
            thread.join(LIMIT)

    assert not consumer.should_stop
    assert ["no broadcasts" in record.message for record in caplog.records] == [True]
