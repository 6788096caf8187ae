"""Implementation of `Turn.call` in a worker. Calls to agents of the same app use the store and the broker, and calls to
remote agents use an A2A client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from a2a.types import Message, SendMessageRequest, Task

from .client.calling.content import result_data
from .client.connection.transports import trace_of_current_run
from .client.errors import InvalidResponse
from .client.remote_agent import RemoteAgent
from .client.result import Result, ResultBuilder
from .client.session import Session
from .current_run import CURRENT_RUN
from .execution.agent_caller import CallResult, ChildCall
from .features.families.section import ChildSection
from .lifecycle.parents import name_parent
from .operations.errors import not_found
from .operations.submitter import TaskSubmitter
from .store.log.follower import LogFollower


class AgentCalls:
    """Implementation of `execution.agent_caller.AgentCaller` for one worker process. Call the methods on the event loop
    of the process."""

    def __init__(self, submitter: TaskSubmitter, follower: LogFollower) -> None:
        self._submitter = submitter
        self._follower = follower

    async def start(self, call: ChildCall) -> Result:
        """Start the child, unless an earlier run has started it, and return a result with the id of the child.

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
        task_id, context_id = await self._submitter.submit(
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
        final = await self._follower.final_task(scope, task_id, history_length=0)
        if final is None:
            raise not_found(task_id)
        return Result.of(final.answer or final.task)

    def encode(self, result: CallResult) -> Mapping[str, Any]:
        """Return a result as a JSON object, without the task's history."""
        assert isinstance(result, Result)
        return result_data(result)

    def decode(self, data: Mapping[str, Any]) -> Result:
        """Deserialize the output of `encode`."""
        return Result.from_dict(data)


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
