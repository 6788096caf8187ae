"""What a process counts, as it is shown: the metrics that ``names`` has, and no other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from .names import FIGURES


class Source(Protocol):
    """A registry, or a collector."""

    def collect(self) -> Iterable[Metric]:
        """Its metrics."""
        ...


class Ours(Collector):
    """Of what a source has, that which is listed: an application may count in the same places. When a series began,
    which Python's client shows as a gauge beside each, is left out: Prometheus finds resets itself."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        listed = {figure.name for figure in FIGURES}
        for metric in self._source.collect():
            if metric.name in listed:
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
                yield metric


def ours(source: Source) -> CollectorRegistry:
    """A registry that shows just these."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Ours(source))
    return registry
