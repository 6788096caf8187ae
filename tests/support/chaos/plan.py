"""Plan of a chaos run: scenarios and disruptions, drawn from a seed before the run starts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.chaos.agents import Order

LEASE = 3.0
REDISPATCH = 4.0
GRACE = 1.0
"""Settings of the fleet in seconds: A2A_LEASE_TTL, A2A_REDISPATCH_AFTER and A2A_CANCEL_GRACE."""

CLOCKWORK = {
    "A2A_LEASE_TTL": str(LEASE),
    "A2A_REDISPATCH_AFTER": str(REDISPATCH),
    "A2A_CANCEL_GRACE": str(GRACE),
}
TASKS_PER_SECOND = 5.0


@dataclass(frozen=True)
class Scenario:
    """Actions of a client.

    Attributes:
        number: Number of the scenario.
        at: Second of the run at which the client starts.
        kind: Key of `SCENARIO_WEIGHTS`.
        agent: Name of the agent.
        order: Order that the client sends to the agent.
        call_kind: Wait for the response ("block"), read the stream ("stream"), or poll the task ("poll").
        gateway: Offset in the round-robin order of the gateways.
        cancel_after: Seconds after which the client cancels the task, or None to not cancel.
        follow_ups: Number of follow-up messages.
    """

    number: int
    at: float
    kind: str
    agent: str
    order: Order
    call_kind: str
    gateway: int
    cancel_after: float | None = None
    follow_ups: int = 0


@dataclass(frozen=True)
class Disruption:
    """Disruption of the fleet.

    Attributes:
        at: Second of the run.
        kind: Verb and kind of the target.
        target: Number that selects one of the possible targets.
        lasts: Seconds for which the target is down, frozen or impaired. A moved clock is not moved back. For a moved
            clock, `lasts` is the time for which watchers recover no run.
    """

    at: float
    kind: str
    target: int
    lasts: float


@dataclass(frozen=True)
class Plan:
    """Plan of a chaos run that lasts `seconds`."""

    seed: int
    seconds: float
    scenarios: list[Scenario]
    disruptions: list[Disruption]


DISRUPTION_CYCLE = (
    *("kill worker",) * 3,
    *("kill child",) * 5,
    *("freeze worker",) * 2,
    "freeze child",
    *("kill gateway",) * 2,
    "freeze gateway",
    *("kill watcher",) * 2,
    "freeze watcher",
    *("restart store",) * 2,
    *("restart broker",) * 2,
    "freeze store",
    "freeze broker",
    "failover store",
    *("fill store",) * 2,
    "spoil store",
    "exhaust store",
    *("cut store",) * 2,
    *("move store",) * 2,
    "fill broker",
    "cut broker",
)
"""Kinds of disruption in a cycle, before the cycle is shuffled."""

CLOCKS = (0.0, 7200.0, -7200.0, 14400.0)
"""Seconds by which the store's clock may be ahead of this machine's clock. The offsets differ so much that a recorded
time identifies its offset."""

SCENARIO_WEIGHTS = {
    "echo": 40,
    "plain echo": 15,
    "long stream": 30,
    "steady stream": 40,
    "silent": 25,
    "steady silent": 30,
    "ask": 20,
    "steady ask": 10,
    "direct": 15,
    "steady direct": 25,
    "fails": 10,
    "cancel running": 15,
    "cancel queued": 10,
    "sync": 10,
    "steady sync": 10,
    "talk": 8,
    "steady talk": 8,
}
"""Kinds of scenario with their weights."""


def plan(seed: int, seconds: float) -> Plan:
    """Draw the plan for `seed`."""
    chance = random.Random(f"scenarios {seed}")
    count = int(seconds * TASKS_PER_SECOND)
    kinds = [
        kind
        for kind, weight in SCENARIO_WEIGHTS.items()
        for _ in range(max(1, weight * count // sum(SCENARIO_WEIGHTS.values())))
    ]
    chance.shuffle(kinds)
    scenarios = [scenario(number, kind, chance.uniform(0, seconds), chance) for number, kind in enumerate(kinds)]
    return Plan(
        seed,
        seconds,
        sorted(scenarios, key=lambda e: e.at),
        list(disruptions(random.Random(f"disruptions {seed}"), seconds)),
    )


def scenario(number: int, kind: str, at: float, chance: random.Random) -> Scenario:
    """Draw the details of a scenario."""
    call_kind = chance.choice(["block", "stream", "poll"])
    agent = {"plain echo": "plain", "talk": "talk", "steady talk": "talk-steady", "direct": "direct"}.get(kind, "once")
    agent = {"steady direct": "direct-steady", "sync": "sync", "steady sync": "sync-steady"}.get(kind, agent)
    if agent == "once" and kind.startswith("steady"):
        agent = "steady"
    cancel_after, follow_ups, order = None, 0, Order()
    match kind:
        case "plain echo":
            call_kind = chance.choice(["block", "poll"])
        case "long stream":
            call_kind, order = "stream", Order(chunks=chance.randint(100, 800), pause=chance.choice([0.0, 0.005]))
        case "steady stream":
            call_kind, order = "stream", Order(chunks=chance.randint(5, 40), pause=0.1)
        case "silent" | "steady silent":
            order = Order(pause=chance.uniform(1, 5))
        case "ask" | "steady ask":
            order = Order(asks=chance.randint(1, 3))
        case "direct" | "steady direct":
            order = Order(pause=chance.choice([0.0, 0.2, 1.0, 3.0]))
        case "fails":
            order = Order(chunks=chance.randint(0, 5), fails=True)
        case "cancel running":
            agent = chance.choice(["once", "steady", "sync"])
            call_kind, order, cancel_after = "poll", Order(chunks=15, pause=0.5), chance.uniform(0.5, 4)
        case "cancel queued":
            call_kind, order, cancel_after = "poll", Order(pause=5), 0.0
        case "sync" | "steady sync":
            order = Order(chunks=chance.randint(1, 6), pause=chance.choice([0.0, 0.3]))
        case "talk" | "steady talk":
            call_kind, follow_ups = "poll", chance.randint(1, 5)
    return Scenario(number, at, kind, agent, order, call_kind, chance.randrange(2), cancel_after, follow_ups)


def disruptions(chance: random.Random, seconds: float) -> Iterator[Disruption]:
    """Yield disruptions in order of time. The first two seconds have no disruption."""
    at = 2.0
    while True:
        kinds = list(DISRUPTION_CYCLE)
        chance.shuffle(kinds)
        for kind in kinds:
            if at > seconds:
                return
            if kind.startswith("freeze"):
                lasts = LEASE * chance.uniform(1.2, 2.2)
            elif kind == "move store":
                lasts = LEASE
            elif kind in ("restart store", "failover store", "fill store", "spoil store", "exhaust store"):
                lasts = chance.choice([0.1, 0.5, 1.0, LEASE * 1.5])
            elif kind == "restart broker":
                lasts = chance.choice([0.1, 1.0, 4.0])
            else:
                lasts = chance.choice([0.0, 0.5, 2.0])
            yield Disruption(at, kind, chance.randrange(100), lasts)
            at += chance.uniform(0.3, 3.5)
