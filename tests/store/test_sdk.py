"""Store as the task store and event stream of the SDK, also under the SDK's request handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from a2a.helpers import new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion, VersionedEvent
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.tasks import TaskUpdater
from a2a.types import GetTaskRequest, ListTasksRequest, Task, TaskState, TaskStatus

from a2a_celery.caller import Caller
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, INPUT_REQUIRED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pubsub import PubSubListener
from a2a_celery.store.sdk import RedisTaskEventStream, RedisTaskStore, version_number
from tests.support.agents import card
from tests.support.seeds import CONTEXT, RETENTION, Seeds, chunk, request, run_concurrently, status

ANN = Caller(user="ann", authenticated=True).call_context()
BOB = Caller(user="bob", authenticated=True).call_context()


@pytest.fixture
def tasks(store: AsyncStore, keys: Keys) -> RedisTaskStore:
    return RedisTaskStore(store, keys, retention=RETENTION)


@pytest.fixture
def stream(store: AsyncStore, keys: Keys, subscriber: PubSubListener) -> RedisTaskEventStream:
    return RedisTaskEventStream(store, subscriber, keys)


def task_in(state: TaskState, task_id: str = "t") -> Task:
    """Return a task as the SDK would write it."""
    return Task(id=task_id, context_id=CONTEXT, status=TaskStatus(state=state), history=[request().message])


async def write_task(tasks: RedisTaskStore, *, end: bool = False) -> tuple[Task, TaskVersion]:
    """Write a task with a status, two chunks and metadata, as the SDK's TaskManager does."""
    task = task_in(SUBMITTED)
    version = await tasks.save(task, event=task, context=ANN)
    events = [status(WORKING, "busy", step=1), chunk("a"), chunk("b"), *([status(COMPLETED, "bye")] if end else [])]
    for event in events:
        event.task_id, event.context_id = "t", CONTEXT
        version = await tasks.save(task, event=event, prev_version=version, context=ANN)
    stored_task = await tasks.get("t", ANN)
    assert stored_task is not None
    return stored_task.task, version


async def events_of(stream: RedisTaskEventStream, version: TaskVersion) -> list[VersionedEvent]:
    """Return the events of a terminal task after the version `version`."""
    async with asyncio.timeout(10):
        return [event async for event in stream.subscribe("t", after=version)]


class SimpleExecutor(AgentExecutor):
    """Executor that works, sends two chunks and completes."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        assert context.message is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        first = Task(id=context.task_id, context_id=context.context_id, status=TaskStatus(state=SUBMITTED))
        first.history.append(context.message)
        await event_queue.enqueue_event(first)
        await updater.start_work(updater.new_agent_message([new_text_part("busy")]))
        await updater.add_artifact([new_text_part("one ")], artifact_id="a")
        await updater.add_artifact([new_text_part("two")], artifact_id="a", append=True)
        await updater.complete(updater.new_agent_message([new_text_part("bye")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


@pytest.fixture
async def handler(tasks: RedisTaskStore, stream: RedisTaskEventStream) -> AsyncIterator[DefaultRequestHandlerV2]:
    handler = DefaultRequestHandlerV2(SimpleExecutor(), tasks, card("simple"), event_stream=stream)
    yield handler
    await handler.aclose()


async def test_the_sdk_s_own_handler_runs_on_the_store(handler: DefaultRequestHandlerV2, seeds: Seeds) -> None:
    task = await handler.on_message_send(request("hi"), ANN)

    assert isinstance(task, Task)
    assert task.status.state == COMPLETED
    assert "".join(part.text for part in task.artifacts[0].parts) == "one two"
    stored_task = await seeds.task(task.id)
    assert [message.parts[0].text for message in stored_task.history][:1] == ["hi"]
    assert stored_task.status.message.parts[0].text == "bye"
    assert stored_task == await handler.on_get_task(GetTaskRequest(id=task.id), ANN)
    await seeds.require_consistent(task.id)


async def test_a_stored_task_equals_its_log(tasks: RedisTaskStore, seeds: Seeds) -> None:
    task, version = await write_task(tasks)

    assert version == TaskVersion(4)
    assert task == await seeds.task("t")
    assert dict(task.metadata) == {"step": 1}
    await seeds.require_consistent("t")


async def test_a_complete_task_replaces_the_stored_one(tasks: RedisTaskStore, seeds: Seeds) -> None:
    _, version = await write_task(tasks)
    replacement = task_in(WORKING)
    replacement.metadata.update({"other": True})

    await tasks.save(replacement, event=replacement, prev_version=version, context=ANN)

    task = await seeds.task("t")
    assert (list(task.artifacts), dict(task.metadata)) == ([], {"other": True})
    assert task.history == replacement.history
    await seeds.require_consistent("t")


async def test_a_stale_save_is_refused_and_writes_nothing(tasks: RedisTaskStore, seeds: Seeds) -> None:
    _, version = await write_task(tasks)
    data_before = await seeds.all_values()

    number = version_number(version)
    for stale in (TaskVersion.MISSING, TaskVersion(number - 1), TaskVersion(number + 1)):
        with pytest.raises(ConcurrentTaskModificationError):
            await tasks.save(task_in(WORKING), event=status(WORKING), prev_version=stale, context=ANN)

    assert await seeds.all_values() == data_before


async def test_of_many_saves_of_one_version_exactly_one_is_written(tasks: RedisTaskStore, seeds: Seeds) -> None:
    _, version = await write_task(tasks)

    async def save() -> bool:
        try:
            await tasks.save(task_in(WORKING), event=status(WORKING), prev_version=version, context=ANN)
        except ConcurrentTaskModificationError:
            return False
        return True

    assert sorted(await run_concurrently(*(save() for _ in range(10)))) == [False] * 9 + [True]
    await seeds.require_consistent("t")


async def test_canceled_overwrites_a_live_task_of_any_version(tasks: RedisTaskStore, seeds: Seeds) -> None:
    await write_task(tasks)

    version = await tasks.save(task_in(CANCELED), event=status(CANCELED), prev_version=TaskVersion(1), context=ANN)

    assert version == TaskVersion(5)
    assert (await seeds.states("t"))[-1] == CANCELED
    await seeds.require_consistent("t")


async def test_canceled_is_refused_on_an_ended_task(tasks: RedisTaskStore, seeds: Seeds) -> None:
    _, version = await write_task(tasks, end=True)
    data_before = await seeds.all_values()

    with pytest.raises(ConcurrentTaskModificationError):
        await tasks.save(task_in(CANCELED), event=status(CANCELED), prev_version=version, context=ANN)

    assert await seeds.all_values() == data_before


@pytest.mark.parametrize("state", [WORKING, COMPLETED, CANCELED])
async def test_the_first_terminal_state_wins(tasks: RedisTaskStore, seeds: Seeds, state: TaskState) -> None:
    _, version = await write_task(tasks, end=True)
    data_before = await seeds.all_values()

    for event in (status(state), task_in(state)):
        with pytest.raises(ConcurrentTaskModificationError):
            await tasks.save(task_in(state), event=event, prev_version=version, context=ANN)

    assert await seeds.all_values() == data_before


async def test_saving_a_canceled_state_creates_no_task(tasks: RedisTaskStore, seeds: Seeds) -> None:
    with pytest.raises(
        ConcurrentTaskModificationError
    ):  # like the SDK's own stores: a deleted task is not created again
        await tasks.save(task_in(CANCELED), event=status(CANCELED), context=ANN)

    assert await seeds.all_values() == {}


@pytest.mark.parametrize("state", [SUBMITTED, WORKING, COMPLETED])
async def test_a_task_may_be_new_in_any_state(tasks: RedisTaskStore, seeds: Seeds, state: TaskState) -> None:
    task = task_in(state)

    assert await tasks.save(task, event=task, context=ANN) == TaskVersion(1)

    assert (await seeds.task("t")).status.state == state
    await seeds.require_consistent("t")


async def test_a_log_begins_with_the_task_whatever_its_first_event_was(tasks: RedisTaskStore, seeds: Seeds) -> None:
    task = task_in(WORKING)
    task.artifacts.append(chunk("a").artifact)

    await tasks.save(task, event=chunk("a"), context=ANN)

    assert await seeds.states("t") == [WORKING]
    assert (await seeds.task("t")).artifacts == task.artifacts
    await seeds.require_consistent("t")


async def test_tasks_belong_to_their_owner(tasks: RedisTaskStore, seeds: Seeds) -> None:
    _, version = await write_task(tasks)
    data_before = await seeds.all_values()

    assert await tasks.get("t", BOB) is None
    assert list((await tasks.list(ListTasksRequest(), BOB)).tasks) == []
    assert [task.id for task in (await tasks.list(ListTasksRequest(), ANN)).tasks] == ["t"]
    await tasks.delete("t", BOB)
    for prev in (version, TaskVersion.MISSING):
        with pytest.raises(ConcurrentTaskModificationError):
            await tasks.save(task_in(CANCELED), event=status(CANCELED), prev_version=prev, context=BOB)
    assert await seeds.all_values() == data_before


async def test_an_owner_may_be_resolved_by_the_application(store: AsyncStore, keys: Keys) -> None:
    def any_owner(context: ServerCallContext) -> str:
        return "everyone"

    shared = RedisTaskStore(store, keys, owner_resolver=any_owner)
    await shared.save(task_in(SUBMITTED), event=None, context=ANN)

    assert await shared.get("t", BOB) is not None


@pytest.mark.parametrize("end", [False, True])
async def test_a_deleted_task_leaves_nothing(tasks: RedisTaskStore, seeds: Seeds, end: bool) -> None:
    await write_task(tasks, end=end)

    await tasks.delete("t", ANN)

    assert await seeds.all_values() == {}
    await tasks.delete("t", ANN)


async def test_a_stream_replays_after_any_version(
    tasks: RedisTaskStore, stream: RedisTaskEventStream, seeds: Seeds
) -> None:
    await write_task(tasks, end=True)
    log = await seeds.log("t")

    for version in range(len(log)):
        events = await events_of(stream, TaskVersion(version))
        assert [event.event for event in events] == [entry.event for entry in log[version:]]
        assert [event.version for event in events] == [TaskVersion(entry.version) for entry in log[version:]]


async def test_a_stream_after_the_last_event_ends_at_once(tasks: RedisTaskStore, stream: RedisTaskEventStream) -> None:
    _, version = await write_task(tasks, end=True)

    assert await events_of(stream, version) == []


async def test_a_stream_follows_until_the_task_has_ended(tasks: RedisTaskStore, stream: RedisTaskEventStream) -> None:
    _, version = await write_task(tasks)

    reader = asyncio.create_task(events_of(stream, version))
    await tasks.save(task_in(INPUT_REQUIRED), event=status(INPUT_REQUIRED), prev_version=version, context=ANN)
    await tasks.save(
        task_in(COMPLETED), event=status(COMPLETED), prev_version=TaskVersion(version_number(version) + 1), context=ANN
    )

    assert [event.event.status.state for event in await reader] == [INPUT_REQUIRED, COMPLETED]  # type: ignore[union-attr]
