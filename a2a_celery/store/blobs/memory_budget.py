"""Memory budget for the blobs that a process reads. Readers wait until enough memory is released."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ...errors import BlobsUnavailable

MAX_BYTES = 64 * 1024 * 1024
"""Maximum bytes of blobs that a process may have in memory. A reply may exceed the limit if no other reply is in
memory."""

BUDGET_TIMEOUT = 30.0
"""Seconds for which a reader waits for memory."""


class MemoryBudget:
    """Memory budget of `size` bytes, which the readers of blobs on one event loop share."""

    def __init__(self, size: int = MAX_BYTES) -> None:
        self._size = size
        self._acquired = 0
        self._released = asyncio.Condition()
        self._notifications: set[asyncio.Task[None]] = set()

    async def acquire(self, amount: int) -> None:
        """Release the bytes of the current reservation, then acquire `amount` bytes.

        Raises:
            BlobsUnavailable: The bytes were not free within `BUDGET_TIMEOUT` seconds.
        """
        reservation = _RESERVATION.get()
        if reservation is not None:
            reservation.release()
        try:
            async with asyncio.timeout(BUDGET_TIMEOUT), self._released:
                await self._released.wait_for(lambda: not self._acquired or self._acquired + amount <= self._size)
                self._acquired += amount
        except TimeoutError:
            raise BlobsUnavailable("too many large parts are being read at once") from None

    def hold(self, amount: int) -> None:
        """Assign `amount` acquired bytes to the current reservation, or release them if there is no reservation."""
        reservation = _RESERVATION.get()
        if reservation is None:
            self.release(amount)
        else:
            reservation.budget, reservation.amount = self, amount

    def release(self, amount: int) -> None:
        """Release `amount` bytes and wake the waiting readers."""
        self._acquired -= amount
        task = asyncio.get_running_loop().create_task(self._notify())
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    async def _notify(self) -> None:
        async with self._released:
            self._released.notify_all()


class Reservation:
    """Bytes of a `MemoryBudget` that stay acquired until a response is sent."""

    def __init__(self) -> None:
        self.budget: MemoryBudget | None = None
        self.amount = 0

    def release(self) -> None:
        """Release the bytes, if any are acquired."""
        if self.budget is not None:
            self.budget.release(self.amount)
            self.budget = None


_RESERVATION: ContextVar[Reservation | None] = ContextVar("a2a_celery_blob_reservation", default=None)


@contextmanager
def reserve_memory() -> Iterator[Reservation]:
    """Reserve the memory of the blobs that the ``with`` block reads, until the reservation is released or the block
    ends."""
    reservation = Reservation()
    token = _RESERVATION.set(reservation)
    try:
        yield reservation
    finally:
        _RESERVATION.reset(token)
        reservation.release()
