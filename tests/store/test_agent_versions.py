"""Agent versions in the store: claims of runs, open tasks by version, and announced worker queues."""

from __future__ import annotations

from uuid import uuid4

import pytest

from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.outcomes import status_event
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.admin.version_workers import VersionWorker, announce_versions, version_workers
from a2a_celery.store.runs.commands import Claim, NotClaimed, OtherCodeVersion, claim_run, settle_run
from a2a_celery.store.runs.suspension import Wait, suspend_run
from a2a_celery.store.tasks.commands import continue_task
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, Seeds, request, status

OPTIONS = b'{"celery":{"queue":"gpu"}}'


class Versions:
    """Test helper that claims and suspends runs for workers of different agent versions."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store, self._keys = store, keys

    async def claim(self, ref: RunRef, version: str, *, claims_other_code_version: bool = False) -> Claim | NotClaimed:
        """Claim a run for a worker of `version`. An empty string stands for a worker without a version."""
        return await self._store.run(
            claim_run(
                self._keys,
                ref,
                token=uuid4().hex,
                runner="runner",
                lease_us=LEASE_US,
                working=True,
                max_attempts=9,
                code_version=version,
                claims_other_code_version=claims_other_code_version,
            )
        )

    async def claim_run(self, ref: RunRef, version: str, *, claims_other_code_version: bool = False) -> Claim:
        """Claim a run, and assert that the claim succeeds."""
        claim = await self.claim(ref, version, claims_other_code_version=claims_other_code_version)
        assert isinstance(claim, Claim), claim
        return claim

    async def suspend(self, claim: Claim) -> RunRef:
        """Suspend a run until a time in the past, and return the next run."""
        entries = JournalEntry("sleep#1", "sleep", "ended", b""), JournalEntry("sleep#1", "sleep", "timeout", b"")
        wait = Wait(*entries, until_us=0)
        suspend = suspend_run(
            self._keys, claim.ref, token=claim.token, written_count=0, events=[], wait=wait, options=OPTIONS
        )
        await self._store.run(suspend)
        return RunRef(claim.ref.task_id, claim.ref.run + 1)

    async def open_tasks(self) -> dict[tuple[str, str], int]:
        """Return the number of open tasks by agent and version."""
        return (await self._store.run(read_metrics(self._keys))).counted("version")


@pytest.fixture
def versions(store: AsyncStore, keys: Keys) -> Versions:
    return Versions(store, keys)


async def test_a_run_of_another_version_is_claimed_only_on_request(seeds: Seeds, versions: Versions) -> None:
    first = await versions.claim_run(RunRef(await seeds.create_task(), 1), "1")
    next_run = (await seeds.recover_run(first.ref)).next_run
    assert next_run is not None
    ref = RunRef(first.ref.task_id, next_run)

    assert await versions.claim(ref, "2") == OtherCodeVersion("1", b"")
    assert await versions.claim(ref, "") == OtherCodeVersion("1", b"")
    assert (await versions.claim_run(ref, "1")).journal.other_code_version == ""


async def test_a_run_of_a_version_returns_the_options_of_its_publish(seeds: Seeds, versions: Versions) -> None:
    ref = await versions.suspend(await versions.claim_run(RunRef(await seeds.create_task(), 1), "1"))

    assert await versions.claim(ref, "2") == OtherCodeVersion("1", OPTIONS)


async def test_a_task_moves_to_another_version_when_that_records_a_step(seeds: Seeds, versions: Versions) -> None:
    task_id = await seeds.create_task()
    ref = await versions.suspend(await versions.claim_run(RunRef(task_id, 1), "1"))
    claim = await versions.claim_run(ref, "2", claims_other_code_version=True)
    assert claim.journal.other_code_version == "1"
    assert await versions.open_tasks() == {("agent", "1"): 1}, "nothing is recorded yet"

    await seeds.append_events(claim, JournalEntry("step#1", "step", "json", b"1", 2))

    assert await versions.open_tasks() == {("agent", "2"): 1}
    ref = await versions.suspend(claim)
    assert isinstance(await versions.claim(ref, "1"), OtherCodeVersion)


async def test_a_run_that_records_nothing_leaves_the_task_to_its_version(seeds: Seeds, versions: Versions) -> None:
    ref = await versions.suspend(await versions.claim_run(RunRef(await seeds.create_task(), 1), "1"))
    claim = await versions.claim_run(ref, "2", claims_other_code_version=True)
    next_run = (await seeds.recover_run(claim.ref)).next_run
    assert next_run is not None

    assert (await versions.claim_run(RunRef(ref.task_id, next_run), "1")).journal.other_code_version == ""


async def test_the_next_turn_begins_on_any_version(seeds: Seeds, versions: Versions) -> None:
    claim = await versions.claim_run(RunRef(await seeds.create_task(), 1), "1")
    await seeds.settle_run(claim, status(INPUT_REQUIRED))
    assert await versions.open_tasks() == {("agent", "1"): 1}

    task_id = claim.ref.task_id
    next_message = continue_task(seeds.keys, ANN, task_id, request("next", task_id), "", caller=b"{}", nonce="n")
    await seeds.store.run(next_message)

    assert await versions.open_tasks() == {}
    assert isinstance(await versions.claim(RunRef(task_id, 2), "2"), Claim)


async def test_a_version_has_no_open_task_after_its_end(seeds: Seeds, versions: Versions) -> None:
    claims = [await versions.claim_run(RunRef(await seeds.create_task(), 1), "1") for _ in range(2)]
    assert await versions.open_tasks() == {("agent", "1"): 2}

    await seeds.settle_run(claims[0], status(COMPLETED))
    assert await versions.open_tasks() == {("agent", "1"): 1}
    await seeds.settle_run(claims[1], status(COMPLETED))
    assert await versions.open_tasks() == {}


async def test_a_requeued_task_belongs_to_the_version_of_its_dead_letter(seeds: Seeds, versions: Versions) -> None:
    claim = await versions.claim_run(RunRef(await seeds.create_task(), 1), "1")
    events = [status(FAILED)]
    await seeds.store.run(
        settle_run(seeds.keys, claim.ref, token=claim.token, written_count=0, events=events, is_resubmittable=True)
    )
    assert await versions.open_tasks() == {}

    new_id, _ = await seeds.requeue_task(claim.ref.task_id)

    assert await versions.open_tasks() == {("agent", "1"): 1}
    assert isinstance(await versions.claim(RunRef(new_id, 1), "2"), OtherCodeVersion)


async def test_workers_announce_and_withdraw_their_version_queues(store: AsyncStore, keys: Keys) -> None:
    older, newer = VersionWorker("a@host", "celery.agent.1", "agent", "1"), VersionWorker("b@host", "q", "agent", "2")
    await store.run(announce_versions(keys, [older]))
    await store.run(announce_versions(keys, [newer]))
    assert await store.run(version_workers(keys)) == [older, newer]
    assert await store.redis.pttl(keys.version_workers) > 0

    await store.run(announce_versions(keys, [older], withdraws=True))

    assert await store.run(version_workers(keys)) == [newer]


async def test_a_refused_claim_of_an_unrecorded_retry_changes_nothing(
    versions: Versions, store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await versions.claim_run(RunRef(await seeds.create_task(), 1), "1")
    retried = status_event(claim.ref.task_id, CONTEXT, WORKING)
    before = await seeds.all_values()

    retry = claim_run(
        keys, claim.ref, token="retry", runner="runner", lease_us=LEASE_US, working=True, retries=1, retried=retried,
        code_version="2",
    )  # fmt: skip
    assert await store.run(retry) == OtherCodeVersion("1", b"")

    assert await seeds.all_values() == before
