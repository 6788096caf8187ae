"""Moves on runs, signals, sessions and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from a2a_celery.errors import BlobsUnavailable
from a2a_celery.features import KEPT_METADATA
from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.features.questions.question_section import QuestionSection, Reminder, escalation_section
from a2a_celery.features.sessions.section import SavedSession, SessionSection, checkpoint
from a2a_celery.features.steering.section import SteeringSection
from a2a_celery.lifecycle.execution import Activity, ExecutionState, Transition
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.outcomes import agent_message, status_event
from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.lifecycle.states import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
)
from a2a_celery.store.blobs.blob_store import register_blobs
from a2a_celery.store.blobs.cleanup import acquire_orphaned_blobs, blobs_in_use, forget_removed_blobs
from a2a_celery.store.runs.commands import (
    Claim,
    Settled,
    append,
    claim_run,
    end_run,
    settle_run,
)
from a2a_celery.store.runs.journal import read_journal
from a2a_celery.store.runs.publication import acquire_due_runs, claimed_runs, mark_published, postpone_runs
from a2a_celery.store.runs.recovery import Lapsed, lapse_run
from a2a_celery.store.runs.release import (
    Released,
    due_canvases,
    end_by_result,
    read_activities,
    read_retry,
    read_unclaimed,
    record_result,
    release_run,
    retry_run,
)
from a2a_celery.store.runs.renewal import renew_runs
from a2a_celery.store.runs.suspension import SuspendedRun, suspend_run, take_signal
from a2a_celery.store.tasks.commands import (
    create_task,
    read_task,
)
from a2a_celery.store.tasks.signals import send_signal
from tests.support.store.limits import limit_sections
from tests.support.store.seeds import ANN, LEASE_US, RETENTION, chunk, request, status
from tests.support.store.suspensions import received_entry, timeout_entry, wait_for
from tests.support.store.view import Record
from tests.support.store.walk import HOUR_US, SIGNALS
from tests.tools.oracle.recorded_store import STEP_US
from tests.tools.oracle.recorder import LARGE, PLAIN, SMALL_LIMITS, Recorder


async def create_plain(world: Recorder, task_id: str, r: Record) -> None:
    """Create the task of a plain Celery task, and record the state in the result backend. A worker with this
    package may have claimed the run before."""
    new_id = world.new_id()
    await world.create_with(task_id=new_id, options=PLAIN)
    if world.chance.random() < 0.2:
        await claim_plain(world, new_id)
    await record_plain(world, new_id, r)


async def claim_plain(world: Recorder, task_id: str) -> None:
    """Claim the first run of a new task."""
    ref = RunRef(task_id, 1)
    claim = await world.run(
        claim_run(
            world.keys, ref, token=world.new_id(), runner="runner", lease_us=LEASE_US, working=True, max_attempts=1
        )
    )
    if isinstance(claim, Claim):
        world.claims[task_id] = claim


async def record_plain(world: Recorder, task_id: str, r: Record) -> None:
    """Record the state that the result backend reports for a run."""
    ref, event = RunRef(task_id, 1), status_event(task_id, r["context"], WORKING)
    unclaimed = await world.run(read_unclaimed(world.keys, ref))
    for state in world.chance.sample(["STARTED 1", "RETRY 2"], 2):
        previous = unclaimed.recorded if unclaimed else ""
        await world.run(record_result(world.keys, ref, previous_state=previous, state=state, event=event))
    if world.chance.random() < 0.3:
        large = status(WORKING, LARGE)
        await world.run(record_result(world.keys, ref, previous_state="RETRY 2", state="3", event=large))
    if world.chance.random() < 0.3:
        await end_by_any_result(world, ref)


async def end_by_any_result(world: Recorder, ref: RunRef) -> None:
    """End a run by an illegal, large or failed result."""
    events = world.chance.choice([[status(COMPLETED), status(WORKING)], [status(FAILED, LARGE)], [status(FAILED)]])
    lost, dead_letter = world.chance.random() < 0.3, world.chance.random() < 0.5
    await world.run(end_by_result(world.keys, ref, events, lost=lost, is_resubmittable=dead_letter))


async def claim_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Claim a run with other arguments, or a run that cannot be claimed."""
    ref = RunRef(task_id, int(r["run"]) + world.chance.choice([0, 0, 0, 0, 0, 0, -1, 1]))
    claim = await world.run(
        claim_run(
            world.keys,
            world.chance.choice([*[ref] * 7, RunRef(world.new_id(), 1)]),
            token=world.new_id(),
            runner="runner",
            lease_us=LEASE_US,
            working=world.chance.random() < 0.5,
            max_attempts=3,
            retries=world.chance.choice([0, 0, 1, 2]),
            retried=world.chance.choice([None, status_event(task_id, r["context"], WORKING)]),
            sections=[
                *([SessionSection.of(world.keys)] if world.chance.random() < 0.7 else []),
                SteeringSection(),
            ],
            worker="celery@host",
            code_version=world.chance.choice(["", "1", "2"]),
            claims_other_code_version=world.chance.random() < 0.5,
        )
    )
    if isinstance(claim, Claim):
        world.drop_claim(claim.ref.task_id)
        world.claims[claim.ref.task_id] = claim


async def append_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Append steps, artifacts, entries, large, final or illegal events."""
    if not (claim := world.claims.get(task_id)):
        return
    transition = Transition(1, ExecutionState.IDLE, ExecutionState.INITIALIZING, world.client.now_us)
    steps = [Activity(claim.ref.run, claim.turn.attempt, "runner", transition)]
    entry = JournalEntry("large#1", "step", "json", LARGE.encode(), turn=claim.turn.number)
    events: Sequence[Any] = world.chance.choice(
        [
            [status(COMPLETED), status(WORKING)],
            [status(COMPLETED)],
            [agent_message("done", task_id, r["context"])],
            [*steps, status(WORKING, "text", key="value")],
            [chunk("first", append=False), chunk(LARGE)],
            [chunk("one", "b", append=False), chunk("two", "b")],
            [entry],
            [status(WORKING, LARGE)],
        ]
    )
    count = world.write_counts[task_id]
    await world.run(append(world.keys, claim.ref, token=claim.token, written_count=count, events=events))
    world.write_counts[task_id] += len(events)


async def settle_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Settle a run with an illegal or large event, an outdated session or a schema, or in an open state."""
    if not (claim := world.claims.get(task_id)):
        return
    events: Sequence[Any] = world.chance.choice(
        [
            [status(WORKING)],
            [],
            [status(COMPLETED), status(FAILED)],
            [status(INPUT_REQUIRED, LARGE)],
            [status(INPUT_REQUIRED, "question")],
            [status(CANCELED)],
        ]
    )
    reminders = [Reminder.of(HOUR_US * number, status(INPUT_REQUIRED)) for number in (1, 2)]
    sessions = []
    if world.chance.random() < 0.4:
        await save_session(world, task_id, r)
        sessions = [SessionSection.of(world.keys, world.chance.randrange(4), b"state")]
    ask_count = world.chance.randrange(2)
    question = QuestionSection(world.chance.choice([None, '{"type":"object"}']))
    escalation = escalation_section(world.keys, world.config("escalation"))
    reply = await world.run(
        settle_run(
            world.keys,
            claim.ref,
            token=claim.token,
            written_count=world.write_counts[task_id],
            events=events,
            ask_count=ask_count,
            pause_timeout=status_event(task_id, r["context"], FAILED),
            sections=[
                world.chance.choice([question, question._replace(escalation=escalation, reminders=reminders)]),
                *sessions,
            ],
        )
    )
    if isinstance(reply, Settled) and world.chance.random() < 0.5:
        await world.continue_with(task_id, r)


async def settle_with_another_token(world: Recorder, task_id: str, r: Record) -> None:
    """Settle the newest run with a token that does not hold its claim, which is refused."""
    ref = RunRef(task_id, int(r["run"]))
    await world.run(settle_run(world.keys, ref, token=world.new_id(), written_count=0, events=[status(COMPLETED)]))


async def leave_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Suspend or retry a run with an illegal or large event, or with a task that replaces the stored task."""
    snapshot = await world.run(read_task(world.keys, None, task_id))
    replacement = world.chance.choice([None, snapshot and snapshot[0]])
    events = world.chance.choice([[status(COMPLETED), status(WORKING)], [status(WORKING, LARGE)], [status(WORKING)]])
    options = {"events": events, "options": PLAIN, "replacement": replacement}
    if world.chance.random() < 0.5:
        await world.leave_run(task_id, release_run, Released, retries=2, delay_us=HOUR_US, **options)
    elif world.chance.random() < 0.3:
        event = status(WORKING, LARGE)
        ref = RunRef(task_id, int(r["run"]))
        await world.run(retry_run(world.keys, ref, runner="runner", event=event, options=b"", retries=9, delay_us=1))
    else:
        until_us = world.client.now_us + world.chance.choice([-1, 1]) * 100 * STEP_US
        wait = wait_for(world.chance.choice(SIGNALS), until_us=until_us)
        await world.leave_run(task_id, suspend_run, SuspendedRun, wait=wait, **options)


async def read_run(world: Recorder, task_id: str, r: Record) -> None:
    """Read the journal, the retry and the claims of a run."""
    ref = RunRef(task_id, int(r["run"]))
    await world.run(read_journal(world.keys, ref, token=world.token_of(task_id)))
    await world.run(read_retry(world.keys, ref, runner="runner", retries=world.chance.randrange(1, 4)))
    await world.run(claimed_runs(world.keys, limit=5))
    await world.run(read_activities(world.keys, task_id))


async def save_session(world: Recorder, task_id: str, r: Record) -> None:
    """Save the session of a run that continues twice, and once from an unknown version."""
    if claim := world.claims.get(task_id):
        count = world.write_counts[task_id]
        session: SavedSession | None = claim.value_of(SessionSection)
        version = session.version if session else world.chance.randrange(2)
        fingerprint = world.chance.choice(["", "f0"])
        saves = [
            (number, world.chance.choice([b"", b"state"]))
            for number in (version, world.chance.choice([version, version + 1]))
        ]
        for number, state in (*saves, (version + 3, b"state")):
            sections = [SessionSection.of(world.keys, number, state, fingerprint)]
            await world.run(checkpoint(world.keys, claim.ref, token=claim.token, confirmed=count, sections=sections))


async def renew(world: Recorder, task_id: str, r: Record) -> None:
    """Renew the leases of all claimed runs."""
    claims = [*world.claims.values(), *world.old_claims[-1:]]
    if claims:
        await world.run(renew_runs(world.keys, [(claim.ref, claim.token) for claim in claims], lease_us=LEASE_US))


async def take_twice(world: Recorder, task_id: str, r: Record) -> None:
    """Send a signal, and take signals of its name until none is left."""
    if not (claim := world.claims.get(task_id)):
        return
    name = world.chance.choice(SIGNALS)
    await world.run(send_signal(world.keys, None, task_id, name=name, payload=b"2", signal_id=world.new_id()))
    timeout = world.chance.choice([None, timeout_entry(name, 11)])
    for number in range(2):
        received = received_entry(name, 10 + number)
        count = world.write_counts[task_id]
        operation = take_signal(
            world.keys,
            claim.ref,
            token=claim.token,
            confirmed=count,
            signal=name,
            received=received,
            timeout=timeout,
        )
        await world.run(operation)


async def signal_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Send signals beyond the limits, to an agent without signals, and too many."""
    scope = Scope.parse(r["scope"])
    sections = limit_sections(world.keys, scope, owner_bytes=1)
    ways: list[dict[str, Any]] = [
        {"max_bytes": 1},
        world.chance.choice([{"sections": sections}, {"is_nearly_full": True}]),
        {"agents_without_signals": [scope.agent]},
        *[{}] * SMALL_LIMITS["MAX_STORED_SIGNALS"],
    ]
    for way in ways:
        signal_id = world.chance.choice([world.new_id(), "long" * 20])
        operation = send_signal(world.keys, scope, task_id, name="other", payload=b"3", signal_id=signal_id, **way)
        await world.run(operation)


async def lapse_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Lapse a run before its lease has expired, at an outdated version, without an artifact, or on a full store."""
    ref = RunRef(task_id, int(r["run"]))
    snapshot = await world.run(read_task(world.keys, None, task_id))
    if snapshot is None:
        return
    task, (version, _) = snapshot
    if world.chance.random() < 0.3:
        await world.cancel(task_id, r)
    if world.chance.random() < 0.7:
        await world.store.redis.zadd(world.keys.leases, {ref.name: 1}, xx=True)
    lapsed = Lapsed(ref, "agent", 1, 3, world.chance.random() < 0.5)
    for number in (version - world.chance.randrange(2), version):
        without = frozenset(world.chance.choice(["", "a"]))
        await world.run(lapse_run(world.keys, lapsed, task, number, delay_us=0, without=without))


async def end_retried(world: Recorder, task_id: str, r: Record) -> None:
    """End a run on behalf of a message of an earlier retry, or of several lost workers."""
    event = status_event(task_id, r["context"], FAILED)
    ref = RunRef(task_id, int(r["run"]))
    for number in range(3):
        runner, retries = f"runner-{number}", world.chance.choice([None, 0, 9])
        await world.run(end_run(world.keys, ref, runner=runner, event=event, lost=True, retries=retries))


async def poll_canvas(world: Recorder, task_id: str, r: Record) -> None:
    """Poll the canvases, and end a run by an illegal, large or failed result."""
    await world.store.redis.zadd(world.keys.canvases, {f"{task_id}.{r['run']}": 1}, xx=True)
    await world.run(due_canvases(world.keys, limit=5, delay_us=HOUR_US))
    await end_by_any_result(world, RunRef(task_id, int(r["run"])))


async def publish_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Record a publication, and undo acquisitions of due runs."""
    ref = RunRef(task_id, int(r["run"]))
    await world.run(mark_published(world.keys, ref, delay_us=1, retries=world.chance.randrange(2)))
    due = await world.run(acquire_due_runs(world.keys, limit=3, delay_us=1))
    if due:
        await world.run(postpone_runs(world.keys, dict.fromkeys(due[:2], world.chance.choice([1, HOUR_US]))))


async def acquire_orphans(world: Recorder, task_id: str, r: Record) -> None:
    """Find the blobs of missing tasks twice, and remove their folders."""
    redis, keys = world.store.redis, world.keys
    await world.run(register_blobs(keys, world.new_id()))
    for tag in await redis.zrange(keys.blobs, 0, -1):
        await redis.zadd(keys.blobs, {tag: 1})
    folders = await world.run(acquire_orphaned_blobs(keys, limit=5))
    await world.run(acquire_orphaned_blobs(keys, limit=5))
    await world.run(blobs_in_use(keys))
    for tag in [folder for folder in folders if "/" not in folder] or [world.new_id()]:
        with suppress(BlobsUnavailable):
            await world.run(register_blobs(keys, tag))
    if world.chance.random() < 0.7:
        await world.run(forget_removed_blobs(keys, folders))


async def expire_new_blobs(world: Recorder, task_id: str, r: Record) -> None:
    """Create tasks whose blobs are removed before the script runs."""
    new_id = world.new_id()
    message_request = request(LARGE, new_id, r["context"])
    create = create_task(world.keys, ANN, new_id, r["context"], message_request, caller=b"{}", retention=RETENTION)
    dead_letter = await fail_task(world, LARGE)
    requeue = requeue_task(world.keys, dead_letter, world.new_id(), retention=RETENTION, options=b"")
    world.client.before_script = [("DEL", world.keys.blobs)]
    for operation in (create, requeue):
        with suppress(BlobsUnavailable):
            await world.run(operation)
    world.client.before_script = []


async def fail_task(world: Recorder, text: str, *, from_start: bool = False) -> DeadLetter:
    """Return the dead letter of a new task with a journal."""
    ref, token = RunRef(world.new_id(), 1), world.new_id()
    await world.create_with(task_id=ref.task_id, text=text)
    claim = claim_run(world.keys, ref, token=token, runner="runner", lease_us=LEASE_US, working=True)
    await world.run(claim)
    events: list[Any] = [JournalEntry("step#1", "step", "json", text.encode()), status(FAILED)]
    end = settle_run(world.keys, ref, token=token, written_count=0, events=events, is_resubmittable=True)
    await world.run(end)
    dead_letter = await world.run(read_dead_letter(world.keys, ref.task_id, from_start=from_start))
    assert isinstance(dead_letter, DeadLetter)
    return dead_letter


async def requeue_twice(world: Recorder, task_id: str, r: Record) -> None:
    """Requeue the dead letter of a task, or of a new task, twice, with or without its journal."""
    from_start = world.chance.random() < 0.5
    dead_letter = await world.run(read_dead_letter(world.keys, task_id, from_start=from_start))
    if not isinstance(dead_letter, DeadLetter):
        dead_letter = await fail_task(world, "hello", from_start=from_start)
    for _ in range(2):
        operation = requeue_task(
            world.keys,
            dead_letter,
            world.new_id(),
            retention=RETENTION,
            options=b"",
            from_start=from_start,
            kept_metadata=KEPT_METADATA,
        )
        await world.run(operation)
    await world.run(read_dead_letter(world.keys, dead_letter.task.id))
