"""Draining of workers: selection of the deployment's workers, and the queue of a message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery
from celery.signals import task_received
from click.testing import CliRunner
from kombu import Exchange, Queue, binding
from kombu.exceptions import OperationalError

from a2a_celery.cli.commands import a2a as commands
from a2a_celery.cli.operator.drain import Choice, Drainer
from a2a_celery.execution.celery import remote_control

STORE, PREFIX = "run-id/0", "a2a"
NO_SELECTION: dict[str, Any] = {"nodes": (), "hosts": (), "queues": (), "agents": (), "everything": False}


def worker(identity: str | None = STORE, prefix: str | None = PREFIX) -> dict[str, Any]:
    """Return a worker's report. Without a prefix or an identity, the worker does not report its deployment."""
    report: dict[str, Any] = {"pool": "prefork", "queues": ["celery"], "drained": []}
    if prefix is not None:
        report |= {"settings": {"key_prefix": prefix}}
        report |= {"store": {"identity": identity, "error": ""} if identity else {"error": "no answer"}}
    return report


REPORTS: dict[str, Any] = {
    "celery@ours": worker(),
    "celery@other-store": worker("another/0"),
    "celery@other-prefix": worker(prefix="other"),
    "celery@lost-its-store": worker(None),
    "celery@bad-settings": worker(prefix=None),
    "celery@plain": {"error": "Unknown control command"},
}


def new_drainer(app: Any) -> Drainer:
    """Return a drainer of all workers of this deployment that polls them every 10 ms."""
    return Drainer(app, Choice.of(REPORTS, NO_SELECTION | {"everything": True}, {}, STORE, PREFIX), poll_interval=0.01)


@pytest.mark.parametrize(
    "filters", [{"everything": True}, {"queues": ("celery",)}, {"hosts": tuple(node[7:] for node in REPORTS)}]
)
def test_workers_of_another_deployment_at_the_same_broker_are_not_drained(filters: dict[str, Any]) -> None:
    choice = Choice.of(REPORTS, NO_SELECTION | filters, {}, STORE, PREFIX)

    assert choice.nodes == ("celery@ours",)
    assert choice.strangers == ("celery@bad-settings", "celery@lost-its-store")


def test_a_worker_with_an_unavailable_store_can_be_named() -> None:
    choice = Choice.of(REPORTS, NO_SELECTION | {"nodes": ("celery@lost-its-store",)}, {}, STORE, PREFIX)

    assert (choice.nodes, choice.strangers) == (("celery@lost-its-store",), ())
    with pytest.raises(click.ClickException, match="celery@plain does not reply"):
        Choice.of(REPORTS, NO_SELECTION | {"nodes": ("celery@plain",)}, {}, STORE, PREFIX)


@pytest.mark.parametrize(
    ("is_shutdown", "end"), [(False, "until --undo"), (True, "until a worker consumes celery again")]
)
def test_a_queue_without_another_worker_is_reported(is_shutdown: bool, end: str) -> None:
    choice = Choice.of(REPORTS, NO_SELECTION | {"everything": True}, {}, STORE, PREFIX)

    assert list(choice.consequences(is_shutdown=is_shutdown)) == [
        f"no other worker that reports consumes celery: runs sent to it wait {end}"
    ]


@pytest.mark.parametrize("options", [(), ("--undo",), ("--shutdown",)])
def test_a_host_and_a_worker_are_not_selected_together(options: tuple[str, ...]) -> None:
    result = CliRunner().invoke(commands, ["drain", "--host", "ours", "--worker", "celery@ours", *options])

    assert result.exit_code == 2
    assert "--host selects all workers of a host: leave out --worker" in result.stderr


def test_a_worker_that_is_started_again_while_it_is_drained_does_not_count_as_drained() -> None:
    control = SimpleNamespace(broadcast=lambda command, **_: [{"celery@ours": ANSWERS[command]}])
    app: Any = SimpleNamespace(control=control)
    drainer = new_drainer(app)

    drainer.drain()
    drainer.wait(30)

    [worker_left] = drainer.workers.values()
    assert worker_left.state == "restarted"
    assert worker_left.line() == AGAIN


def test_a_worker_that_is_started_again_after_its_shutdown_is_not_reported_as_drained() -> None:
    replies = {"a2a_drain": {"queues": ["celery"], "returned": 0}, "ping": {"ok": "pong"}}
    reply = {"drained": ["celery"], "stopping": [], "runs": [], "tasks": 0}

    def broadcast(command: str, **_: Any) -> list[dict[str, Any]]:
        return [{"celery@ours": replies.get(command, reply)}]

    control = SimpleNamespace(broadcast=broadcast, shutdown=lambda **_: replies.update(ANSWERS))
    app: Any = SimpleNamespace(control=control)
    drainer = new_drainer(app)
    drainer.drain()
    drainer.wait(30)

    drainer.shut_down()

    [worker_left] = drainer.workers.values()
    assert (worker_left.state, worker_left.line()) == ("restarted", AGAIN)


@pytest.mark.parametrize(
    ("replies", "state"), [([[]], "drained"), ([["t.1"]], "busy"), ([[], ["t.1"]], "busy"), ([[], None], "silent")]
)
def test_without_time_to_wait_an_idle_worker_is_drained(replies: list[list[str] | None], state: str) -> None:
    """`replies` are the active runs in each reply of the worker, or None if it does not reply. The last one repeats."""

    def broadcast(command: str, **_: Any) -> list[dict[str, Any]]:
        if command == "a2a_drain":
            return [{"celery@ours": {"queues": ["celery"], "returned": 0}}]
        runs = replies.pop(0) if len(replies) > 1 else replies[0]
        reply = {"drained": ["celery"], "stopping": [], "runs": runs, "tasks": 0}
        return [] if runs is None else [{"celery@ours": reply}]

    app: Any = SimpleNamespace(control=SimpleNamespace(broadcast=broadcast))
    drainer = new_drainer(app)
    drainer.drain()

    drainer.wait(0)

    assert [worker.state for worker in drainer.workers.values()] == [state]


def test_a_drain_waits_while_the_broker_is_restarted() -> None:
    reply = {"drained": ["celery"], "stopping": [], "runs": [], "tasks": 0}
    replies = iter([reply | {"runs": ["t.1"]}, OperationalError("no connection"), reply, reply])

    def broadcast(command: str, **_: Any) -> list[dict[str, Any]]:
        if command == "a2a_drain":
            return [{"celery@ours": {"queues": ["celery"], "returned": 0}}]
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return [{"celery@ours": reply}]

    app: Any = SimpleNamespace(control=SimpleNamespace(broadcast=broadcast))
    drainer = new_drainer(app)
    drainer.drain()

    drainer.wait(30)

    assert [worker.state for worker in drainer.workers.values()] == ["drained"]


def test_a_broker_that_stays_unavailable_is_reported() -> None:
    def broadcast(command: str, **_: Any) -> list[dict[str, Any]]:
        raise OperationalError("no connection")

    app: Any = SimpleNamespace(control=SimpleNamespace(broadcast=broadcast))
    drainer = new_drainer(app)

    drainer.wait(0)

    error = "OperationalError: no connection: is the broker up? See CELERY_BROKER_URL"
    assert drainer.error == error
    with pytest.raises(click.ClickException) as caught:
        drainer.drain()
    assert caught.value.message == error


def test_the_undo_for_a_worker_that_was_started_again_names_the_queues_that_it_consumes() -> None:
    control = SimpleNamespace(broadcast=lambda *_, **__: [{"celery@ours": {"queues": []}}])
    app: Any = SimpleNamespace(control=control)
    drainer = new_drainer(app)

    drainer.undo()

    [worker_left] = drainer.workers.values()
    assert (worker_left.state, worker_left.line()) == ("undone", "celery@ours: consumes celery again")


AGAIN = (
    "celery@ours: was restarted, and consumes celery: drain it without --shutdown, or stop it in its process manager"
)
ANSWERS = {
    "a2a_drain": {"queues": ["celery"], "returned": 0},
    "a2a_busy": {"drained": [], "stopping": [], "runs": [], "tasks": 0},
}

TOPIC, OTHER = Exchange("tasks", type="topic"), Exchange("other", type="direct")
QUEUES = (
    Queue("celery", Exchange("celery"), "celery"),
    Queue("words", TOPIC, "task.#"),
    Queue("video", TOPIC, "video.*.now"),
    Queue("several", bindings=[binding(OTHER, routing_key="a"), binding(OTHER, routing_key="b")]),
    Queue("all", Exchange("news", type="fanout")),
)


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("", "celery", "celery"),
        (None, "words", "words"),
        ("celery", "celery", "celery"),
        ("tasks", "task.default", "words"),
        ("tasks", "task.a.b", "words"),
        ("tasks", "video.x.now", "video"),
        ("tasks", "video.x.later", None),
        ("other", "b", "several"),
        ("other", "c", None),
        ("news", "", "all"),
    ],
)
def test_the_queue_of_a_message_is_known(exchange: str | None, key: str, queue: str | None) -> None:
    app = Celery(set_as_current=False)
    app.conf.task_queues = QUEUES
    consumer = SimpleNamespace(app=app)
    request = SimpleNamespace(delivery_info={"exchange": exchange, "routing_key": key})

    from_it = [name for name in app.amqp.queues if remote_control.is_from(request, consumer, {name})]

    assert from_it == ([queue] if queue else [])


class FakeConsumer:
    """Stand-in for the consumer of a worker, which can be the sender of a signal. Scheduled calls are omitted."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.task_consumer = SimpleNamespace(queues=QUEUES)

    def call_soon(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(("queue", "is_requeued"), [("celery", True), ("words", False)])
def test_a_run_that_arrives_after_the_drain_of_its_queue_is_requeued(
    monkeypatch: pytest.MonkeyPatch, queue: str, is_requeued: bool
) -> None:
    for name in ("drained_queues", "_stopping"):
        monkeypatch.setattr(remote_control, name, set())
    monkeypatch.setattr(remote_control, "is_run", lambda request: True)
    app, requeued = Celery(set_as_current=False), []
    app.conf.task_queues = QUEUES
    consumer = FakeConsumer(app)
    delivery_info = {"exchange": "", "routing_key": queue}
    request = SimpleNamespace(delivery_info=delivery_info, give_up=lambda: requeued.append(queue))

    remote_control.a2a_drain(SimpleNamespace(consumer=consumer), ["celery"])
    task_received.send(consumer, request=request)

    assert requeued == ([queue] if is_requeued else [])
