"""Benchmark functions. Each function takes an `Environment` and returns one or more results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..environment import Environment
from ..results import Result
from . import bare, cancel, echo, growth, idle, latency, stored_tasks, streams, waiting, webhooks

Measure = Callable[[Environment], Sequence[Result]]

MEASURES: dict[str, Measure] = {
    "echo": echo.at_once,
    "echo-alone": echo.alone,
    "bare-celery": bare.measure,
    "streams": streams.measure,
    "latency": latency.measure,
    "growth": growth.measure,
    "idle-streams": idle.measure,
    "stored-tasks": stored_tasks.measure,
    "cancel": cancel.measure,
    "webhooks": webhooks.measure,
    "waiting": waiting.measure,
}
"""Benchmarks by their name for `--only`."""

SHORT = ("echo", "echo-alone", "streams")
"""Benchmarks of `--short`. They measure the most common requests."""
