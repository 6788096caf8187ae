"""`A2A.schedule`, and the Celery task that schedulers send, without ``celery beat``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from queue import Queue
from threading import Event
from typing import Any

import pytest
from a2a.types import Message, Part, Role
from celery import Celery
from celery.result import EagerResult
from celery.schedules import crontab

from a2a_celery import A2A, ConfigError, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import BlobsUnavailable, StoreUnavailable
from a2a_celery.features.schedules.celery_task import (
    MAX_UNSUBMITTED,
    NAME,
    RETRY_DELAY,
    RETRY_FOR,
    SUBMIT_TIMEOUT,
    TICK_HEADER,
    TickRetrier,
)
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.operations.errors import LimitExceededError
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from tests.execution.local_agents import LocalAgents, local_agents
from tests.support.clocks import ManualClock
from tests.support.waiting import LIMIT, eventually

AT = 1_900_000_000_000_000


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[LocalAgents]:
    async with local_agents(store, keys, redis_server.store_url) as agents:
        add_agents(agents.a2a)
        await store.redis.hset(keys.installation, "schema", SCHEMA)
        yield agents
        await asyncio.to_thread(agents.a2a.close)


@pytest.fixture
def a2a() -> A2A:
    app = Celery("schedules", broker="memory://", set_as_current=False)
    a2a = A2A(app)
    add_agents(a2a)
    return a2a


def add_agents(a2a: A2A) -> None:
    @a2a.agent("reporter", queue="reports")
    async def reporter(turn: Turn) -> str:
        """Report."""
        return f"{turn.caller.user}: {turn.text}"

    @a2a.agent("remembers", session=True)
    async def remembers(turn: Turn) -> str:
        """Remember."""
        return turn.text


async def tick(agents: LocalAgents, minutes: int = 0, **arguments: Any) -> Any:
    """Execute the Celery task as a worker does."""
    task = agents.a2a.celery.tasks[NAME]
    kwargs = {"schedule": "nightly", "agent": "reporter", "message": "report", "owner": "ops", "window": 0, **arguments}
    options = {"headers": {TICK_HEADER: AT + minutes * 60_000_000}, "throw": True}
    return (await asyncio.to_thread(task.apply, kwargs=kwargs, **options)).result


def test_an_entry_for_beat(a2a: A2A) -> None:
    nightly = crontab(hour=2, minute=0)
    nothing: dict[str, Any] = dict.fromkeys(("tenant", "context_id", "metadata", "extensions"))
    a2a.schedule("nightly", nightly, "reporter", "report", owner="ops", overlap="allow", priority=3, **nothing)
    a2a.celery.conf.beat_schedule  # noqa: B018  the configuration is loaded after the definition
    a2a.schedule("often", 10.0, "remembers", {"a": [1, None]}, context_id="c", queue="other", metadata={"k": 1})

    assert a2a.celery.conf.beat_schedule == {
        "nightly": {
            "task": "a2a.submit_scheduled",
            "schedule": nightly,
            "args": (),
            "kwargs": {
                "schedule": "nightly",
                "agent": "reporter",
                "message": "report",
                "owner": "ops",
                "overlap": "allow",
                "window": 0.0,
            },
            "options": {"queue": "reports", "priority": 3},
        },
        "often": {
            "task": "a2a.submit_scheduled",
            "schedule": 10.0,
            "args": (),
            "kwargs": {
                "schedule": "often",
                "agent": "remembers",
                "message": {"a": [1, None]},
                "context_id": "c",
                "metadata": {"k": 1},
                "window": 9.0,
            },
            "options": {"queue": "other"},
        },
    }
    for entry in a2a.celery.conf.beat_schedule.values():
        assert json.loads(json.dumps(entry["kwargs"])) == entry["kwargs"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"agent": "nobody"}, "no agent 'nobody' in this app; known: remembers, reporter. Define a schedule after"),
        ({"overlap": "wait"}, "overlap='wait': pass one of"),
        ({"message": object()}, "cannot carry this object"),
        ({"message": {"a": float("nan")}}, "cannot carry"),
        ({"message": None}, "there is nothing to send"),
        ({"message": {"parts": [{"unknown": 1}]}}, "must be a valid message"),
        ({"message": Message(task_id="t", parts=[Part(text="x")])}, "without a task id"),
        ({"schedule": "daily"}, "pass a crontab, a timedelta or a number of seconds"),
        ({"schedule": 0}, "longer than 0 s"),
        ({"name": ""}, "a name has 1 to 200 characters"),
        ({"name": "nightly\n2026-11-25 WARNING forged"}, "a name has 1 to 200 characters, and no control characters"),
        ({"name": "taken"}, "there is a schedule 'taken' already"),
        ({"owner": 7}, "owner=7: pass a text"),
        ({"metadata": {"a": object()}}, "schedule 'nightly'"),
        ({"metadata": ["a"]}, "metadata=.*: pass a dict"),
    ],
)
def test_a_wrong_definition_is_refused(a2a: A2A, arguments: dict[str, Any], text: str) -> None:
    a2a.schedule("taken", 10, "reporter", "report")
    valid = {"name": "nightly", "schedule": crontab(), "agent": "reporter", "message": "report"}

    with pytest.raises(ConfigError, match=text):
        a2a.schedule(**{**valid, **arguments})

    assert list(a2a.celery.conf.beat_schedule) == ["taken"]


def test_a_second_object_of_the_app_has_the_same_task(a2a: A2A) -> None:
    second = A2A(a2a.celery)

    assert [name for name in a2a.celery.tasks if name == NAME] == [NAME]
    assert A2A.of(a2a.celery) is second


async def test_a_tick_starts_a_task_of_its_owner(agents: LocalAgents) -> None:
    first_tick = await tick(agents)
    second_tick = await tick(agents)
    await agents.perform("reporter", first_tick["task_id"])

    assert first_tick == second_tick == {"outcome": "started", "task_id": first_tick["task_id"]}
    task = await agents.seeds.task(first_tick["task_id"])
    assert task.status.state == COMPLETED
    assert task.artifacts[0].parts[0].text == "ops: report"
    assert task.metadata["a2a_celery/schedule"] == "nightly"


async def test_a_message_with_parts(agents: LocalAgents) -> None:
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="one"), Part(raw=b"two")])
    agents.a2a.schedule("parts", 10, "reporter", message, context_id="c")
    arguments = agents.a2a.celery.conf.beat_schedule["parts"]["kwargs"]

    result = await tick(agents, **arguments)

    task = await agents.seeds.task(result["task_id"])
    assert task.context_id == "c"
    assert list(task.history[0].parts) == list(message.parts)


async def test_a_skipped_tick_is_logged(agents: LocalAgents, caplog: pytest.LogCaptureFixture) -> None:
    await tick(agents)

    with caplog.at_level(logging.WARNING):
        assert await tick(agents, 1) == {"outcome": "skipped", "task_id": ""}

    assert "schedule nightly: the tick at 2030-03-17T17:47:40+00:00 was skipped" in caplog.text
    assert await tick(agents, 1) == {"outcome": "repeated", "task_id": ""}


async def test_a_refused_tick_can_be_submitted_again(agents: LocalAgents) -> None:
    agents.a2a.celery.conf.a2a_owner_max_concurrent_tasks = 1
    first = await tick(agents, overlap="allow")
    with pytest.raises(LimitExceededError):
        await tick(agents, 1, overlap="allow")
    await agents.perform("reporter", first["task_id"])

    assert (await tick(agents, 1, overlap="allow"))["outcome"] == "started"


async def test_wrong_arguments_fail_the_celery_task(agents: LocalAgents) -> None:
    with pytest.raises(ConfigError, match="overlap='wait'"):
        await tick(agents, overlap="wait")
    with pytest.raises(ConfigError, match="no agent 'nobody'"):
        await tick(agents, agent="nobody")
    with pytest.raises(ConfigError, match="no control characters"):
        await tick(agents, schedule="nightly\n2026-11-25 WARNING forged")


def test_the_task_retries_while_the_store_is_unavailable(a2a: A2A) -> None:
    task = a2a.celery.tasks[NAME]

    assert task.autoretry_for == (StoreUnavailable,)
    assert (task.acks_late, task.reject_on_worker_lost, task.retry_jitter) == (True, True, True)
    # with jitter, Celery waits for half of each delay on average
    delays = [min(2**retries, task.retry_backoff_max) / 2 for retries in range(task.max_retries)]
    assert sum(delays) == pytest.approx(3600, rel=0.1), "docs/schedules.md says about an hour"


NIGHTLY = {"schedule": "nightly", "agent": "reporter", "message": "report", "owner": "ops"}


def send_tick(a2a: A2A, queue: str, **options: Any) -> Any:
    """Call the Celery task as a scheduler does."""
    return a2a.celery.tasks[NAME].apply_async((), {**NIGHTLY, "window": 0}, producer=None, queue=queue, **options)


def headers_in(a2a: A2A, queue: str) -> list[dict[str, Any]]:
    """Return the headers of the messages in a queue, and remove the messages."""
    with a2a.celery.connection() as connection:
        messages = connection.SimpleQueue(queue)
        return [messages.get(timeout=5).headers for _ in range(messages.qsize())]


def submit_with(a2a: A2A, monkeypatch: pytest.MonkeyPatch, submit: Callable[..., Any]) -> None:
    monkeypatch.setattr(a2a.celery.tasks[NAME], "submit", submit)


async def test_the_process_of_the_scheduler_submits_a_tick(agents: LocalAgents) -> None:
    result = await asyncio.to_thread(send_tick, agents.a2a, "submitted")

    assert isinstance(result, EagerResult)
    assert result.result == {"outcome": "started", "task_id": result.id}
    assert (await agents.seeds.task(result.id)).metadata["a2a_celery/schedule"] == "nightly"
    assert headers_in(agents.a2a, "submitted") == []


async def test_a_tick_that_the_process_of_the_scheduler_cannot_submit_is_sent_to_a_worker(
    agents: LocalAgents, caplog: pytest.LogCaptureFixture
) -> None:
    agents.a2a.celery.conf.a2a_owner_max_concurrent_tasks = 1
    await tick(agents)
    entry = {**NIGHTLY, "schedule": "refused", "overlap": "allow"}

    await asyncio.to_thread(agents.a2a.celery.tasks[NAME].apply_async, (), entry, queue="refused")

    assert [TICK_HEADER in headers for headers in headers_in(agents.a2a, "refused")] == [True]
    assert "schedule 'refused': a worker will submit the tick: " in caplog.text


async def test_a_tick_that_an_unavailable_store_did_not_accept_is_submitted_when_the_store_is_available(
    agents: LocalAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, unavailable = agents.a2a.celery.tasks[NAME].submit, [StoreUnavailable("down"), StoreUnavailable("down")]
    results: Queue[dict[str, str]] = Queue()

    def submit_when_available(arguments: dict[str, Any], at_us: int) -> dict[str, str]:
        if unavailable:
            raise unavailable.pop()
        results.put(submit(arguments, at_us))
        return {}

    submit_with(agents.a2a, monkeypatch, submit_when_available)
    await asyncio.to_thread(send_tick, agents.a2a, "unavailable")
    [headers] = headers_in(agents.a2a, "unavailable")

    result = await asyncio.to_thread(results.get, timeout=LIMIT)

    task = await agents.seeds.task(result["task_id"])
    assert (task.metadata["a2a_celery/schedule"], result["outcome"]) == ("nightly", "started")
    assert (
        round(datetime.fromisoformat(task.metadata["a2a_celery/scheduledAt"]).timestamp() * 1e6) == headers[TICK_HEADER]
    )


class Retries:
    """`TickRetrier` with a store that is unavailable until `is_available` is set. `resume` ends a pause of its thread.

    Attributes:
        submitted: Times of the submitted ticks.
        clock: Clock of the ticks.
    """

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.is_available = False
        self.clock = ManualClock()
        self.retrier = TickRetrier(self._submit, self._pause, self.clock)
        self._is_paused = Event()
        self._resumed: Queue[None] = Queue()

    def add(self, *schedules: str) -> list[int]:
        """Add a tick of each schedule, and return the times of the ticks."""
        now = round(self.clock.time() * 1_000_000)
        ticks = [now + n for n in range(len(schedules))]
        for schedule, at_us in zip(schedules, ticks, strict=True):
            self.retrier.add({"schedule": schedule}, at_us)
        return ticks

    def resume(self) -> None:
        """Wait until the thread pauses, and end the pause."""
        self.wait_for_pause()
        self._is_paused.clear()
        self._resumed.put(None)

    def wait_for_pause(self) -> None:
        assert self._is_paused.wait(LIMIT)

    def wait_for_end(self) -> None:
        eventually(lambda: not self.retrier.is_retrying, what="the thread ends")

    def _submit(self, arguments: Mapping[str, Any], at_us: int) -> None:
        if arguments["schedule"] == "large":
            raise BlobsUnavailable("no object store")
        if not self.is_available:
            raise StoreUnavailable("down")
        if arguments["schedule"] == "refused":
            raise LimitExceededError("full")
        self.submitted.append(at_us)

    def _pause(self, seconds: float) -> None:
        assert seconds <= RETRY_DELAY
        self._is_paused.set()
        self._resumed.get(timeout=LIMIT)


def test_unsubmitted_ticks_are_submitted_in_their_order(caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries()
    first, _, last = retries.add("a", "refused", "b")
    retries.resume()
    retries.wait_for_pause()
    assert retries.submitted == []
    retries.is_available = True
    retries.resume()
    retries.wait_for_end()
    assert retries.submitted == [first, last]
    assert "schedule 'refused': this process does not submit the tick: full" in caplog.text

    [later] = retries.add("a")
    retries.resume()
    retries.wait_for_end()

    assert retries.submitted == [first, last, later]


def test_a_tick_is_retried_for_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries()
    retries.add("old")
    retries.clock.advance_wall_clock(RETRY_FOR.total_seconds() + 1)
    [newer] = retries.add("new")
    retries.resume()
    retries.wait_for_pause()
    retries.is_available = True
    retries.resume()
    retries.wait_for_end()

    assert retries.submitted == [newer]
    assert "schedule 'old': this process does not submit the tick: the store was not available in time" in caplog.text


def test_a_tick_without_its_object_store_does_not_delay_others() -> None:
    retries = Retries()
    retries.is_available = True
    _, small = retries.add("large", "small")
    retries.resume()
    eventually(lambda: retries.submitted == [small])
    retries.clock.advance_wall_clock(RETRY_FOR.total_seconds() + 1)
    retries.resume()

    retries.wait_for_end()


def test_the_number_of_retried_ticks_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries()
    _, *newest = retries.add(*["a"] * (MAX_UNSUBMITTED + 1))
    retries.is_available = True
    retries.resume()
    retries.wait_for_end()

    assert retries.submitted == newest
    assert "schedule 'a': this process does not submit the tick: too many" in caplog.text


def test_a_store_that_hangs_delays_the_scheduler_once(a2a: A2A, monkeypatch: pytest.MonkeyPatch) -> None:
    submissions, hang = [], Event()

    def submit(arguments: dict[str, Any], at_us: int) -> dict[str, str]:
        submissions.append(at_us)
        hang.wait()
        return {"outcome": "started", "task_id": "t"}

    submit_with(a2a, monkeypatch, submit)
    task = a2a.celery.tasks[NAME]
    task.submit_timeout = 0.01
    for _ in range(3):
        send_tick(a2a, "hanging")
    hang.set()
    task.submission.result(10)
    ticks = [headers[TICK_HEADER] for headers in headers_in(a2a, "hanging")]

    assert submissions[0] == ticks[0]
    eventually(lambda: set(submissions) == set(ticks), what="this process submits the ticks that it has sent")
    task.submit_timeout = SUBMIT_TIMEOUT
    assert send_tick(a2a, "hanging").result["outcome"] == "started"
    assert SUBMIT_TIMEOUT == 5, "docs/schedules.md states this time"


@pytest.mark.parametrize(
    "options",
    [{"expires": 60}, {"countdown": 1}, {"headers": {TICK_HEADER: AT}}],
    ids=["expires", "countdown", "retry"],
)
def test_a_tick_that_needs_its_message_is_sent_to_a_worker(
    a2a: A2A, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    submit_with(a2a, monkeypatch, lambda arguments, at_us: pytest.fail("the tick was submitted"))

    send_tick(a2a, "needed", **options)

    assert len(headers_in(a2a, "needed")) == 1


def test_the_message_carries_the_time_of_its_tick(a2a: A2A) -> None:
    a2a.schedule("nightly", crontab(hour=2, minute=0), "reporter", "report", queue="ticks")
    entry = a2a.celery.conf.beat_schedule["nightly"]
    task = a2a.celery.tasks[NAME]
    task.apply_async(entry["args"], entry["kwargs"], **entry["options"])
    task.apply_async(entry["args"], entry["kwargs"], **entry["options"], headers={TICK_HEADER: 7, "x": 1})
    with a2a.celery.connection() as connection:
        queue = connection.SimpleQueue("ticks")
        headers = [queue.get(timeout=5).headers for _ in range(2)]

    assert headers[0][TICK_HEADER] % 86_400_000_000 == 2 * 3_600_000_000
    assert (headers[1][TICK_HEADER], headers[1]["x"]) == (7, 1)
