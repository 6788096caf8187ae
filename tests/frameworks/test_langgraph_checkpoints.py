"""Conformance of the checkpoint saver for LangGraph, with the journal of a task in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate

from a2a_celery.execution.agents.running_agent import RunningAgent
from a2a_celery.features.steps.journal import RunJournal
from a2a_celery.frameworks.langgraph_checkpoints import TurnCheckpointSaver
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim
from tests.execution.scene import Gate, Scene
from tests.support.store.seeds import Seeds

SETTINGS = Settings(store_url="redis://127.0.0.1/0")
NOT_SUPPORTED = {"delete_for_runs", "copy_thread", "prune"}


class Runs:
    """Successive runs of a task. Each run reads the task's journal from the store."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.claim: Claim | None = None

    async def journal(self, settings: Settings = SETTINGS) -> RunJournal:
        """Lose the current run, if any, and return the journal of the next run."""
        seeds, number = self.scene.seeds, 1
        if self.claim is not None:
            await self.scene.opened[-1].abandon()
            await seeds.recover_run(self.claim.ref)
            number = self.claim.ref.run + 1
        task_id = "" if self.claim is None else self.claim.ref.task_id
        self.claim = await seeds.claim_run(task_id, run=number, max_attempts=100)
        events = self.scene.open(self.claim, settings=settings)
        run = self.scene.run_of(events)
        await run.complete_claim()
        return RunJournal(RunningAgent(run, events))

    async def saver(self, settings: Settings = SETTINGS, *, full_history: bool = False) -> TurnCheckpointSaver:
        return TurnCheckpointSaver(await self.journal(settings), "c", full_history=full_history)


@pytest.fixture
async def runs(store: AsyncStore, keys: Keys) -> AsyncGenerator[Runs, None]:
    scene = Scene(Gate(store), keys, Seeds(store, keys))
    yield Runs(scene)
    for events in scene.opened:
        await events.abandon()


class InTheNextRun(TurnCheckpointSaver):
    """Checkpoint saver that reads each checkpoint through a saver of the next run, and so from the store."""

    runs: Runs

    async def aget_tuple(self, config: RunnableConfig) -> object:  # type: ignore[override]
        self.__dict__.update((await self.runs.saver(full_history=True)).__dict__)
        return await super().aget_tuple(config)


@pytest.mark.parametrize("kind", [TurnCheckpointSaver, InTheNextRun], ids=["one run", "a run for each read"])
async def test_it_conforms(runs: Runs, kind: type[TurnCheckpointSaver]) -> None:
    @checkpointer_test(name=kind.__name__)
    async def savers() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        saver = kind(await runs.journal(), "c", full_history=True)
        if isinstance(saver, InTheNextRun):
            saver.runs = runs
        yield saver

    report = await validate(savers)

    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert {name for name, result in report.results.items() if not result.detected} == NOT_SUPPORTED
    assert report.passed_all_base()


async def test_a_run_that_was_lost_writes_nothing(runs: Runs, store: AsyncStore, keys: Keys) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "c", "checkpoint_ns": ""}}
    lost_saver = await runs.saver()
    assert runs.claim is not None
    await lost_saver.aput(config, empty_checkpoint(), {}, {})
    await runs.scene.seeds.recover_run(runs.claim.ref)
    journal = keys.task(runs.claim.ref.task_id).journal
    entries = await store.redis.hgetall(journal)

    with pytest.raises(asyncio.CancelledError):
        await lost_saver.aput(config, empty_checkpoint(), {}, {})

    assert len(entries) == 2
    assert await store.redis.hgetall(journal) == entries


async def test_the_checkpoint_of_a_worker_whose_clock_is_behind_is_the_newest() -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "c", "checkpoint_ns": ""}}
    first_saver, second_saver = TurnCheckpointSaver(None, "c"), TurnCheckpointSaver(None, "c")
    await first_saver.aput(config, empty_checkpoint() | {"id": "2"}, {}, {})
    second_saver.restore(first_saver.snapshot())

    saved_config = await second_saver.aput(config, empty_checkpoint() | {"id": "1"}, {}, {})

    newest = await second_saver.aget_tuple(config)
    assert newest is not None
    assert newest.config == saved_config
    third_saver = TurnCheckpointSaver(None, "c")
    third_saver.restore(second_saver.snapshot())
    assert [checkpoint.config async for checkpoint in third_saver.alist(config)] == [saved_config]


async def test_the_event_loop_is_not_blocked_by_a_call_without_await(runs: Runs) -> None:
    saver = await runs.saver()

    with pytest.raises(RuntimeError, match="use ainvoke or astream"):
        saver.get_tuple({"configurable": {"thread_id": "c"}})
