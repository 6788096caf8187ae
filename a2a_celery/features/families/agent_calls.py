"""Client with which a run calls agents. Calls to agents of the same app use the store and the broker, and calls to
remote agents use an A2A client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from a2a.types import Message, SendMessageRequest, Task

from ...caller import Caller
from ...client.connection.transports import trace_of_current_run
from ...client.errors import InvalidResponse
from ...client.remote_agent import RemoteAgent
from ...client.result import Result, ResultBuilder
from ...client.session import Session
from ...current_run import CURRENT_RUN
from ...errors import ConfigError
from ...execution.agents.running_agent import RunningAgent
from ...lifecycle.parents import name_parent
from ...operations.errors import not_found
from ..feature import RunFeature
from .section import ChildSection


@dataclass(frozen=True, slots=True)
class ChildCall:
    """Call to another agent with `Turn.call`.

    Attributes:
        target: Name of an agent of the app, URL of an agent, or ``client.RemoteAgent``.
        content: Content of the message.
        context_id: Id of the child's context, or "" for a new context.
        key: UUID that is the same in every run of the turn.
        caller: Caller of the parent. A called agent of the app works on behalf of the same caller.
        parent_id: Id of the parent.
        tenant: Tenant of the request to a URL, or "".
    """

    target: Any
    content: Any
    context_id: str
    key: str
    caller: Caller
    parent_id: str
    tenant: str = ""

    @property
    def is_remote(self) -> bool:
        """True if the agent is called over HTTP."""
        return not isinstance(self.target, str) or "://" in self.target

    @property
    def agent(self) -> str:
        """Name or URL of the agent."""
        return name_of(self.target)


def name_of(target: Any, tenant: str = "") -> str:
    """Return the name under which the journal records a call to `target`.

    Raises:
        ConfigError: `target` is neither a name, nor a URL, nor a RemoteAgent. Or `tenant` is set, and `target` is not a
            URL.
    """
    if tenant and not (isinstance(target, str) and "://" in target):
        raise ConfigError(
            f"turn.call(…, tenant={tenant!r}): only for the URL of an agent. An agent of this app is called in the "
            "tenant of the turn's caller; for a RemoteAgent, use RemoteAgent(url, tenant=…)"
        )
    name = target if isinstance(target, str) else getattr(target, "url", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"turn.call({target!r}, …): the name of an agent of this app, a URL, or a RemoteAgent")
    return name


class AgentCalls(RunFeature):
    """Client with which a run starts children and waits for them, on the event loop of the run.

    Raises:
        ConfigError: The run executes a plain Celery task.
    """

    __slots__ = ("_tasks",)

    def __init__(self, agent: RunningAgent) -> None:
        if agent.run.tasks is None:
            raise ConfigError("turn.call is for function agents: a plain Celery task calls agents with a2a.submit")
        self._tasks = agent.run.tasks

    async def start(self, call: ChildCall) -> Result:
        """Start the child, unless an earlier run has started it.

        Returns:
            A result with the id of the child, or the message of an agent that replies without a task.

        Raises:
            ConfigError: The app has no such agent.
            A2AError: The agent refused the message.
            InvalidResponse: A remote agent responded with neither a task nor a message.
        """
        message = _message(call)
        if call.is_remote:
            async with _remote(call) as remote:
                result = await remote.submit(message)
            if result.stop_reason is None and not result.task_id:
                raise InvalidResponse(f"{call.agent} responded with neither a task nor a message")
            return result
        message.context_id = message.context_id or call.key
        name_parent(message, call.parent_id)
        params = SendMessageRequest(message=message, tenant=call.caller.tenant)
        caller = replace(call.caller, headers=trace_of_current_run())
        sections = [ChildSection.of(call.parent_id, is_waiting=True)]
        task_id, context_id = await self._tasks.submitter.submit(
            call.target, params, caller, task_id=call.key, sections=sections
        )
        return Result(Task(id=task_id, context_id=context_id))

    async def result(self, call: ChildCall, task_id: str) -> Result:
        """Wait until the child is terminal or interrupted, and return its result.

        Raises:
            A2AError: The agent refused the call, for example with TaskNotFoundError.
            InvalidResponse: A remote agent sent a task without a status.
        """
        if call.is_remote:
            async with _remote(call) as remote:
                builder = ResultBuilder()
                async for event in remote.follow(task_id):
                    builder.add(event)
            if builder.stop_reason is None:
                raise InvalidResponse(f"{call.agent} sent the task {task_id} without a status")
            return builder.result()
        scope = call.caller.scope(call.target)
        final = await self._tasks.follower.final_task(scope, task_id, history_length=0)
        if final is None:
            raise not_found(task_id)
        return Result.of(final.answer or final.task)


def _message(call: ChildCall) -> Message:
    """Return the message to send, whose id is the same in every run of the turn."""
    message = Session(call.context_id).message(call.content)
    if not (isinstance(call.content, Message) and call.content.message_id):
        message.message_id = call.key
    return message


@asynccontextmanager
async def _remote(call: ChildCall) -> AsyncIterator[RemoteAgent]:
    """Yield the target of a call or, if the target is a URL, a client that is closed at the end of the block.

    Child tasks that are started in the block survive a retry of the run, because the next run repeats the call.
    """
    run = CURRENT_RUN.get()
    token = CURRENT_RUN.set(None if run is None else run.replayed())
    try:
        if isinstance(call.target, str):
            async with RemoteAgent(call.target, tenant=call.tenant) as remote:
                yield remote
        else:
            yield call.target
    finally:
        CURRENT_RUN.reset(token)
