"""Limits in the store: maximum numbers of tasks and bytes, which the script that accepts a message checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from ...dispatch import RunOptions
from ...lifecycle.references import RunRef, Scope
from ...operations.publication import RunPublisher
from ...settings import Settings
from ...store import Keys
from ...store.verbs import section
from ..feature import ServiceFeature

LIMIT_TEXTS = {
    "concurrent": "The limit of {} running tasks is reached",
    "queued": "The limit of {} queued messages of this agent is reached",
    "owner_bytes": "The limit of {} stored bytes is reached: this message does not fit",
}
"""Text of the error by the name of the limit, which `section.lua` returns."""


@section(Path(__file__).with_suffix(".lua"))
class TaskLimits(NamedTuple):
    """Section of ``create_task``, ``continue_task`` and ``send_signal``. None means no limit.

    The limit of bytes always applies. The other limits apply only to a message that begins a run.

    Attributes:
        concurrent: Maximum number of the owner's tasks in SUBMITTED or WORKING.
        queued: Maximum number of the agent's runs that no worker has claimed.
        owner_bytes: Maximum stored bytes of the owner's tasks, including the new message.
        indexes: Prefixes of the indexes of the tasks that count as concurrent.
        queue: Key of the list of the agent's queued runs.
    """

    concurrent: int | None
    queued: int | None
    owner_bytes: int | None
    indexes: Sequence[str]
    queue: str

    @classmethod
    def of(
        cls,
        keys: Keys,
        agents: Iterable[str],
        scope: Scope,
        *,
        concurrent: int | None = None,
        queued: int | None = None,
        owner_bytes: int | None = None,
    ) -> Self:
        """Return the limits of a message in `scope`. The owner's tasks of all `agents` count as concurrent."""
        indexes = () if concurrent is None else _indexes(keys, agents, scope)
        return cls(concurrent, queued, owner_bytes, indexes, keys.queue(scope.agent))

    def parse(self, task_id: str, reply: Sequence[bytes]) -> None:
        """Return None, because the section refuses a message with the script's reply for limits."""


def _indexes(keys: Keys, agents: Iterable[str], scope: Scope) -> Sequence[str]:
    if not scope.owner:
        return [keys.scope_index(replace(scope, agent=agent)) for agent in agents]
    without_tenant = (keys.scope_index(Scope(agent, "", scope.owner)) for agent in agents)
    return [*without_tenant, keys.owner_index(scope.owner)]


class LimitedMessages(ServiceFeature):
    """Limits of the messages and signals of clients."""

    def __init__(self, settings: Settings, keys: Keys, agents: Iterable[str]) -> None:
        self._settings, self._keys, self._agents = settings, keys, agents

    @classmethod
    def of(cls, settings: Settings, keys: Keys, agents: Iterable[str], _runs: RunPublisher) -> Self | None:
        """Return the feature, or None if the settings have no limit."""
        limits = (settings.owner_max_concurrent_tasks, settings.agent_max_queue, settings.owner_max_stored_bytes)
        return None if limits == (None, None, None) else cls(settings, keys, agents)

    def section_for_scope(self, scope: Scope) -> TaskLimits:
        """Return the limits of a message in `scope`."""
        return TaskLimits.of(
            self._keys,
            self._agents,
            scope,
            concurrent=self._settings.owner_max_concurrent_tasks,
            queued=self._settings.agent_max_queue,
            owner_bytes=self._settings.owner_max_stored_bytes,
        )

    def section_for_run(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        """Return None: limits do not depend on the run."""
