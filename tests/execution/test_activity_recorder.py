"""Recording of execution activities. Activities are stored once and in order, with the run's other writes, and without
contents."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from threading import Thread
from typing import Any
from unittest.mock import MagicMock

import pytest
from a2a.types import TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict
from opentelemetry import trace

from a2a_celery.agents import Agent
from a2a_celery.execution.events.activities import ACTIVITY_DELAY, Execution
from a2a_celery.execution.events.observers import CeleryEventEmitter, begin_execution, restored_execution
from a2a_celery.execution.events.queue import RunEventQueue
from a2a_celery.lifecycle import Canceled, Completed, Failure, Outcome
from a2a_celery.lifecycle.execution import ExecutionState
from a2a_celery.lifecycle.own_metadata import EXECUTION, own_metadata
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, WORKING
from a2a_celery.store.runs.commands import Claim
from a2a_celery.store.runs.release import read_activities
from a2a_celery.telemetry.spans import Spans
from tests.support.agents.basic import card
from tests.support.store.seeds import chunk, status

from .scene import LONG, Scene, until


class RecordedRun:
    """Run with its execution, set up as in `Run`."""

    def __init__(self, scene: Scene, claim: Claim, events: RunEventQueue, execution: Execution) -> None:
        self.scene, self.claim, self.events, self.execution = scene, claim, events, execution

    async def settle(self, outcome: Outcome | None = None) -> None:
        """Settle the run as ``Run._settle`` does."""
        outcome = outcome or Completed()
        self.execution.finish(outcome, self.events.state)
        async with asyncio.timeout(20):
            await self.scene.settle(self.claim, self.events, outcome)
        assert self.scene.published == []

    async def stored_activities(self) -> list[str]:
        """Return the stored activities as strings that contain the state and the model or tool."""
        history = await self.scene.seeds.store.run(read_activities(self.scene.keys, self.claim.task.id))
        assert history is not None
        assert {(s.run, s.attempt, s.runner) for s in history.activities} <= {(1, 1, "host.1.x")}
        transitions = [s.transition for s in history.activities]
        assert [t.number for t in transitions] == sorted({t.number for t in transitions})
        return [" ".join([t.after, *map(str, t.detail.values())]) for t in transitions]

    async def until_stored(self, *activities: str) -> None:
        async def are_stored() -> bool:
            return await self.stored_activities() == list(activities)

        await until(are_stored)


async def play(
    scene: Scene,
    *,
    hold: float = LONG,
    emitter: Any = None,
    working: bool = True,
    activity_delay: float = ACTIVITY_DELAY,
    **options: Any,
) -> RecordedRun:
    """Claim a run, and return it with its execution."""
    claim = await scene.seeds.claim_run(working=working)

    execution = restored_execution(claim)
    events = scene.open(claim, hold=hold, on_end=execution.finish_in, activity_delay=activity_delay)
    agent = Agent("a", card("a"), "function", None, **options)
    begin_execution(execution, agent, claim, events, runner="host.1.x", emitter=emitter)
    return RecordedRun(scene, claim, events, execution)


async def test_a_run_without_activities_costs_no_additional_write(scene: Scene) -> None:
    run = await play(scene)
    await run.events.enqueue_event(chunk("hello"))

    await run.settle()

    assert scene.gate.calls == ["settle_run"]
    assert await run.stored_activities() == ["INITIALIZING", "COMPLETED"]
    assert len(await scene.seeds.log(run.claim.task.id)) == 4
    await scene.seeds.require_consistent(run.claim.task.id)


async def test_activities_are_written_with_the_events_around_them(scene: Scene) -> None:
    run = await play(scene)
    with run.execution.model_call("m"):
        await run.events.enqueue_event(chunk("hello"))

    async def is_written() -> bool:
        return len(await scene.seeds.log(run.claim.task.id)) == 3

    await until(is_written)
    assert scene.gate.calls == ["append"]
    assert await run.stored_activities() == ["INITIALIZING", "MODEL_CALL m"]
    await run.settle(Failure(reference="f00"))
    assert scene.gate.calls == ["append", "settle_run"]
    assert (await run.stored_activities())[2:] == ["ERROR failed f00"]


async def test_an_activity_without_events_is_stored_while_it_lasts_and_is_no_event(scene: Scene) -> None:
    run = await play(scene, activity_delay=0.01)
    with run.execution.tool_call("search"):
        await run.until_stored("INITIALIZING", "TOOL_EXECUTION search")

    assert len(await scene.seeds.log(run.claim.task.id)) == 2
    assert (await scene.seeds.task(run.claim.task.id)).status.state == WORKING
    await scene.seeds.require_consistent(run.claim.task.id)


@pytest.mark.parametrize("trouble", [{"refuse": 2}, {"lose_answers": 2}])
async def test_an_activity_is_stored_once_despite_errors_of_the_store(scene: Scene, trouble: dict[str, int]) -> None:
    run = await play(scene, activity_delay=0.01)
    vars(scene.gate).update(trouble)
    with run.execution.tool_call("t"):
        await run.until_stored("INITIALIZING", "TOOL_EXECUTION t")
        await run.events.enqueue_event(chunk("a"))
        vars(scene.gate).update(trouble)
        await run.settle()

    assert await run.stored_activities() == ["INITIALIZING", "TOOL_EXECUTION t", "COMPLETED"]
    assert await scene.texts(run.claim.task.id) == ["a"]


async def test_many_activities_share_writes(scene: Scene) -> None:
    run = await play(scene)
    for n in range(100):
        with run.execution.tool_call(f"t{n}"):
            pass
    await run.settle()

    assert len(scene.gate.calls) <= 3
    assert len(await run.stored_activities()) == 102


async def test_an_agent_that_sends_its_end_ends_its_execution_and_may_clean_up(scene: Scene) -> None:
    run = await play(scene, activity_delay=0.01)
    with run.execution.tool_call("t"):
        await run.events.enqueue_event(status(COMPLETED, "done"))
        assert run.execution.state == "COMPLETED"
        await run.until_stored("INITIALIZING", "TOOL_EXECUTION t", "COMPLETED")
        with run.execution.tool_call("tidying up"):
            await run.events.enqueue_event(chunk("late"))
    for state in (ExecutionState.IDLE, ExecutionState.INITIALIZING):  # set by the agent
        run.execution.transition(state)

    await run.events.flush()  # the worker has the reply of the append, too
    await run.settle(Canceled())

    assert not run.scene.run_of(run.events).is_lost
    assert await run.stored_activities() == ["INITIALIZING", "TOOL_EXECUTION t", "COMPLETED"]
    assert scene.gate.calls == ["append"]


async def test_a_pause_is_settled_with_the_activity_after_it(scene: Scene) -> None:
    run = await play(scene)
    await run.events.enqueue_event(status(INPUT_REQUIRED, "which?"))
    with run.execution.tool_call("late"):
        await run.settle()

    assert scene.gate.calls == ["settle_run"]
    assert await run.stored_activities() == ["INITIALIZING", "TOOL_EXECUTION late", "INTERRUPTED"]


async def test_an_activity_after_a_pause_does_not_show_the_pause_early(scene: Scene) -> None:
    run = await play(scene, activity_delay=0.01)
    await run.events.enqueue_event(chunk("so far"))
    await run.events.enqueue_event(status(INPUT_REQUIRED, "which?"))
    with run.execution.tool_call("late"):

        async def chunk_written() -> bool:
            return len(await scene.seeds.log(run.claim.task.id)) == 3

        await until(chunk_written)
        assert INPUT_REQUIRED not in await scene.seeds.states(run.claim.task.id)
        await run.settle()


async def test_a_resumed_run_begins_where_it_was_interrupted(scene: Scene) -> None:
    claim = await scene.seeds.claim_run()
    assert state_before_begin(claim) == "IDLE"

    turn = replace(claim.turn, interrupted_state=INPUT_REQUIRED)
    assert state_before_begin(replace(claim, turn=turn)) == "INTERRUPTED"


def state_before_begin(claim: Claim) -> str:
    """Return the state from which the execution of `claim` enters INITIALIZING."""

    events, execution = MagicMock(spec_set=["record"]), restored_execution(claim)

    begin_execution(execution, Agent("a", card("a"), "function", None), claim, events, runner="r")

    return execution.history[0].before


async def test_celery_events_have_names_without_contents(scene: Scene) -> None:
    events: list[dict[str, Any]] = []
    run = await play(scene, emitter=CeleryEventEmitter("worker@host", events.append))
    with run.execution.model_call("m"):
        detail = {"tool": "t" * 5_000, "prompt": "my secret", "task_id": "another"}
        run.execution.transition(ExecutionState.TOOL_EXECUTION, **detail)
    await run.settle(Failure("for the client's eyes"))

    common = {"task_id": run.claim.task.id, "run": 1, "attempt": 1, "agent": "a"}
    assert events[1] == {**common, "from_state": "INITIALIZING", "to_state": "MODEL_CALL", "model": "m"}
    assert events[2].keys() == {*common, "from_state", "to_state", "tool"}
    assert len(events[2]["tool"]) == 200
    assert events[3] == {**common, "from_state": "TOOL_EXECUTION", "to_state": "ERROR", "reason": "failed"}
    all_data = repr(await scene.seeds.all_values())
    assert "my secret" not in repr(events) + all_data


class RecordingSpan(trace.NonRecordingSpan):
    """Span that stores its events."""

    def __init__(self, recording: bool) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.recording = recording
        self.events: list[tuple[str, Any]] = []

    def is_recording(self) -> bool:
        return self.recording

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        assert timestamp is not None
        assert timestamp > 1_700_000_000 * 10**9
        self.events.append((name, dict(attributes)))


async def test_a_recording_span_has_each_activity_of_its_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("a2a_celery.execution.events.observers.tracing", lambda: Spans(trace.NoOpTracerProvider()))
    run = await play(scene)
    span, other = RecordingSpan(True), RecordingSpan(False)

    with trace.use_span(span), run.execution.tool_call("t"):
        pass
    with trace.use_span(other), run.execution.tool_call("u"):
        pass

    [(name, attributes)] = span.events
    assert name == "a2a.execution"
    assert attributes["a2a.to_state"] == "TOOL_EXECUTION"
    assert attributes["a2a.tool"] == "t"
    assert attributes["a2a.task_id"] == run.claim.task.id
    assert other.events == []
    await run.settle()


async def test_clients_see_activities_only_of_agents_that_show_them(scene: Scene) -> None:
    shown, hidden = await play(scene, show_execution=True), await play(scene)
    for run in (shown, hidden):
        with run.execution.model_call("m"):
            await run.events.enqueue_event(chunk("a"))
        with run.execution.tool_call("t"):
            pass
        await run.settle()

    log = [entry.event for entry in await scene.seeds.log(shown.claim.task.id)]
    metadata = [MessageToDict(e.metadata) for e in log if isinstance(e, TaskStatusUpdateEvent) and e.metadata.fields]
    assert metadata == [
        own_metadata({EXECUTION: {"state": "MODEL_CALL", "model": "m"}}),
        own_metadata({EXECUTION: {"state": "TOOL_EXECUTION", "tool": "t"}}),
    ]
    assert len(await scene.seeds.log(hidden.claim.task.id)) == 4
    await scene.seeds.require_consistent(shown.claim.task.id)


@pytest.mark.parametrize("shown", [True, False])
async def test_showing_an_activity_does_not_end_a_pause(scene: Scene, shown: bool) -> None:
    run = await play(scene, show_execution=shown)
    with run.execution.model_call("m"), run.execution.tool_call("t"):
        await run.events.enqueue_event(status(INPUT_REQUIRED, "which?"))
    with run.execution.model_call("tidy up"):
        pass

    await run.settle()

    assert (await scene.seeds.task(run.claim.task.id)).status.state == INPUT_REQUIRED


async def test_activities_of_a_thread_are_stored_and_shown(scene: Scene) -> None:
    run = await play(scene, show_execution=True)

    def work() -> None:
        with run.execution.tool_call("of a thread"):
            pass

    thread = Thread(target=work)
    thread.start()
    await asyncio.to_thread(thread.join, 10)
    await run.settle()

    assert await run.stored_activities() == ["INITIALIZING", "TOOL_EXECUTION of a thread", "COMPLETED"]
    assert len(await scene.seeds.states(run.claim.task.id)) == 4


async def test_a_lost_run_stores_no_further_activity(scene: Scene) -> None:
    run = await play(scene)
    with run.execution.tool_call("t"):
        await run.events.abandon()
    run.execution.finish(Completed(), WORKING)

    assert await run.stored_activities() == []


async def test_an_activity_counts_as_activity(scene: Scene) -> None:
    run = await play(scene)
    active_at = run.scene.run_of(run.events).idle_clock.idle_since

    with run.execution.tool_call("t"):
        pass

    assert run.scene.run_of(run.events).idle_clock.idle_since > active_at
