"""What is measured, a function each: given a stage, it gives one result, or several that are taken together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..results import Result
from ..stage import Stage
from . import bare, cancel, echo, growth, idle, kept, latency, streams, waiting, webhooks

Measure = Callable[[Stage], Sequence[Result]]

MEASURES: dict[str, Measure] = {
    "echo": echo.at_once,
    "echo-alone": echo.alone,
    "bare-celery": bare.measure,
    "streams": streams.measure,
    "latency": latency.measure,
    "growth": growth.measure,
    "idle-streams": idle.measure,
    "kept-tasks": kept.measure,
    "cancel": cancel.measure,
    "webhooks": webhooks.measure,
    "waiting": waiting.measure,
}
"""By the name that `--only` takes."""

SHORT = ("echo", "echo-alone", "streams")
"""Those that `--short` takes: what most requests are."""
