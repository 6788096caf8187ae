"""Hooks around runs: their abilities and order, and the effects of a failing hook."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from a2a.types import TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import InvalidParamsError
from celery import Celery
from celery.exceptions import Reject, Retry

from a2a_celery import A2A, AuthRequired, ConfigError, Failed, InputRequired, Rejected, RunInfo, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.celery.start_check import worker_starts
from a2a_celery.lifecycle.execution import Transition
from a2a_celery.lifecycle.outcomes import AGENT_FAILED, CANCELED_BY_AGENT
from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    WORKING,
)
from a2a_celery.store import AsyncStore, Keys
from tests.execution.local_agents import LocalAgents, local_agents
from tests.support.clocks import ShortTimeoutClock
from tests.support.waiting import eventually_async


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[LocalAgents]:
    async with local_agents(store, keys, redis_server.store_url) as agents:
        yield agents


@pytest.fixture
def calls(agents: LocalAgents) -> list[str]:
    """Messages that the agent "echo" received. A message names the outcome of its run."""
    calls: list[str] = []

    @agents.a2a.agent("echo")
    async def echo(turn: Turn) -> Any:
        """End with the outcome that the message names."""
        calls.append(turn.text)
        match turn.text:
            case "ask":
                raise InputRequired("which?")
            case "fail":
                raise ValueError("broken")
            case "cancel":
                raise asyncio.CancelledError
            case "retry":
                raise Retry(when=1000)
            case "say":
                return TaskStatusUpdateEvent(status=TaskStatus(state=COMPLETED))
        return turn.text

    return calls


def as_async_hook(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as an asynchronous hook."""

    async def hook(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    return hook


WAYS = pytest.mark.parametrize("way", [lambda hook: hook, as_async_hook], ids=["sync", "async"])
ERRORS = pytest.mark.parametrize(
    "error",
    [ValueError("a secret"), Rejected("too late"), InputRequired("a secret"), SystemExit(3), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
"""Exceptions of hooks. Some are not subclasses of `Exception`, and could end the event loop of all runs."""


def state_and_text(task: Any) -> tuple[int, str]:
    """Return the state and the status text of a task."""
    return task.status.state, "".join(part.text for part in task.status.message.parts)


@WAYS
@pytest.mark.parametrize(
    ("signal", "state"),
    [(Rejected, REJECTED), (Failed, FAILED), (InputRequired, INPUT_REQUIRED), (AuthRequired, AUTH_REQUIRED)],
)
async def test_a_run_can_be_refused_before_its_agent_is_called(
    agents: LocalAgents, calls: list[str], way: Any, signal: Any, state: int
) -> None:
    def refuse(run: RunInfo) -> None:
        assert (run.agent, run.task_id, run.run, run.attempt, run.turn) == ("echo", "t", 1, 1, 1)
        assert (run.caller.user, run.message.parts[0].text) == ("ann", "hello")
        raise signal("not today")

    agents.a2a.before_run(way(refuse))

    assert state_and_text(await agents.play("echo")) == (state, "not today")
    assert calls == []


@WAYS
@pytest.mark.parametrize("error", [ValueError("a secret"), SystemExit(3), StopIteration("a secret")])
async def test_a_hook_that_raises_before_a_run_fails_it(
    agents: LocalAgents, calls: list[str], way: Any, error: BaseException
) -> None:
    def broken(run: RunInfo) -> None:
        raise error

    agents.a2a.before_run("echo")(way(broken))

    task = await agents.play("echo")

    assert state_and_text(task) == (FAILED, AGENT_FAILED)
    assert task.status.message.metadata["reference"]
    assert calls == []


@WAYS
@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Retry(when=1000), WORKING),
        (InvalidParamsError("which?"), REJECTED),
        (Reject(), REJECTED),
        (asyncio.CancelledError(), CANCELED),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_exception_before_a_run_ends_it_like_one_of_the_agent(
    agents: LocalAgents, calls: list[str], way: Any, error: BaseException, state: int
) -> None:
    def ends(run: RunInfo) -> None:
        raise error

    agents.a2a.before_run(way(ends))

    task = await agents.play("echo")

    assert task.status.state == state
    assert ("a2a_celery/attempt" in task.metadata) == (state == WORKING)
    assert calls == []


async def test_hooks_apply_to_all_or_some_agents_and_run_in_order(agents: LocalAgents, calls: list[str]) -> None:
    order: list[str] = []
    agents.a2a.before_run(lambda run: order.append("all"))
    agents.a2a.before_run("other")(lambda run: order.append("other's"))
    agents.a2a.before_run("echo", "other")(lambda run: order.append("some's"))

    @agents.a2a.before_run("echo")
    async def its_own(run: RunInfo) -> None:
        order.append("its own")

    await agents.play("echo")

    assert order == ["all", "some's", "its own"]


@WAYS
@pytest.mark.parametrize(
    ("text", "state", "outcome"),
    [
        ("hello", COMPLETED, "completed"),
        ("say", COMPLETED, "completed"),
        ("ask", INPUT_REQUIRED, "paused"),
        ("fail", FAILED, "failed"),
        ("cancel", CANCELED, "canceled"),
    ],
)
async def test_metadata_of_hooks_is_stored_with_the_task(
    agents: LocalAgents, calls: list[str], way: Any, text: str, state: int, outcome: str
) -> None:
    agents.a2a.before_run(way(lambda run: run.metadata.update(tenant="acme")))
    agents.a2a.after_run(way(lambda run: run.metadata.update(outcome=run.outcome)))

    task = await agents.play("echo", text)

    assert task.status.state == state
    assert dict(task.metadata) == {"tenant": "acme", "outcome": outcome}
    last = (await agents.seeds.log("t"))[-1].event
    assert dict(last.metadata) == {"tenant": "acme", "outcome": outcome}
    await agents.seeds.require_consistent("t")


async def test_an_end_sent_by_the_agent_has_the_metadata_of_the_hooks(agents: LocalAgents, calls: list[str]) -> None:
    agents.a2a.before_run(lambda run: run.metadata.update(tenant="acme"))

    assert dict((await agents.play("echo", "say")).metadata) == {"tenant": "acme"}


@WAYS
@pytest.mark.parametrize("where", ["before_run", "after_run", "on_event"])
@pytest.mark.parametrize("text", ["hello", "say"])
async def test_metadata_without_a_form_in_json_is_left_out(
    agents: LocalAgents, calls: list[str], way: Any, where: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    def add(run: RunInfo, *event: Any) -> None:
        run.metadata["at"] = object()

    getattr(agents.a2a, where)(way(add))

    task = await agents.play("echo", text)

    assert (task.status.state, dict(task.metadata)) == (COMPLETED, {})
    assert "the metadata of its hooks is not JSON" in caplog.text


async def test_metadata_is_converted_to_json(agents: LocalAgents, calls: list[str]) -> None:
    agents.a2a.before_run(lambda run: run.metadata.update(at=datetime(2026, 11, 1, tzinfo=UTC), tags=("a", "b")))

    metadata = (await agents.play("echo")).metadata

    assert (metadata["at"], list(metadata["tags"])) == ("2026-11-01T00:00:00Z", ["a", "b"])


@WAYS
@ERRORS
async def test_a_hook_that_raises_after_a_run_changes_nothing(
    agents: LocalAgents, calls: list[str], way: Any, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[str] = []

    def broken(run: RunInfo) -> None:
        raise error

    agents.a2a.after_run(way(broken))
    agents.a2a.after_run(way(lambda run: outcomes.append(run.outcome)))

    assert (await agents.play("echo")).status.state == COMPLETED
    assert outcomes == ["completed"]
    assert "an after_run hook failed" in caplog.text


async def test_an_end_waits_for_its_hooks_for_a_limited_time(
    agents: LocalAgents, calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    agents.perform_with(ShortTimeoutClock())

    @agents.a2a.after_run
    async def hangs(run: RunInfo) -> None:
        await asyncio.get_running_loop().create_future()

    assert (await agents.play("echo")).status.state == COMPLETED
    assert "its after_run hooks took more than 10 s" in caplog.text


async def test_a_last_status_whose_hook_hangs_fails_the_run(agents: LocalAgents, calls: list[str]) -> None:
    agents.perform_with(ShortTimeoutClock())

    @agents.a2a.on_event
    async def hangs(run: RunInfo, event: Any) -> None:
        if isinstance(event, TaskStatusUpdateEvent):
            await asyncio.get_running_loop().create_future()

    task = await agents.play("echo")

    assert state_and_text(task) == (FAILED, AGENT_FAILED)
    assert task.status.message.metadata["reference"]


@WAYS
async def test_events_can_be_rewritten(agents: LocalAgents, calls: list[str], way: Any) -> None:
    def redact(run: RunInfo, event: Any) -> Any:
        event.metadata["seen"] = True
        if isinstance(event, TaskArtifactUpdateEvent):
            event.artifact.parts[0].text = event.artifact.parts[0].text.replace("secret", "***")
            return event
        return None

    agents.a2a.on_event(way(redact))

    task = await agents.play("echo", "a secret")

    assert task.status.state == COMPLETED
    assert task.artifacts[0].parts[0].text == "a ***"
    assert dict(task.metadata) == {"seen": True}


async def test_an_agent_that_ignores_a_failed_hook_still_fails(agents: LocalAgents) -> None:
    @agents.a2a.agent("stubborn")
    async def stubborn(turn: Turn) -> Any:
        with suppress(Exception):
            await turn.say("a secret")
        return TaskStatusUpdateEvent(status=TaskStatus(state=COMPLETED))

    @agents.a2a.on_event
    def broken(run: RunInfo, event: Any) -> None:
        if event.status.HasField("message") and event.status.message.parts[0].text == "a secret":
            raise ValueError("no")

    assert state_and_text(await agents.play("stubborn")) == (FAILED, AGENT_FAILED)


@WAYS
@ERRORS
async def test_an_event_whose_hook_raises_is_not_sent_and_fails_the_run(
    agents: LocalAgents, calls: list[str], way: Any, error: BaseException
) -> None:
    def broken(run: RunInfo, event: Any) -> None:
        if isinstance(event, TaskArtifactUpdateEvent):
            raise error

    agents.a2a.on_event(way(broken))

    task = await agents.play("echo", "hello")

    assert state_and_text(task) == (FAILED, AGENT_FAILED)
    assert task.status.message.metadata["reference"]
    assert not task.artifacts


@WAYS
@ERRORS
async def test_a_last_status_whose_hook_raises_fails_the_run(
    agents: LocalAgents, calls: list[str], way: Any, error: BaseException
) -> None:
    def broken(run: RunInfo, event: Any) -> None:
        if isinstance(event, TaskStatusUpdateEvent):
            raise error

    agents.a2a.on_event(way(broken))

    task = await agents.play("echo", "hello")

    assert state_and_text(task) == (FAILED, AGENT_FAILED)
    assert task.status.message.metadata["reference"]


async def test_a_hook_that_returns_no_event_fails_the_run(agents: LocalAgents) -> None:
    @agents.a2a.agent("stubborn")
    async def stubborn(turn: Turn) -> Any:
        with suppress(Exception):
            await turn.say("hello")
        return TaskStatusUpdateEvent(status=TaskStatus(state=COMPLETED))

    agents.a2a.on_event(lambda run, event: "no event")

    assert state_and_text(await agents.play("stubborn")) == (FAILED, AGENT_FAILED)


async def test_a_hook_that_raises_does_not_undo_a_cancel(agents: LocalAgents, calls: list[str]) -> None:
    @agents.a2a.on_event
    def broken(run: RunInfo, event: Any) -> None:
        event.status.state = COMPLETED
        raise ValueError("a secret")

    assert state_and_text(await agents.play("echo", "cancel")) == (CANCELED, CANCELED_BY_AGENT)


async def test_a_retry_is_no_event_of_a_hook(agents: LocalAgents, calls: list[str]) -> None:
    outcomes: list[str] = []
    agents.a2a.after_run(lambda run: outcomes.append(run.outcome))

    @agents.a2a.on_event
    def broken(run: RunInfo, event: Any) -> None:
        raise ValueError("a secret")

    task = await agents.play("echo", "retry")

    assert (task.status.state, task.metadata["a2a_celery/attempt"]) == (WORKING, 2)
    assert outcomes == ["retried"]


async def test_a_hook_cannot_change_the_state_of_an_end(agents: LocalAgents, calls: list[str]) -> None:
    @agents.a2a.on_event
    def complete(run: RunInfo, event: Any) -> Any:
        return TaskStatusUpdateEvent(status=TaskStatus(state=COMPLETED))

    assert state_and_text(await agents.play("echo", "fail")) == (FAILED, AGENT_FAILED)


@WAYS
@ERRORS
async def test_transition_hooks_are_called_from_the_first_transition_on(
    agents: LocalAgents, calls: list[str], way: Any, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    transitions: list[str] = []

    def broken(run: RunInfo, transition: Transition) -> None:
        raise error

    def record(run: RunInfo, transition: Transition) -> None:
        transitions.append(f"{run.task_id}: {transition.before} to {transition.after}")

    agents.a2a.on_transition(way(broken))
    agents.a2a.on_transition(way(record))

    assert (await agents.play("echo")).status.state == COMPLETED

    async def all_are_recorded() -> bool:
        return len(transitions) == 2

    await eventually_async(all_are_recorded)
    assert transitions == ["t: IDLE to INITIALIZING", "t: INITIALIZING to COMPLETED"]
    assert caplog.text.count("an on_transition hook failed") == 2


@pytest.mark.parametrize("kind", ["before_run", "after_run", "on_event", "on_transition"])
def test_an_invalid_hook_is_refused(kind: str) -> None:
    a2a = A2A(Celery("hooks", set_as_current=False))
    decorate = getattr(a2a, kind)

    async def yields(run: Any) -> Any:
        yield run

    for agent_names in ((), (1,), ("echo", print)):
        with pytest.raises(ConfigError, match=f"@a2a.{kind}: write it without parentheses"):
            decorate(*agent_names)
    for function in (yields, "no function"):
        with pytest.raises(ConfigError, match=f"@a2a.{kind} of .*not a generator"):
            decorate("echo")(function)


async def test_a_worker_does_not_start_with_a_hook_of_an_unknown_agent(agents: LocalAgents, calls: list[str]) -> None:
    agents.a2a.on_event("ecko")(print)

    with pytest.raises(SystemExit, match=r"@a2a.on_event of print: there is no agent 'ecko'"):
        worker_starts(sender=SimpleNamespace(app=agents.a2a.celery))
    await agents.play("echo")
