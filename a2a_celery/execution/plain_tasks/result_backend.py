"""Result backend of an exposed task. Failed writes do not affect an A2A task, because its outcome is in the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import Task, states
from celery.app.task import Context
from celery.local import Proxy
from kombu.exceptions import EncodeError

from ...dispatch import RUN_HEADER
from ...integrations.celery import own_backend, resolve_proxy
from ...lifecycle.references import RunRef

logger = logging.getLogger(__name__)


def _write_of(method: str) -> Callable[..., Any]:
    def write(self: RunResultBackend, task_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(resolve_proxy(self), method)(task_id, *args, **kwargs)
        except EncodeError:
            raise  # the value cannot be encoded, which is an error of the task
        except Exception as error:
            if not any(is_request_of_run(task_id, value) for value in (*args, *kwargs.values())):
                raise
            logger.warning("run %s: the result backend refused its state: %r", task_id, error)

    return write


_store_result = _write_of("store_result")


class RunResultBackend(Proxy):  # type: ignore[misc]
    """Result backend that logs failed writes of a run's state instead of raising an error.

    After an error, Celery would report the run as failed, or would not begin the run. Failed writes for other calls to
    the task raise an error.
    """

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        """Store a state. The result of a run in STARTED contains `RUN_HEADER`, which shows watchers that a worker with
        this package has the run, so that watchers do not report the run."""
        if state == states.STARTED and is_request_of_run(task_id, kwargs.get("request")):
            result = {**result, RUN_HEADER: True}
        return _store_result(self, task_id, result, state, *args, **kwargs)

    mark_as_done = _write_of("mark_as_done")
    mark_as_failure = _write_of("mark_as_failure")
    mark_as_retry = _write_of("mark_as_retry")
    mark_as_revoked = _write_of("mark_as_revoked")


def run_result_backend(task: Task) -> RunResultBackend:
    """Return the backend to set on `task`. The original backend is looked up at each use, because Celery has one
    backend per thread."""
    own = own_backend(task)
    return RunResultBackend(lambda: task.app.backend if own is None else own)


def is_request_of_run(task_id: str, request: Any) -> bool:
    """Return True if `request`, Celery's request for an exposed task, calls the task as a run."""
    if not isinstance(request, Context) or RunRef.of(task_id) is None:
        return False
    return bool(getattr(request, RUN_HEADER, None) or (request.headers or {}).get(RUN_HEADER))
