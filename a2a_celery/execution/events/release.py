"""Release of runs that are retried or suspended."""

from __future__ import annotations

from dataclasses import replace

from a2a.types import Task, TaskStatusUpdateEvent

from ...dispatch import RunOptions
from ...lifecycle import Canceled, Lost, Outcome
from ...lifecycle.events import MICROSECOND
from ...lifecycle.journal import RunRecord
from ...lifecycle.references import RunRef
from ...lifecycle.states import CANCELED
from ...store import Operation
from ...store.operation import FIRST_PUBLISH_GRACE_US
from ...store.runs.commands import Illegal, RunLost
from ...store.runs.release import Released
from ...store.runs.suspension import SuspendedRun, suspend_run
from ..open_run import OpenRun
from ..plain_tasks.threaded_call import released_for_retry
from .queue import RunEventQueue
from .settlement import PublishNext


class RunRelease:
    """Release of a run from its worker, so that the run is retried or waits for a time, a signal or another task."""

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
        claim, keys = self._run.claim, self._run.keys
        delay = options.publish_delay(self._run.clock.now())
        delay_us = delay // MICROSECOND + FIRST_PUBLISH_GRACE_US
        make_release = released_for_retry(keys, claim, options, delay_us)
        release = await self._events.release(final, make_release, drops_open_artifacts=True)
        if not isinstance(release, Released):
            return Lost()
        if release.state == CANCELED:
            return Canceled()
        await self._publish(claim.scope.agent, claim.ref, options)
        return None

    async def suspend(self, final: TaskStatusUpdateEvent | None) -> Outcome | None:
        """Suspend the run with the status `final`, until its wait ends.

        If the wait is already over, the next run of the turn is published at once.

        Returns:
            The outcome if the run was not suspended, or None.
        """
        claim, keys, clock, pending = self._run.claim, self._run.keys, self._run.clock, self._run.wait
        assert pending is not None
        options = replace(RunOptions.from_json(claim.options), not_before=None, not_after=None)

        def make_release(
            written_count: int, rest: list[RunRecord], replacement: Task | None
        ) -> Operation[SuspendedRun | RunLost | Illegal]:
            return suspend_run(
                keys,
                claim.ref,
                token=claim.token,
                written_count=written_count,
                events=rest,
                wait=pending.remaining(clock.monotonic()),
                options=options.to_json(),
                replacement=replacement,
                sections=[section for section, _ in claim.sections],
            )

        release = await self._events.release(final, make_release, drops_open_artifacts=True)
        if not isinstance(release, SuspendedRun):
            return Lost()
        if release.state == CANCELED:
            return Canceled()
        if release.next_run is not None:
            await self._publish(claim.scope.agent, RunRef(claim.ref.task_id, release.next_run), options)
        return None
