"""Steps that wait for their ETA in a worker's main process, and wake-ups that end the wait early.

Celery holds a message with an ETA in memory, unacknowledged. Two events end the wait early: a revocation, or a webhook
notification, which all workers receive as the remote-control command `a2a_wake`. A wake-up for a step that the worker
does not hold is stored for a while, because the step may be in transit between two workers.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from celery import Celery, bootsteps
from celery.worker import state as worker_state
from celery.worker.control import control_command
from celery.worker.request import Request

from ...clock import SYSTEM_CLOCK, Clock
from ...integrations.celery import execute_before_eta
from .cancel_task import publish_cancel

logger = logging.getLogger(__name__)

REVOCATION_POLL_INTERVAL = 1.0
"""Seconds between two checks for revoked steps. Celery itself checks only when a message's ETA is reached."""

WAKEUP_TTL = 600.0
MAX_WAKEUPS = 20_000


class PendingWakeups:
    """Wake-ups for steps that this worker does not hold. Each wake-up is stored for `WAKEUP_TTL` seconds."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._stored_at: OrderedDict[str, float] = OrderedDict()

    def add(self, celery_id: str) -> None:
        """Store a wake-up."""
        self._stored_at[celery_id] = self._clock.monotonic()
        while len(self._stored_at) > MAX_WAKEUPS:
            self._stored_at.popitem(last=False)

    def pop(self, celery_id: str) -> bool:
        """Remove the wake-up of a step. Return True if a wake-up was stored."""
        stored_at = self._stored_at.pop(celery_id, None)
        return stored_at is not None and self._clock.monotonic() - stored_at < WAKEUP_TTL


class CallRequest(Request):  # type: ignore[misc]
    """Request of a step.

    Attributes:
        delayed: Requests with an ETA, by Celery id. `worker_state.requests` cannot replace this mapping, because a
            prefork child publishes the retry before the execution ends. When the execution ends, Celery removes the
            request with its id, which is also the id of the retry.
    """

    wakeups: ClassVar = PendingWakeups()
    delayed: ClassVar[WeakValueDictionary[str, CallRequest]] = WeakValueDictionary()
    _gave_up = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.eta is not None:
            if self.wakeups.pop(self.id):
                self._eta = None
            else:
                self.delayed[self.id] = self

    def revoked(self) -> bool:
        """Return True if the step is revoked, and cancel its remote task in this case."""
        is_revoked = bool(super().revoked())
        if is_revoked:
            self._give_up()
        return is_revoked

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        """Terminate the step and cancel the remote task, because the step was revoked with terminate=True.

        In a pool that cannot terminate tasks, the next poll ends the step.
        """
        super().terminate(pool, signal)
        if self.time_start is not None:
            self._give_up()

    def _give_up(self) -> None:
        """Cancel the remote task. If the id of the remote task is unknown, `a2a.cancel` resends the message to learn
        the id."""
        if self._gave_up:
            return
        self._gave_up = True
        kwargs = dict(self.kwargs)
        progress = kwargs.get("progress") or {}
        may_be_there = self.time_start is not None or self.delivery_info.get("redelivered") or bool(progress)
        # the arguments of a step that answers a question contain the id of the remote task
        task_id = progress.get("task_id") or (kwargs.get("task_id") if may_be_there else None)
        tenant = {name: kwargs[name] for name in ("tenant",) if kwargs.get(name)}
        if task_id:
            publish_cancel(self.task.canceler, self.delivery_info, url=kwargs["url"], task_id=task_id, **tenant)
        elif may_be_there:
            call = {
                "url": kwargs["url"],
                "content": list(self.args),
                "message_id": self.task.message_id_of(self.id),
                "celery_id": self.id,
            }
            context = {name: kwargs[name] for name in ("context_id",) if kwargs.get(name)}
            publish_cancel(self.task.canceler, self.delivery_info, **call, **context, **tenant)


def execute_now(consumer: Any, requests: Iterable[CallRequest]) -> None:
    """Execute all `requests` that still wait for their ETA. Call this function on the consumer's timer."""
    for request in requests:
        if request in worker_state.scheduled_requests:
            execute_before_eta(consumer, request)


@control_command(args=[("celery_id", str)], signature="<id>")  # type: ignore[untyped-decorator]
def a2a_wake(state: Any, celery_id: str) -> dict[str, str]:
    """Make a step poll its remote task now, or store the wake-up if this worker does not hold the step."""
    request = CallRequest.delayed.get(celery_id)
    if request is not None and request in worker_state.scheduled_requests:
        state.consumer.timer.call_after(0, execute_now, (state.consumer, [request]))
        return {"ok": "executed"}
    CallRequest.wakeups.add(celery_id)
    return {"ok": "stored"}


def install_revocation_monitor(app: Celery) -> None:
    """Make the workers of `app` detect within a second that a waiting step was revoked."""
    app.steps["consumer"].add(RevocationMonitor)


class RevocationMonitor(bootsteps.StartStopStep):  # type: ignore[misc]
    """Consumer step that checks for revoked steps while the worker is connected."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._entry: Any = None

    def start(self, consumer: Any) -> None:
        """Start checking for revoked steps every `REVOCATION_POLL_INTERVAL` seconds."""
        self._entry = consumer.timer.call_repeatedly(REVOCATION_POLL_INTERVAL, self._execute_revoked, (consumer,))

    def stop(self, consumer: Any) -> None:
        """Stop checking for revoked steps."""
        if self._entry is not None:
            consumer.timer.cancel(self._entry)
            self._entry = None

    def _execute_revoked(self, consumer: Any) -> None:
        try:
            waiting = [each for each in tuple(worker_state.scheduled_requests) if isinstance(each, CallRequest)]
            execute_now(consumer, [request for request in waiting if request.id in worker_state.revoked])
        except Exception:
            logger.exception("could not check for revoked steps; they are noticed at their ETA")
