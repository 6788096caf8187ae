"""Results of each operation, which are equal through the asyncio client and the sync client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from a2a.types import TaskStatusUpdateEvent

import a2a_celery.features.idempotency.section  # noqa: F401 - no other import of this module registers this section
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import Call, RunOptions
from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.features.families.child_canceller import acquire_ended_parents
from a2a_celery.features.families.family import read_family
from a2a_celery.features.questions.question_section import QuestionSection, Reminder
from a2a_celery.features.questions.reminder_poster import post_reminders
from a2a_celery.features.schedules.section import skipped_ticks
from a2a_celery.features.sessions.section import SessionSection, checkpoint
from a2a_celery.features.steering.section import read_messages
from a2a_celery.features.webhooks.deliveries import delivery_metrics
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, Operation, SyncStore
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.admin.samples import HOUR, Sample, record_sample
from a2a_celery.store.admin.scan import newest_scopes, newest_tasks, read_states, scan_list
from a2a_celery.store.admin.start_check import announce_watcher
from a2a_celery.store.admin.usage import read_memory
from a2a_celery.store.blobs.blob_store import register_blobs
from a2a_celery.store.blobs.cleanup import acquire_orphaned_blobs, blobs_in_use, forget_removed_blobs
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.operation import script, script_text
from a2a_celery.store.runs.commands import append, claim_run, end_run, revoke_run, settle_run
from a2a_celery.store.runs.journal import read_journal, read_recorded
from a2a_celery.store.runs.publication import (
    DueRun,
    Publication,
    acquire_due_runs,
    claimed_runs,
    mark_all_published,
    postpone_runs,
    report_prefetched,
)
from a2a_celery.store.runs.recovery import Lapsed, lapse_run, lapsed_runs, return_run
from a2a_celery.store.runs.release import (
    delegate_to_canvas,
    due_canvases,
    end_by_result,
    read_activities,
    record_result,
    release_run,
    retry_run,
)
from a2a_celery.store.runs.renewal import renew_runs
from a2a_celery.store.tasks.commands import (
    acquire_request,
    continue_task,
    create_task,
    end_pauses,
    list_tasks,
    read_next_run,
    read_task,
    request_cancel,
    unlist_task,
)
from a2a_celery.store.tasks.waiting import list_waiting
from a2a_celery.store.verbs import SECTIONS
from tests.features.families.test_store import child_of
from tests.store.operations_on_deliveries import WEBHOOK_OPERATIONS
from tests.store.operations_on_stores import STORE_OPERATIONS
from tests.store.operations_on_suspensions import SUSPENSION_OPERATIONS
from tests.support.store.scripts import script_files
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, status

Make = Callable[[Keys, Seeds], Awaitable[Operation[Any]]]
REF = RunRef("t", 1)
TOKEN = "token"


async def claim_task(keys: Keys, seeds: Seeds) -> None:
    """Create task "t" and claim its run."""
    await seeds.create_task(task_id="t")
    await seeds.store.run(claim(keys))


async def create_calling_task(keys: Keys, seeds: Seeds) -> None:
    """Create task "t", whose run calls a plain task and waits for a worker."""
    options = RunOptions(call=Call("tasks.resize", {})).to_json()
    await seeds.store.run(
        create_task(keys, ANN, "t", CONTEXT, request(task_id="t"), caller=b"{}", retention=RETENTION, options=options)
    )


def claim(keys: Keys) -> Operation[Any]:
    return claim_run(keys, REF, token=TOKEN, runner="r", lease_us=LEASE_US, working=True)


async def _create(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return create_task(keys, ANN, "t", CONTEXT, request(), caller=b"{}", retention=RETENTION)


async def _continue(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task_in(INPUT_REQUIRED, task_id="t")
    return continue_task(keys, ANN, "t", request("more", "t", CONTEXT), "", caller=b"{}", nonce="n")


async def _next_run(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task_in(INPUT_REQUIRED, task_id="t")
    return read_next_run(keys, "t")


async def _cancel(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return request_cancel(keys, ANN, "t", CONTEXT)


async def _read(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return read_task(keys, ANN, "t")


async def _list(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task_in(COMPLETED)
    await seeds.create_task()
    return list_tasks(keys, ANN, retention=RETENTION, page_size=10)


async def _unlist(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return unlist_task(keys, await seeds.create_task_in(COMPLETED))


async def _log(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return read_log(keys, "t", 1)


async def _claim(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return claim(keys)


async def _append(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return append(keys, REF, token=TOKEN, written_count=0, events=[chunk("a")])


async def _settle(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return settle_run(keys, REF, token=TOKEN, written_count=0, events=[status(COMPLETED)])


async def _checkpoint(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return checkpoint(keys, REF, token=TOKEN, confirmed=0, sections=[SessionSection.of(keys, 0, b"{}")])


async def _renew(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return renew_runs(keys, [(REF, TOKEN), (RunRef("none", 1), "x")], lease_us=LEASE_US)


async def _messages(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    message_request = request("more", "t", CONTEXT)
    await seeds.store.run(
        continue_task(keys, ANN, "t", message_request, "", caller=b"{}", nonce="n", on_message="steer")
    )
    return read_messages(keys, REF, token=TOKEN, received=0)


async def _mark(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return mark_all_published(keys, {REF: Publication(1), RunRef("unknown", 1): Publication(1)})


async def _refuse(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return postpone_runs(keys, {DueRun(REF, "agent", b"", 5): 1})


async def _hold(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return report_prefetched(keys, [REF, RunRef("unknown", 1)], silent_us=1, delay_us=1)


async def _take(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return acquire_due_runs(keys, limit=10, delay_us=1)


async def _claimed_runs(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    await seeds.store.run(mark_all_published(keys, {REF: Publication(1)}))
    await seeds.store.run(claim(keys))
    return claimed_runs(keys, limit=10)


async def _end_pauses(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task_in(INPUT_REQUIRED, task_id="t")
    return end_pauses(keys, limit=10)


async def _post_reminders(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    reminders = [Reminder.of(3_600_000_000, TaskStatusUpdateEvent())]
    events = [status(INPUT_REQUIRED, "well?")]
    await seeds.store.run(
        settle_run(
            keys, REF, token=TOKEN, written_count=0, events=events, sections=[QuestionSection(reminders=reminders)]
        )
    )
    return post_reminders(keys, limit=10)


async def _lapsed_runs(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    await seeds.store.run(claim_run(keys, REF, token=TOKEN, runner="r", lease_us=-1, working=True))
    return lapsed_runs(keys, limit=10)


async def _lapse(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return lapse_run(keys, Lapsed(REF, "agent", 1, 1), await seeds.task("t"), 2, delay_us=0)


async def fail_as_lost(keys: Keys, seeds: Seeds) -> None:
    """Create task "t", and end its run as lost."""
    await claim_task(keys, seeds)
    await seeds.store.run(end_run(keys, REF, runner="r", event=status(FAILED, "over"), lost=True))


async def _scan(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return scan_list(keys, keys.dispatch)


async def _newest(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return newest_tasks(keys, [f"{keys.scope_index(ANN)}1"], limit=9)


async def _newest_scopes(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return newest_scopes(keys, 9)


async def _waiting(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task_in(INPUT_REQUIRED, task_id="t")
    return list_waiting(keys, [ANN], page_size=9)


async def _states(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return read_states(keys, ["t", "nobody"])


async def _dead_letter(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await fail_as_lost(keys, seeds)
    return read_dead_letter(keys, "t")


async def _requeue(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await fail_as_lost(keys, seeds)
    dead_letter = await seeds.store.run(read_dead_letter(keys, "t"))
    assert isinstance(dead_letter, DeadLetter)
    return requeue_task(keys, dead_letter, "new", retention=RETENTION, options=b"")


async def _end(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return end_run(keys, REF, runner=None, event=status(FAILED, "over"))


async def _revoke(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return revoke_run(keys, REF, event=status(CANCELED, "stop"), terminate=True)


async def _release(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return release_run(
        keys, REF, token=TOKEN, written_count=0, events=[status(WORKING)], options=b"", retries=1, delay_us=0
    )


async def _retry(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return retry_run(keys, REF, runner="r", event=status(WORKING), options=b'{"retries":1}', retries=1, delay_us=0)


async def _due_canvases(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    await seeds.store.run(delegate_to_canvas(keys, REF, token=TOKEN, written_count=0, events=[], canvas="{}"))
    await seeds.store.redis.zadd(keys.canvases, {REF.name: "inf"})
    return due_canvases(keys, limit=10, delay_us=0)


async def _end_by_result(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    await seeds.store.run(delegate_to_canvas(keys, REF, token=TOKEN, written_count=0, events=[], canvas="{}"))
    return end_by_result(keys, REF, [chunk("a"), status(COMPLETED)])


async def _record_result(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await create_calling_task(keys, seeds)
    return record_result(keys, REF, previous_state="", state="1 0 d", event=status(WORKING))


async def _record_heartbeat(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return announce_watcher(keys, "here", archives=True)


async def _return_run(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return return_run(keys, REF, runner=None, loss=status(FAILED, "lost"))


async def _steps(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return read_activities(keys, "t")


async def _journal(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    entries = [JournalEntry("fetch#1", "step", "json", b"1")]
    await seeds.store.run(append(keys, REF, token=TOKEN, written_count=0, events=entries))
    return read_journal(keys, REF, token=TOKEN)


async def _recorded(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await _journal(keys, seeds)
    return read_recorded(keys, "t", max_content=0)


async def _read_metrics(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task_in(COMPLETED)
    return read_metrics(keys)


async def _record_sample(keys: Keys, seeds: Seeds) -> Operation[Any]:
    run = seeds.store.run
    sample = Sample.of(
        await run(read_metrics(keys)), (await run(delivery_metrics(keys))).posts, await run(read_memory())
    )
    operation = record_sample(keys, HOUR, sample)
    return replace(operation, parse=lambda reply: [recorded.sample for recorded in operation.parse(reply)])


async def _register_blobs(keys: Keys, seeds: Seeds) -> Operation[Any]:
    operation = register_blobs(keys, await seeds.create_task())
    await seeds.store.run(operation)
    return operation


async def _blobs_in_use(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.run(register_blobs(keys, await seeds.create_task()))
    return blobs_in_use(keys)


async def _acquire_orphaned_blobs(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.run(register_blobs(keys, await seeds.create_task()))
    return acquire_orphaned_blobs(keys, limit=10)


async def _forget_removed_blobs(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return forget_removed_blobs(keys, ["t"])


async def _acquire_request(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return acquire_request(keys, ANN, per_second=1, burst=2)


async def _read_memory(keys: Keys, seeds: Seeds) -> Operation[Any]:
    operation = read_memory()
    return replace(operation, parse=lambda reply: operation.parse([b"0", *reply[1:]]))  # the used bytes differ


async def _read_family(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await child_of(seeds, await seeds.create_task(), "child")
    return read_family(keys, None, "child")


async def _acquire_ended_parents(keys: Keys, seeds: Seeds) -> Operation[Any]:
    parent_id = await seeds.create_task()
    await child_of(seeds, parent_id, "child")
    await seeds.store.run(request_cancel(keys, ANN, parent_id, CONTEXT))
    return acquire_ended_parents(keys, limit=1, delay_us=0)


async def _skipped_ticks(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return skipped_ticks(keys, "nightly")


SPARE_LOCALS = 8
"""Number of locals that a change of a script or of a library may add."""

FEATURE_SECTIONS = {kind: code for kind, code in SECTIONS.items() if kind.__module__.startswith("a2a_celery.")}

VERBS: list[Make] = [
    _create, _continue, _cancel, _read, _list, _log, _claim, _append, _settle, _renew, _mark, _refuse, _hold, _take,
    _end_pauses, _lapsed_runs, _lapse, _end, _return_run, _release, _retry, _due_canvases, _end_by_result,
    _record_result, _scan, _dead_letter, _requeue, _claimed_runs, _record_heartbeat, _read_metrics, _steps, _journal,
    _recorded, _checkpoint, _acquire_request, _register_blobs, _blobs_in_use, _acquire_orphaned_blobs,
    _forget_removed_blobs,
    _newest, _newest_scopes, _waiting, _states,
    _next_run, _unlist, _read_memory, _revoke, _messages, _read_family, _acquire_ended_parents,
    _record_sample, *STORE_OPERATIONS,
    *WEBHOOK_OPERATIONS, *SUSPENSION_OPERATIONS, _post_reminders, _skipped_ticks,
]  # fmt: skip

TESTED_ELSEWHERE = {"delete_task"}
"""A script that no operation calls (see test_end_run.py)."""


@pytest.fixture
def sync_store(redis_server: EmbeddedRedis) -> Iterator[SyncStore]:
    store = SyncStore(redis_server.store_url)
    yield store
    store.close()


@pytest.mark.parametrize("make", VERBS, ids=lambda make: make.__name__[1:])
async def test_both_clients_give_the_same_answer(
    store: AsyncStore, sync_store: SyncStore, keys: Keys, seeds: Seeds, make: Make
) -> None:
    operation = await make(keys, seeds)

    # The second call must return the same result, so the first call must not change the result of the operation.
    async_answer = await store.run(operation)
    sync_answer = await asyncio.to_thread(sync_store.run, operation)

    assert type(async_answer) is type(sync_answer)
    assert async_answer == sync_answer


@pytest.mark.parametrize("make", VERBS, ids=lambda make: make.__name__[1:])
async def test_both_clients_load_a_script_that_redis_does_not_know_yet(
    store: AsyncStore, sync_store: SyncStore, keys: Keys, seeds: Seeds, make: Make
) -> None:
    operation = await make(keys, seeds)
    await store.redis.script_flush()
    await store.run(operation)
    await store.redis.script_flush()

    await asyncio.to_thread(sync_store.run, operation)

    assert await store.redis.script_exists(operation.script.sha) == [True]


async def test_every_script_is_a_verb_that_is_tested_here(keys: Keys, seeds: Seeds) -> None:
    tested_scripts = set()
    for make in VERBS:
        await seeds.store.redis.flushall()
        tested_scripts.add((await make(keys, seeds)).script.name)
    scripts = {path.stem for path in script_files()}

    assert tested_scripts == scripts - TESTED_ELSEWHERE


async def test_every_script_may_define_some_more_locals(store: AsyncStore) -> None:
    """Lua compiles no script with more than 200 locals. A script has the most with a section of each feature."""
    spare_locals = "".join(f"local spare_{number}\n" for number in range(SPARE_LOCALS))
    for name in (path.stem for path in script_files()):
        text, kinds = script_text(name), dict[str, list[type[Any]]]()
        for kind, code in FEATURE_SECTIONS.items():
            if any(f"{function}_sections(" in text for function in code.functions):
                kinds.setdefault(code.table.name, []).append(kind)
        for sections in product(*kinds.values()):
            await store.redis.script_load(spare_locals + script(name, sections).text)


async def test_concurrent_operations_get_their_own_replies(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await store.redis.script_flush()

    ids = await asyncio.gather(*(seeds.create_task(task_id=f"t{n}") for n in range(300)))
    tasks = await asyncio.gather(*(seeds.task(task_id) for task_id in ids))

    assert [task.id for task in tasks] == [f"t{n}" for n in range(300)]


async def test_a_cancelled_caller_does_not_affect_the_replies_of_others(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    ids = [await seeds.create_task() for _ in range(50)]
    reads = [asyncio.create_task(seeds.task(task_id)) for task_id in ids]
    await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED, timeout=0)

    for read_part in reads[::2]:
        read_part.cancel()

    remaining = await asyncio.gather(*reads[1::2])
    assert [task.id for task in remaining] == ids[1::2]
    assert (await seeds.task(ids[0])).id == ids[0]
