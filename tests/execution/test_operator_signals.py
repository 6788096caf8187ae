"""Signals of operators: `A2A.signal`, `A2A.signal_async` and the command ``a2a signal``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from a2a_celery import SignalRefused
from a2a_celery.cli.commands import a2a as commands
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.tasks.signals import MAX_STORED_SIGNALS
from tests.support.agents.basic import card
from tests.support.store.seeds import ANN
from tests.support.store.suspensions import Suspensions, wait_for

from .local_agents import LocalAgents, local_agents


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[LocalAgents]:
    """App with the agent to which the tasks belong."""
    async with local_agents(store, keys, redis_server.store_url) as agents:
        agents.a2a.agent("agent", description="Waits.")(lambda turn: None)
        await store.redis.hset(keys.installation, "schema", SCHEMA)
        yield agents
        await asyncio.to_thread(agents.a2a._submissions.close)


async def send(agents: LocalAgents, way: str, *arguments: Any, **options: Any) -> bool:
    """Send a signal by the blocking or by the asynchronous method. Return True if a run waited for the signal."""
    if way == "async":
        return await agents.a2a.signal_async(*arguments, **options)
    return await asyncio.to_thread(agents.a2a.signal, *arguments, **options)


@pytest.mark.parametrize("way", ["blocking", "async"])
async def test_a_signal_resumes_a_run_or_is_stored(agents: LocalAgents, way: str) -> None:
    suspensions = Suspensions(agents.seeds)
    claim = await agents.seeds.claim_run()
    await suspensions.suspend_run(claim, wait_for("go"))

    replies = [await send(agents, way, claim.ref.task_id, "go", {"number": n}, signal_id=f"s{n}") for n in (1, 2, 2)]

    assert replies == [True, False, False]
    next_claim = await agents.seeds.claim_run(claim.ref.task_id, run=2)
    assert next_claim.journal.entries is not None
    assert next_claim.journal.entries["go#1"].content == b'{"sender":"app","payload":{"number":1}}'
    assert await suspensions.take_signal(next_claim, "go", 2) is not None
    assert await suspensions.take_signal(next_claim, "go", 3) is None


@pytest.mark.parametrize("way", ["blocking", "async"])
async def test_a_signal_that_cannot_be_received_is_refused(agents: LocalAgents, way: str) -> None:
    ended_id, full_id = await agents.seeds.create_task_in(COMPLETED), await agents.seeds.create_task()
    for number in range(MAX_STORED_SIGNALS):
        await Suspensions(agents.seeds).send_signal(full_id, "go", str(number).encode())

    for task_id, text in ((ended_id, "COMPLETED"), ("unknown", "no task"), (full_id, "100 signals")):
        with pytest.raises(SignalRefused, match=text):
            await send(agents, way, task_id, "go")
    for arguments in (("two words",), ("go", object()), ("go", "x" * 70_000), ("go", float("nan"))):
        with pytest.raises(ValueError, match="signal"):
            await send(agents, way, full_id, *arguments)


@pytest.mark.parametrize("way", ["blocking", "async"])
async def test_an_agent_that_is_no_function_receives_no_signal(agents: LocalAgents, way: str) -> None:
    def resize() -> None:
        """Resize an image."""

    agents.a2a.expose(agents.a2a.celery.task(resize, shared=False), name="resizer")
    agents.a2a.add_agent(card("executor"), "acme.agents:Executor")
    for agent in ("resizer", "executor"):
        task_id = await agents.seeds.create_task(scope=replace(ANN, agent=agent))

        with pytest.raises(SignalRefused, match=f"agent '{agent}' receives no signals: only agents that are functions"):
            await send(agents, way, task_id, "go")

        assert not await agents.store.redis.exists(agents.keys.task(task_id).signals)


async def test_the_command_reports_errors_in_one_line(agents: LocalAgents) -> None:
    task_id = await agents.seeds.create_task()

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(commands, ["signal", *arguments], obj=SimpleNamespace(app=agents.a2a.celery))
        return result.exit_code, result.output

    assert (await asyncio.to_thread(run, task_id, "go", "{"))[0] == 2
    assert (await asyncio.to_thread(run, task_id, "two words"))[0] == 2
    code, output = await asyncio.to_thread(run, "unknown", "go")
    assert (code, output.count("\n")) == (1, 1), output
    assert (await asyncio.to_thread(run, task_id, "go", "[1]")) == (0, f"stored until task {task_id} waits for go\n")
    [stored_signal] = await agents.store.redis.lrange(agents.keys.task(task_id).signals, 0, -1)
    assert stored_signal.endswith(b'{"sender":"operator","payload":[1]}')
