"""Messages that the store pushes to the broker. A prepared message equals the bytes that kombu would write."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, Task, signals
from kombu import Exchange, Queue

from a2a_celery.dispatch import Call, Publisher, RunOptions
from a2a_celery.dispatch.connection import PublishingPool
from a2a_celery.errors import StoreUnavailable
from a2a_celery.features.publish_on_accept.message_preparer import CHECK_INTERVAL, MessagePreparer, MessagePusher
from a2a_celery.features.publish_on_accept.section import PushedMessage
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys, Operation, redis_url
from a2a_celery.store.tasks.commands import create_task
from tests.support.clocks import ManualClock
from tests.support.processes.fleet import RABBITMQ_URL
from tests.support.processes.restarts import MortalRedis, mortal_redis
from tests.support.processes.sentinels import MASTER_NAME, running_sentinels
from tests.support.store.seeds import ANN, request
from tests.support.waiting import eventually, eventually_async

SETTINGS = Settings(store_url="redis://127.0.0.1:1/0")

ATTEMPTS = 2
"""Number of attempts until a message is prepared. The first attempt checks the broker and declares the queue."""

EVENTS = "/1.celeryev/task.sent"
RANDOM = re.compile(rb'"(delivery_tag|reply_to)": "[0-9a-f-]{36}"')
"""Fields that kombu chooses at random for each message, or for each thread."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MortalRedis]:
    with mortal_redis(tmp_path) as server:
        yield server
        server.die()  # a graceful shutdown takes 0.1 s


@pytest.fixture
def celery(server: MortalRedis) -> Celery:
    return Celery("preparer", broker=server.broker_url, set_as_current=False)


@pytest.fixture
def broker(server: MortalRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url(server.broker_url)) as client:
        yield client


def prepare(pusher: MessagePusher, options: RunOptions = RunOptions(), run: int = 1) -> PushedMessage | None:  # noqa: B008
    return pusher.section_for_run("echo", RunRef("t", run), options)


def prepared_message(pusher: MessagePusher, options: RunOptions = RunOptions(), run: int = 1) -> PushedMessage:  # noqa: B008
    """Wait until the broker was checked and the queue was declared, and return a prepared message."""
    return eventually(lambda: prepare(pusher, options, run), what="a message is prepared")


def never_prepared(pusher: MessagePusher, options: RunOptions = RunOptions()) -> bool:  # noqa: B008
    """Return True if no message is prepared for a run with `options`."""
    return prepare(pusher, options) is None


def without_random_fields(message: bytes) -> bytes:
    return RANDOM.sub(rb'"\1": ""', message)


def event_in(message: bytes) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(b64decode(json.loads(message)["body"]))
    return {name: value for name, value in event.items() if name not in ("clock", "timestamp")}


def no_change(app: Celery) -> None:
    pass


def use_pickle(app: Celery) -> None:
    app.conf.update(task_serializer="pickle", accept_content=["pickle"])


def use_compression(app: Celery) -> None:
    app.conf.task_compression = "gzip"


def use_routes(app: Celery) -> None:
    app.conf.task_routes = {"a2a.*": {"queue": "agents", "priority": 4}}


def other_keys(app: Celery) -> None:
    app.conf.broker_transport_options = {"sep": ":", "priority_steps": [0, 5], "visibility_timeout": 10}


CALL = Call("tasks.resize", {"width": 3})


@pytest.mark.parametrize(
    ("configure", "agent", "options"),
    [
        (no_change, {}, RunOptions()),
        (no_change, {"priority": 7}, RunOptions()),
        (no_change, {"queue": "slow"}, RunOptions({"queue": "fast", "priority": 2})),
        (no_change, {}, RunOptions(not_after=datetime.now(UTC) + timedelta(days=1))),
        (no_change, {}, RunOptions(trace={"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"})),
        (no_change, {}, RunOptions(call=CALL)),
        (use_pickle, {}, RunOptions()),
        (use_compression, {}, RunOptions()),
        (use_routes, {}, RunOptions()),
        (other_keys, {"priority": 9}, RunOptions()),
    ],
)
def test_the_bytes_are_those_of_kombu(
    celery: Celery, broker: redis.Redis, configure: Callable[[Celery], None], agent: dict[str, Any], options: RunOptions
) -> None:
    configure(celery)
    publisher = Publisher(celery, {"echo": agent}, "another-fleet")

    message = prepared_message(MessagePusher(publisher, SETTINGS), options)
    publisher.publish("echo", RunRef("t", 1), options)

    assert broker.llen(message.queue) == 1
    assert without_random_fields(message.body) == without_random_fields(broker.lindex(message.queue, 0))  # type: ignore[arg-type]
    assert (message.server, message.database) == (broker.info("server")["run_id"], 1)
    assert (message.event_channel, message.event) == ("", b"")


def test_a_task_sent_event_is_that_of_celery(celery: Celery, broker: redis.Redis) -> None:
    celery.conf.task_send_sent_event = True
    publisher = Publisher(celery, {})
    with closing(broker.pubsub()) as events:
        events.subscribe(EVENTS)
        events.get_message(timeout=5)

        message = prepared_message(MessagePusher(publisher, SETTINGS))
        publisher.publish("echo", RunRef("t", 1))

        sent_event = eventually(
            lambda: events.get_message(ignore_subscribe_messages=True, timeout=1), what="an event is sent"
        )
    assert message.event_channel == EVENTS
    assert event_in(message.event) == event_in(sent_event["data"])
    assert without_random_fields(message.body) == without_random_fields(broker.lindex("celery", 0))  # type: ignore[arg-type]


def test_preparing_declares_the_queue_and_publishes_nothing(celery: Celery, broker: redis.Redis) -> None:
    pusher = MessagePusher(Publisher(celery, {"echo": {"queue": "slow"}}), SETTINGS)

    message = prepared_message(pusher)

    assert message.queue == "slow"
    assert {key for key in broker.keys("*") if not key.startswith(b"_kombu")} == set()  # type: ignore[union-attr]
    assert broker.exists("_kombu.binding.slow")


def test_the_number_of_declared_queues_is_bounded(celery: Celery) -> None:
    pusher = MessagePusher(Publisher(celery, {}), SETTINGS)
    pusher.preparer = MessagePreparer(celery, PublishingPool(celery), max_queues=1)
    first, second = RunOptions({"queue": "first"}), RunOptions({"queue": "second"})
    prepared_message(pusher, first)
    prepared_message(pusher, second)

    assert never_prepared(pusher, first), "until its queue is declared again"
    assert prepared_message(pusher, first).queue == "first"


def test_each_message_has_its_own_run(celery: Celery) -> None:
    pusher = MessagePusher(Publisher(celery, {}), SETTINGS)
    first, second = prepared_message(pusher, run=1), prepared_message(pusher, run=2)

    ids = [json.loads(message.body)["headers"]["id"] for message in (first, second)]

    assert ids == ["t.1", "t.2"]
    assert json.loads(first.body)["properties"] != json.loads(second.body)["properties"]


class CustomTask(Task):
    """Task that replaces `apply_async`."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)


def a_prefix(app: Celery) -> None:
    app.conf.broker_transport_options = {"global_keyprefix": "acme:"}


def a_router(app: Celery) -> None:
    app.conf.task_routes = (lambda name, args, kwargs, options, task=None, **_: None,)


def a_queue_that_expires(app: Celery) -> None:
    app.conf.task_queues = [Queue("celery", expires=60)]


def a_topic(app: Celery) -> None:
    app.conf.task_queues = [Queue("celery", Exchange("topic", type="topic"), routing_key="a.b")]


def a_broadcast(app: Celery) -> None:
    app.conf.task_queues = [Queue("celery", Exchange("fan", type="fanout"))]


def a_custom_task(app: Celery) -> None:
    @app.task(name=CALL.task, base=CustomTask, shared=False)
    def resize(width: int) -> int:
        return width


@pytest.mark.parametrize(
    ("configure", "options"),
    [
        (a_prefix, RunOptions()),
        (a_router, RunOptions()),
        (a_queue_that_expires, RunOptions()),
        (a_topic, RunOptions()),
        (a_broadcast, RunOptions()),
        (a_custom_task, RunOptions(call=CALL)),
        (no_change, RunOptions({"exchange": "exchange", "routing_key": "key"})),
        (no_change, RunOptions(not_before=datetime.now(UTC) + timedelta(seconds=5))),
        (no_change, RunOptions(call=Call("t", {"text": "x" * (1 << 17)}))),
    ],
)
def test_what_a_script_cannot_push_is_not_prepared(
    celery: Celery, configure: Callable[[Celery], None], options: RunOptions
) -> None:
    configure(celery)
    pusher = MessagePusher(Publisher(celery, {}), SETTINGS)

    for _ in range(ATTEMPTS):
        assert never_prepared(pusher, options)
        eventually(lambda: not pusher.preparer.is_checking, what="the broker was checked")


def test_a_message_is_prepared_after_a_check_of_the_broker_and_the_declaration_of_its_queue(celery: Celery) -> None:
    pusher = MessagePusher(Publisher(celery, {}), SETTINGS)

    for _ in range(ATTEMPTS - 1):
        assert never_prepared(pusher)
        eventually(lambda: not pusher.preparer.is_checking, what="the broker was checked")

    assert not never_prepared(pusher)


@pytest.mark.parametrize("name", ["before_task_publish", "after_task_publish"])
def test_receivers_of_celerys_signals_do_not_receive_a_message_that_may_be_refused(celery: Celery, name: str) -> None:
    publisher, messages = Publisher(celery, {}), []
    pusher = MessagePusher(publisher, SETTINGS)
    prepared_message(pusher)

    def receive(headers: Any = None, **_: Any) -> None:
        messages.append(headers)

    signal = getattr(signals, name)
    signal.connect(receive)
    try:
        assert never_prepared(pusher)
        assert messages == []
        publisher.publish("echo", RunRef("t", 1))
        assert len(messages) == 1
    finally:
        signal.disconnect(receive)

    assert prepare(pusher) is not None


@pytest.mark.parametrize("url", [RABBITMQ_URL, "memory://", "redis://127.0.0.1:1/0"])
def test_another_broker_or_an_unavailable_one_prepares_nothing(url: str) -> None:
    pusher = MessagePusher(Publisher(Celery("elsewhere", broker=url, set_as_current=False), {}), SETTINGS)

    assert never_prepared(pusher)
    eventually(lambda: not pusher.preparer.is_checking, what="the broker was checked")
    assert never_prepared(pusher)


def test_a_broker_that_restarts_is_another_server(server: MortalRedis, celery: Celery) -> None:
    clock = ManualClock()
    pusher = MessagePusher(Publisher(celery, {}), SETTINGS, clock)
    message_before = prepared_message(pusher)
    server.die()
    server.start()
    pusher.run_not_published()
    assert never_prepared(pusher)
    clock.advance(CHECK_INTERVAL)

    assert prepared_message(pusher).server != message_before.server


def test_a_suspended_preparer_makes_no_message(celery: Celery, broker: redis.Redis) -> None:
    clock = ManualClock()
    messages: list[str] = []

    def publish(producer: Any) -> None:
        messages.append("message")
        celery.send_task("a2a.echo", producer=producer)

    preparer = MessagePreparer(celery, PublishingPool(celery), clock)
    eventually(lambda: preparer.prepare(RunOptions(), publish), what="a message is prepared")
    messages.clear()

    preparer.suspend()
    results = [preparer.prepare(RunOptions(), publish) for _ in range(3)]

    assert (results, messages) == ([None] * 3, [])
    clock.advance(CHECK_INTERVAL)
    eventually(lambda: preparer.prepare(RunOptions(), publish), what="another is prepared")


@pytest.mark.merge
async def test_a_failover_between_preparing_and_accepting_pushes_nothing(tmp_path: Path) -> None:
    with running_sentinels(tmp_path) as group:
        app = Celery("sentinels", broker=group.broker_url(), set_as_current=False)
        app.conf.broker_transport_options = {"master_name": MASTER_NAME}
        settings = Settings(store_url=group.store_url)
        clock, keys = ManualClock(), Keys("test")
        store = AsyncStore(group.store_url)
        pusher = MessagePusher(Publisher(app, {}), settings, clock)
        first = prepared_message(pusher)
        group.wait_for_failover(group.kill_primary())

        create = create_task(
            keys, ANN, "t", "c", request(task_id="t", context_id="c"), caller=b"{}", retention=60, sections=[first]
        )
        result = await eventually_async(lambda: run_or_none(store, create), what="the new primary answers")

        assert not result.is_published
        pusher.run_not_published()
        clock.advance(CHECK_INTERVAL)
        second = prepared_message(pusher)._replace(run="u.1")
        assert second.server != first.server
        create = create_task(
            keys, ANN, "u", "c", request(task_id="u", context_id="c"), caller=b"{}", retention=60, sections=[second]
        )
        assert (await store.run(create)).is_published  # type: ignore[union-attr]
        await store.aclose()
        with group.client(group.primary()) as client:
            client.select(1)
            assert client.lrange("celery", 0, -1) == [second.body]


async def run_or_none(store: AsyncStore, operation: Operation[Any]) -> Any:
    try:
        return await store.run(operation)
    except StoreUnavailable:
        return None
