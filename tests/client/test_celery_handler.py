"""Notifications that become Celery tasks: the response, the published message, and the notification read from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread

import httpx
import pytest
from a2a.types import Artifact, Message, Part, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState
from celery import Celery
from kombu.exceptions import OperationalError

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.client.notifications import Notification
from a2a_celery.client.receiver import BROKER_THREADS, NotificationPublisher, celery_handler, receiver_app
from tests.support.processes.serving import serve_app
from tests.support.receivers.webhooks import SECRET, post, status_event
from tests.support.waiting import eventually_async

EVENTS = [
    StreamResponse(task=Task(id="t", context_id="c")),
    status_event("t", TaskState.TASK_STATE_FAILED),
    StreamResponse(artifact_update=TaskArtifactUpdateEvent(task_id="t", artifact=Artifact(parts=[Part(text="x")]))),
    StreamResponse(message=Message(message_id="m", task_id="t", parts=[Part(raw=b"\0\1")])),
]


@pytest.mark.parametrize("response", EVENTS, ids=lambda response: response.WhichOneof("payload"))
def test_a_notification_is_the_same_as_json(response: StreamResponse) -> None:
    event = getattr(response, response.WhichOneof("payload"))
    notification = Notification("l_7-8", "l", 7, 1_700_000_000, event, 8)

    assert Notification.from_dict(notification.to_dict()) == notification


@pytest.mark.parametrize("data", [{}, {"event": {}}, Notification("l_1", "l", 1, 1, Task()).to_dict() | {"event": []}])
def test_an_invalid_notification_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a notification"):
        Notification.from_dict(data)


async def test_each_event_is_published_once_and_in_order(redis_server: EmbeddedRedis) -> None:
    app = Celery("receivers", broker=redis_server.broker_url, set_as_current=False)

    @app.task(shared=False)
    def on_event(notification: dict[str, object]) -> None:
        """Do nothing, because no worker runs in this test."""

    receiver = receiver_app(celery_handler(on_event, queue="a2a-events"), secrets=[SECRET])
    async with serve_app(receiver) as url, httpx.AsyncClient() as http:
        posts = [post(number, event=status_event(f"t{number}")) for number in (1, 2, 2, 3)]
        statuses = [(await http.post(url, headers=item.headers, content=item.body)).status_code for item in posts]

    with app.connection_for_read() as connection, connection.SimpleQueue("a2a-events") as queue:
        messages = [queue.get(timeout=5) for _ in range(queue.qsize())]
        for message in messages:
            message.ack()
    app.close()
    arguments = [Notification.from_dict(message.payload[1]["notification"]) for message in messages]
    assert statuses == [204] * 4
    assert [item.task_id for item in arguments] == ["t1", "t2", "t3"]
    assert [message.headers["id"] for message in messages] == [item.id for item in arguments]


async def test_what_the_broker_does_not_take_comes_again() -> None:
    class UnreachableBroker:
        tries = 0

        def apply_async(self, **_: object) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OperationalError("the broker is away")

    task = UnreachableBroker()
    async with serve_app(receiver_app(celery_handler(task), secrets=[SECRET])) as url, httpx.AsyncClient() as http:
        signed_post = post()
        statuses = [
            (await http.post(url, headers=signed_post.headers, content=signed_post.body)).status_code for _ in range(3)
        ]

    assert statuses == [500, 204, 204]
    assert task.tries == 2, "the third was a repeat"


class HungBroker:
    """Task whose broker does not respond before `responds` is set."""

    def __init__(self) -> None:
        self.responds = Event()
        self.threads: list[Thread] = []

    def apply_async(self, **_: object) -> None:
        self.threads.append(current_thread())
        self.responds.wait()


@contextmanager
def hung_broker() -> Iterator[HungBroker]:
    broker = HungBroker()
    try:
        yield broker
    finally:
        broker.responds.set()


async def test_a_broker_that_does_not_respond_blocks_only_daemon_threads() -> None:
    notification = Notification("l_1", "l", 1, 1, Task())
    with hung_broker() as task:
        handler = celery_handler(task)
        calls = [asyncio.ensure_future(handler(notification)) for _ in range(BROKER_THREADS + 1)]
        await eventually_async(lambda: asyncio.sleep(0, len(task.threads) == BROKER_THREADS))
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert all(thread.daemon for thread in task.threads), "the process does not wait for them when it exits"

        task.responds.set()
        await handler(notification)

    assert len(task.threads) == BROKER_THREADS + 1, "the call that waited for a thread is not made after its error"


async def test_the_broker_must_accept_a_notification_in_time() -> None:
    with hung_broker() as task, pytest.raises(TimeoutError):
        await NotificationPublisher(task, {}, timeout=0.01)(Notification("l_1", "l", 1, 1, Task()))
