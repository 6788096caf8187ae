"""How much of the object store one process has in hand: readers wait for room, so many large tasks take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import BlobsUnavailable

ROOM = 64 * 1024 * 1024
"""Bytes of blobs that a process has in hand at once; a single answer may have more, while it is the only one."""

ROOM_TIMEOUT = 30.0
"""Seconds that a reader waits for room."""


class Room:
    """Room for `size` bytes, on one event loop."""

    def __init__(self, size: int = ROOM) -> None:
        self._size = size
        self._taken = 0
        self._left = asyncio.Condition()
        self._leaving: set[asyncio.Task[None]] = set()

    async def enter(self, amount: int) -> None:
        """Returns when there is room for so many bytes more; those of the guest at hand are given back before.

        Raises:
            BlobsUnavailable: there was none for `ROOM_TIMEOUT` seconds.
        """
        guest = GUEST.get()
        if guest is not None:
            guest.leave()
        try:
            async with asyncio.timeout(ROOM_TIMEOUT), self._left:
                await self._left.wait_for(lambda: not self._taken or self._taken + amount <= self._size)
                self._taken += amount
        except TimeoutError:
            raise BlobsUnavailable("too many large parts are being read at once") from None

    def stay(self, amount: int) -> None:
        """What was entered stays with the guest at hand; without one it is given back."""
        guest = GUEST.get()
        if guest is None:
            self.leave(amount)
        else:
            guest.room, guest.amount = self, amount

    def leave(self, amount: int) -> None:
        """So many bytes are given back."""
        self._taken -= amount
        task = asyncio.get_running_loop().create_task(self._tell())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _tell(self) -> None:
        async with self._left:
            self._left.notify_all()


class Guest:
    """Whoever has what was read in hand until it is sent."""

    def __init__(self) -> None:
        self.room: Room | None = None
        self.amount = 0

    def leave(self) -> None:
        """Gives back what it has, if anything."""
        if self.room is not None:
            self.room.leave(self.amount)
            self.room = None


GUEST: ContextVar[Guest | None] = ContextVar("a2a_celery_guest", default=None)
"""For whom blobs are read; None: whoever reads them has no use for them afterwards that is known here."""


@contextmanager
def guest() -> Iterator[Guest]:
    """A block in which what is read counts as in hand until the guest leaves, or its end."""
    made = Guest()
    before = GUEST.set(made)
    try:
        yield made
    finally:
        GUEST.reset(before)
        made.leave()
