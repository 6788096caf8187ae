"""A memory-lean `asyncio.Event` for objects that exist in thousands: 600 bytes less for each."""

from __future__ import annotations

import asyncio


class LeanEvent:
    """`asyncio.Event` of one loop, without the deque of waiters, which takes 600 bytes when it is empty."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def is_set(self) -> bool:
        """Return True if the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiters."""
        self._is_set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False

    def future(self) -> asyncio.Future[None]:
        """Return a future that resolves when the event is set. The event holds the future as long as it lives."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_set:
            waiter.set_result(None)
        else:
            self._waiters += (waiter,)
        return waiter

    async def wait(self) -> None:
        """Wait until the event is set, also if it is reset before the waiter runs."""
        if self._is_set:
            return
        waiter = self.future()
        try:
            await waiter
        finally:
            self._waiters = tuple(other for other in self._waiters if other is not waiter)
