"""Retries of agents: the time of the next attempt, its options, and retries without a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard, TaskState, TaskStatusUpdateEvent
from a2a.utils.errors import InvalidParamsError
from celery import Celery
from celery.exceptions import MaxRetriesExceededError, Retry

from a2a_celery import A2A, Turn, current_turn
from a2a_celery.agents import Agent
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.delays import MAX_DELAY
from a2a_celery.dispatch import RunOptions
from a2a_celery.errors import Failed
from a2a_celery.execution.celery.request import RunRetried
from a2a_celery.execution.events.release import RunRelease
from a2a_celery.features.retries.retries import Retries
from a2a_celery.lifecycle import Retried
from a2a_celery.lifecycle.own_metadata import CAUSE, NAMESPACE
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, FAILED, REJECTED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.runs.release import release_run
from a2a_celery.store.tasks.commands import create_task, request_cancel
from a2a_celery.store.tasks.replies import CanceledNow
from tests.execution.scene import Scene, perform_run
from tests.support.clocks import START, ManualClock
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, request, status

NOW = datetime.fromtimestamp(START, UTC)
LATER = NOW + timedelta(seconds=60)


def retries(count: int = 0, **policy: Any) -> Retries:
    """Return the `Retries` of a run that has been retried `count` times."""
    claim = SimpleNamespace(options=RunOptions(retries=count, not_after=NOW).to_json())
    agent = Agent.with_options("agent", AgentCard(), "function", None, None, policy)
    running: Any = SimpleNamespace(run=SimpleNamespace(agent=agent, claim=claim, clock=ManualClock()))
    return Retries(running)


def retry_request(retries: Retries, **arguments: Any) -> BaseException:
    """Return the exception that a request for a retry raises."""
    with pytest.raises(BaseException) as exc_info:  # noqa: PT011 - any
        retries.request(**arguments)
    return exc_info.value


def test_an_exception_is_followed_by_a_retry_after_the_delay_of_the_policy() -> None:
    delay = retries(1, autoretry_for=(OSError,), default_retry_delay=60).after(TimeoutError("a secret"))

    assert delay == (Retried(3, 4, LATER.isoformat(), "TimeoutError"), RunOptions(retries=2, not_before=LATER))


@pytest.mark.parametrize("count", [3, 4])
def test_no_retry_follows_the_last(count: int) -> None:
    assert retries(count, autoretry_for=(OSError,)).after(OSError()) is None


def test_without_a_limit_each_exception_is_followed_by_a_retry() -> None:
    delay = retries(1000, autoretry_for=(OSError,), max_retries=None, default_retry_delay=0).after(OSError())

    assert delay == (Retried(1002, None, "", "OSError"), RunOptions(retries=1001))


@pytest.mark.parametrize(
    ("arguments", "retry_time"),
    [
        ({"countdown": 60}, LATER),
        ({"countdown": 0}, None),
        ({"eta": LATER}, LATER),
        ({"eta": LATER.replace(tzinfo=None)}, LATER),
        ({"eta": NOW - timedelta(days=1)}, None),
        ({}, LATER),
    ],
    ids=str,
)
def test_an_agent_sets_the_time_of_its_retry(arguments: dict[str, Any], retry_time: datetime | None) -> None:
    run = retries(default_retry_delay=60, retry_backoff=True)

    delay = run.after(retry_request(run, **arguments))

    assert delay == (
        Retried(2, 4, retry_time.isoformat() if retry_time else "", ""),
        RunOptions(retries=1, not_before=retry_time),
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"countdown": 1, "eta": LATER}, "pass only one of them"),
        ({"countdown": -1}, "a number of seconds from 0"),
        ({"countdown": float("nan")}, "a number of seconds from 0"),
        ({"countdown": "1"}, "a number of seconds from 0"),
        ({"eta": NOW + timedelta(seconds=MAX_DELAY + 1)}, "seconds from now"),
        ({"max_retries": -1}, "max_retries = -1: a whole number"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    error = retry_request(retries(), **arguments)

    assert isinstance(error, ValueError)
    assert sentence in str(error)


def test_the_last_retry_raises_the_exception_which_is_not_retried_again() -> None:
    run, error = retries(1, autoretry_for=(Exception,)), Failed("Enough.")

    assert retry_request(run, exc=error, max_retries=1) is error
    assert isinstance(retry_request(run, max_retries=1), MaxRetriesExceededError)
    assert run.after(OSError()) is None, "the agent's own limit is higher"
    assert run.after(retry_request(run, max_retries=2)) is not None


def test_the_response_of_a_provider_sets_the_time_of_the_retry() -> None:
    response = httpx.Response(429, headers={"retry-after": "60"}, request=httpx.Request("POST", "http://p.example"))
    run = retries(autoretry_for=(httpx.HTTPError,))
    try:
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        celerys = Retry(exc=error)  # Celery replaces the exception, which cannot be pickled
        errors = [error, retry_request(run, exc=error), celerys, retry_request(run)]
        celerys.__cause__ = error

    assert [run.after(each) for each in errors] == [
        (Retried(2, 4, LATER.isoformat(), "HTTPStatusError"), RunOptions(retries=1, not_before=LATER))
    ] * 4


def test_no_text_of_an_agent_is_in_the_name_of_a_cause() -> None:
    names = [type(name, (OSError,), {}) for name in ("a secret", "x" * 65, "Über")]
    run = retries(autoretry_for=(OSError,))

    causes = [delay[0].cause for kind in names if (delay := run.after(kind()))]

    assert causes == ["", "", ""]


@pytest.fixture
async def a2a(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[A2A]:
    """Agents of an app whose broker is unavailable."""
    app = Celery("test", broker="redis://127.0.0.1:1", set_as_current=False)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_key_prefix=keys.prefix)
    a2a = A2A(app)

    @a2a.agent("later", description="Waits.", retry_backoff=500, retry_jitter=False, autoretry_for=(OSError,))
    async def retry_later(turn: Turn) -> AsyncIterator[str]:
        await turn.artifact("finished", artifact_id="finished")
        yield "unfinished"
        if turn.text == "cancel":
            cancel = request_cancel(keys, ANN, turn.task_id, CONTEXT)
            await asyncio.to_thread(SyncStore(redis_server.store_url).run, cancel)
        raise ConnectionError("a secret")

    @a2a.agent("wrong", description="Says no time.")
    def wrong(turn: Turn) -> None:
        raise Retry(when="tomorrow")

    @a2a.agent("last", description="Has no retry left.", max_retries=0)
    def retry_once_more(turn: Turn) -> None:
        raise Retry(exc=OSError("its cause") if turn.text == "cause" else None)

    @a2a.agent("ended", description="Ends its task itself.", autoretry_for=(OSError,))
    async def end_early(turn: Turn) -> AsyncIterator[TaskStatusUpdateEvent]:
        yield status(FAILED, "in my words")
        raise ConnectionError("a secret")

    @a2a.agent("refuses", description="Does not take the message.", autoretry_for=(Exception,))
    async def refuses(turn: Turn) -> None:
        raise InvalidParamsError("not this")

    @app.task(name="plain", shared=False)
    def retry_by_turn(text: str) -> None:
        turn = current_turn()
        assert turn is not None
        turn.retry()

    a2a.expose(retry_by_turn, description="Retries by its turn.")
    worker = a2a.worker()
    yield a2a
    await asyncio.to_thread(worker.close)


async def perform(a2a: A2A, store: AsyncStore, keys: Keys, agent: str, text: str = "x") -> Any:
    """Run a new task "t" of `agent`, and return Celery's result."""
    caller = Caller(user="ann").to_json()
    await store.run(create_task(keys, ANN, "t", CONTEXT, request(text), caller=caller, retention=RETENTION))
    return await asyncio.to_thread(perform_run, a2a.celery.tasks[f"a2a.{agent}"], "t.1", "t", 1)


async def test_a_retry_is_stored_with_its_time_and_its_cause(
    a2a: A2A, store: AsyncStore, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        result = await perform(a2a, store, keys, "later")

    seeds = Seeds(store, keys)
    task = await seeds.task("t")
    assert (result.info.state, repr(result.info.retval.exc)) == ("RETRY", repr(RunRetried("ConnectionError")))
    assert await seeds.states("t") == [SUBMITTED, WORKING, WORKING, WORKING]
    assert [artifact.artifact_id for artifact in task.artifacts] == ["finished"]
    assert task.metadata[NAMESPACE + CAUSE] == "ConnectionError"
    due = await store.redis.zscore(keys.dispatch, "t.1")
    begins_at = RunOptions.from_json(await store.redis.hget(keys.task("t").record, "options") or b"").not_before
    assert due is not None
    assert begins_at is not None
    assert begins_at.timestamp() - task.status.timestamp.seconds == pytest.approx(500, abs=30)
    assert due / 1e6 < begins_at.timestamp(), "a watcher publishes it in time"
    assert (await store.run(read_metrics(keys))).counted("retried") == {(ANN.agent, "runs"): 1}
    assert "a secret" in caplog.text
    await seeds.require_consistent("t")
    assert isinstance(await store.run(request_cancel(keys, ANN, "t", CONTEXT)), CanceledNow)


async def test_a_retry_is_published_after_it_was_stored(scene: Scene) -> None:
    claim, events = await scene.begin()
    options = RunOptions(retries=1).to_json()
    stored_options: list[bytes | None] = []

    async def publish(agent: str, run: RunRef, content: bytes) -> None:
        stored_options.append(await scene.seeds.store.redis.hget(scene.keys.task(run.task_id).record, "options"))

    release = RunRelease(scene.run_of(events), events, publish)
    assert await release.retry(status(WORKING), RunOptions.from_json(options)) is None

    assert stored_options == [options]
    assert await scene.seeds.store.redis.zscore(scene.keys.leases, claim.ref.name) is None


async def test_a_cancel_comes_before_a_retry(a2a: A2A, store: AsyncStore, keys: Keys) -> None:
    await perform(a2a, store, keys, "later", "cancel")

    assert (await Seeds(store, keys).states("t"))[-1] == CANCELED


@pytest.mark.parametrize(("agent", "end"), [("wrong", FAILED), ("ended", FAILED), ("refuses", REJECTED)])
async def test_what_cannot_be_retried_ends(a2a: A2A, store: AsyncStore, keys: Keys, agent: str, end: TaskState) -> None:
    await perform(a2a, store, keys, agent)

    assert await Seeds(store, keys).states("t") == [SUBMITTED, WORKING, end]


@pytest.mark.parametrize(("text", "error"), [("cause", "its cause"), ("x", "the run has reached its limit of retries")])
async def test_a_retry_beyond_the_maximum_ends_with_its_exception(
    a2a: A2A, store: AsyncStore, keys: Keys, caplog: pytest.LogCaptureFixture, text: str, error: str
) -> None:
    await perform(a2a, store, keys, "last", text)

    assert (await Seeds(store, keys).states("t"))[-1] == FAILED
    assert error in caplog.text


async def test_a_repeated_release_with_a_replacement_has_one_effect(store: AsyncStore, keys: Keys) -> None:
    seeds = Seeds(store, keys)
    claim = await seeds.claim_run()
    await seeds.append_events(claim, chunk("open"))
    task = await seeds.task(claim.task.id)
    del task.artifacts[:]
    release = release_run(
        keys,
        RunRef(task.id, 1),
        token=claim.token,
        written_count=1,
        events=[status(WORKING, "again")],
        options=b'{"retries":1}',
        retries=1,
        delay_us=1,
        replacement=task,
    )

    assert await store.run(release) == await store.run(release)

    assert await seeds.states(task.id) == [SUBMITTED, WORKING, WORKING, WORKING]
    assert not (await seeds.task(task.id)).artifacts
    assert (await store.run(read_metrics(keys))).counted("retried") == {(ANN.agent, "runs"): 1}
    await seeds.require_consistent(task.id)


async def test_a_plain_celery_task_has_its_own_retries(
    a2a: A2A, store: AsyncStore, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caller = Caller(user="ann").to_json()
    await store.run(create_task(keys, ANN, "t", CONTEXT, request("x"), caller=caller, retention=RETENTION))
    with suppress(Exception):
        await asyncio.to_thread(perform_run, a2a.celery.tasks["plain"], "t.1", text="x")

    assert (await Seeds(store, keys).task("t")).status.state == FAILED
    assert "self.retry" in caplog.text
