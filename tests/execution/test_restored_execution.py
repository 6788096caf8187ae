"""Initial execution state of a run, which is restored from the activities of earlier runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from a2a_celery.agents import Agent
from a2a_celery.execution.events.activities import Execution
from a2a_celery.execution.events.observers import begin_execution, restored_execution
from a2a_celery.execution.events.queue import RunEventQueue
from a2a_celery.lifecycle import Completed
from a2a_celery.lifecycle.execution import Activity, ExecutionState, Transition
from a2a_celery.lifecycle.states import INPUT_REQUIRED
from a2a_celery.store.runs.commands import Claim
from a2a_celery.store.runs.release import read_activities
from tests.support.agents.basic import card

from .scene import Scene

S = ExecutionState
AGENT = Agent("a", card("a"), "function", None)


def start_execution(claim: Claim, scene: Scene) -> tuple[Execution, RunEventQueue]:
    execution = restored_execution(claim)
    events = scene.open(claim, on_end=execution.finish_in)
    begin_execution(execution, AGENT, claim, events, runner="host.1.x")
    return execution, events


def saved_activities(*states: ExecutionState, **detail: str) -> tuple[Activity, ...]:
    """Return the activities of a first run. The last transition has `detail`."""
    transitions = [Transition(n, source, target, n) for n, (source, target) in enumerate(pairwise(states), 1)]
    transitions[-1] = replace(transitions[-1], detail=detail)
    return tuple(Activity(1, 1, "host.0.x", transition) for transition in transitions)


async def test_the_next_attempt_has_the_tool_in_which_the_last_one_was_lost(scene: Scene) -> None:
    claim = await scene.seeds.claim_run()
    activities = saved_activities(S.IDLE, S.INITIALIZING, S.TOOL_EXECUTION, tool="search")

    execution, events = start_execution(replace(claim, activities=activities), scene)

    death, loss, idle, initializing = execution.history[1:]
    assert (death.after, death.detail) == (S.TOOL_EXECUTION, {"tool": "search"})
    assert (loss.after, loss.detail) == (S.ERROR, {"reason": "lost"})
    assert (idle.after, initializing.before, initializing.after) == (S.IDLE, S.IDLE, S.INITIALIZING)
    execution.finish(Completed(), events.state)
    await scene.settle(claim, events)
    assert scene.published == []
    stored_activities = await scene.seeds.store.run(read_activities(scene.keys, claim.ref.task_id))
    assert stored_activities is not None
    assert [(s.transition.number, s.transition.after) for s in stored_activities.activities] == [
        (5, S.INITIALIZING),
        (6, S.COMPLETED),
    ]


@pytest.mark.parametrize(
    ("end", "state_before"),
    [(S.COMPLETED, S.COMPLETED), (S.INTERRUPTED, S.INTERRUPTED), (S.CANCELLED, S.IDLE), (S.ERROR, S.IDLE)],
)
async def test_the_next_turn_begins_with_the_last_state_of_the_previous_one(
    scene: Scene, end: ExecutionState, state_before: ExecutionState
) -> None:
    claim = replace(await scene.seeds.claim_run(), activities=saved_activities(S.IDLE, S.INITIALIZING, end))

    execution, _ = start_execution(claim, scene)

    assert execution.history[-1].before is state_before
    assert execution.state is S.INITIALIZING


async def test_a_turn_without_saved_activities_begins_with_the_state_of_its_task(scene: Scene) -> None:
    claim = await scene.seeds.claim_run()

    fresh, _ = start_execution(claim, scene)
    execution, _ = start_execution(replace(claim, turn=replace(claim.turn, interrupted_state=INPUT_REQUIRED)), scene)

    assert [t.before for t in fresh.history] == [S.IDLE]
    assert [t.before for t in execution.history] == [S.INTERRUPTED]
