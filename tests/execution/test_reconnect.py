"""Reconnection of workers whose broker fails while they start, or does not receive an acknowledgement in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from amqp import Channel
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed
from celery import Celery, bootsteps
from celery.exceptions import WorkerShutdown
from kombu import Queue
from kombu.exceptions import OperationalError

from a2a_celery.execution.celery import reconnect
from tests.conftest import require_broker
from tests.support.processes.fleet import RABBITMQ_URL


@pytest.fixture
def app() -> Celery:
    """App whose workers find an unresponsive broker at their first start."""
    app = Celery(broker="memory://", backend="cache+memory://", set_as_current=False)
    app.steps["consumer"].add(UnansweredStep)
    UnansweredStep.starts = 0
    return app


class UnansweredStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Bootstep that requests a reply from the broker, like mingle. The first request times out. The second start of the
    step stops the worker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    starts = 0

    def start(self, parent: Any) -> None:
        UnansweredStep.starts += 1
        raise OperationalError("timed out") if UnansweredStep.starts == 1 else WorkerShutdown(0)


def exit_code(app: Celery, *, without_mingle: bool = True) -> int:
    """Return the exit code of a worker of `app`. By default, the worker does not wait for replies of other workers."""
    worker = app.WorkController(pool="solo", concurrency=1, without_mingle=without_mingle)
    worker.start()
    return int(worker.exitcode)


@pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")
def test_a_worker_that_starts_while_its_broker_does_not_answer_connects_again(app: Celery) -> None:
    reconnect.connect(app)

    assert (exit_code(app), UnansweredStep.starts) == (0, 2)


def test_celery_still_ends_such_a_worker(app: Celery) -> None:
    """If this test fails, Celery has fixed the problem, and `reconnect.ReconnectStep` can be removed."""
    assert (exit_code(app), UnansweredStep.starts) == (1, 1)


REPLY_QUEUE = "NOT_FOUND - no queue '0b5c.reply.celery.pidbox' in vhost '/'"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PreconditionFailed("PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out"), OperationalError),
        (PreconditionFailed("PRECONDITION_FAILED - inequivalent arg 'durable' for queue"), PreconditionFailed),
        (NotFound(REPLY_QUEUE, (60, 20)), OperationalError),
        (NotFound("NOT_FOUND - no queue 'own' in vhost '/'", (60, 20)), NotFound),
        (NotFound("NOT_FOUND - no exchange 'other' in vhost '/'", (50, 20)), NotFound),
    ],
    ids=["late acknowledgement", "other precondition", "lost queue", "queue that is not declared", "exchange"],
)
def test_only_failures_of_the_broker_are_a_lost_connection(
    app: Celery, error: AMQPError, expected: type[Exception]
) -> None:
    def start(consumer: Any) -> None:
        raise error

    app.conf.task_queues = [Queue("own", no_declare=True)]
    consumer = SimpleNamespace(connection_errors=(), blueprint=SimpleNamespace(start=start), app=app)
    reconnect.ReconnectStep(consumer)

    with pytest.raises(expected):
        consumer.blueprint.start(consumer)


@pytest.fixture
def rabbitmq_app(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """App on RabbitMQ, with separate queues. RabbitMQ deletes the reply queue of mingle between its declaration and its
    use, once."""
    require_broker("rabbitmq")
    name = f"test-{uuid4()}"
    app.conf.update(broker_url=RABBITMQ_URL, control_exchange=name, event_exchange=name)
    app.conf.task_queues = [Queue(name, expires=60)]
    consume, lost_queues = Channel.basic_consume, []

    def consume_too_late(channel: Channel, queue: str, *args: Any, **options: Any) -> Any:
        if queue.endswith(".pidbox") and not lost_queues:
            lost_queues.append(queue)
            channel.connection.channel().queue_delete(queue)
        return consume(channel, queue, *args, **options)

    monkeypatch.setattr(Channel, "basic_consume", consume_too_late)
    return app


@pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")
def test_a_worker_whose_reply_queue_is_lost_connects_again(rabbitmq_app: Celery) -> None:
    UnansweredStep.starts = 1  # the next start of the step stops the worker
    reconnect.connect(rabbitmq_app)

    assert (exit_code(rabbitmq_app, without_mingle=False), UnansweredStep.starts) == (0, 2)


def test_celery_still_ends_a_worker_whose_reply_queue_is_lost(rabbitmq_app: Celery) -> None:
    """If this test fails, Celery has fixed celery/celery#4618, and `reconnect` need not handle lost queues."""
    UnansweredStep.starts = 1

    assert (exit_code(rabbitmq_app, without_mingle=False), UnansweredStep.starts) == (1, 1)
