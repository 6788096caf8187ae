"""What an owner may have of a deployment, and an agent of its queue: decided where a run is begun, in the same script.

No task is counted by hand. Tasks are counted by the lists that they stand in, one for each state; so whatever ends,
pauses or deletes one gives its place back. Those of an authenticated owner are counted in all tenants together; else a
caller who may name any tenant would have as many places as it likes. Only an agent's queue has a list of its own, and
only while somebody bounds it. Both lists are looked through before a run is refused: a member that is not what its list
says is taken out first. Stored bytes are counted by the scripts that write them, for tasks made while they are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..keys import Keys, Scope, quoted
from ..operation import Operation, script


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """How much there may be when a run begins; None: as much as there is.

    `concurrent` is of an owner's tasks that are SUBMITTED or WORKING, `waiting` of those that are SUBMITTED, with all
    of `agents` together. `paused` is of those that wait for their client, and refuses new tasks only. `queued` is of
    the agent's runs that no worker has claimed. `owner_bytes` and `store_bytes` are the bytes of the owner's tasks, and
    of all tasks, that the store may keep with the new message. `memory`: the server's memory is nearly full, and no
    message is accepted.
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
    """The limits as ``refused`` in scripts/lib takes them; "" for none."""
    if limits is None:
        return ""
    of_tasks = {"concurrent": limits.concurrent, "waiting": limits.waiting, "paused": limits.paused}
    of_bytes = {"owner_bytes": limits.owner_bytes, "store_bytes": limits.store_bytes}
    most = {**of_tasks, **of_bytes, "queued": limits.queued}
    counts_tasks = any(limit is not None for limit in of_tasks.values())
    return json.dumps(
        {
            **{name: value for name, value in most.items() if value is not None},
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
    """Take tokens for a request of `scope`'s owner, for any agent.

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
    """The lists of all tasks that count for a caller in `scope`."""
    if not scope.owner:
        return [keys.scope_index(replace(scope, agent=agent)) for agent in agents]
    without_tenant = (keys.scope_index(Scope(agent, "", scope.owner)) for agent in agents)
    return [*without_tenant, keys.owner_index(scope.owner)]
