"""Hooks of one run: their arguments, the order of their calls, and the handling of their exceptions."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from a2a.types import Message, TaskState, TaskStatusUpdateEvent
from google.protobuf.struct_pb2 import Struct

from ...caller import Caller
from ...concurrency import call_in_thread
from ...execution.events.activities import Execution
from ...execution.events.queue import RunEventQueue
from ...execution.events.run_telemetry import report_problem
from ...execution.open_run import OpenRun
from ...lifecycle import Canceled, Completed, Event, Failure, Lost, Outcome, as_left, final_event
from ...lifecycle.events import jsonable, portable_metadata
from ...lifecycle.execution import Transition
from ...lifecycle.outcomes import OUTCOMES
from ...lifecycle.states import CANCELED
from ..feature import RunFeature
from . import Hooks

logger = logging.getLogger(__name__)

HOOKS_TIMEOUT = 10.0
"""Maximum duration, in seconds, of all `after_run` hooks of a run, and of its `on_event` hooks for the final status.
The run does not end before these hooks have returned or have timed out."""


class HookFailed(Exception):
    """Exception that ends an agent after a hook failed on one of its events."""


class _HookRaised(Exception):
    """Wrapper for the exception `error` of a hook. The wrapper is an `Exception`, because any other exception could end
    the event loop that all runs share."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@dataclass(eq=False, slots=True)
class RunInfo:
    """Information about a run that its hooks receive.

    Attributes:
        agent: Name of the agent.
        task_id: Id of the task.
        context_id: Id of the task's context.
        run: Number of the run in its task, starting at 1.
        attempt: Number of the attempt in its turn, starting at 1.
        turn: Number of the turn in its task, starting at 1.
        caller: Identity of the client.
        message: Message of the client. In `on_transition`, the message is empty until the `before_run` hooks begin.
        metadata: Metadata that hooks add to the task, written with the final status of the run.
        outcome: Outcome of the run ("completed", "paused", "failed", …) in `after_run`, or "" before that.
    """

    agent: str
    task_id: str
    context_id: str
    run: int
    attempt: int
    turn: int
    caller: Caller
    message: Message = field(default_factory=Message)
    metadata: dict[str, Any] = field(default_factory=dict)
    outcome: str = ""


class RunHooks(RunFeature):
    """Hooks of one run. Use the object on the event loop of the run, except for the listener of transitions."""

    def __init__(self, hooks: Hooks, run: OpenRun, events: RunEventQueue, execution: Execution) -> None:
        name, claim = run.agent.name, run.claim
        self._run = run
        self._failed: str | None = None
        """Reference of the first failure of an `on_event` hook, which fails the run, or None if there was no
        failure."""
        self._before, self._after = hooks.of("before_run", name), hooks.of("after_run", name)
        self._on_event, self._on_transition = hooks.of("on_event", name), hooks.of("on_transition", name)
        self._loop = asyncio.get_running_loop()
        self._order = asyncio.Lock()
        self._last: asyncio.Task[None] | None = None
        task, turn, caller = claim.task, claim.turn, Caller.from_json(claim.turn.caller)
        self._info = RunInfo(name, task.id, task.context_id, claim.ref.run, turn.attempt, turn.number, caller)
        if self._on_event:
            events.add_rewriter(self._rewrite)
        if self._on_transition:
            execution.add_listener(self._notify)
        if self._before or self._after:
            events.end_after_return()  # hooks can add metadata until then

    async def before_agent(self) -> None:
        """Call the `before_run` hooks."""
        self._info.message = self._run.claim.turn.request.message
        for hook in self._before:
            try:
                await _call_hook(hook, self._info)
            except _HookRaised as e:
                raise e.error from None

    async def after_agent(self, outcome: Outcome, state: TaskState) -> Outcome:
        """Call the `after_run` hooks, whose exceptions and timeout are logged. If an `on_event` hook failed, the run
        fails."""
        if self._failed is not None and not isinstance(outcome, Canceled | Lost):
            outcome = Failure(reference=self._failed)
        self._info.outcome = OUTCOMES[type(as_left(outcome, state))]
        try:
            async with self._run.clock.timeout(HOOKS_TIMEOUT):
                for hook in self._after:
                    try:
                        await _call_hook(hook, self._info)
                    except _HookRaised as e:
                        self._report("an after_run hook failed", e.error)
        except TimeoutError:
            logger.error("run %s: its after_run hooks took more than %g s", self._run.claim.ref.name, HOOKS_TIMEOUT)
        return outcome

    async def last_status(
        self, final: TaskStatusUpdateEvent, outcome: Outcome, events: RunEventQueue
    ) -> TaskStatusUpdateEvent:
        """Add the hooks' metadata to the last status of the run. Hooks can only add metadata to a status that the agent
        has sent."""
        if not events.ended and not (events.paused and isinstance(outcome, Completed)):
            return await self._rewrite_last(final)
        metadata = self._metadata()
        if metadata and not events.add_to_end(metadata):
            text = "run %s: dropped metadata that hooks added after the final status: %s"
            logger.warning(text, self._run.claim.ref.name, sorted(metadata))
        return final

    async def _rewrite(self, event: Event) -> Event:
        """Pass `event` through the `on_event` hooks and return the result.

        Raises:
            HookFailed: A hook raised an exception or returned a value that is not an event. The run fails.
        """
        async with self._order:
            for hook in self._on_event:
                try:
                    event = _require_event(await _result(partial(hook, self._info, event)) or event)
                except (_HookRaised, TypeError) as e:
                    error = e.error if isinstance(e, _HookRaised) else e
                    self._failed = self._failed or self._report("an on_event hook failed", error)
                    raise HookFailed(f"an on_event hook failed [reference {self._failed}]") from error
        return event

    async def _rewrite_last(self, event: TaskStatusUpdateEvent) -> TaskStatusUpdateEvent:
        """Add the hooks' metadata to the final status, pass it through the `on_event` hooks, and return the result.

        If a hook fails, a FAILED status is returned. A CANCELED status stays CANCELED and keeps the metadata.
        """
        event.metadata.update(self._metadata())
        original = copy(event)
        state = event.status.state
        rewritten: Event | None = None
        try:
            async with self._run.clock.timeout(HOOKS_TIMEOUT):
                rewritten = await self._rewrite(event)
        except TimeoutError as e:
            self._failed = self._failed or self._report("its on_event hooks took too long for the final status", e)
        except HookFailed:
            pass
        if isinstance(rewritten, TaskStatusUpdateEvent) and rewritten.status.state == state:
            return rewritten
        if self._failed is None:
            wrong = TypeError(f"the hook returned {type(rewritten).__name__}, not the final status with its state")
            self._failed = self._report("an on_event hook replaced the final status", wrong)
        if state == CANCELED:
            return original
        failure = final_event(Failure(reference=self._failed), event.task_id, event.context_id)
        assert failure is not None
        return failure

    def _metadata(self) -> dict[str, Any]:
        """Return the metadata that hooks have added, or {} if the metadata cannot be serialized as JSON. The error is
        logged."""
        try:
            metadata: dict[str, Any] = portable_metadata(jsonable(self._info.metadata))
            Struct().update(metadata)
            return metadata
        except Exception as e:
            self._report("the metadata of its hooks is not JSON", e)
            self._info.metadata = {}
            return {}

    def _notify(self, transition: Transition) -> None:
        """Call the `on_transition` hooks: sync functions immediately, async functions shortly afterwards and in order.
        Exceptions are logged."""
        for hook in self._on_transition:
            if inspect.iscoroutinefunction(hook):
                self._loop.call_soon_threadsafe(self._call_later, hook, transition)
                continue
            try:
                hook(self._info, transition)
            except BaseException:
                self._report("an on_transition hook failed")

    def _call_later(self, hook: Callable[..., Any], transition: Transition) -> None:
        self._last = asyncio.create_task(self._call_after(self._last, hook, transition))
        _under_way.add(self._last)
        self._last.add_done_callback(_under_way.discard)

    async def _call_after(
        self, previous_call: asyncio.Task[None] | None, hook: Callable[..., Any], transition: Transition
    ) -> None:
        if previous_call is not None:
            await asyncio.wait({previous_call})
        try:
            await _result(partial(hook, self._info, transition))
        except _HookRaised as e:
            self._report("an on_transition hook failed", e.error)

    def _report(self, failure: str, error: BaseException | None = None) -> str:
        return report_problem(self._run.claim.ref, self._info.agent, failure, error)


_under_way: set[asyncio.Task[None]] = set()
"""Running calls of asynchronous hooks. The set keeps the tasks alive, because asyncio holds only weak references."""


async def _call_hook(hook: Callable[..., Any], info: RunInfo) -> None:
    """Call a hook. A sync function is called in a thread, where it may block.

    Raises:
        _HookRaised: See `_result`.
    """
    call = hook if inspect.iscoroutinefunction(hook) else partial(call_in_thread, hook)
    result = await _result(partial(call, info))
    await _result(lambda: result)


async def _result(call: Callable[[], Any]) -> Any:
    """Call a hook and return the result. An awaitable result is awaited.

    Raises:
        _HookRaised: The hook raised an exception. A cancellation of the calling asyncio task is raised unchanged.
    """
    task = asyncio.current_task()
    try:
        result = call()
        return await result if inspect.isawaitable(result) else result
    except BaseException as e:
        if isinstance(e, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise _HookRaised(e) from None


def _require_event(value: Any) -> Event:
    if not isinstance(value, Event):
        raise TypeError(f"an on_event hook returns an event or None, not {type(value).__name__}")
    return value
