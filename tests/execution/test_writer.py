"""A writer is there while there is something to write, once at a time, and not at all for what ends at once."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from a2a_celery.execution.events.queue import TURNS_TO_RETURN, Writer

WHOSE: ContextVar[str] = ContextVar("whose", default="")


class Said:
    """Things to write, and what was written."""

    def __init__(self) -> None:
        self.over = False
        self.pending: list[str] = []
        self.written: list[list[str]] = []
        self.at_once = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.whose: set[str] = set()
        self.writer = Writer(self._write, over=lambda: self.over, ended=self.tasks.append, name="a-writer")

    def say(self, text: str) -> None:
        self.pending.append(text)
        self.writer.call()

    async def _write(self) -> None:
        self.at_once += 1
        assert self.at_once == 1
        self.whose.add(WHOSE.get())
        while self.pending:
            batch, self.pending = self.pending, []
            self.written.append(batch)
            await asyncio.sleep(0)
        self.at_once -= 1


async def turns(count: int = 3 * TURNS_TO_RETURN) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_said_in_one_breath_is_written_together_and_later_things_by_another_task() -> None:
    said = Said()
    said.say("a")
    said.say("b")
    await turns()
    said.say("c")
    await turns()

    assert said.written == [["a", "b"], ["c"]]
    assert len(said.tasks) == 2


async def test_there_is_no_task_for_what_is_over_at_once() -> None:
    said = Said()
    said.say("a")
    await turns(2)
    said.over = True
    await turns()

    assert await said.writer.finish() is None
    assert said.written == []


async def test_it_keeps_no_task_that_has_written_all() -> None:
    said = Said()
    said.say("a")
    await turns()

    assert said.written == [["a"]]
    assert await said.writer.finish() is None
    assert said.tasks[0].done(), "whoever is told of its end heard of it all the same"


async def test_its_context_is_that_of_whoever_made_it() -> None:
    WHOSE.set("the run's")
    said = Said()
    WHOSE.set("the agent's")
    said.say("a")
    await turns()

    assert said.whose == {"the run's"}


async def test_finish_waits_for_the_write_that_is_under_way_and_stop_ends_it() -> None:
    said = Said()
    said.say("a")
    await turns(TURNS_TO_RETURN + 1)
    assert said.at_once == 1

    task = await said.writer.finish()
    assert task is not None
    assert task.done()
    assert not task.cancelled()

    said.say("b")
    await turns(TURNS_TO_RETURN + 1)
    await said.writer.stop()
    assert said.tasks[-1].cancelled()
