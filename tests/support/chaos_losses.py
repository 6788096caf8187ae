"""The cause of a lost run, and the time in which it could have been recovered."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .chaos_agents import Mark
from .chaos_fleet import WATCHERS, Incident
from .chaos_plan import LEASE

STEP = 0.05
GRACE = LEASE / 2 + 1.0
"""Seconds for which a watcher leaves lapsed runs alone after its start, or when the store was away; and a look."""

CATCHING_UP = 2.0
"""Seconds that a worker takes to get its connections back, and so to renew."""


@dataclass(frozen=True)
class Lost:
    """A run that was taken from its worker at real second `at`; `start` is its mark, None if its agent never began.
    `final`: its task was failed, and no other attempt followed."""

    turn: int
    attempt: int
    at: float
    start: Mark | None
    final: bool = False


def why(lost: Lost, incidents: list[Incident]) -> Incident | None:
    """What the run was lost to: the first thing that happened to its process, or to the store, while it ran; None:
    nothing did. Of a run that left no mark any worker's incident will do, the last one."""
    start = lost.start
    # one that was frozen in the middle of its claim begins when its run is another's already
    began = min(start.real, lost.at) if start is not None else 0.0
    found = []
    for incident in incidents:
        if not incident.begin <= lost.at:
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
            found.append(incident)
    if not found:
        return None
    own = [i for i in found if i.of != "store"] or found
    return max(own, key=lambda i: i.begin) if start is None else min(own, key=lambda i: i.begin)


def recoverable_seconds(begin: float, end: float, incidents: list[Incident]) -> float:
    """For how many of the seconds between the store was there, and a watcher that may take runs away."""
    away: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for incident in incidents:
        if incident.of == "store":
            away["store"].append((incident.begin, incident.end + GRACE))
        if incident.of == "watcher":
            slot = incident.process.partition(".")[0]
            away[slot].append((incident.begin, incident.end + GRACE))
    watchers = [away[f"watcher-{number}"] for number in range(WATCHERS)]
    steps = [begin + number * STEP for number in range(int((end - begin) / STEP))]
    return STEP * sum(not _in(at, away["store"]) and not all(_in(at, one) for one in watchers) for at in steps)


def _in(at: float, spans: list[tuple[float, float]]) -> bool:
    return any(begin <= at <= end for begin, end in spans)
