"""Reminders of open questions. A reminder is posted once, when it is due, and not after an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from struct import pack

import pytest
from a2a.types import Message, TaskStatus, TaskStatusUpdateEvent

from a2a_celery.features.questions.question_section import QuestionSection, Reminder, escalation_section
from a2a_celery.features.questions.reminder_poster import post_reminders, reminder_index
from a2a_celery.features.webhooks.config_section import MAX_PUSH_CONFIGS, NewPushConfig
from a2a_celery.features.webhooks.deliveries import read_delivery
from a2a_celery.features.webhooks.push_configs import ESCALATION, save_push_config
from a2a_celery.lifecycle.own_metadata import NAMESPACE, REMINDER, own_metadata
from a2a_celery.lifecycle.states import CANCELED, FAILED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import STEPS
from a2a_celery.store.runs.commands import Settled, settle_run
from a2a_celery.store.tasks.commands import continue_task, end_pauses, request_cancel
from tests.support.store.seeds import ANN, CONTEXT, Seeds, request, status

HOUR_US = 3_600_000_000
CONFIG = NewPushConfig(ESCALATION, b"sealed", "fingerprint")


def reminder(after_us: int, number: int) -> Reminder:
    """Return a reminder with the metadata of the `number`-th reminder."""
    message = Message(message_id=f"reminder-{number}")
    metadata = own_metadata({REMINDER: number})
    return Reminder.of(after_us, TaskStatusUpdateEvent(status=TaskStatus(message=message), metadata=metadata))


def questions_section(
    keys: Keys, reminders: Sequence[Reminder], escalation: NewPushConfig | None = None
) -> QuestionSection:
    """Return the section of a question with reminders."""
    return QuestionSection(None, escalation and escalation_section(keys, escalation), reminders)


class Questions:
    """Test helper that creates tasks with open questions and posts their reminders."""

    def __init__(self, store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
        self._store, self._keys, self._seeds = store, keys, seeds

    async def ask(
        self, after_us: Sequence[int] = (HOUR_US,), escalation: NewPushConfig | None = None, task_id: str = ""
    ) -> str:
        """Create a task that waits for an answer. Return the task's id."""
        claim = await self._seeds.claim_run(await self._seeds.create_task(task_id=task_id))
        reminders = [reminder(delay, number) for number, delay in enumerate(after_us, start=1)]
        settlement = settle_run(
            self._keys,
            claim.ref,
            token=claim.token,
            written_count=0,
            events=[status(INPUT_REQUIRED, "well?")],
            pause_us=2 * HOUR_US,
            pause_timeout=status(FAILED, "too late"),
            sections=[questions_section(self._keys, reminders, escalation)],
        )
        assert isinstance(await self._store.run(settlement), Settled)
        return claim.ref.task_id

    async def make_due(self, task_id: str) -> None:
        """Make the next reminder of the task due."""
        await self._store.redis.zincrby(reminder_index(self._keys), -2 * HOUR_US, task_id)

    async def post(self) -> int:
        """Post all due reminders, and return their number."""
        return await self._store.run(post_reminders(self._keys, limit=10))

    async def posted_numbers(self, task_id: str) -> list[int]:
        """Return the numbers of the reminders in the log."""
        events = [entry.event for entry in await self._seeds.log(task_id)]
        numbers = [e.metadata.fields.get(NAMESPACE + REMINDER) for e in events if isinstance(e, TaskStatusUpdateEvent)]
        return [int(number.number_value) for number in numbers if number is not None]


@pytest.fixture
def questions(store: AsyncStore, keys: Keys, seeds: Seeds) -> Questions:
    return Questions(store, keys, seeds)


async def test_a_reminder_repeats_the_question_with_its_number(seeds: Seeds, questions: Questions) -> None:
    task_id = await questions.ask()
    assert await questions.post() == 0
    await questions.make_due(task_id)

    assert await questions.post() == 1

    task = await seeds.task(task_id)
    assert task.status.state == INPUT_REQUIRED
    assert await seeds.status_text(task_id) == "well?"
    assert task.status.message.message_id == "reminder-1"
    assert task.metadata[NAMESPACE + REMINDER] == 1
    assert [part.text for part in task.history[-1].parts] == ["well?"]
    await seeds.require_consistent(task_id)
    assert await questions.post() == 0


async def test_concurrent_watchers_post_each_reminder_once_at_its_time(
    store: AsyncStore, keys: Keys, seeds: Seeds, questions: Questions
) -> None:
    task_id = await questions.ask((HOUR_US, 3 * HOUR_US))
    await questions.make_due(task_id)
    first_us = await store.redis.zscore(reminder_index(keys), task_id)

    await asyncio.gather(*(questions.post() for _ in range(4)))

    assert await questions.posted_numbers(task_id) == [1]
    assert await store.redis.zscore(reminder_index(keys), task_id) == first_us + 2 * HOUR_US
    await questions.make_due(task_id)
    await asyncio.gather(*(questions.post() for _ in range(4)))
    assert await questions.posted_numbers(task_id) == [1, 2]
    assert not await store.redis.exists(reminder_index(keys))
    await seeds.require_consistent(task_id)


async def test_reminders_that_no_watcher_posted_in_time_are_each_posted_once(
    seeds: Seeds, questions: Questions
) -> None:
    task_id = await questions.ask((1, 2, 3))

    while await questions.post():
        pass

    assert await questions.posted_numbers(task_id) == [1, 2, 3]
    await seeds.require_consistent(task_id)


async def test_the_size_of_a_task_has_the_bytes_of_its_reminders(
    store: AsyncStore, keys: Keys, seeds: Seeds, questions: Questions
) -> None:
    names = keys.task(task_id := await questions.ask((HOUR_US, 3 * HOUR_US)))

    async def require_counted(count: int) -> int:
        assert await questions.posted_numbers(task_id) == list(range(1, count + 1))
        entries = [entry for name in (names.log, names.history) for entry in await store.redis.lrange(name, 0, -1)]
        reminders = len(await store.redis.hget(names.record, "reminders") or b"")
        assert int(await store.redis.hget(names.record, "size") or 0) == sum(map(len, entries)) + reminders
        return reminders

    assert await require_counted(0) > 0
    await questions.make_due(task_id)
    await questions.post()
    assert await require_counted(1) > 0
    await questions.make_due(task_id)
    await questions.post()
    assert await require_counted(2) == 0


@pytest.mark.parametrize("ending", ["answered", "canceled", "timed out"])
async def test_a_question_that_is_over_has_no_reminder(
    store: AsyncStore, keys: Keys, seeds: Seeds, questions: Questions, ending: str
) -> None:
    task_id = await questions.ask()
    match ending:
        case "answered":
            message = request(task_id=task_id, context_id=CONTEXT)
            await store.run(continue_task(keys, ANN, task_id, message, "", caller=b"{}", nonce="ab"))
        case "canceled":
            await store.run(request_cancel(keys, ANN, task_id, CONTEXT))
            assert (await seeds.task(task_id)).status.state == CANCELED
        case _:
            await store.redis.zadd(keys.pauses, {task_id: 1})
            assert await store.run(end_pauses(keys, limit=10)) == 1

    assert not await store.redis.exists(reminder_index(keys))
    assert await questions.post() == 0
    assert await questions.posted_numbers(task_id) == []


async def test_an_entry_without_a_reminder_is_removed(store: AsyncStore, keys: Keys, questions: Questions) -> None:
    """A watcher may have read the list before the client answered."""
    task_id = await questions.ask()
    message = request(task_id=task_id, context_id=CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message, "", caller=b"{}", nonce="ab"))
    await store.redis.zadd(reminder_index(keys), {task_id: 1})

    assert await questions.post() == 1

    assert not await store.redis.exists(reminder_index(keys))
    assert await questions.posted_numbers(task_id) == []


async def test_the_last_reminder_adds_the_webhook_that_receives_it(
    store: AsyncStore, keys: Keys, questions: Questions
) -> None:
    task_id = await questions.ask((1, 2), CONFIG)
    for number in range(MAX_PUSH_CONFIGS):
        await store.run(save_push_config(keys, ANN, task_id, NewPushConfig(f"client-{number}", b"s", "fingerprint")))
    assert await questions.post() == 1
    assert await store.run(read_delivery(keys, task_id, ESCALATION)) is None

    assert await questions.post() == 1

    delivery = await store.run(read_delivery(keys, task_id, ESCALATION))
    assert delivery is not None
    assert delivery.version == delivery.delivered + 1, "it receives the reminder"


async def test_the_same_webhook_follows_the_task_through_further_questions(
    store: AsyncStore, keys: Keys, seeds: Seeds, questions: Questions
) -> None:
    task_id = await questions.ask((1,), CONFIG)
    await questions.post()
    delivery_before = await store.run(read_delivery(keys, task_id, ESCALATION))
    message = request(task_id=task_id, context_id=CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message, "", caller=b"{}", nonce="ab"))

    claim = await seeds.claim_run(task_id, run=2)
    escalation = NewPushConfig(ESCALATION, b"sealed again", "fingerprint")
    end = settle_run(
        keys,
        claim.ref,
        token=claim.token,
        written_count=0,
        events=[status(INPUT_REQUIRED, "and?")],
        sections=[questions_section(keys, [reminder(1, 1)], escalation)],
    )
    await store.run(end)
    await questions.post()

    delivery_after = await store.run(read_delivery(keys, task_id, ESCALATION))
    assert delivery_before is not None
    assert delivery_after is not None
    assert delivery_after.delivered == delivery_before.delivered, "no event is skipped"


async def test_the_reminders_of_an_older_store_are_posted(
    store: AsyncStore, keys: Keys, seeds: Seeds, questions: Questions
) -> None:
    task_id = await questions.ask((HOUR_US, 2 * HOUR_US), CONFIG)
    record = keys.task(task_id).record
    first, last = reminder(HOUR_US, 1), reminder(2 * HOUR_US, 2)
    webhook = [str(argument).encode() for argument in escalation_section(keys, CONFIG)]
    webhook[1] = CONFIG.sealed
    texts = [b"%d %d" % (HOUR_US, 2 * HOUR_US), first.event, first.metadata, last.event, last.metadata, *webhook]
    older_form = b"".join(pack(">I", len(text)) + text for text in texts)
    reminders = await store.redis.hget(record, "reminders") or b""
    await store.redis.hincrby(record, "size", len(older_form) - len(reminders))
    await store.redis.hset(record, mapping={"reminders": older_form, "posted_reminders": 1})
    await store.redis.hdel(record, "pause_data")

    [step] = [step for step in STEPS if step.to == 4]
    for count in (1, 0):
        assert await store.run(step.convert_page(keys, "0", 1000, False)) == ("0", count)

    await questions.make_due(task_id)
    assert await questions.post() == 1
    assert await questions.posted_numbers(task_id) == [2]
    assert await store.run(read_delivery(keys, task_id, ESCALATION)) is not None
    names = keys.task(task_id)
    entries = [entry for name in (names.log, names.history) for entry in await store.redis.lrange(name, 0, -1)]
    assert int(await store.redis.hget(record, "size") or 0) == sum(map(len, entries))
    await seeds.require_consistent(task_id)
