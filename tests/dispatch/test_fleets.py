"""Fleet ids in messages. A worker returns a message of a different fleet to its queue unchanged, with growing delays,
up to a limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import kombu
import pytest
from celery import Celery

from a2a_celery.dispatch import Publisher, RunOptions, fleet_of
from a2a_celery.dispatch.queues import FIRST_DELAY, LONGEST_DELAY, MAX_RETURNS, returned_headers
from a2a_celery.lifecycle.references import RunRef
from tests.support.processes.fleet import RABBITMQ_URL
from tests.support.processes.restarts import MortalRedis

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def delays(headers: dict[str, Any]) -> list[timedelta]:
    """Return the delay that each return to the queue adds, until the message is dropped."""
    seconds = []
    while headers_of_return := returned_headers(headers, NOW):
        headers = headers_of_return
        seconds.append(datetime.fromisoformat(headers["eta"]) - NOW)
    return seconds


def test_a_message_is_returned_ever_later_and_not_for_ever() -> None:
    delays_of_returns = delays({})

    assert delays_of_returns[0] == FIRST_DELAY
    assert delays_of_returns == sorted(delays_of_returns)
    assert delays_of_returns[-1] == LONGEST_DELAY
    assert len(delays_of_returns) == MAX_RETURNS


@pytest.mark.parametrize("returns", ["many", -1, MAX_RETURNS, 10**9])
def test_a_message_with_a_foreign_return_count_is_dropped_eventually(returns: object) -> None:
    assert len(delays({"a2a_returns": returns})) <= MAX_RETURNS


def test_a_message_that_is_to_begin_later_still_is() -> None:
    later_time = NOW + timedelta(hours=1)

    assert delays({"eta": later_time.isoformat()})[0] == later_time - NOW
    assert delays({"eta": later_time.replace(tzinfo=None).isoformat()})[0] == later_time - NOW
    assert delays({"eta": "soon"})[0] == FIRST_DELAY


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
async def test_a_message_goes_back_as_it_came(broker: str, server: MortalRedis) -> None:
    queue = f"test-{uuid4().hex}"
    app = Celery("fleets", broker=RABBITMQ_URL if broker == "rabbitmq" else server.broker_url, set_as_current=False)
    app.conf.task_compression = "gzip"
    publisher = Publisher(app, {"echo": {"queue": queue, "priority": 3}}, "other")
    trace = RunOptions(trace={"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"})
    await publisher.publish_async("echo", RunRef("t", 1), trace)

    messages = []
    with kombu.Connection(app.conf.broker_url) as connection:
        waiting = connection.SimpleQueue(queue)
        for _ in range(2):
            message = waiting.get(timeout=10)
            messages.append((message.payload, dict(message.headers), message.properties.get("correlation_id")))
            publisher.queues.put_back(message)
            message.ack()
        waiting.clear()
        connection.default_channel.queue_delete(queue)

    (first, headers, correlation), (second, headers_again, correlation_again) = messages
    assert (first, correlation) == (second, correlation_again)
    assert fleet_of(headers) == fleet_of(headers_again) == "other"
    changes = {name for name in headers | headers_again if headers.get(name) != headers_again.get(name)}
    assert changes == {"eta", "a2a_returns", "compression"}


async def test_the_fleet_with_the_default_prefix_needs_no_header(server: MortalRedis) -> None:
    app = Celery("fleets", broker=server.broker_url, set_as_current=False)
    await Publisher(app, {}, "a2a").publish_async("echo", RunRef("t", 1))

    with kombu.Connection(app.conf.broker_url) as connection:
        headers = connection.SimpleQueue("celery").get(timeout=10).headers

    assert fleet_of(headers) == "a2a"
    assert "a2a_fleet" not in headers
