"""Exposition of the metrics in ``names``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from .names import METRICS


class Source(Protocol):
    """Registry or collector."""

    def collect(self) -> Iterable[PrometheusMetric]: ...


class Ours(Collector):
    """Collector of the listed metrics of a source, which may also have metrics of an application.

    The ``_created`` series of Python's client are omitted. Prometheus detects resets without them.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterable[PrometheusMetric]:
        listed = {metric.name for metric in METRICS}
        for metric in self._source.collect():
            if metric.name in listed:
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
                yield metric


def ours(source: Source) -> CollectorRegistry:
    """Return a registry with only the listed metrics of `source`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Ours(source))
    return registry
