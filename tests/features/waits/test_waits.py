"""`Turn.sleep` and `Turn.wait_for`. A wait suspends the run, and the next run continues after the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from a2a.types import TaskStatus, TaskStatusUpdateEvent
from celery import Celery

from a2a_celery import A2A, Failed, Turn, current_turn
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.celery.request import RunConcluded
from a2a_celery.features.waits.waits import SHORT_SLEEP
from a2a_celery.lifecycle.outcomes import OUT_OF_TIME
from a2a_celery.lifecycle.own_metadata import CONTINUES_AT, NAMESPACE, WAITS_FOR
from a2a_celery.lifecycle.signals import Sender, encode_signal
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import continue_task, request_cancel
from tests.execution.local_agents import SuspendableAgents, suspendable_agents
from tests.execution.scene import perform_run
from tests.support.clocks import EndlessSleepClock
from tests.support.store.seeds import ANN, CONTEXT, request
from tests.support.waiting import eventually_async

app = Celery("test", broker="memory://", set_as_current=False)
a2a = A2A(app)
calls: list[str] = []
"""Calls that the agents made."""


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@a2a.agent("sleeps", description="Sleeps an hour.")
async def sleeps(turn: Turn) -> str:
    calls.append("before")
    await turn.sleep(3600)
    return "awake"


@a2a.agent("sleeps-until", description="Sleeps until a time.")
async def sleeps_until(turn: Turn) -> str:
    await turn.sleep(until=datetime.fromisoformat(turn.text))
    return "awake"


@a2a.agent("sleeps-not", description="Sleeps until a time that has passed, and asks.")
async def sleeps_not(turn: Turn) -> str:
    """Sleep twice without effect, record a step, and ask."""
    await turn.sleep(0)
    await turn.sleep(until=datetime(2001, 1, 1, tzinfo=UTC))
    city = await turn.step("city", str, "Oslo")
    return f"{city}, {await turn.ask('Where?')}"


@a2a.agent("naps", description="Sleeps for a moment.")
async def naps(turn: Turn) -> str:
    await turn.sleep(float(turn.text))
    return "awake"


@a2a.agent("threaded", description="Waits, in a thread.")
def wait_in_thread(turn: Turn) -> str:
    turn.blocking.sleep(3600)
    turn.blocking.sleep(0.01)
    return f"got {turn.blocking.wait_for('go', timeout=60).payload}"


@a2a.agent("approval", description="Waits for an approval.")
async def approval(turn: Turn) -> str:
    try:
        answer = await turn.wait_for("approval", timeout=60)
    except TimeoutError as error:
        return f"late: {error}"
    return f"approved by {answer.payload['by']}, {answer.sender}"


@a2a.agent("polls", description="Checks for a signal.")
async def polls(turn: Turn) -> str:
    try:
        return str((await turn.wait_for("go", timeout=0)).payload)
    except TimeoutError:
        await turn.sleep(3600)
        return "none"


@a2a.agent("collects", description="Waits for three signals.")
async def collects(turn: Turn) -> str:
    return "".join([(await turn.wait_for("letter")).payload for _ in range(3)])


@a2a.agent("catches", description="Catches what a wait raises.")
async def catches(turn: Turn) -> str:
    with suppress(BaseException):
        await turn.sleep(3600)
        return "awake"
    with suppress(BaseException):
        await turn.wait_for("other")
    return "not awake"


@a2a.agent("raises", description="Raises an error about a wait.")
async def raises(turn: Turn) -> str:
    try:
        await turn.sleep(3600)
    except BaseException as error:
        raise RuntimeError("a tool failed") from error
    return "awake"


@a2a.agent("group", description="Waits in a task group.")
async def group(turn: Turn) -> str:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(turn.sleep(3600))
        tasks.create_task(asyncio.sleep(0))
    return "awake"


@a2a.agent("refuses", description="Fails instead of waiting.")
async def refuses(turn: Turn) -> str:
    try:
        await turn.sleep(3600)
    except BaseException:
        raise Failed("no time to wait") from None
    return "awake"


@a2a.agent("streams", description="Streams, sleeps, and streams on.")
async def streams(turn: Turn) -> AsyncIterator[str]:
    yield "one, "
    await turn.sleep(3600)
    yield "two"


@a2a.agent("streams-threaded", description="Streams, sleeps, and streams on.")
def streams_threaded(turn: Turn) -> Iterator[str]:
    yield "one, "
    turn.blocking.sleep(3600)
    yield "two"


@a2a.agent("asks", description="Sleeps, asks, and sleeps again.")
async def asks(turn: Turn) -> str:
    await turn.sleep(3600)
    city = await turn.ask("Which city?")
    await turn.sleep(3600)
    return f"in {city}"


@a2a.agent("ends", description="Sends its end, and waits.")
async def ends(turn: Turn) -> AsyncIterator[TaskStatusUpdateEvent]:
    yield TaskStatusUpdateEvent(status=TaskStatus(state=COMPLETED))
    await turn.sleep(3600)


@a2a.agent("limited", description="Naps.", idle_limit=0.1)
async def limited(turn: Turn) -> str:
    await turn.sleep(0.5)
    return "awake"


@a2a.agent("oversleeps", description="Naps beyond its time limit.", time_limit=0.1)
async def oversleeps(turn: Turn) -> str:
    await turn.sleep(4)
    return "awake"


@a2a.agent("misuses", description="Passes invalid arguments.")
async def misuses(turn: Turn) -> str:
    errors = []
    attempts: list[Any] = [
        turn.sleep,
        lambda: turn.sleep(1, until=datetime.now(UTC)),
        lambda: turn.sleep(-1),
        lambda: turn.sleep(float("nan")),
        lambda: turn.sleep(until="tomorrow"),  # type: ignore[arg-type]
        lambda: turn.sleep(until=datetime.now(UTC) + timedelta(days=400)),
        lambda: turn.wait_for("two words"),
        lambda: turn.wait_for("go", timeout=-1),
    ]
    for attempt in attempts:
        try:
            await attempt()
        except ValueError as error:
            errors.append(str(error))
    return f"{len(errors)} of {len(attempts)}"


@app.task(shared=False)
def plain(text: str) -> str:
    turn = current_turn()
    assert turn is not None
    turn.blocking.sleep(3600)
    return "awake"


a2a.expose(plain, description="Sleeps.")


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[SuspendableAgents]:
    """Agents of this module in the test process."""
    async with suspendable_agents(a2a, store, keys, redis_server.store_url) as agents:
        yield agents


async def test_a_long_sleep_ends_the_run_and_the_next_run_continues(agents: SuspendableAgents) -> None:
    start = datetime.now(UTC)
    task = await agents.play("sleeps")

    assert task.status.state == WORKING
    at = datetime.fromisoformat(task.metadata[NAMESPACE + CONTINUES_AT])
    assert timedelta(seconds=3599) < at - start < timedelta(seconds=3660)
    assert await agents.wake("sleeps", 2) == "awake"
    task = await agents.seeds.task("t")
    assert task.status.state == COMPLETED
    assert NAMESPACE + CONTINUES_AT not in task.metadata
    assert calls == ["before", "before"], "the function was called again from its start"


async def test_a_sleep_until_a_time(agents: SuspendableAgents) -> None:
    at = (datetime.now(UTC) + timedelta(hours=2)).replace(microsecond=0)

    task = await agents.play("sleeps-until", at.isoformat())

    assert datetime.fromisoformat(task.metadata[NAMESPACE + CONTINUES_AT]) == at
    [(_, due)] = await agents.store.redis.zrange(agents.keys.suspended, 0, -1, withscores=True)
    assert due == at.timestamp() * 1_000_000
    assert await agents.wake("sleeps-until", 2) == "awake"


@pytest.mark.parametrize("text", ["2001-01-01T00:00:00", "2001-01-01T00:00:00+02:00"])
async def test_a_time_that_has_passed_returns_immediately(agents: SuspendableAgents, text: str) -> None:
    assert (await agents.play("sleeps-until", text)).status.state == COMPLETED


@pytest.mark.parametrize("seconds", ["0", "0.05"])
async def test_a_short_sleep_stays_in_the_worker(agents: SuspendableAgents, seconds: str) -> None:
    assert (await agents.play("naps", seconds)).status.state == COMPLETED


async def test_the_longest_short_sleep_is_documented(agents: SuspendableAgents) -> None:
    assert SHORT_SLEEP == 5.0
    assert (await agents.play("naps", "5.1")).status.state == WORKING


async def test_a_short_sleep_counts_as_activity(agents: SuspendableAgents) -> None:
    assert (await agents.play("limited")).status.state == COMPLETED


async def test_a_short_sleep_counts_in_the_time_limit(agents: SuspendableAgents) -> None:
    assert (await agents.play("oversleeps")).status.state == FAILED
    assert await agents.seeds.status_text("t") == OUT_OF_TIME


async def test_a_function_in_a_thread_waits_too(agents: SuspendableAgents) -> None:
    assert (await agents.play("threaded")).status.state == WORKING
    await agents.wake("threaded", 2)
    await agents.suspensions.send_signal("t", "go", encode_signal("now", Sender.APP))

    assert await agents.go_on("threaded", 3) == "got now"


@pytest.mark.parametrize("sender", Sender)
async def test_a_signal_continues_the_run(agents: SuspendableAgents, sender: Sender) -> None:
    task = await agents.play("approval")
    assert task.metadata[NAMESPACE + WAITS_FOR] == "approval"
    await agents.suspensions.send_signal("t", "approval", encode_signal({"by": "ann"}, sender))

    assert await agents.go_on("approval", 2) == f"approved by ann, {sender}"


async def test_a_signal_that_came_first_costs_no_other_run(agents: SuspendableAgents) -> None:
    await agents.create()
    await agents.suspensions.send_signal("t", "approval", encode_signal({"by": "bob"}, Sender.APP))

    assert await agents.go_on("approval", 1) == "approved by bob, app"


async def test_without_a_signal_the_wait_raises_a_timeout(agents: SuspendableAgents) -> None:
    await agents.play("approval")

    assert await agents.wake("approval", 2) == "late: no signal 'approval' arrived in time"


async def test_a_timeout_is_recorded(agents: SuspendableAgents) -> None:
    await agents.play("polls")
    await agents.suspensions.send_signal("t", "go")

    assert await agents.wake("polls", 2) == "none"


async def test_signals_are_received_in_order(agents: SuspendableAgents) -> None:
    await agents.create()
    for character in "ab":
        await agents.suspensions.send_signal("t", "letter", encode_signal(character, Sender.APP))
    await agents.perform("collects", "t")
    await agents.suspensions.send_signal("t", "letter", encode_signal("c", Sender.APP))

    assert await agents.go_on("collects", 2) == "abc"


@pytest.mark.parametrize("agent", ["catches", "raises", "group"])
async def test_code_around_a_wait_cannot_swallow_it(agents: SuspendableAgents, agent: str) -> None:
    assert (await agents.play(agent)).status.state == WORKING

    assert await agents.wake(agent, 2) == "awake"


async def test_an_agent_may_end_its_task_instead_of_waiting(agents: SuspendableAgents) -> None:
    assert (await agents.play("refuses")).status.state == FAILED


@pytest.mark.parametrize("agent", ["streams", "streams-threaded"])
async def test_chunks_are_sent_once(agents: SuspendableAgents, agent: str) -> None:
    task = await agents.play(agent)
    assert list(task.artifacts) == [], "the next run sends them again"

    assert await agents.wake(agent, 2) == "one, two"


async def test_sleeps_and_questions_are_replayed_together(agents: SuspendableAgents) -> None:
    await agents.play("asks")
    await agents.wake("asks", 2)
    assert (await agents.seeds.task("t")).status.state == INPUT_REQUIRED
    answer = request("Oslo", "t", CONTEXT)
    caller = Caller(user="ann").to_json()
    await agents.store.run(continue_task(agents.keys, ANN, "t", answer, CONTEXT, caller=caller, nonce="n"))
    await agents.perform("asks", "t", 3)
    assert (await agents.seeds.task("t")).status.state == WORKING

    assert await agents.wake("asks", 4) == "in Oslo"


async def test_sleeps_without_effect_are_replayed_before_steps(agents: SuspendableAgents) -> None:
    assert (await agents.play("sleeps-not")).status.state == INPUT_REQUIRED
    answer = request("Rome", "t", CONTEXT)
    caller = Caller(user="ann").to_json()
    await agents.store.run(continue_task(agents.keys, ANN, "t", answer, CONTEXT, caller=caller, nonce="n"))

    await agents.perform("sleeps-not", "t", 2)

    assert await agents.seeds.last_text("t") == "Oslo, Rome"


async def test_a_wait_after_the_end_has_no_effect(agents: SuspendableAgents) -> None:
    assert (await agents.play("ends")).status.state == COMPLETED
    assert await agents.suspensions.suspended_runs() == []


async def test_invalid_arguments_are_refused(agents: SuspendableAgents) -> None:
    task = await agents.play("misuses")

    assert task.artifacts[0].parts[0].text == "8 of 8"


async def test_a_plain_task_cannot_wait(agents: SuspendableAgents, caplog: pytest.LogCaptureFixture) -> None:
    await agents.create()
    with suppress(Exception):
        await asyncio.to_thread(perform_run, plain, "t.1", text="x")

    assert (await agents.seeds.task("t")).status.state == FAILED
    assert "make it a function agent" in caplog.text


async def test_cancel_stops_a_short_sleep(agents: SuspendableAgents) -> None:
    """The lease keeper's sleeps do not end either, so only the notification of the cancellation reaches the run."""
    clock = EndlessSleepClock()
    agents.perform_with(clock)
    await agents.create(text=str(SHORT_SLEEP))
    run = asyncio.create_task(agents.perform("naps", "t"))

    async def is_sleeping() -> bool:
        return SHORT_SLEEP in clock.sleeps

    await eventually_async(is_sleeping)
    await agents.store.run(request_cancel(agents.keys, ANN, "t", CONTEXT))
    async with asyncio.timeout(60):
        await run

    assert (await agents.seeds.task("t")).status.state == CANCELED


async def test_celery_reports_a_suspended_run_as_neither_success_nor_failure(agents: SuspendableAgents) -> None:
    await agents.create()

    result = await agents.perform("sleeps", "t")

    error = result.retval.exception.exc
    assert (type(error), error.args) == (RunConcluded, ("SUSPENDED",))
