"""Celery signals that are sent outside of a run. The receivers of a signal write at most one final status, and raise no
error."""

from __future__ import annotations

import os
from signal import SIGKILL, SIGTERM
from socket import gethostname
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery import Celery, Task
from celery.app.task import Context
from celery.exceptions import Reject, Retry
from celery.signals import task_failure, task_internal_error, task_rejected, task_revoked, task_unknown
from celery.utils.functional import noop
from celery.worker.state import revoked
from kombu import Message

from a2a_celery import A2A
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import RUN_HEADER
from a2a_celery.errors import StoreUnavailable
from a2a_celery.execution.celery.request import RUN_IS_OVER, RunFailed, RunRequest, outcome_of_failure
from a2a_celery.execution.process.forced_stop import RunEnder, runner_prefix
from a2a_celery.lifecycle import Canceled, Failure, Refused
from a2a_celery.lifecycle.outcomes import AGENT_FAILED, AGENT_UNKNOWN, CANCELED_BY_OPERATOR, OUT_OF_TIME, WORKER_LOST
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, FAILED, REJECTED, SUBMITTED, WORKING
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.release import release_run
from tests.support.store.seeds import Seeds, status

from .scene import Scene


@pytest.fixture
def settings(redis_server: EmbeddedRedis) -> Settings:
    return Settings(store_url=redis_server.store_url, key_prefix="test")


@pytest.fixture
def ender(settings: Settings) -> RunEnder:
    return RunEnder(lambda: settings)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (WorkerLostError("x"), Failure(WORKER_LOST)),
        (Terminated(15), Canceled(CANCELED_BY_OPERATOR, "terminate")),
        (SystemExit(3), Failure(WORKER_LOST)),
        (KeyboardInterrupt(), Failure(WORKER_LOST)),
        (TimeLimitExceeded(1), Failure(OUT_OF_TIME)),
        (SoftTimeLimitExceeded(), Failure(OUT_OF_TIME)),
        (RunFailed("x"), None),
        (Retry("x"), None),
        (Reject("x"), None),
        (StoreUnavailable("x"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_of_the_celery_task_lead_to_these_outcomes(error: BaseException, outcome: Any) -> None:
    assert outcome_of_failure(error) == outcome


async def test_any_other_failure_is_logged_once(
    scene: Scene, ender: RunEnder, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery reports the exception as an error, so the log line of the run is only a warning. A failure of a run that
    has ended is not logged, because the run has logged its own reference."""
    claim, error = await scene.seeds.claim_run(), RuntimeError("a secret")
    await scene.seeds.store.redis.hset(scene.keys.task(claim.task.id).record, "runner", runner_prefix(7) + "a")
    outcomes = [outcome_of_failure(error) for _ in range(2)]

    for outcome in outcomes:
        assert isinstance(outcome, Failure)
        ender.end(claim.ref.name, outcome, worker_pid=7, error=error)

    [line] = [record for record in caplog.records if "reference" in record.getMessage()]
    assert (line.levelname, outcomes[0].text) == ("WARNING", AGENT_FAILED)
    assert f"its Celery task failed: {error!r} [reference {outcomes[0].reference}]" in line.getMessage()
    assert str(outcomes[0].reference) in str(await scene.seeds.task(claim.task.id))


async def test_a_run_of_this_process_is_ended_and_others_are_not(scene: Scene, ender: RunEnder) -> None:
    claim = await scene.seeds.claim_run()
    record = scene.keys.task(claim.task.id).record

    for runner, pid, states in [
        (runner_prefix(7) + "a", 77, [SUBMITTED, WORKING]),
        (runner_prefix(77) + "a", 7, [SUBMITTED, WORKING]),
        ("elsewhere.7.a", 7, [SUBMITTED, WORKING]),
        (f"{gethostname()}.7.a", 7, [SUBMITTED, WORKING]),  # on a different machine with the same name
        (runner_prefix(7) + "a", None, [SUBMITTED, WORKING]),
        (runner_prefix(7) + "a", 7, [SUBMITTED, WORKING, FAILED]),
    ]:
        await scene.seeds.store.redis.hset(record, "runner", runner)
        ender.end(claim.ref.name, Failure(WORKER_LOST), worker_pid=pid)

        assert await scene.seeds.states(claim.task.id) == states
    assert (await scene.seeds.task(claim.task.id)).status.message.context_id == claim.task.context_id


@pytest.mark.parametrize("name", ["", "no-run", "unknown.1", "t.x", "t.1.", ".1", "t.²"])
async def test_an_id_of_another_task_is_ignored(scene: Scene, ender: RunEnder, name: str) -> None:
    ender.end(name, Failure(WORKER_LOST), worker_pid=1)

    assert await scene.seeds.all_values() == {}


def test_an_unreachable_store_raises_nothing_into_celery(caplog: pytest.LogCaptureFixture) -> None:
    unreachable = RunEnder(lambda: Settings(store_url="redis://127.0.0.1:1/0"))

    unreachable.end("t.1", Failure(WORKER_LOST), worker_pid=1)

    assert "run t.1: could not write its final status" in caplog.text


def test_an_id_names_its_run() -> None:
    assert RunRef.of("t.1.2") == RunRef("t.1", 2)
    assert RunRef.of(RunRef("t", 12).name) == RunRef("t", 12)


class Consumer:
    """Stand-in for Celery's consumer, which sends signals."""

    def __init__(self, app: Celery) -> None:
        self.app = app


class Apps:
    """Two apps in one process with separate stores."""

    def __init__(self, redis: EmbeddedRedis) -> None:
        self.mine, self.other = (self._app(redis, prefix) for prefix in ("test", "other"))

    def _app(self, redis: EmbeddedRedis, prefix: str) -> Celery:
        app = Celery(set_as_current=False)
        app.conf.a2a_store_url, app.conf.a2a_key_prefix = redis.store_url, prefix
        self.a2a = A2A(app)
        self.a2a.worker()
        A2A(app).worker()  # a second object connects no receiver twice
        return app


@pytest.mark.parametrize("name", ["a2a.ghost", "a.plain.task"])
async def test_an_unknown_agent_is_refused_in_the_store_of_the_app_that_got_it(
    store: AsyncStore, redis_server: EmbeddedRedis, name: str
) -> None:
    apps = Apps(redis_server)
    for app, prefix in ((apps.mine, "test"), (apps.other, "other")):
        seeds = Seeds(store, Keys(prefix))
        task_id = await seeds.create_task(task_id="same")

        task_unknown.send(sender=Consumer(app), name=name, id="same", message=received_message(prefix))
        task_unknown.send(sender=Consumer(app), name=name, id="same.2", message=received_message(prefix))
        task_unknown.send(sender=Consumer(app), name=name, id="same.1", message=received_message("another fleet"))
        assert await seeds.states(task_id) == [SUBMITTED]
        task_unknown.send(sender=Consumer(app), name=name, id="same.1", message=received_message(prefix))

        assert await seeds.states(task_id) == [SUBMITTED, REJECTED]
        assert (await seeds.task(task_id)).status.message.parts[0].text == AGENT_UNKNOWN


def received_message(fleet: str, accept: str = "application/json") -> Message:
    """Return a message as a worker receives it. `accept` is the content type that the worker accepts."""
    body, properties = b'[["same", 1], {}, {}]', {"content_type": "application/json", "content_encoding": "utf-8"}
    return Message(body, headers={"a2a_fleet": fleet}, accept={accept}, **properties)


async def test_a_message_that_the_worker_would_refuse_ends_nothing(
    store: AsyncStore, redis_server: EmbeddedRedis
) -> None:
    seeds = Seeds(store, Keys("test"))
    task_id = await seeds.create_task(task_id="same")
    unsigned_message = received_message("test", accept="application/data")

    task_unknown.send(sender=Consumer(Apps(redis_server).mine), name="a2a.ghost", id="same.1", message=unsigned_message)

    assert await seeds.states(task_id) == [SUBMITTED]


def test_apps_without_agents_and_senders_without_an_app_are_ignored() -> None:
    for sender in (Consumer(Celery(set_as_current=False)), None):
        task_unknown.send(sender=sender, name="a2a.ghost", id="t.1")


@pytest.mark.parametrize("by_operator", [False, True])
@pytest.mark.parametrize("is_released", [False, True], ids=["runs", "waits for its retry"])
async def test_an_expired_copy_of_the_first_message_does_not_affect_the_retry(
    scene: Scene, redis_server: EmbeddedRedis, is_released: bool, by_operator: bool
) -> None:
    app = Celery(set_as_current=False)
    app.conf.a2a_store_url, app.conf.a2a_key_prefix = redis_server.store_url, "test"
    a2a = A2A(app)
    a2a.agent("echo", description="Says nothing.")(lambda turn: None)
    a2a.worker()
    claim = await scene.seeds.claim_run(await scene.seeds.create_task(task_id="same"))
    if is_released:
        retry_arguments = {"events": [status(WORKING)], "options": b'{"retries":1}', "retries": 1, "delay_us": 1}
        await scene.seeds.store.run(
            release_run(scene.keys, claim.ref, token=claim.token, written_count=0, **retry_arguments)  # type: ignore[arg-type]
        )
    if by_operator:
        revoked.add("same.1")
    message = SimpleNamespace(
        headers={"id": "same.1", "task": "a2a.echo", "expires": "2001-01-01T00:00:00+00:00", "a2a_fleet": "test"},
        properties={},
        delivery_info={},
        payload=(["same", 1], {}, {}),
    )
    task = app.tasks["a2a.echo"]
    try:
        request = RunRequest(
            message, app=app, task=task, decoded=True, body=message.payload, on_ack=noop, on_reject=noop
        )

        assert [request.revoked(), request.revoked()] == [True, True]

        assert ("same.1" in revoked) is by_operator
    finally:
        revoked.discard("same.1")
    assert (await scene.seeds.task("same")).status.state == WORKING


@pytest.mark.parametrize(
    ("signum", "is_reachable", "killed_by"),
    [(SIGTERM, True, []), (SIGKILL, True, [SIGKILL]), (SIGTERM, False, [SIGTERM])],
    ids=["SIGTERM", "SIGKILL", "without the store"],
)
async def test_the_agent_of_a_terminated_child_is_stopped_as_by_its_client(
    scene: Scene, redis_server: EmbeddedRedis, signum: int, is_reachable: bool, killed_by: list[int]
) -> None:
    app = Celery(set_as_current=False)
    app.conf.a2a_store_url = redis_server.store_url if is_reachable else "redis://127.0.0.1:1/0"
    app.conf.a2a_key_prefix = "test"
    a2a = A2A(app)
    a2a.agent("echo", description="Says nothing.")(lambda turn: None)
    a2a.worker()
    claim = await scene.seeds.claim_run(await scene.seeds.create_task(task_id="child"))
    message = SimpleNamespace(
        headers={"id": claim.ref.name, "task": "a2a.echo", "a2a_fleet": "test"},
        properties={},
        delivery_info={},
        payload=(["child", 1], {}, {}),
    )
    request = RunRequest(
        message, app=app, task=app.tasks["a2a.echo"], decoded=True, body=message.payload, on_ack=noop, on_reject=noop
    )
    request.on_accepted(os.getppid(), 0.0)
    kill_signals: list[int] = []
    try:
        request.terminate(SimpleNamespace(terminate_job=lambda pid, by: kill_signals.append(by)), signum)
    finally:
        revoked.discard(claim.ref.name)

    assert kill_signals == killed_by
    is_asked = await scene.seeds.store.redis.hget(scene.keys.task("child").record, "cancel_requested")
    assert is_asked == (None if killed_by else b"1")


def test_every_agents_task_is_received_as_a_run() -> None:
    app = Celery(set_as_current=False)
    a2a = A2A(app)

    @a2a.agent("echo")
    async def echo(turn: Any) -> None:
        """Says nothing."""

    a2a.worker()
    task = app.tasks["a2a.echo"]
    assert task.Request is RunRequest
    assert isinstance(task.ender, RunEnder)
    assert Refused(AGENT_UNKNOWN) == Refused("The worker does not have this agent.")


@pytest.mark.parametrize(("headers", "state"), [({RUN_HEADER: True}, FAILED), ({}, SUBMITTED)], ids=["a run", "not"])
async def test_a_call_of_a_plain_task_is_a_run_only_if_it_was_published_as_one(
    scene: Scene, redis_server: EmbeddedRedis, headers: dict[str, Any], state: Any
) -> None:
    app = Apps(redis_server).mine

    @app.task(shared=False)
    def shout(text: str) -> str:
        return text.upper()

    a2a = A2A(app)
    a2a.expose(shout)
    a2a.worker()
    task_id = await scene.seeds.create_task(task_id="same")
    message = SimpleNamespace(
        headers={"id": "same.1", "task": shout.name, **headers}, properties={}, delivery_info={}, payload=((), {}, {})
    )
    request = shout.Request(message, app=app, task=shout, decoded=True, body=message.payload)

    request.on_timeout(soft=False, timeout=1)

    assert request.is_run == bool(headers)
    assert (await scene.seeds.states(task_id))[-1] == state


async def claim_here(seeds: Seeds) -> str:
    """Claim a run as this process, and return the run's Celery id."""
    claim = await seeds.claim_run()
    record = seeds.keys.task(claim.task.id).record
    await seeds.store.redis.hset(record, "runner", runner_prefix(os.getpid()) + "a")
    return claim.ref.name


SIGNALS = [
    (task_failure, {"exception": RuntimeError("a secret")}, FAILED, AGENT_FAILED),
    (task_failure, {"exception": TimeLimitExceeded(1)}, FAILED, OUT_OF_TIME),
    (task_failure, {"exception": WorkerLostError("x")}, FAILED, WORKER_LOST),
    (task_internal_error, {"exception": RuntimeError("a secret")}, FAILED, AGENT_FAILED),
    (task_revoked, {"terminated": True, "signum": 15, "expired": False}, CANCELED, CANCELED_BY_OPERATOR),
]


@pytest.mark.parametrize(
    ("signal", "arguments", "state", "text"), SIGNALS, ids=lambda value: getattr(value, "name", None) or str(value)[:40]
)
async def test_a_signal_ends_a_run_of_this_process_once(
    scene: Scene, redis_server: EmbeddedRedis, signal: Any, arguments: dict[str, Any], state: Any, text: str
) -> None:
    task = agent_task(redis_server)
    name = await claim_here(scene.seeds)
    ref = RunRef.of(name)
    assert ref is not None
    context = Context(id=name)
    about = {"request": context} if signal is task_revoked else {"task_id": name, "request": context}

    for _ in range(2):
        signal.send(sender=task, **about, **arguments)

    assert await scene.seeds.states(ref.task_id) == [SUBMITTED, WORKING, state]
    assert await scene.seeds.status_text(ref.task_id) == text


@pytest.mark.parametrize(("is_expired", "state"), [(False, CANCELED), (True, REJECTED)])
async def test_a_revoke_before_the_begin_ends_no_run_that_is_claimed(
    scene: Scene, redis_server: EmbeddedRedis, is_expired: bool, state: Any
) -> None:
    task = agent_task(redis_server)
    running, queued_run = await claim_here(scene.seeds), f"{await scene.seeds.create_task()}.1"

    for name in (running, queued_run):
        task_revoked.send(sender=task, request=Context(id=name), terminated=False, signum=None, expired=is_expired)

    assert [(await scene.seeds.states(name[:-2]))[-1] for name in (running, queued_run)] == [WORKING, state]


async def test_a_signal_about_an_ended_run_does_not_use_the_store(
    scene: Scene, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = agent_task(redis_server)
    name = await claim_here(scene.seeds)
    outcomes: list[Any] = []
    monkeypatch.setattr(task.ender, "end", lambda *about, **more: outcomes.append(about))

    task_failure.send(sender=task, task_id=name, exception=RunFailed("x"))
    task_revoked.send(sender=task, request=Context({"id": name, RUN_IS_OVER: True}), terminated=True)

    assert outcomes == []


@pytest.mark.parametrize(("fleet", "state"), [("test", REJECTED), ("another", SUBMITTED)])
async def test_a_message_that_is_no_valid_call_rejects_its_run(
    scene: Scene, redis_server: EmbeddedRedis, fleet: str, state: Any
) -> None:
    app = Apps(redis_server).mine
    task_id = await scene.seeds.create_task(task_id="same")
    message = received_message(fleet)
    message.headers["id"] = "same.1"

    task_rejected.send(sender=Consumer(app), message=message, exc=ValueError("invalid ETA"))
    task_rejected.send(sender=Consumer(app), message=Message(b"", headers={}), exc=None)

    assert (await scene.seeds.states(task_id))[-1] == state


def agent_task(redis: EmbeddedRedis) -> Task:
    """Return the Celery task of an agent."""
    app = Celery(set_as_current=False)
    app.conf.a2a_store_url, app.conf.a2a_key_prefix = redis.store_url, "test"
    a2a = A2A(app)

    @a2a.agent("echo")
    async def echo(turn: Any) -> None:
        """Says nothing."""

    a2a.worker()
    return app.tasks["a2a.echo"]
