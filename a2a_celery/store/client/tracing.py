"""Tracing of store operations.

Only executions of the scripts in `SHOWN` have their own spans. An append only adds an event to the current span,
because a long stream makes thousands of appends.
"""

from __future__ import annotations

from typing import TypeVar

from ...telemetry.names import SpanName
from ...telemetry.tracing import tracing
from ..operation import Operation
from ..runs.commands import Written
from .connection import AsyncStore

T = TypeVar("T")

SHOWN = frozenset({"create_task", "continue_task", "request_cancel", "claim_run", "settle_run", "release_run"})
"""Scripts whose executions have their own spans."""

RECORDED = "append"


class TracedStore(AsyncStore):
    """Store client that traces appends and the scripts in `SHOWN` if tracing is enabled."""

    async def run(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run`."""
        verb = operation.script.name
        spans = tracing() if verb == RECORDED or verb in SHOWN else None
        if spans is None:
            return await super().run(operation)
        if verb in SHOWN:
            with spans.spanning(SpanName.STORE.format(verb=verb), {}):
                return await super().run(operation)
        reply = await super().run(operation)
        if isinstance(reply, Written):
            spans.record_append(reply.version)
        return reply
