"""Samples of a deployment's metrics over time. Watchers record the samples, and gateways serve them.

Counts in a sample are totals since the store was created, so a rate is the difference of two samples. The samples of
all series use about 25 kB of the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Annotated, Any, NamedTuple

from ...lifecycle.states import TERMINAL
from ..keys import Keys
from ..operation import BOUNDS, Operation
from ..verbs import Reply, verb
from .metrics import FleetMetrics
from .usage import Memory

PHASES = ("queued", "blocked", "running", "delegated", "suspended")
"""Phases of open runs, in the order of `Sample.runs`."""

TOLERANCE = 0.9
"""Share of the interval that must have passed since the newest sample. The ticks of a watcher are not exact."""


class Series(NamedTuple):
    """Series of samples of which the store keeps the newest `limit`, `interval` seconds apart."""

    name: str
    interval: float
    limit: int

    @property
    def seconds(self) -> float:
        """Seconds between the newest and the oldest sample of a complete series."""
        return self.interval * (self.limit - 1)


HOUR = Series("hour", 60.0, 61)
DAY = Series("day", 900.0, 97)
SERIES = (HOUR, DAY)


@dataclass(frozen=True, slots=True)
class Sample:
    """Metrics of a deployment at one time.

    Attributes:
        ended: Ended tasks, by terminal state in ascending order.
        runs: Open runs, by `PHASES`.
        posts: Numbers of posts that were delivered, that failed and are retried, and that were given up.
        memory: Used and maximum bytes of the store, or (-1, -1) if they cannot be read.
        queue: Histogram of the times for which runs waited for a worker.
        run: Histogram of the times for which runs ran.
    """

    ended: tuple[int, ...]
    runs: tuple[int, ...]
    posts: tuple[int, ...]
    memory: tuple[int, ...]
    queue: tuple[int, ...]
    run: tuple[int, ...]

    @classmethod
    def of(cls, fleet_metrics: FleetMetrics, posts: tuple[int, int, int], memory: Memory | None) -> Sample:
        """Return the sample for the metrics of the store; `posts` as in a `Sample`."""
        return cls(
            tuple(fleet_metrics.ended().values()),
            tuple(fleet_metrics.runs[phase] for phase in PHASES),
            posts,
            (-1, -1) if memory is None else (memory.used, memory.limit),
            fleet_metrics.histogram("queue"),
            fleet_metrics.histogram("run"),
        )

    def to_json(self) -> str:
        """Return the sample as JSON for the store."""
        return json.dumps(astuple(self), separators=(",", ":"))


LENGTHS = (len(TERMINAL), len(PHASES), 3, 2, len(BOUNDS) + 1, len(BOUNDS) + 1)
"""Numbers of values of the attributes of a `Sample`."""


@dataclass(frozen=True, slots=True)
class RecordedSample:
    """Sample that was recorded at `at_us`, in µs by the store's clock."""

    at_us: int
    sample: Sample


@verb
def record_sample(
    keys: Keys, series: Series, sample: Annotated[Sample, Sample.to_json] | None
) -> Reply[list[RecordedSample]]:
    """Record `sample` unless another watcher has recorded a sample in this interval, or only read the series if
    `sample` is None.

    Returns:
        The samples of the series, oldest first. Samples of a release with other metrics are left out.
    """

    def parse(reply: Sequence[bytes]) -> list[RecordedSample]:
        return list(_parsed(reversed(reply)))

    return Reply(parse)


def read_samples(keys: Keys, series: Series) -> Operation[list[RecordedSample]]:
    """Read the samples of a series, oldest first."""
    return record_sample(keys, series, None)


def _parsed(entries: Iterable[bytes]) -> Iterable[RecordedSample]:
    for entry in entries:
        at_us, _, text = entry.partition(b" ")
        values: list[Any] = json.loads(text)
        if tuple(map(len, values)) == LENGTHS:
            yield RecordedSample(int(at_us), Sample(*map(tuple, values)))
