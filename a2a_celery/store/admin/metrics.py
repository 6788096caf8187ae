"""What all tasks of a deployment came to: counted by the scripts themselves, in one hash.

So it is exact: what is counted is what was written, once, whichever process did it and whether that still lives; and it
costs a task a few counts in scripts that run anyway. The hash's fields, each with the agent's name, quoted:

=============================== ================================================================
``ended <agent> <state>``       tasks, by the number of their terminal state
``archived <agent> tasks``     tasks that left the store for the archive
``lost <agent> <outcome>``      runs taken from workers: again, failed, canceled, returned
``retried <agent> runs``        retries of runs, of agents and of Celery tasks
``<time> <agent> <bucket>``     times (queue, first, run, cancel) up to that bound, from 1; one more: longer
``<time> <agent> sum``          their sum, µs
=============================== ================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from ..keys import Keys
from ..operation import BOUNDS, Operation, script

SAMPLED_RUNS = 1000
"""Of so many runs that wait the oldest is sought: the first to be published again."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times that were counted: how many are up to each of `BOUNDS`, or longer, and their sum in seconds."""

    buckets: tuple[int, ...]
    sum: float

    @property
    def cumulated(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each bound with how many are not above it, "+Inf" with all."""
        bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return [(bound, float(sum(self.buckets[: place + 1]))) for place, bound in enumerate(bounds)]


@dataclass(frozen=True, slots=True)
class FleetMetrics:
    """How a deployment stands; times are the store's."""

    now_us: int = field(compare=False)
    counts: Mapping[tuple[str, str, str], int] = field(repr=False)
    """By the three words of their field; agents' names as they are."""
    runs: Mapping[str, int]
    """How many are queued, stand behind another of their context, are running, and delegated to a canvas."""
    paused: int
    dead_letters: int
    oldest: Mapping[str, float]
    """Seconds for which an agent's oldest run has waited; only agents with one among the `SAMPLED_RUNS`."""
    to_archive: int = 0
    """Ended tasks that are due for the archive."""
    archive_lag: float = field(default=0.0, compare=False)
    """Seconds for which the oldest of them is."""
    archive_refused: int = 0

    def counted(self, what: str) -> dict[tuple[str, str], int]:
        """What was counted of one kind, by agent and label."""
        return {(agent, label): times for (kind, agent, label), times in self.counts.items() if kind == what}

    def times(self, what: str) -> dict[str, Times]:
        """The times of one kind, by agent."""
        counted = self.counted(what)
        agents = dict.fromkeys(agent for agent, _ in counted)
        places = [str(place) for place in range(1, len(BOUNDS) + 2)]
        return {
            agent: Times(
                tuple(counted.get((agent, place), 0) for place in places), counted.get((agent, "sum"), 0) / 1e6
            )
            for agent in agents
        }


def read_metrics(keys: Keys) -> Operation[FleetMetrics]:
    """The metrics as they are now."""

    def parse(answer: Sequence[Any]) -> FleetMetrics:
        now_us, fields, queued, running, delegated, paused, dead, ages, blocked, due, late_us, refused = answer
        return FleetMetrics(
            int(now_us),
            {_words(name): int(times) for name, times in zip(fields[::2], fields[1::2], strict=True)},
            {"queued": queued, "blocked": blocked, "running": running, "delegated": delegated},
            paused,
            dead,
            {agent.decode(): int(us) / 1e6 for agent, us in zip(ages[::2], ages[1::2], strict=True)},
            due,
            int(late_us) / 1e6,
            refused,
        )

    lists = [keys.metrics, keys.dispatch, keys.leases, keys.canvases, keys.pauses, keys.dead_letters, keys.blocked]
    lists += [keys.archive, keys.archive_refused]
    return Operation(script("read_metrics"), lists, [keys.prefix, SAMPLED_RUNS], parse)


def _words(name: bytes) -> tuple[str, str, str]:
    what, agent, label = name.decode().split(" ")
    return what, unquote(agent), label
