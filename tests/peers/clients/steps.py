"""Steps that every client of a Python library executes. The result of each step is printed as a line of JSON.

A client has a method `error` and some of the methods in `STEPS`. Steps are skipped if the client lacks their method, or
if its attribute `lacks` names them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any


@dataclass
class TaskView:
    """Task, or event of a task, as a client shows it. `state` is "" for an event without a state."""

    state: str
    text: str = ""
    task_id: str = ""
    context_id: str = ""


class Table:
    """Steps over two gateways. Tasks begin at the first gateway and continue at the second."""

    def __init__(self, first: Any, second: Any, hook: str) -> None:
        self.first, self.second, self.hook = first, second, hook
        self.tasks: dict[str, TaskView] = {}

    async def card(self) -> Any:
        return await self.first.card()

    async def send(self) -> Any:
        self.tasks["send"] = view = await self.first.send("hello")
        return [view.state, view.text]

    async def stream(self) -> Any:
        return await self._follow(self.first.stream("count 3"))

    async def ask(self) -> Any:
        self.tasks["ask"] = view = await self.first.send("ask")
        return [view.state, view.text]

    async def answer(self) -> Any:
        question = self.tasks["ask"]
        view = await self.second.send("blue", answers=question)
        return [view.state, view.text, view.task_id == question.task_id]

    async def fail(self) -> Any:
        view = await self.first.send("fail")
        return [view.state, view.text]

    async def get(self) -> Any:
        view = await self.second.get(self.tasks["send"].task_id)
        return [view.state, view.text]

    async def cancel(self) -> Any:
        task = await self.first.begin("wait")
        return (await self.second.cancel(task.task_id)).state

    async def subscribe(self) -> Any:
        task = await self.first.begin("wait")
        states = [""]
        async for view in self.second.subscribe(task.task_id):
            if view.state == "WORKING" and states[-1] != "WORKING":
                await self.first.cancel(task.task_id)
            states.append(view.state or states[-1])
        return states[-1]

    async def list(self) -> Any:
        question = self.tasks["ask"]
        return [task_id == question.task_id for task_id in await self.second.tasks(question.context_id)]

    async def webhook(self) -> Any:
        return (await self.first.send("hello", webhook=f"{self.hook}/message")).task_id

    async def webhooks(self) -> Any:
        task = await self.first.begin("wait")
        await self.first.set_webhook(task.task_id, f"{self.hook}/task")
        urls = await self.second.webhooks(task.task_id)
        await self.first.cancel(task.task_id)
        return [url.removeprefix(self.hook) for url in urls] + [task.task_id]

    async def delete_webhook(self) -> Any:
        task = await self.first.begin("wait")
        await self.first.set_webhook(task.task_id, f"{self.hook}/deleted")
        await self.second.delete_webhook(task.task_id)
        urls = await self.first.webhooks(task.task_id)
        await self.first.cancel(task.task_id)
        return urls

    async def unknown(self) -> Any:
        return await self._refusal(self.first.get("no-such-task"))

    async def too_late(self) -> Any:
        return await self._refusal(self.second.cancel(self.tasks["send"].task_id))

    async def _follow(self, events: AsyncIterator[TaskView]) -> Any:
        state, text = "", ""
        async for view in events:
            state, text = view.state or state, text + view.text
        return [state, text]

    async def _refusal(self, call: Awaitable[Any]) -> Any:
        try:
            return f"no error: {await call}"
        except Exception as error:
            return self.first.error(error)


STEPS = {
    "card": "card",
    "send": "send",
    "stream": "stream",
    "ask": "send",
    "answer": "send",
    "fail": "send",
    "get": "get",
    "cancel": "cancel",
    "subscribe": "subscribe",
    "list": "tasks",
    "webhook": "set_webhook",
    "webhooks": "webhooks",
    "delete_webhook": "delete_webhook",
    "unknown": "get",
    "too_late": "cancel",
}
"""Steps with the client method that each needs."""


async def _run(client: Callable[..., AbstractAsyncContextManager[Any]], first: str, second: str, hook: str) -> None:
    binding = sys.argv[4:]
    async with client(first, *binding) as first_client, client(second, *binding) as second_client:
        table = Table(first_client, second_client, hook)
        for step, method in STEPS.items():
            if not hasattr(first_client, method) or step in getattr(first_client, "lacks", ()):
                continue
            try:
                async with asyncio.timeout(90):
                    line = {"step": step, "saw": await getattr(table, step)()}
            except Exception as error:
                line = {"step": step, "saw": f"{type(error).__name__}: {error}"}
            print(json.dumps(line), flush=True)


def main(client: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
    """Execute the steps with clients of the gateways on the command line: two gateway URLs and a webhook URL.

    Args:
        client: Function that is called with a gateway URL and the other arguments of the command line.
    """
    asyncio.run(_run(client, *sys.argv[1:4]))
