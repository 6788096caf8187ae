"""Calls to plain Celery tasks in a Celery thread, and the release of their runs for a retry or a canvas."""

from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from a2a.types import Task
from celery import Celery
from celery import Task as CeleryTask
from celery.exceptions import Retry
from kombu.utils import json as kombu_json

from ...clock import SYSTEM_CLOCK
from ...dispatch import RunOptions
from ...lifecycle import Outcome
from ...lifecycle.events import MICROSECOND
from ...lifecycle.journal import RunRecord
from ...settings import Settings
from ...store import Keys, Operation
from ...store.runs.commands import Claim, Illegal, RunLost
from ...store.runs.release import Released, delegate_to_canvas, release_run
from ..agents.adapters import Adapter
from ..events.queue import ReleaseOperation

Answer = Released | RunLost | Illegal


class ThreadedCall(Adapter, Protocol):
    """Plain Celery task that is called in the thread that received the task's message."""

    retries: int

    retry_is_published: bool
    """True if the broker has accepted Celery's message for the next attempt."""

    retry_is_written: bool
    """True if the retry is recorded in the store."""

    @property
    def max_attempts(self) -> int | None:
        """Maximum number of attempts by Celery, or None for no limit."""
        ...

    def lend_thread(self, run: Future[Outcome | None]) -> Outcome | None:
        """Call the task in this thread when its run has been claimed.

        Returns:
            The outcome of `run`, or None if this worker did not claim the run.
        """
        ...

    def options(self, content: bytes) -> RunOptions:
        """Return the options with which the run is published for its retry.

        Args:
            content: Options of the current attempt.
        """
        ...


def max_attempts(task: CeleryTask) -> int | None:
    """Return the maximum number of attempts of `task` by Celery, or None for no limit."""
    most: int | None = getattr(task, "override_max_retries", task.max_retries)
    return None if most is None else most + 1


def time_of(retry: Retry, app: Celery) -> datetime | None:
    """Return the start time of the attempt that follows `retry`, or None if the attempt starts at once."""
    when = retry.when
    if isinstance(when, int | float):
        when = app.now() + timedelta(seconds=when) if when else None
    return when if isinstance(when, datetime) else None


def retry_options(content: bytes, retry: Retry, retries: int, app: Celery) -> RunOptions:
    """Return the options with which the run is published for its next attempt.

    Args:
        content: Options of the current attempt.
        retry: Celery's exception for the retry.
        retries: Number of retries of the run, including this one.
        app: Celery app of the task.
    """
    options = RunOptions.from_json(content)
    call, signature = options.call, retry.sig
    if call is not None and signature is not None and not signature.args:
        with suppress(TypeError, ValueError):  # the arguments are not JSON, so only Celery's message contains them
            kwargs = kombu_json.dumps(dict(signature.kwargs))  # type: ignore[no-untyped-call]
            call = replace(call, kwargs=json.loads(kwargs))
    return replace(options, call=call, retries=retries, not_before=time_of(retry, app))


def retry_release(keys: Keys, claim: Claim, call: ThreadedCall, settings: Settings) -> ReleaseOperation[Released]:
    """Return the builder of the operation that allows Celery's next message to claim the run.

    If that message is lost or was not published, a watcher publishes the run.
    """
    options = call.options(claim.options)
    wait = timedelta(seconds=settings.redispatch_after) if call.retry_is_published else timedelta(0)
    check_in = options.next_check_in(SYSTEM_CLOCK.now(), wait)
    return released_for_retry(keys, claim, options, check_in // MICROSECOND)


def released_for_retry(keys: Keys, claim: Claim, options: RunOptions, delay_us: int) -> ReleaseOperation[Released]:
    """Return the builder of the operation that releases the run with `options`.

    If no message claims the run within `delay_us` µs, a watcher publishes the run.
    """

    def make_release(written_count: int, rest: list[RunRecord], replacement: Task | None) -> Operation[Answer]:
        return release_run(
            keys,
            claim.ref,
            token=claim.token,
            written_count=written_count,
            events=rest,
            options=options.to_json(),
            retries=options.retries,
            delay_us=delay_us,
            replacement=replacement,
        )

    return make_release


def canvas_release(keys: Keys, claim: Claim, canvas: str) -> ReleaseOperation[Released]:
    """Return the builder of the operation that delegates the run to `canvas`."""

    def make_release(written_count: int, rest: list[RunRecord], _: Task | None) -> Operation[Answer]:
        return delegate_to_canvas(
            keys, claim.ref, token=claim.token, written_count=written_count, events=rest, canvas=canvas
        )

    return make_release
