"""Instrumentation of a plain Celery task that serves A2A tasks. The wrappers affect only calls for the run of an A2A
task, except that a question (`InputRequired`, `AuthRequired`) in any other call becomes `RunFailed`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, wraps
from typing import Any, TypeGuard

from celery import Task, states
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject
from celery.result import ResultBase
from celery.signals import before_task_publish
from celery.worker.request import Request
from kombu.exceptions import EncodeError
from kombu.utils.imports import symbol_by_name

from ...agents import Agent
from ...dispatch import HIDDEN, RUN_HEADER
from ...errors import AuthRequired, EndRun, InputRequired
from ...integrations.celery import wrap_autoretry
from ...lifecycle import Canceled, Completed, Delegated, Failure, Lost, Outcome, Paused, Refused, Rejection, Retried
from ...lifecycle.references import RunRef
from ...lifecycle.states import CANCELED
from ..celery.agent_task import celery_limits
from ..celery.request import RUN_IS_OVER, RunConcluded, RunFailed, RunRequest
from ..limits import CeleryLimits
from ..process.forced_stop import RunEnder, in_pool_child
from ..process.shutdown_requeuer import ShutdownRequeuer
from ..process.worker_process import WorkerProcess
from .result_backend import run_result_backend
from .threaded_call import CURRENT, Carried, ThreadedCall


def prepare_task(
    agent: Agent,
    process: Callable[[str | None], WorkerProcess],
    stop_here: Callable[[str], None],
    ender: RunEnder,
    requeuer: ShutdownRequeuer,
) -> None:
    """Make the task of `agent` serve A2A tasks. For the other arguments, see ``register_entry``."""
    task: Task = agent.code
    before_task_publish.connect(_note_published, weak=False, dispatch_uid="a2a_celery.exposing")
    wrap_autoretry(task, _carrying)
    task.run = _run_of(agent, task, task.run, process)
    task.update_state = _update_state_of(task, task.update_state)
    task.signature_from_request = _signature_from_request_of(task, task.signature_from_request)
    task.retry = _retry_of(task, task.retry)
    task.backend = run_result_backend(task)
    if type(task).on_replace is Task.on_replace:
        task.on_replace = _on_replace_of(task, task.on_replace)
    task.Request = _request_of(task)
    task.ender, task.requeuer, task.stop_here = ender, requeuer, stop_here
    task.throws = (*task.throws, RunFailed, EndRun)


def _note_published(headers: Mapping[str, Any] | None = None, body: Any = None, **_: Any) -> None:
    running = CURRENT.get(None)
    if running is not None and headers:
        running.note_published(headers, body)


def _run_of(
    agent: Agent, task: Task, original: Callable[..., Any], process: Callable[[str | None], WorkerProcess]
) -> Callable[..., Any]:
    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        ref = RunRef.of(str(request.id)) if (request.headers or {}).get(RUN_HEADER) else None
        if CURRENT.get(None) is not None or request.called_directly:
            return original(*args, **kwargs)
        if ref is None:
            return _call_for_celery(original, *args, **kwargs)
        call = ThreadedCall(agent, task, lambda: original(*args, **kwargs))
        # a prefork child enforces Celery's limits, and the task may catch the soft limit
        limits = CeleryLimits() if in_pool_child() else celery_limits(task)
        worker_process = process(request.hostname)
        emitter = worker_process.events.emitter(task)
        return conclude(call, worker_process.run(agent, ref.task_id, ref.run, limits, call, emitter=emitter))

    return run


def conclude(call: ThreadedCall, outcome: Outcome | None) -> Any:
    """Return the result of a run to Celery, or raise the exception by which Celery records how the run ended.

    Raises:
        RunConcluded: The run ended in INPUT_REQUIRED, AUTH_REQUIRED or CANCELED.
        RunFailed: The run failed, and Celery cannot handle the task's exception.
        Ignore: Celery must not record a result, for example because another worker has the run.
        Exception: The exception of the task, if that exception ended the run.
    """
    setattr(call.task.request, RUN_IS_OVER, outcome is not None and call.retry_is_written)
    match outcome:
        case Completed() | Delegated() if call.error is None:
            return call.value.as_tuple() if isinstance(call.value, ResultBase) else call.value
        case Paused(state):
            _set_celery_state(call.task, "INPUT_REQUIRED")
            raise RunConcluded.in_state(state)
        case Canceled():
            _set_celery_state(call.task, states.REVOKED)
            raise RunConcluded.in_state(CANCELED)
        case Retried() | Failure() | Rejection() | Refused() if _is_fit_for_celery(call.error):
            raise call.error.end if isinstance(call.error, Carried) else call.error
        # an asyncio.CancelledError is not an Exception: Celery would leave the task STARTED
        case Lost() if call.error is not None and not isinstance(call.error, asyncio.CancelledError):
            raise call.error
        case Failure(text):
            raise RunFailed(text)
    raise Ignore  # another worker has the run


def _set_celery_state(task: Task, state: str) -> None:
    if not task.ignore_result:
        with suppress(Exception):  # the result backend may be unavailable, but the store has the state
            Task.update_state(task, state=state)


def _is_fit_for_celery(error: BaseException | None) -> TypeGuard[Exception]:
    """Return True if Celery handles `error` as a failure. Other errors would end the worker or block its thread."""
    return isinstance(error, Exception) and not isinstance(error, MemoryError)


def _call_for_celery(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the task for a Celery message that does not belong to a run.

    Raises:
        RunFailed: The task asked a question. Celery handles only subclasses of `Exception`: with any other exception, a
            prefork child would exit, and on threads the task would stay STARTED.
    """
    try:
        return original(*args, **kwargs)
    except (InputRequired, AuthRequired) as end:
        raise RunFailed(f"{type(end).__name__}: {end}") from end


def _carrying(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except EndRun as end:
            if CURRENT.get(None) is None:
                raise
            raise Carried(end) from end

    return run


def _update_state_of(task: Task, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def update_state(task_id: str | None = None, state: str | None = None, meta: Any = None, **kwargs: Any) -> Any:
        running = CURRENT.get(None)
        if running is not None and running.task is task and task_id in (None, running.celery_id):
            running.progress(state, meta)
        return original(task_id=task_id, state=state, meta=meta, **kwargs)

    return update_state


def _signature_from_request_of(task: Task, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def signature_from_request(*args: Any, **kwargs: Any) -> Any:
        """Return the signature for a retry. In Celery's events, the arguments are hidden as for the first message."""
        signature = original(*args, **kwargs)
        running = CURRENT.get(None)
        if running is None or running.task is not task:
            return signature
        running.retry_signature = signature.set(**HIDDEN)
        return running.retry_signature

    return signature_from_request


def _retry_of(task: Task, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def retry(
        args: Any = None, kwargs: Any = None, exc: BaseException | None = None, throw: bool = True, **options: Any
    ) -> Any:
        """Call Celery's `retry`. If Celery raises `Reject`, because the message of the next attempt was not published,
        a watcher publishes the run instead."""
        try:
            return original(args, kwargs, exc, throw, **options)
        except Reject as error:
            running = CURRENT.get(None)
            if running is None or running.task is not task or isinstance(error.reason, EncodeError):
                raise
            unpublished_retry = running.unpublished_retry(error.reason, exc)
        if throw:
            raise unpublished_retry
        return unpublished_retry

    return retry


def _on_replace_of(task: Task, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def on_replace(sig: Signature) -> Any:
        running = CURRENT.get(None)
        if running is None or running.task is not task:
            return original(sig)
        running.replaced(sig.delay())
        raise Ignore("Replaced by new task")

    return on_replace


class SharedRequest(RunRequest):
    """Request for a plain Celery task, which other code may also call. Runs are recognized by `RUN_HEADER`, because
    the ids of other calls may look like ids of runs."""

    @cached_property
    def is_run(self) -> bool:
        return super().is_run and RUN_HEADER in self.request_dict


def _request_of(task: Task) -> Any:
    """Return a request class for `task` that handles outcomes which the task cannot report, such as a lost process."""
    own: Any = symbol_by_name(task.Request)  # type: ignore[no-untyped-call]
    return SharedRequest if own is Request else type("SharedRequest", (SharedRequest, own), {})
