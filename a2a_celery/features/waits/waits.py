"""Waits of a function agent for a time or a signal: `Turn.sleep` and `Turn.wait_for`.

A wait ends the run, except for a short sleep and a wait for a signal that has already arrived. When the wait ends, the
store writes its result to the journal. The next run of the turn calls the function again from its beginning, and the
call that began the wait returns immediately.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from ...delays import MAX_DELAY, require_delay
from ...errors import ConfigError
from ...execution.agents.running_agent import RunningAgent
from ...execution.open_run import PendingWait
from ...lifecycle.events import EPOCH, MICROSECOND
from ...lifecycle.journal import JournalEntry
from ...lifecycle.signals import ReceivedSignal, decode_signal, require_signal_name
from ...store.runs.suspension import Wait, take_signal
from ..steps.journal import UNFINISHED, JournalCall, RunJournal

SHORT_SLEEP = 5.0
"""Maximum seconds for which `Turn.sleep` sleeps in the worker and keeps its slot. A longer sleep ends the run."""

SLEEP, SIGNAL = "sleep", "signal"
"""Kinds of the journal entries of waits."""

PAYLOAD, TIMEOUT, UNTIL = "json", "timeout", "until"
"""Forms of the journal entries of waits: a signal, the expiry of a wait, and the end of a short sleep
in µs since 1970."""


@dataclass(frozen=True, slots=True)
class BegunWait:
    """Valid call to `Turn.sleep` or `Turn.wait_for`.

    Attributes:
        signal: Name of the signal, or "" for a sleep.
        seconds: Seconds after which the wait ends, or None for no limit. 0 or less for a time that has passed.
        until: Time at which the wait ends, or None if the agent did not pass a time.
    """

    journal: RunJournal
    call: JournalCall
    signal: str
    seconds: float | None
    until: datetime | None = None

    async def sleep(self) -> None:
        """See `Turn.sleep`."""
        clock, entry, seconds = self.journal.run.clock, self.call.entry, self.seconds or 0
        if entry is not None:
            if entry.form == UNTIL:
                await self._stay((EPOCH + int(entry.content) * MICROSECOND - clock.now()).total_seconds())
        elif seconds > SHORT_SLEEP:
            await self._suspend()
        else:
            ends_at = clock.now() + timedelta(seconds=seconds)
            content = str((ends_at - EPOCH) // MICROSECOND).encode()
            if seconds > 0:
                await self.journal.record(self.call, UNTIL, content)
                await self._stay(seconds)
            else:  # later runs need the entry, because the call has a position among the recorded calls
                self.journal.defer(self.call, UNTIL, content)

    async def wait_for(self) -> ReceivedSignal:
        """See `Turn.wait_for`."""
        entry = self.call.entry or await self._find_entry()
        if entry is None:
            await self._suspend()
        if entry.form == TIMEOUT:
            raise TimeoutError(f"no signal {self.signal!r} arrived in time")
        return decode_signal(entry.content)

    async def _find_entry(self) -> JournalEntry | None:
        """Return the entry of a signal that has arrived, or None. If the timeout is 0, return the entry of the timeout
        instead of None."""
        self.journal.flush()
        run = self.journal.run
        return await self.journal.agent.events.run_fenced(
            lambda confirmed: take_signal(
                run.keys,
                run.claim.ref,
                token=run.claim.token,
                confirmed=confirmed,
                signal=self.signal,
                received=self._entry(PAYLOAD),
                timeout=self._entry(TIMEOUT) if self.seconds == 0 else None,
            )
        )

    async def _suspend(self) -> NoReturn:
        """Suspend the run until the wait ends; see `RunJournal.suspend`."""
        clock, ends_at, deadline, until_us = self.journal.run.clock, self.until, None, None
        if self.until is not None:
            until_us = (self.until - EPOCH) // MICROSECOND
        elif self.seconds is not None:
            ends_at = clock.now() + timedelta(seconds=self.seconds)
            deadline = clock.monotonic() + self.seconds
        wait = Wait(self._entry(PAYLOAD), self._entry(TIMEOUT), self.signal, until_us=until_us)
        try:
            await self.journal.suspend(PendingWait(wait, deadline, ends_at))
        except asyncio.CancelledError:  # the agent stopped waiting for the steps beside the wait
            self.journal.defer(self.call, UNFINISHED, b"")
            raise

    async def _stay(self, seconds: float) -> None:
        """Sleep in this process. The agent is not considered idle during the sleep."""
        run = self.journal.run
        with run.idle_clock:
            await run.clock.sleep(max(0.0, min(seconds, SHORT_SLEEP)))

    def _entry(self, form: str) -> JournalEntry:
        return JournalEntry(self.call.key, self.call.kind, form, b"", self.call.position)


def begin_sleep(agent: RunningAgent, seconds: float | None, until: datetime | None) -> BegunWait:
    """Check the arguments of `Turn.sleep`, and begin its journal call. Thread-safe.

    Raises:
        ConfigError: The run executes a plain Celery task.
        ValueError: Not exactly one of the arguments is set, or its value is invalid.
    """
    _require_function(agent)
    if (seconds is None) == (until is None):
        raise ValueError("turn.sleep(seconds) or turn.sleep(until=…): pass one of them")
    if until is None:
        require_delay("seconds", seconds)
    else:
        if not isinstance(until, datetime):
            raise ValueError(f"until = {until!r}: a datetime")
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        seconds = (until - agent.run.clock.now()).total_seconds()
        if seconds > MAX_DELAY:
            raise ValueError(f"until = {until!r}: at most {MAX_DELAY} seconds from now")
    journal = agent.feature(RunJournal)
    return BegunWait(journal, journal.begin(SLEEP, "turn.sleep"), "", seconds, until)


def begin_wait(agent: RunningAgent, name: str, timeout: float | None) -> BegunWait:
    """Check the arguments of `Turn.wait_for`, and begin its journal call. Thread-safe.

    Raises:
        ConfigError: The run executes a plain Celery task.
        ValueError: An argument is invalid.
    """
    _require_function(agent)
    require_signal_name(name)
    if timeout is not None:
        require_delay("timeout", timeout)
    journal = agent.feature(RunJournal)
    return BegunWait(journal, journal.begin(SIGNAL, f"turn.wait_for.{name}", name), name, timeout)


def _require_function(agent: RunningAgent) -> None:
    if agent.run.agent.kind == "task":
        raise ConfigError(
            "a plain Celery task cannot wait for a time or a signal and be called again: make it a function agent"
        )
