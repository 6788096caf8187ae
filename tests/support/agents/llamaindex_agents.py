"""LlamaIndex workflows that ask questions, or that hang so that a test can kill the worker."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from celery import Celery
from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

from a2a_celery import A2A
from a2a_celery.frameworks.llamaindex import llamaindex_agent
from tests.support.agents.basic import card
from tests.support.agents.durable_agents import is_passed, write_line

STEPS = ("a", "b", "c")

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


class AfterA(Event):
    """Event after step a."""


class AfterB(Event):
    """Event after step b."""


class AfterC(Event):
    """Event after step c."""


class Works(Workflow):
    """Workflow that returns all texts of the client. If the message is "stop", the first execution of each step
    hangs."""

    async def work(self, ctx: Context, name: str) -> None:
        text = (await ctx.store.get("texts"))[-1]
        write_line(text, "nodes", name)
        if text == "stop" and not is_passed(f"in-{name}"):
            await asyncio.Event().wait()

    @step
    async def a(self, ctx: Context, ev: StartEvent) -> AfterA:
        texts = await ctx.store.get("texts", default=[])
        if not texts or texts[-1] != ev.user_msg:
            texts = [*texts, ev.user_msg]
        await ctx.store.set("texts", texts)
        await self.work(ctx, "a")
        return AfterA()

    @step
    async def b(self, ctx: Context, ev: AfterA) -> AfterB:
        await self.work(ctx, "b")
        return AfterB()

    @step
    async def c(self, ctx: Context, ev: AfterB) -> AfterC:
        await self.work(ctx, "c")
        return AfterC()

    @step
    async def answer(self, ctx: Context, ev: AfterC) -> StopEvent:
        return StopEvent(result="; ".join(await ctx.store.get("texts")))


class Day(HumanResponseEvent):
    """Answer with a field `day`."""

    day: str


class Asks(Workflow):
    """Workflow that asks two questions, the second with a schema."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        city: Any = await ctx.wait_for_event(HumanResponseEvent, InputRequiredEvent(prefix="Which city?"), "city")
        day = await ctx.wait_for_event(Day, InputRequiredEvent(prefix="Which day?"), "day")
        return StopEvent(result=f"{city.response} on {day.day}")


a2a.add_agent(card("works"), llamaindex_agent(Works()), max_attempts=5)
a2a.add_agent(card("asks"), llamaindex_agent(Asks()))
