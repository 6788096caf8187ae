"""Trace the writes of a store.

Reads have no span. An append, of which a long stream makes thousands, adds an event to the current span.
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
"""Scripts that have a span."""

RECORDED = "append"


class TracedStore(AsyncStore):
    """`AsyncStore` whose writes have spans if tracing is on."""

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
            spans.appended(reply.version)
        return reply
