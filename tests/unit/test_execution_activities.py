"""Sequential, nested and concurrent activities of an agent, and the final execution state of a run."""

from __future__ import annotations

import asyncio
from threading import Barrier, Thread
from typing import Any, get_args

import pytest
from a2a.types import TaskState

from a2a_celery import current_execution
from a2a_celery.execution.events.activities import CURRENT_EXECUTION, MAX_NAME, Execution, end_in, end_of
from a2a_celery.lifecycle import (
    Canceled,
    Completed,
    Delegated,
    Failure,
    Lost,
    Outcome,
    Paused,
    Refused,
    Rejection,
    Retried,
    Superseded,
    Suspended,
)
from a2a_celery.lifecycle.execution import ENDS, ExecutionState
from a2a_celery.lifecycle.outcomes import AGENT_REFUSED, INVALID_RESPONSE, OUT_OF_TIME
from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    WORKING,
)

S = ExecutionState


@pytest.fixture
def execution() -> Execution:
    """Execution whose run has begun."""
    execution = Execution()
    execution.transition(S.INITIALIZING)
    return execution


def activities_of(execution: Execution) -> list[str]:
    """Return the model or tool name, or else the state, of each transition after INITIALIZING."""
    return [str(next(iter(transition.detail.values()), transition.after)) for transition in execution.history[1:]]


async def test_an_activity_is_shown_until_the_next(execution: Execution) -> None:
    async with execution.model_call("m1"):
        pass
    assert execution.state is S.MODEL_CALL
    async with execution.model_call(model="m2"):
        pass
    with execution.tool_call("t"):
        assert execution.state is S.TOOL_EXECUTION
    execution.finish(Completed(), WORKING)

    assert activities_of(execution) == ["m1", "m2", "t", "COMPLETED"]
    assert execution.history[-1].before is S.TOOL_EXECUTION


async def test_after_a_nested_model_call_the_tool_is_shown_again(execution: Execution) -> None:
    async with execution.tool_call("outer"):
        async with execution.model_call("inner"):
            assert execution.state is S.MODEL_CALL
        assert execution.state is S.TOOL_EXECUTION

    assert activities_of(execution) == ["outer", "inner", "outer"]


async def test_of_concurrent_tools_the_newest_open_one_is_shown(execution: Execution) -> None:
    go = {name: asyncio.Event() for name in "abc"}

    async def use(name: str) -> None:
        async with execution.tool_call(name):
            await go[name].wait()

    using = {}
    for name in "abc":
        using[name] = asyncio.create_task(use(name))
        await asyncio.sleep(0)
    for name in "bca":
        go[name].set()
        await using[name]

    assert activities_of(execution) == [
        "a",
        "b",
        "c",
        "a",
    ]  # the end of b is no transition; that of c returns to a


async def test_an_exception_ends_its_activity(execution: Execution) -> None:
    with pytest.raises(KeyError):
        async with execution.tool_call("a"), execution.tool_call("b"):
            raise KeyError

    async with execution.tool_call("c"):
        pass
    assert activities_of(execution) == ["a", "b", "a", "c"]


async def test_activities_after_the_end_are_ignored(execution: Execution) -> None:
    async with execution.tool_call("outer"):
        execution.finish(Canceled(), WORKING)
        async with execution.model_call("late"):
            assert execution.state is S.CANCELLED
    execution.finish(Completed(), WORKING)

    assert activities_of(execution) == ["outer", "CANCELLED"]


def test_threads_may_have_concurrent_activities(execution: Execution) -> None:
    together = Barrier(8)

    def work(name: str) -> None:
        together.wait()
        for _ in range(200):
            with execution.tool_call(name), execution.model_call(name):
                pass

    threads = [Thread(target=work, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert not execution.has_open_activities
    execution.finish(Completed(), WORKING)
    assert execution.state is S.COMPLETED


def test_a_listener_may_begin_an_activity(execution: Execution) -> None:
    def logs(transition: Any) -> None:
        if transition.detail == {"tool": "t"}:
            execution.remove_listener(logs)  # the return to the tool would call the listener again
            with execution.model_call("of the listener"):
                pass

    execution.add_listener(logs)
    with execution.tool_call("t"):
        pass

    assert activities_of(execution) == ["t", "of the listener", "t"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e: e.tool_call(""), ValueError),
        (lambda e: e.tool_call(None), TypeError),
        (lambda e: e.model_call(model=3), TypeError),
    ],
)
def test_an_invalid_name_is_refused(execution: Execution, call: Any, error: Any) -> None:
    with pytest.raises(error, match="name"):
        call(execution)

    assert activities_of(execution) == []


def test_a_model_may_have_no_name_and_a_long_one_is_cut(execution: Execution) -> None:
    with execution.model_call(), execution.tool_call("x" * 10_000):
        pass

    assert activities_of(execution)[0] == "MODEL_CALL"
    assert len(activities_of(execution)[1]) == MAX_NAME


ENDED: list[tuple[Outcome, ExecutionState, dict[str, str]]] = [
    (Completed(), S.COMPLETED, {}),
    (Paused(INPUT_REQUIRED), S.INTERRUPTED, {}),
    (Delegated("{}"), S.COMPLETED, {"reason": "delegated"}),
    (Canceled(), S.CANCELLED, {}),
    (Failure("what the agent says to its client"), S.ERROR, {"reason": "failed"}),
    (Failure(INVALID_RESPONSE, "f00"), S.ERROR, {"reason": "invalid response", "reference": "f00"}),
    (Failure(reference="f00"), S.ERROR, {"reason": "failed", "reference": "f00"}),
    (Failure(OUT_OF_TIME), S.ERROR, {"reason": "out of time"}),
    (Rejection(), S.ERROR, {"reason": "rejected"}),
    (Refused(AGENT_REFUSED), S.ERROR, {"reason": "rejected"}),
    (Retried(2, 3, ""), S.ERROR, {"reason": "retried"}),
    (Suspended(""), S.INTERRUPTED, {"reason": "suspended"}),
    (Superseded(), S.CANCELLED, {}),
    (Lost(), S.ERROR, {"reason": "lost"}),
]


@pytest.mark.parametrize(("outcome", "state", "detail"), ENDED)
def test_each_outcome_has_a_final_state(
    execution: Execution, outcome: Outcome, state: ExecutionState, detail: dict[str, str]
) -> None:
    execution.finish(outcome, WORKING)

    assert (execution.state, dict(execution.history[-1].detail)) == (state, detail)
    assert state in ENDS


def test_all_outcomes_are_covered() -> None:
    assert {type(outcome) for outcome, _, _ in ENDED} == set(get_args(Outcome))


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (COMPLETED, S.COMPLETED),
        (FAILED, S.ERROR),
        (REJECTED, S.ERROR),
        (CANCELED, S.CANCELLED),
        (INPUT_REQUIRED, S.INTERRUPTED),
        (AUTH_REQUIRED, S.INTERRUPTED),
        (WORKING, S.COMPLETED),
        (SUBMITTED, S.COMPLETED),
    ],
)
def test_the_last_state_decides_the_end_of_an_agent_that_returns(state: TaskState, end: ExecutionState) -> None:
    assert end_of(Completed(), state) == end_in(state)
    assert end_in(state)[0] is end


async def test_the_current_execution_is_that_of_the_running_code(execution: Execution) -> None:
    assert current_execution() is None
    token = CURRENT_EXECUTION.set(execution)
    try:
        assert current_execution() is execution
        assert await asyncio.to_thread(current_execution) is execution
        assert await asyncio.create_task(_current()) is execution
    finally:
        CURRENT_EXECUTION.reset(token)


async def _current() -> Execution | None:
    return current_execution()
