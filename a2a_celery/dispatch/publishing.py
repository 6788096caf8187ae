"""Threads that publish runs to the broker. Waiting runs go in one round trip if the transport can.

A publish is a round trip of a synchronous client, and encoding the message is the smaller part of its cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

from ..concurrency import settle

THREADS = 4
"""Maximum concurrent publishes if each is a separate round trip."""

MAX_BATCH = 64

T = TypeVar("T")

PublishAll = Callable[[Sequence[T]], Sequence[Exception | None]]
"""Function that publishes runs and returns an error or None for each. It raises nothing."""


@dataclass(frozen=True, slots=True)
class _Asked(Generic[T]):
    one: T
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None] = field(compare=False)


class PublishingThreads(Generic[T]):
    """Calls `publish_all` in daemon threads; see `concurrency.DaemonThreads`.

    `batches` is called at the first run. If it returns True, one thread publishes all waiting runs together; otherwise
    each of a few threads publishes one run at a time.
    """

    def __init__(self, publish_all: PublishAll[T], batches: Callable[[], bool]) -> None:
        self._publish_all = publish_all
        self._batches = batches
        self._asked: SimpleQueue[_Asked[T]] = SimpleQueue()
        self._threads: list[Thread] = []
        self._at_once: int | None = None

    def publish(self, one: T) -> asyncio.Future[None]:
        """Return a future that ends when the broker has the run, or with the error. Cancelling it does not stop the
        publish."""
        loop = asyncio.get_running_loop()
        if self._at_once != 1 and len(self._threads) < THREADS:
            if self._at_once is None:
                self._at_once = 1 if self._batches() else THREADS
            thread = Thread(target=self._serve, name=f"a2a-publish-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        done: asyncio.Future[None] = loop.create_future()
        self._asked.put(_Asked(one, loop, done))
        return done

    def _serve(self) -> None:
        size = MAX_BATCH if self._at_once == 1 else 1
        while True:
            asked = [self._asked.get()]
            with suppress(Empty):
                while len(asked) < size:
                    asked.append(self._asked.get_nowait())
            errors = self._publish_all([each.one for each in asked])
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
            for each, error in zip(asked, errors, strict=True):
                by_loop.setdefault(each.loop, []).append((each.done, error))
            for loop, ended in by_loop.items():
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_settle_all, ended)


def _settle_all(ended: Sequence[tuple[asyncio.Future[None], Exception | None]]) -> None:
    for done, error in ended:
        settle(done, None, error)
