"""Background writer of pending items. At most one task writes at a time, and no task starts if the run finishes
immediately."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from a2a_celery.execution.events.queue import ITERATIONS_TO_RETURN, Writer

CONTEXT: ContextVar[str] = ContextVar("context", default="")


class Items:
    """Items to write, and the written batches."""

    def __init__(self) -> None:
        self.over = False
        self.pending: list[str] = []
        self.written: list[list[str]] = []
        self.concurrent_writes = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.contexts: set[str] = set()
        self.writer = Writer(self._write, over=lambda: self.over, ended=self.tasks.append, name="a-writer")

    def add(self, text: str) -> None:
        self.pending.append(text)
        self.writer.call()

    async def _write(self) -> None:
        self.concurrent_writes += 1
        assert self.concurrent_writes == 1
        self.contexts.add(CONTEXT.get())
        while self.pending:
            batch, self.pending = self.pending, []
            self.written.append(batch)
            await asyncio.sleep(0)
        self.concurrent_writes -= 1


async def iterations(count: int = 3 * ITERATIONS_TO_RETURN) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_items_added_together_are_written_together_and_later_ones_by_another_task() -> None:
    items = Items()
    items.add("a")
    items.add("b")
    await iterations()
    items.add("c")
    await iterations()

    assert items.written == [["a", "b"], ["c"]]
    assert len(items.tasks) == 2


async def test_an_immediate_end_starts_no_task() -> None:
    items = Items()
    items.add("a")
    await iterations(2)
    items.over = True
    await iterations()

    assert await items.writer.finish() is None
    assert items.written == []


async def test_the_writer_drops_a_finished_task() -> None:
    items = Items()
    items.add("a")
    await iterations()

    assert items.written == [["a"]]
    assert await items.writer.finish() is None
    assert items.tasks[0].done(), "its callback was called"


async def test_the_writer_runs_in_the_context_of_its_creator() -> None:
    CONTEXT.set("the run's")
    items = Items()
    CONTEXT.set("the agent's")
    items.add("a")
    await iterations()

    assert items.contexts == {"the run's"}


async def test_finish_waits_for_the_current_write_and_stop_cancels_it() -> None:
    items = Items()
    items.add("a")
    await iterations(ITERATIONS_TO_RETURN + 1)
    assert items.concurrent_writes == 1

    task = await items.writer.finish()
    assert task is not None
    assert task.done()
    assert not task.cancelled()

    items.add("b")
    await iterations(ITERATIONS_TO_RETURN + 1)
    await items.writer.stop()
    assert items.tasks[-1].cancelled()
