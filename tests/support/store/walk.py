"""Random walk over the operations of the store, for tests of what holds after any operations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from a2a.types import TaskState

from a2a_celery.features import KEPT_METADATA
from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.features.families.child_canceller import acquire_ended_parents
from a2a_celery.features.families.section import ChildSection
from a2a_celery.features.questions.answer_section import AnswerSection
from a2a_celery.features.questions.question_section import QuestionSection, Reminder
from a2a_celery.features.questions.reminder_poster import post_reminders, reminder_index
from a2a_celery.features.sessions.section import SessionSection, session_key
from a2a_celery.features.steering.section import read_messages
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.config_section import NewPushConfig, config_section
from a2a_celery.features.webhooks.deliveries import abandon_delivery, postpone_delivery, replay_delivery
from a2a_celery.features.webhooks.push_configs import delete_push_config, save_push_config
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.outcomes import status_event
from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    INTERRUPTED,
    REJECTED,
    TERMINAL,
    WORKING,
)
from a2a_celery.store import Keys
from a2a_celery.store.admin.archiving import acquire_archivable, remove_archived
from a2a_celery.store.operation import Operation
from a2a_celery.store.runs.commands import (
    Claim,
    RunLost,
    Settled,
    claim_run,
    end_run,
    revoke_run,
    settle_run,
)
from a2a_celery.store.runs.publication import acquire_due_runs, report_prefetched
from a2a_celery.store.runs.recovery import return_run
from a2a_celery.store.runs.release import Released, delegate_to_canvas, end_by_result, release_run, retry_run
from a2a_celery.store.runs.suspension import SuspendedRun, resume_due_runs, suspend_run, take_signal
from a2a_celery.store.tasks.commands import (
    continue_task,
    create_task,
    delete_task,
    end_pauses,
    request_cancel,
)
from a2a_celery.store.tasks.signals import send_signal
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.limits import limit_sections
from tests.support.store.seeds import AGENTS, ANN, BOB, LEASE_US, RETENTION, Seeds, chunk, request, status
from tests.support.store.suspensions import received_entry, timer, wait_for
from tests.support.store.view import Record, View

MANY = {"concurrent": 1000, "queued": 1000, "owner_bytes": 10**12}
"""Limits that no walk reaches, by name."""

PHASES = ("queued", "running", "delegated", "suspended")
CONTEXTS = ["one", "two"]
SIGNALS = ["go", "stop"]
HOUR_US = 3_600_000_000


Move = tuple[Callable[[Any, str, Record], Awaitable[None]], tuple[str, ...]]


@dataclass
class World:
    """Tasks of two owners and two agents, the claims of their runs, and random operations on the tasks."""

    seeds: Seeds
    chance: random.Random
    view: View
    claims: dict[str, Claim] = field(default_factory=dict)
    old_claims: list[Claim] = field(default_factory=list)
    write_counts: Counter[str] = field(default_factory=Counter)

    @property
    def keys(self) -> Keys:
        return self.seeds.keys

    async def run(self, operation: Operation[Any]) -> Any:
        return await self.seeds.store.run(operation)

    async def look(self) -> None:
        """Read the view, and assert that it has no problem."""
        self.view = await View.of(self.seeds.store, self.keys)
        assert list(self.view.problems()) == []

    def moves(self) -> Mapping[str, Move]:
        """Return the operations by name, each with the phases of the tasks for which it is valid."""
        return MOVES

    async def act(self, move: str) -> None:
        """Perform an operation, usually on a task for which the operation is valid."""
        operation, phases = self.moves()[move]
        fitting = self.view.in_phase(*phases)
        tasks = fitting if fitting and self.chance.random() < 0.9 else sorted(self.view.records)
        if tasks:
            task_id = self.chance.choice(tasks)
            await operation(self, task_id, self.view.records[task_id])
        await self.look()

    def refuses_answer(self) -> bool:
        """Return True if the run to settle refuses the answer that began its turn."""
        return self.chance.random() < 0.2

    def new_id(self) -> str:
        return str(UUID(int=self.chance.getrandbits(128)))

    async def create(self, parent_id: str = "") -> None:
        sections, scope = list[ChildSection](), self.chance.choice([ANN, BOB])
        if parent_id:
            cancels, is_waiting = self.chance.random() < 0.7, self.chance.random() < 0.7
            sections = [ChildSection.of(parent_id, cancels=cancels, is_waiting=is_waiting)]
            scope = replace(Scope.parse(self.view.records[parent_id]["scope"]), agent=self.chance.choice(AGENTS))
        task_id, context_id = self.new_id(), self.chance.choice(CONTEXTS)
        await self.run(
            create_task(
                self.keys, scope, task_id, context_id, request(task_id=task_id, context_id=context_id), caller=b"{}",
                retention=RETENTION, serialize_context=self.chance.random() < 0.5,
                sections=[
                    *sections,
                    *([config_section(self.keys, self.new_config())] if self.chance.random() < 0.3 else []),
                    *limit_sections(self.keys, scope, **MANY),
                ],
            )
        )  # fmt: skip

    def new_config(self) -> NewPushConfig:
        config_id, fingerprint = self.chance.choice("cd"), self.chance.choice(["f0", "f1"])
        return NewPushConfig(
            config_id, self.new_id().encode(), fingerprint, ANN.account, self.chance.choice([None, 99])
        )

    async def create_child(self, task_id: str, r: Record) -> None:
        await self.create(task_id)

    async def claim(self, task_id: str, r: Record) -> None:
        retried_run, _, retries = r["retry_state"].partition(" ")
        retries = int(retries) if retried_run == r["run"] else 0
        operation = claim_run(
            self.keys,
            RunRef(task_id, int(r["run"])),
            token=self.new_id(),
            runner="runner",
            lease_us=LEASE_US,
            working=self.chance.random() < 0.5,
            max_attempts=self.chance.choice([1, 3]),
            retries=retries,
            retried=status_event(task_id, r["context"], WORKING),
            code_version=self.chance.choice(["", "1", "2"]),
            claims_other_code_version=True,
        )
        claim = await self.run(operation)
        if isinstance(claim, Claim):
            self.drop_claim(task_id)
            self.claims[task_id] = claim

    async def write_events(self, task_id: str, r: Record) -> None:
        if claim := self.claims.get(task_id):
            entry = JournalEntry(f"step#{self.chance.randrange(9)}", "step", "json", b"1")
            events = self.chance.choice([[chunk("x")], [status(WORKING), entry], [status(INPUT_REQUIRED)]])
            try:
                await self.seeds.append_events(claim, *events, written_count=self.write_counts[task_id])
                self.write_counts[task_id] += len(events)
            except AssertionError:
                pass  # the run was lost, or the event is illegal

    async def end(self, task_id: str, r: Record) -> None:
        await self._settle(task_id, self.chance.choice([COMPLETED, FAILED, REJECTED]))

    async def pause(self, task_id: str, r: Record) -> None:
        await self._settle(task_id, self.chance.choice([INPUT_REQUIRED, AUTH_REQUIRED]))

    async def _settle(self, task_id: str, state: TaskState) -> None:
        if not (claim := self.claims.get(task_id)):
            return
        scope, context_id = Scope.parse(self.view.records[task_id]["scope"]), self.view.records[task_id]["context"]
        messages = await self.run(read_messages(self.keys, claim.ref, token=claim.token, received=0))
        version = await self.seeds.store.redis.hget(session_key(self.keys, scope, context_id), "version")
        fingerprint = self.chance.choice(["", "f0", "f1"])
        session = SessionSection.of(self.keys, int(version or 0), b"state", fingerprint)
        reminders = [Reminder.of(HOUR_US * number, status(INPUT_REQUIRED)) for number in (1, 2)]
        await self.leave_run(
            task_id,
            settle_run,
            Settled,
            events=[status(state)],
            ask_count=self.chance.choice([0, 1]),
            refuses_answer=self.refuses_answer(),
            read_count=0 if isinstance(messages, RunLost) else self.chance.randint(0, len(messages)),
            is_resubmittable=self.chance.random() < 0.5,
            pause_us=self.chance.choice([0, HOUR_US]),
            pause_timeout=status_event(task_id, context_id, FAILED),
            sections=[
                *([QuestionSection(reminders=reminders)] if self.chance.random() < 0.3 else []),
                *([session] if self.chance.random() < 0.5 else []),
            ],
        )

    async def leave_run(
        self, task_id: str, operation: Callable[..., Operation[Any]], accepted: type[object], **arguments: Any
    ) -> None:
        """Write the last events of a claimed run, and often repeat the call."""
        if not (claim := self.claims.get(task_id)):
            return
        count = self.write_counts[task_id]
        call = operation(self.keys, claim.ref, token=claim.token, written_count=count, **arguments)
        reply = await self.run(call)
        if isinstance(reply, accepted | RunLost):
            self.drop_claim(task_id)
        if isinstance(reply, accepted) and self.chance.random() < 0.3:
            second_reply = await self.run(call)
            assert (second_reply.version, second_reply.state) == (reply.version, reply.state)

    def drop_claim(self, task_id: str) -> None:
        if claim := self.claims.pop(task_id, None):
            self.old_claims.append(claim)
        self.write_counts[task_id] = 0

    async def retry(self, task_id: str, r: Record) -> None:
        delay_us = self.chance.choice([1, HOUR_US])
        await self.leave_run(task_id, release_run, Released, events=[], options=b"", retries=1, delay_us=delay_us)

    async def retry_by_celery(self, task_id: str, r: Record) -> None:
        ref = RunRef(task_id, int(r["run"]))
        event = status_event(task_id, r["context"], WORKING)
        retries = self.chance.randrange(1, 4)
        await self.run(
            retry_run(self.keys, ref, runner="runner", event=event, options=b"", retries=retries, delay_us=1)
        )

    async def delegate(self, task_id: str, r: Record) -> None:
        await self.leave_run(task_id, delegate_to_canvas, Released, events=[], canvas="{}")

    async def suspend(self, task_id: str, r: Record) -> None:
        wait = timer(wait_us=self.chance.choice([0, HOUR_US]))
        children = self.view.open_children(task_id)
        if children and self.chance.random() < 0.8:
            child = self.chance.choice(children)
            wait = wait_for(f"child/{child}", task_id=child)
        elif self.chance.random() < 0.7:
            wait = wait_for(self.chance.choice(SIGNALS), wait_us=self.chance.choice([None, HOUR_US]))
        sections = [SessionSection.of(self.keys)] if self.chance.random() < 0.5 else []
        await self.leave_run(task_id, suspend_run, SuspendedRun, events=[], wait=wait, options=b"", sections=sections)

    async def resume(self, task_id: str, r: Record) -> None:
        if not r["wait_signal"].startswith("child/"):
            await self.seeds.store.redis.zadd(self.keys.suspended, {f"{task_id}.{r['run']}": 1}, xx=True)
            await self.run(resume_due_runs(self.keys, limit=10))

    async def signal(self, task_id: str, r: Record) -> None:
        name, signal_id = self.chance.choice(SIGNALS), str(self.chance.randrange(20))
        await self.run(send_signal(self.keys, None, task_id, name=name, payload=b"1", signal_id=signal_id))

    async def take(self, task_id: str, r: Record) -> None:
        if claim := self.claims.get(task_id):
            name, count = self.chance.choice(SIGNALS), self.write_counts[task_id]
            received = received_entry(name, self.chance.randrange(9))
            await self.run(
                take_signal(self.keys, claim.ref, token=claim.token, confirmed=count, signal=name, received=received)
            )

    async def answer(self, task_id: str, r: Record) -> None:
        how = self.chance.choice(["queue", "steer", "interrupt", "reject"])
        message_request = request("more", task_id, r["context"])
        scope = Scope.parse(r["scope"])
        next_message = continue_task(
            self.keys, scope, task_id, message_request, "", caller=b"{}", nonce=self.new_id(), on_message=how,
            sections=[AnswerSection(), *limit_sections(self.keys, scope, **MANY)],
        )  # fmt: skip
        reply = await self.run(next_message)
        if self.chance.random() < 0.3:
            assert type(await self.run(next_message)) is type(reply)

    async def write_with_an_old_claim(self, task_id: str, r: Record) -> None:
        if not self.old_claims:
            return
        claim = self.chance.choice(self.old_claims)
        arguments: dict[Any, dict[str, Any]] = {
            settle_run: {"events": [status(COMPLETED)]},
            suspend_run: {"events": [], "wait": timer(wait_us=0), "options": b""},
            release_run: {"events": [], "options": b"", "retries": 9, "delay_us": 1},
        }
        operation = self.chance.choice(list(arguments))
        await self.run(operation(self.keys, claim.ref, token=claim.token, written_count=0, **arguments[operation]))
        assert await View.of(self.seeds.store, self.keys) == self.view

    async def cancel(self, task_id: str, r: Record) -> None:
        await self.run(request_cancel(self.keys, Scope.parse(r["scope"]), task_id, r["context"]))

    async def cancel_children(self, task_id: str, r: Record) -> None:
        for child in await self.run(acquire_ended_parents(self.keys, limit=10, delay_us=0)):
            await self.run(request_cancel(self.keys, child.scope, child.task_id, child.context_id))

    async def revoke(self, task_id: str, r: Record) -> None:
        ref, event = RunRef(task_id, int(r["run"])), status_event(task_id, r["context"], CANCELED)
        await self.run(revoke_run(self.keys, ref, event=event, terminate=self.chance.random() < 0.5))

    async def lose(self, task_id: str, r: Record) -> None:
        if r["phase"] == "running":
            await self.seeds.recover_run(RunRef(task_id, int(r["run"])))

    async def kill(self, task_id: str, r: Record) -> None:
        is_lost = self.chance.random() < 0.5
        event = status_event(task_id, r["context"], FAILED)
        ref, runner = RunRef(task_id, int(r["run"])), "runner" if r["phase"] == "running" else None
        await self.run(
            end_run(self.keys, ref, runner=runner or ("runner" if is_lost else None), event=event, lost=is_lost)
        )

    async def return_run(self, task_id: str, r: Record) -> None:
        failure = status_event(task_id, r["context"], FAILED)
        ref, runner = RunRef(task_id, int(r["run"])), "runner" if r["phase"] == "running" else None
        await self.run(return_run(self.keys, ref, runner=runner, loss=failure))

    async def result(self, task_id: str, r: Record) -> None:
        event = status_event(task_id, r["context"], COMPLETED)
        await self.run(end_by_result(self.keys, RunRef(task_id, int(r["run"])), [event]))

    async def publish(self, task_id: str, r: Record) -> None:
        await self.run(report_prefetched(self.keys, [RunRef(task_id, int(r["run"]))], silent_us=1, delay_us=2))
        await self.run(acquire_due_runs(self.keys, limit=3, delay_us=1))

    async def end_pause(self, task_id: str, r: Record) -> None:
        if int(r["state"]) in INTERRUPTED:
            due, command = self.chance.choice(
                [(self.keys.pauses, end_pauses), (reminder_index(self.keys), post_reminders)]
            )
            await self.seeds.store.redis.zadd(due, {task_id: 1}, xx=True)
            await self.run(command(self.keys, limit=10))

    async def requeue(self, task_id: str, r: Record) -> None:
        dead_letter = await self.run(read_dead_letter(self.keys, task_id))
        if isinstance(dead_letter, DeadLetter):
            await self.run(
                requeue_task(
                    self.keys,
                    dead_letter,
                    self.new_id(),
                    retention=RETENTION,
                    options=b"",
                    kept_metadata=KEPT_METADATA,
                )
            )

    async def delete(self, task_id: str, r: Record) -> None:
        if r["parent"] or r["children"] or r["code_version"]:
            return  # a task of another engine, which this operation deletes, has no such fields
        await self.run(delete_task(self.keys, Scope.parse(r["scope"]), task_id))
        for key in (self.keys.resubmittable, self.keys.pauses, reminder_index(self.keys)):
            await self.seeds.store.redis.zrem(key, task_id)

    async def expire(self, task_id: str, r: Record) -> None:
        """Let the keys of an ended task expire."""
        redis = self.seeds.store.redis
        if int(r["state"]) not in TERMINAL or await redis.ttl(self.keys.task(task_id).record) < 0:
            return  # the task waits for the archive
        await redis.delete(*[key async for key in redis.scan_iter(f"{self.keys.prefix}:{{{task_id}}}:*")])
        await redis.zrem(self.keys.resubmittable, task_id)
        for entry in await redis.zrange(self.keys.stored_expiring, 0, -1):
            if entry.split()[0].decode() == task_id:
                await redis.zadd(self.keys.stored_expiring, {entry: 1})

    async def archive(self, task_id: str, r: Record) -> None:
        await self.run(remove_archived(self.keys, [task_id]))

    async def configure(self, task_id: str, r: Record) -> None:
        await self.run(save_push_config(self.keys, None, task_id, self.new_config()))

    async def remove_config(self, task_id: str, r: Record) -> None:
        await self.run(delete_push_config(self.keys, None, task_id, self.chance.choice("cd")))

    async def deliver(self, task_id: str, r: Record) -> None:
        webhooks = Webhooks(self.seeds.store, self.keys)
        for cursor in await webhooks.lease_cursors(limit=3):
            match self.chance.randrange(4):
                case 0:
                    await webhooks.record_delivery(cursor, cursor.version)
                case 1:
                    await self.run(postpone_delivery(self.keys, cursor, after_us=0, counts=True, failure={}))
                case 2:
                    await self.run(abandon_delivery(self.keys, cursor, failure={"reason": "no"}))

    async def replay(self, task_id: str, r: Record) -> None:
        if dead := await self.seeds.store.redis.zrange(webhook_keys.dead_deliveries(self.keys), 0, -1):
            task_id, _, config_id = self.chance.choice(dead).decode().partition(" ")
            await self.run(replay_delivery(self.keys, task_id, config_id))

    async def continue_everything(self) -> bool:
        """Continue each open task once, as workers, watchers and clients do. Return False if all tasks have ended. Fail
        if each open task waits for another task."""
        runs = {tag: record for tag, record in self.view.records.items() if int(record["state"]) not in TERMINAL}
        has_acted = not runs
        for tag, record in runs.items():
            place = self.view.place(tag, record)
            is_child_wait = record["wait_signal"].startswith("child/")
            has_acted |= not (place == "blocked" or (place == "suspended" and is_child_wait))
            match place:
                case "dispatch":
                    await self.claim(tag, record)
                case "leases":
                    self.write_counts[tag] = 10**6  # the store refuses the writes, and lapses the run
                    await self.end(tag, record)
                    await self.lose(tag, record)
                case "canvases":
                    await self.result(tag, record)
                case "suspended" if not is_child_wait:
                    await self.resume(tag, record)
                case "pauses":
                    await self.cancel(tag, record)
            await self.look()
        assert has_acted, runs
        return bool(runs)

    async def drain(self) -> None:
        """End all tasks, deliver all events, and cancel the children of ended tasks."""
        webhooks = Webhooks(self.seeds.store, self.keys)
        for _ in range(100):
            has_open_tasks = await self.continue_everything()
            await self.cancel_children("", {})
            await self.look()
            if not has_open_tasks:
                break
        assert not has_open_tasks
        await webhooks.pass_time(3600)
        await webhooks.drain()
        if await self.seeds.store.redis.hget(self.keys.installation, "archive"):
            await self.run(remove_archived(self.keys, list(self.view.records)))
            for tag in await self.seeds.store.redis.zrange(self.keys.archive, 0, -1):  # deleted tasks
                await self.seeds.store.redis.zadd(self.keys.archive, {tag: 1})
            due = await self.run(acquire_archivable(self.keys, archiver_id="archiver", limit=100, lease_ms=1000))
            assert due.tasks == []


MOVES: dict[str, Move] = {
    "claim": (World.claim, ("queued",)),
    "create_child": (World.create_child, ("running",)),
    "write_events": (World.write_events, ("running",)),
    "end": (World.end, ("running",)),
    "pause": (World.pause, ("running",)),
    "retry": (World.retry, ("running",)),
    "retry_by_celery": (World.retry_by_celery, ("running",)),
    "delegate": (World.delegate, ("running",)),
    "suspend": (World.suspend, ("running",)),
    "resume": (World.resume, ("suspended",)),
    "signal": (World.signal, ("suspended", "running")),
    "take": (World.take, ("running",)),
    "answer": (World.answer, ("", "queued", "running", "delegated", "suspended")),
    "write_with_an_old_claim": (World.write_with_an_old_claim, ()),
    "cancel": (World.cancel, ()),
    "cancel_children": (World.cancel_children, ()),
    "revoke": (World.revoke, ("queued", "suspended", "running")),
    "lose": (World.lose, ("running",)),
    "kill": (World.kill, ("running", "queued")),
    "return_run": (World.return_run, ("running", "queued")),
    "result": (World.result, ("delegated",)),
    "publish": (World.publish, ("queued",)),
    "end_pause": (World.end_pause, ("",)),
    "requeue": (World.requeue, ("",)),
    "delete": (World.delete, ()),
    "expire": (World.expire, ("",)),
    "archive": (World.archive, ("",)),
    "configure": (World.configure, ()),
    "remove_config": (World.remove_config, ()),
    "deliver": (World.deliver, ()),
    "replay": (World.replay, ()),
}
OFTEN = [
    *(["claim"] * 6 + ["suspend", "create_child", "end", "pause", "answer", "deliver"] * 2),
    *("lose", "archive", "configure", "replay"),
]
