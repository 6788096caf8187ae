"""Clock from which the package reads the time.

Objects that measure leases, limits, backoff, retention or freshness take a `Clock`, so that tests control their time.
Timeouts of libraries and threads (sockets, Redis, the broker) do not use a `Clock`.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import partial


class Clock:
    """Time of this machine and of the running event loop."""

    # static, so that a call needs one attribute lookup and no further Python frame
    monotonic = staticmethod(time.monotonic)
    """Return the seconds since an unspecified time. This clock is never set back."""

    boottime = staticmethod(partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)))
    """Return the seconds since an unspecified time, including the time for which the host was suspended.

    On Linux, `monotonic` does not advance while the host is suspended. On other systems, this clock is CLOCK_MONOTONIC.
    """

    time = staticmethod(time.time)
    """Return the seconds since 1970."""

    sleep = staticmethod(asyncio.sleep)
    """Suspend the calling coroutine for a number of seconds."""

    timeout = staticmethod(asyncio.timeout)
    """Return a context manager that raises TimeoutError after a number of seconds."""

    def now(self) -> datetime:
        """Return the date and time in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)


SYSTEM_CLOCK = Clock()
"""Default of every `clock` parameter."""
