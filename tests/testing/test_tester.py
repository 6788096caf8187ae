"""Accepted apps, isolation, clock and simulated crashes of `AgentTester`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part
from a2a.types import Task as A2ATask
from celery import Celery, Task

from a2a_celery import A2A, ConfigError, SignalRefused, Turn
from a2a_celery.client import DeadlineExceeded
from a2a_celery.clock import SYSTEM_CLOCK
from a2a_celery.errors import StoreUnavailable
from a2a_celery.lifecycle.own_metadata import NAMESPACE, NEXT_ATTEMPT_AT, REMINDER
from a2a_celery.store import Operation
from a2a_celery.testing import AgentTester, SimulatedClock
from a2a_celery.testing.store import SimulatedStore
from tests.support.clients.credentials import api_key_entry
from tests.support.waiting import LIMIT

HOUR = 3600.0
UNREACHABLE = "redis://127.0.0.1:1/0"


@pytest.fixture
def a2a() -> A2A:
    """App whose servers are unreachable."""
    app = Celery("tested", broker=UNREACHABLE, backend=UNREACHABLE, set_as_current=False)
    app.conf.a2a_input_timeout = HOUR
    return A2A(app)


class CountingExecutor(AgentExecutor):
    """Executor that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.calls += 1
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.add_artifact([Part(text=str(self.calls))])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None: ...


async def test_each_worker_builds_its_own_executor() -> None:
    async with AgentTester(CountingExecutor) as tester:
        assert [(await tester.send("hello")).text for _ in range(3)] == ["1", "1", "2"]
    async with AgentTester(CountingExecutor(), workers=1) as tester:
        assert [(await tester.send("hello")).text for _ in range(2)] == ["1", "2"]


async def test_the_owner_of_the_messages() -> None:
    async def agent(turn: Turn) -> str:
        return f"{turn.caller.user} {turn.caller.authenticated}"

    async with AgentTester(agent) as tester:
        assert (await tester.send("hello")).text == " False"
    async with AgentTester(agent, owner="ann") as tester:
        assert (await tester.send("hello")).text == "ann True"


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_hosts": ["agents.example.com"], "cors_origins": ["https://chat.example.com"]},
        {
            "auth_jwks_url": "https://issuer.example.com/jwks",
            "auth_jwt_algorithms": ["RS256"],
            "auth_jwt_issuer": "https://issuer.example.com",
            "auth_jwt_audience": ["https://agents.example.com"],
            "auth_jwt_owner_claim": "email",
            "auth_jwt_tenants_claim": "tenants",
        },
        {"auth_api_keys": [api_key_entry("bob", "one")], "cors_origins": ["*"]},
    ],
)
@pytest.mark.parametrize("owner", ["", "ann"])
async def test_the_authentication_of_the_app_has_no_effect(a2a: A2A, settings: dict[str, Any], owner: str) -> None:
    a2a.celery.conf.update({f"a2a_{name}": value for name, value in settings.items()})

    @a2a.agent("owner")
    async def agent(turn: Turn) -> str:
        return turn.caller.user

    async with AgentTester(a2a, owner=owner) as tester:
        assert (await tester.send("hello")).text == owner


async def test_a_reminder_is_posted_although_the_pause_times_out_in_the_same_advance(a2a: A2A) -> None:
    @a2a.agent("asks")
    async def agent(turn: Turn) -> str:
        return str(await turn.ask("Go on?", remind_after=HOUR / 2))

    async with AgentTester(a2a) as tester:
        question = await tester.send("hello")
        await tester.advance(2 * HOUR)
        result = await tester.wait(question)

        reminders = [
            event for event in await tester.events(result) if NAMESPACE + REMINDER in event.status_update.metadata
        ]
    assert (result.state_name, len(reminders)) == ("FAILED", 1)


async def test_the_session_of_a_conversation(a2a: A2A) -> None:
    @a2a.agent("counter", session=True)
    async def counter(turn: Turn) -> str:
        turn.session.state["count"] = turn.session.state.get("count", 0) + 1
        return str(turn.session.state["count"])

    async with AgentTester(a2a) as tester:
        session = tester.session()
        assert [(await session.send("more")).text for _ in range(2)] == ["1", "2"]
        assert (await tester.send("more")).text == "1"


async def test_settings_and_broker_of_the_app_are_those_from_before(a2a: A2A) -> None:
    @a2a.agent("echo")
    async def echo(turn: Turn) -> str:
        return turn.text

    settings = a2a.settings
    async with AgentTester(a2a, settings={"cancel_grace": 1.5}):
        assert (a2a.settings.cancel_grace, a2a.settings.input_timeout) == (1.5, HOUR)
        assert a2a.settings.store_url != settings.store_url
        with pytest.raises(RuntimeError, match="another AgentTester"):
            await AgentTester(a2a).__aenter__()
        handle = await a2a.submit_async("echo", "hello")
        assert (await handle.result_async(60)).text == "hello"
    assert a2a.settings is settings
    assert a2a.celery.connection_for_write().as_uri(include_password=True).endswith("127.0.0.1:1/0")
    assert a2a.celery.conf.result_backend == UNREACHABLE


async def test_variables_of_real_servers_have_no_effect(a2a: A2A, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ("CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND")
    for name in urls:
        monkeypatch.setenv(name, UNREACHABLE)
    app = a2a.celery

    @a2a.agent("servers")
    async def servers(turn: Turn) -> list[str]:
        connections = app.connection_for_read(), app.connection_for_write()
        return [*(connection.transport_cls for connection in connections), app.conf.result_backend]

    async with AgentTester(a2a) as tester:
        result = await tester.send("hello")

    assert list(result.parts[0].data.list_value) == ["memory", "memory", "cache+memory://"]
    assert [os.environ[name] for name in urls] == [UNREACHABLE] * 4


async def test_errors_of_arguments(a2a: A2A) -> None:
    a2a.agent("one")(lambda turn: "1")
    a2a.agent("two")(lambda turn: "2")

    with pytest.raises(ConfigError, match="known: one, two"):
        AgentTester(a2a)
    with pytest.raises(ConfigError, match="no agent 'three'"):
        AgentTester(a2a, "three")
    with pytest.raises(ConfigError, match="max_attempts: the agent is registered"):
        AgentTester(a2a, "one", max_attempts=2)
    with pytest.raises(ConfigError, match="is not an agent"):
        AgentTester(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        AgentTester(a2a, "one", workers=0)
    async with AgentTester(a2a, "one") as tester:
        with pytest.raises(RuntimeError, match="nothing to crash"):
            await tester.crash()
        with pytest.raises(ValueError, match="forward only"):
            await tester.advance(-1)
        with pytest.raises(SignalRefused):
            await tester.signal(await tester.send("hello"), "go")


async def test_an_agent_that_works_for_too_long() -> None:
    has_begun = asyncio.Event()

    async def endless(turn: Turn) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async with AgentTester(endless, timeout=0.01, cancel_grace=0.1) as tester:
        task = await tester.submit("hello")
        await has_begun.wait()
        with pytest.raises(DeadlineExceeded, match=r"the agent worked for longer than 0\.01 s") as exc_info:
            await tester.wait(task)
        assert (exc_info.value.result.task_id, exc_info.value.result.state_name) == (task.task_id, "WORKING")
        with pytest.raises(DeadlineExceeded, match=r"the agent worked for longer than 0\.01 s"):
            await tester.send("hello")


async def test_a_run_that_does_not_begin(a2a: A2A) -> None:
    has_begun, may_continue = asyncio.Event(), asyncio.Event()

    @a2a.add_lifespan
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        has_begun.set()
        await may_continue.wait()
        yield

    @a2a.agent("echo")
    async def echo(turn: Turn) -> str:
        return turn.text

    async with AgentTester(a2a, timeout=0.01) as tester:
        try:
            task = await tester.submit("hello")
            await has_begun.wait()
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: tester.wait(task),
                lambda: tester.signal(task, "go"),
                lambda: tester.advance(1),
                tester.crash,
                lambda: tester.cancel(task),
            ]
            text = rf"no worker began the run {task.task_id}\.1 within 0\.01 s"
            for call in calls:
                with pytest.raises(DeadlineExceeded, match=text):
                    await call()
            with pytest.raises(DeadlineExceeded) as exc_info:
                await tester.wait(task)
            assert exc_info.value.result == task
        finally:
            may_continue.set()


async def test_limits_follow_the_clock() -> None:
    async def endless(turn: Turn) -> None:
        await asyncio.Event().wait()

    async with AgentTester(endless, time_limit=HOUR) as tester:
        task = await tester.submit("hello")
        await tester.advance(HOUR - 60)
        assert (await tester.client.get(task.task_id)).state_name == "WORKING", "its lease has not expired"
        await tester.advance(60)
        assert (await tester.wait(task)).text == "The agent ran out of time."


async def test_an_unanswered_question_follows_the_clock(a2a: A2A) -> None:
    @a2a.agent("asker")
    async def asker(turn: Turn) -> None:
        await turn.ask("Really?")

    async with AgentTester(a2a) as tester:
        question = await tester.send("hello")
        await tester.advance(HOUR + 1)
        assert (await tester.wait(question)).state_name == "FAILED"


async def test_times_in_the_log_are_those_of_the_clock() -> None:
    async def echo(turn: Turn) -> str:
        return turn.text

    async with AgentTester(echo) as tester:
        await tester.advance(10 * HOUR)
        result = await tester.send("hello")
        assert result.raw is not None
        offset = result.raw.status.timestamp.seconds - SYSTEM_CLOCK.time()
        assert 9 * HOUR < offset < 11 * HOUR
        assert tester.clock.time() - SYSTEM_CLOCK.time() > 9 * HOUR


async def test_a_retry_that_begins_much_later() -> None:
    async def answer_later(turn: Turn) -> str:
        if turn.retries == 0:
            raise turn.retry(countdown=HOUR)
        return "done"

    async with AgentTester(answer_later) as tester:
        waiting = await tester.send("hello")
        assert (waiting.state_name, waiting.stop_reason) == ("WORKING", None)
        await tester.advance(HOUR / 2)
        assert (await tester.wait(waiting)).state_name == "WORKING"
        await tester.advance(HOUR / 2)
        assert (await tester.wait(waiting)).text == "done"


async def test_a_called_agent_that_sleeps_and_then_waits(a2a: A2A) -> None:
    clerk_ids: list[str] = []

    @a2a.agent("clerk")
    async def clerk(turn: Turn) -> str:
        await turn.sleep(HOUR)
        clerk_ids.append(turn.task_id)
        return f"approved by {(await turn.wait_for('approval')).payload}"

    @a2a.agent("office")
    async def office(turn: Turn) -> str:
        return (await turn.call("clerk", turn.text)).text

    @a2a.agent("front")
    async def front(turn: Turn) -> str:
        return (await turn.call("office", turn.text)).text

    async with AgentTester(a2a, "front") as tester:
        waiting = await tester.send("hello")
        assert (waiting.state_name, waiting.stop_reason) == ("WORKING", None)
        await tester.advance(HOUR)
        waiting = await tester.wait(waiting)
        assert (waiting.state_name, waiting.stop_reason) == ("WORKING", None)
        await a2a.signal_async(clerk_ids[0], "approval", "Ann")
        assert (await tester.wait(waiting)).text == "approved by Ann"


async def test_a_retry_of_a_celery_task_has_begun_after_the_clock_has_moved(a2a: A2A) -> None:
    @a2a.celery.task(bind=True, shared=False)
    def answer_later(self: Task) -> str:
        if self.request.retries == 0:
            raise self.retry(countdown=HOUR)
        return "done"

    async with AgentTester(answer_later) as tester:
        waiting = await tester.send({})
        await tester.advance(HOUR)
        task = (await tester.client.get(waiting.task_id)).raw

        assert isinstance(task, A2ATask)
        assert NAMESPACE + NEXT_ATTEMPT_AT not in task.metadata
        assert (await tester.wait(waiting)).text == "done"


async def test_every_attempt_crashes() -> None:
    attempts: list[int] = []

    async def work() -> None:
        tester.crash_after("work")

    async def agent(turn: Turn) -> None:
        attempts.append(turn.attempt)
        await turn.step("work", work)
        tester.crash_after("more")
        await turn.step("more", work)

    async with AgentTester(agent, max_attempts=2) as tester:
        result = await tester.send("hello")

    assert (result.state_name, result.text) == ("FAILED", "The worker was lost.")
    assert attempts == [1, 2]


async def test_a_blocking_agent_crashes() -> None:
    calls: list[str] = []

    def agent(turn: Turn) -> str:
        return "".join(turn.blocking.step(name, calls.append, name) or name for name in "ab")

    async with AgentTester(agent, max_attempts=2) as tester:
        tester.crash_after("a")
        assert (await tester.send("hello")).text == "ab"
    assert calls == ["a", "b"]


async def test_a_celery_task_crashes(a2a: A2A) -> None:
    has_begun, ends = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @a2a.celery.task(bind=True, shared=False)
    def blocking(self: Task, text: str) -> str:
        loop.call_soon_threadsafe(has_begun.set)
        ends.wait()
        return text

    a2a.expose(blocking, max_attempts=2)
    async with AgentTester(a2a) as tester:
        task = await tester.submit("hello")
        await has_begun.wait()
        await tester.crash()
        assert (await tester.client.get(task.task_id)).state_name == "WORKING", "the next attempt blocks too"
        ends.set()
        assert (await tester.wait(task)).text == "hello"


async def test_a_killed_worker_writes_nothing_more() -> None:
    has_begun, has_ended = asyncio.Event(), asyncio.Event()

    async def agent(turn: Turn) -> AsyncIterator[str]:
        has_begun.set()
        try:
            yield f"attempt {turn.attempt}"
            if turn.attempt == 1:
                await asyncio.Event().wait()
        finally:
            if turn.attempt == 1:
                yield "from the dead"
            has_ended.set()

    async with AgentTester(agent, max_attempts=2) as tester:
        task = await tester.submit("hello")
        await has_begun.wait()
        await tester.crash()
        assert (await tester.wait(task)).text == "attempt 2"


async def test_the_clock() -> None:
    clock = SimulatedClock()

    async def slept() -> float:
        await clock.sleep(HOUR)
        return clock.offset

    async def limited() -> str:
        try:
            async with clock.timeout(HOUR):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return ""

    waits: list[asyncio.Task[Any]] = [asyncio.create_task(slept()), asyncio.create_task(limited())]
    await asyncio.sleep(0)
    clock.move(HOUR / 2)
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    clock.move(HOUR / 2)
    assert await asyncio.gather(*waits) == [HOUR, "timed out"]
    async with clock.timeout(None):
        await clock.sleep(0)


async def test_the_tester_ends_while_a_worker_writes_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def agent(turn: Turn) -> str:
        return "answer"

    run, settling = SimulatedStore.run, asyncio.Event()

    async def stop_before_the_reply(store: SimulatedStore, operation: Operation[Any]) -> Any:
        reply = await run(store, operation)
        if operation.script.name == "settle_run":
            settling.set()
            raise StoreUnavailable("the reply was lost")
        return reply

    monkeypatch.setattr(SimulatedStore, "run", stop_before_the_reply)
    async with asyncio.timeout(LIMIT):
        async with AgentTester(agent) as tester:
            await tester.submit("hello")
            await settling.wait()
