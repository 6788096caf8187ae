"""Token usage of a turn, in one format for all frameworks."""

from __future__ import annotations

from typing import Any

from a2a.types import TaskStatusUpdateEvent

from ..lifecycle.json_values import portable_text
from ..lifecycle.own_metadata import USAGE, own_metadata

Counts = dict[str, int]


class Usage:
    """Token counts, summed for each model.

    Attributes:
        by_model: Counts by model name ("" if the framework does not report the name). Counts of 0 are left out, except
            for `inputTokens` and `outputTokens`.
    """

    def __init__(self, by_model: dict[str, Counts] | None = None) -> None:
        self.by_model: dict[str, Counts] = {} if by_model is None else by_model

    def add(
        self,
        model: str | None,
        *,
        inputs: int | None,
        outputs: int | None,
        cache_reads: int | None = None,
        cache_writes: int | None = None,
        reasoning: int | None = None,
    ) -> None:
        """Add the tokens of one or more calls to `model`. A call without tokens is ignored. None counts as 0.

        Args:
            model: Name of the model, or None if it is unknown.
            inputs: Tokens of the request.
            outputs: Tokens of the response.
            cache_reads: Request tokens that the provider has read from its cache.
            cache_writes: Request tokens that the provider has written to its cache.
            reasoning: Response tokens that the model has used for reasoning.
        """
        if not inputs and not outputs:
            return
        counts = self.by_model.setdefault(portable_text(model or ""), {"inputTokens": 0, "outputTokens": 0})
        counts["inputTokens"] += inputs or 0
        counts["outputTokens"] += outputs or 0
        optional = {"cacheReadTokens": cache_reads, "cacheWriteTokens": cache_writes, "reasoningTokens": reasoning}
        for name, count in optional.items():
            if count:
                counts[name] = counts.get(name, 0) + count

    def add_all(self, other: Usage) -> None:
        """Add the sums of `other`."""
        for model, counts in other.by_model.items():
            sums = self.by_model.setdefault(model, {})
            for name, count in counts.items():
                sums[name] = sums.get(name, 0) + count

    def apply(self, event: TaskStatusUpdateEvent) -> TaskStatusUpdateEvent:
        """Write the sums to the metadata of the turn's final status `event`, and return the event."""
        if self.by_model:
            metadata: dict[str, Any] = own_metadata({USAGE: self.by_model})
            event.metadata.update(metadata)
        return event
