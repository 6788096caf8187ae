"""Limits of owners and of agents' queues, which the script that begins a run checks.

Tasks are counted by their indexes, one for each state, so a task that ends, pauses or is deleted stops counting. Tasks
of an authenticated owner count across tenants, because a caller may be allowed to choose the tenant. An agent's queue
has a list only while it has a limit. Before a script refuses a run, it removes stale members from these lists. The
scripts that write tasks count stored bytes, for tasks that are created while a limit of stored bytes is set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..keys import Keys, Scope, quoted
from ..operation import Operation, script


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Limits that apply when a run begins. None is no limit.

    Attributes:
        agents: agents whose tasks count for the owner.
        concurrent: the owner's tasks in SUBMITTED or WORKING.
        waiting: the owner's tasks in SUBMITTED.
        paused: the owner's interrupted tasks. This limit refuses new tasks only.
        queued: runs of the agent that no worker has claimed.
        owner_bytes: stored bytes of the owner's tasks, including the new message.
        store_bytes: stored bytes of all tasks, including the new message.
        memory: True if the server's memory is nearly full: no message is accepted.
    """

    agents: tuple[str, ...]
    concurrent: int | None = None
    waiting: int | None = None
    paused: int | None = None
    queued: int | None = None
    owner_bytes: int | None = None
    store_bytes: int | None = None
    memory: bool = False


def limit_argument(keys: Keys, scope: Scope, limits: TaskLimits | None) -> str:
    """Return the argument of ``check_limits`` in scripts/lib, "" for no limits."""
    if limits is None:
        return ""
    of_tasks = {"concurrent": limits.concurrent, "waiting": limits.waiting, "paused": limits.paused}
    of_bytes = {"owner_bytes": limits.owner_bytes, "store_bytes": limits.store_bytes}
    maximums = {**of_tasks, **of_bytes, "queued": limits.queued}
    counts_tasks = any(limit is not None for limit in of_tasks.values())
    return json.dumps(
        {
            **{name: value for name, value in maximums.items() if value is not None},
            **({"stored": keys.stored} if of_bytes != dict.fromkeys(of_bytes) else {}),
            **({"memory": True} if limits.memory else {}),
            **({"queue": keys.queue(scope.agent)} if limits.queued is not None else {}),
            "lists": _lists(keys, scope, limits.agents) if counts_tasks else [],
            "metrics": keys.metrics,
            "agent": quoted(scope.agent),
        }
    )


def acquire_request(
    keys: Keys, scope: Scope, *, per_second: float, burst: int, cost: int = 1, spare: int = 0
) -> Operation[float]:
    """Take tokens for a request of the owner of `scope`, to any agent.

    A call that is repeated because its connection broke takes the tokens twice.

    Args:
        per_second: Tokens that come back in a second.
        burst: Tokens that the bucket holds.
        cost: Tokens of the request.
        spare: Tokens that must be left for a request that follows. With `cost`, at most `burst`.

    Returns:
        0, or the seconds until there are enough tokens.
    """
    return Operation(
        script("acquire_request"),
        [keys.requests(scope)],
        [repr(1_000_000 / per_second), burst, cost, spare],
        lambda reply: int(reply) / 1e6,
    )


def _lists(keys: Keys, scope: Scope, agents: Iterable[str]) -> list[str]:
    """Return the prefixes of the indexes of all tasks that count for a caller in `scope`."""
    if not scope.owner:
        return [keys.scope_index(replace(scope, agent=agent)) for agent in agents]
    without_tenant = (keys.scope_index(Scope(agent, "", scope.owner)) for agent in agents)
    return [*without_tenant, keys.owner_index(scope.owner)]
