"""Reports of the fleet's workers, and their drain, through Celery's remote control."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery

from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import ask_workers, worker_reports
from ...operations.errors import MAX_ID_LENGTH, invalid
from ...telemetry.names import Action
from ..health import SingleCall
from ..protocol_errors import ServiceUnavailableError
from . import audit
from .operator_request import OperatorRequest

logger = logging.getLogger(__name__)

REPLY_TIMEOUT = 1.0
"""Seconds within which workers must report."""

COMMAND_TIMEOUT = 3.0
"""Seconds within which one worker must reply to a command."""

BROKER_TIMEOUT = 5.0
"""Seconds that a broadcast may take in addition to the timeout for replies. After this time, the broker is regarded as
unreachable."""

REPORTS_FRESH_FOR = 2.0
"""Seconds for which the workers' reports are reused, so that several open pages share one broadcast."""


class FleetWorkers:
    """Workers that Celery's remote control reaches. Commands are accepted for workers with the key prefix `prefix`."""

    def __init__(self, app: Celery, prefix: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._prefix = prefix
        self._ask = SingleCall(lambda query, *arguments: query(app, *arguments))
        self._reports: Mapping[str, Mapping[str, Any]] = {}
        self._reported_at = float("-inf")
        self._lock = asyncio.Lock()

    async def reports(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the workers' reports, up to `REPORTS_FRESH_FOR` seconds old. Concurrent requests share one broadcast.

        Raises:
            ServiceUnavailableError: The broker is unreachable.
        """
        async with self._lock:
            if self._clock.monotonic() - self._reported_at > REPORTS_FRESH_FOR:
                self._reports = await self._replies(worker_reports, REPLY_TIMEOUT)
                self._reported_at = self._clock.monotonic()
            return self._reports

    async def drain(self, request: OperatorRequest) -> dict[str, Any]:
        """Make the worker in the path stop consuming and return its prefetched runs. The call does not wait for active
        runs.

        Returns:
            The name of the worker, the queues that the worker no longer consumes, and the number of returned runs.

        Raises:
            InvalidParamsError: No worker of this fleet with this name replies.
            ServiceUnavailableError: The broker is unreachable.
        """
        return await self._command("a2a_drain", Action.WORKER_DRAINED, request)

    async def undrain(self, request: OperatorRequest) -> dict[str, Any]:
        """Make a drained worker consume again, and return its name and queues. See `drain` for the errors."""
        return await self._command("a2a_undrain", Action.WORKER_UNDRAINED, request)

    async def _command(self, command: str, action: Action, request: OperatorRequest) -> dict[str, Any]:
        name = request.http.path_params["name"]
        report = (await self.reports()).get(name, {})
        is_ours = report.get("settings", {}).get("key_prefix") == self._prefix

        def query(app: Celery, timeout: float) -> dict[str, Mapping[str, Any]]:
            return ask_workers(app, command, timeout, [name])

        async with self._lock:
            reply = (await self._replies(query, COMMAND_TIMEOUT)).get(name, {}) if is_ours else {}
            self._reported_at = float("-inf")
        result = "missing" if not is_ours else "done" if "queues" in reply else "silent"
        audit.record(action, request.operator, f"worker {name}", result, worker=name)
        if result != "done":
            raise invalid(
                "worker",
                f"No worker {name[:MAX_ID_LENGTH]!r} of this fleet replies: it has ended, has another name, or runs a "
                "task on the solo pool.",
            )
        return {"worker": name, **reply}

    async def _replies(
        self, query: Callable[[Celery, float], dict[str, Mapping[str, Any]]], timeout: float
    ) -> Mapping[str, Mapping[str, Any]]:
        try:
            replies: Mapping[str, Mapping[str, Any]]
            replies = await self._ask.result(2 * timeout + BROKER_TIMEOUT, query, timeout)
        except Exception as e:  # each transport has its own errors, whose texts may contain an address
            logger.warning("could not query the workers: %s", type(e).__name__)
            raise ServiceUnavailableError("The broker is unreachable: try again later") from None
        return replies
