"""Publishing of runs. Each run is published once and independently of others. Runs share a round trip if the transport
allows it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from base64 import b64decode
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import kombu.serialization
import pytest
import redis
from celery import Celery, Task
from celery.signals import before_task_publish
from kombu import Connection, Queue
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from a2a_celery.agents import Agent
from a2a_celery.dispatch import Call, Publisher, RunOptions, queue_of
from a2a_celery.dispatch.connection import PublishingPool, PublishingThreads
from a2a_celery.dispatch.queues import BrokerQueues
from a2a_celery.errors import BrokerUnavailable, PublicationFailed, RunNotAccepted
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.store import redis_url
from tests.support.processes.fleet import RABBITMQ_URL
from tests.support.processes.restarts import MortalRedis
from tests.support.waiting import LIMIT, eventually_async

RUNS = [("echo", RunRef(f"t{number}", 1)) for number in range(100)]


@pytest.fixture
def celery(server: MortalRedis) -> Celery:
    return Celery("publisher", broker=server.broker_url)


def in_queue(server: MortalRedis, queue: str = "celery") -> list[str]:
    """Return the ids of the waiting Celery tasks, oldest first."""
    with redis.Redis.from_url(redis_url(server.broker_url)) as broker:
        return [json.loads(message)["headers"]["id"] for message in reversed(broker.lrange(queue, 0, -1))]


async def publish_all(publisher: Publisher) -> list[BaseException | None]:
    return await asyncio.gather(*(publisher.publish_async(*run) for run in RUNS), return_exceptions=True)


async def test_runs_at_once_arrive_once_each(server: MortalRedis, celery: Celery) -> None:
    with redis.Redis.from_url(redis_url(server.broker_url)) as broker:
        assert await publish_all(Publisher(celery, {})) == [None] * len(RUNS)

        assert sorted(in_queue(server)) == sorted(ref.name for _, ref in RUNS)
        pushes = broker.info("commandstats")["cmdstat_lpush"]["calls"]
        assert pushes == len(RUNS)


async def test_an_unpublishable_run_does_not_prevent_others(server: MortalRedis, celery: Celery) -> None:
    publisher = Publisher(celery, {"odd": {"compression": "no such thing"}})

    async with asyncio.TaskGroup() as group:
        unpublishable = group.create_task(refusal_of(publisher, "odd"))
        for run in RUNS:
            group.create_task(publisher.publish_async(*run))

    assert "no such thing" in unpublishable.result()
    assert len(in_queue(server)) == len(RUNS)


async def test_only_the_span_of_an_unpublished_run_has_failed(celery: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    publisher = Publisher(celery, {"odd": {"compression": "no such thing"}})

    async with asyncio.TaskGroup() as group:
        group.create_task(refusal_of(publisher, "odd"))
        group.create_task(publisher.publish_async(*RUNS[0]))

    failed = {span.name: not span.status.is_ok for span in exporter.get_finished_spans()}
    assert failed == {"publish a2a.odd": True, "publish a2a.echo": False}


async def test_a_queue_that_refuses_messages_is_no_outage_of_the_broker(server: MortalRedis, celery: Celery) -> None:
    with redis.Redis.from_url(redis_url(server.broker_url)) as broker:
        broker.set("wrong", "is no queue")
    publisher = Publisher(celery, {"wrong": {"queue": "wrong"}})

    with pytest.raises(RunNotAccepted) as refusal:
        await publisher.publish_async("wrong", RunRef("t", 1))
    assert refusal.type is RunNotAccepted
    await publisher.publish_async(*RUNS[0])

    assert in_queue(server) == ["t0.1"]


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_a_full_queue_of_rabbitmq_is_no_outage_of_the_broker(broker: str) -> None:
    app = Celery("publisher", broker=RABBITMQ_URL)
    queue_arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    app.conf.task_queues = [Queue(f"test-{uuid4().hex}", queue_arguments=queue_arguments)]
    app.conf.task_default_queue = queue = app.conf.task_queues[0].name
    with app.connection_for_write() as connection:
        publisher = Publisher(app, {})
        await publisher.publish_async(*RUNS[0])

        with pytest.raises(
            RunNotAccepted, match=r"the broker refused the message \(nack\): is the queue full\?"
        ) as refusal:
            await publisher.publish_async(*RUNS[1])
        assert refusal.type is RunNotAccepted

        connection.default_channel.queue_delete(queue)


async def refusal_of(publisher: Publisher, agent: str) -> str:
    with pytest.raises(BrokerUnavailable) as exc_info:
        await publisher.publish_async(agent, RunRef("t", 1))
    return str(exc_info.value)


async def test_a_stale_connection_is_replaced(server: MortalRedis, celery: Celery) -> None:
    publisher = Publisher(celery, {})
    assert await publish_all(publisher) == [None] * len(RUNS)
    server.die()
    server.start()

    assert await publish_all(publisher) == [None] * len(RUNS)

    assert set(in_queue(server)) >= {ref.name for _, ref in RUNS}


async def test_an_unavailable_broker_refuses_all_runs(server: MortalRedis, celery: Celery) -> None:
    publisher = Publisher(celery, {})
    await publisher.publish_async(*RUNS[0])
    server.die()

    assert {type(error) for error in await publish_all(publisher)} == {BrokerUnavailable}


async def test_runs_go_where_their_own_options_say(server: MortalRedis, celery: Celery) -> None:
    publisher = Publisher(celery, {"echo": {"queue": "slow"}})
    fast = RunOptions(celery={"queue": "fast"})

    await asyncio.gather(
        publisher.publish_async("echo", RunRef("a", 1)), publisher.publish_async("echo", RunRef("b", 1), fast)
    )

    assert in_queue(server, "slow") == ["a.1"]
    assert in_queue(server, "fast") == ["b.1"]


@pytest.mark.parametrize("is_canceled", [True, False])
async def test_celery_events_of_a_lost_run_describe_its_task(
    server: MortalRedis, celery: Celery, is_canceled: bool
) -> None:
    """The killed worker may not have sent its earlier events, or no listener may have received them."""
    publisher = Publisher(celery, {})
    cluster_state = celery.events.State()
    with redis.Redis.from_url(redis_url(server.broker_url)) as broker, broker.pubsub() as pubsub:
        pubsub.psubscribe("*celeryev*")
        pubsub.get_message(timeout=10)
        publisher.lost_soon("echo", "t", 2, "celery@gone", canceled=is_canceled)
        publisher.lost_soon("resize", "p", 1, "celery@gone", canceled=is_canceled, call="tasks.resize")
        for _ in range(2):
            cluster_state.event(await asyncio.to_thread(next_event, pubsub))

    state = "REVOKED" if is_canceled else "FAILURE"
    events = {
        task.uuid: (task.name, task.args, task.kwargs, task.state, task.worker.hostname)
        for task in cluster_state.tasks.values()
    }
    assert events == {
        "t.2": ("a2a.echo", "('t', 2)", "{}", state, "celery@gone"),
        "p.1": ("tasks.resize", "()", "(stored in the A2A task)", state, "celery@gone"),
    }


def next_event(pubsub: redis.client.PubSub) -> dict[str, Any]:
    """Return the next Celery event, in the form in which Celery's receiver passes it to listeners."""
    until = monotonic() + 30
    while monotonic() < until:
        text = pubsub.get_message(timeout=1)
        if text is not None and text["type"] == "pmessage":
            event: dict[str, Any] = json.loads(b64decode(json.loads(text["data"])["body"]))
            return event | {"local_received": event["timestamp"]}
    raise AssertionError("no event came")


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_runs_at_once_arrive_once_each_over_rabbitmq(broker: str) -> None:
    app = Celery("publisher", broker=RABBITMQ_URL)
    app.conf.task_default_queue = queue = f"test-{uuid4().hex}"
    with app.connection_for_write() as connection:
        assert await publish_all(Publisher(app, {})) == [None] * len(RUNS)

        messages = []
        while (message := connection.default_channel.basic_get(queue, no_ack=True)) is not None:
            messages.append(message.headers["id"])
        connection.default_channel.queue_delete(queue)
    assert sorted(messages) == sorted(ref.name for _, ref in RUNS)


async def test_waiting_runs_are_published_in_one_round_trip() -> None:
    sizes: list[int] = []
    has_begun, may_continue = threading.Event(), threading.Event()

    def publish(batch: list[int]) -> list[Exception | None]:
        sizes.append(len(batch))
        has_begun.set()
        may_continue.wait()
        return [None for _ in batch]

    threads = PublishingThreads(publish, lambda: True)
    waiting = [threads.publish(number) for number in range(70)]
    await asyncio.to_thread(has_begun.wait)
    may_continue.set()
    await asyncio.gather(*waiting)

    assert sum(sizes) == 70
    assert len(sizes) <= 3  # the first alone or with others, then at most 64


async def test_a_slow_broker_gets_so_much_in_the_background_and_no_more(
    server: MortalRedis, celery: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(celery, {}, max_backlog=3)
    ids: list[str] = []

    for number in range(5):  # in one iteration of the event loop, so that no run is published yet
        publisher.publish_soon("echo", RunRef(f"t{number}", 1), RunOptions(), partial(ids.append, f"t{number}.1"))
    publisher.revoke_soon(["c.1", "c.2"])
    publisher.lost_soon("echo", "l", 1, "celery@gone", canceled=False)

    async def waiting_runs_are_published() -> bool:
        return len(ids) == 3

    await eventually_async(waiting_runs_are_published, what="the broker accepts the waiting runs")

    assert [message for message in caplog.messages if "too slow" in message] == [
        "the broker is too slow: a watcher will publish run t3.1",
        "the broker is too slow: a watcher will publish run t4.1",
        "the broker is too slow: no revoke was sent for c.1, c.2",
        "the broker is too slow: no Celery event was sent for the lost run l.1",
    ]
    assert sorted(in_queue(server)) == sorted(ids) == ["t0.1", "t1.1", "t2.1"]


async def test_what_is_under_way_is_finished(server: MortalRedis, celery: Celery) -> None:
    publisher = Publisher(celery, {})
    ids: list[str] = []
    for number in range(3):
        publisher.publish_soon("echo", RunRef(f"t{number}", 1), RunOptions(), partial(ids.append, f"t{number}.1"))

    await publisher.finish(limit=LIMIT)

    assert sorted(in_queue(server)) == sorted(ids) == ["t0.1", "t1.1", "t2.1"]


async def test_revokes_that_wait_are_sent_together_and_are_bounded(
    server: MortalRedis, celery: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(celery, {}, max_backlog=3)
    with redis.Redis.from_url(redis_url(server.broker_url)) as broker, broker.pubsub() as workers:
        workers.psubscribe("*celery.pidbox*")
        for ids in (["a.1"], ["b.1", "b.2"], ["c.1"], ["d.1"]):  # in one iteration of the event loop
            publisher.revoke_soon(ids)
        await publisher.finish(limit=LIMIT)
        publisher.revoke_soon(["e.1"])
        await publisher.finish(limit=LIMIT)

        received: list[list[str]] = []

        async def all_broadcasts() -> bool:
            message = workers.get_message(ignore_subscribe_messages=True)
            if message is not None:
                command = json.loads(b64decode(json.loads(message["data"])["body"]))
                received.append(command["arguments"]["task_id"])
            return len(received) == 3

        await eventually_async(all_broadcasts, what="the broadcasts arrive")
    assert received == [["a.1"], ["b.1", "b.2", "c.1"], ["e.1"]]
    assert [text for text in caplog.messages if "too slow" in text] == [
        "the broker is too slow: no revoke was sent for d.1"
    ]


@pytest.mark.parametrize("options", [{}, {"terminate": True}])
async def test_a_revoke_in_the_background_reaches_the_workers(
    server: MortalRedis, celery: Celery, options: dict[str, bool]
) -> None:
    with redis.Redis.from_url(redis_url(server.broker_url)) as broker, broker.pubsub() as workers:
        workers.psubscribe("*celery.pidbox*")

        Publisher(celery, {}).revoke_soon(["c.1", "c.2"], **options)

        async def broadcast() -> bytes | None:
            message = workers.get_message(ignore_subscribe_messages=True)
            return None if message is None else bytes(message["data"])

        received = json.loads(await eventually_async(broadcast, what="the broadcast arrives"))
    command = json.loads(b64decode(received["body"]))
    assert command["method"] == "revoke"
    arguments = {"task_id": ["c.1", "c.2"], "terminate": False, "signal": "SIGTERM"}
    assert command["arguments"] == arguments | options


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
async def test_a_queue_reports_whether_messages_wait_in_it(broker: str, server: MortalRedis) -> None:
    app = Celery("publisher", broker=RABBITMQ_URL if broker == "rabbitmq" else server.broker_url)
    queue, missing_queue = f"test-{uuid4().hex}", f"test-{uuid4().hex}"
    publisher = Publisher(app, {"far": {"queue": queue}})
    queues = publisher.queues
    assert queues.queue_of("far", RunOptions()) == queue

    assert await queues.is_empty(queue)
    await publisher.publish_async("far", RunRef("t", 1))
    assert not await queues.is_empty(queue)
    assert await queues.is_empty(missing_queue)
    with app.connection_for_write() as connection, pytest.raises(connection.channel_errors):
        connection.default_channel.queue_declare(missing_queue, passive=True)  # the question does not create the queue
    with app.connection_for_write() as connection:
        connection.default_channel.queue_purge(queue)
    assert await queues.is_empty(queue)
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(queue)


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
async def test_a_queue_reports_its_messages_over_a_new_connection_if_the_old_one_is_closed(
    broker: str, server: MortalRedis
) -> None:
    app = Celery("publisher", broker=RABBITMQ_URL if broker == "rabbitmq" else server.broker_url)
    pool = PublishingPool(app)
    queues = BrokerQueues(app, {}, pool)
    assert await queues.is_empty("nowhere")
    with pool.acquire() as producer:
        producer.connection.close()

    assert await queues.is_empty("nowhere")


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
async def test_a_queue_that_does_not_report_its_length_is_no_outage_of_the_broker(
    broker: str, server: MortalRedis
) -> None:
    app, name = Celery("publisher", broker=RABBITMQ_URL if broker == "rabbitmq" else server.broker_url), uuid4().hex
    queues = Publisher(app, {}).queues
    with app.connection_for_write() as other:
        if broker == "rabbitmq":
            other.default_channel.queue_declare(name, exclusive=True)
        else:
            other.default_channel.client.set(name, "is no queue")

        with pytest.raises(RunNotAccepted):
            await queues.is_empty(name)
        assert await queues.is_empty("nowhere")


class AlreadyQueuedError(Exception):
    """Exception of a task class that allows one call at a time, like those of celery-once and celery-singleton."""


class Singleton(Task):
    def apply_async(self, *args: Any, **options: Any) -> Any:
        raise AlreadyQueuedError


def failing_router(name: str, *_: Any, **__: Any) -> None:
    if name == "a2a.odd":
        raise FileNotFoundError("routes.json")  # an OSError, like those of connections


def do_nothing() -> None:
    pass


def fail_to_encode(_: Any) -> str:
    raise RuntimeError("no key")


@pytest.mark.parametrize(
    ("kind", "exception"),
    [
        ("task", "AlreadyQueuedError()"),
        ("router", "FileNotFoundError('routes.json')"),
        ("serializer", "no key"),
        ("missing serializer", "SerializerNotInstalled"),
    ],
)
async def test_an_exception_of_the_app_is_no_refusal_of_the_broker(
    server: MortalRedis, celery: Celery, kind: str, exception: str
) -> None:
    options = RunOptions()
    match kind:
        case "task":
            celery.task(do_nothing, name="single", base=Singleton, shared=False)
            options = RunOptions(call=Call("single", {}))
        case "router":
            celery.conf.task_routes = (failing_router,)
        case "serializer":
            kombu.serialization.register("test-fails", fail_to_encode, str, "application/x-test-fails")
            celery.conf.task_serializer = "test-fails"
        case "missing serializer":
            celery.conf.task_serializer = "no-such-serializer"
    publisher = Publisher(celery, {})

    with pytest.raises(PublicationFailed, match=re.escape(exception)):
        await publisher.publish_async("odd", RunRef("t", 1), options)

    if "serializer" not in kind:
        await publisher.publish_async(*RUNS[0])
        assert in_queue(server) == ["t0.1"]


async def test_an_exception_of_a_publish_receiver_is_ignored_as_by_celery(server: MortalRedis, celery: Celery) -> None:
    def raise_always(**_: Any) -> None:
        raise AlreadyQueuedError

    before_task_publish.connect(raise_always)
    try:
        await Publisher(celery, {}).publish_async(*RUNS[0])
    finally:
        before_task_publish.disconnect(raise_always)

    assert in_queue(server) == ["t0.1"]


@pytest.mark.filterwarnings("ignore:task_always_eager has no effect on send_task")
async def test_an_eager_app_publishes_an_exposed_task_instead_of_calling_it(
    server: MortalRedis, celery: Celery
) -> None:
    calls = []
    celery.conf.task_always_eager = True

    @celery.task(name="exposed", shared=False)
    def append_text(text: str) -> None:
        calls.append(text)

    call = RunOptions(call=Call("exposed", {"text": "hello"}))

    await Publisher(celery, {}).publish_async("exposed", RunRef("t", 1), call)

    assert in_queue(server) == ["t.1"]
    assert calls == []


@pytest.mark.filterwarnings("ignore:(?s).*'queue' task attribute")
def test_the_queue_of_a_run_is_the_one_it_is_published_to() -> None:
    app = Celery("publisher", set_as_current=False)
    app.conf.task_routes = {"a2a.routed": {"queue": "by-routes"}, "plain": {"queue": "by-routes"}}

    @app.task(name="own", queue="of-the-task", shared=False)
    def own() -> None: ...

    queues = Publisher(app, {"agent": {"queue": "of-the-agent"}, "fan": {"exchange": "x", "routing_key": "k"}}).queues

    assert queues.queue_of("any", RunOptions()) == "celery"
    assert queues.queue_of("routed", RunOptions()) == "by-routes"
    assert queues.queue_of("agent", RunOptions()) == "of-the-agent"
    assert queues.queue_of("agent", RunOptions(celery={"queue": "of-the-run"})) == "of-the-run"
    assert queues.queue_of("x", RunOptions(call=Call("plain", {}))) == "by-routes"
    assert queues.queue_of("x", RunOptions(call=Call("own", {}))) == "of-the-task"
    assert queues.queue_of("fan", RunOptions()) is None


@pytest.mark.filterwarnings("ignore:(?s).*'queue' task attribute")
def test_the_queue_of_an_agent_is_that_of_its_runs() -> None:
    app = Celery("publisher", set_as_current=False)
    app.conf.task_routes = {"a2a.routed": {"queue": "by-routes"}}

    @app.task(name="own", queue="of-the-task", shared=False)
    def own() -> None: ...

    def queue(name: str, code: Any = None, **options: str) -> str | None:
        return queue_of(app, Agent(name, "card", "function" if code is None else "task", code, options=options))

    assert queue("any") == "celery"
    assert queue("routed") == "by-routes"
    assert queue("agent", queue="of-the-agent") == "of-the-agent"
    assert queue("x", own) == "of-the-task"
    assert queue("x", own, queue="of-the-agent") == "of-the-agent"
    assert queue("fan", exchange="x", routing_key="k") is None


def test_the_priority_of_a_run_is_its_own_or_else_its_agent_s() -> None:
    queues = Publisher(Celery("publisher", set_as_current=False), {"agent": {"priority": 3}}).queues

    assert queues.priority_of("any", RunOptions()) is None
    assert queues.priority_of("agent", RunOptions()) == 3
    assert queues.priority_of("agent", RunOptions(celery={"priority": 0})) == 0


async def test_the_queues_of_an_unavailable_broker_are_unknown(
    server: MortalRedis, celery: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    ensure_connection = Connection.ensure_connection

    def record_pause(connection: Connection, *, interval_start: float = 2, **options: Any) -> Any:
        pauses.append(interval_start)
        return ensure_connection(connection, interval_start=interval_start, **options)

    monkeypatch.setattr(Connection, "ensure_connection", record_pause)
    queues = Publisher(celery, {}).queues
    server.die()

    with pytest.raises(BrokerUnavailable):
        await queues.is_empty("celery")

    assert max(pauses) < 1, "the thread must soon be available for other queues"
