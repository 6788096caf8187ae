"""Interface of a run to the journal of its turn, which records the results of named calls.

`RunJournal.begin` receives the kind, the name and the arguments of a call, and returns the call. If an earlier run
recorded the call, the returned call contains its entry. Without an entry, the caller executes the call and passes the
result to `RunJournal.record`. Durable steps (``durable_steps``) are calls of the kind ``step``. Other kinds of calls,
for example a timer, use the journal in the same way::

    call = journal.begin("sleep", name)
    if call.entry is None:
        await journal.record(call, "json", b'{"until": 1700000000}')

If a call is recorded again, the new entry replaces the earlier entry. `record` returns after the store has confirmed
the write, so no later effect of the agent precedes the entry.

The key of a call is its name with an ordinal. The main sequence consists of the calls that the agent's own asyncio
task, or the thread of a synchronous agent, makes outside of other calls. The agent's code determines the order of these
calls. Their ordinals count the calls of a name (``fetch#2``), and their positions reveal changes of the code. All other
calls have no fixed order. The key of such a call contains a digest of its arguments, so that the ordinal counts equal
calls (``fetch(8f2c…)#1``). The key of a call within another call begins with the outer call's key
(``outer#1/fetch(8f2c…)#1``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import Lock, get_ident
from typing import Any, NoReturn
from uuid import NAMESPACE_URL, uuid5

from ...concurrency import LeanEvent
from ...errors import StepError, StepsChanged, SuspendRun
from ...execution.agents.running_agent import CURRENT, RunningAgent
from ...execution.open_run import PendingWait
from ...lifecycle.journal import REMOVED, CallExecution, JournalEntry, encode_entry
from ...lifecycle.references import quote_key_part
from ..feature import RunFeature
from .call_arguments import beginning, digest

MAX_ENTRIES = 10_000
"""Maximum number of entries of a journal. Each run of the turn reads all entries before it calls the agent."""

MAX_RESULT_BYTES = 1024 * 1024
"""Maximum size of a recorded result in bytes if `blob_url` is not set."""

MAX_NAME = 200
"""Maximum length of a name, in characters."""

UNFINISHED = "unfinished"
"""Form of an entry without a result: the agent stopped waiting for the call and continued. The call is executed again,
at the same position."""

TURNS_TO_BEGIN = 10
"""Number of iterations of the event loop in which code beside a wait may begin a call before the run is suspended."""

CURRENT_CALL: ContextVar[JournalCall] = ContextVar("a2a_celery_journal_call")
"""Call that is being executed."""


@dataclass(slots=True, eq=False)
class JournalCall:
    """Named call that an agent's code makes.

    Attributes:
        key: Key of the call's entry.
        idempotency_key: UUID that is the same in every run with this journal, and in a task that takes it over.
        position: Position in the main sequence, or 0 for a call outside the main sequence.
        entry: Entry with the result of an earlier run, or None if the call must be executed.
        outer: Call that makes this call, or None.
        began_us: Time at which the call began, in µs since 1970.
        arguments: Beginning of the arguments as JSON, or "" without arguments or if `entry` has the result.
        attempts: Number of attempts of the call in this run.
        answers: Indexes of the answers to `Turn.ask` that this call, or a call within it, has received.
    """

    key: str
    kind: str
    name: str
    idempotency_key: str
    position: int
    entry: JournalEntry | None
    outer: JournalCall | None
    began_us: int
    arguments: str = ""
    attempts: int = 1
    answers: list[int] = field(default_factory=list)


class RunJournal(RunFeature):
    """Journal of a run's turn. `begin` and `defer` are thread-safe.

    `RunningAgent.feature` opens the journal on first use.

    Args:
        agent: Agent of the run, whose claim contains the journal.

    Attributes:
        agent: The agent.
        run: The run.
        scope: Function that returns the name of the unit of work that makes the current call, or "". A later run of the
            turn may skip whole units, so the calls of each unit are counted separately.
    """

    __slots__ = (  # each waiting run with recorded calls keeps a journal in memory
        "_answered_at",
        "_bytes",
        "_caught",
        "_deferred",
        "_entries",
        "_holds_progress",
        "_in_progress",
        "_last_answer",
        "_last_position",
        "_lock",
        "_ordinals",
        "_origin",
        "_position",
        "_progress",
        "_turn",
        "agent",
        "run",
        "scope",
    )

    def __init__(self, agent: RunningAgent) -> None:
        self.agent, self.run = agent, agent.run
        turn, journal = agent.run.claim.turn, agent.run.claim.journal
        self._entries = dict(journal.entries or {})
        self._last_position = max((entry.position for entry in self._entries.values()), default=0)
        self._bytes = sum(map(_size, self._entries.values()))
        self._turn = turn.first_number
        self._origin = f"{journal.origin}/{self._turn}"
        if turn.refusal_count:
            self._origin += f"/{turn.refusal_count}"
        self._last_answer = turn.answers[-1] if turn.answers else None
        self._answered_at: int | None = None
        self._holds_progress = False
        self.scope: Callable[[], str] = str
        self._ordinals: Counter[str] = Counter()
        self._position = 0
        self._deferred: list[tuple[object, JournalEntry]] = []
        self._caught: list[JournalEntry] = []
        self._in_progress: dict[str, int] = {}  # keys of calls, with the number of waits for a suspension within them
        self._progress = LeanEvent()
        self._lock = Lock()

    @property
    def is_stopping(self) -> bool:
        """True if the run must stop, or is lost."""
        return self.run.is_stopping or self.run.is_lost

    def begin(self, kind: str, name: str, arguments: Any = ()) -> JournalCall:
        """Return the next call with this name.

        Args:
            kind: Kind of the call, such as "step".
            name: Name of the call.
            arguments: Arguments, by which equal calls outside the main sequence are recognized. Their beginning is
                recorded with the result.

        Raises:
            CancelledError: The run must stop.
            StepsChanged: An earlier run recorded a different call at this position.
            StepError: The name is invalid, the task has ended, or the journal has too many entries.
        """
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise StepError(f"name = {name!r}: the name of a {kind} is text of 1 to {MAX_NAME} characters")
        if self.is_stopping:
            raise asyncio.CancelledError
        if self.agent.events.ended:
            raise StepError(f"{kind} {name!r}: the agent has ended its task, so no result can be recorded")
        self.run.idle_clock.touch()
        outer = CURRENT_CALL.get(None)
        is_main = outer is None and self._is_main
        with self._lock:
            self._settle_deferred(is_main)
            stem = (
                quote_key_part(name) if is_main else f"{self._prefix(outer)}{quote_key_part(name)}({digest(arguments)})"
            )
            self._ordinals[stem] += 1
            key = f"{stem}#{self._ordinals[stem]}"
            entry = self._entries.get(key)
            self._position += is_main
            position = self._position if is_main else 0
            self._require_unchanged(key, kind, position, entry)
            if entry is None and len(self._entries) >= MAX_ENTRIES:
                raise StepError(f"{kind} {name!r}: a turn may have {MAX_ENTRIES} recorded results: record larger units")
        call_entry = None if entry is None or entry.form == UNFINISHED else entry
        idempotency_key = str(uuid5(NAMESPACE_URL, f"{self._origin}/{key}"))
        if call_entry is not None:
            self.receive_answers(*call_entry.answers)
        shown_arguments = "" if call_entry is not None else beginning(arguments)
        return JournalCall(
            key, kind, name, idempotency_key, position, call_entry, outer, self._now_us(), shown_arguments
        )

    async def record(self, call: JournalCall, form: str, content: bytes) -> JournalEntry:
        """Record the result of a call, and return the entry after the store has confirmed it.

        Raises:
            CancelledError: The run is lost. The caller must not use the result.
            StepError: The content or the journal is too large.
        """
        entry = self._entry(call, form, content)
        with self._lock:
            self._replace([entry])
            entries, self._caught = [*self._caught, entry], []
        await self.agent.events.write_entries(entries)
        return entry

    def has_entry(self, call: JournalCall) -> bool:
        """Return True if an entry of `call`, other than an unfinished one, is recorded or queued."""
        entry = self._entries.get(call.key)
        return entry is not None and entry.form != UNFINISHED

    def receive_answers(self, *indexes: int) -> None:
        """Note that the current code, or a call that it replays, receives the answers at `indexes` in the history."""
        call = CURRENT_CALL.get(None)
        while call is not None:
            call.answers.extend(indexes)
            call = call.outer
        if self._answered_at is None and self._last_answer in indexes:
            self._answered_at = self._position

    def forget_answer(self) -> bool:
        """Remove the entries of calls that have received the last answer, and of calls that the agent has made in its
        main sequence since then. The store removes the entries with the next events.

        Returns:
            False if nothing was removed, because entries of `replace` may depend on the answer.
        """
        if self._holds_progress:
            return False
        with self._lock:
            last_position = self._position if self._answered_at is None else self._answered_at
            removed_entries = [
                replace(entry, form=REMOVED, content=b"", turn=self._turn)
                for entry in self._entries.values()
                if entry.position > last_position or self._last_answer in entry.answers
            ]
            self.agent.events.add_entries(removed_entries)
        return True

    def restart(self, scope: str) -> None:
        """Count the calls of the unit of work `scope` from 1 again, because the unit is executed again."""
        with self._lock:
            for stem in [stem for stem in self._ordinals if stem.startswith(f"{scope}/")]:
                del self._ordinals[stem]

    def entries(self, kind: str) -> dict[str, JournalEntry]:
        """Return the entries of `kind` by their keys, for a recorder that writes them with `replace`."""
        self._holds_progress = True
        return {key: entry for key, entry in self._entries.items() if entry.kind == kind}

    async def replace(self, kind: str, form: str, contents: Mapping[str, bytes | None]) -> None:
        """Replace entries of `kind` that do not belong to calls, in one write. Return after the store has confirmed the
        write.

        Args:
            kind: Kind of the entries.
            form: Encoding of the contents.
            contents: New contents by key. None removes an entry.

        Raises:
            CancelledError: The run is lost.
            StepError: A content or the journal is too large. No entry is written.
        """
        entries = [
            JournalEntry(key, kind, REMOVED if content is None else form, content or b"", turn=self._turn)
            for key, content in contents.items()
        ]
        if entries:
            with self._lock:
                self._replace(entries)
            await self.agent.events.write_entries(entries)

    def defer(self, call: JournalCall, form: str, content: bytes) -> None:
        """Record a call without a result when the agent continues after the call, with its next call or question.

        An agent that does not continue, because the run ends or is retried, has not handled the call's failure. The
        next run then executes the call again.
        """
        if not self.is_stopping:
            with self._lock:
                self._deferred.append((self.agent.current_owner(), self._entry(call, form, content)))

    def flush(self) -> None:
        """Queue the deferred entries of calls after which the agent has continued, so that they are written with the
        next events."""
        with self._lock:
            self._settle_deferred(self._is_main)
            entries, self._caught = self._caught, []
        if entries:
            self.agent.events.add_entries(entries)

    def agent_returned(self) -> None:
        """Check that the returning agent has made all calls of the main sequence that earlier runs recorded.

        Raises:
            StepsChanged: Calls are missing.
        """
        if self._position < self._last_position:
            missing = [entry.key for entry in self._entries.values() if entry.position > self._position]
            raise self.changed(f"the agent returned without the recorded {', '.join(sorted(missing))}")

    @contextmanager
    def executing(self, call: JournalCall) -> Iterator[None]:
        """Make `call` the parent of all calls inside the ``with`` block."""
        token = CURRENT_CALL.set(call)
        try:
            yield
        finally:
            CURRENT_CALL.reset(token)

    @contextmanager
    def in_progress(self, call: JournalCall) -> Iterator[None]:
        """Delay a suspension of the run until the ``with`` block has ended, because the next run would execute the call
        again. Thread-safe."""
        with self._lock:
            self._in_progress[call.key] = 0
        try:
            yield
        finally:
            with self._lock:
                self._in_progress.pop(call.key, None)
            if get_ident() == self.agent.loop_thread:
                self._report_progress()
            else:
                self.agent.loop.call_soon_threadsafe(self._report_progress)

    async def suspend(self, wait: PendingWait) -> NoReturn:
        """Suspend the run until `wait` ends. Calls in progress beside the wait end first, because the next run would
        execute them again.

        Raises:
            SuspendRun: The run is suspended until `wait`, or an earlier wait of the run, ends.
        """
        await self.wait_until_suspendable()
        self.flush()
        self.run.suspend(wait)
        raise SuspendRun

    async def wait_until_suspendable(self) -> None:
        """Wait until no call is in progress, except calls that wait for the suspension themselves.

        The calls of an ``asyncio.gather`` begin in successive iterations of the event loop, so the method also waits
        for `TURNS_TO_BEGIN` iterations without a call in progress.
        """
        if CURRENT.get(None) is not self.agent:
            return  # code without the run's context variables may belong to any call in progress
        self._count_wait(1)
        self._report_progress()
        try:
            turns = 0
            while turns < TURNS_TO_BEGIN:
                if self._has_calls_in_progress():
                    turns = 0
                    await self._progress.wait()
                else:
                    turns += 1
                    await asyncio.sleep(0)
        finally:
            self._count_wait(-1)

    def _count_wait(self, change: int) -> None:
        """Add `change` to the number of waits within the current call and its outer calls."""
        current = CURRENT_CALL.get(None)
        if current is None:
            return
        with self._lock:
            for key in self._in_progress:
                if f"{current.key}/".startswith(f"{key}/"):
                    self._in_progress[key] += change

    def _has_calls_in_progress(self) -> bool:
        with self._lock:
            return 0 in self._in_progress.values()

    def _report_progress(self) -> None:
        """Wake the waits for a suspension, so that they check the calls in progress."""
        self._progress.set()
        self._progress.clear()

    def changed(self, problem: str) -> StepsChanged:
        """Return the error that ends the run because the agent's code does not fit its journal."""
        cause = "The agent's code has changed since an earlier run of the turn, or calls its steps in another order"
        remedy = "Restore the code, or call the steps in the order of the earlier run,"
        if code_version := self.run.claim.journal.other_code_version:
            cause = f"The turn began with version {code_version} of the agent, and no worker has version {code_version}"
            remedy = f"Start a worker with version {code_version}"
        error = StepsChanged(
            f"{problem}. {cause}. {remedy} and requeue the task (a2a requeue TASK), or requeue the task without its "
            "recorded results (a2a requeue TASK --from-start)"
        )
        self.run.fail(error)
        return error

    def _require_unchanged(self, key: str, kind: str, position: int, entry: JournalEntry | None) -> None:
        if entry is not None and entry.kind != kind:
            raise self.changed(f"{kind} {key} was recorded as a {entry.kind}")
        if entry is not None and entry.position != position:
            raise self.changed(f"{kind} {key} was call {entry.position} of the agent, and is call {position} now")
        if entry is None and 0 < position <= self._last_position:
            recorded_key = next((e.key for e in self._entries.values() if e.position == position), "another call")
            raise self.changed(f"{key} is called where an earlier run recorded {recorded_key}")

    def _entry(self, call: JournalCall, form: str, content: bytes) -> JournalEntry:
        answers = () if form == UNFINISHED else tuple(call.answers)  # an unfinished call asks again
        duration_us = max(0, self._now_us() - call.began_us)
        execution = CallExecution(self.run.claim.ref.run, call.attempts, call.began_us, duration_us)
        return JournalEntry(
            call.key, call.kind, form, content, call.position, self._turn, answers, execution, call.arguments
        )

    def _now_us(self) -> int:
        return round(self.run.clock.time() * 1_000_000)

    def _replace(self, entries: list[JournalEntry]) -> None:
        """Replace entries in memory before they are written.

        Raises:
            StepError: An entry or the journal is too large. No entry is replaced.
        """
        total = self._bytes
        for entry in entries:
            self._require_size(entry)
            previous_entry = self._entries.get(entry.key)
            total += _size(entry) - (0 if previous_entry is None else _size(previous_entry))
        largest = self.run.settings.task_max_bytes
        if largest is not None and total > max(largest, self._bytes):
            raise StepError(
                f"{entries[-1].kind} {entries[-1].key!r}: the recorded results of the turn would have {total} bytes, "
                f"and a task may have {largest} (a2a_task_max_bytes): store large values elsewhere"
            )
        self._bytes = total
        for entry in entries:
            if entry.form == REMOVED:
                self._entries.pop(entry.key, None)
            else:
                self._entries[entry.key] = entry

    def _require_size(self, entry: JournalEntry) -> None:
        size = len(entry.content)
        if self.run.settings.blob_url is None and size > MAX_RESULT_BYTES:
            raise StepError(
                f"{entry.kind} {entry.key!r}: its result has {size} bytes, and may have "
                f"{MAX_RESULT_BYTES}: set a2a_blob_url, so that large results are "
                "stored in an object store, or store large values elsewhere, and return their names"
            )

    def _prefix(self, outer: JournalCall | None) -> str:
        """Return the key prefix of calls outside the main sequence: the outer call or the unit of work."""
        name = self.scope() if outer is None else outer.key
        return name and f"{name}/"

    @property
    def _is_main(self) -> bool:
        """True if the agent's own asyncio task or thread makes the current call."""
        return self.agent.current_owner() == self.agent.owner

    def _settle_deferred(self, is_main: bool) -> None:
        """Move the deferred entries of failures that the agent has handled.

        A call of the main sequence shows that the agent has handled all earlier entries. A call of another asyncio task
        shows the same for the entries of that task and of the main sequence.
        """
        if self._deferred:
            makers = (self.agent.current_owner(), self.agent.owner)
            self._caught += [entry for maker, entry in self._deferred if is_main or maker in makers]
            self._deferred = [
                deferred_call for deferred_call in self._deferred if not (is_main or deferred_call[0] in makers)
            ]


def current_journal() -> RunJournal | None:
    """Return the journal of the current run, or None outside a run. Thread-safe."""
    agent = CURRENT.get(None)
    return None if agent is None else agent.feature(RunJournal)


def current_step_key() -> str:
    """Return the idempotency key of the durable step that is being executed.

    The key is a UUID that is the same in every execution of the step. If a worker is lost after the first request of a
    step, a service that accepts idempotency keys ignores the second request.

    Raises:
        RuntimeError: No step is being executed.
    """
    call = CURRENT_CALL.get(None)
    if call is None:
        raise RuntimeError("no durable step is being executed: read the key in the function of the step")
    return call.idempotency_key


def _size(entry: JournalEntry) -> int:
    """Return the size of a stored entry with its key, in bytes."""
    return 0 if entry.form == REMOVED else len(entry.key) + len(encode_entry(entry))
