"""Output of ``print`` in a worker, one log record for each call.

Celery redirects standard output and standard error to a logger, and logs every write separately. ``print("a", b)``
writes three times.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

from celery.utils.log import LoggingProxy

MAX_LENGTH = 10_000
"""Number of characters of an unfinished line that are logged without waiting for the end of the line."""


class PrintedLines(LoggingProxy):  # type: ignore[misc]
    """File that logs each call of ``print`` as one record, also if it has several values or lines.

    An unfinished line of a thread is logged when the thread flushes the file, or when a Celery task of the process
    ends.

    Attributes:
        unfinished: Unfinished lines by the identifier of their thread.
    """

    def __init__(self, logger: Any, loglevel: int) -> None:
        super().__init__(logger, loglevel)
        self.unfinished: dict[int, str] = {}

    def write(self, data: Any) -> int:
        """Log the text of the current thread up to `data`, or keep it if it does not end with a newline."""
        if not isinstance(data, str):
            return int(super().write(data))
        text = self.unfinished.pop(get_ident(), "") + data
        if text.endswith("\n") or len(text) > MAX_LENGTH:
            super().write(text)
        elif text:
            self.unfinished[get_ident()] = text
        return len(data)

    def flush(self) -> None:
        """Log the unfinished line of the current thread."""
        self._log(get_ident())

    def flush_all(self) -> None:
        """Log the unfinished lines of all threads."""
        for thread in list(self.unfinished):
            self._log(thread)

    def _log(self, thread: int) -> None:
        super().write(self.unfinished.pop(thread, ""))
