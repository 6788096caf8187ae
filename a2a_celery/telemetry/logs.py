"""Log lines in text or JSON (setting ``log_format``), with actions and ids.

Each line that operators may search for has an action: ``logger.info("…", extra=about(Action.RUN_ENDED, …))``.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from ..clock import SYSTEM_CLOCK, Clock
from .names import Action

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) != "\t"}
"""Escapes for control characters other than tabs, with which a client could forge a line or control a terminal."""

LINES_PER_SECOND = 10
"""Number of lines that a `LineLimit` admits per second."""

ABOUT = "a2a"
"""Attribute of a log record that contains the fields of `about`."""


def about(action: Action, celery_id: str = "", **fields: str | int | float | None) -> dict[str, Any]:
    """Return the ``extra`` of a log line.

    Args:
        action: Action that the line reports.
        celery_id: Id of a run (``<task id>.<run>``), which also sets ``task`` and ``run``, or "".
        fields: Further fields. Fields that are None are omitted.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    return {ABOUT: {"action": str(action), **_ids(celery_id), **values}}


REPEAT_INTERVAL = 60.0
"""Seconds between two log lines about the same error."""

MAX_ERRORS = 100
"""Maximum number of different errors that a `RepeatedErrors` logs per interval."""


class RepeatedErrors:
    """Errors of a loop that were logged in the last minute. An error that recurs in each iteration is logged once a
    minute."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def is_new(self, error: BaseException) -> bool:
        """Return True if `error` must be logged, because no equal error was logged in the last minute."""
        now = self._clock.monotonic()
        self._logged_at = {text: at for text, at in self._logged_at.items() if now - at < REPEAT_INTERVAL}
        if repr(error) in self._logged_at or len(self._logged_at) >= MAX_ERRORS:
            return False
        self._logged_at[repr(error)] = now
        return True


class LineLimit:
    """Limit for log lines that clients can cause without credentials."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._began = float("-inf")
        self._lines = self._omitted = 0

    @property
    def is_reached(self) -> bool:
        """True if the limit admits no further line in the current second."""
        return self._lines >= LINES_PER_SECOND

    def admit(self) -> int | None:
        """Count a line. Return the number of omitted lines to report before the line, or None to omit the line."""
        now = self._clock.monotonic()
        omitted = 0
        if now - self._began >= 1:
            omitted, self._began, self._lines, self._omitted = self._omitted, now, 0, 0
        self._lines += 1
        if self._lines <= LINES_PER_SECOND:
            return omitted
        self._omitted += 1
        return None


class TextFormatter(logging.Formatter):
    """Formatter for `TEXT_FORMAT` that escapes control characters, so that text from a client cannot begin a new
    line."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format the first line of a record."""
        record.message = record.message.translate(ESCAPED)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Format a traceback with indented lines, so that the text of the exception cannot look like a log line."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {line.translate(ESCAPED)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """Formatter that writes one JSON object per line.

    The object contains the time, level, logger, message, process id, action, ids and exception of the record, and the
    current trace and span.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **getattr(record, ABOUT, _of_celery(record)),
            **_of_trace(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _of_celery(record: logging.LogRecord) -> dict[str, Any]:
    """Return the ids in a record that Celery logged about a task."""
    data = getattr(record, "data", None)
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        return {}
    return _ids(data["id"])


def _ids(celery_id: str) -> dict[str, Any]:
    task, _, run = celery_id.rpartition(".")
    ids: dict[str, Any] = {"celery_id": celery_id} if celery_id else {}
    return ids | {"task": task, "run": int(run)} if task and run.isdecimal() else ids


def _of_trace() -> dict[str, str]:
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
