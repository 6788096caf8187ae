"""Remote tasks and Celery tasks that an agent starts. By default, they are cancelled with the agent's task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from a2a_celery import Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.client import RemoteAgent
from a2a_celery.client.calling import call_task
from a2a_celery.lifecycle.outcomes import CANCELED_WITH_RUN
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.tasks.commands import request_cancel
from tests.execution.local_agents import LocalAgents, local_agents
from tests.support.processes.plain_server import Steps, plain_server
from tests.support.store.seeds import ANN, CONTEXT
from tests.support.waiting import eventually_async


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[LocalAgents]:
    async with local_agents(store, keys, redis_server.store_url, a2a_cancel_grace=60) as agents:
        yield agents


@pytest.fixture
async def server_url() -> AsyncIterator[str]:
    async with plain_server(Steps()) as url:
        yield url


async def start_and_cancel(agents: LocalAgents, agent: str, is_begun: Callable[[], bool]) -> None:
    """Start a task of `agent`, and cancel it as its client when `is_begun` returns True."""

    async def has_begun() -> bool:
        return is_begun()

    async def is_canceled() -> bool:
        # repeated, because the worker may not be subscribed yet
        await agents.store.run(request_cancel(agents.keys, ANN, "t", CONTEXT))
        return (await agents.seeds.task("t")).status.state == CANCELED

    run = asyncio.create_task(agents.perform(agent, await agents.create()))
    await eventually_async(has_begun)
    await eventually_async(is_canceled)
    await run


async def state_of(url: str, task_id: str) -> str:
    async with RemoteAgent(url) as remote:
        return (await remote.get(task_id)).state_name


async def ends_canceled(url: str, task_id: str) -> None:
    async def is_canceled() -> bool:
        return await state_of(url, task_id) == "CANCELED"

    await eventually_async(is_canceled)


@pytest.mark.parametrize("method", ["streams", "submits", "in a thread"])
async def test_a_remote_task_is_cancelled_with_the_agent_that_started_it(
    agents: LocalAgents, server_url: str, method: str
) -> None:
    ids: list[str] = []

    async def start(turn: Turn | None = None) -> None:
        async with RemoteAgent(server_url) as remote:
            session = remote.session()
            if method == "submits":
                ids.append((await remote.submit(session.message("wait"))).task_id)
            else:
                async for _ in session.stream("wait"):
                    if session.task_id and not ids:
                        ids.append(session.task_id)
            await asyncio.get_running_loop().create_future()

    def start_in_a_thread(turn: Turn) -> None:
        async def submit() -> None:
            async with RemoteAgent(server_url) as remote:
                ids.append((await remote.submit(remote.session().message("wait"))).task_id)

        asyncio.run(submit())
        while True:
            turn.blocking.say("waiting")

    agents.a2a.agent("agent", description="Delegates.")(start_in_a_thread if method == "in a thread" else start)

    await start_and_cancel(agents, "agent", lambda: bool(ids))

    await ends_canceled(server_url, ids[0])


@pytest.mark.parametrize("method", ["streams", "submits"])
async def test_a_remote_task_whose_id_arrives_after_the_cancel_is_cancelled(agents: LocalAgents, method: str) -> None:
    """The server has started the task, and its response is still on the way."""
    executor, may_respond, agent_tasks = Steps(), asyncio.Event(), list[asyncio.Task[Any]]()

    def hold_response(app: ASGIApp) -> ASGIApp:
        async def hold(scope: Scope, receive: Receive, send: Send) -> None:
            async def respond(message: ASGIMessage) -> None:
                if scope["type"] == "http" and scope["method"] == "POST":
                    await may_respond.wait()
                await send(message)

            await app(scope, receive, respond)

        return hold

    async with plain_server(executor, around=hold_response) as url:

        @agents.a2a.agent("agent")
        async def starts(turn: Turn) -> None:
            agent_tasks.append(cast(asyncio.Task[Any], asyncio.current_task()))
            async with RemoteAgent(url) as remote:
                session = remote.session()
                if method == "submits":
                    await remote.submit(session.message("wait"))
                async for _ in session.stream("wait"):
                    pass

        async def is_stopping() -> bool:
            await agents.store.run(request_cancel(agents.keys, ANN, "t", CONTEXT))
            return bool(agent_tasks[0].cancelling())

        async def has_begun() -> bool:
            return bool(executor.begun)

        run = asyncio.create_task(agents.perform("agent", await agents.create()))
        await eventually_async(has_begun)
        await eventually_async(is_stopping)
        may_respond.set()
        await run
        assert (await agents.seeds.task("t")).status.state == CANCELED
        await ends_canceled(url, executor.begun[0])


async def test_an_agent_that_cancels_itself_cancels_its_remote_tasks(agents: LocalAgents, server_url: str) -> None:
    ids: list[str] = []

    @agents.a2a.agent("agent")
    async def gives_up(turn: Turn) -> None:
        async with RemoteAgent(server_url) as remote:
            ids.append((await remote.submit(remote.session().message("wait"))).task_id)
        raise asyncio.CancelledError

    assert (await agents.play("agent")).status.state == CANCELED

    await ends_canceled(server_url, ids[0])


async def test_a_remote_task_is_cancelled_when_its_agent_fails(agents: LocalAgents, server_url: str) -> None:
    ids: list[str] = []

    @agents.a2a.agent("agent")
    async def fails(turn: Turn) -> None:
        async with RemoteAgent(server_url) as remote:
            ids.append((await remote.submit(remote.session().message("wait"))).task_id)
        raise RuntimeError

    assert (await agents.play("agent")).status.state == FAILED

    await ends_canceled(server_url, ids[0])


@pytest.mark.parametrize("is_canceled", [True, False], ids=["canceled", "retried"])
async def test_a_remote_task_is_cancelled_when_its_run_is_released_for_a_retry(
    agents: LocalAgents, server_url: str, redis_server: EmbeddedRedis, is_canceled: bool
) -> None:
    """A cancel request that arrives with the retry also leaves no remote task behind."""
    ids: list[str] = []

    @agents.a2a.agent("agent", autoretry_for=(OSError,), default_retry_delay=1000)
    async def fails(turn: Turn) -> None:
        async with RemoteAgent(server_url) as remote:
            ids.append((await remote.submit(remote.session().message("wait"))).task_id)
        if is_canceled:
            SyncStore(redis_server.store_url).run(request_cancel(agents.keys, ANN, "t", CONTEXT))  # blocks the loop
        raise ConnectionError

    assert (await agents.play("agent")).status.state == (CANCELED if is_canceled else WORKING)

    await ends_canceled(server_url, ids[0])


@pytest.mark.parametrize("end", ["retried", "failed", "kept", "completed"])
@pytest.mark.parametrize("owner", ["ann", ""])
async def test_a_submitted_task_is_cancelled_with_the_run_that_started_it(
    agents: LocalAgents, end: str, owner: str
) -> None:
    """No watcher runs. For a task of another owner, and after a retry, a watcher would not cancel the task either."""
    ids: list[str] = []
    await agents.store.redis.hset(agents.keys.installation, "schema", SCHEMA)

    @agents.a2a.agent("waits")
    async def waits(turn: Turn) -> None:
        """Wait."""

    @agents.a2a.agent("agent", autoretry_for=(OSError,), default_retry_delay=1000)
    async def submits(turn: Turn) -> None:
        handle = await agents.a2a.submit_async("waits", "hello", owner=owner, cancel_with_parent=end != "kept")
        ids.append(handle.task_id)
        if end != "completed":
            raise RuntimeError if end == "failed" else ConnectionError

    async def is_canceled() -> bool:
        return (await agents.seeds.task(ids[0])).status.state == CANCELED

    await agents.play("agent")

    if end in ("retried", "failed"):
        await eventually_async(is_canceled)
        assert await agents.seeds.status_text(ids[0]) == CANCELED_WITH_RUN
    assert (await agents.seeds.task(ids[0])).status.state == (CANCELED if end in ("retried", "failed") else SUBMITTED)
    await asyncio.to_thread(agents.a2a.close)


@pytest.mark.parametrize("end", ["completes", "is told not to"])
async def test_a_remote_task_continues_without_a_cancel(agents: LocalAgents, server_url: str, end: str) -> None:
    ids: list[str] = []

    @agents.a2a.agent("agent")
    async def delegates(turn: Turn) -> None:
        async with RemoteAgent(server_url, cancel_with_parent=end == "completes") as remote:
            ids.append((await remote.submit(remote.session().message("wait"))).task_id)
        if end != "completes":
            raise asyncio.CancelledError

    task = await agents.play("agent")

    assert task.status.state == (COMPLETED if end == "completes" else CANCELED)
    assert await state_of(server_url, ids[0]) != "CANCELED"
    async with RemoteAgent(server_url) as remote:
        await remote.cancel(ids[0])


@pytest.mark.parametrize("options", [{}, {"cancel_with_parent": False}])
async def test_a_step_is_revoked_with_the_agent_that_published_it(agents: LocalAgents, options: dict[str, Any]) -> None:
    revocations: list[tuple[str, bool]] = []
    call = call_task(agents.a2a.celery)
    agents.a2a.celery.control.revoke = lambda name, terminate=False, **_: revocations.append((name, terminate))

    @agents.a2a.agent("agent")
    async def publishes(turn: Turn) -> None:
        step = call.s("http://localhost:1", "hello").set(task_id="step", **options)
        await asyncio.to_thread(step.apply_async)
        raise asyncio.CancelledError

    assert (await agents.play("agent")).status.state == CANCELED

    async def is_revoked() -> bool:
        return bool(revocations)

    if not options:
        await eventually_async(is_revoked)
    assert revocations == ([] if options else [("step", True)])
