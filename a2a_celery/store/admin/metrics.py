"""Metrics of a deployment. The scripts that write tasks and runs count them in one hash.

A script makes and counts a change atomically, so each change is counted exactly once. The fields of the hash contain
the quoted name of the agent:

=============================== ================================================================
``ended <agent> <state>``       tasks, by the number of their terminal state
``archived <agent> tasks``      tasks that were moved to the archive
``lost <agent> <outcome>``      runs of lost workers: again, failed, canceled, returned
``retried <agent> runs``        retries of runs, of agents and of Celery tasks
``version <agent> <version>``   open tasks, by the version of the agent's code that began their turn; absent for 0
``<time> <agent> <bucket>``     durations (queue, first, run, cancel) by bucket, from 1; the last has no upper bound
``<time> <agent> sum``          sum of the durations in µs
=============================== ================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from a2a.types import TaskState

from ...lifecycle.states import TERMINAL
from ..keys import Keys
from ..operation import BOUNDS
from ..verbs import Reply, verb

SAMPLED_RUNS = 1000
"""Maximum number of queued runs that are read to find the oldest runs. The runs that are due first are read first."""


@dataclass(frozen=True, slots=True)
class Times:
    """Histogram of durations.

    Attributes:
        buckets: Number of durations for each of `BOUNDS`, and the number of longer durations.
        sum: Sum of the durations in seconds.
    """

    buckets: tuple[int, ...]
    sum: float

    @property
    def cumulated(self) -> list[tuple[str, float]]:
        """Cumulative buckets in Prometheus format: pairs of an upper bound and the number of durations up to it."""
        bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return [(bound, float(sum(self.buckets[: place + 1]))) for place, bound in enumerate(bounds)]


@dataclass(frozen=True, slots=True)
class FleetMetrics:
    """Metrics of a deployment at the time `now_us` of the store.

    Attributes:
        counts: Values by kind, agent and label.
        runs: Open runs by phase: queued, blocked, running, delegated, suspended.
        paused: Number of interrupted tasks.
        resubmittable: Number of tasks that can be resubmitted.
        oldest: Seconds that the oldest queued run of each agent has waited, among `SAMPLED_RUNS` runs.
        to_archive: Number of ended tasks that are due for the archive.
        archive_lag: Seconds for which the oldest task to archive has been due, or 0.
        archive_refused: Number of tasks that the archive refused.
    """

    now_us: int = field(compare=False)
    counts: Mapping[tuple[str, str, str], int] = field(repr=False)
    runs: Mapping[str, int]
    paused: int
    resubmittable: int
    oldest: Mapping[str, float]
    to_archive: int = 0
    archive_lag: float = field(default=0.0, compare=False)
    archive_refused: int = 0

    def counted(self, kind: str) -> dict[tuple[str, str], int]:
        """Return the counts of one `kind`, by agent and label."""
        return {(agent, label): count for (name, agent, label), count in self.counts.items() if name == kind}

    def agents(self, names: Iterable[str]) -> list[str]:
        """Return `names` and the names of all other agents that have metrics."""
        return list(dict.fromkeys([*names, *(agent for _, agent, _ in self.counts)]))

    def ended(self, agent: str | None = None) -> dict[TaskState, int]:
        """Return the number of tasks of an agent, or of all agents, by terminal state."""
        counts = [(label, count) for (name, label), count in self.counted("ended").items() if agent in (None, name)]
        return {state: sum(count for label, count in counts if label == str(int(state))) for state in sorted(TERMINAL)}

    def lost(self, agent: str) -> dict[str, int]:
        """Return the number of lost runs of an agent by outcome."""
        return {outcome: count for (name, outcome), count in self.counted("lost").items() if name == agent}

    def times(self, kind: str) -> dict[str, Times]:
        """Return the histogram of `kind` for each agent."""
        counts = self.counted(kind)
        agents = dict.fromkeys(agent for agent, _ in counts)
        places = [str(place) for place in range(1, len(BOUNDS) + 2)]
        return {
            agent: Times(tuple(counts.get((agent, place), 0) for place in places), counts.get((agent, "sum"), 0) / 1e6)
            for agent in agents
        }

    def histogram(self, kind: str) -> tuple[int, ...]:
        """Return the histogram of `kind` of all agents: a count for each of `BOUNDS`, and a count of longer times."""
        buckets = [times.buckets for times in self.times(kind).values()]
        return tuple(map(sum, zip(*buckets, strict=True))) if buckets else (0,) * (len(BOUNDS) + 1)


@verb
def read_metrics(keys: Keys) -> Reply[FleetMetrics]:
    """Read the metrics of the deployment."""

    def parse(reply: Sequence[Any]) -> FleetMetrics:
        now_us, fields, queued, running, delegated, paused, resubmittable, ages, blocked, due, late_us = reply[:11]
        refused, suspended = reply[11:]
        return FleetMetrics(
            int(now_us),
            {_words(name): int(count) for name, count in zip(fields[::2], fields[1::2], strict=True)},
            {
                "queued": queued,
                "blocked": blocked,
                "running": running,
                "delegated": delegated,
                "suspended": suspended,
            },
            paused,
            resubmittable,
            {agent.decode(): int(age_us) / 1e6 for agent, age_us in zip(ages[::2], ages[1::2], strict=True)},
            due,
            int(late_us) / 1e6,
            refused,
        )

    return Reply(parse)


def _words(name: bytes) -> tuple[str, str, str]:
    kind, agent, label = name.decode().split(" ")
    return kind, unquote(agent), label
