"""Confirmation of writes by replicas (`store_wait_replicas`, the WAIT command of Redis).

WAIT follows the write on the same connection. If the connection breaks before the reply, both commands are sent again.
After a failover, the new primary therefore has each confirmed write, and receives each unconfirmed write again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ...errors import StoreUnavailable
from ...telemetry.logs import about
from ...telemetry.names import Action
from ..operation import Operation
from .round_trips import Command

logger = logging.getLogger(__name__)

ACCEPTING = frozenset({"create_task", "continue_task", "send_signal"})
"""Scripts that accept a message or a signal. If the write is not confirmed, the call raises `StoreUnavailable`,
although the write may take effect."""

ENDING = frozenset(
    {
        *("settle_run", "end_run", "end_by_result", "lapse_run", "revoke_run", "request_cancel"),
        *("end_pauses", "return_run", "release_run", "retry_run", "suspend_run"),
    }
)
"""Scripts that may end a task. Each call waits for the confirmation, even if it does not end a task.

An unconfirmed write remains valid, because clients may already know that the task has ended. Only a warning is logged.
"""


class Replicas:
    """Confirmation, by replicas, of the writes of the scripts in `ACCEPTING` and `ENDING`, and of operations that end a
    task.

    Args:
        count: Number of replicas that must confirm a write, at least 1.
        timeout_ms: Milliseconds that the replicas may take.
    """

    def __init__(self, count: int, timeout_ms: int) -> None:
        self._count = count
        self._timeout_ms = timeout_ms

    @property
    def command(self) -> Command:
        """WAIT command that follows the writes on a connection."""
        return ("WAIT", self._count, self._timeout_ms)

    def confirm(self, operation: Operation[Any]) -> bool:
        """Return True if replicas must confirm `operation`."""
        return operation.script.name in ACCEPTING | ENDING or operation.ends_task

    def checked(self, operations: Sequence[Operation[Any]], replies: Sequence[Any], confirmations: Any) -> list[Any]:
        """Return the replies of writes after WAIT.

        If too few replicas confirmed the writes, `StoreUnavailable` replaces the reply of each script in `ACCEPTING`.
        Other scripts keep their replies.

        Args:
            operations: Writes on one connection.
            replies: Reply or error of each write.
            confirmations: Reply of `command`: the number of replicas that have the writes, or an error.
        """
        if isinstance(confirmations, int) and confirmations >= self._count:
            return list(replies)
        return [
            reply
            if isinstance(reply, Exception)
            else self._shortfall_reply(operation.script.name, reply, confirmations)
            for operation, reply in zip(operations, replies, strict=True)
        ]

    def _shortfall_reply(self, verb: str, reply: Any, confirmations: Any) -> Any:
        shortfall = f"{confirmations} of {self._count} replicas confirmed {verb} within {self._timeout_ms} ms"
        if isinstance(confirmations, Exception):
            shortfall = f"the replicas did not confirm {verb} ({confirmations})"
        if verb in ACCEPTING:
            return StoreUnavailable(f"{shortfall}: the primary has stored the write, which may take effect")
        logger.warning("a failover may undo the end of a task: %s", shortfall, extra=about(Action.REPLICAS_LATE))
        return reply
