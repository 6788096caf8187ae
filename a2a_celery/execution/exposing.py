"""Making a plain Celery task serve A2A tasks too: what is put around it once, when it is exposed.

Each piece looks first whether an A2A task is what calls it, and is not there for anybody else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any

from celery import Task
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request
from kombu.exceptions import EncodeError
from kombu.utils.imports import symbol_by_name

from ..agents import Agent
from ..dispatch import HIDDEN, RUN_HEADER
from ..errors import AgentSignal
from ..store.runs import RunRef
from .ending import RunEnder
from .entry import celery_limits
from .force import in_pool_child
from .handing_back import HandingBack
from .limits import CeleryLimits
from .plain import CURRENT, Carried, TaskAdapter
from .process import WorkerProcess
from .request import RunFailed, RunRequest
from .result_backend import run_result_backend


def prepare_task(
    agent: Agent,
    process: Callable[[], WorkerProcess],
    stop_here: Callable[[str], None],
    ender: RunEnder,
    handing_back: HandingBack,
) -> None:
    """Makes the task of `agent` serve A2A tasks too; the others are as for ``register_entry``."""
    task: Task = agent.code
    if hasattr(task, "_orig_run"):  # Celery's autoretry is around it
        task._orig_run = _carrying(task._orig_run)
    task.run = _run_of(agent, task, task.run, process)
    task.update_state = _update_state_of(task, task.update_state)
    task.signature_from_request = _signature_from_request_of(task, task.signature_from_request)
    task.retry = _retry_of(task, task.retry)
    task.backend = run_result_backend(task)
    if type(task).on_replace is Task.on_replace:
        task.on_replace = _on_replace_of(task, task.on_replace)
    task.Request = _request_of(task)
    task.ender, task.handing_back, task.stop_here = ender, handing_back, stop_here
    task.throws = (*task.throws, RunFailed, AgentSignal)


def _run_of(
    agent: Agent, task: Task, original: Callable[..., Any], process: Callable[[], WorkerProcess]
) -> Callable[..., Any]:
    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        ref = RunRef.of(str(request.id)) if (request.headers or {}).get(RUN_HEADER) else None
        if ref is None or CURRENT.get(None) is not None:
            return original(*args, **kwargs)
        adapter = TaskAdapter(agent, task, lambda: original(*args, **kwargs))
        # a prefork child has Celery's limits, and the task may catch the soft one
        limits = CeleryLimits() if in_pool_child() else celery_limits(task)
        here = process()
        tell = here.events.teller(task)
        return adapter.conclude(here.run(agent, ref.task_id, ref.run, limits, adapter, tell=tell))

    return run


def _carrying(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except AgentSignal as signal:
            if CURRENT.get(None) is None:
                raise
            raise Carried(signal) from signal

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
        """What a retry is published by: it shows no more of its arguments than the first message did."""
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
        """Celery raises `Reject` here if the message of the next attempt was not published, and only then."""
        try:
            return original(args, kwargs, exc, throw, **options)
        except Reject as error:
            running = CURRENT.get(None)
            if running is None or running.task is not task or isinstance(error.reason, EncodeError):
                raise
            unpublished = running.unpublished_retry(error.reason, exc)
        if throw:
            raise unpublished
        return unpublished

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
    """A call of a plain Celery task. Others call it too, and by ids of their own, which may look like a run's."""

    @cached_property
    def is_run(self) -> bool:
        """Whether it belongs to an A2A task."""
        return super().is_run and RUN_HEADER in self.request_dict


def _request_of(task: Task) -> Any:
    """The task's request class, which hears of ends that the task can't tell itself."""
    own: Any = symbol_by_name(task.Request)  # type: ignore[no-untyped-call]
    return SharedRequest if own is Request else type("SharedRequest", (SharedRequest, own), {})
