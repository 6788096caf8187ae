"""Checks after a chaos run of the logs of tasks, the marks of runs, and the responses to clients."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent

from a2a_celery.lifecycle import EventKind, LogEntry, fold, is_interrupted, is_terminal, kind_of
from a2a_celery.lifecycle.outcomes import AGENT_FAILED, WORKER_LOST
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.tasks.commands import read_task

from .chaos_agents import MOST_RUNS, Mark, marks_of
from .chaos_clients import Transcript
from .chaos_fleet import LEASE_AND_A_LOOK, Incident
from .chaos_losses import Lost, recoverable_seconds, why

SLACK = 4.0
"""Additional seconds of a recovery on a loaded machine."""


@dataclass
class Record:
    """A task as the store has it at the end: snapshot, log, agent."""

    task: Task
    version: int
    log: list[LogEntry]
    agent: str

    @property
    def message_ids(self) -> list[str]:
        """The client's messages that its log has, in order."""
        first = self.log[0].event
        assert isinstance(first, Task)
        later = [e.event for e in self.log if kind_of(e.event) is EventKind.CLIENT_MESSAGE]
        return [m.message_id for m in [first.history[0], *later] if isinstance(m, Message)]


@dataclass
class Findings:
    """Results of the checks. `ends` counts final states by kind of scenario. The lists have seconds."""

    ends: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    problems: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    taken: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    doubles: int = 0


async def read_records(store: AsyncStore, keys: Keys) -> list[Record]:
    """Read every task in the store."""
    records = []
    async for key in store.redis.scan_iter(f"{keys.prefix}:{{*}}:task"):
        task_id = key.decode().split("{")[1].split("}")[0]
        log: list[LogEntry] = []
        while True:
            page = await store.run(read_log(keys, task_id, len(log)))
            log += page.entries
            if len(log) >= page.version or not page.entries:
                break
        found = await store.run(read_task(keys, None, task_id))
        assert found is not None
        records.append(Record(found[0], found[1].version, log, (await store.redis.hget(key, "agent")).decode()))
    return records


def check(
    records: list[Record],
    transcripts: list[Transcript],
    marks: Path,
    incidents: list[Incident],
    clock_moves: list[tuple[float, float]],
) -> Findings:
    """Looks at everything. `clock_moves`: from which real second on the store's clock was how many seconds ahead."""
    findings = Findings()
    by_message: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        for message_id in record.message_ids:
            by_message[message_id].append(record)
    for record in records:
        own = marks_of(marks, record.task.id)
        problems = [*of_log(record), *of_marks(record, own, incidents)]
        problems += of_losses(record, own, incidents, findings, real_times(record.log, clock_moves))
        note(findings, record, own, problems)
    for transcript in transcripts:
        found = {r.task.id: r for m in transcript.sent for r in by_message[m]}
        findings.problems += [
            f"client {transcript.scenario.number} ({transcript.scenario.kind}): {one}" for one in transcript.wrong
        ]
        if len(found) > 1:
            findings.doubles += 1
            findings.problems.append(f"client {transcript.scenario.number}: its messages are in {sorted(found)}")
        for record in found.values():
            findings.ends[transcript.scenario.kind][TaskState.Name(record.task.status.state)[11:].lower()] += 1
            note(findings, record, marks_of(marks, record.task.id), list(of_transcript(record, transcript)))
        if not found:
            findings.ends[transcript.scenario.kind]["never accepted"] += 1
            if transcript.accepted:
                findings.problems.append(f"client {transcript.scenario.number}: it was accepted, and there is no task")
    return findings


def note(findings: Findings, record: Record, marks: list[Mark], problems: list[str]) -> None:
    """Keeps problems of a task, with its log and marks."""
    if not problems:
        return
    findings.problems += [f"task {record.task.id} of {record.agent}: {one}" for one in problems]
    findings.doubles += sum("twice" in one for one in problems)
    findings.evidence.append(f"--- log of {record.task.id}, {record.agent}")
    lines = [f"{e.version} {e.recorded_us / 1e6:.3f} {str(e.event)[:400]!r}" for e in record.log]
    findings.evidence += lines if len(lines) < 60 else [*lines[:30], "…", *lines[-30:]]
    findings.evidence += [f"--- marks of {record.task.id}", *(str(mark) for mark in marks)]


def of_log(record: Record) -> Iterator[str]:
    """Check that the log has no gaps, one end, the words of each run in order, and folds to the snapshot."""
    log = record.log
    if [e.version for e in log] != list(range(1, record.version + 1)):
        yield f"the log has versions {[e.version for e in log]}, the task is at {record.version}"
        return
    if fold(log) != record.task:
        yield f"the log folds to another task than is read: {fold(log)} != {record.task}"
    states = [e.event.status.state for e in log if isinstance(e.event, TaskStatusUpdateEvent)]
    answers = [e for e in log if kind_of(e.event) is EventKind.ANSWER]
    ends = sum(is_terminal(state) for state in states) + len(answers)
    last = log[-1].event
    ended = (isinstance(last, TaskStatusUpdateEvent) and is_terminal(last.status.state)) or log[-1] in answers
    if ends != 1 or not ended:
        yield f"it has {ends} ends, and the last event is no end" if not ended else f"it has {ends} ends"
    yield from of_words(log)


def of_words(log: list[LogEntry]) -> Iterator[str]:
    """Runs speak one after another, each from its first word on: said by what is in the words."""
    turn, attempt, run, following = 1, 1, "", 0
    for entry in log:
        event = entry.event
        if kind_of(event) is EventKind.CLIENT_MESSAGE:
            turn, attempt, run, following = turn + 1, 1, "", 0
        elif isinstance(event, TaskStatusUpdateEvent) and "attempt" in event.metadata.fields:
            attempt, run, following = int(event.metadata["attempt"]), "", 0
        for said in words_of(event):
            if not said.startswith(f"{turn}.{attempt}."):
                yield f"event {entry.version} is of another run than {turn}.{attempt}: {said}"
                return
            speaker, number = said.split("=")[0].split(".")[2:]
            if (run or speaker) != speaker or int(number) != following:
                yield f"event {entry.version} is not word {following} of run {run}, but {said}: it ran twice"
                return
            run, following = speaker, following + 1


def words_of(event: object) -> list[str]:
    """What an agent said in an event, word by word."""
    if isinstance(event, TaskArtifactUpdateEvent):
        return " ".join(part.text for part in event.artifact.parts).split()
    if isinstance(event, Message) and kind_of(event) is EventKind.ANSWER:
        return event.parts[0].text.split()
    if isinstance(event, TaskStatusUpdateEvent) and event.status.state == COMPLETED:
        return " ".join(part.text for part in event.status.message.parts).split()
    return []


def of_marks(record: Record, marks: list[Mark], incidents: list[Incident]) -> Iterator[str]:
    """No run began twice, none came that its agent's promise doesn't allow, and two ran at once only where the first
    had been lost: its process frozen or killed, or the store away for longer than its lease."""
    starts = [mark for mark in marks if mark.what == "start"]
    stops = {mark.run: mark for mark in marks if mark.what == "stop"}
    times = Counter((mark.turn, mark.attempt) for mark in starts)
    most = MOST_RUNS.get(record.agent, 1)
    yield from (f"run {run} began twice ({count} times)" for run, count in times.items() if count > 1)
    yield from (f"it ran twice or more: attempt {attempt} of {most}" for _, attempt in times if attempt > most)
    ordered = sorted(starts, key=lambda mark: mark.clock)
    if [(m.turn, m.attempt) for m in ordered] != sorted((m.turn, m.attempt) for m in ordered):
        yield "its runs began in another order than they were given"
    for earlier, later in pairwise(ordered):
        stop = stops.get(earlier.run)
        if stop is not None and stop.clock > later.clock:
            lost = Lost(earlier.turn, earlier.attempt, later.real, earlier)
            if earlier.turn != later.turn or why(lost, incidents) is None:
                yield f"runs {earlier.tag} and {later.tag} overlapped, and the first was not lost"


def of_losses(
    record: Record, marks: list[Mark], incidents: list[Incident], findings: Findings, times: list[float]
) -> Iterator[str]:
    """Each run that was lost had a reason to be, was taken away in time, and its successor began."""
    starts = {(mark.turn, mark.attempt): mark for mark in marks if mark.what == "start"}
    for lost in losses(record.log, starts, times):
        cause = why(lost, incidents)
        if cause is None:
            yield f"run {lost.turn}.{lost.attempt} was lost at {lost.at:.3f} without a reason"
            continue
        most = MOST_RUNS.get(record.agent, 1)
        findings.causes[f"{cause.kind} ({'once' if most == 1 else 'again'})"] += 1
        if cause.of == "store" and most == 1:  # one that may run elsewhere is given up by its worker itself
            yield f"run {lost.turn}.{lost.attempt} was taken from a worker that only had no store: {cause}"
        if lost.final and lost.attempt < most:
            yield f"it was given up when run {lost.turn}.{lost.attempt} was lost; it may have {most}"
        if lost.at == inf:
            continue
        findings.taken.append(lost.at - cause.begin)
        waited = recoverable_seconds(cause.begin, lost.at, incidents)
        findings.waited.append(waited)
        if waited > LEASE_AND_A_LOOK + SLACK:
            yield f"run {lost.turn}.{lost.attempt}, lost to {cause}, was taken at {lost.at:.3f}: {waited:.1f} s"
        successor = starts.get((lost.turn, lost.attempt + 1))
        if successor is not None:
            findings.begun.append(successor.real - lost.at)


def real_times(log: list[LogEntry], clock_moves: list[tuple[float, float]]) -> list[float]:
    """Return the real second of each entry, infinity if it is unknown.

    The log's times never go back: after the store's clock was set back, entries follow each other by a microsecond
    until the clock has caught up.
    """
    spans = [(*move, end) for move, (end, _) in pairwise([*clock_moves, (inf, 0.0)])]
    times: list[float] = []
    last, last_us = 0.0, 0
    for entry in log:
        found = [
            at
            for begin, ahead, end in spans
            if begin - 0.01 <= (at := entry.recorded_us / 1e6 - ahead) <= end + 0.01 and at >= last - 0.01
        ]
        is_stuck = entry.recorded_us - last_us <= 2 and any(begin > last for begin, _ in clock_moves)
        times.append(inf if is_stuck or not found else found[0])
        last, last_us = last if times[-1] == inf else times[-1], entry.recorded_us
    return times


def losses(log: list[LogEntry], starts: dict[tuple[int, int], Mark], times: list[float]) -> Iterator[Lost]:
    """The runs that were taken from their workers, as the log tells it; `times` are the real ones of its entries."""
    turn, attempt = 1, 1
    for entry, at in zip(log, times, strict=True):
        event = entry.event
        if kind_of(event) is EventKind.CLIENT_MESSAGE:
            turn, attempt = turn + 1, 1
        if not isinstance(event, TaskStatusUpdateEvent):
            continue
        given_on = "attempt" in event.metadata.fields
        text = "".join(part.text for part in event.status.message.parts)
        if given_on or (event.status.state == FAILED and text == WORKER_LOST):
            yield Lost(turn, attempt, at, starts.get((turn, attempt)), not given_on)
        if given_on:
            attempt = int(event.metadata["attempt"])


def of_transcript(record: Record, transcript: Transcript) -> Iterator[str]:
    """What the client was told is what the log says, and its task ended as such a task may."""
    state = record.task.status.state
    told = transcript.state.removeprefix("TASK_STATE_")
    if transcript.done and told and told != TaskState.Name(state)[11:]:
        yield f"its client was told {told}, and it is {TaskState.Name(state)}"
    if transcript.canceled and state != CANCELED:
        yield "its client was told that it is cancelled"
    arrived = [m for m in record.message_ids if m in transcript.sent]
    if arrived != transcript.sent[: len(arrived)] or len(set(arrived)) != len(arrived):
        yield f"its messages arrived as {arrived}, and were sent as {transcript.sent}"
    if state == COMPLETED and not set(transcript.accepted) <= set(arrived):
        yield f"messages {set(transcript.accepted) - set(arrived)} were accepted, and are not in it"
    yield from of_end(record, transcript)
    yield from of_stream(record, transcript)


def of_end(record: Record, transcript: Transcript) -> Iterator[str]:
    """An end that fits what was ordered."""
    order, state = transcript.scenario.order, record.task.status.state
    text = "".join(part.text for part in record.task.status.message.parts)
    said = [word for artifact in record.task.artifacts for part in artifact.parts for word in part.text.split()]
    match state:
        case _ if state == CANCELED:
            if transcript.scenario.cancel_after is None:
                yield "nobody asked to cancel it"
        case _ if state == FAILED:
            if text not in (WORKER_LOST, AGENT_FAILED) or (text == AGENT_FAILED and not order.fails):
                yield f"it failed with {text!r}"
        case _ if state == COMPLETED:
            if order.fails:
                yield "it completed, and was to fail"
            if transcript.scenario.follow_ups or transcript.scenario.agent.startswith("direct"):
                return
            if len(said) != order.chunks:
                yield f"it completed with {len(said)} of {order.chunks} words"
            answers = ",".join(f"answer-{n + 1}" for n in range(order.asks))
            if any(word.partition("=")[2] != answers for word in said):
                yield f"it was told {answers}, and says {said[:1]}"
        case _:
            yield f"it ended in {TaskState.Name(state)}" if not is_interrupted(state) else "it waits for its client"


def of_stream(record: Record, transcript: Transcript) -> Iterator[str]:
    """A stream shows every event once, in order, from its first on."""
    if not transcript.seen or "message" in transcript.seen[0][1]:
        return
    numbers = [number for number, _ in transcript.seen]
    shown = [e.version for e in record.log if kind_of(e.event) is not EventKind.CLIENT_MESSAGE]
    wanted = [number for number in shown if numbers[0] < number <= numbers[-1]]
    if numbers[1:] != wanted:
        yield f"its client saw events {numbers}, and there were {wanted} behind the first"
    by_version = {entry.version: entry.event for entry in record.log}
    for number, data in transcript.seen[1:]:
        event = by_version.get(number)
        update = data.get("artifactUpdate")
        if update and isinstance(event, TaskArtifactUpdateEvent):
            parts = [part.get("text", "") for part in update["artifact"]["parts"]]
            if parts != [part.text for part in event.artifact.parts]:
                yield f"its client saw {parts} as event {number}"
