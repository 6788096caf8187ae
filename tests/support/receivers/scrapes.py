"""Scrapes of Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import LIMIT

Sample = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Scrape:
    """Values of the samples and types of the metrics from one scrape."""

    samples: Mapping[Sample, float]
    types: Mapping[str, str]

    def get(self, name: str, **labels: str) -> float:
        """Return the value of a sample, or 0 if it is missing."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def names(self) -> set[str]:
        """Return the names of the metrics in PromQL. Names of histograms have no suffix."""
        return {f"{name}_total" if kind == "counter" else name for name, kind in self.types.items()}


def scrape(url: str) -> Scrape:
    """Scrape ``/metrics`` of the server at `url`."""
    answer = httpx.get(f"{url}/metrics", timeout=LIMIT)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    return Scrape(
        {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples},
        {family.name: family.type for family in families},
    )
