"""Queues of the broker: the queue that a run is published to, and whether a queue is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.app.task import Task
from kombu.entity import Queue

from ..clock import SYSTEM_CLOCK
from ..errors import BrokerUnavailable
from ..threads import DaemonThreads
from .connection import PublishingPool
from .fleets import returned_headers
from .options import RunOptions
from .publishing import THREADS

NOT_FOUND = "404"
KEPT_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode")


class BrokerQueues:
    """Queues of the broker that `app` publishes to, asked over `pool`. `options` per agent are those of its runs."""

    def __init__(self, app: Celery, options: Mapping[str, Mapping[str, Any]], pool: PublishingPool) -> None:
        self._app = app
        self._options = options
        self._pool = pool
        self._threads = DaemonThreads(THREADS, "a2a-queues")

    def queue_of(self, task_name: str, agent: str, chosen: RunOptions) -> str | None:
        """Return the name of the queue of a run, or None if an exchange may deliver it to any queue."""
        task: Task | None = self._app.tasks.get(task_name)
        own = {} if task is None else {name: value for name, value in task._get_exec_options().items() if value}
        options = {**own, **self._options.get(agent, {}), **chosen.celery}
        if options.get("exchange") and not options.get("queue"):
            return None
        kwargs = {} if chosen.call is None else dict(chosen.call.kwargs)
        queue = self._app.amqp.router.route(options, task_name, (), kwargs, task).get("queue")
        return queue.name if isinstance(queue, Queue) else queue

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
