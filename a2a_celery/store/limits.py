"""What an owner may have of a deployment, and an agent of its queue: decided where a run is begun, in the same script.

Nothing is counted by hand. An owner's tasks are counted by the lists that they stand in anyway, one for each state; so
whatever ends, pauses or deletes one gives its place back. Only an agent's queue has a list of its own, and only while
somebody bounds it. Both lists are looked through before a run is refused: a member that is not what its list says is
taken out first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .keys import Keys, Scope, quoted
from .operation import Operation, script


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """How much there may be when a run begins; None: as much as there is.

    `concurrent` is of an owner's tasks that are SUBMITTED or WORKING, `waiting` of those that are SUBMITTED, with all
    of `agents` together; `queued` of the agent's runs that no worker has claimed.
    """

    agents: tuple[str, ...]
    concurrent: int | None = None
    waiting: int | None = None
    queued: int | None = None


def limit_argument(keys: Keys, scope: Scope, limits: TaskLimits | None) -> str:
    """The limits as ``refused`` in scripts/prelude.lua takes them; "" for none."""
    if limits is None:
        return ""
    most = {"concurrent": limits.concurrent, "waiting": limits.waiting, "queued": limits.queued}
    counts_tasks = limits.concurrent is not None or limits.waiting is not None
    return json.dumps(
        {
            **{name: value for name, value in most.items() if value is not None},
            **({"queue": keys.queue(scope.agent)} if limits.queued is not None else {}),
            "lists": _lists(keys, scope, limits.agents) if counts_tasks else [],
            "figures": keys.figures,
            "agent": quoted(scope.agent),
        }
    )


def take_request(keys: Keys, scope: Scope, *, per_second: float, burst: int) -> Operation[float]:
    """One request of `scope`'s owner, whichever agent it is for; gives 0, or the seconds until one may come again.

    `burst` may come at once. A call that is repeated because its connection broke takes twice.
    """
    return Operation(
        script("take_request"),
        [keys.requests(scope)],
        [repr(1_000_000 / per_second), burst],
        lambda answer: int(answer) / 1e6,
    )


def _lists(keys: Keys, scope: Scope, agents: Iterable[str]) -> list[str]:
    return [keys.scope_index(replace(scope, agent=agent)) for agent in agents]
