"""Retries of plain Celery tasks by Celery: their number, their time, and the options of the next attempt."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from celery import Celery, Task
from celery.exceptions import Retry
from kombu.utils import json as kombu_json

from ...dispatch import RunOptions


def max_attempts(task: Task) -> int | None:
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
