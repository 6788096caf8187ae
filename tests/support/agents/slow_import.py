"""Executors in a module that prints a line at import."""

from __future__ import annotations

import asyncio
import os
import threading

from a2a.helpers import new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater

print(f"heavy imported in {os.getpid()}", flush=True)


class Unbuildable:
    """Executor whose constructor fails."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")


class Heavy(AgentExecutor):
    """Executor that reports the process, thread and event loop in which it was created and in which it runs."""

    def __init__(self) -> None:
        self.built = f"{os.getpid()} {threading.current_thread().name} {id(asyncio.get_running_loop())}"

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        runs = f"{os.getpid()} {threading.current_thread().name} {id(asyncio.get_running_loop())}"
        await updater.add_artifact([new_text_part(self.built), new_text_part(runs)])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return
