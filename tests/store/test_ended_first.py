"""Messages that wait for their turn when the task ends. The task's history contains these messages with a mark."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from a2a.types import Message, Part, Role, TaskState

from a2a_celery.lifecycle import EventKind, Refused, final_event, kind_of
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim, append, claim_run, end_run, settle_run
from a2a_celery.store.tasks.commands import TASK_ENDED_FIRST, continue_task, request_cancel
from a2a_celery.watcher.recoverer import Recoverer
from tests.support.store.seeds import ANN, CONTEXT, Seeds, request, status

End = Callable[[AsyncStore, Keys, Claim], Awaitable[Any]]


async def by_an_append(store: AsyncStore, keys: Keys, claim: Claim) -> None:
    events = [status(WORKING, "nearly"), status(COMPLETED, "done")]
    await store.run(append(keys, claim.ref, token=claim.token, written_count=0, events=events))


async def by_an_answer(store: AsyncStore, keys: Keys, claim: Claim) -> None:
    message = Message(message_id="a", role=Role.ROLE_AGENT, parts=[Part(text="done")])
    await store.run(settle_run(keys, claim.ref, token=claim.token, written_count=0, events=[message]))


async def by_its_settlement(store: AsyncStore, keys: Keys, claim: Claim) -> None:
    await store.run(settle_run(keys, claim.ref, token=claim.token, written_count=0, events=[status(COMPLETED, "done")]))


async def by_a_cancel_that_was_asked_before_it_paused(store: AsyncStore, keys: Keys, claim: Claim) -> None:
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))
    await store.run(
        settle_run(keys, claim.ref, token=claim.token, written_count=0, events=[status(INPUT_REQUIRED, "which?")])
    )


async def from_outside(store: AsyncStore, keys: Keys, claim: Claim) -> None:
    event = final_event(Refused("no"), claim.ref.task_id, CONTEXT)
    assert event is not None
    await store.run(end_run(keys, claim.ref, runner="r", event=event))


async def by_a_lapse(store: AsyncStore, keys: Keys, claim: Claim) -> None:
    await store.redis.zadd(keys.leases, {claim.ref.name: 1})
    await Recoverer(store, keys).tick()


ENDS: list[tuple[End, TaskState]] = [
    (by_an_append, COMPLETED),
    (by_an_answer, COMPLETED),
    (by_its_settlement, COMPLETED),
    (by_a_cancel_that_was_asked_before_it_paused, CANCELED),
    (from_outside, REJECTED),
    (by_a_lapse, FAILED),
]


async def wait(store: AsyncStore, keys: Keys, task_id: str, *words: str) -> None:
    """Send a message for each of `words` to a task with an active run."""
    for word in words:
        message_request = request(word, task_id, CONTEXT)
        message_request.message.metadata.update({"own": word})
        await store.run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce=word))


@pytest.mark.parametrize(("end", "state"), ENDS, ids=lambda value: getattr(value, "__name__", ""))
async def test_waiting_messages_are_in_the_history_and_marked(
    store: AsyncStore, keys: Keys, seeds: Seeds, end: End, state: TaskState
) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await wait(store, keys, task_id, "one", "two")

    await end(store, keys, claim)

    task = await seeds.task(task_id)
    messages = [message for message in task.history if message.role == Role.ROLE_USER]
    assert task.status.state == state
    assert [(message.parts[0].text, dict(message.metadata)) for message in messages] == [
        ("hello", {}),
        ("one", {"own": "one", TASK_ENDED_FIRST: True}),
        ("two", {"own": "two", TASK_ENDED_FIRST: True}),
    ]
    assert kind_of((await seeds.log(task_id))[-1].event) is not EventKind.CLIENT_MESSAGE, "nothing follows the end"
    assert await store.redis.exists(keys.task(task_id).turns) == 0
    await seeds.require_consistent(task_id)


async def test_a_cancel_before_the_run_began_keeps_the_waiting_message(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task()
    await wait(store, keys, task_id, "one")

    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))

    task = await seeds.task(task_id)
    assert [message.parts[0].text for message in task.history] == ["hello", "one"]
    assert TASK_ENDED_FIRST in task.history[1].metadata
    await seeds.require_consistent(task_id)


async def test_a_message_that_had_its_turn_is_not_marked(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first = await seeds.claim_run()
    task_id = first.ref.task_id
    await wait(store, keys, task_id, "one", "two")
    await seeds.settle_run(first, status(INPUT_REQUIRED, "which?"))
    second = await store.run(
        claim_run(keys, RunRef(task_id, 2), token="t", runner="r", lease_us=10_000_000, working=True)
    )
    assert isinstance(second, Claim)

    await seeds.settle_run(second, status(COMPLETED))

    task = await seeds.task(task_id)
    marks = [(message.parts[0].text, TASK_ENDED_FIRST in message.metadata) for message in task.history]
    assert marks == [("hello", False), ("which?", False), ("one", False), ("two", True)]
    await seeds.require_consistent(task_id)
