"""Task whose attempts are executed in the test process and lost one after the other, and functions that record
calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from a2a_celery import Turn
from a2a_celery.caller import Caller
from a2a_celery.execution.agents.adapters import FunctionAdapter
from a2a_celery.execution.agents.running_agent import RunningAgent
from a2a_celery.execution.run import begin_agent, run_agent
from a2a_celery.lifecycle import Completed, Outcome
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.support.store.seeds import Seeds

from .scene import Gate, Scene

SETTINGS = Settings(store_url="redis://127.0.0.1/0", task_max_bytes=5000)


class WorkerDies(BaseException):
    """Simulated death of the run's worker."""


class Task:
    """Task whose attempts are executed in the test process, each after the loss of the previous attempt.

    Attributes:
        calls: Caller of agents, or None if the agent calls no agent.
    """

    def __init__(self, scene: Scene, settings: Settings = SETTINGS) -> None:
        self.scene, self.settings = scene, settings
        self.task_id = ""
        self.run = 1
        self.open_run: Any = None
        self.calls: Any = None

    async def attempt(self, agent: Callable[[Turn], Any]) -> Any:
        """Execute the agent in the next attempt and return its result. If it raises `WorkerDies`, the run is lost."""
        claim = await self.scene.seeds.claim_run(self.task_id, run=self.run, max_attempts=100)
        claim = replace(claim, turn=replace(claim.turn, caller=Caller(user="ann").to_json()))
        self.task_id = claim.ref.task_id
        events = self.scene.open(claim, settings=self.settings)
        self.open_run = run = self.scene.run_of(events)
        if self.calls is not None:
            run.add_feature(self.calls)
        results: list[Any] = []

        async def execute() -> Outcome:
            await run.complete_claim()
            begin_agent(RunningAgent(run, events))
            return await run_agent(FunctionAdapter(storing_result(agent, results)), run, events)

        try:
            outcome = await asyncio.create_task(execute())
        except BaseException as error:
            await events.abandon()
            await self.scene.seeds.recover_run(claim.ref)
            self.run += 1
            if isinstance(error, WorkerDies):
                return None
            raise
        assert isinstance(outcome, Completed)
        await events.abandon()
        await self.scene.seeds.recover_run(claim.ref)
        self.run += 1
        return results[0]


@asynccontextmanager
async def open_task(store: AsyncStore, keys: Keys) -> AsyncIterator[Task]:
    """Yield a task, and abandon its runs after the block."""
    scene = Scene(Gate(store), keys, Seeds(store, keys))
    yield Task(scene)
    for events in scene.opened:
        await events.abandon()


def give_empty_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each turn begin with an empty session that is not stored."""

    def session(turn: Turn) -> Any:
        return turn.__dict__.setdefault("test_session", SimpleNamespace(state={}))

    monkeypatch.setattr(Turn, "session", property(session))


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
    """Record of function calls."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def work(self, name: str, *, dies: bool = False) -> str:
        """Record a call. If `dies` is true, simulate the death of the worker."""
        self.made.append(name)
        if dies:
            raise WorkerDies
        return f"done: {name}"

    def work_in_thread(self, name: str) -> str:
        """Record a call in the current thread."""
        self.made.append(name)
        return f"done: {name}"
