"""Metrics as Prometheus scrapes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .waiting import LIMIT

Sample = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Scrape:
    """What one scrape said."""

    samples: Mapping[Sample, float]
    types: Mapping[str, str]

    def get(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 for one that is not there."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def names(self) -> set[str]:
        """Names as queries have them; a histogram's without what is behind it."""
        return {f"{name}_total" if kind == "counter" else name for name, kind in self.types.items()}


def scrape(url: str) -> Scrape:
    """What is said at ``/metrics`` of `url` now."""
    answer = httpx.get(f"{url}/metrics", timeout=LIMIT)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    return Scrape(
        {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples},
        {family.name: family.type for family in families},
    )
