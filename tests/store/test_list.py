"""Task lists: order, filters, and pages that stay stable while tasks change."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import ListTasksRequest, ListTasksResponse, Task, TaskState
from a2a.utils.errors import InvalidParamsError
from google.protobuf.timestamp_pb2 import Timestamp

from a2a_celery.lifecycle import TERMINAL
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.tasks.commands import unlist_task
from tests.support.store.leaks import leaks
from tests.support.store.pages import list_page
from tests.support.store.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, chunk, status
from tests.support.waiting import eventually_async


class Lister:
    """Test helper that reads task lists as a client does."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store, self._keys = store, keys

    async def page(self, scope: Scope = ANN, *, retention: int = RETENTION, **params: Any) -> ListTasksResponse:
        return await list_page(self._store, self._keys, scope, ListTasksRequest(**params), retention=retention)

    async def ids(self, scope: Scope = ANN, **params: Any) -> list[str]:
        """Return the ids of one page."""
        return [task.id for task in (await self.page(scope, **params)).tasks]

    async def pages(self, **params: Any) -> list[list[Task]]:
        pages, token = [], ""
        while True:
            page = await self.page(page_token=token, **params)
            pages.append(list(page.tasks))
            token = page.next_page_token
            if not token:
                return pages
            assert len(pages) < 100, "the pages don't end"


@pytest.fixture
def lister(store: AsyncStore, keys: Keys) -> Lister:
    return Lister(store, keys)


def position(task: Task) -> tuple[int, str]:
    """Return the sort key of a list."""
    return task.status.timestamp.ToNanoseconds(), task.id


async def test_the_newest_status_comes_first(seeds: Seeds, lister: Lister) -> None:
    first, second, third = [await seeds.create_task() for _ in range(3)]
    await seeds.claim_run(first)

    assert await lister.ids() == [first, third, second]


async def test_only_the_caller_s_tasks_are_listed(seeds: Seeds, lister: Lister) -> None:
    ann_task, bob_task = await seeds.create_task(ANN), await seeds.create_task(BOB)
    await seeds.create_task(Scope("another agent", "", "ann"))
    await seeds.create_task(Scope("agent", "tenant", "ann"))

    assert await lister.ids(ANN) == [ann_task]
    assert await lister.ids(BOB) == [bob_task]


@pytest.mark.parametrize("state", [SUBMITTED, WORKING, INPUT_REQUIRED, COMPLETED, FAILED])
async def test_a_state_filter_gives_the_tasks_in_that_state(seeds: Seeds, lister: Lister, state: TaskState) -> None:
    tasks = {
        SUBMITTED: await seeds.create_task(),
        WORKING: (await seeds.claim_run()).ref.task_id,
        INPUT_REQUIRED: await seeds.create_task_in(INPUT_REQUIRED),
        COMPLETED: await seeds.create_task_in(COMPLETED),
        FAILED: await seeds.create_task_in(FAILED),
    }

    page = await lister.page(status=state)

    assert [task.id for task in page.tasks] == [tasks[state]]
    assert page.total_size == 1


async def test_a_context_filter_gives_the_tasks_of_that_context(seeds: Seeds, lister: Lister) -> None:
    first, second = await seeds.create_task(context_id="one"), await seeds.create_task_in(COMPLETED, context_id="two")

    assert await lister.ids(context_id="one") == [first]
    assert await lister.ids(context_id="two", status=COMPLETED) == [second]
    assert await lister.ids(context_id="one", status=COMPLETED) == []


async def test_a_time_filter_is_exact(seeds: Seeds, lister: Lister) -> None:
    await seeds.create_task()
    since = await seeds.create_task()
    later_id = await seeds.create_task()
    at = (await seeds.task(since)).status.timestamp

    assert await lister.ids(status_timestamp_after=at) == [later_id, since]
    just_after = Timestamp()
    just_after.FromNanoseconds(at.ToNanoseconds() + 1)
    assert await lister.ids(status_timestamp_after=just_after) == [later_id]


async def test_the_total_counts_all_that_match_on_every_page(seeds: Seeds, lister: Lister) -> None:
    for _ in range(5):
        await seeds.create_task()
    await seeds.create_task_in(COMPLETED)

    first = await lister.page(page_size=2)
    second = await lister.page(page_size=2, page_token=first.next_page_token)

    assert (first.total_size, second.total_size, first.page_size) == (6, 6, 2)
    assert (await lister.page(page_size=2, status=SUBMITTED)).total_size == 5


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_pages_together_are_the_whole_list_in_order(seeds: Seeds, lister: Lister, size: int) -> None:
    ids = [await seeds.create_task() for _ in range(4)] + [await seeds.create_task_in(COMPLETED) for _ in range(3)]

    pages = await lister.pages(page_size=size)

    tasks = [task for page in pages for task in page]
    assert sorted(task.id for task in tasks) == sorted(ids)
    assert tasks == sorted(tasks, key=position, reverse=True)
    assert [len(page) for page in pages[:-1]] == [size] * (len(pages) - 1)
    assert pages[-1]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_equal_times_are_ordered_by_id(
    store: AsyncStore, keys: Keys, seeds: Seeds, lister: Lister, size: int
) -> None:
    ids = [await seeds.create_task(task_id=name) for name in ("b", "a", "B", "a-b", "ab", "with space", "ü")]
    for index in (keys.scope_index(ANN), keys.context_index(ANN, "the-context")):
        await store.redis.zadd(
            f"{index}{int(SUBMITTED)}", dict.fromkeys(await store.redis.zrange(f"{index}1", 0, -1), 7)
        )
    for name in ids:
        await store.redis.hset(keys.task(name).record, "at", 7)

    listed_ids = [task.id for page in await lister.pages(page_size=size) for task in page]

    assert sorted(listed_ids) == sorted(ids)
    assert listed_ids == [task.id for task in (await lister.page(page_size=100)).tasks]


async def test_unchanged_tasks_are_listed_exactly_once_while_others_change(seeds: Seeds, lister: Lister) -> None:
    still = [await seeds.create_task() for _ in range(10)]
    moving = [await seeds.create_task() for _ in range(10)]

    task_ids: list[str] = []
    token = ""
    for task_id in moving:
        page = await lister.page(page_size=2, page_token=token)
        task_ids += [task.id for task in page.tasks]
        token = page.next_page_token
        claim = await seeds.claim_run(task_id)  # the task moves to the front
        await seeds.settle_run(claim, status(COMPLETED))
        await seeds.create_task()  # a new task is added
        if not token:
            break

    while token:
        page = await lister.page(page_size=2, page_token=token)
        task_ids += [task.id for task in page.tasks]
        token = page.next_page_token

    assert len(task_ids) == len(set(task_ids))
    assert set(still) <= set(task_ids)


async def test_artifacts_are_included_on_request(seeds: Seeds, lister: Lister) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, chunk("a"), chunk("b"))

    without = (await lister.page()).tasks[0]
    with_them = (await lister.page(include_artifacts=True)).tasks[0]

    assert list(without.artifacts) == []
    assert with_them == await seeds.task(claim.ref.task_id)


@pytest.mark.parametrize(
    ("length", "expected"), [(0, []), (1, ["two"]), (2, ["one", "two"]), (9, ["hello", "one", "two"])]
)
async def test_the_history_is_as_long_as_asked(seeds: Seeds, lister: Lister, length: int, expected: list[str]) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, status(WORKING, "one"), status(WORKING, "two"), status(WORKING, "now"))

    task = (await lister.page(history_length=length)).tasks[0]

    assert [message.parts[0].text for message in task.history] == expected
    assert task.status.message.parts[0].text == "now"
    assert len((await lister.page()).tasks[0].history) == 3


async def test_expired_tasks_vanish_from_list_and_store(
    store: AsyncStore, keys: Keys, seeds: Seeds, lister: Lister
) -> None:
    live_id, *others = [await seeds.create_task(retention=1) for _ in range(3)]
    assert (await lister.page(retention=1)).total_size == 3
    for task_id, state in zip(others, (COMPLETED, FAILED), strict=True):
        await seeds.settle_run(await seeds.claim_run(task_id), status(state))

    async def has_expired() -> bool:
        return (await lister.page(retention=1)).total_size == 1

    await eventually_async(has_expired)
    assert await lister.ids(retention=1) == [live_id]

    async def keys_have_expired() -> bool:
        ended_keys = [
            k for k in await seeds.all_values() if live_id not in k and any(k.endswith(f":{s:d}") for s in TERMINAL)
        ]
        return not ended_keys and all(
            live_id in k or k in (keys.dispatch, keys.scopes) or k[-2] == ":" for k in await seeds.all_values()
        )

    await eventually_async(keys_have_expired)


async def test_tasks_that_expired_before_their_time_in_the_list_hide_no_others(
    store: AsyncStore, keys: Keys, seeds: Seeds, lister: Lister
) -> None:
    old_id = await seeds.create_task_in(COMPLETED)
    expired_ids = [await seeds.create_task_in(COMPLETED) for _ in range(3)]
    for task_id in expired_ids:  # as if the tasks had been written with a shorter retention
        names = keys.task(task_id)
        await store.redis.delete(names.record, names.log, names.history)

    ids = [task.id for page in await lister.pages(page_size=1) for task in page]

    assert ids == [old_id]


@pytest.mark.parametrize("token", ["x", "Zm9v", "ü", "AAAA" * 50, "eyJ0cyI6MSwiaWQiOiJcdWQ4MDAifQ"])
async def test_a_page_token_of_another_caller_is_refused(lister: Lister, token: str) -> None:
    with pytest.raises(InvalidParamsError) as exc_info:
        await lister.page(page_token=token)

    assert exc_info.value.data["errors"][0]["field"] == "page_token"


async def test_a_task_that_is_unlisted_can_be_read_by_its_id_alone(
    store: AsyncStore, keys: Keys, seeds: Seeds, lister: Lister
) -> None:
    live_id, ended_id, listed_id = (
        await seeds.create_task(),
        await seeds.create_task_in(COMPLETED),
        await seeds.create_task_in(COMPLETED),
    )

    assert not await store.run(unlist_task(keys, live_id))
    assert not await store.run(unlist_task(keys, "none"))
    assert await store.run(unlist_task(keys, ended_id))

    page = await lister.page()
    assert ({task.id for task in page.tasks}, page.total_size) == ({live_id, listed_id}, 2)
    assert await lister.ids(context_id=CONTEXT, status=COMPLETED) == [listed_id]
    assert (await seeds.task(ended_id)).status.state == COMPLETED
    assert await leaks(store, keys) == []


async def test_a_task_that_is_unlisted_is_not_archived(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await store.redis.hset(keys.installation, mapping={"schema": SCHEMA, "archive": "1", "adopted": "1"})
    ended_id = await seeds.create_task_in(COMPLETED)
    assert await store.redis.ttl(keys.task(ended_id).record) == -1

    await store.run(unlist_task(keys, ended_id))

    assert await store.redis.zcard(keys.archive) == 0
    assert 0 < await store.redis.ttl(keys.task(ended_id).record) <= RETENTION
