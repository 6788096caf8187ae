"""Variant of Celery's tracer that awaits an agent's Celery task on the event loop, without a thread.

Celery's tracer calls a function, which occupies a thread while an agent runs. This module awaits the call instead, with
the same signals, hooks, log lines and events in the same order. Celery keeps its stacks of tasks and requests per
thread, and all runs share the thread of the event loop. A call is therefore on these stacks only while Celery's code
handles the call, and never during an await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from os import getpid
from sys import intern
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery import Task, signals, states
from celery.app.task import Context
from celery.app.trace import LOG_SUCCESS, TraceInfo, get_task_name, report_internal_error
from celery.app.trace import logger as celery_logger
from celery.exceptions import Ignore, Retry
from celery.utils.saferepr import saferepr

from ...clock import SYSTEM_CLOCK
from ...integrations.celery import task_stack
from ...lifecycle import Outcome
from ..process.forced_stop import Stop
from ..run import Run
from .request import RunRequest, celery_result

logger = logging.getLogger(__name__)

Begun = tuple[Run, Coroutine[Any, Any, Outcome | None]]
"""Run and the coroutine that performs it."""


REQUESTED = ("correlation_id", "reply_to")
"""Headers that Celery's request reads even if they are missing."""


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


def context_of(request: RunRequest) -> Context:
    """Return the context that Celery exposes as ``task.request`` during the call."""
    fields = {**request.request_dict, "hostname": request.hostname, "is_eager": False}
    context = Context(_intern_fields(fields), args=request.args, kwargs=request.kwargs, called_directly=False)
    context.__dict__ = {name: value for name, value in vars(context).items() if not _is_default(name, value)}
    return context


def _is_default(name: str, value: Any) -> bool:
    """Return True if `value` is the class default of the attribute `name`, which the context need not store.

    About a dozen headers of each run have their defaults. Headers in `REQUESTED` are always stored.
    """
    return name not in REQUESTED and vars(Context).get(name, REQUESTED) is value


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
