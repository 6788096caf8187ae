"""Schedules: Celery beat, or another scheduler, submits a message at each tick of a schedule.

Each tick starts at most one task. The tasks of a schedule are listed in an index of the schedule. The delays between
the attempts to submit a tick are those of ``features/retries``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery import Celery

from ...errors import ConfigError
from ..feature import FilteredTasks
from .celery_task import NAME, window_of

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    from celery.schedules import BaseSchedule, crontab

    from ...agents import Agent
    from ...client.session import Content
    from ...store import Keys
    from ...submission import Submissions
    from .section import Overlap

SCHEDULE = "schedule"
"""Name of the schedule, in the metadata of a task that a tick of the schedule created."""
SCHEDULED_AT = "scheduledAt"
"""Time of the tick in ISO 8601, in the metadata of a task that a tick of a schedule created."""


class ScheduleMethods:
    """Methods of `A2A` for schedules."""

    if TYPE_CHECKING:  # members of `A2A`
        celery: Celery
        agents: dict[str, Agent]

        @property
        def _submissions(self) -> Submissions: ...

    def __init__(self) -> None:
        super().__init__()
        self._schedules: set[str] = set()

    def schedule(
        self,
        name: str,
        schedule: crontab | timedelta | float | BaseSchedule,
        agent: str,
        message: Content,
        *,
        owner: str | None = None,
        tenant: str | None = None,
        context_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        extensions: Sequence[str] | None = None,
        overlap: Overlap = "skip",
        **options: Any,
    ) -> None:
        """Add an entry for Celery beat that submits a message at each tick of a schedule.

        At each tick, the process of beat submits the message as `submit` does. If that process cannot submit the
        message, it sends the Celery task ``a2a.submit_scheduled``, and a worker submits the message. A tick starts at
        most one task, even if several beat processes submit it or the broker delivers its Celery message twice.

        Args:
            name: Name of the schedule and of its entry for beat.
            schedule: Celery schedule, timedelta, or interval in seconds.
            agent: Name of an agent that is already registered.
            message: See `submit`.
            owner: See `submit`.
            tenant: See `submit`.
            context_id: Id of the context of all tasks, or None for a new context at each tick.
            metadata: See `submit`.
            extensions: See `submit`.
            overlap: Effect of a tick while a task of the schedule is SUBMITTED or WORKING. "skip": no task is started.
                "allow": a task is started.
            options: Options of the Celery task (queue, priority, expires …). The default queue is the `queue` option of
                the agent. With `expires`, `countdown`, `eta`, `link` or `link_error`, a worker submits every message.

        Raises:
            ConfigError: The name is taken, there is no such agent, or another argument is invalid.
        """
        from .messages import ScheduledMessage  # noqa: PLC0415 -- protobuf

        if name in self._schedules:
            raise ConfigError(f"there is a schedule {name!r} already: pass another name")
        fields: dict[str, Any] = {"owner": owner, "tenant": tenant, "context_id": context_id, "metadata": metadata}
        fields |= {"extensions": extensions, "overlap": overlap, "window": window_of(schedule)}
        scheduled_message = ScheduledMessage.of(self.agents, name, agent, message, **fields)
        queue = self.agents[agent].options.get("queue")
        options = {**({"queue": queue} if queue else {}), **options}
        self._schedules.add(name)
        task = self.celery.signature(NAME, kwargs=scheduled_message.arguments(), options=options)
        self.celery.add_periodic_task(schedule, task, name=name)

    def _submit_tick(self, arguments: Mapping[str, Any], at_us: int) -> dict[str, str]:
        from .messages import ScheduledMessage, submit_tick  # noqa: PLC0415 -- protobuf

        submissions = self._submissions  # imports the modules of the app
        scheduled_message = ScheduledMessage.of(self.agents, **arguments)
        return submissions.run(lambda process: submit_tick(process, scheduled_message, at_us))


def tasks_of_schedule(keys: Keys, schedule: str) -> FilteredTasks:
    """Return the tasks of a schedule, with its skipped ticks as further rows."""
    from .section import schedule_index, skipped_ticks  # noqa: PLC0415 -- protobuf

    ticks = skipped_ticks(keys, schedule)
    return FilteredTasks(schedule_index(keys, schedule), ticks, "skippedTick", "skipped: the tick at")
