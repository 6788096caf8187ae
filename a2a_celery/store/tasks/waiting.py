"""Inbox of a caller: the tasks of all agents that wait for the caller, oldest status first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import Task

from ...lifecycle.references import Scope
from ...lifecycle.states import INTERRUPTED
from ..codec import Position, require_contents, snapshot_size, task_from_snapshot
from ..keys import Keys
from ..operation import Operation
from ..verbs import Key, Reply, Unsent, verb

MAX_BYTES = 1024 * 1024
"""Total size of the stored tasks on a page in bytes. A larger task is returned on its own page."""


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """Page of waiting tasks.

    Attributes:
        tasks: Pairs of an agent and a task with the newest message of its history.
        totals: Number of waiting tasks of each agent, on all pages.
        more: True if another page follows.
    """

    tasks: list[tuple[str, Task]]
    totals: dict[str, int]
    more: bool


def list_waiting(
    keys: Keys, scopes: Sequence[Scope], *, page_size: int, cursor: Position | None = None
) -> Operation[WaitingPage]:
    """Read a page of the interrupted tasks of `scopes`, oldest status first. Each scope has a different agent.

    Args:
        keys: Keys of the deployment.
        scopes: Scopes of the tasks.
        page_size: Maximum number of tasks. With 0, only the totals are read.
        cursor: Last task on the previous page, or None.
    """
    lists = [(scope.agent, state) for scope in scopes for state in sorted(INTERRUPTED)]
    names = [f"{keys.scope_index(scope)}{int(state)}" for scope in scopes for state in sorted(INTERRUPTED)]

    def parse(reply: Sequence[Any]) -> WaitingPage:
        counts, more, positions, *snapshots = reply
        require_contents(snapshots)
        totals = dict.fromkeys((scope.agent for scope in scopes), 0)
        for (agent, _), count in zip(lists, counts.split(), strict=True):
            totals[agent] += int(count)
        agents = [lists[int(position) - 1][0] for position in positions.split()]
        tasks = [task_from_snapshot(snapshot)[0] for snapshot in snapshots]
        return WaitingPage(list(zip(agents, tasks, strict=True)), totals, more == b"1")

    reply = Reply(parse, size=lambda reply: sum(map(snapshot_size, reply[3:])))
    return _list_waiting(keys, names, page_size, cursor, reply)


@verb
def _list_waiting(
    keys: Keys, indexes: Sequence[Key], page_size: int, cursor: Position | None, reply: Unsent[Reply[WaitingPage]]
) -> Reply[WaitingPage]:
    return reply
