"""Task families in the store: registration of children, cancellation with the parent, and limits of a family."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.families.child_canceller import OrphanedChild, acquire_ended_parents, ended_parents_key
from a2a_celery.features.families.family import read_family
from a2a_celery.features.families.section import MAX_CHILDREN, MAX_DEPTH, TOO_DEEP, WAITS_FOR_ITSELF, ChildSection
from a2a_celery.lifecycle import fold
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.schema import migrate, pending
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.runs.commands import settle_run
from a2a_celery.store.runs.suspension import Wait
from a2a_celery.store.tasks.commands import continue_task, create_task, delete_task, request_cancel
from tests.support.store.replies import begins, is_limited
from tests.support.store.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, request, status
from tests.support.store.suspensions import Suspensions

OTHER_AGENT = replace(ANN, agent="other")
THIRD_AGENT = replace(ANN, agent="third")


async def child_of(
    seeds: Seeds,
    parent_id: str,
    task_id: str,
    scope: Scope = OTHER_AGENT,
    *,
    cancels: bool = True,
    is_awaited: bool = False,
    is_called: bool = False,
    serialize_context: bool = False,
) -> Any:
    message_request = request(task_id=task_id, context_id=CONTEXT)
    create = create_task(
        seeds.keys,
        scope,
        task_id,
        CONTEXT,
        message_request,
        caller=b"{}",
        retention=RETENTION,
        serialize_context=serialize_context,
        sections=[ChildSection.of(parent_id, cancels=cancels, is_waiting=is_awaited, is_called=is_called)],
    )
    return await seeds.store.run(create)


async def acquire_orphans(seeds: Seeds, delay_us: int = 0) -> list[OrphanedChild]:
    return await seeds.store.run(acquire_ended_parents(seeds.keys, limit=100, delay_us=delay_us))


async def test_a_child_and_its_parent_know_each_other(seeds: Seeds) -> None:
    parent_id = await seeds.create_task()

    result = await child_of(seeds, parent_id, "child")

    assert begins(result)
    assert dict(result.task.metadata) == {"a2a_celery/parentTaskId": parent_id}
    assert (await seeds.task("child")).metadata == result.task.metadata
    page = await seeds.store.run(read_log(seeds.keys, "child", 0))
    assert fold(page.entries) == await seeds.task("child")
    family = await seeds.store.run(read_family(seeds.keys, ANN, parent_id))
    assert family is not None
    assert (family.parent, [(child.task_id, child.agent) for child in family.children]) == (None, [("child", "other")])
    family = await seeds.store.run(read_family(seeds.keys, OTHER_AGENT, "child"))
    assert family is not None
    assert family.parent is not None
    assert (family.parent.task_id, family.parent.agent, family.children) == (parent_id, "agent", ())
    second_result = await child_of(seeds, parent_id, "child")  # as after a lost reply
    assert second_result.task.metadata == result.task.metadata
    family = await seeds.store.run(read_family(seeds.keys, ANN, parent_id))
    assert family is not None
    assert len(family.children) == 1


@pytest.mark.parametrize(
    "scope", [BOB, replace(ANN, tenant="acme"), replace(ANN, owner="")], ids=["another owner", "tenant", "nobody"]
)
async def test_a_client_cannot_name_a_parent_of_another_owner(seeds: Seeds, scope: Scope) -> None:
    parent_id = await seeds.create_task()

    result = await child_of(seeds, parent_id, "child", scope)

    assert not result.task.metadata.fields
    assert not (await seeds.task("child")).metadata.fields
    family = await seeds.store.run(read_family(seeds.keys, None, parent_id))
    assert family is not None
    assert family.children == ()


async def test_an_unknown_parent_is_ignored(seeds: Seeds) -> None:
    result = await child_of(seeds, "nothing {odd} ünï", "child")

    assert begins(result)
    assert not result.task.metadata.fields


async def test_a_family_is_invisible_in_another_scope(seeds: Seeds) -> None:
    parent_id = await seeds.create_task()

    assert await seeds.store.run(read_family(seeds.keys, BOB, parent_id)) is None
    assert await seeds.store.run(read_family(seeds.keys, None, "missing")) is None


@pytest.mark.parametrize("state", ["queued", "running", "interrupted"])
async def test_the_live_children_of_a_ended_parent_are_due(seeds: Seeds, state: str) -> None:
    parent_id = await seeds.create_task()
    if state != "queued":
        claim = await seeds.claim_run(parent_id)
        if state == "interrupted":
            await seeds.settle_run(claim, status(INPUT_REQUIRED, "?"))
    await child_of(seeds, parent_id, "child")
    await child_of(seeds, parent_id, "independent", cancels=False)
    await child_of(seeds, parent_id, "ended")
    await seeds.settle_run(await seeds.claim_run("ended"), status(COMPLETED))
    assert await acquire_orphans(seeds) == []

    await seeds.store.run(request_cancel(seeds.keys, ANN, parent_id, CONTEXT))
    if state == "running":
        assert await acquire_orphans(seeds) == []  # the parent is not canceled yet
        await seeds.settle_run(claim, status(CANCELED))

    assert await acquire_orphans(seeds) == [OrphanedChild(parent_id, "child", CONTEXT, OTHER_AGENT)]
    assert len(await acquire_orphans(seeds, delay_us=60_000_000)) == 1  # the child stays due until it has ended
    assert await acquire_orphans(seeds) == []
    await seeds.store.run(request_cancel(seeds.keys, OTHER_AGENT, "child", CONTEXT))
    await seeds.store.redis.zadd(ended_parents_key(seeds.keys), {parent_id: 0})
    assert await acquire_orphans(seeds) == []
    assert not await seeds.store.redis.exists(ended_parents_key(seeds.keys))


@pytest.mark.parametrize("end", [COMPLETED, FAILED, REJECTED])
async def test_a_parent_without_a_result_cancels_its_children(seeds: Seeds, end: Any) -> None:
    claim = await seeds.claim_run()
    await child_of(seeds, claim.ref.task_id, "child")
    await child_of(seeds, claim.ref.task_id, "independent", cancels=False)

    await seeds.settle_run(claim, status(end))

    assert [child.task_id for child in await acquire_orphans(seeds)] == ([] if end == COMPLETED else ["child"])


async def test_a_dead_letter_cancels_the_children_that_a_requeued_task_cannot_use_again(seeds: Seeds) -> None:
    """The task that is requeued from the dead letter finds only the called children again."""
    claim = await seeds.claim_run()
    await child_of(seeds, claim.ref.task_id, "waited for", is_awaited=True)
    await child_of(seeds, claim.ref.task_id, "called", is_called=True)
    await child_of(seeds, claim.ref.task_id, "independent", cancels=False)
    await child_of(seeds, claim.ref.task_id, "child")
    events = [status(FAILED)]
    settle = settle_run(seeds.keys, claim.ref, token=claim.token, written_count=0, events=events, is_resubmittable=True)
    await seeds.store.run(settle)

    await child_of(seeds, claim.ref.task_id, "late call", is_called=True)
    await child_of(seeds, claim.ref.task_id, "late")

    assert [child.task_id for child in await acquire_orphans(seeds)] == ["child", "late"]


@pytest.mark.parametrize("from_start", [False, True])
async def test_a_requeue_cancels_the_children_that_the_new_task_does_not_use(seeds: Seeds, from_start: bool) -> None:
    claim = await seeds.claim_run()
    await child_of(seeds, claim.ref.task_id, "called", is_called=True)
    await child_of(seeds, claim.ref.task_id, "child")
    await seeds.recover_run(claim.ref)

    await seeds.requeue_task(claim.ref.task_id, from_start=from_start)

    assert [child.task_id for child in await acquire_orphans(seeds)] == ["called", "child"][not from_start :]


@pytest.mark.parametrize("end", ["is cancelled", "fails"])
async def test_a_child_that_comes_after_the_end_is_due_too(seeds: Seeds, end: str) -> None:
    parent_id = await seeds.create_task()
    if end == "fails":
        await seeds.settle_run(await seeds.claim_run(parent_id), status(FAILED))
    else:
        await seeds.store.run(request_cancel(seeds.keys, ANN, parent_id, CONTEXT))

    await child_of(seeds, parent_id, "independent", cancels=False)
    assert await acquire_orphans(seeds) == []
    await child_of(seeds, parent_id, "late")

    assert [child.task_id for child in await acquire_orphans(seeds)] == ["late"]


async def test_a_deleted_parent_leaves_the_list(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    parent_id = await seeds.create_task()
    await child_of(seeds, parent_id, "child")
    await store.run(request_cancel(keys, ANN, parent_id, CONTEXT))
    await store.redis.delete(*[name async for name in store.redis.scan_iter(f"{keys.prefix}:{{{parent_id}}}:*")])

    assert await acquire_orphans(seeds) == []
    assert not await store.redis.exists(ended_parents_key(keys))
    await store.redis.delete(*[key async for key in store.redis.scan_iter(f"{keys.prefix}:tasks:*")])
    await store.redis.delete(*[key async for key in store.redis.scan_iter(f"{keys.prefix}:context:*")])


async def create_deepest_task(seeds: Seeds) -> str:
    """Create a task with the maximum number of ancestors, and return its id."""
    await seeds.create_task(task_id="0")
    for number in range(MAX_DEPTH):
        assert begins(await child_of(seeds, str(number), str(number + 1)))
    return str(MAX_DEPTH)


async def test_a_family_has_a_maximum_depth(seeds: Seeds) -> None:
    parent_id = await create_deepest_task(seeds)

    assert str(await child_of(seeds, parent_id, "deeper")) == TOO_DEEP

    assert not await seeds.store.redis.exists(seeds.keys.task("deeper").record)


@pytest.mark.parametrize("agents_between", [0, 1, 2])
async def test_a_task_that_waits_for_itself_in_its_context_is_refused(seeds: Seeds, agents_between: int) -> None:
    """A task that waits for its child keeps its place in the context."""
    await seeds.create_task(task_id="0", serialize_context=True)
    for number in range(agents_between):
        await child_of(seeds, str(number), str(number + 1), is_awaited=True)
    parent_id = str(agents_between)

    refusal = await child_of(seeds, parent_id, "last", ANN, is_awaited=True, serialize_context=True)
    assert str(refusal) == WAITS_FOR_ITSELF

    assert not await seeds.store.redis.exists(seeds.keys.task("last").record)
    for refused_before, options in (("other", {"scope": OTHER_AGENT}), ("unawaited", {"is_awaited": False})):
        accepted = {"scope": ANN, "is_awaited": True, "serialize_context": True} | options
        assert begins(await child_of(seeds, parent_id, refused_before, **accepted))


@pytest.mark.parametrize("released_by", ["an unawaited task", "a question", "the end of the task"])
async def test_a_task_waits_in_its_context_for_a_task_that_does_not_wait(seeds: Seeds, released_by: str) -> None:
    claim = await seeds.claim_run(await seeds.create_task(serialize_context=True))
    await child_of(seeds, claim.ref.task_id, "child", is_awaited=released_by != "an unawaited task")
    if released_by == "a question":
        await seeds.settle_run(await seeds.claim_run("child"), status(INPUT_REQUIRED))
    elif released_by == "the end of the task":
        await seeds.settle_run(claim, status(FAILED))

    grandchild = await child_of(seeds, "child", "grandchild", ANN, is_awaited=True, serialize_context=True)

    assert begins(grandchild)
    assert grandchild.is_blocked == (released_by != "the end of the task")


@pytest.mark.parametrize("agents_between", [0, 1])
async def test_tasks_of_two_contexts_that_would_wait_for_each_other_are_refused(
    seeds: Seeds, agents_between: int
) -> None:
    """The first task of each context calls the agent of the other context."""
    await seeds.create_task(task_id="a", serialize_context=True)
    await seeds.create_task(OTHER_AGENT, task_id="b", serialize_context=True)
    for number in range(agents_between):
        await child_of(seeds, "a", f"a{number}", THIRD_AGENT, is_awaited=True)
    caller = f"a{agents_between - 1}" if agents_between else "a"
    in_b = await child_of(seeds, caller, "in b", is_awaited=True, serialize_context=True)
    assert begins(in_b)
    assert in_b.is_blocked

    refusal = await child_of(seeds, "b", "in a", ANN, is_awaited=True, serialize_context=True)
    assert str(refusal) == WAITS_FOR_ITSELF

    await seeds.store.run(request_cancel(seeds.keys, OTHER_AGENT, "in b", CONTEXT))
    assert begins(await child_of(seeds, "b", "in a", ANN, is_awaited=True, serialize_context=True))


async def test_a_parent_has_a_maximum_of_live_children(seeds: Seeds) -> None:
    parent_id = await seeds.create_task()
    names = ["a", *(f"b{number}" for number in range(MAX_CHILDREN - 1))]
    for name in names:
        await child_of(seeds, parent_id, name)

    limited = await child_of(seeds, parent_id, "c")
    await seeds.store.run(request_cancel(seeds.keys, OTHER_AGENT, "a", CONTEXT))
    result = await child_of(seeds, parent_id, "c")

    assert is_limited(limited)
    assert limited.data == {"limit": "children", "maximum": MAX_CHILDREN, "retry_in": 60.0}
    assert begins(result)
    stored_family = await seeds.store.run(read_family(seeds.keys, None, parent_id))
    assert stored_family is not None
    assert [child.task_id for child in stored_family.children] == [*names[1:], "c"]


def wait_for_child(task_id: str) -> Wait:
    """Return the `Wait` of a run that waits for the task `task_id`."""
    entry = JournalEntry("call#1", "call", "started", task_id.encode(), 1)
    return Wait(entry, entry, f"child/{task_id}", task_id=task_id)


async def suspended_parent(seeds: Seeds) -> tuple[str, int | None]:
    """Suspend a task that waits for its child "child". Return the id of the suspended task and the run to publish."""
    claim = await seeds.claim_run()
    await child_of(seeds, claim.ref.task_id, "child")
    reply = await Suspensions(seeds).suspend_run(claim, wait_for_child("child"))
    return claim.ref.task_id, reply.next_run


@pytest.mark.parametrize("end", ["ends", "is interrupted", "is cancelled"])
async def test_the_end_of_a_child_resumes_the_run_that_waits_for_it(seeds: Seeds, end: str) -> None:
    parent_id, next_run = await suspended_parent(seeds)
    assert next_run is None
    assert await Suspensions(seeds).queued_runs() == ["child.1"]

    if end == "is cancelled":
        await seeds.store.run(request_cancel(seeds.keys, OTHER_AGENT, "child", CONTEXT))
    else:
        state = INPUT_REQUIRED if end == "is interrupted" else COMPLETED
        await seeds.settle_run(await seeds.claim_run("child"), status(state, "?"))

    assert await Suspensions(seeds).queued_runs() == [f"{parent_id}.2"]
    assert await Suspensions(seeds).suspended_runs() == []
    claim = await seeds.claim_run(parent_id, run=2)
    assert claim.journal.entries is not None
    assert (claim.journal.entries["call#1"].form, claim.journal.entries["call#1"].content) == ("started", b"child")


async def test_another_child_resumes_nothing(seeds: Seeds) -> None:
    parent_id, _ = await suspended_parent(seeds)
    await child_of(seeds, parent_id, "another")

    await seeds.settle_run(await seeds.claim_run("another"), status(COMPLETED))

    assert await Suspensions(seeds).suspended_runs() == [f"{parent_id}.2"]


@pytest.mark.parametrize("child", ["has ended", "is interrupted", "is unknown"])
async def test_a_wait_for_a_final_child_ends_at_once(seeds: Seeds, child: str) -> None:
    claim = await seeds.claim_run()
    if child != "is unknown":
        await child_of(seeds, claim.ref.task_id, "child")
        state = COMPLETED if child == "has ended" else INPUT_REQUIRED
        await seeds.settle_run(await seeds.claim_run("child"), status(state, "?"))

    reply = await Suspensions(seeds).suspend_run(claim, wait_for_child("child"))

    assert reply.next_run == 2


async def interrupt(seeds: Seeds, parent_id: str) -> None:
    """Send a message that interrupts the run of a task."""
    message_request = request("rather this", parent_id, CONTEXT)
    nonce = f"interrupt {parent_id}"
    operation = continue_task(
        seeds.keys, ANN, parent_id, message_request, "", caller=b"{}", nonce=nonce, on_message="interrupt"
    )
    await seeds.store.run(operation)


async def interrupted_parent(seeds: Seeds, phase: str) -> tuple[str, int]:
    """Interrupt a turn with children of each kind. The turn waits for "called", "asking" and "independent". Return the
    id of the task and the number of the next run."""
    claim = await seeds.claim_run()
    parent_id = claim.ref.task_id
    for name, options in {
        "called": {"is_awaited": True},
        "asking": {"is_awaited": True},
        "independent": {"is_awaited": True, "cancels": False},
        "submitted": {},
    }.items():
        await child_of(seeds, parent_id, name, **options)
    await seeds.settle_run(await seeds.claim_run("asking"), status(INPUT_REQUIRED, "?"))
    if phase == "suspended":
        await Suspensions(seeds).suspend_run(claim, wait_for_child("called"))
    await interrupt(seeds, parent_id)
    if phase == "running":
        await seeds.settle_run(claim)
    elif phase == "lost":
        await seeds.recover_run(claim.ref)
    return parent_id, 3 if phase == "suspended" else 2


@pytest.mark.parametrize("phase", ["running", "suspended", "lost"])
@pytest.mark.parametrize("end", [None, COMPLETED, FAILED])
async def test_a_message_that_interrupts_a_turn_cancels_the_children_for_which_it_waits(
    seeds: Seeds, phase: str, end: Any
) -> None:
    parent_id, run = await interrupted_parent(seeds, phase)
    next_claim = await seeds.claim_run(parent_id, run=run)
    await child_of(seeds, parent_id, "of the next turn", is_awaited=True)
    if end is not None:
        await seeds.settle_run(next_claim, status(end))

    orphans = [child.task_id for child in await acquire_orphans(seeds)]

    expected = ["called"] if end != FAILED else ["called", "asking", "submitted", "of the next turn"]
    assert orphans == expected
    for child_id in orphans:
        await seeds.store.run(request_cancel(seeds.keys, OTHER_AGENT, child_id, CONTEXT))
    assert await acquire_orphans(seeds) == []
    assert not await seeds.store.redis.exists(ended_parents_key(seeds.keys))


async def test_a_dead_letter_keeps_the_children_of_the_turn_after_an_interrupt(seeds: Seeds) -> None:
    parent_id, run = await interrupted_parent(seeds, "running")
    next_claim = await seeds.claim_run(parent_id, run=run)
    await child_of(seeds, parent_id, "of the next turn", is_awaited=True)
    await seeds.recover_run(next_claim.ref)
    assert (await seeds.task(parent_id)).status.state == FAILED

    assert [child.task_id for child in await acquire_orphans(seeds)] == ["called", "submitted"]


async def test_a_task_without_children_that_is_interrupted_is_not_due(seeds: Seeds) -> None:
    await interrupt(seeds, await seeds.create_task())

    assert not await seeds.store.redis.exists(ended_parents_key(seeds.keys))


async def requeued_parent(seeds: Seeds) -> str:
    """Requeue a dead letter with the children "child" and "ended". Return the id of the new task, which waits for
    "child"."""
    claim = await seeds.claim_run()
    await child_of(seeds, claim.ref.task_id, "child", is_awaited=True)
    await child_of(seeds, claim.ref.task_id, "ended", cancels=False, is_called=True)
    await seeds.settle_run(await seeds.claim_run("ended"), status(COMPLETED))
    await child_of(seeds, claim.ref.task_id, "deleted")
    await seeds.store.run(delete_task(seeds.keys, OTHER_AGENT, "deleted"))
    await seeds.recover_run(claim.ref)
    new_id, _ = await seeds.requeue_task(claim.ref.task_id)
    await Suspensions(seeds).suspend_run(await seeds.claim_run(new_id), wait_for_child("child"))
    return new_id


async def test_the_end_of_a_child_resumes_the_requeued_parent(seeds: Seeds) -> None:
    new_id = await requeued_parent(seeds)

    await seeds.settle_run(await seeds.claim_run("child"), status(COMPLETED))

    assert await Suspensions(seeds).queued_runs() == [f"{new_id}.2"]


async def test_the_children_of_a_requeued_task_are_cancelled_with_it(seeds: Seeds) -> None:
    new_id = await requeued_parent(seeds)

    await seeds.store.run(request_cancel(seeds.keys, ANN, new_id, CONTEXT))

    assert [(child.parent_id, child.task_id) for child in await acquire_orphans(seeds)] == [(new_id, "child")]


async def test_a_requeued_task_has_the_children_of_its_dead_letter(seeds: Seeds, keys: Keys) -> None:
    new_id = await requeued_parent(seeds)

    stored_family = await seeds.store.run(read_family(keys, None, new_id))
    assert stored_family is not None
    assert [(child.task_id, child.cancels) for child in stored_family.children] == [("child", True), ("ended", False)]
    for task_id in ("child", "ended"):
        family_of_child = await seeds.store.run(read_family(keys, None, task_id))
        assert family_of_child is not None
        assert family_of_child.parent is not None
        assert family_of_child.parent.task_id == new_id
    assert not await seeds.store.redis.exists(keys.task("deleted").record)


async def test_a_requeued_task_keeps_its_depth(seeds: Seeds) -> None:
    task_id = await create_deepest_task(seeds)
    await seeds.recover_run((await seeds.claim_run(task_id)).ref)
    new_id, _ = await seeds.requeue_task(task_id)

    assert str(await child_of(seeds, new_id, "deeper")) == TOO_DEEP


async def test_a_task_that_starts_again_has_no_children(seeds: Seeds, keys: Keys) -> None:
    claim = await seeds.claim_run()
    await child_of(seeds, claim.ref.task_id, "child")
    await seeds.recover_run(claim.ref)
    new_id, _ = await seeds.requeue_task(claim.ref.task_id, from_start=True)

    families = [await seeds.store.run(read_family(keys, None, task_id)) for task_id in (new_id, claim.ref.task_id)]
    assert [[child.task_id for child in family.children] for family in families if family] == [[], ["child"]]


async def test_schema_5_converts_tasks_with_children(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    """An older store has the children of an interrupted turn, and marks the children for which a task waits."""
    parent_id = await seeds.create_task()
    parent = keys.task(parent_id).record
    await child_of(seeds, parent_id, "called", is_awaited=True)
    await child_of(seeds, parent_id, "independent", cancels=False)
    await interrupt(seeds, parent_id)
    await child_of(seeds, parent_id, "of the next turn", is_awaited=True)
    data_before = await seeds.all_values()
    for child in ("called", "of the next turn"):
        await store.redis.hdel(keys.task(child).record, "resumes")
        await store.redis.hset(keys.task(child).record, "awaited", 1)
    await store.redis.hdel(parent, "cleanup", "interrupted_turn")
    await store.redis.hset(parent, "children_at_interrupt", "called independent! ")
    step, _ = pending(4)

    for expected_count in (1, 0):
        assert await asyncio.to_thread(migrate, SyncStore(redis_server.store_url), keys, step, 4) == expected_count

    await store.redis.delete(keys.installation)
    assert await seeds.all_values() == data_before
