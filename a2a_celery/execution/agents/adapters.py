"""Adapters that call the two kinds of agents, SDK executors and functions, and the import of agents' code."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import aclosing, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any, Protocol, TypeVar
from uuid import NAMESPACE_OID, uuid5

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.types import Artifact, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from ...agents import Agent
from ...caller import Caller
from ...concurrency import DaemonThreads
from ...dispatch import RunOptions
from ...errors import ConfigError, EndRun, SuspendRun
from ...lifecycle import Completed, Failure, Outcome, is_interrupted, is_terminal
from ...lifecycle.json_values import ends_with_half
from ...store.runs.commands import Claim
from ..events.queue import RunEventQueue
from ..open_run import OpenRun
from ..process.thread_cleanup import ThreadCleanup
from .turn import Turn

T = TypeVar("T")

ATTEMPT = "a2a_attempt"
"""Key of the attempt number, which starts at 1, in an executor's `call_context.state`."""

RETRIES = "a2a_retries"
"""Key of the number of retries of the turn before this run, in an executor's `call_context.state`."""


class Adapter(Protocol):
    """Interface for calling one kind of agent.

    Attributes:
        announces: True if the claim sets WORKING, because the agent never replies with only a message.
    """

    announces: bool

    async def run(self, run: OpenRun, events: RunEventQueue) -> Outcome:
        """Execute the agent. An exception of the agent ends the run; see ``run.run_agent``."""
        ...

    async def cancel(self, run: OpenRun, events: RunEventQueue) -> None:
        """Notify the agent before its coroutine is cancelled."""
        ...


async def make_adapter(agent: Agent, cleanup: ThreadCleanup | None) -> Adapter:
    """Return the adapter for `agent`. The code is imported in a thread, because an import may take seconds.

    Raises:
        ConfigError: The code cannot be imported, or is not of the kind `agent.kind`.
    """
    code = agent.code
    if isinstance(code, str):
        code = await asyncio.to_thread(load, code)
    if agent.kind == "function":
        if not callable(code):
            raise ConfigError(f"agent {agent.name!r}: {agent.code!r} is not a function but {type(code).__name__}")
        return FunctionAdapter(code, cleanup)
    return ExecutorAdapter(_executor(code, agent.name))


def load(name: str) -> Any:
    """Return the object that `name` ("module:name") refers to.

    The current folder is searched first, as when Celery imports the app. The folder stays in `sys.path`, because
    several threads may import at the same time, and an agent may import more code while it runs.

    Raises:
        ConfigError: The module cannot be imported, or does not define the name.
    """
    module, _, attribute = name.partition(":")
    try:
        folder = os.getcwd()
        if folder not in sys.path:
            sys.path.insert(0, folder)
        value: Any = import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except BaseException as e:  # an import may raise any exception, including SystemExit
        raise ConfigError(f"{name!r} cannot be loaded: {type(e).__name__}: {e}") from e
    return value


def _executor(code: Any, agent: str) -> AgentExecutor:
    executor = code if isinstance(code, AgentExecutor) else code()
    if not isinstance(executor, AgentExecutor):
        raise ConfigError(f"agent {agent!r}: {code!r} is not an AgentExecutor and returns {type(executor).__name__}")
    return executor


class ExecutorAdapter:
    """Adapter for an unmodified SDK AgentExecutor."""

    announces = False

    def __init__(self, executor: AgentExecutor) -> None:
        self._executor = executor

    async def run(self, run: OpenRun, events: RunEventQueue) -> Outcome:
        claim = run.claim
        related_tasks = await run.own_tasks(claim.turn.request.message.reference_task_ids)
        context = _request_context(claim, _paused_task(claim), related_tasks)
        for feature in run.features:
            if feature.EXECUTOR_KEY:
                context.call_context.state[feature.EXECUTOR_KEY] = feature
        await self._executor.execute(context, events)
        if events.translator.agent_error is not None:
            raise events.translator.agent_error
        return Completed()

    async def cancel(self, run: OpenRun, events: RunEventQueue) -> None:
        await self._executor.cancel(_request_context(run.claim, run.claim.task, []), events)


class FunctionAdapter:
    """Adapter for an async or sync function that takes a `Turn` and returns or yields values. A sync function runs in a
    thread."""

    announces = True

    def __init__(self, function: Callable[[Turn], Any], cleanup: ThreadCleanup | None = None) -> None:
        self._function = function
        self._cleanup = cleanup

    async def run(self, run: OpenRun, events: RunEventQueue) -> Outcome:
        turn = Turn(run, events, Caller.from_json(run.claim.turn.caller))
        turn.related_tasks = await run.own_tasks(turn.message.reference_task_ids)
        reply = Reply(turn)
        function = self._function
        if inspect.isasyncgenfunction(function):
            await _send_all(function(turn), reply)
        elif inspect.iscoroutinefunction(function):
            await reply.send_result(await function(turn))
        else:
            await self._run_in_thread(turn, reply)
        return Completed()

    async def cancel(self, run: OpenRun, events: RunEventQueue) -> None:
        """Do nothing: an async function is cancelled at its next await, and a sync function checks
        ``turn.cancelled``."""

    async def _run_in_thread(self, turn: Turn, reply: Reply) -> None:
        """Call the function in a thread that belongs to the run, so that a function that hangs does not block other
        runs.

        The worker's concurrency limits the number of these threads. A thread cannot be cancelled, so a stopped run
        waits until the function has ended.
        """
        at_end = None if self._cleanup is None else self._cleanup.at_thread_end
        thread = DaemonThreads(1, "a2a-sync-agent", at_end=at_end)
        context = copy_context()

        def call() -> Any:
            turn._agent.adopt_thread()
            return self._function(turn)

        try:
            result = await _shield(thread.call(lambda: context.run(call)))
            if inspect.isasyncgen(result) or inspect.isawaitable(result):  # for example of a callable object
                turn._agent.adopt_task()
            if inspect.isasyncgen(result):
                await _send_all(result, reply)
            elif isinstance(result, Generator):
                await _send_all(_iterate_in_thread(result, thread, context), reply)
            elif inspect.isawaitable(result):
                await reply.send_result(await result)
            else:
                await reply.send_result(result)
        finally:
            thread.close()


@dataclass(frozen=True)
class Replacement:
    """Value that replaces the chunks that the agent has yielded, because its framework has withdrawn text."""

    content: Any


class Reply:
    """Conversion of returned and yielded values to events. Yielded text and parts become chunks of one artifact.

    The ids of the artifacts are the same in each run of a turn, and of the turns that answer its `Turn.ask`. The first
    chunk of a run therefore replaces the chunks of the run before, which the function yields again.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._artifact_id: str | None = None
        self._half = ""  # first half of a surrogate pair at the end of the last text
        claim = turn._run.claim
        prefix = f"{claim.task.id}/{claim.turn.first_number}"
        self._new_ids = (str(uuid5(NAMESPACE_OID, f"{prefix}/{n}")) for n in count())

    async def send_result(self, value: Any) -> None:
        """Send the return value of the agent. None sends no event.

        Raises:
            InputRequired: The run has asked a question, which replaces the result.
            SuspendRun: The run has begun a wait, which replaces the result.
            BaseException: See `RunFeature.agent_returned`.
            InvalidAgentResponseError: A2A cannot represent the value.
        """
        await self._send(value, last=True)

    async def send_chunk(self, value: Any) -> None:
        """Send a yielded value as the next chunk.

        Raises:
            InputRequired: See `send_result`.
            SuspendRun: See `send_result`.
            InvalidAgentResponseError: A2A cannot represent the value.
        """
        await self._send(value, last=False)

    async def complete(self) -> None:
        """Complete the artifact when the agent has yielded its last chunk.

        Raises:
            BaseException: See `RunFeature.agent_returned`.
        """
        self._turn._run.agent_returned()
        await self.end()

    async def end(self) -> None:
        """Complete the artifact of the yielded chunks, if there is one.

        Each chunk is sent when it is yielded. A chunk must have a part, so the completing chunk has an empty text.
        """
        if self._artifact_id is not None:
            await self._turn.artifact(self._take_half(), artifact_id=self._artifact_id, append=True, last=True)

    async def _send(self, value: Any, *, last: bool) -> None:
        self._turn.stop_if_asking()
        if last:
            self._turn._run.agent_returned()
        if value is None:
            return
        if isinstance(value, str):
            value = self._take_half() + value
            if not last and ends_with_half(value):
                self._half, value = value[-1], value[:-1]
        elif self._half:
            await self._send_part(self._take_half())
        if isinstance(value, Artifact | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent | Task):
            event = TaskArtifactUpdateEvent(artifact=value, last_chunk=True) if isinstance(value, Artifact) else value
            if _ends_turn(value):
                await self.end()  # a stream ends with this event
                self._artifact_id = None
            await self._turn._events.enqueue_event(event)
            return
        await self._send_part(value, last=last)

    async def _send_part(self, value: Any, *, last: bool = False) -> None:
        is_next = self._artifact_id is not None
        if isinstance(value, Replacement):
            value, is_next = value.content, False
        self._artifact_id = self._artifact_id or next(self._new_ids)
        await self._turn.artifact(value, artifact_id=self._artifact_id, name="response", append=is_next, last=last)

    def _take_half(self) -> str:
        half, self._half = self._half, ""
        return half


def _ends_turn(event: Any) -> bool:
    """Return True if the state of the task is terminal or interrupted after `event`."""
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return is_terminal(event.status.state) or is_interrupted(event.status.state)
    return isinstance(event, Message)


class UnusableAdapter:
    """Adapter of an agent whose code cannot be loaded. Every run fails with a reference to the reason in the log."""

    announces = False

    def __init__(self, reference: str) -> None:
        self._reference = reference

    async def run(self, run: OpenRun, events: RunEventQueue) -> Outcome:
        return Failure(reference=self._reference)

    async def cancel(self, run: OpenRun, events: RunEventQueue) -> None:
        return


async def _send_all(values: AsyncGenerator[Any, Any], reply: Reply) -> None:
    try:
        async with aclosing(values):  # cleanup code of the generator runs before the task ends
            async for value in values:
                await reply.send_chunk(value)
    except SuspendRun:  # the next run sends the chunks again
        raise
    except EndRun:
        await reply.end()
        raise
    await reply.complete()


async def _iterate_in_thread(
    values: Generator[Any, Any, Any], thread: DaemonThreads, context: Context
) -> AsyncGenerator[Any, None]:
    end = object()
    try:
        while (value := await _shield(thread.call(lambda: context.run(next, values, end)))) is not end:
            yield value
    finally:
        await _shield(thread.call(lambda: context.run(values.close)))


async def _shield(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of `call`. A cancellation takes effect after `call` has finished."""
    future = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        if not future.cancelled():
            future.exception()  # mark the exception as retrieved: the exception of a stopped agent is ignored
        raise
    finally:
        del future  # the future holds the exception, whose traceback holds this frame


def _paused_task(claim: Claim) -> Task | None:
    """Return the task in the interrupted state from before the run's message, or None in the first turn.

    In the SDK, an executor recognizes by `current_task` whether a message starts a task or answers a question. The
    returned task preserves this behavior in every attempt of the turn. The history of the task contains the question
    and the message.
    """
    if claim.turn.interrupted_state is None:
        return None
    task = Task()
    task.CopyFrom(claim.task)
    task.status.state = claim.turn.interrupted_state
    task.status.ClearField("message")
    return task


def _request_context(claim: Claim, task: Task | None, related_tasks: list[Task]) -> RequestContext:
    """Return the request context of a run, whose `current_task` is `task`."""
    call_context = Caller.from_json(claim.turn.caller).call_context()
    call_context.state[ATTEMPT] = claim.turn.attempt
    call_context.state[RETRIES] = RunOptions.from_json(claim.options).retries
    return RequestContext(
        call_context,
        request=claim.turn.request,
        task_id=claim.task.id,
        context_id=claim.task.context_id,
        task=task,
        related_tasks=related_tasks,
    )


NO_REPLY = "its import ends the process"


def import_errors(agents: Iterable[Agent]) -> dict[str, str]:
    """Return an error text for each agent whose code cannot be imported, by agent name.

    A forked child imports the code. The caller must not import the code itself, because event loops, threads or
    connections that an import creates would not survive the fork of a pool process.
    """
    names = {agent.name: agent.code for agent in agents if isinstance(agent.code, str)}
    if not names:
        return {}
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            sys.stdout = sys.stderr  # standard output belongs to the caller
            os.dup2(2, 1)
            os.write(writing, json.dumps(_errors(names)).encode() + b"\n")
        finally:
            os._exit(0)  # without cleanup, which is left to the parent
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        line = pipe.readline()
    with suppress(ChildProcessError):  # raised if the process ignores SIGCHLD
        os.waitpid(pid, 0)
    return dict(json.loads(line)) if line else dict.fromkeys(names, NO_REPLY)


def _errors(names: dict[str, str]) -> dict[str, str]:
    errors = {}
    for name, code in names.items():
        try:
            load(code)
        except ConfigError as e:
            errors[name] = str(e).strip().partition("\n")[0]
    return errors
