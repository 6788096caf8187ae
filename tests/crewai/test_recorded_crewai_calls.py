"""Recorded results of a crew's calls. Later runs of the turn repeat no call."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from a2a.types import TaskArtifactUpdateEvent
from crewai import Agent, Crew
from crewai import Task as CrewTask
from crewai.tools import tool

from a2a_celery import Turn, current_step_key
from a2a_celery.features.steps.journal import MAX_RESULT_BYTES
from a2a_celery.frameworks.crewai import crewai_agent
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task, WorkerDies, give_empty_sessions, open_task

from .script import Answer, Script, crew_of, script


@pytest.fixture
async def task(store: AsyncStore, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Task]:
    """Task whose attempts each begin with an empty session."""
    give_empty_sessions(monkeypatch)
    async with open_task(store, keys) as task:
        yield task


class Play:
    """Crew whose worker dies at a call to the model.

    Attributes:
        calls: Arguments of the tool calls in all attempts.
        dies_at: Number of the model call at which the worker dies.
        usage: Token counts of the last attempt that finished.
    """

    def __init__(self, *answers: Answer, durable: bool = True, **options: Any) -> None:
        self.calls: list[str] = []
        self.keys: set[str] = set()
        self.dies_at: int | None = None
        self.durable = durable
        self.usage: dict[str, float] = {}
        self.model = script(*answers, on_call=self._on_call, **options)
        self.function = crewai_agent(self._make, durable=durable)

    async def run(self, turn: Turn) -> str:
        """Run the crew, and return the text of the last artifact."""
        self._turn = turn
        texts: dict[str, str] = {}
        async for event in self.function(turn):
            if isinstance(event, TaskArtifactUpdateEvent):
                text = "".join(part.text for part in event.artifact.parts)
                text_before = texts.get(event.artifact.artifact_id, "") if event.append else ""
                texts[event.artifact.artifact_id] = text_before + text
            else:
                self.usage = dict(event.metadata["a2a_celery/usage"]["script"])
        return list(texts.values())[-1]

    def _make(self, turn: Turn) -> Crew:
        return crew_of(self.model, *self._tools())

    def _on_call(self, number: int) -> None:
        if number == self.dies_at:
            raise WorkerDies

    def _tools(self) -> Sequence[Any]:
        @tool("look")
        def look(at: str) -> str:
            """Look at something."""
            self.calls.append(at)
            if self.durable:
                self.keys.add(current_step_key())
            return f"seen {at}"

        @tool("fail")
        def fail(at: str) -> str:
            """Fail."""
            self.calls.append(at)
            raise ValueError(at)

        @tool("grow")
        def grow(at: str) -> str:
            """Return more than can be recorded."""
            self.calls.append(at)
            return at * MAX_RESULT_BYTES

        @tool("remember")
        def remember(at: str) -> str:
            """Change the session."""
            self.calls.append(at)
            places = self._turn.session.state.setdefault("seen", [])
            places.append(at)
            return ", ".join(places)

        return look, fail, grow, remember


def look(at: str) -> tuple[str, dict[str, str]]:
    return "look", {"at": at}


async def test_each_call_is_made_once_wherever_the_worker_dies(task: Task) -> None:
    play = Play([look("a")], [look("b"), look("c"), look("c")], "done")
    for play.dies_at in range(3):
        assert await task.attempt(play.run) is None
    play.dies_at = None

    assert await task.attempt(play.run) == "done"
    assert await task.attempt(play.run) == "done", "the recorded answer"
    assert play.model.calls == [0, 0, 1, 1, 2, 2], "each call that the worker survived was made once"
    assert sorted(play.calls) == ["a", "b", "c", "c"]
    assert len(play.keys) == 4
    assert play.usage == {"inputTokens": 30, "outputTokens": 6}


async def test_calls_of_a_model_without_native_tool_calls_are_recorded(task: Task) -> None:
    thought = 'Thought: I look.\nAction: look\nAction Input: {"at": "a"}'
    play = Play(thought, "Thought: I know.\nFinal Answer: seen it", is_native=False)
    play.dies_at = 1
    await task.attempt(play.run)
    play.dies_at = None

    assert await task.attempt(play.run) == "seen it"
    assert (play.model.calls, play.calls) == ([0, 1, 1], ["a"])


async def test_a_failure_that_the_model_has_received_is_recorded(task: Task) -> None:
    play = Play([("fail", {"at": "a"})], [look("b")], "done")
    play.dies_at = 2
    await task.attempt(play.run)
    play.dies_at = None

    assert await task.attempt(play.run) == "done"
    assert (play.model.calls, play.calls) == ([0, 1, 2, 2], ["a", "b"])


async def test_a_tool_that_changes_the_session_is_called_again(task: Task) -> None:
    play = Play([("remember", {"at": "a"})], [("remember", {"at": "b"})], "done")
    play.dies_at = 2
    await task.attempt(play.run)
    play.dies_at = None

    assert await task.attempt(play.run) == "done"
    assert (play.model.calls, play.calls) == ([0, 1, 2, 2], ["a", "b", "a", "b"])


async def test_a_result_that_is_too_large_fails_no_run(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    play = Play([("grow", {"at": "x"})], "done")
    play.dies_at = 1
    with caplog.at_level(logging.WARNING, "a2a_celery"):
        await task.attempt(play.run)
    play.dies_at = None

    assert await task.attempt(play.run) == "done"
    assert (play.model.calls, play.calls) == ([0, 1, 1], ["x", "x"])
    assert "is not recorded, and may be repeated: tool 'grow" in caplog.text


async def test_without_durable_each_attempt_makes_each_call(task: Task) -> None:
    play = Play([look("a")], "done", durable=False)
    play.dies_at = 1
    await task.attempt(play.run)
    play.dies_at = None

    assert await task.attempt(play.run) == "done"
    assert (play.model.calls, play.calls) == ([0, 1, 0, 1], ["a", "a"])


class DelegatingCrew(Play):
    """Crew whose first agent delegates to the second one."""

    def _make(self, turn: Turn) -> Crew:
        boss = Agent(role="boss", goal="Lead.", backstory="-", llm=self.model, allow_delegation=True)
        self.worker_model = getattr(self, "worker_model", None) or Script(
            model="worker", answers=[[("look", {"at": "a"})], "looked"]
        )
        worker = Agent(role="worker", goal="Work.", backstory="-", llm=self.worker_model, tools=[self._tools()[0]])
        return Crew(
            agents=[boss, worker],
            tasks=[CrewTask(description="Lead.", expected_output="-", agent=boss)],
            tracing=False,
        )


async def test_work_that_an_agent_delegates_is_recorded(task: Task) -> None:
    delegation = ("delegate_work_to_coworker", {"task": "Look.", "context": "-", "coworker": "worker"})
    play = DelegatingCrew([delegation], "done")
    play.dies_at = 1
    await task.attempt(play.run)
    play.dies_at = None

    assert await task.attempt(play.run) == "done"
    assert (play.model.calls, play.worker_model.calls, play.calls) == ([0, 1, 1], [0, 1], ["a"])
