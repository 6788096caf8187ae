"""Sessions. A run saves its session at a checkpoint or when it settles, and the next run receives the session."""

from __future__ import annotations

from dataclasses import replace

import pytest
from a2a.types import TaskState

from a2a_celery.features.sessions.section import SavedSession, SavedSince, SessionSection, checkpoint, session_key
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import AUTH_REQUIRED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.start_check import secrets_in_use
from a2a_celery.store.runs.commands import (
    Claim,
    Illegal,
    LeftOpen,
    RunLost,
    settle_run,
)
from a2a_celery.store.runs.suspension import suspend_run
from a2a_celery.store.tasks.commands import continue_task, request_cancel
from tests.store.test_activities import activity
from tests.support.store.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, chunk, request, status
from tests.support.store.suspensions import timer


def state(seeds: Seeds, text: str, version: int = 0, fingerprint: str = "") -> SessionSection:
    """Return a session state with the content `text`, derived from `version`."""
    return SessionSection.of(seeds.keys, version, text.encode(), fingerprint)


async def save_checkpoint(seeds: Seeds, claim: Claim, session: SessionSection) -> object:
    """Save a checkpoint, and return the result."""
    return await seeds.store.run(checkpoint(seeds.keys, claim.ref, token=claim.token, confirmed=0, sections=[session]))


def session_of(claim: Claim) -> SavedSession | None:
    """Return the session that a claim has read, or None if the claim has read none."""
    session: SavedSession | None = claim.value_of(SessionSection)
    return session


async def next_session(seeds: Seeds, **options: object) -> SavedSession | None:
    """Return the session that a new run of the context receives."""
    return session_of(await seeds.claim_run(session=True, **options))  # type: ignore[arg-type]


async def test_a_context_begins_without_a_session_and_only_agents_with_sessions_get_one(seeds: Seeds) -> None:
    assert await next_session(seeds) == SavedSession(0, b"", False)
    assert session_of(await seeds.claim_run()) is None


@pytest.mark.parametrize("end", [COMPLETED, INPUT_REQUIRED, AUTH_REQUIRED])
async def test_the_next_run_gets_the_session_saved_with_an_end(seeds: Seeds, end: TaskState) -> None:
    claim = await seeds.claim_run(session=True)

    await seeds.settle_run(claim, status(end), session=state(seeds, "1"))

    assert await next_session(seeds) == SavedSession(1, b"1", resumed=False)


@pytest.mark.parametrize("end", [FAILED, REJECTED])
async def test_a_run_that_fails_leaves_the_last_checkpoint(seeds: Seeds, end: TaskState) -> None:
    claim = await seeds.claim_run(session=True)
    assert await save_checkpoint(seeds, claim, state(seeds, "1")) is True

    await seeds.settle_run(claim, status(end), session=state(seeds, "2", 1))

    assert await next_session(seeds) == SavedSession(1, b"1", resumed=False)


async def test_a_pause_that_is_a_cancel_leaves_the_last_checkpoint(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))

    await seeds.settle_run(claim, status(INPUT_REQUIRED), session=state(seeds, "1"))

    assert await next_session(seeds) == SavedSession()


async def test_a_checkpoint_is_found_by_the_next_attempt_as_its_own(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await seeds.claim_run(session=True, max_attempts=3)
    await save_checkpoint(seeds, claim, state(seeds, "1"))
    await save_checkpoint(seeds, claim, state(seeds, "2", 1))
    await seeds.recover_run(claim.ref)

    next_claim = await seeds.claim_run(claim.ref.task_id, run=2, session=True)

    assert (next_claim.turn.attempt, session_of(next_claim)) == (2, SavedSession(2, b"2", resumed=True))


async def test_an_answer_does_not_resume_what_a_pause_saved(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    task_id = claim.ref.task_id
    await seeds.settle_run(claim, status(INPUT_REQUIRED), session=state(seeds, "1"))
    message_request = request("answer", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n"))

    assert session_of(await seeds.claim_run(task_id, run=2, session=True)) == SavedSession(1, b"1", resumed=False)


@pytest.mark.parametrize("other", [{"scope": BOB}, {"context_id": "another"}, {"scope": Scope("other", "", "ann")}])
async def test_sessions_of_others_are_not_returned(seeds: Seeds, other: dict[str, object]) -> None:
    await save_checkpoint(seeds, await seeds.claim_run(session=True), state(seeds, "1"))

    assert await next_session(seeds, **other) == SavedSession()


async def test_a_run_that_was_lost_saves_nothing(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    await save_checkpoint(seeds, claim, state(seeds, "1"))
    data_before = await seeds.all_values()

    for stranger in (replace(claim, token="another"), replace(claim, ref=replace(claim.ref, run=2))):
        assert await save_checkpoint(seeds, stranger, state(seeds, "2", 1)) == RunLost()
        end = settle_run(
            keys,
            stranger.ref,
            token=stranger.token,
            written_count=0,
            events=[status(COMPLETED)],
            sections=[state(seeds, "2", 1)],
        )
        assert await store.run(end) == RunLost()
    assert await seeds.all_values() == data_before

    await seeds.settle_run(claim, status(COMPLETED))
    assert await save_checkpoint(seeds, claim, state(seeds, "2", 1)) == RunLost()


async def test_saving_over_a_newer_session_is_refused(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first, second = await seeds.claim_run(session=True), await seeds.claim_run(session=True)
    await save_checkpoint(seeds, first, state(seeds, "1"))
    data_before = await seeds.all_values()

    assert await save_checkpoint(seeds, second, state(seeds, "2")) == SavedSince(1)
    end = settle_run(
        keys, second.ref, token=second.token, written_count=0, events=[status(COMPLETED)], sections=[state(seeds, "2")]
    )
    assert await store.run(end) == SavedSince(1)

    assert await seeds.all_values() == data_before
    await seeds.settle_run(second, status(COMPLETED), session=state(seeds, ""))
    assert await next_session(seeds) == SavedSession(1, b"1")


async def test_a_refused_settlement_saves_no_session(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    data_before = await seeds.all_values()

    def end(*events: object) -> object:
        return store.run(
            settle_run(keys, claim.ref, token=claim.token, written_count=0, events=events, sections=[state(seeds, "1")])  # type: ignore[arg-type]
        )

    assert await end(status(COMPLETED), chunk("late")) == Illegal(2, WORKING)  # type: ignore[misc]
    assert await seeds.all_values() == data_before
    assert await end() == LeftOpen(WORKING)  # type: ignore[misc]
    assert await next_session(seeds) == SavedSession()


async def test_a_repeated_call_saves_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    first = (
        await save_checkpoint(seeds, claim, state(seeds, "1")),
        await save_checkpoint(seeds, claim, state(seeds, "1")),
    )
    ends = [await seeds.settle_run(claim, status(INPUT_REQUIRED), session=state(seeds, "2", 1)) for _ in range(2)]

    assert first == (True, True)
    assert ends[0] == ends[1]
    assert await next_session(seeds) == SavedSession(2, b"2")


async def test_a_session_lives_for_the_retention_of_the_last_ended_run(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    name = session_key(keys, ANN, CONTEXT)
    await save_checkpoint(seeds, await seeds.claim_run(session=True), state(seeds, "1", fingerprint="f0"))
    assert 0 < await store.redis.ttl(name) <= RETENTION
    for end in (COMPLETED, FAILED):
        claim = await seeds.claim_run(session=True)
        await store.redis.expire(name, 5)

        await seeds.settle_run(claim, status(end), session=state(seeds, "", 1))

        assert await store.redis.ttl(name) > 5
        assert await next_session(seeds) == SavedSession(1, b"1")


async def test_a_claim_extends_the_life_of_the_session(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    name, secret = session_key(keys, ANN, CONTEXT), keys.sealed_with("f0")
    await save_checkpoint(seeds, await seeds.claim_run(session=True), state(seeds, "1", fingerprint="f0"))
    for key in (name, secret):
        await store.redis.expire(key, 5)

    assert await next_session(seeds) == SavedSession(1, b"1")

    assert await store.redis.ttl(name) > 5
    assert await store.redis.ttl(secret) > 5


async def test_an_empty_session_creates_no_key(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await seeds.settle_run(await seeds.claim_run(session=True), status(COMPLETED), session=state(seeds, ""))

    assert not await store.redis.exists(session_key(keys, ANN, CONTEXT))


async def test_the_secrets_of_sessions_are_in_use_while_they_live(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    await save_checkpoint(seeds, claim, state(seeds, "1", fingerprint="f0"))
    assert await store.run(secrets_in_use(keys)) == {"f0"}

    await save_checkpoint(seeds, claim, state(seeds, "2", 1, "f1"))
    assert await store.run(secrets_in_use(keys)) == {"f1"}
    assert 0 < await store.redis.ttl(keys.sealed_with("f1")) <= RETENTION

    await seeds.settle_run(claim, status(COMPLETED), session=state(seeds, "3", 2))
    assert await store.run(secrets_in_use(keys)) == frozenset()


async def test_a_requeued_task_resumes_what_the_dead_one_had_saved(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    await save_checkpoint(seeds, claim, state(seeds, "1"))
    await seeds.recover_run(claim.ref)
    new_id, _ = await seeds.requeue_task(claim.ref.task_id)

    assert session_of(await seeds.claim_run(new_id, session=True)) == SavedSession(1, b"1", resumed=True)


async def test_a_task_requeued_twice_resumes_the_session_too(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    await save_checkpoint(seeds, claim, state(seeds, "1"))
    await seeds.recover_run(claim.ref)
    new_id, _ = await seeds.requeue_task(claim.ref.task_id)
    await seeds.recover_run((await seeds.claim_run(new_id, session=True)).ref)
    newest, _ = await seeds.requeue_task(new_id)

    assert session_of(await seeds.claim_run(newest, session=True)) == SavedSession(1, b"1", resumed=True)


async def test_a_session_is_kept_for_the_time_of_a_wait(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first = await seeds.claim_run(session=True)
    await seeds.settle_run(first, status(COMPLETED), session=SessionSection.of(keys, 0, b'{"n":1}'))
    session = session_key(keys, ANN, CONTEXT)
    claim = await seeds.claim_run(session=True)
    wait = timer(wait_us=10 * RETENTION * 1_000_000)

    await store.run(
        suspend_run(
            keys,
            claim.ref,
            token=claim.token,
            written_count=0,
            events=[],
            wait=wait,
            options=b"",
            sections=[section for section, _ in claim.sections],
        )
    )

    assert await store.redis.ttl(session) == pytest.approx(11 * RETENTION, abs=5)


@pytest.mark.parametrize("end", [COMPLETED, FAILED])
async def test_the_next_task_of_a_session_is_given_its_activities(seeds: Seeds, end: TaskState) -> None:
    session = SessionSection.of(seeds.keys, 0, b"{}")
    first = await seeds.claim_run(session=True)
    await seeds.settle_run(first, activity(1), activity(2), status(COMPLETED), session=session)
    second = await seeds.claim_run(session=True)
    assert second.activities == (activity(1), activity(2))
    await seeds.settle_run(second, activity(3), status(end), session=SessionSection.of(seeds.keys, 1))

    assert (await seeds.claim_run(session=True)).activities == (activity(3),)
    assert (await seeds.claim_run()).activities == ()


async def test_a_session_that_was_never_saved_has_no_activities(seeds: Seeds) -> None:
    first = await seeds.claim_run(session=True)
    await seeds.settle_run(first, activity(1), status(COMPLETED), session=SessionSection.of(seeds.keys))

    assert (await seeds.claim_run(session=True)).activities == ()
