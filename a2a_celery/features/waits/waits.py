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

from ...errors import ConfigError
from ...execution.agents.running_agent import RunningAgent
from ...execution.open_run import PendingWait
from ...lifecycle.events import EPOCH, MICROSECOND
from ...lifecycle.journal import JournalEntry
from ...lifecycle.signals import ReceivedSignal, decode_signal, require_signal_name
from ...retry_policy import MAX_DELAY, require_delay
from ...store.runs.suspension import Wait, take_signal
from ..steps.journal import UNFINISHED, JournalCall, journal_of

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

    call: JournalCall
    signal: str
    seconds: float | None
    until: datetime | None = None

    def entry(self, form: str, content: bytes = b"") -> JournalEntry:
        """Return the journal entry for a result of the wait."""
        return JournalEntry(self.call.key, self.call.kind, form, content, self.call.position)


class Waits:
    """Sleeps and waits for signals of one run, recorded in its journal. `begin_sleep` and `begin_wait` are thread-safe.

    Raises:
        ConfigError: The run executes a plain Celery task.
    """

    def __init__(self, agent: RunningAgent) -> None:
        if agent.run.retries is None:
            raise ConfigError(
                "a plain Celery task cannot wait for a time or a signal and be called again: make it a function agent"
            )
        self._run = agent.run
        self._events = agent.events
        self._journal = journal_of(agent)
        self._clock = agent.run.clock

    def begin_sleep(self, seconds: float | None, until: datetime | None) -> BegunWait:
        """Check the arguments of `Turn.sleep`, and begin its journal call.

        Raises:
            ValueError: Not exactly one of the arguments is set, or its value is invalid.
        """
        if (seconds is None) == (until is None):
            raise ValueError("turn.sleep(seconds) or turn.sleep(until=…): pass one of them")
        if until is None:
            require_delay("seconds", seconds)
            return BegunWait(self._journal.begin(SLEEP, "turn.sleep"), "", seconds)
        if not isinstance(until, datetime):
            raise ValueError(f"until = {until!r}: a datetime")
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        remaining = (until - self._clock.now()).total_seconds()
        if remaining > MAX_DELAY:
            raise ValueError(f"until = {until!r}: at most {MAX_DELAY} seconds from now")
        return BegunWait(self._journal.begin(SLEEP, "turn.sleep"), "", remaining, until)

    def begin_wait(self, name: str, timeout: float | None) -> BegunWait:
        """Check the arguments of `Turn.wait_for`, and begin its journal call.

        Raises:
            ValueError: An argument is invalid.
        """
        require_signal_name(name)
        if timeout is not None:
            require_delay("timeout", timeout)
        return BegunWait(self._journal.begin(SIGNAL, f"turn.wait_for.{name}", name), name, timeout)

    async def sleep(self, wait: BegunWait) -> None:
        """See `Turn.sleep`."""
        entry, seconds = wait.call.entry, wait.seconds or 0
        if entry is not None:
            if entry.form == UNTIL:
                await self._stay((EPOCH + int(entry.content) * MICROSECOND - self._clock.now()).total_seconds())
        elif seconds > SHORT_SLEEP:
            await self._suspend(wait)
        else:
            ends_at = self._clock.now() + timedelta(seconds=seconds)
            content = str((ends_at - EPOCH) // MICROSECOND).encode()
            if seconds > 0:
                await self._journal.record(wait.call, UNTIL, content)
                await self._stay(seconds)
            else:  # later runs need the entry, because the call has a position among the recorded calls
                self._journal.defer(wait.call, UNTIL, content)

    async def wait_for(self, wait: BegunWait) -> ReceivedSignal:
        """See `Turn.wait_for`."""
        entry = wait.call.entry or await self._find_entry(wait)
        if entry is None:
            await self._suspend(wait)
        if entry.form == TIMEOUT:
            raise TimeoutError(f"no signal {wait.signal!r} arrived in time")
        return decode_signal(entry.content)

    async def _find_entry(self, wait: BegunWait) -> JournalEntry | None:
        """Return the entry of a signal that has arrived, or None. If the timeout is 0, return the entry of the timeout
        instead of None."""
        self._journal.flush()
        run = self._run
        return await self._events.run_fenced(
            lambda confirmed: take_signal(
                run.keys,
                run.claim.ref,
                token=run.claim.token,
                confirmed=confirmed,
                signal=wait.signal,
                received=wait.entry(PAYLOAD),
                timeout=wait.entry(TIMEOUT) if wait.seconds == 0 else None,
            )
        )

    async def _suspend(self, wait: BegunWait) -> NoReturn:
        """Suspend the run until `wait` ends; see `RunJournal.suspend`."""
        ends_at, deadline, until_us = wait.until, None, None
        if wait.until is not None:
            until_us = (wait.until - EPOCH) // MICROSECOND
        elif wait.seconds is not None:
            ends_at = self._clock.now() + timedelta(seconds=wait.seconds)
            deadline = self._clock.monotonic() + wait.seconds
        stored_wait = Wait(wait.entry(PAYLOAD), wait.entry(TIMEOUT), wait.signal, until_us=until_us)
        try:
            await self._journal.suspend(PendingWait(stored_wait, deadline, ends_at))
        except asyncio.CancelledError:  # the agent stopped waiting for the steps beside the wait
            self._journal.defer(wait.call, UNFINISHED, b"")
            raise

    async def _stay(self, seconds: float) -> None:
        """Sleep in this process. The agent is not considered idle during the sleep."""
        with self._run.idle_clock:
            await self._clock.sleep(max(0.0, min(seconds, SHORT_SLEEP)))
