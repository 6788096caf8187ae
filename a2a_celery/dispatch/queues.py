"""Queues of the broker: the queue that a run is published to, and whether a queue is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.app.task import Task
from kombu.entity import Queue

from ..agents import Agent
from ..clock import SYSTEM_CLOCK
from ..errors import BrokerUnavailable
from ..integrations.celery import own_options
from ..threads import DaemonThreads
from .connection import PublishingPool
from .fleets import returned_headers
from .options import RunOptions
from .publishing import THREADS

NOT_FOUND = "404"
KEPT_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode")


def entry_name(agent: str) -> str:
    """Return the name of the Celery task that runs `agent`.

    Route and rate-limit it like any other; ``a2a.*`` means all agents.
    """
    return f"a2a.{agent}"


def queue_of(app: Celery, agent: Agent) -> str | None:
    """Return the queue for the runs of `agent`, or None if an exchange may deliver them to any queue.

    The `route` of the agent may send a run elsewhere.
    """
    return _route(app, agent.code.name if agent.kind == "task" else entry_name(agent.name), agent.options, {})


def _route(app: Celery, task_name: str, options: Mapping[str, Any], kwargs: Mapping[str, Any]) -> str | None:
    task: Task | None = app.tasks.get(task_name)
    own = {} if task is None else own_options(task)
    options = {**own, **options}
    if options.get("exchange") and not options.get("queue"):
        return None
    queue = app.amqp.router.route(options, task_name, (), dict(kwargs), task).get("queue")
    return queue.name if isinstance(queue, Queue) else queue


class BrokerQueues:
    """Queues of the broker that `app` publishes to, asked over `pool`. `options` per agent are those of its runs."""

    def __init__(self, app: Celery, options: Mapping[str, Mapping[str, Any]], pool: PublishingPool) -> None:
        self._app = app
        self._options = options
        self._pool = pool
        self._threads = DaemonThreads(THREADS, "a2a-queues")

    def queue_of(self, agent: str, chosen: RunOptions) -> str | None:
        """Return the name of the queue of a run, or None if an exchange may deliver it to any queue."""
        options = {**self._options.get(agent, {}), **chosen.celery}
        if chosen.call is None:
            return _route(self._app, entry_name(agent), options, {})
        return _route(self._app, chosen.call.task, options, chosen.call.kwargs)

    def priority_of(self, agent: str, chosen: RunOptions) -> int | None:
        """Return the priority in the options of a run or of its agent, or None if they name none."""
        return {**self._options.get(agent, {}), **chosen.celery}.get("priority")

    async def is_empty(self, queue: str) -> bool:
        """Return whether no message of `queue` waits for a worker.

        Raises:
            BrokerUnavailable: the broker did not say so.
        """
        return bool(await self._threads.call(lambda: self._is_empty(queue)))

    def put_back(self, message: Any) -> None:
        """Publish `message`, as a worker received it, to its queue again, to begin a moment later.

        Raises:
            BrokerUnavailable: the broker did not take it, or it was put back too often.
        """
        headers = returned_headers(message.headers, SYSTEM_CLOCK.now())
        if headers is None:
            raise BrokerUnavailable("it was put back too often")
        kept = {name: message.properties[name] for name in KEPT_PROPERTIES if message.properties.get(name) is not None}
        try:
            with self._pool.acquire() as producer:
                producer.publish(
                    message.body,
                    exchange=message.delivery_info.get("exchange") or "",
                    routing_key=message.delivery_info.get("routing_key"),
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    headers=headers,
                    **kept,
                )
        except Exception as e:  # each transport raises its own
            raise BrokerUnavailable(f"the broker did not take a message back: {type(e).__name__}: {e}") from e

    def _is_empty(self, queue: str) -> bool:
        try:
            with self._pool.acquire() as producer:
                # A channel of its own: RabbitMQ closes the channel when the queue does not exist.
                connection = producer.connection
                channel = connection.channel()
                try:
                    return bool(channel.queue_declare(queue, passive=True).message_count == 0)
                except connection.channel_errors as e:
                    if str(getattr(e, "reply_code", "")) == NOT_FOUND:
                        return True
                    raise
                finally:
                    channel.close()
        except Exception as e:  # each transport raises its own
            raise BrokerUnavailable(f"the broker did not say what waits in {queue}: {type(e).__name__}: {e}") from e
