"""Clocks for tests: clocks that the test moves, and clocks with short sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from a2a_celery.clock import SYSTEM_CLOCK, Clock
from tests.support.processes.moved_clock import MovedClock
from tests.support.waiting import eventually_async

START = 1_000_000.0

LONGEST_SLEEP = 0.01
"""Maximum duration of a sleep of `ShortSleepClock` in seconds."""

LONGEST_TIMEOUT = 0.05
"""Maximum duration of a timeout of `ShortTimeoutClock` in seconds."""


class ShortSleepClock(Clock):
    """Clock of the machine whose sleeps last at most `LONGEST_SLEEP`, for code whose delays do not matter to the test.
    Times and timeouts are real."""

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling coroutine for `seconds`, or for `LONGEST_SLEEP` if that is shorter."""
        await asyncio.sleep(min(seconds, LONGEST_SLEEP))


class ShortTimeoutClock(Clock):
    """Clock of the machine whose timeouts expire after at most `LONGEST_TIMEOUT`."""

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """See `Clock.timeout`."""
        return asyncio.timeout(LONGEST_TIMEOUT if seconds is None else min(seconds, LONGEST_TIMEOUT))


class EndlessSleepClock(Clock):
    """Clock of the machine whose sleeps end only when they are cancelled.

    Attributes:
        sleeps: Seconds of each sleep that has begun.
    """

    def __init__(self) -> None:
        self.sleeps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Wait until the calling asyncio task is cancelled."""
        self.sleeps.append(seconds)
        await asyncio.Event().wait()


class SkippingClock(Clock):
    """Clock whose sleeps end at once and move the clock by their duration, for code that gives up after a time."""

    def __init__(self) -> None:
        self._slept_seconds = 0.0

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return SYSTEM_CLOCK.monotonic() + self._slept_seconds

    async def sleep(self, seconds: float) -> None:
        """Move the clock by `seconds`."""
        self._slept_seconds += seconds
        await asyncio.sleep(0)


class StoreTime(Clock):
    """Clock of a watcher, which runs like the clock of the machine. `advance` and `suspend` also move the store's
    clock."""

    def __init__(self, store_clock: MovedClock) -> None:
        self._store_clock = store_clock
        self._seconds = self._suspended = self._jumped = 0.0

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return SYSTEM_CLOCK.monotonic() + self._seconds

    def boottime(self) -> float:
        """See `Clock.boottime`."""
        return SYSTEM_CLOCK.boottime() + self._seconds + self._suspended

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._seconds += seconds
        self.jump(0)

    def suspend(self, seconds: float) -> None:
        """Simulate a suspension of the watcher's host: its `monotonic` does not advance."""
        self._suspended += seconds
        self.jump(0)

    def jump(self, seconds: float) -> None:
        """Set only the store's clock, by `seconds`."""
        self._jumped += seconds
        self._store_clock.set_offset(self._seconds + self._suspended + self._jumped)


class ManualClock(Clock):
    """Clock that only moves with `advance`. Any thread may read the time, but sleeps and timeouts belong to one event
    loop."""

    def __init__(self, start: float = START) -> None:
        self._seconds = start
        self._suspended = self._wall_offset = 0.0
        self._waits: dict[object, tuple[float, Callable[[], object]]] = {}

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._seconds

    def boottime(self) -> float:
        """See `Clock.boottime`."""
        return self._seconds + self._suspended

    def time(self) -> float:
        """See `Clock.time`."""
        return self._seconds + self._suspended + self._wall_offset

    def suspend(self, seconds: float) -> None:
        """Simulate a suspension of the host: `boottime` and `time` advance, but `monotonic`, sleeps and timeouts do
        not."""
        self._suspended += seconds

    def advance_wall_clock(self, seconds: float) -> None:
        """Set the wall clock ahead by `seconds`."""
        self._wall_offset += seconds

    async def sleep(self, seconds: float) -> None:
        """Return when `advance` has moved the clock by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake_event = asyncio.Event()
        with self._wait(seconds, wake_event.set):
            await wake_event.wait()

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """See `Clock.timeout`. The timeout expires when `advance` has moved the clock by `seconds`."""
        if seconds is None or seconds <= 0:
            async with asyncio.timeout(seconds) as limit:
                yield limit
            return
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            with self._wait(seconds, lambda: limit.reschedule(loop.time())):
                yield limit

    @property
    def waits(self) -> list[float]:
        """Remaining times of the active sleeps and timeouts in seconds, sorted."""
        return sorted(round(until - self._seconds, 6) for until, _ in self._waits.values())

    async def until_waiting(self, *seconds: float) -> None:
        """Wait until the active sleeps and timeouts have exactly the remaining times `seconds`."""

        async def is_expected() -> bool:
            return self.waits == sorted(seconds)

        await eventually_async(is_expected, what=f"waits of {seconds} s, not {self.waits}")

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and complete the sleeps and timeouts that are due. The waiting coroutines continue
        at the next await."""
        self._seconds = round(self._seconds + seconds, 6)  # rounded like deadlines, so that sums are equal
        for wait, (until, end) in list(self._waits.items()):
            if until <= self._seconds:
                del self._waits[wait]
                end()

    async def next_wait(self, longest: float) -> float:
        """Wait until a sleep or timeout has at most `longest` seconds left, and return its remaining time."""

        async def shortest() -> float:
            return next((seconds for seconds in self.waits if seconds <= longest), 0.0)

        return await eventually_async(shortest, what=f"a wait of at most {longest} s, not {self.waits}")

    @contextmanager
    def _wait(self, seconds: float, end: Callable[[], object]) -> Iterator[None]:
        wait = object()
        self._waits[wait] = round(self._seconds + seconds, 6), end
        try:
            yield
        finally:
            self._waits.pop(wait, None)
