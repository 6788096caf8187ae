"""Checks of task logs, the marks of runs, and client responses after a chaos run."""

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
from tests.support.chaos.agents import MOST_RUNS, Mark, marks_of
from tests.support.chaos.clients import Transcript
from tests.support.chaos.fleet import LEASE_AND_SCAN, Incident
from tests.support.chaos.losses import LostRun, cause_of, recoverable_seconds

SLACK = 4.0
"""Additional seconds that a recovery may take on a loaded machine."""


@dataclass
class Record:
    """Task in the store after the run: snapshot, log and agent."""

    task: Task
    version: int
    log: list[LogEntry]
    agent: str

    @property
    def message_ids(self) -> list[str]:
        """Ids of the client's messages in the log, in order."""
        first = self.log[0].event
        assert isinstance(first, Task)
        client_messages = [e.event for e in self.log if kind_of(e.event) is EventKind.CLIENT_MESSAGE]
        return [m.message_id for m in [first.history[0], *client_messages] if isinstance(m, Message)]


@dataclass
class Findings:
    """Results of the checks.

    Attributes:
        ends: Counts of final states by kind of scenario.
        problems: Violated rules.
        evidence: Logs and marks of the tasks with problems.
        causes: Counts of lost runs by the kind of incident.
        recovery_seconds: For each lost run, the seconds from the incident until the store recorded the loss.
        wait_seconds: `recovery_seconds` without the outages of the store and the watchers.
        restart_seconds: Seconds from each recorded loss to the start of the next attempt.
        doubles: Number of messages that were accepted or executed twice.
    """

    ends: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    problems: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    recovery_seconds: list[float] = field(default_factory=list)
    wait_seconds: list[float] = field(default_factory=list)
    restart_seconds: list[float] = field(default_factory=list)
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
        snapshot = await store.run(read_task(keys, None, task_id))
        assert snapshot is not None
        records.append(Record(snapshot[0], snapshot[1].version, log, (await store.redis.hget(key, "agent")).decode()))
    return records


def check(
    records: list[Record],
    transcripts: list[Transcript],
    marks: Path,
    incidents: list[Incident],
    clock_moves: list[tuple[float, float]],
) -> Findings:
    """Check all tasks and transcripts.

    Args:
        records: Tasks in the store after the run.
        transcripts: Transcripts of all clients.
        marks: Folder with the marks of the agents.
        incidents: Incidents of the fleet.
        clock_moves: Wall-clock time and new offset in seconds of each move of the store's clock.
    """
    findings = Findings()
    records_by_message: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        for message_id in record.message_ids:
            records_by_message[message_id].append(record)
    for record in records:
        own = marks_of(marks, record.task.id)
        problems = [*log_problems(record), *mark_problems(record, own, incidents)]
        problems += loss_problems(record, own, incidents, findings, real_times(record.log, clock_moves))
        add_problems(findings, record, own, problems)
    for transcript in transcripts:
        records_by_id = {r.task.id: r for m in transcript.sent_ids for r in records_by_message[m]}
        findings.problems += [
            f"client {transcript.scenario.number} ({transcript.scenario.kind}): {problem}"
            for problem in transcript.wrong
        ]
        if len(records_by_id) > 1:
            findings.doubles += 1
            findings.problems.append(
                f"client {transcript.scenario.number}: its messages are in {sorted(records_by_id)}"
            )
        for record in records_by_id.values():
            findings.ends[transcript.scenario.kind][TaskState.Name(record.task.status.state)[11:].lower()] += 1
            add_problems(
                findings, record, marks_of(marks, record.task.id), list(transcript_problems(record, transcript))
            )
        if not records_by_id:
            findings.ends[transcript.scenario.kind]["never accepted"] += 1
            if transcript.accepted_ids:
                findings.problems.append(f"client {transcript.scenario.number}: it was accepted, but has no task")
    return findings


def add_problems(findings: Findings, record: Record, marks: list[Mark], problems: list[str]) -> None:
    """Add the problems of a task, with its log and marks as evidence."""
    if not problems:
        return
    findings.problems += [f"task {record.task.id} of {record.agent}: {problem}" for problem in problems]
    findings.doubles += sum("twice" in problem for problem in problems)
    findings.evidence.append(f"--- log of {record.task.id}, {record.agent}")
    lines = [f"{e.version} {e.recorded_us / 1e6:.3f} {str(e.event)[:400]!r}" for e in record.log]
    findings.evidence += lines if len(lines) < 60 else [*lines[:30], "…", *lines[-30:]]
    findings.evidence += [f"--- marks of {record.task.id}", *(str(mark) for mark in marks)]


def log_problems(record: Record) -> Iterator[str]:
    """Yield a problem unless the log has no gaps, folds to the snapshot, contains the words of each run in order, and
    ends with its only final event."""
    log = record.log
    if [e.version for e in log] != list(range(1, record.version + 1)):
        yield f"the log has versions {[e.version for e in log]}, the task is at {record.version}"
        return
    if fold(log) != record.task:
        yield f"the log folds to another task than the snapshot: {fold(log)} != {record.task}"
    states = [e.event.status.state for e in log if isinstance(e.event, TaskStatusUpdateEvent)]
    answers = [e for e in log if kind_of(e.event) is EventKind.AGENT_MESSAGE]
    ends = sum(is_terminal(state) for state in states) + len(answers)
    last = log[-1].event
    has_ended = (isinstance(last, TaskStatusUpdateEvent) and is_terminal(last.status.state)) or log[-1] in answers
    if ends != 1 or not has_ended:
        yield f"it has {ends} ends, and the last event is no end" if not has_ended else f"it has {ends} ends"
    yield from word_problems(log)


def word_problems(log: list[LogEntry]) -> Iterator[str]:
    """Yield a problem if the words of two runs are mixed, or if the words of a run are incomplete."""
    turn, attempt, run, word_count = 1, 1, "", 0
    for entry in log:
        event = entry.event
        if kind_of(event) is EventKind.CLIENT_MESSAGE:
            turn, attempt, run, word_count = turn + 1, 1, "", 0
        elif isinstance(event, TaskStatusUpdateEvent) and "attempt" in event.metadata.fields:
            attempt, run, word_count = int(event.metadata["attempt"]), "", 0
        for word in words_of(event):
            if not word.startswith(f"{turn}.{attempt}."):
                yield f"event {entry.version} is of another run than {turn}.{attempt}: {word}"
                return
            speaker, number = word.split("=")[0].split(".")[2:]
            if (run or speaker) != speaker or int(number) != word_count:
                yield f"event {entry.version} is not word {word_count} of run {run}, but {word}: it ran twice"
                return
            run, word_count = speaker, word_count + 1


def words_of(event: object) -> list[str]:
    """Return the words that an agent sent in an event."""
    if isinstance(event, TaskArtifactUpdateEvent):
        return " ".join(part.text for part in event.artifact.parts).split()
    if isinstance(event, Message) and kind_of(event) is EventKind.AGENT_MESSAGE:
        return event.parts[0].text.split()
    if isinstance(event, TaskStatusUpdateEvent) and event.status.state == COMPLETED:
        return " ".join(part.text for part in event.status.message.parts).split()
    return []


def mark_problems(record: Record, marks: list[Mark], incidents: list[Incident]) -> Iterator[str]:
    """Yield a problem for each run that started twice, for each attempt beyond the agent's maximum, and for each
    overlap of two runs of which the first was not lost."""
    starts = [mark for mark in marks if mark.what == "start"]
    stops = {mark.run: mark for mark in marks if mark.what == "stop"}
    times = Counter((mark.turn, mark.attempt) for mark in starts)
    most = MOST_RUNS.get(record.agent, 1)
    yield from (f"run {run} began twice ({count} times)" for run, count in times.items() if count > 1)
    yield from (f"it ran twice or more: attempt {attempt} of {most}" for _, attempt in times if attempt > most)
    ordered_marks = sorted(starts, key=lambda mark: mark.clock)
    if [(m.turn, m.attempt) for m in ordered_marks] != sorted((m.turn, m.attempt) for m in ordered_marks):
        yield "its runs began out of order"
    for previous, current in pairwise(ordered_marks):
        stop = stops.get(previous.run)
        if stop is not None and stop.clock > current.clock:
            lost_run = LostRun(previous.turn, previous.attempt, current.real, previous)
            if previous.turn != current.turn or cause_of(lost_run, incidents) is None:
                yield f"runs {previous.tag} and {current.tag} overlapped, and the first was not lost"


def loss_problems(
    record: Record, marks: list[Mark], incidents: list[Incident], findings: Findings, times: list[float]
) -> Iterator[str]:
    """Yield a problem for each lost run without a cause, and for each loss that was recorded too late. Add the
    measured seconds to `findings`."""
    starts = {(mark.turn, mark.attempt): mark for mark in marks if mark.what == "start"}
    for lost_run in losses(record.log, starts, times):
        cause = cause_of(lost_run, incidents)
        if cause is None:
            yield f"run {lost_run.turn}.{lost_run.attempt} was lost at {lost_run.at:.3f} without a reason"
            continue
        most = MOST_RUNS.get(record.agent, 1)
        findings.causes[f"{cause.kind} ({'once' if most == 1 else 'again'})"] += 1
        if cause.of == "store" and most == 1:  # with further attempts, the worker abandons the run
            yield f"run {lost_run.turn}.{lost_run.attempt} was lost although its worker only lost the store: {cause}"
        if lost_run.final and lost_run.attempt < most:
            yield f"it failed with the loss of run {lost_run.turn}.{lost_run.attempt}; its agent has {most} attempts"
        if lost_run.at == inf:
            continue
        findings.recovery_seconds.append(lost_run.at - cause.begin)
        wait_seconds = recoverable_seconds(cause.begin, lost_run.at, incidents)
        findings.wait_seconds.append(wait_seconds)
        if wait_seconds > LEASE_AND_SCAN + SLACK:
            yield f"run {lost_run.turn}.{lost_run.attempt}, lost to {cause}, was recovered after {wait_seconds:.1f} s"
        successor = starts.get((lost_run.turn, lost_run.attempt + 1))
        if successor is not None:
            findings.restart_seconds.append(successor.real - lost_run.at)


def real_times(log: list[LogEntry], clock_moves: list[tuple[float, float]]) -> list[float]:
    """Return the wall-clock time of each entry, or infinity if it is unknown.

    The times in a log increase strictly. After the store's clock was set back, consecutive entries are one microsecond
    apart until the clock has caught up.
    """
    spans = [(*move, end) for move, (end, _) in pairwise([*clock_moves, (inf, 0.0)])]
    times: list[float] = []
    last, last_us = 0.0, 0
    for entry in log:
        candidates = [
            at
            for begin, offset, end in spans
            if begin - 0.01 <= (at := entry.recorded_us / 1e6 - offset) <= end + 0.01 and at >= last - 0.01
        ]
        is_stuck = entry.recorded_us - last_us <= 2 and any(begin > last for begin, _ in clock_moves)
        times.append(inf if is_stuck or not candidates else candidates[0])
        last, last_us = last if times[-1] == inf else times[-1], entry.recorded_us
    return times


def losses(log: list[LogEntry], starts: dict[tuple[int, int], Mark], times: list[float]) -> Iterator[LostRun]:
    """Yield the lost runs: runs that the store took from a worker and then retried or failed.

    Args:
        log: Log of the task.
        starts: Mark of the start of each run, by turn and attempt.
        times: Wall-clock time of each log entry.
    """
    turn, attempt = 1, 1
    for entry, at in zip(log, times, strict=True):
        event = entry.event
        if kind_of(event) is EventKind.CLIENT_MESSAGE:
            turn, attempt = turn + 1, 1
        if not isinstance(event, TaskStatusUpdateEvent):
            continue
        has_next_attempt = "attempt" in event.metadata.fields
        text = "".join(part.text for part in event.status.message.parts)
        if has_next_attempt or (event.status.state == FAILED and text == WORKER_LOST):
            yield LostRun(turn, attempt, at, starts.get((turn, attempt)), not has_next_attempt)
        if has_next_attempt:
            attempt = int(event.metadata["attempt"])


def transcript_problems(record: Record, transcript: Transcript) -> Iterator[str]:
    """Yield a problem for each difference between the log and the client's transcript, and for an invalid final
    state."""
    state = record.task.status.state
    reported_state = transcript.state.removeprefix("TASK_STATE_")
    if transcript.is_done and reported_state and reported_state != TaskState.Name(state)[11:]:
        yield f"its client received {reported_state}, but it is {TaskState.Name(state)}"
    if transcript.is_canceled and state != CANCELED:
        yield "its client received the state CANCELED"
    arrived_ids = [m for m in record.message_ids if m in transcript.sent_ids]
    if arrived_ids != transcript.sent_ids[: len(arrived_ids)] or len(set(arrived_ids)) != len(arrived_ids):
        yield f"its messages arrived as {arrived_ids}, and were sent as {transcript.sent_ids}"
    if state == COMPLETED and not set(transcript.accepted_ids) <= set(arrived_ids):
        yield f"messages {set(transcript.accepted_ids) - set(arrived_ids)} were accepted, and are not in it"
    yield from end_problems(record, transcript)
    yield from stream_problems(record, transcript)


def end_problems(record: Record, transcript: Transcript) -> Iterator[str]:
    """Yield a problem if the final state or the output does not match the order."""
    order, state = transcript.scenario.order, record.task.status.state
    text = "".join(part.text for part in record.task.status.message.parts)
    words = [word for artifact in record.task.artifacts for part in artifact.parts for word in part.text.split()]
    match state:
        case _ if state == CANCELED:
            if transcript.scenario.cancel_after is None:
                yield "it was canceled without a request"
        case _ if state == FAILED:
            if text not in (WORKER_LOST, AGENT_FAILED) or (text == AGENT_FAILED and not order.fails):
                yield f"it failed with {text!r}"
        case _ if state == COMPLETED:
            if order.fails:
                yield "it completed instead of failing"
            if transcript.scenario.follow_ups or transcript.scenario.agent.startswith("direct"):
                return
            if len(words) != order.chunks:
                yield f"it completed with {len(words)} of {order.chunks} words"
            answers = ",".join(f"answer-{n + 1}" for n in range(order.asks))
            if any(word.partition("=")[2] != answers for word in words):
                yield f"it received {answers}, but sent {words[:1]}"
        case _:
            yield f"it ended in {TaskState.Name(state)}" if not is_interrupted(state) else "it waits for its client"


def stream_problems(record: Record, transcript: Transcript) -> Iterator[str]:
    """Yield a problem unless the client's stream had each event after the first once and in order."""
    if not transcript.events or "message" in transcript.events[0][1]:
        return
    numbers = [number for number, _ in transcript.events]
    shown_versions = [e.version for e in record.log if kind_of(e.event) is not EventKind.CLIENT_MESSAGE]
    expected = [number for number in shown_versions if numbers[0] < number <= numbers[-1]]
    if numbers[1:] != expected:
        yield f"its client saw events {numbers}, and {expected} followed the first"
    events_by_version = {entry.version: entry.event for entry in record.log}
    for number, data in transcript.events[1:]:
        event = events_by_version.get(number)
        update = data.get("artifactUpdate")
        if update and isinstance(event, TaskArtifactUpdateEvent):
            parts = [part.get("text", "") for part in update["artifact"]["parts"]]
            if parts != [part.text for part in event.artifact.parts]:
                yield f"its client saw {parts} as event {number}"
