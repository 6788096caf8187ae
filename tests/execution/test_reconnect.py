"""Reconnection of workers that start while their broker does not respond."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import PreconditionFailed
from celery import Celery, bootsteps
from celery.exceptions import WorkerShutdown
from kombu.exceptions import OperationalError

from a2a_celery.execution.celery import reconnect


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


def exit_code(app: Celery) -> int:
    """Return the exit code of a worker of `app`. The worker does not wait for replies of other workers."""
    worker = app.WorkController(pool="solo", concurrency=1, without_mingle=True)
    worker.start()
    return int(worker.exitcode)


@pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")
def test_a_worker_that_starts_while_its_broker_does_not_answer_connects_again(app: Celery) -> None:
    reconnect.connect(app)

    assert (exit_code(app), UnansweredStep.starts) == (0, 2)


def test_celery_still_ends_such_a_worker(app: Celery) -> None:
    """If this test fails, Celery has fixed the problem, and `reconnect.ReconnectStep` can be removed."""
    assert (exit_code(app), UnansweredStep.starts) == (1, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out", OperationalError),
        ("PRECONDITION_FAILED - inequivalent arg 'durable' for queue", PreconditionFailed),
    ],
)
def test_only_the_timeout_of_an_acknowledgement_is_a_lost_connection(text: str, expected: type[Exception]) -> None:
    def loop() -> None:
        raise PreconditionFailed(text)

    consumer = SimpleNamespace(connection_errors=(), loop=loop)
    reconnect.ReconnectStep(consumer)

    with pytest.raises(expected):
        consumer.loop()
