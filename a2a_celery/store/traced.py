"""A store whose writes show in traces: for whoever works for a request or a run.

What only reads is left out, and an append, of which a long stream makes thousands, is noted in the span at hand.
"""

from __future__ import annotations

from typing import TypeVar

from ..telemetry.names import SpanName
from ..telemetry.tracing import tracing
from .connection import AsyncStore
from .operation import Operation
from .runs import Written

T = TypeVar("T")

SHOWN = frozenset({"create_task", "continue_task", "request_cancel", "claim_run", "settle_run", "release_run"})
"""The verbs that have a span."""

NOTED = "append"


class TracedStore(AsyncStore):
    """An `AsyncStore`; where nobody traces it is nothing else."""

    async def run(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run`."""
        verb = operation.script.name
        spans = tracing() if verb == NOTED or verb in SHOWN else None
        if spans is None:
            return await super().run(operation)
        if verb in SHOWN:
            with spans.spanning(SpanName.STORE.format(verb=verb), {}):
                return await super().run(operation)
        answer = await super().run(operation)
        if isinstance(answer, Written):
            spans.appended(answer.version)
        return answer
