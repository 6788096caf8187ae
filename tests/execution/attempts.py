"""Attempts of a task in this process, each lost before the next one, and functions that count their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from a2a_celery import Turn
from a2a_celery.caller import Caller
from a2a_celery.execution.agents.adapters import FunctionAdapter
from a2a_celery.execution.agents.journal import open_journal
from a2a_celery.execution.process.thread_cleanup import ThreadCleanup
from a2a_celery.execution.run import run_agent
from a2a_celery.lifecycle import Completed, Outcome
from a2a_celery.settings import Settings

from .scene import Scene

SETTINGS = Settings(store_url="redis://127.0.0.1/0", step_max_bytes=1000, task_max_bytes=5000)


class WorkerDies(BaseException):
    """The worker of the run dies here."""


class Task:
    """A task whose attempts are executed in this process, each after the last one was lost."""

    def __init__(self, scene: Scene, settings: Settings = SETTINGS) -> None:
        self.scene, self.settings = scene, settings
        self.task_id = ""
        self.run = 1
        self.events: Any = None

    async def attempt(self, agent: Callable[[Turn], Any]) -> Any:
        """Execute the agent in the next attempt. Return its result; `WorkerDies` loses the run."""
        claim = await self.scene.seeds.claimed(self.task_id, run=self.run, max_attempts=100)
        claim = replace(claim, caller=Caller(user="ann").to_json())
        self.task_id = claim.ref.task_id
        claim, events = await self.scene.begin(claim=claim)
        self.events = events
        results: list[Any] = []

        async def execute() -> Outcome:
            open_journal(await events.store.with_journal(claim), events, self.settings)
            return await run_agent(FunctionAdapter(storing_result(agent, results), ThreadCleanup()), claim, events)

        try:
            outcome = await asyncio.create_task(execute())
        except BaseException as error:
            await events.abandon()
            await self.scene.seeds.lost(claim.ref)
            self.run += 1
            if isinstance(error, WorkerDies):
                return None
            raise
        assert isinstance(outcome, Completed)
        await events.abandon()
        await self.scene.seeds.lost(claim.ref)
        self.run += 1
        return results[0]


def storing_result(agent: Callable[[Turn], Any], results: list[Any]) -> Callable[[Turn], Any]:
    """Return an agent that appends its result to `results`."""
    if asyncio.iscoroutinefunction(agent):

        async def call(turn: Turn) -> None:
            results.append(await agent(turn))

        return call

    def call_blocking(turn: Turn) -> None:
        results.append(agent(turn))

    return call_blocking


class Calls:
    """Counts the calls of functions."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def work(self, name: str, *, dies: bool = False) -> str:
        """Do something that must happen once."""
        self.made.append(name)
        if dies:
            raise WorkerDies
        return f"done: {name}"

    def work_in_thread(self, name: str) -> str:
        """Do the work of `work` in the current thread."""
        self.made.append(name)
        return f"done: {name}"
