"""Executors that catch an exception and report the failure themselves. Clients never receive the text of the
exception."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import InvalidParamsError

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.outcomes import AGENT_FAILED
from a2a_celery.lifecycle.states import FAILED, INPUT_REQUIRED, REJECTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from tests.support.agents.basic import card
from workers.with_adk import executor as adk_executor

from .local_agents import LocalAgents, local_agents

SECRET = "password 'x'\nat db.internal"


class Reporting(AgentExecutor):
    """Executor that catches `error` and reports the failure with the text that `words` returns."""

    def __init__(self, error: Exception, words: Any = str, *, as_task: bool = False, state: TaskState = FAILED) -> None:
        self._error, self._words, self._as_task, self._state = error, words, as_task, state

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.start_work()
        try:
            raise self._error
        except Exception as error:
            parts = [Part(text=self._words(error))]
            message = Message(message_id="m", role=Role.ROLE_AGENT, parts=parts)
            if self._as_task:
                await event_queue.enqueue_event(Task(id="t", status=TaskStatus(state=self._state, message=message)))
            else:
                status = TaskStatusUpdateEvent(status=TaskStatus(state=self._state, message=message))
                await event_queue.enqueue_event(status)
        await updater.add_artifact([Part(text="late")])

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[LocalAgents]:
    async with local_agents(store, keys, redis_server.store_url) as agents:
        yield agents


async def play(agents: LocalAgents, executor: Any, text: str = "hello", **options: Any) -> Any:
    agents.a2a.add_agent(card("reports"), executor, **options)
    return await agents.play("reports", text)


def end(task: Task) -> tuple[TaskState, str, list[Any]]:
    status = task.status
    return status.state, "".join(part.text for part in status.message.parts), list(task.artifacts)


@pytest.mark.parametrize("as_task", [False, True])
@pytest.mark.parametrize("words", [str, repr, lambda error: str(error.args), lambda error: f"Failed: {error}."])
async def test_the_text_of_an_exception_is_only_in_the_log(
    agents: LocalAgents, caplog: pytest.LogCaptureFixture, words: Any, as_task: bool
) -> None:
    with caplog.at_level(logging.ERROR):
        task = await play(agents, Reporting(ConnectionError(SECRET), words, as_task=as_task))

    assert end(task) == (FAILED, AGENT_FAILED, [])
    assert str(task.status.message.metadata["reference"]) in caplog.text
    assert "db.internal" in caplog.text
    assert "db.internal" not in str(await agents.seeds.log("t"))


async def test_an_exception_without_a_text_is_a_failure_with_one(agents: LocalAgents) -> None:
    assert end(await play(agents, Reporting(AssertionError()))) == (FAILED, AGENT_FAILED, [])


@pytest.mark.parametrize("error", [ConnectionError(SECRET), AssertionError()])
async def test_the_executors_own_words_reach_the_client(agents: LocalAgents, error: Exception) -> None:
    task = await play(agents, Reporting(error, lambda _: "The flights are not available."))

    assert end(task) == (FAILED, "The flights are not available.", [])


async def test_another_state_may_repeat_the_text_of_an_exception(agents: LocalAgents) -> None:
    task = await play(agents, Reporting(ValueError("which day?"), state=INPUT_REQUIRED))

    assert end(task)[:2] == (INPUT_REQUIRED, "which day?")


async def test_an_exception_that_an_executor_reports_is_retried(agents: LocalAgents) -> None:
    task = await play(agents, Reporting(ConnectionError(SECRET)), autoretry_for=(OSError,))

    assert task.status.state == WORKING
    assert task.metadata["a2a_celery/cause"] == "ConnectionError"


async def test_an_error_about_the_message_rejects_it(agents: LocalAgents) -> None:
    task = await play(agents, Reporting(InvalidParamsError("which day?")))

    assert end(task)[:2] == (REJECTED, "which day?")


async def test_the_executor_of_adk_reports_no_text_of_an_exception(agents: LocalAgents) -> None:
    task = await play(agents, adk_executor, "fail", session=True)

    assert end(task) == (FAILED, AGENT_FAILED, [])
    assert "unavailable" not in str(await agents.seeds.log("t"))
