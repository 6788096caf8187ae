"""Confirmation of writes by replicas (`store_wait_replicas`, the WAIT command of Redis).

WAIT follows the write on the same connection. If the connection breaks before the reply, write and WAIT are sent again.
A failover therefore loses no confirmed write, and the new primary receives an unconfirmed one.
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

REPLICA_TIMEOUT_MS = 1000
"""Milliseconds that replicas may take to confirm a write."""

ACCEPTING = frozenset({"create_task", "continue_task"})
"""Scripts that accept a message. Without confirmation the message is refused."""

ENDING = frozenset(
    {
        *("settle_run", "end_run", "end_by_result", "lapse_run", "revoke_run", "request_cancel"),
        *("end_pauses", "return_run", "release_run", "retry_run"),
    }
)
"""Scripts that may end tasks. Without confirmation the write stands and a warning is logged: clients have seen the end.

Each call waits for the confirmation, also if it ends no task.
"""


class Replicas:
    """Number of replicas that confirm a write which accepts a message or ends a task; 0: no write waits."""

    def __init__(self, count: int) -> None:
        self._count = count

    @property
    def command(self) -> Command:
        """Command that follows the writes on a connection."""
        return ("WAIT", self._count, REPLICA_TIMEOUT_MS)

    def confirm(self, operation: Operation[Any]) -> bool:
        """Return whether `operation` is a write that replicas confirm."""
        return self._count > 0 and operation.script.name in ACCEPTING | ENDING

    def checked(self, operations: Sequence[Operation[Any]], replies: Sequence[Any], confirmed: Any) -> list[Any]:
        """Return the replies to writes, with an error for each write that is refused without confirmation.

        Args:
            operations: The writes of one connection.
            replies: Their replies, or errors.
            confirmed: The reply to `command`: how many replicas have the writes, or an error.
        """
        if isinstance(confirmed, int) and confirmed >= self._count:
            return list(replies)
        return [
            reply if isinstance(reply, Exception) else self._unconfirmed(operation.script.name, reply, confirmed)
            for operation, reply in zip(operations, replies, strict=True)
        ]

    def _unconfirmed(self, verb: str, reply: Any, confirmed: Any) -> Any:
        shortfall = f"{confirmed} of {self._count} replicas confirmed {verb} within {REPLICA_TIMEOUT_MS} ms"
        if verb in ACCEPTING:
            return StoreUnavailable(f"{shortfall}: the write stays on the primary, and may take effect")
        logger.warning("a failover may undo the end of a task: %s", shortfall, extra=about(Action.REPLICAS_LATE))
        return reply
