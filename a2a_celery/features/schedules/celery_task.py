"""Celery task ``a2a.submit_scheduled``, which Celery beat or another scheduler calls at each tick of a schedule.

The calling process submits the tick, because a message that a worker has prefetched may wait for the broker's
visibility timeout after the worker is killed. A tick that the calling process cannot submit is sent to a worker. If the
store is unavailable, the calling process also tries again, because the worker may be killed.

The module does not import the SDK, because every process that registers agents imports it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime, timedelta
from threading import Lock, Thread
from time import sleep
from typing import Any, cast

from celery import Celery, Task
from celery.result import EagerResult
from celery.schedules import crontab
from celery.schedules import schedule as interval
from celery.states import SUCCESS

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import BlobsUnavailable, ConfigError, StoreUnavailable
from ..retries import RetryPolicy

logger = logging.getLogger(__name__)

NAME = "a2a.submit_scheduled"

TICK_HEADER = "a2a_tick"
"""Header with the time of the tick in µs. The process of the scheduler sets the header if that process has imported
the app's module. Otherwise, the worker computes the time."""

SUBMIT_TIMEOUT = 5.0
"""Seconds for which the scheduler's process waits until the tick is submitted."""

OPTIONS_OF_MESSAGES = frozenset({"countdown", "eta", "expires", "link", "link_error", "chain", "chord", "group_id"})
"""Celery options that have no equivalent for an A2A task. A tick with such an option is sent to a worker."""

DEFAULT_WINDOW = 30.0
"""Seconds within which two messages of a schedule count as the same tick. This default applies if the schedule is
neither a crontab nor an interval, or if the Celery message has no `window`."""

INTERVAL_WINDOW = 0.9
"""Window of a schedule with a fixed interval, as a fraction of the interval. Two schedulers may have different phases,
and the time between a late message and the next message may be shorter than the interval."""

PERIODS = (timedelta(minutes=1), timedelta(hours=1), timedelta(days=1), timedelta(days=31), timedelta(days=1462))
"""Lengths of the periods that are searched, in this order, for the latest time of a crontab. Each period ends at the
current time, and the longest contains a leap day."""

MAX_RETRIES = 120
"""Maximum number of retries of a tick, about an hour. With Celery's jitter, a delay is half of `RETRY_DELAY` on
average."""
RETRY_DELAY = 60
"""Maximum seconds between two retries of a tick."""
RETRIES = RetryPolicy(retry_backoff=True, retry_backoff_max=RETRY_DELAY)

MAX_UNSUBMITTED = 1000
"""Maximum number of ticks that a process tries again."""

RETRY_FOR = timedelta(hours=1)
"""Time for which a process tries a tick again."""


class TickRetrier:
    """Repeated submission of the ticks that this process could not submit, in a thread, until the store is available.

    Workers have the messages of the ticks, too, unless the broker was also unavailable.

    Args:
        submit: Function that submits the tick with these arguments at this time in µs. A repeated call for the same
            tick has no effect.
        pause: Function that waits for a number of seconds.
        clock: Clock of the ticks.
    """

    def __init__(
        self,
        submit: Callable[[Mapping[str, Any], int], object],
        pause: Callable[[float], object] = sleep,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._submit = submit
        self._pause = pause
        self._clock = clock
        self._ticks: deque[tuple[Mapping[str, Any], int]] = deque()
        self._lock = Lock()
        self._thread: Thread | None = None

    @property
    def is_retrying(self) -> bool:
        """True while the thread runs. False in a forked process until a tick is added."""
        return self._thread is not None and self._thread.is_alive()

    def add(self, arguments: Mapping[str, Any], at_us: int) -> None:
        """Add a tick. The call returns immediately."""
        with self._lock:
            self._ticks.append((arguments, at_us))
            if len(self._ticks) > MAX_UNSUBMITTED:
                self._give_up(self._ticks.popleft(), "too many ticks are not submitted")
            if not self.is_retrying:
                thread = Thread(target=self._retry, name="a2a-tick-retries", daemon=True)
                thread.start()
                self._thread = thread

    def _retry(self) -> None:
        retries = 0
        while True:
            self._pause(RETRIES.backoff(retries))
            retries = 0 if self._submit_all() else retries + 1
            with self._lock:
                oldest = (self._clock.now() - RETRY_FOR).timestamp() * 1_000_000
                while self._ticks and self._ticks[0][1] < oldest:
                    self._give_up(self._ticks.popleft(), "the store was not available in time")
                if not self._ticks:
                    self._thread = None
                    return

    def _submit_all(self) -> bool:
        """Submit the ticks in their order, until the store is unavailable. Return True if a tick was submitted."""
        is_available = False
        for tick in tuple(self._ticks):
            try:
                self._submit(*tick)
            except BlobsUnavailable:
                continue  # other ticks may have no large parts
            except StoreUnavailable:
                break
            except BaseException as e:
                self._give_up(tick, str(e))
            is_available = True
            with self._lock:
                if tick in self._ticks:  # unless newer ticks have replaced it
                    self._ticks.remove(tick)
        return is_available

    def _give_up(self, tick: tuple[Mapping[str, Any], int], reason: str) -> None:
        logger.warning("schedule %r: this process does not submit the tick: %s", tick[0]["schedule"], reason)


class ScheduleTask(Task):  # type: ignore[misc]
    """Celery task that submits the message of a tick. A redelivered Celery message does not start a second A2A task."""

    acks_late = True
    reject_on_worker_lost = True
    submission: Future[dict[str, str]] | None = None
    """Newest submission of a tick by this process."""
    retrier: TickRetrier | None = None
    submit_timeout = SUBMIT_TIMEOUT

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Submit the tick in this process, or send the Celery task to a worker if this process cannot submit the tick.

        The header of the Celery message contains the time of the tick. A message that has the header, such as a retry,
        is sent to a worker.

        Returns:
            The result of the tick, or an AsyncResult if the Celery task was sent.
        """
        headers = options.pop("headers", None) or {}
        if TICK_HEADER not in headers:
            schedule = (kwargs or {}).get("schedule") or (args[0] if args else "")
            at = tick_time(self.app, schedule, SYSTEM_CLOCK.now())
            headers = {**headers, TICK_HEADER: at}
            if not any(options.get(name) for name in OPTIONS_OF_MESSAGES):
                try:
                    result = self._submit(arguments_of(*args or (), **kwargs or {}), at)
                except Exception as e:
                    logger.warning("schedule %r: a worker will submit the tick: %s", schedule, e)
                else:
                    return EagerResult(result["task_id"], result, SUCCESS, name=self.name)
        return super().apply_async(args, kwargs, *rest, headers=headers, **options)

    def submit(self, arguments: Mapping[str, Any], at_us: int) -> dict[str, str]:
        """Submit the message of the tick at `at_us`, and return the result of the Celery task."""
        return cast(dict[str, str], self.app.a2a_celery._submit_tick(arguments, at_us))

    def _submit(self, arguments: Mapping[str, Any], at_us: int) -> dict[str, str]:
        """Submit a tick in a thread, and wait for at most `submit_timeout` seconds.

        The submission may continue after the wait, because a tick can be submitted repeatedly.

        Raises:
            StoreUnavailable: The store is unavailable. The process tries again.
            TimeoutError: The store or the broker did not reply in time, or has not replied to an earlier tick. The
                process tries again.
            Exception: The tick was not submitted.
        """
        try:
            return self._first_try(arguments, at_us)
        except (StoreUnavailable, TimeoutError):
            self.retrier = self.retrier or TickRetrier(self.submit)
            self.retrier.add(arguments, at_us)
            raise

    def _first_try(self, arguments: Mapping[str, Any], at_us: int) -> dict[str, str]:
        if self.submission is not None and not self.submission.done():
            raise TimeoutError("the submission of an earlier tick is in progress")
        future: Future[dict[str, str]] = Future()
        self.submission = future

        def submit() -> None:
            try:
                future.set_result(self.submit(arguments, at_us))
            except BaseException as e:
                future.set_exception(e)

        Thread(target=submit, name="a2a-tick", daemon=True).start()
        if not wait([future], self.submit_timeout).done:
            raise TimeoutError(f"it was not submitted within {self.submit_timeout:g} s")
        return future.result()


def register_schedule_task(app: Celery) -> None:
    """Register the Celery task with `app`. Celery creates the task when the app is finalized, so the app may be
    configured later."""

    def submit_scheduled(self: ScheduleTask, *args: Any, **kwargs: Any) -> dict[str, str]:
        arguments = arguments_of(*args, **kwargs)
        at = (self.request.headers or {}).get(TICK_HEADER)
        if at is None:  # the scheduler's process does not import the module of the app
            at = tick_time(app, arguments["schedule"], SYSTEM_CLOCK.now())
        return self.submit(arguments, int(at))

    app.task(
        name=NAME,
        base=ScheduleTask,
        bind=True,
        shared=False,
        autoretry_for=(StoreUnavailable,),
        retry_backoff=True,
        retry_backoff_max=RETRY_DELAY,
        retry_jitter=True,
        max_retries=MAX_RETRIES,
    )(submit_scheduled)


def arguments_of(
    schedule: str,
    agent: str,
    message: Any,
    owner: str = "",
    tenant: str = "",
    context_id: str = "",
    metadata: Mapping[str, Any] | None = None,
    extensions: Sequence[str] = (),
    overlap: str = "skip",
    window: float = DEFAULT_WINDOW,
) -> dict[str, Any]:
    """Return the arguments of the Celery task by name, with the default values of omitted arguments."""
    return locals()


def tick_time(app: Celery, schedule: str, now: datetime) -> int:
    """Return the time, in µs, of the tick of a message that is sent at `now`.

    If the entry `schedule` of the app's ``beat_schedule`` has a crontab, the result is the crontab's latest time up to
    `now`. A late message and the message of another scheduler therefore belong to the same tick. Otherwise, the result
    is `now`.
    """
    entry = app.conf.beat_schedule.get(schedule)
    entry_schedule = entry.get("schedule") if isinstance(entry, Mapping) else None
    at = last_time(entry_schedule, now) if isinstance(entry_schedule, crontab) else now
    return round(at.timestamp() * 1_000_000)


def last_time(schedule: crontab, now: datetime) -> datetime:
    """Return the latest time of a crontab up to `now`, or `now` if the crontab has no time in the last four years."""
    for period in PERIODS:
        time = _next_time(schedule, now - period)
        if time <= now:
            while (following := _next_time(schedule, time)) <= now:
                time = following
            return time
    return now


def _next_time(schedule: crontab, time: datetime) -> datetime:
    last, delta, _ = schedule.remaining_delta(time)
    return cast(datetime, last + delta).astimezone(UTC)


def window_of(schedule: Any) -> float:
    """Return the seconds within which two messages of `schedule` count as the same tick.

    Raises:
        ConfigError: `schedule` is not a schedule of Celery, or its interval is not positive.
    """
    if isinstance(schedule, crontab):
        return 0.0  # the tick times of a crontab are exact
    if isinstance(schedule, interval):
        schedule = schedule.run_every
    seconds = schedule.total_seconds() if isinstance(schedule, timedelta) else schedule
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        if hasattr(seconds, "remaining_estimate"):  # such as celery.schedules.solar
            return DEFAULT_WINDOW
        raise ConfigError(f"schedule={schedule!r}: pass a crontab, a timedelta or a number of seconds")
    if not seconds > 0:
        raise ConfigError(f"schedule={schedule!r}: the interval must be longer than 0 s")
    return INTERVAL_WINDOW * seconds
