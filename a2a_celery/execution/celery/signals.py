"""Receivers of Celery's signals that write the outcome of a run if no other component has written it.

Normally, the run itself writes its outcome, or `RunRequest` writes an outcome that the run cannot detect. A receiver
writes the same outcome with the same fenced script, so a later receiver has no effect. If no component has written the
retry of a plain task, the claim of the next attempt writes the retry (`RetryUnrecorded`).

Celery swallows exceptions of receivers.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from os import getpid
from typing import Any

from celery import states
from celery.app.task import Context
from celery.signals import (
    task_failure,
    task_internal_error,
    task_postrun,
    task_prerun,
    task_rejected,
    task_retry,
    task_revoked,
    task_unknown,
    worker_ready,
)
from celery.utils.functional import noop
from celery.utils.log import LoggingProxy

from ...dispatch import fleet_of
from ...lifecycle import Failure, Outcome, Refused, Retried
from ...lifecycle.outcomes import AGENT_UNKNOWN, MESSAGE_UNREADABLE, NOT_BEGUN_IN_TIME, WORKER_LOST, revoked_by
from ...lifecycle.references import RunRef
from ..plain_tasks.celery_retries import max_attempts, retry_options, time_of
from ..plain_tasks.result_backend import is_request_of_run
from ..process.forced_stop import RunEnder, in_pool_child
from ..process.shutdown import GracefulWorkerShutdown
from ..process.worker_process import Receivers, installed_on
from .printed_lines import PrintedLines
from .request import RUN_IS_OVER, RunRequest, outcome_of_failure

logger = logging.getLogger(__name__)


def agent_unknown(sender: Any = None, name: str = "", id: str = "", message: Any = None, **_: Any) -> None:
    """End a run whose agent is not registered in this worker's app. Return a message of another fleet to its queue."""
    try:
        components = installed_on(sender.app)
        if components is None:
            return
        if RunRef.of(id) is not None and fleet_of(message.headers) != components.requeuer.fleet:
            components.requeuer.return_message(message, noop)
        elif _is_readable(message, "a message for an unknown agent"):
            # `end` ignores the ids of Celery tasks that are not runs
            components.ender.end(id, Refused(AGENT_UNKNOWN), worker_pid=None)
    except Exception:
        logger.exception("a message for an unknown agent was not handled")


def message_rejected(sender: Any = None, message: Any = None, exc: Any = None, **_: Any) -> None:
    """End the run whose message is not a valid call to a task."""
    try:
        components = installed_on(sender.app)
        headers = getattr(message, "headers", None) or {}
        celery_id = str(headers.get("id", ""))
        if components is None or RunRef.of(celery_id) is None:
            return
        is_of_fleet = fleet_of(headers) == components.requeuer.fleet
        if is_of_fleet and _is_readable(message, "an invalid message"):
            components.ender.end(celery_id, Refused(MESSAGE_UNREADABLE), worker_pid=None)
    except Exception:
        logger.exception("an invalid message was not handled")


def run_failed(sender: Any = None, task_id: str = "", exception: Any = None, **_: Any) -> None:
    """End a run whose Celery task failed or lost its process."""
    if _is_unfinished_run(sender, task_id, sender.request):
        _end(sender.ender, task_id, outcome_of_failure(exception), exception)


def run_broken(sender: Any = None, task_id: str = "", exception: Any = None, request: Any = None, **_: Any) -> None:
    """End a run whose Celery task failed because of an error in Celery's code."""
    if _is_unfinished_run(sender, task_id, request):
        _end(sender.ender, task_id, outcome_of_failure(exception), exception)


def run_revoked(
    sender: Any = None, request: Any = None, terminated: bool = False, expired: bool = False, **_: Any
) -> None:
    """End a run whose Celery task was revoked by an operator or has expired."""
    if not _is_unfinished_run(sender, request.id, request):
        return
    if terminated:
        _end(sender.ender, request.id, revoked_by("terminate"))
    else:
        outcome = Refused(NOT_BEGUN_IN_TIME) if expired else revoked_by("revoke")
        retries = (_context(request).retries or 0) if expired else None
        sender.ender.end(request.id, outcome, worker_pid=None, retries=retries)


def run_retried(sender: Any = None, request: Any = None, reason: Any = None, **_: Any) -> None:
    """Record that the Celery task of a run is retried. For an agent, the run itself has already recorded the retry."""
    if hasattr(sender, "begin_run") or not _is_unfinished_run(sender, request.id, request):
        return
    retries, when = (request.retries or 0) + 1, time_of(reason, sender.app)
    retry = Retried(retries + 1, max_attempts(sender), when.isoformat() if when else "")
    options = partial(retry_options, retry=reason, retries=retries, app=sender.app)
    sender.ender.retry(request.id, retry, retries, options)


def _is_unfinished_run(task: Any, celery_id: str, context: Any) -> bool:
    """Return True if the call `celery_id` to `task` is a run that has not written its outcome.

    Args:
        task: Celery task.
        celery_id: Id of the call.
        context: Celery's request of the call, which is empty in the main process of a prefork pool.
    """
    if not hasattr(task, "ender") or RunRef.of(celery_id) is None or getattr(context, RUN_IS_OVER, False):
        return False
    request = None if in_pool_child() else RunRequest.active.get(celery_id)
    if request is not None:
        return request.is_run
    return task.Request is RunRequest or is_request_of_run(celery_id, _context(context))


def _context(request: Any) -> Context:
    return request if isinstance(request, Context) else Context(request or {})


def _end(ender: RunEnder, celery_id: str, outcome: Outcome | None, error: BaseException | None = None) -> None:
    """End a run of this process or, in the main process of a prefork pool, a run of one of its children. Do nothing if
    `outcome` is None."""
    request = None if in_pool_child() else RunRequest.active.get(celery_id)
    process = getpid() if request is None else request.process
    if outcome is not None:
        ender.end(celery_id, outcome, worker_pid=process, lost=outcome == Failure(WORKER_LOST), error=error)


def release_traceback(sender: Any = None, retval: Any = None, state: str | None = None, **_: Any) -> None:
    """Drop the traceback of the exception that ended a run.

    Celery's tracer holds the exception in a local variable of a frame that belongs to the traceback. This reference
    cycle also holds Celery's copy of the traceback, 150 to 300 KiB, until a full garbage collection.
    """
    if state != states.SUCCESS and isinstance(retval, BaseException) and hasattr(sender, "ender"):
        retval.__traceback__ = None


def _is_readable(message: Any, problem: str) -> bool:
    """Return True if a worker accepts the content of `message`. Content without a required signature is not
    accepted."""
    try:
        message.decode()
    except Exception as e:
        logger.warning("%s is refused: %s", problem, type(e).__name__)
        return False
    return True


def worker_is_ready(sender: Any = None, **_: Any) -> None:
    """Prepare the graceful shutdown of a worker."""
    try:
        components = installed_on(sender.app)
        if components is not None:
            stopping = GracefulWorkerShutdown(sender, components.settings, components.requeuer, components.agents)
            stopping.precede_celery()
    except Exception:
        logger.exception("this worker will not requeue its runs at its shutdown")


def log_lines(**_: Any) -> None:
    """Join the writes of a printed line in the output that Celery redirects in this process."""
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        if type(output) is LoggingProxy:
            setattr(sys, name, PrintedLines(output.logger, output.loglevel))


def log_unfinished_lines(**_: Any) -> None:
    """Log the unfinished lines of this process."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, PrintedLines) and output.unfinished:
            output.flush_all()


RECEIVERS: Receivers = (
    (worker_ready, worker_is_ready),
    (task_unknown, agent_unknown),
    (task_rejected, message_rejected),
    (task_failure, run_failed),
    (task_internal_error, run_broken),
    (task_revoked, run_revoked),
    (task_retry, run_retried),
    (task_prerun, log_lines),
    (task_postrun, log_unfinished_lines),
    (task_postrun, release_traceback),
)
