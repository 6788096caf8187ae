"""Moves that create, continue and read tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from a2a_celery.features.families.family import read_family
from a2a_celery.features.families.section import ChildSection
from a2a_celery.features.idempotency.section import IdempotencyKey
from a2a_celery.features.publish_on_accept.section import PushedMessage
from a2a_celery.features.questions.answer_section import AnswerSection
from a2a_celery.features.schedules.section import Overlap, Tick
from a2a_celery.lifecycle.references import Scope, quote_key_part
from a2a_celery.lifecycle.states import (
    FAILED,
    SUBMITTED,
    WORKING,
)
from a2a_celery.store.admin.scan import newest_tasks, read_states
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.tasks.commands import (
    ReplyChannel,
    list_tasks,
    read_final_task,
    read_next_run,
    read_task,
    request_cancel,
    unlist_task,
)
from a2a_celery.store.tasks.waiting import list_waiting
from tests.support.store.seeds import AGENTS, ANN, BOB, RETENTION
from tests.support.store.view import Record
from tests.support.store.walk import CONTEXTS, HOUR_US, MANY
from tests.tools.oracle.recorded_store import STEP_US
from tests.tools.oracle.recorder import LARGE, QUEUE, SMALL_LIMITS, Recorder


async def create_again(world: Recorder, task_id: str, r: Record) -> None:
    """Create a task twice with the same idempotency key, and with the same or another digest."""
    message_id, scope = f"message-{world.chance.randrange(3)}", world.chance.choice([ANN, BOB])
    for _ in range(2):
        key = IdempotencyKey.of(world.keys, scope, message_id, world.chance.choice(["one", "two"]), 60_000)
        await world.create_with(scope, sections=[key])


async def create_known(world: Recorder, task_id: str, r: Record) -> None:
    """Create a task with the id of a task."""
    scope = Scope.parse(r["scope"]) if world.chance.random() < 0.5 else world.chance.choice([ANN, BOB])
    await world.create_with(scope, task_id)


async def create_limited(world: Recorder, task_id: str, r: Record) -> None:
    """Try to create a task with each limit, which the stored tasks have reached."""
    scope = world.chance.choice([ANN, BOB])
    for limits in reached_limits(world, scope):
        await world.create_with(scope, limits=limits)
    if world.chance.random() < 0.3:
        await world.create_with(scope, is_nearly_full=True)
        await world.create_with(scope, push=world.config("e", 1), limits=MANY)
        await world.create_with(scope, push=world.config("e", 1), limits=MANY)


def reached_limits(world: Recorder, scope: Scope) -> list[dict[str, int]]:
    """Return limits that the tasks of an owner have reached."""
    records = world.view.records.values()
    states = Counter(int(r["state"]) for r in records if r["scope"].endswith(f"/{scope.owner}"))
    queue = world.view.lists["queue" if scope.agent == "agent" else "other queue"]
    return [{"concurrent": states[SUBMITTED] + states[WORKING]}, {"queued": len(queue)}, {"owner_bytes": 1}]


async def continue_limited(world: Recorder, task_id: str, r: Record) -> None:
    """Send a message to a task with each limit that applies to a further message."""
    for reached in reached_limits(world, Scope.parse(r["scope"])):
        await world.continue_with(task_id, r, limits=reached)
    await world.continue_with(task_id, r, is_nearly_full=True)
    await world.continue_with(task_id, r, max_bytes=1)
    await world.continue_with(task_id, r, world.chance.choice(CONTEXTS), on_message="reject")
    await world.continue_with(task_id, r, push=world.config("f", 1))


async def continue_again(world: Recorder, task_id: str, r: Record) -> None:
    """Send a message with an idempotency key twice, with a config and a message for the broker."""
    message_id, run = f"message-{world.chance.randrange(3)}", await world.run(read_next_run(world.keys, task_id))
    message = pushed_message(world, task_id, run or 1)
    for _ in range(2):
        key = IdempotencyKey.of(
            world.keys, Scope.parse(r["scope"]), message_id, world.chance.choice(["one", "two"]), 60_000
        )
        push = world.new_config() if world.chance.random() < 0.5 else None
        await world.continue_with(task_id, r, sections=[key, AnswerSection(run), message], push=push, limits=MANY)


async def answer_many(world: Recorder, task_id: str, r: Record) -> None:
    """Send more messages than may wait."""
    for _ in range(SMALL_LIMITS["MAX_WAITING_TURNS"] + 1):
        await world.continue_with(task_id, r, on_message=world.chance.choice(["queue", "steer", "interrupt"]))


async def publish_on_accept(world: Recorder, task_id: str, r: Record) -> None:
    """Create a task whose script pushes the message to the broker."""
    new_id = world.new_id()
    options: dict[str, Any] = {
        "reply_channel": ReplyChannel("oracle:replies", world.chance.random() < 0.5),
        "serialize_context": world.chance.random() < 0.5,
        "limits": MANY,
    }
    await world.create_with(task_id=new_id, sections=[pushed_message(world, new_id, 1)], **options)


def pushed_message(world: Recorder, task_id: str, run: int) -> PushedMessage:
    """Return the Celery message of a run, for this server or for another."""
    server = world.server_id if world.chance.random() < 0.7 else world.new_id().replace("-", "")
    database, channel = world.chance.choice([0, 1]), world.chance.choice(["", "oracle:events"])
    return PushedMessage(f"{task_id}.{run}", server, database, 0, QUEUE, b"message", channel, b"event", HOUR_US)


async def create_large(world: Recorder, task_id: str, r: Record) -> None:
    """Create a task with a large part."""
    await world.create_with(text=LARGE, serialize_context=world.chance.random() < 0.5)


async def create_descendants(world: Recorder, task_id: str, r: Record) -> None:
    """Create descendants of a task, and children, until the store refuses them."""
    scope, parent_id = replace(Scope.parse(r["scope"]), agent=world.chance.choice(AGENTS)), task_id
    for number in range(SMALL_LIMITS["MAX_DEPTH"] + SMALL_LIMITS["MAX_CHILDREN"] + 1):
        new_id = world.new_id()
        cancels, is_called = world.chance.random() < 0.7, world.chance.random() < 0.5
        child = ChildSection.of(parent_id, cancels=cancels, is_called=is_called)
        await world.create_with(scope, new_id, sections=[child])
        parent_id = new_id if number < SMALL_LIMITS["MAX_DEPTH"] else task_id


async def end_with_children(world: Recorder, task_id: str, r: Record) -> None:
    """Cancel a task that has a child, and then the children of ended tasks."""
    parents = [tag for tag, record in sorted(world.view.records.items()) if record["children"]]
    parent_id = world.chance.choice(parents or [task_id])
    if not parents:
        await world.create(parent_id)
    parent = world.view.records[parent_id]
    await world.run(request_cancel(world.keys, Scope.parse(parent["scope"]), parent_id, parent["context"]))
    await world.cancel_children(parent_id, parent)


async def tick(world: Recorder, task_id: str, r: Record) -> None:
    """Create the tasks of two ticks of a schedule."""
    for _ in range(2):
        at_us = world.client.now_us + world.chance.randrange(3)
        window_us, overlap = world.chance.choice([0, 60_000_000]), world.chance.choice(OVERLAPS)
        tick = Tick(f"schedule-{world.chance.randrange(2)}", at_us, window_us, overlap)
        await world.seeds.create_scheduled_task(tick)


OVERLAPS: tuple[Overlap, ...] = ("skip", "skip", "allow")


async def unlist(world: Recorder, task_id: str, r: Record) -> None:
    """Remove an ended task from the lists."""
    await world.run(unlist_task(world.keys, task_id))


async def read_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Read a task, its relatives, its run and its states in other ways."""
    scope = Scope.parse(r["scope"])
    await world.run(read_family(world.keys, scope, task_id))
    await world.run(read_final_task(world.keys, scope, task_id, history_length=world.chance.choice([None, 1])))
    await world.run(read_task(world.keys, scope, task_id, history_length=1, artifacts=False))
    await world.run(read_next_run(world.keys, task_id))
    await world.run(read_states(world.keys, [task_id, world.new_id()]))
    await world.run(read_log(world.keys, task_id, world.chance.randrange(4), limit=2))


async def list_filtered(world: Recorder, task_id: str, r: Record) -> None:
    """List tasks with filters, a small page and contents."""
    scope = Scope.parse(r["scope"])
    size = world.chance.choice([1, 2])
    page = await world.run(
        list_tasks(
            world.keys,
            scope,
            retention=RETENTION,
            page_size=size,
            context_id=world.chance.choice(["", *CONTEXTS]),
            history_length=world.chance.choice([None, 0, 1]),
            artifacts=world.chance.random() < 0.5,
            not_before_us=world.chance.choice([None, world.client.now_us - 5 * STEP_US]),
            archived=world.chance.random() < 0.5,
        )
    )
    if page.tasks:
        last = page.tasks[-1]
        cursor = last.status.timestamp.ToMicroseconds(), quote_key_part(last.id)
        await world.run(list_tasks(world.keys, scope, retention=RETENTION, page_size=size, cursor=cursor))
    await world.run(list_waiting(world.keys, [scope], page_size=1))
    indexes = [f"{world.keys.scope_index(scope)}{int(state)}" for state in (SUBMITTED, WORKING, FAILED)]
    await world.run(newest_tasks(world.keys, indexes, limit=world.chance.choice([1, 9])))
