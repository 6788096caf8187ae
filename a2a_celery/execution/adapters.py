"""How each kind of agent is called: an SDK executor, or a function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing
from contextvars import Context, copy_context
from importlib import import_module
from typing import Any, Protocol, TypeVar

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.types import Task

from ..agents import Agent
from ..caller import Caller
from ..errors import ConfigError
from ..lifecycle import Completed, Failed, Outcome
from ..store.runs import Claim
from ..threads import DaemonThreads
from .events import RunEvents
from .thread_cleanup import ThreadCleanup
from .turn import Reply, Turn

T = TypeVar("T")

ATTEMPT = "a2a_attempt"
"""Key of an executor's `call_context.state` for the number of the attempt at the turn, from 1."""


class Adapter(Protocol):
    """Calls one kind of agent. `announces`: it never answers with a message alone, so WORKING comes with the claim."""

    announces: bool

    async def run(self, claim: Claim, events: RunEvents) -> Outcome:
        """Lets the agent work. What it raises ends the run, see ``raised.outcome_of``."""
        ...

    async def cancel(self, claim: Claim, events: RunEvents) -> None:
        """Tells the agent, before its coroutine is cancelled."""
        ...


async def make_adapter(agent: Agent, cleanup: ThreadCleanup) -> Adapter:
    """The adapter for `agent`. Importing its code may take seconds, so that happens off the loop."""
    code = agent.code
    if isinstance(code, str):
        code = await asyncio.to_thread(load, code)
    if agent.kind == "function":
        if not callable(code):
            raise ConfigError(f"agent {agent.name!r}: {agent.code!r} is no function, but {type(code).__name__}")
        return FunctionAdapter(code, cleanup)
    return ExecutorAdapter(_executor(code, agent.name))


def load(name: str) -> Any:
    """The object that "module:name" names.

    Raises:
        ConfigError: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except BaseException as e:  # an import may do anything, exit too
        raise ConfigError(f"{name!r} can't be loaded: {type(e).__name__}: {e}") from e
    return found


def _executor(code: Any, agent: str) -> AgentExecutor:
    made = code if isinstance(code, AgentExecutor) else code()
    if not isinstance(made, AgentExecutor):
        raise ConfigError(f"agent {agent!r}: {code!r} is no AgentExecutor and makes none, but {type(made).__name__}")
    return made


class ExecutorAdapter:
    """An a2a-sdk AgentExecutor, unmodified."""

    announces = False

    def __init__(self, executor: AgentExecutor) -> None:
        self._executor = executor

    async def run(self, claim: Claim, events: RunEvents) -> Outcome:
        related = await events.store.own_tasks(claim.request.message.reference_task_ids)
        task = None if claim.paused_in is None else claim.task
        await self._executor.execute(_request_context(claim, task, related), events)
        return Completed()

    async def cancel(self, claim: Claim, events: RunEvents) -> None:
        await self._executor.cancel(_request_context(claim, claim.task, []), events)


class FunctionAdapter:
    """A function that takes a `Turn`: async or sync, returning or yielding. A sync one runs in a thread."""

    announces = True

    def __init__(self, function: Callable[[Turn], Any], cleanup: ThreadCleanup) -> None:
        self._function = function
        self._cleanup = cleanup

    async def run(self, claim: Claim, events: RunEvents) -> Outcome:
        turn = Turn(claim, events, Caller.from_json(claim.caller))
        turn.related_tasks = await events.store.own_tasks(turn.message.reference_task_ids)
        reply = Reply(turn)
        function = self._function
        if inspect.isasyncgenfunction(function):
            await _say_all(function(turn), reply)
        elif inspect.iscoroutinefunction(function):
            await reply.whole(await function(turn))
        else:
            await self._run_in_thread(turn, reply)
        return Completed()

    async def cancel(self, claim: Claim, events: RunEvents) -> None:
        """Nothing beforehand: an async function is cancelled where it waits, a sync one looks at ``turn.cancelled``."""

    async def _run_in_thread(self, turn: Turn, reply: Reply) -> None:
        """In a thread of the run's own: one that hangs takes no other's, and Celery bounds how many there are.

        No thread can be cancelled: a run that is waits here until the function has ended, for as long as it may.
        """
        thread = DaemonThreads(1, "a2a-sync-agent", at_end=self._cleanup.at_thread_end)
        context = copy_context()
        try:
            result = await _to_its_end(thread.call(lambda: context.run(self._function, turn)))
            if inspect.isasyncgen(result):
                await _say_all(result, reply)
            elif isinstance(result, Generator):
                await _say_all(_drawn_from(result, thread, context), reply)
            elif inspect.isawaitable(result):  # a callable object or a partial of an async function
                await reply.whole(await result)
            else:
                await reply.whole(result)
        finally:
            thread.close()


class Unusable:
    """Stands for an agent whose code can't be loaded: every run of it fails, with a reference to the reason."""

    announces = False

    def __init__(self, reference: str) -> None:
        self._reference = reference

    async def run(self, claim: Claim, events: RunEvents) -> Outcome:
        return Failed(reference=self._reference)

    async def cancel(self, claim: Claim, events: RunEvents) -> None:
        return


async def _say_all(values: AsyncGenerator[Any, Any], reply: Reply) -> None:
    async with aclosing(values):  # what it does at its end, it does before the task ends
        async for value in values:
            await reply.piece(value)


async def _drawn_from(
    values: Generator[Any, Any, Any], thread: DaemonThreads, context: Context
) -> AsyncGenerator[Any, None]:
    end = object()
    try:
        while (value := await _to_its_end(thread.call(lambda: context.run(next, values, end)))) is not end:
            yield value
    finally:
        await _to_its_end(thread.call(lambda: context.run(values.close)))


async def _to_its_end(call: Coroutine[Any, Any, T]) -> T:
    """What `call` gives. A cancellation lets it finish, and then goes on."""
    made = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(made)
    except asyncio.CancelledError:
        await asyncio.wait({made})
        if not made.cancelled():
            made.exception()  # seen: what a stopped agent raises means nothing
        raise
    finally:
        del made  # holds the exception, whose traceback holds this frame


def _request_context(claim: Claim, task: Task | None, related: list[Task]) -> RequestContext:
    """Return the request context of a run.

    The SDK's contract: `task` is None in the first turn of a task, also in a later attempt at that turn, because
    executors ask `current_task` whether the message begins a task or answers a question.
    """
    call_context = Caller.from_json(claim.caller).call_context()
    call_context.state[ATTEMPT] = claim.attempt
    return RequestContext(
        call_context,
        request=claim.request,
        task_id=claim.task.id,
        context_id=claim.task.context_id,
        task=task,
        related_tasks=related,
    )
