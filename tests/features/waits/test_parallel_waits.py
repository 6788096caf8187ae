"""Waits beside other code of the agent: durable steps end before the run is suspended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from celery import Celery

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.families.agent_calls import AgentCalls
from a2a_celery.features.families.calls import CHILD_SIGNAL, SHORT_CALL
from a2a_celery.features.steps.journal import RunJournal
from a2a_celery.lifecycle.own_metadata import NAMESPACE, WAITS_FOR
from a2a_celery.lifecycle.signals import Sender, encode_signal
from a2a_celery.lifecycle.states import WORKING
from a2a_celery.store import AsyncStore, Keys
from tests.execution.local_agents import SuspendableAgents, suspendable_agents
from tests.features.families.test_calls import URL, RemoteServer

app = Celery("test", broker="memory://", set_as_current=False)
a2a = A2A(app)
calls: list[str] = []
"""Calls that the agents made."""
remote_agent = RemoteServer()


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[SuspendableAgents]:
    """Agents of this module in the test process."""
    async with suspendable_agents(a2a, store, keys, redis_server.store_url) as agents:
        yield agents


def work(name: str) -> str:
    """Record that a step has ended, after a wait has begun beside the step."""
    threading.Event().wait(0.05)
    calls.append(name)
    return name


@a2a.agent("step-beside", description="Sleeps beside a step.")
async def step_beside(turn: Turn) -> str:
    _, name = await asyncio.gather(turn.sleep(3600), turn.step("work", work, "work"))
    return f"{name} done"


@a2a.agent("steps-beside", description="Sleeps beside two successive steps.")
async def steps_beside(turn: Turn) -> str:
    async def branch() -> str:
        return "".join([await turn.step("work", work, name) for name in "ab"])

    names, _ = await asyncio.gather(branch(), turn.sleep(3600))
    return f"{names} done"


@a2a.agent("failing-step-beside", description="Sleeps beside a step that fails.")
async def failing_step_beside(turn: Turn) -> str:
    def fail() -> None:
        raise ValueError(work("fail"))

    results = await asyncio.gather(turn.step("fail", fail), turn.sleep(3600), return_exceptions=True)
    return f"{results[0]} done"


@a2a.agent("sleeping-steps", description="Sleeps in two steps at once, beside a third step.")
async def sleeping_steps(turn: Turn) -> str:
    async def sleep_in_step(name: str) -> str:
        await turn.sleep(3600)
        return name

    names = await asyncio.gather(
        *(turn.step("sleeps", sleep_in_step, name) for name in "ab"), turn.step("work", work, "c")
    )
    return f"{''.join(names)} done"


@a2a.agent("threaded-step-beside", description="Sleeps beside a step in another thread.")
def threaded_step_beside(turn: Turn) -> str:
    has_begun = threading.Event()
    names: list[str] = []

    def step_in_thread() -> str:
        has_begun.set()
        return work("work")

    thread = threading.Thread(target=lambda: names.append(turn.blocking.step("work", step_in_thread)))
    thread.start()
    while not has_begun.wait(0.01) and thread.is_alive():
        pass
    try:
        turn.blocking.sleep(3600)
    finally:
        thread.join()
    return f"{names[0]} done"


@a2a.agent("pool-in-a-step", description="Sleeps in a thread that a step starts, without context variables.")
async def pool_in_a_step(turn: Turn) -> str:
    def sleep_in_pool() -> str:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(turn.blocking.sleep, 3600).result()
        return work("work")

    return f"{await turn.step('pool', sleep_in_pool)} done"


@a2a.agent("stops-waiting", description="Stops a wait in a step, and sleeps.")
async def stops_waiting(turn: Turn) -> str:
    async def stop_waiting() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.gather(turn.sleep(3600), turn.step("hangs", asyncio.sleep, 60))
        calls.append("stopped")

    await asyncio.gather(turn.step("stops", stop_waiting), turn.sleep(3600))
    return "done"


@a2a.agent("waits-no-longer", description="Continues when its wait is cancelled.")
async def waits_no_longer(turn: Turn) -> str:
    with suppress(asyncio.CancelledError):
        await turn.wait_for("go")
    name = await turn.step("work", work, "work")
    await turn.sleep(3600)
    return f"{name} done"


@a2a.agent("child", description="Is called.")
async def child(turn: Turn) -> str:
    return turn.text


@a2a.agent("calls-beside-a-step", description="Calls an agent beside a step.")
async def calls_beside_a_step(turn: Turn) -> str:
    def slow() -> str:
        threading.Event().wait(SHORT_CALL + 0.2)
        return work("work")

    name, result = await asyncio.gather(turn.step("work", slow), turn.call("child", "child"))
    return f"{name}, {result.text} done"


@a2a.agent("sleeps-beside-a-remote-call", description="Limits the time for a remote agent.")
async def sleeps_beside_a_remote_call(turn: Turn) -> str:
    call = asyncio.create_task(turn.call(URL, "check"))
    await turn.sleep(3600)
    call.cancel()
    return "late"


@pytest.mark.parametrize(
    ("agent", "steps", "sleep_count"),
    [
        ("step-beside", ["work"], 1),
        ("steps-beside", ["a", "b"], 1),
        ("failing-step-beside", ["fail", "fail"], 1),
        ("sleeping-steps", ["c"], 2),
        ("threaded-step-beside", ["work"], 1),
        ("pool-in-a-step", ["work"], 1),
    ],
)
async def test_a_run_is_suspended_after_the_steps_beside_the_wait(
    agents: SuspendableAgents, agent: str, steps: list[str], sleep_count: int
) -> None:
    async with asyncio.timeout(60):
        assert (await agents.play(agent)).status.state == WORKING
        texts = [await agents.wake(agent, run) for run in range(2, sleep_count + 2)]

    assert texts[-1].endswith(" done")
    assert calls == steps, "only a step that failed is executed again"


async def test_a_run_is_suspended_after_the_steps_beside_a_call(agents: SuspendableAgents) -> None:
    task = await agents.play("calls-beside-a-step")
    waits_for = str(task.metadata[NAMESPACE + WAITS_FOR])
    await agents.perform("child", waits_for.removeprefix(CHILD_SIGNAL))

    assert await agents.go_on("calls-beside-a-step", 2) == "work, child done"
    assert calls == ["work"]


async def test_a_cancelled_wait_in_a_step_does_not_prevent_a_suspension(agents: SuspendableAgents) -> None:
    task = await agents.play("stops-waiting")

    assert (task.status.state, calls) == (WORKING, ["stopped"])
    assert await agents.wake("stops-waiting", 2) == "done"
    assert calls == ["stopped"]


async def test_a_cancelled_wait_keeps_its_position(agents: SuspendableAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until_suspendable = RunJournal.wait_until_suspendable

    async def cancel(journal: RunJournal) -> None:
        monkeypatch.setattr(RunJournal, "wait_until_suspendable", wait_until_suspendable)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await wait_until_suspendable(journal)

    monkeypatch.setattr(RunJournal, "wait_until_suspendable", cancel)
    assert (await agents.play("waits-no-longer")).status.state == WORKING
    await agents.suspensions.send_signal("t", "go", encode_signal(None, Sender.APP))

    assert await agents.wake("waits-no-longer", 2) == "work done"
    assert calls == ["work"]


async def test_a_remote_task_does_not_delay_a_suspension(
    agents: SuspendableAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("start", "result"):
        monkeypatch.setattr(AgentCalls, method, staticmethod(getattr(remote_agent, method)))
    async with asyncio.timeout(60):
        assert (await agents.play("sleeps-beside-a-remote-call")).status.state == WORKING
        assert await agents.wake("sleeps-beside-a-remote-call", 2) == "late"

    assert remote_agent.started == ["task 1"]
