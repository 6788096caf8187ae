"""Busy workers whose connection to RabbitMQ breaks. After the interruption, the workers consume messages again, on
prefork and on threads."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.chaos.agents import Order, marks_of
from tests.support.chaos.fleet import ChaosFleet
from tests.support.clients.bindings import V1, message_json
from tests.support.waiting import LIMIT, eventually_async

pytestmark = pytest.mark.every_cell

CONCURRENCY = 10


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_a_busy_worker_consumes_again_when_it_was_cut_off(tmp_path: Path, broker: str, pool: str) -> None:
    fleet = ChaosFleet(tmp_path, broker, workers=[(pool, CONCURRENCY)], gateways=1, watchers=1)
    try:
        await fleet.open()
        tasks = [await begin(fleet) for _ in range(6 * CONCURRENCY)]
        await eventually_async(lambda: have_begun(fleet, tasks, CONCURRENCY), what="all of it is busy")

        await fleet.restart_broker(1)
        tasks += [await begin(fleet) for _ in range(2 * CONCURRENCY)]

        await eventually_async(lambda: have_begun(fleet, tasks, len(tasks)), what="all runs began")
    except BaseException:
        print(fleet.logs())
        raise
    finally:
        fleet.stop()


async def begin(fleet: ChaosFleet) -> str:
    """Send a message that keeps a worker busy for a moment. Return the task's id."""
    body = message_json(Order(pause=0.3).as_text()) | {"configuration": {"returnImmediately": True}}
    async with httpx.AsyncClient() as http:
        (gateway,) = fleet.slots_of("gateway")
        answer = await http.post(f"{gateway.url}/agents/once/message:send", json=body, headers=V1, timeout=LIMIT)
    return str(answer.json()["task"]["id"])


async def have_begun(fleet: ChaosFleet, tasks: list[str], count: int) -> bool:
    """Return True if `count` of the `tasks` have begun."""
    return sum(bool(marks_of(fleet.marks, task)) for task in tasks) >= count
