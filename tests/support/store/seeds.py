"""Test helper that creates stored states, and reads the complete stored state for comparisons."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from a2a_celery.features import KEPT_METADATA
from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.features.schedules.section import HandledTick, Tick
from a2a_celery.features.sessions.section import SessionSection
from a2a_celery.features.steering.section import SteeringSection
from a2a_celery.lifecycle import LogEntry, fold
from a2a_celery.lifecycle.journal import RunRecord
from a2a_celery.lifecycle.outcomes import agent_message
from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.codec import LongSnapshot
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.runs.commands import Claim, Settled, Written, append, claim_run, settle_run
from a2a_celery.store.runs.recovery import Lapse, begin_next_attempt, lapsed_runs
from a2a_celery.store.tasks.commands import create_task, read_task
from a2a_celery.store.tasks.replies import Accepted

AGENTS = ("agent", "other")
ANN = Scope("agent", "", "ann")
BOB = Scope("agent", "", "bob")
RETENTION = 3600
LEASE_US = 60_000_000
CONTEXT = "the-context"


def request(text: str = "hello", task_id: str = "", context_id: str = "") -> SendMessageRequest:
    """Return a SendMessage request with `text`."""
    return SendMessageRequest(
        message=Message(
            message_id=str(uuid4()),
            role=Role.ROLE_USER,
            task_id=task_id,
            context_id=context_id,
            parts=[Part(text=text)],
        )
    )


def status(state: TaskState, text: str = "", **metadata: Any) -> TaskStatusUpdateEvent:
    """Return a status event, with a message if `text` is given."""
    event = TaskStatusUpdateEvent(status=TaskStatus(state=state), metadata=metadata or None)
    if text:
        event.status.message.CopyFrom(agent_message(text, "", ""))
    return event


def chunk(text: str, artifact_id: str = "a", *, append: bool = True, **metadata: Any) -> TaskArtifactUpdateEvent:
    """Return an artifact event: a chunk, or the complete artifact with append=False."""
    artifact = Artifact(artifact_id=artifact_id, parts=[Part(text=text)], metadata=metadata or None)
    return TaskArtifactUpdateEvent(artifact=artifact, append=append)


class Seeds:
    """Test helper that creates tasks in a store and reads their stored state."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self.store = store
        self.keys = keys

    async def create_task(
        self,
        scope: Scope = ANN,
        *,
        task_id: str = "",
        context_id: str = CONTEXT,
        retention: int = RETENTION,
        serialize_context: bool = False,
    ) -> str:
        """Create a queued task and return its id."""
        task_id = task_id or str(uuid4())
        message_request = request(task_id=task_id, context_id=context_id)
        await self.store.run(
            create_task(
                self.keys,
                scope,
                task_id,
                context_id,
                message_request,
                caller=b"{}",
                retention=retention,
                serialize_context=serialize_context,
            )
        )
        return task_id

    async def create_scheduled_task(self, tick: Tick, scope: Scope = ANN) -> Accepted | HandledTick:
        """Create the task of a schedule's tick, and return the store's result."""
        task_id = tick.task_id(self.keys)
        message_request = request(task_id=task_id, context_id=task_id)
        result: Any = await self.store.run(
            create_task(
                self.keys,
                scope,
                task_id,
                task_id,
                message_request,
                caller=b"{}",
                retention=RETENTION,
                metadata=tick.metadata(),
                sections=[tick.section(self.keys, RETENTION)],
            )
        )
        assert isinstance(result, Accepted | HandledTick), result
        return result

    async def claim_run(
        self,
        task_id: str = "",
        *,
        run: int = 1,
        working: bool = True,
        max_attempts: int = 1,
        session: bool = False,
        steering: bool = False,
        retries: int = 0,
        **task_options: Any,
    ) -> Claim:
        """Claim a run. If `task_id` is "", create a task first."""
        task_id = task_id or await self.create_task(**task_options)
        claim = await self.store.run(
            claim_run(
                self.keys,
                RunRef(task_id, run),
                token=uuid4().hex,
                runner="runner",
                lease_us=LEASE_US,
                working=working,
                max_attempts=max_attempts,
                retries=retries,
                sections=[
                    *([SessionSection.of(self.keys)] if session else []),
                    *([SteeringSection()] if steering else []),
                ],
            )
        )
        assert isinstance(claim, Claim), claim
        return claim

    async def append_events(self, claim: Claim, *events: RunRecord, written_count: int = 0) -> Written:
        """Append events to the log of the claimed run's task."""
        answer = await self.store.run(
            append(self.keys, claim.ref, token=claim.token, written_count=written_count, events=events)
        )
        assert isinstance(answer, Written), answer
        return answer

    async def settle_run(
        self, claim: Claim, *events: RunRecord, written_count: int = 0, session: SessionSection | None = None
    ) -> Settled:
        """Settle the claimed run."""
        end = settle_run(
            self.keys,
            claim.ref,
            token=claim.token,
            written_count=written_count,
            events=events,
            sections=[session] if session else (),
        )
        answer = await self.store.run(end)
        assert isinstance(answer, Settled), answer
        return answer

    async def create_task_in(self, state: TaskState, **task_options: Any) -> str:
        """Create a task in the terminal or interrupted `state` and return its id."""
        claim = await self.claim_run(await self.create_task(**task_options))
        await self.settle_run(claim, status(state))
        return claim.ref.task_id

    async def recover_run(self, ref: RunRef) -> Lapse:
        """Expire the lease of a claimed run, and recover the run as a watcher does."""
        await self.store.redis.zadd(self.keys.leases, {ref.name: 1})
        lapsed = await self.store.run(lapsed_runs(self.keys, limit=100))
        [lapsed_run] = [run for run in lapsed.runs if run.ref == ref]
        return await begin_next_attempt(self.store, self.keys, lapsed_run, delay_us=0)

    async def requeue_task(self, task_id: str, *, from_start: bool = False) -> tuple[str, str]:
        """Resubmit a dead letter. Return the id of the new task and the store's result."""
        dead_letter = await self.store.run(read_dead_letter(self.keys, task_id, from_start=from_start))
        assert isinstance(dead_letter, DeadLetter), dead_letter
        new = str(uuid4())
        options = {"retention": RETENTION, "options": b"", "from_start": from_start, "kept_metadata": KEPT_METADATA}
        return new, await self.store.run(requeue_task(self.keys, dead_letter, new, **options))

    async def last_text(self, task_id: str) -> str:
        """Return the text of the last artifact of a task."""
        return "".join(part.text for part in (await self.task(task_id)).artifacts[-1].parts)

    async def task(self, task_id: str) -> Task:
        """Return the snapshot of a task."""
        snapshot = await self.store.run(read_task(self.keys, None, task_id))
        assert snapshot is not None
        return snapshot[0]

    async def status_text(self, task_id: str) -> str:
        """Return the text of a task's status message, or "" if the status has no message."""
        return "".join(part.text for part in (await self.task(task_id)).status.message.parts)

    async def log(self, task_id: str) -> list[LogEntry]:
        """Return the complete log of a task."""
        return (await self.store.run(read_log(self.keys, task_id, 0, limit=1_000_000))).entries

    async def states(self, task_id: str) -> list[TaskState]:
        """Return the states in the log of a task, in order."""
        events = [entry.event for entry in await self.log(task_id)]
        return [e.status.state for e in events if isinstance(e, Task | TaskStatusUpdateEvent)]

    async def require_consistent(self, task_id: str) -> None:
        """Require that the log of a task has no gap and folds to the snapshot. Read both in one transaction."""
        log, task = read_log(self.keys, task_id, 0, limit=1_000_000), read_task(self.keys, None, task_id)
        async with self.store.redis.pipeline(transaction=True) as both:
            for operation in (log, task):
                both.eval(operation.script.text, len(operation.keys), *operation.keys, *operation.args)
            log_reply, task_reply = await both.execute()
        page = log.parse(log_reply)
        try:
            snapshot = task.parse(task_reply)
        except LongSnapshot:
            snapshot = await self.store.run(task)
        assert snapshot is not None
        assert snapshot[1].version == page.version == len(page.entries)
        assert snapshot[1] == page.entries[-1].id
        times = [entry.recorded_us for entry in page.entries]
        assert times == sorted(set(times)), "each event is later than the one before"
        assert fold(page.entries) == snapshot[0]

    async def backup(self) -> dict[bytes, bytes]:
        """Return a copy of every key, for `restore`."""
        redis = self.store.redis
        return {key: await redis.dump(key) for key in [key async for key in redis.scan_iter()]}

    async def restore(self, backup: dict[bytes, bytes]) -> None:
        """Replace the content of the store with `backup`, like a failover to an outdated replica.

        A reader sees the store before or after the replacement, and never a part of it.
        """
        async with self.store.redis.pipeline(transaction=True) as pipe:
            pipe.flushdb()
            for key, value in backup.items():
                pipe.restore(key, 0, value, replace=True)
            await pipe.execute()

    async def all_values(self) -> dict[str, object]:
        """Return the value of every key except the metrics. Two results are equal if nothing was written between the
        calls."""
        redis = self.store.redis
        values: dict[str, object] = {}
        async for key in redis.scan_iter():
            if key.decode() == self.keys.metrics:
                continue
            match await redis.type(key):
                case b"hash":
                    values[key.decode()] = await redis.hgetall(key)
                case b"list":
                    values[key.decode()] = await redis.lrange(key, 0, -1)
                case b"zset":
                    values[key.decode()] = await redis.zrange(key, 0, -1, withscores=True)
                case b"string":
                    values[key.decode()] = await redis.get(key)
                case kind:
                    raise AssertionError(f"{key!r}: the key has the unknown type {kind!r}")
        return values


async def run_concurrently(*calls: Any) -> list[Any]:
    """Run `calls` concurrently and return their results."""
    return list(await asyncio.gather(*calls))
