"""Causes of lost runs, and the time in which a watcher could have recovered them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from a2a_celery.watcher.recoverer import MAX_LEASE_FACTOR
from tests.support.chaos.agents import Mark
from tests.support.chaos.fleet import WATCHERS, Incident
from tests.support.chaos.plan import LEASE

STEP = 0.05
GRACE = LEASE / 2 + 1.0
"""Seconds for which a watcher recovers no lapsed runs after its start or an outage of the store, plus one scan."""

LEASE_AFTER_MOVE = MAX_LEASE_FACTOR * LEASE + 1.0
"""Seconds within which leases from before a move of the store's clock expire, plus one scan."""

CATCHING_UP = 2.0
"""Seconds that a worker needs to reconnect and to renew its leases."""


@dataclass(frozen=True)
class LostRun:
    """Run that the store took from a worker and then retried or failed.

    Attributes:
        turn: Number of the turn.
        attempt: Number of the attempt.
        at: Wall-clock time in seconds at which the store recorded the loss.
        start: Mark of the run's start, or None if the agent did not start.
        final: The task failed without a further attempt.
    """

    turn: int
    attempt: int
    at: float
    start: Mark | None
    final: bool = False


def cause_of(lost_run: LostRun, incidents: list[Incident]) -> Incident | None:
    """Return the incident that caused the loss of a run, or None if no incident explains the loss.

    The cause is the first incident of the run's process or of the store while the run executed. For a run without a
    mark, the process is unknown. The cause is then the last incident of any worker or of the store.
    """
    start = lost_run.start
    # a process that was frozen during the claim may start the run after the store has taken it
    began = min(start.real, lost_run.at) if start is not None else 0.0
    matching_causes = []
    for incident in incidents:
        if not incident.begin <= lost_run.at:
            continue
        if start is None:
            fits = incident.of in ("worker", "child", "store")
        elif incident.of == "store":
            fits = incident.end + CATCHING_UP >= began
        elif incident.of == "child":
            fits = incident.pid == start.pid and incident.end >= began
        else:
            fits = incident.of == "worker" and incident.process == start.process and incident.end >= began
        if fits:
            matching_causes.append(incident)
    if not matching_causes:
        return None
    own = [i for i in matching_causes if i.of != "store"] or matching_causes
    return max(own, key=lambda i: i.begin) if start is None else min(own, key=lambda i: i.begin)


def recoverable_seconds(begin: float, end: float, incidents: list[Incident]) -> float:
    """Return the number of seconds between `begin` and `end` in which the store and at least one watcher were able to
    recover runs."""
    outages: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for incident in incidents:
        if incident.of == "store":
            is_move = incident.kind == "move store"
            end_of_leases = incident.begin + LEASE_AFTER_MOVE if is_move else incident.end + GRACE
            outages["store"].append((incident.begin, end_of_leases))
        if incident.of == "watcher":
            slot = incident.process.partition(".")[0]
            outages[slot].append((incident.begin, incident.end + GRACE))
    watchers = [outages[f"watcher-{number}"] for number in range(WATCHERS)]
    steps = [begin + number * STEP for number in range(int((end - begin) / STEP))]
    return STEP * sum(not _in(at, outages["store"]) and not all(_in(at, spans) for spans in watchers) for at in steps)


def _in(at: float, spans: list[tuple[float, float]]) -> bool:
    return any(begin <= at <= end for begin, end in spans)
