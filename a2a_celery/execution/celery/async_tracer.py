"""Variant of Celery's tracer that awaits an agent's Celery task on the event loop, without a thread.

Celery's tracer calls a function, which occupies a thread while an agent runs. This module awaits the call instead, with
the same signals, hooks, log lines and events in the same order. Celery keeps its stacks of tasks and requests per
thread, and all runs share the thread of the event loop. A call is therefore on these stacks only while Celery's code
handles the call, and never during an await.

If code wraps Celery's tracer or its call of the task, such as Sentry's instrumentation or a custom ``__call__``, this
code is synchronous. Celery's tracer is then called in a greenlet, which is suspended while the agent runs. Celery's
stacks and the context variables of each greenlet are separate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from os import getpid
from sys import intern
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from billiard.einfo import ExceptionInfo
from celery import Task, signals, states
from celery.app import trace as celery_trace
from celery.app.task import Context
from celery.app.trace import LOG_SUCCESS, TraceInfo, get_task_name, report_internal_error, trace_task
from celery.app.trace import logger as celery_logger
from celery.exceptions import Ignore, Retry
from celery.utils.saferepr import saferepr

from ...clock import SYSTEM_CLOCK
from ...integrations.celery import task_stack
from ...lifecycle import Outcome
from ..process.forced_stop import Stop
from ..run import Run
from .request import RunRequest, celery_result

try:
    from greenlet import getcurrent, greenlet
except ImportError:
    greenlet = None

T = TypeVar("T")

logger = logging.getLogger(__name__)

AWAITING_CALL = "a2a_call"
"""Field of Celery's context of a task with the `AsyncTaskCall` whose greenlet executes Celery's tracer."""

Begun = tuple[Run, Coroutine[Any, Any, Outcome | None]]
"""Run and the coroutine that performs it."""


class AgentPid(int):
    """Process id in the request of a run that can be stopped without ending the process."""


class Traced(NamedTuple):
    """Result of a call, in the form that Celery's pools pass to a request."""

    failed: bool
    retval: Any
    """Return value as text, or an `ExceptionInfo` if the call failed."""
    seconds: float


class AsyncTaskCall:
    """Call to an agent's Celery task for one Celery request. `make` runs on the event loop."""

    __slots__ = ("__weakref__", "_loop", "_run", "_stopped", "request")

    def __init__(self, request: RunRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self._loop = loop
        self._run: Run | None = None
        self._stopped = False

    async def make(self) -> None:
        """Make the call and report its result to the request, unless the call was revoked, expired or terminated.

        The awaited code has few frames, because each frame stays in memory while the agent waits.
        """
        request, task = self.request, self.request.task
        if request.revoked():
            return
        request.on_accepted(AgentPid(getpid()), SYSTEM_CLOCK.monotonic())
        if self._stopped:  # terminated before it began
            return
        if is_wrapped(task):
            request.on_success(await call_in_greenlet(self._trace_by_celery))
            return
        began = SYSTEM_CLOCK.monotonic()
        context = context_of(request)
        request.release_if_acknowledged(vars(context))
        try:
            try:
                trace = await self._trace(task, context, began)
            finally:
                task.backend.process_cleanup()
                request.app.loader.on_process_cleanup()
        except Exception as error:
            trace = _internal_error(task, context, error, SYSTEM_CLOCK.monotonic() - began)
        request.on_success(trace)

    def terminate(self, signal: object = None) -> None:
        """Stop the agent if it has begun. Celery calls this method to terminate a single call. Thread-safe."""
        if self.request.time_start is not None:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._run is not None:
            self._run.stop(Stop.TERMINATED if self.request.is_announced_revoked else Stop.ABORT)

    def perform(self, run: Run, performing: Coroutine[Any, Any, Outcome | None]) -> Outcome | None:
        """Await a run on behalf of Celery's tracer, in the greenlet of this call."""
        self._run = run
        try:
            return await_in_greenlet(performing)
        finally:
            self._run = None

    def _trace_by_celery(self) -> Traced:
        request = self.request
        args, kwargs = request.args, request.kwargs
        fields = _context_fields(request) | {AWAITING_CALL: self}
        request.release_if_acknowledged(fields)
        result, info, seconds, text = trace_task(request.task, request.id, args, kwargs, fields, app=request.app)
        return Traced(True, result, seconds) if info else Traced(False, text, seconds)

    async def _trace(self, task: Task, context: Context, began: float) -> Traced:
        state: str | None = None
        retval: Any = None
        try:
            with current_call(task, context):
                signals.task_prerun.send(sender=task, **_about(task, context))
                self.request.app.loader.on_task_init(context.id, task)
            try:
                with current_call(task, context):
                    task.before_start(context.id, context.args, context.kwargs)
                    self._run, performing = task.begin_run(*context.args, **context.kwargs)
                try:
                    retval = celery_result(await performing)
                finally:
                    self._run = None
            except Ignore as e:
                state, retval = states.IGNORED, e
                with current_call(task, context):
                    TraceInfo("IGNORED", e).handle_ignore(task, context)
                    return Traced(True, ExceptionInfo(internal=True), SYSTEM_CLOCK.monotonic() - began)
            except Exception as e:
                state, retval = states.RETRY if isinstance(e, Retry) else states.FAILURE, e
                with current_call(task, context):
                    einfo = TraceInfo(state, e).handle_error_state(task, context)
                    if state == states.FAILURE:
                        _call_hook(task, context, "after_return", state, e)
                    return Traced(True, einfo, SYSTEM_CLOCK.monotonic() - began)
            state = states.SUCCESS
            with current_call(task, context):
                seconds = SYSTEM_CLOCK.monotonic() - began
                _report_success(task, context, retval, seconds)
                return Traced(False, saferepr(retval, task.resultrepr_maxsize), seconds)
        finally:
            with current_call(task, context):
                signals.task_postrun.send(sender=task, **_about(task, context), retval=retval, state=state)


def is_wrapped(task: Task) -> bool:
    """Return True if other code wraps Celery's tracer or its call of `task`."""
    builder = celery_trace.build_tracer
    is_original = type(builder) is FunctionType and builder.__globals__ is vars(celery_trace)
    return not is_original or type(task).__call__ is not Task.__call__


def require_greenlet(tasks: Iterable[Task]) -> None:
    """Check that the package greenlet is installed if one of the agents' `tasks` is wrapped.

    Raises:
        SystemExit: The package is missing.
    """
    names = sorted(task.name for task in tasks if hasattr(task, "begin_run") and is_wrapped(task))
    if names and greenlet is None:
        raise SystemExit(
            f"Error: the __call__ of the task class, or an instrumentation such as Sentry's, wraps {names[0]}, and the "
            "asyncio pool calls it in a greenlet: pip install greenlet"
        )


async def call_in_greenlet(function: Callable[[], T]) -> T:
    """Call `function` in a greenlet, and await the coroutines that are passed to `await_in_greenlet`.

    The greenlet has a copy of the current context variables. Each coroutine has a copy of the greenlet's context
    variables, as if the function waited for it in a thread.
    """
    caller = greenlet(function)
    caller.gr_context = copy_context()
    result: Any = caller.switch()
    while not caller.dead:
        coroutine, context = result
        try:
            value = await asyncio.create_task(coroutine, context=context)
        except BaseException as e:
            result = caller.throw(e)
        else:
            result = caller.switch(value)
    answer: T = result
    return answer


def await_in_greenlet(coroutine: Coroutine[Any, Any, T]) -> T:
    """Suspend the greenlet of `call_in_greenlet` until `coroutine` has ended, and return the result."""
    result: T = getcurrent().parent.switch((coroutine, copy_context()))
    return result


def _context_fields(request: RunRequest) -> dict[str, Any]:
    return {**request.request_dict, "hostname": request.hostname, "is_eager": False}


def context_of(request: RunRequest) -> Context:
    """Return the context that Celery exposes as ``task.request`` during the call."""
    return Context(
        _intern_fields(_context_fields(request)), args=request.args, kwargs=request.kwargs, called_directly=False
    )


def _intern_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` with interned keys and strings, which waiting calls then share."""
    shared: dict[str, Any] = {}
    for name, value in fields.items():
        if type(value) is str:
            shared[intern(name)] = intern(value)
        elif name in ("properties", "delivery_info") and type(value) is dict:
            shared[intern(name)] = _intern_fields(value)
        else:
            shared[intern(name)] = value
    return shared


def _about(task: Task, context: Context) -> dict[str, Any]:
    return {"task_id": context.id, "task": task, "args": context.args, "kwargs": context.kwargs}


@contextmanager
def current_call(task: Task, context: Context) -> Iterator[None]:
    """Make the call ``current_task`` and ``task.request`` inside the ``with`` block. The block must not await."""
    task_stack.push(task)
    task.request_stack.push(context)
    try:
        yield
    finally:
        task.request_stack.pop()
        task_stack.pop()


def _report_success(task: Task, context: Context, retval: str, seconds: float) -> None:
    _call_hook(task, context, "on_success", retval)
    signals.task_success.send(sender=task, result=retval, runtime=seconds)
    details = {
        "id": context.id,
        "name": get_task_name(context, task.name),
        "return_value": saferepr(retval, task.resultrepr_maxsize),
        "runtime": seconds,
        "args": context.get("argsrepr") or saferepr(context.args),
        "kwargs": context.get("kwargsrepr") or saferepr(context.kwargs),
    }
    celery_logger.info(LOG_SUCCESS, details, extra={"data": details})
    _call_hook(task, context, "after_return", states.SUCCESS, retval)


def _call_hook(task: Task, context: Context, hook: str, *fields: Any) -> None:
    """Call a hook of the task's class. Exceptions are logged and do not change the result of the call."""
    try:
        more = (None,) if hook == "after_return" else ()
        getattr(task, hook)(*fields, context.id, context.args, context.kwargs, *more)
    except Exception:
        logger.exception("task %s[%s]: its %s failed", task.name, context.id, hook)


def _internal_error(task: Task, context: Context, error: Exception, seconds: float) -> Traced:
    """Report that the code around the call failed. The outcome of the agent's run is written separately."""
    einfo = ExceptionInfo()
    signals.task_internal_error.send(
        sender=task,
        task_id=context.id,
        args=context.args,
        kwargs=context.kwargs,
        request=context,
        exception=error,
        traceback=error.__traceback__,
        einfo=einfo,
    )
    return Traced(True, report_internal_error(task, error), seconds)
