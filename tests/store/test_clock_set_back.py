"""Store whose clock was set back by hours. Times in a log never decrease, but deadlines follow the clock."""

from __future__ import annotations

from uuid import uuid4

import pytest
from a2a.types import TaskState

from a2a_celery.agents import OnMessage
from a2a_celery.features.questions.question_section import QuestionSection, Reminder
from a2a_celery.features.questions.reminder_poster import reminder_index
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import settle_run
from a2a_celery.store.tasks.commands import continue_task
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, Seeds, request, status

SET_BACK_US = 7_200_000_000
SOON_US = 3_600_000_000
"""Microseconds, longer than any delay of these tests and shorter than the time by which the clock is set back."""


class SetBackStore:
    """Test helper that simulates a clock that was set back, and reads due times."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store, self._keys = store, keys

    async def set_back(self, task_id: str) -> None:
        """Move the latest events of a task two hours ahead of the store's clock."""
        at = await self._now() + SET_BACK_US
        await self._store.redis.hset(self._keys.task(task_id).record, mapping={"at": at, "recorded_at": at})

    async def due_in(self, name: str, member: str) -> float:
        """Return the microseconds until `member` of the sorted set `name` is due."""
        due = await self._store.redis.zscore(name, member)
        assert due is not None
        return float(due) - await self._now()

    async def _now(self) -> int:
        seconds, micros = await self._store.redis.time()
        return int(seconds * 1_000_000 + micros)


@pytest.fixture
def set_back(store: AsyncStore, keys: Keys) -> SetBackStore:
    return SetBackStore(store, keys)


async def send(store: AsyncStore, keys: Keys, task_id: str, on_message: OnMessage = "queue") -> None:
    message, nonce = request("more", task_id, CONTEXT), uuid4().hex
    await store.run(continue_task(keys, ANN, task_id, message, "", caller=b"{}", nonce=nonce, on_message=on_message))


async def test_the_run_of_an_answer_is_due_soon(
    store: AsyncStore, keys: Keys, seeds: Seeds, set_back: SetBackStore
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    await set_back.set_back(task_id)

    await send(store, keys, task_id)

    assert await set_back.due_in(keys.dispatch, f"{task_id}.2") < SOON_US


@pytest.mark.parametrize(
    ("on_message", "state"), [("queue", INPUT_REQUIRED), ("steer", COMPLETED), ("interrupt", COMPLETED)]
)
async def test_the_run_of_a_message_to_a_working_task_is_due_soon(
    store: AsyncStore, keys: Keys, seeds: Seeds, set_back: SetBackStore, on_message: OnMessage, state: TaskState
) -> None:
    claim = await seeds.claim_run()
    await send(store, keys, claim.ref.task_id, on_message)
    await set_back.set_back(claim.ref.task_id)

    await seeds.settle_run(claim, status(state))

    assert await set_back.due_in(keys.dispatch, f"{claim.ref.task_id}.2") < SOON_US


async def test_the_run_of_a_message_that_replaces_a_queued_run_is_due_soon(
    store: AsyncStore, keys: Keys, seeds: Seeds, set_back: SetBackStore
) -> None:
    task_id = await seeds.create_task()
    await set_back.set_back(task_id)

    await send(store, keys, task_id, "interrupt")

    assert await set_back.due_in(keys.dispatch, f"{task_id}.2") < SOON_US


async def test_a_pause_and_its_reminder_are_due_soon(
    store: AsyncStore, keys: Keys, seeds: Seeds, set_back: SetBackStore
) -> None:
    claim = await seeds.claim_run()
    await set_back.set_back(claim.ref.task_id)

    await store.run(
        settle_run(
            keys,
            claim.ref,
            token=claim.token,
            written_count=0,
            events=[status(INPUT_REQUIRED)],
            pause_us=LEASE_US,
            pause_timeout=status(FAILED),
            sections=[QuestionSection(reminders=[Reminder.of(LEASE_US, status(INPUT_REQUIRED))])],
        )
    )

    assert await set_back.due_in(keys.pauses, claim.ref.task_id) < SOON_US
    assert await set_back.due_in(reminder_index(keys), claim.ref.task_id) < SOON_US
