"""`A2A.submit` without workers: stored tasks, refused messages, and the handle of a task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.types import AgentCapabilities, AgentCard, AgentExtension, Message, Part, Role
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from celery import Celery

from a2a_celery import A2A, ConfigError, TaskHandle, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.client import DeadlineExceeded
from a2a_celery.dispatch import Publisher
from a2a_celery.features.webhooks.push_configs import save_push_config
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, INPUT_REQUIRED, SUBMITTED
from a2a_celery.operations.errors import LimitExceededError
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.tasks.commands import read_task
from a2a_celery.submission import Submission, Submissions
from tests.support.store.delivery_cursors import new
from tests.support.store.seeds import ANN
from tests.support.waiting import LIMIT

from .local_agents import LocalAgents, local_agents


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[LocalAgents]:
    async with local_agents(store, keys, redis_server.store_url, a2a_max_request_bytes=2048) as agents:

        @agents.a2a.agent("echo", idempotency_window=60)
        async def echo(turn: Turn) -> str:
            """Echo."""
            return f"{turn.caller.user} in {turn.caller.tenant}: {turn.text}"

        @agents.a2a.agent("asks")
        async def asks(turn: Turn) -> str:
            """Ask."""
            return await turn.ask("How many?")

        await store.redis.hset(keys.installation, "schema", SCHEMA)
        yield agents
        await asyncio.to_thread(agents.a2a.close)


@pytest.fixture
async def submissions(agents: LocalAgents) -> AsyncIterator[Submissions]:
    """Submissions with ids that the test chooses."""
    a2a = agents.a2a
    submissions = Submissions(a2a.agents, lambda: a2a.settings, lambda: Publisher(a2a.celery, {}, agents.keys.prefix))
    yield submissions
    await asyncio.to_thread(submissions.close)


async def perform(agents: LocalAgents, handle: TaskHandle, run: int = 1) -> None:
    """Execute a run of the task, as a worker does."""
    await agents.perform(handle.agent, handle.task_id, run)


async def test_a_submitter_needs_neither_the_archive_nor_the_secret_key(agents: LocalAgents) -> None:
    keys, seeds = agents.keys, agents.seeds
    await agents.store.redis.hset(keys.installation, "archive", "1")
    task_id = await seeds.create_task()
    assert await agents.store.run(save_push_config(keys, ANN, task_id, new())) is None

    handle = await agents.a2a.submit_async("echo", "hello", owner="ann")

    assert (await seeds.task(handle.task_id)).status.state == SUBMITTED


async def test_an_optional_argument_may_be_none(agents: LocalAgents) -> None:
    options = ("owner", "tenant", "context_id", "metadata", "extensions")
    handle = await agents.a2a.submit_async("echo", "hello", **dict.fromkeys(options))

    assert await agents.a2a.task("echo", handle.task_id, owner=None, tenant=None).cancel_async()


async def test_the_result_and_the_events_of_a_task(agents: LocalAgents) -> None:
    handle = await agents.a2a.submit_async("echo", "hello", owner="ann", tenant="acme", context_id="c")
    with pytest.raises(DeadlineExceeded, match="is SUBMITTED: no worker has begun it") as exc_info:
        await handle.result_async(timeout=0)
    await perform(agents, handle)

    result = await handle.result_async(timeout=LIMIT)
    events = [event async for event in handle.events_async()]

    assert exc_info.value.result.state == SUBMITTED
    assert (handle.agent, handle.context_id) == ("echo", "c")
    assert (result.state, result.text, result.task_id, result.context_id) == (
        COMPLETED,
        "ann in acme: hello",
        handle.task_id,
        "c",
    )
    assert [event.task.status.state for event in events] == [COMPLETED]


async def test_the_events_follow_the_run(agents: LocalAgents) -> None:
    handle = await agents.a2a.submit_async("echo", "hello")
    events = handle.events_async()

    first = await anext(events)
    run = asyncio.create_task(perform(agents, handle))
    rest = [event async for event in events]
    await run

    assert first.task.status.state == SUBMITTED
    assert [event.WhichOneof("payload") for event in rest][-2:] == ["artifact_update", "status_update"]
    assert rest[-1].status_update.status.state == COMPLETED


async def test_a_question_is_a_result(agents: LocalAgents) -> None:
    handle = await agents.a2a.submit_async("asks", "hello")
    await perform(agents, handle)

    result = await handle.result_async(timeout=LIMIT)

    assert (result.state, result.stop_reason, result.text) == (INPUT_REQUIRED, "interrupt", "How many?")


async def test_the_blocking_methods_work_in_a_thread_and_refuse_an_event_loop(agents: LocalAgents) -> None:
    with pytest.raises(RuntimeError, match="_async"):
        agents.a2a.submit("echo", "hello")

    handle = await asyncio.to_thread(agents.a2a.submit, "echo", {"a": 1})
    canceled_task = await asyncio.to_thread(handle.cancel)
    events = await asyncio.to_thread(lambda: list(handle.events()))
    result = await asyncio.to_thread(handle.result, 20)

    assert canceled_task.state == CANCELED
    assert [event.task.status.state for event in events] == [CANCELED]
    assert result.state == CANCELED
    assert (await handle.cancel_async()).state == CANCELED  # unchanged


async def test_a_message_id_is_idempotent(agents: LocalAgents) -> None:
    message = Message(message_id="m", parts=[Part(text="hello")], role=Role.ROLE_USER)

    first, second = [await agents.a2a.submit_async("echo", message, context_id="c") for _ in range(2)]

    assert (first.task_id, first.context_id) == (second.task_id, second.context_id)
    message.parts[0].text = "another"
    with pytest.raises(InvalidParamsError, match="Another message had this id"):
        await agents.a2a.submit_async("echo", message, context_id="c")


async def test_an_id_identifies_a_call_of_one_owner(agents: LocalAgents, submissions: Submissions) -> None:
    async def submit(text: str, owner: str) -> tuple[str, str]:
        submission = Submission.of("echo", text, owner=owner, context_id="c")
        return await submissions.run_async(
            lambda process: process.submitter.submit("echo", submission.params, submission.caller, task_id="t")
        )

    assert await submit("hello", "ann") == await submit("hello again", "ann") == ("t", "c")
    with pytest.raises(InvalidParamsError, match="another agent, tenant or owner"):
        await submit("hello", "bob")
    stored_task = await agents.store.run(read_task(agents.keys, None, "t"))
    assert stored_task is not None
    assert [message.parts[0].text for message in stored_task[0].history] == ["hello"]


async def test_a_repeated_call_without_a_context_returns_the_context_of_its_task(
    agents: LocalAgents, submissions: Submissions
) -> None:
    async def submit() -> tuple[str, str]:
        submission = Submission.of("asks", "hello")
        return await submissions.run_async(
            lambda process: process.submitter.submit("asks", submission.params, submission.caller, task_id="t")
        )

    first, second = await submit(), await submit()

    stored_task = await agents.store.run(read_task(agents.keys, None, "t"))
    assert stored_task is not None
    assert first == second == ("t", stored_task[0].context_id)


async def test_a_handle_belongs_to_its_owner(agents: LocalAgents) -> None:
    handle = await agents.a2a.submit_async("echo", "hello", owner="ann")

    other_handle = agents.a2a.task("echo", handle.task_id, owner="ann")
    assert (await other_handle.cancel_async()).state == CANCELED
    for other in (
        agents.a2a.task("echo", handle.task_id, owner="bob"),
        agents.a2a.task("echo", "unknown", owner="ann"),
    ):
        for call in (other.result_async(), other.cancel_async(), anext(other.events_async())):
            with pytest.raises(TaskNotFoundError):
                await call


REQUIRED = AgentCard(
    name="strict",
    description="Strict.",
    version="1",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=AgentCapabilities(extensions=[AgentExtension(uri="urn:x", required=True)]),
)


@pytest.mark.parametrize(
    ("agent", "message", "options", "error"),
    [
        ("nobody", "hello", {}, ConfigError),
        ("echo", "x" * 3000, {}, InvalidParamsError),
        ("echo", "hello", {"context_id": "c" * 300}, InvalidParamsError),
        ("echo", "hello", {"owner": "o" * 300}, InvalidParamsError),
        ("echo", Message(role=Role.ROLE_AGENT, parts=[Part(text="hello")]), {}, InvalidParamsError),
        ("echo", Message(parts=[]), {}, InvalidParamsError),
        ("echo", Message(task_id="t", parts=[Part(text="hello")]), {}, UnsupportedOperationError),
        ("echo", "hello", {"metadata": {"celery_schedule": {}}}, InvalidParamsError),
        ("echo", b"raw", {}, ContentTypeNotSupportedError),
        ("strict", "hello", {}, ExtensionSupportRequiredError),
    ],
)
async def test_a_message_is_refused_as_by_a_gateway(
    agents: LocalAgents, agent: str, message: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    agents.a2a.add_agent(REQUIRED, "nowhere:Executor")

    with pytest.raises(error):
        await agents.a2a.submit_async(agent, message, **options)

    assert await agents.store.redis.keys(f"{agents.keys.prefix}:{{*") == []


async def test_a_required_extension_can_be_requested(agents: LocalAgents) -> None:
    agents.a2a.add_agent(REQUIRED, "nowhere:Executor")

    assert (await agents.a2a.submit_async("strict", "hello", extensions=["urn:x"])).task_id


@pytest.mark.parametrize(
    "setting", ["a2a_owner_max_concurrent_tasks", "a2a_agent_max_queue", "a2a_owner_requests_per_second"]
)
async def test_a_limit_refuses_a_message(agents: LocalAgents, setting: str) -> None:
    agents.a2a.celery.conf[setting] = 0.01 if setting.endswith("second") else 1
    await agents.a2a.submit_async("echo", "hello", owner="ann")

    with pytest.raises(LimitExceededError) as exc_info:
        await agents.a2a.submit_async("echo", "hello", owner="ann")

    assert isinstance(exc_info.value, A2AError)


async def test_what_an_agent_submits_is_its_child(agents: LocalAgents) -> None:
    handles: list[TaskHandle] = []

    @agents.a2a.agent("parent")
    async def parent(turn: Turn) -> None:
        """Submit."""
        handles.append(await agents.a2a.submit_async("echo", "hello", owner=turn.caller.user))
        handles.append(await agents.a2a.submit_async("echo", "hello", owner="bob"))

    await agents.perform("parent", await agents.create())

    for handle, owner, parent_id in zip(handles, ("ann", "bob"), ("t", None), strict=True):
        stored_task = await agents.store.run(read_task(agents.keys, Scope("echo", "", owner), handle.task_id))
        assert stored_task is not None
        assert dict(stored_task[0].metadata).get("a2a_celery/parentTaskId") == parent_id


async def test_an_unavailable_broker_leaves_the_run_to_the_watcher(
    agents: LocalAgents, caplog: pytest.LogCaptureFixture
) -> None:
    agents.a2a.celery.conf.broker_url = "redis://127.0.0.1:1/0"

    handle = await agents.a2a.submit_async("echo", "hello")

    assert "a watcher publishes it" in caplog.text
    assert await agents.store.redis.zrange(agents.keys.dispatch, 0, -1) == [f"{handle.task_id}.1".encode()]


def test_a_wrong_setting_is_named_and_leaves_no_thread() -> None:
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.update(a2a_store_url="redis://127.0.0.1:1/0", a2a_blob_url="nosuch://x/y")
    a2a = A2A(app)

    @a2a.agent("echo")
    async def echo(turn: Turn) -> str:
        return turn.text

    with pytest.raises(ConfigError, match="a2a_blob_url"):
        a2a.submit("echo", "hi")

    assert not [thread for thread in threading.enumerate() if thread.name == "a2a-submissions"]
