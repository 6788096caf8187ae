"""Queues of a broker that several fleets may share.

A header identifies the fleet of a message by the fleet's key prefix. Messages of the default fleet have no such header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.app.task import Task
from kombu.entity import Queue

from ..agents import Agent
from ..clock import SYSTEM_CLOCK
from ..concurrency import DaemonThreads
from ..errors import BrokerUnavailable, RunNotAccepted
from ..integrations.celery import own_options
from ..integrations.kombu import broker_error_text
from ..settings import DEFAULT_KEY_PREFIX
from .connection import THREADS, PublishingPool
from .options import RunOptions

FLEET_HEADER = "a2a_fleet"
RETURNS_HEADER = "a2a_returns"
"""Header with the number of times that workers of other fleets have returned the message to its queue."""

DEFAULT_FLEET = DEFAULT_KEY_PREFIX
"""Fleet of the messages without the header."""

FIRST_DELAY = timedelta(milliseconds=100)
LONGEST_DELAY = timedelta(seconds=10)
MAX_RETURNS = 100
"""Maximum number of times that a message is returned. After that, the message is dropped, and a watcher of its fleet
publishes the run again."""


def fleet_headers(fleet: str) -> dict[str, str]:
    return {} if fleet == DEFAULT_FLEET else {FLEET_HEADER: fleet}


def fleet_of(headers: Mapping[str, Any]) -> str:
    return str(headers.get(FLEET_HEADER) or DEFAULT_FLEET)


def returned_headers(headers: Mapping[str, Any], now: datetime) -> dict[str, Any] | None:
    """Return the headers for returning a message to its queue, or None if the message was returned too often.

    The headers delay the message, with a delay that grows with each return. Without a delay, the worker that returned
    the message might receive it again immediately.
    """
    returns = headers.get(RETURNS_HEADER)
    returns = returns if isinstance(returns, int) else 0
    if not 0 <= returns < MAX_RETURNS:
        return None
    eta = max(now + min(FIRST_DELAY * 2 ** min(returns, 16), LONGEST_DELAY), _time(headers.get("eta")) or now)
    # kombu has decompressed the body
    other_headers = {name: value for name, value in headers.items() if name != "compression"}
    return other_headers | {"eta": eta.isoformat(), RETURNS_HEADER: returns + 1}


def _time(iso: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(iso))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


NOT_FOUND = "404"
RETURNED_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode")


def entry_name(agent: str) -> str:
    """Return the name of the Celery task that runs `agent`.

    The Celery task can be routed and rate-limited like any other task. ``a2a.*`` matches the tasks of all agents.
    """
    return f"a2a.{agent}"


def queue_of(app: Celery, agent: Agent) -> str | None:
    """Return the queue for the runs of `agent`, or None if an exchange may deliver the runs to any queue.

    The `route` of the agent may send a run to another queue.
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


VERSION_QUEUE_EXPIRY = timedelta(hours=1)
"""Time after which RabbitMQ deletes a version queue that no worker consumes. A watcher publishes its runs again."""


def version_queue_name(queue: str, agent: str, code_version: str) -> str:
    """Return the name of the version queue that belongs to `queue`. A version queue contains runs for workers with
    that version of the agent."""
    return f"{queue}.{agent}.{code_version}"


def version_queue(app: Celery, name: str) -> Queue:
    """Return the version queue `name`, as consumers and publishers declare it."""
    return Queue(  # type: ignore[no-untyped-call]
        name,
        routing_key=name,
        expires=VERSION_QUEUE_EXPIRY.total_seconds(),
        max_priority=app.conf.task_queue_max_priority,
    )


def version_queues(app: Celery, agents: Iterable[Agent], queue_names: Iterable[str]) -> dict[str, Agent]:
    """Return the version queues of a worker that consumes `queue_names`, with the agent of each version queue.

    A `route` may send the runs of its agent to any queue.
    """
    version_agents = [(agent, agent.version, queue_of(app, agent)) for agent in agents if agent.version is not None]
    return {
        version_queue_name(queue, agent.name, version): agent
        for queue in queue_names
        for agent, version, own_queue in version_agents
        if agent.route is not None or own_queue == queue
    }


class BrokerQueues:
    """Queues of the broker to which `app` publishes.

    Args:
        app: App that publishes.
        options: Options for ``apply_async``, by agent.
        pool: Pool of connections to the broker.
    """

    def __init__(self, app: Celery, options: Mapping[str, Mapping[str, Any]], pool: PublishingPool) -> None:
        self._app = app
        self._options = options
        self._pool = pool
        self._threads = DaemonThreads(THREADS, "a2a-queues")

    def queue_of(self, agent: str, chosen: RunOptions) -> str | None:
        """Return the name of the queue of a run, or None if an exchange may deliver the run to any queue."""
        options = {**self._options.get(agent, {}), **chosen.celery}
        if chosen.call is None:
            return _route(self._app, entry_name(agent), options, {})
        return _route(self._app, chosen.call.task, options, chosen.call.kwargs)

    def priority_of(self, agent: str, chosen: RunOptions) -> int | None:
        """Return the priority in the options of a run or of its agent, or None."""
        return {**self._options.get(agent, {}), **chosen.celery}.get("priority")

    async def is_empty(self, queue: str) -> bool:
        """Return True if no message waits in `queue` for a worker, or if the queue does not exist.

        Raises:
            RunNotAccepted: The broker did not report the length of this queue, but may report other lengths.
            BrokerUnavailable: The broker did not reply.
        """
        return bool(await self._threads.call(lambda: self._is_empty(queue)))

    def put_back(self, message: Any) -> None:
        """Return a received `message` to its queue, with a delay.

        Raises:
            BrokerUnavailable: The broker did not accept the message, or the message was returned too often.
        """
        headers = returned_headers(message.headers, SYSTEM_CLOCK.now())
        if headers is None:
            raise BrokerUnavailable("the message was returned too often")
        properties = {n: message.properties[n] for n in RETURNED_PROPERTIES if message.properties.get(n) is not None}
        try:
            with self._pool.acquire() as producer:
                producer.publish(
                    message.body,
                    exchange=message.delivery_info.get("exchange") or "",
                    routing_key=message.delivery_info.get("routing_key"),
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    headers=headers,
                    **properties,
                )
        except Exception as e:  # each transport raises its own exceptions
            raise BrokerUnavailable(f"the broker did not accept a returned message: {broker_error_text(e)}") from e

    def _is_empty(self, queue: str) -> bool:
        try:
            with self._pool.acquire() as producer:
                # A separate channel, because RabbitMQ closes the channel if the queue does not exist.
                connection = producer.connection
                # kombu opens no channel after the connection was closed
                connection.ensure_connection(max_retries=1, interval_start=0.1)
                channel = connection.channel()
                try:
                    return bool(channel.queue_declare(queue, passive=True).message_count == 0)
                except connection.channel_errors as e:
                    if str(getattr(e, "reply_code", "")) == NOT_FOUND:
                        return True
                    raise
                finally:
                    channel.close()
        except Exception as e:  # each transport raises its own exceptions
            kind = BrokerUnavailable if self._pool.is_dead(e) else RunNotAccepted
            raise kind(f"the broker did not report the length of {queue}: {broker_error_text(e)}") from e
