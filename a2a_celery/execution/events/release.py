"""Release of runs that are retried, suspended or delegated to a canvas."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

from a2a.types import TaskStatusUpdateEvent

from ...clock import SYSTEM_CLOCK
from ...dispatch import RunOptions
from ...lifecycle import Canceled, Lost, Outcome
from ...lifecycle.events import MICROSECOND
from ...lifecycle.references import RunRef
from ...lifecycle.states import CANCELED
from ...store.operation import FIRST_PUBLISH_GRACE_US
from ...store.runs.commands import RunLost
from ...store.runs.release import Released, delegate_to_canvas, release_run
from ...store.runs.suspension import SuspendedRun, suspend_run
from ..open_run import OpenRun
from ..plain_tasks.threaded_call import ThreadedCall
from .queue import RunEventQueue
from .settlement import PublishNext


class RunRelease:
    """Release of a run from its worker, so that the run is retried, or waits for a time, a signal, another task or a
    canvas."""

    def __init__(self, run: OpenRun, events: RunEventQueue, publish: PublishNext) -> None:
        self._run = run
        self._events = events
        self._publish = publish

    async def retry(self, final: TaskStatusUpdateEvent | None, options: RunOptions) -> Outcome | None:
        """Release the run with the status `final`, then publish the run. The next attempt begins at
        `options.not_before`.

        If the next attempt begins much later, or the broker does not accept the message, a watcher publishes the run.

        Returns:
            The outcome if the run was not retried, or None.
        """
        claim = self._run.claim
        delay = options.publish_delay(self._run.clock.now())
        release = await self._queue_retry(final, options, delay // MICROSECOND + FIRST_PUBLISH_GRACE_US)
        if not isinstance(release, Released):
            return Lost()
        if release.state == CANCELED:
            return Canceled()
        await self._publish(claim.scope.agent, claim.ref, options)
        return None

    async def retry_by_celery(self, final: TaskStatusUpdateEvent | None, call: ThreadedCall) -> None:
        """Release the run of a plain task with the status `final`, so that Celery's next message can claim the run.

        If that message is lost or was not published, a watcher publishes the run.
        """
        options, settings = call.options(self._run.claim.options), self._run.settings
        wait = timedelta(seconds=settings.redispatch_after) if call.retry_is_published else timedelta(0)
        check_in = options.next_check_in(SYSTEM_CLOCK.now(), wait)
        call.retry_is_written = isinstance(await self._queue_retry(final, options, check_in // MICROSECOND), Released)

    async def _queue_retry(
        self, final: TaskStatusUpdateEvent | None, options: RunOptions, delay_us: int
    ) -> Released | RunLost:
        """Release the run with `options`. If no message claims the run within `delay_us` µs, a watcher publishes it."""
        operation = partial(release_run, options=options.to_json(), retries=options.retries, delay_us=delay_us)
        return await self._events.release(final, operation, drops_open_artifacts=True)

    async def delegate(self, final: TaskStatusUpdateEvent | None, canvas: str) -> None:
        """Release the run with the status `final`, until `canvas` ends."""
        await self._events.release(final, partial(delegate_to_canvas, canvas=canvas))

    async def suspend(self, final: TaskStatusUpdateEvent | None) -> Outcome | None:
        """Suspend the run with the status `final`, until its wait ends.

        If the wait is already over, the next run of the turn is published at once.

        Returns:
            The outcome if the run was not suspended, or None.
        """
        claim, clock, pending = self._run.claim, self._run.clock, self._run.wait
        assert pending is not None
        options = replace(RunOptions.from_json(claim.options), not_before=None, not_after=None)
        operation = partial(suspend_run, options=options.to_json(), sections=[section for section, _ in claim.sections])
        release = await self._events.release(
            final,
            lambda *run, **written: operation(*run, wait=pending.remaining(clock.monotonic()), **written),
            drops_open_artifacts=True,
        )
        if not isinstance(release, SuspendedRun):
            return Lost()
        if release.state == CANCELED:
            return Canceled()
        if release.next_run is not None:
            await self._publish(claim.scope.agent, RunRef(claim.ref.task_id, release.next_run), options)
        return None
