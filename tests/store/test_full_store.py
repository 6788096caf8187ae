"""Store at its memory limit. The store executes or refuses each script as documented, and no running task fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import StoreUnavailable
from a2a_celery.features.questions.reminder_poster import reminder_index
from a2a_celery.features.sessions.section import SessionSection
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.deliveries import acquire_due_deliveries, acquire_requested_posts
from a2a_celery.lifecycle import Event
from a2a_celery.lifecycle.execution import Activity, ExecutionState, Transition
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.admin.archiving import read_archive_state, remove_archived
from a2a_celery.store.blobs.cleanup import acquire_orphaned_blobs
from a2a_celery.store.runs.commands import append, end_run, settle_run
from a2a_celery.store.runs.publication import acquire_due_runs
from a2a_celery.store.runs.recovery import Lapsed, lapse_run, return_run
from a2a_celery.store.runs.release import delegate_to_canvas, due_canvases, end_by_result
from a2a_celery.store.runs.renewal import Renewal, renew_runs
from a2a_celery.store.runs.suspension import resume_due_runs
from a2a_celery.store.tasks.commands import (
    continue_task,
    create_task,
    delete_task,
    end_pauses,
    request_cancel,
)
from a2a_celery.watcher.recoverer import Recoverer
from tests.store.operations_on_deliveries import acquire_cursor, request_ping
from tests.store.test_operations import REF, TOKEN, VERBS, Make, _post_reminders, claim_task
from tests.support.processes.restarts import allow_writes, installed_servers, refuse_writes
from tests.support.store.limits import limit_sections
from tests.support.store.scripts import script_files
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, status
from tests.support.store.suspensions import Suspensions, wait_for

LARGE = "x" * 10_000


class WhenFull(StrEnum):
    """Reaction of a full store to a script."""

    REFUSED = "refused, and nothing is changed"
    WRITTEN = "carried out"
    READ = "answered, and nothing is changed"


REFUSED, WRITTEN, READ = WhenFull.REFUSED, WhenFull.WRITTEN, WhenFull.READ

BY_SCRIPT = {
    # running tasks continue and end
    "renew_runs": WRITTEN, "settle_run": WRITTEN, "release_run": WRITTEN, "append": REFUSED, "checkpoint": REFUSED,
    "request_cancel": WRITTEN, "revoke_run": WRITTEN, "end_run": WRITTEN, "return_run": WRITTEN,
    "end_by_result": WRITTEN, "record_result": WRITTEN, "retry_run": WRITTEN,
    "suspend_run": WRITTEN, "take_signal": WRITTEN,
    "due_canvases": WRITTEN, "report_prefetched": WRITTEN, "mark_published": WRITTEN,
    # nothing starts, and no run is released from its worker
    "create_task": REFUSED, "continue_task": REFUSED, "requeue_task": REFUSED, "claim_run": REFUSED,
    "acquire_due_runs": REFUSED, "resume_due_runs": REFUSED, "postpone_runs": REFUSED, "lapsed_runs": REFUSED,
    "lapse_run": REFUSED,
    "save_push_config": REFUSED, "register_blobs": REFUSED,
    "request_post": REFUSED, "post_reminders": REFUSED, "send_signal": REFUSED,
    # ending, delivering, archiving and deleting free memory
    "end_pauses": WRITTEN, "delete_task": WRITTEN,
    "delete_push_config": WRITTEN, "unlist_task": WRITTEN,
    "acquire_due_deliveries": WRITTEN, "record_delivery": WRITTEN, "postpone_delivery": WRITTEN,
    "abandon_delivery": WRITTEN, "replay_delivery": WRITTEN, "acquire_requested_posts": WRITTEN,
    "settle_requested_post": WRITTEN, "acquire_archivable": WRITTEN, "remove_archived": WRITTEN,
    "defer_archiving": WRITTEN, "acquire_orphaned_blobs": WRITTEN, "forget_removed_blobs": READ,
    # reads
    "read_task": READ, "list_tasks": READ, "read_log": READ, "read_states": READ, "read_activities": READ,
    "read_journal": READ, "read_dead_letter": READ, "read_push_configs": READ, "read_delivery": READ,
    "scan_deliveries": READ, "skipped_ticks": READ,
    "read_recorded": READ,
    "scan_list": READ, "newest_tasks": READ, "read_metrics": READ, "delivery_metrics": READ, "claimed_runs": READ,
    "read_messages": READ, "read_family": READ, "acquire_ended_parents": WRITTEN,
    "read_next_run": READ,
    "list_waiting": READ, "newest_scopes": READ,
    "blobs_in_use": READ, "secrets_in_use": READ, "read_archive_state": READ, "find_keys": READ, "open_store": READ,
    "acquire_request": WRITTEN, "read_memory": READ, "record_heartbeat": WRITTEN,
    "record_sample": WRITTEN,
    # operators
    "set_schema": REFUSED, "update_archive_backlog": WRITTEN, "migrate_to_1": READ, "migrate_to_2": READ,
    "migrate_to_3": READ, "migrate_to_4": READ, "migrate_to_5": READ, "migrate_to_6": READ,
}  # fmt: skip
"""Reaction of a full store to each script that ``test_operations`` calls. Add new scripts here."""


@dataclass(frozen=True)
class Case:
    """Call to a script on a full store."""

    name: str
    make: Make
    expected: WhenFull | None = None
    """Expected reaction, or None for the script's reaction in `BY_SCRIPT`."""


def _append_case(*events: Event | Activity) -> Make:
    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        await claim_task(keys, seeds)
        return append(keys, REF, token=TOKEN, written_count=0, events=events)

    return make


def _settle_case(*events: Event | Activity, session: bytes | None = None) -> Make:
    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        await claim_task(keys, seeds)
        sections = [SessionSection.of(keys, 0, session)] if session is not None else ()
        return settle_run(keys, REF, token=TOKEN, written_count=0, events=events, sections=sections)

    return make


def _lapse_case(*, attempts: int) -> Make:
    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        await seeds.claim_run(await seeds.create_task(task_id="t"), max_attempts=attempts)
        await seeds.store.redis.zadd(keys.leases, {REF.name: 1})
        return lapse_run(keys, Lapsed(REF, "agent", 1, attempts), await seeds.task("t"), 2, delay_us=0)

    return make


def _delegate_case(*events: Event) -> Make:
    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        await claim_task(keys, seeds)
        await seeds.store.run(delegate_to_canvas(keys, REF, token=TOKEN, written_count=0, events=[], canvas="{}"))
        return end_by_result(keys, REF, events)

    return make


def _return_case(*, attempts: int) -> Make:
    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        await seeds.claim_run(await seeds.create_task(task_id="t"), max_attempts=attempts)
        return return_run(keys, REF, runner="runner", loss=status(FAILED, "lost"))

    return make


def _end_case(*, attempts: int) -> Make:
    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        await seeds.claim_run(await seeds.create_task(task_id="t"), max_attempts=attempts)
        return end_run(keys, REF, runner="runner", event=status(FAILED, "lost"), lost=True)

    return make


async def _canvas_is_due(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    await seeds.store.run(delegate_to_canvas(keys, REF, token=TOKEN, written_count=0, events=[], canvas="{}"))
    await seeds.store.redis.zadd(keys.canvases, {REF.name: 1})
    return due_canvases(keys, limit=10, delay_us=LEASE_US)


async def _pause_is_over(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task_in(INPUT_REQUIRED, task_id="t")
    await seeds.store.redis.hset(keys.task("t").record, "pause_timeout", b"")
    await seeds.store.redis.zadd(keys.pauses, {"t": 1})
    return end_pauses(keys, limit=10)


async def _reminder_is_due(keys: Keys, seeds: Seeds) -> Operation[Any]:
    operation = await _post_reminders(keys, seeds)
    await seeds.store.redis.zadd(reminder_index(keys), {"t": 1})
    return operation


async def _suspended_run_is_due(keys: Keys, seeds: Seeds) -> Operation[Any]:
    claim = await seeds.claim_run(await seeds.create_task(task_id="t"))
    suspensions = Suspensions(seeds)
    await suspensions.suspend_run(claim, wait_for("go"))
    await suspensions.make_due(RunRef("t", 2))
    return resume_due_runs(keys, limit=10)


async def _run_is_due(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    await seeds.store.redis.zadd(keys.dispatch, {REF.name: 1})
    return acquire_due_runs(keys, limit=10, delay_us=1)


async def _cancel_of_a_running_task(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return request_cancel(keys, ANN, "t", CONTEXT)


async def _message_that_waits(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return continue_task(keys, ANN, "t", request("more", "t", CONTEXT), "", caller=b"{}", nonce="n")


async def _delivery_is_due(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await acquire_cursor(keys, seeds)
    await seeds.store.redis.zadd(webhook_keys.deliveries(keys), {"t c": 1})
    return acquire_due_deliveries(keys, limit=1, lease_us=LEASE_US)


async def _requested_post_is_due(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await request_ping(keys, seeds)
    await seeds.store.redis.zadd(webhook_keys.requested_posts(keys), {"t c": 1})
    return acquire_requested_posts(keys, limit=1, lease_us=LEASE_US)


async def _remove_archived(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.redis.hset(keys.installation, "archive", "1")
    return remove_archived(keys, [await seeds.create_task_in(COMPLETED)])


async def _blobs_of_a_missing_task(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.redis.zadd(keys.blobs, {"missing": 1})
    return acquire_orphaned_blobs(keys, limit=10)


async def _archive_is_given_up(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.redis.hset(keys.installation, "archive", "1")
    return read_archive_state(keys, give_up=True)


async def _delete(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await claim_task(keys, seeds)
    return delete_task(keys, ANN, "t")


STEP = Activity(1, 1, "r", Transition(1, ExecutionState.IDLE, ExecutionState.INITIALIZING, 1))

NOTHING_TO_DO = {
    "end_pauses", "lapse", "due_canvases", "resume_due", "acquire_orphaned_blobs", "remove_archived",
    "acquire_deliveries", "acquire_requested_posts", "post_reminders",
}  # fmt: skip
"""Calls in ``test_operations`` that change nothing. `CASES` contains a call with an effect for each."""

CASES = [
    *(Case(make.__name__[1:], make, READ if make.__name__[1:] in NOTHING_TO_DO else None) for make in VERBS),
    Case("delete_task", _delete),
    Case("append_a_state", _append_case(STEP, status(INPUT_REQUIRED, "?")), WRITTEN),
    Case("append_the_end", _append_case(status(COMPLETED)), WRITTEN),
    Case("append_progress", _append_case(status(WORKING, "half-way")), REFUSED),
    Case("append_a_large_end", _append_case(status(COMPLETED, LARGE)), REFUSED),
    Case("settle_with_a_result", _settle_case(chunk("42"), status(COMPLETED)), WRITTEN),
    Case("settle_with_a_large_result", _settle_case(chunk(LARGE), status(COMPLETED)), REFUSED),
    Case("settle_with_a_large_text", _settle_case(status(COMPLETED, LARGE)), REFUSED),
    Case("settle_with_a_session", _settle_case(status(COMPLETED), session=b"{}"), WRITTEN),
    Case("settle_with_a_large_session", _settle_case(status(COMPLETED), session=LARGE.encode()), REFUSED),
    Case("pause", _settle_case(status(INPUT_REQUIRED, "?")), WRITTEN),
    Case("lapse_at_most_once", _lapse_case(attempts=1), REFUSED),
    Case("lapse_with_another_attempt", _lapse_case(attempts=2), REFUSED),
    Case("end_by_a_small_result", _delegate_case(chunk("42"), status(COMPLETED)), WRITTEN),
    Case("end_by_a_large_result", _delegate_case(chunk(LARGE), status(COMPLETED)), REFUSED),
    Case("return_run_at_most_once", _return_case(attempts=1), WRITTEN),
    Case("return_run_with_another_attempt", _return_case(attempts=2), WRITTEN),
    Case("end_of_a_lost_process", _end_case(attempts=1), WRITTEN),
    Case("end_of_a_lost_process_with_another_attempt", _end_case(attempts=2), WRITTEN),
    Case("a_canvas_is_due", _canvas_is_due, WRITTEN),
    Case("a_run_is_due", _run_is_due, REFUSED),
    Case("a_suspended_run_is_due", _suspended_run_is_due, REFUSED),
    Case("a_reminder_is_due", _reminder_is_due, REFUSED),
    Case("a_pause_is_over", _pause_is_over, WRITTEN),
    Case("cancel_of_a_running_task", _cancel_of_a_running_task, WRITTEN),
    Case("a_message_that_waits", _message_that_waits, REFUSED),
    Case("a_delivery_is_due", _delivery_is_due, WRITTEN),
    Case("a_requested_post_is_due", _requested_post_is_due, WRITTEN),
    Case("archived", _remove_archived, WRITTEN),
    Case("blobs_of_a_missing_task", _blobs_of_a_missing_task, WRITTEN),
    Case("the_archive_is_given_up", _archive_is_given_up, WRITTEN),
]


BUNDLED, *OTHERS = installed_servers()
SERVERS = [BUNDLED, *(pytest.param(server, marks=pytest.mark.merge) for server in OTHERS)]


@pytest.fixture(scope="module", params=SERVERS, ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """Run a server of each installed version of Redis for the whole module. The change tier has one version."""
    server = EmbeddedRedis(server=request.param)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def store(server: EmbeddedRedis) -> AsyncIterator[AsyncStore]:
    """Client of an empty store with free memory."""
    allow_writes(server)
    store = AsyncStore(server.store_url)
    await store.redis.flushall()
    yield store
    allow_writes(server)
    await store.aclose()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_full_store_executes_or_refuses_each_script_as_documented(
    server: EmbeddedRedis, store: AsyncStore, keys: Keys, seeds: Seeds, case: Case
) -> None:
    operation = await case.make(keys, seeds)
    expected = case.expected or BY_SCRIPT[operation.script.name]
    data_before = await seeds.all_values()
    refuse_writes(server, "OOM")

    if expected is REFUSED:
        with pytest.raises(StoreUnavailable, match="OOM"):
            await store.run(operation)
    else:
        await store.run(operation)

    assert (await seeds.all_values() != data_before) == (expected is WRITTEN)


def test_each_script_is_in_the_table() -> None:
    scripts = {path.stem for path in script_files()}

    assert set(BY_SCRIPT) == scripts


async def test_a_stale_slot_lets_no_task_into_a_full_store(
    server: EmbeddedRedis, store: AsyncStore, keys: Keys
) -> None:
    await store.redis.zadd(
        keys.scope_index(ANN) + str(int(WORKING)), {"gone": 1}
    )  # the eviction of this slot is the script's first write
    sections = limit_sections(keys, concurrent=1)
    create = create_task(keys, ANN, "t", CONTEXT, request(), caller=b"{}", retention=RETENTION, sections=sections)
    refuse_writes(server, "OOM")

    with pytest.raises(StoreUnavailable, match="OOM"):
        await store.run(create)

    await store.redis.flushall()


async def test_a_full_store_fails_no_running_task(
    server: EmbeddedRedis, store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    await store.redis.zadd(keys.leases, {claim.ref.name: 1})  # the watcher scans before the worker renews
    recoverer = Recoverer(store, keys)
    refuse_writes(server, "OOM")

    with pytest.raises(StoreUnavailable):
        await recoverer.tick()
    renewal = await store.run(renew_runs(keys, [(claim.ref, claim.token)], lease_us=LEASE_US))
    await recoverer.tick()

    assert renewal == Renewal(frozenset(), frozenset())
    assert (await seeds.task(claim.ref.task_id)).status.state == WORKING
    await seeds.settle_run(claim, chunk("42"), status(COMPLETED))
    assert (await seeds.task(claim.ref.task_id)).status.state == COMPLETED
