"""Steps as a worker's main process keeps them while they wait for their next look: hurried when there is news.

A step that waits is a message with an ETA: Celery holds it in memory, not acknowledged, beside what it prefetches. Two
things end the wait early, both by letting Celery think that it is over: the agent's webhook (`a2a_wake`, a
remote-control command to all workers), and a revoke. News of a step that no worker holds right now is kept for a while,
for it may be on its way between two.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, ClassVar

from celery import Celery, bootsteps
from celery.worker import state as worker_state
from celery.worker.control import control_command
from celery.worker.request import Request

from ...clock import SYSTEM_CLOCK, Clock
from .canceling import cancel_there

logger = logging.getLogger(__name__)

LOOK_EVERY = 1.0
"""Seconds between two looks at what was revoked; Celery itself looks when a message's time has come."""

NEWS_LIFE = 600.0
MOST_NEWS = 20_000


class News:
    """Ids of steps whose agents have posted and that were not here; each for `NEWS_LIFE` seconds."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._heard: OrderedDict[str, float] = OrderedDict()

    def add(self, celery_id: str) -> None:
        """There is news of a step."""
        self._heard[celery_id] = self._clock.monotonic()
        while len(self._heard) > MOST_NEWS:
            self._heard.popitem(last=False)

    def take(self, celery_id: str) -> bool:
        """Whether there is news of a step, once."""
        heard = self._heard.pop(celery_id, None)
        return heard is not None and self._clock.monotonic() - heard < NEWS_LIFE


class CallRequest(Request):  # type: ignore[misc]
    """A step, as the worker that received it keeps it."""

    news: ClassVar = News()
    _gave_up = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.eta is not None and self.news.take(self.id):
            self._eta = None

    def revoked(self) -> bool:
        """Whether it shall not be run: then its task is cancelled."""
        gone = bool(super().revoked())
        if gone:
            self._give_up()
        return gone

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        """Someone revoked it with terminate=True. Pools that can't end a run raise NotImplementedError: its next look
        is revoked instead."""
        super().terminate(pool, signal)
        if self.time_start is not None:
            self._give_up()

    def _give_up(self) -> None:
        """Has the remote task cancelled; if it is not known yet and may be there, by sending its message once more."""
        if self._gave_up:
            return
        self._gave_up = True
        kwargs = dict(self.kwargs)
        progress = kwargs.get("progress") or {}
        may_be_there = self.time_start is not None or self.delivery_info.get("redelivered") or bool(progress)
        # a step that answers a question has its task from the beginning
        task_id = progress.get("task_id") or (kwargs.get("task_id") if may_be_there else None)
        if task_id:
            cancel_there(self.task.canceling, self.delivery_info, url=kwargs["url"], task_id=task_id)
        elif may_be_there:
            again = {"url": kwargs["url"], "content": list(self.args), "message_id": self.task.message_id_of(self.id)}
            where = {name: kwargs[name] for name in ("context_id",) if kwargs.get(name)}
            cancel_there(self.task.canceling, self.delivery_info, **again, **where)


def hurry(consumer: Any, celery_ids: Iterable[str]) -> None:
    """Runs those of the steps now that wait here. Called by the consumer's timer, as what would run them in time."""
    for celery_id in celery_ids:
        request = worker_state.requests.get(celery_id)
        if isinstance(request, CallRequest) and request in worker_state.scheduled_requests:
            consumer.timer.cancel(request._eta_timer_entry)
            consumer.apply_eta_task(request)


@control_command(args=[("celery_id", str)], signature="<id>")  # type: ignore[untyped-decorator]
def a2a_wake(state: Any, celery_id: str) -> dict[str, str]:
    """Lets a step look at its task now."""
    request = worker_state.requests.get(celery_id)
    if request is not None and request in worker_state.scheduled_requests:
        state.consumer.timer.call_after(0, hurry, (state.consumer, [celery_id]))
        return {"ok": "hurried"}
    CallRequest.news.add(celery_id)
    return {"ok": "noted"}


def watch_for_revoked(app: Celery) -> None:
    """Makes `app`'s workers see within a second that a step which waits was revoked."""
    app.steps["consumer"].add(SeesRevoked)


class SeesRevoked(bootsteps.StartStopStep):  # type: ignore[misc]
    """Looks again and again, while the worker is connected."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._entry: Any = None

    def start(self, consumer: Any) -> None:
        """The worker is connected."""
        self._entry = consumer.timer.call_repeatedly(LOOK_EVERY, self._look, (consumer,))

    def stop(self, consumer: Any) -> None:
        """It is not, or not any more."""
        if self._entry is not None:
            consumer.timer.cancel(self._entry)
            self._entry = None

    def _look(self, consumer: Any) -> None:
        try:
            waiting = [one for one in tuple(worker_state.scheduled_requests) if isinstance(one, CallRequest)]
            hurry(consumer, [one.id for one in waiting if one.id in worker_state.revoked])
        except Exception:
            logger.exception("what was revoked is seen when its time comes")
