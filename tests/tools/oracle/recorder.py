"""Random walk that records replies and views."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from a2a_celery.errors import BlobsUnavailable, StoreUnavailable
from a2a_celery.features.families.child_canceller import ended_parents_key
from a2a_celery.features.families.family import read_family
from a2a_celery.features.questions.answer_section import AnswerSection
from a2a_celery.features.schedules.section import skipped_ticks
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.config_section import NewPushConfig, config_section
from a2a_celery.features.webhooks.deliveries import (
    delivery_metrics,
    read_delivery,
    scan_deliveries,
)
from a2a_celery.features.webhooks.push_configs import list_push_configs
from a2a_celery.lifecycle.references import Scope
from a2a_celery.store.admin.archiving import (
    read_archive_state,
)
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.admin.scan import newest_scopes, newest_tasks, scan_list
from a2a_celery.store.admin.start_check import secrets_in_use
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.operation import Operation
from a2a_celery.store.runs.journal import read_recorded
from a2a_celery.store.runs.release import (
    read_activities,
)
from a2a_celery.store.tasks.commands import (
    continue_task,
    create_task,
    list_tasks,
    read_task,
)
from a2a_celery.store.tasks.waiting import list_waiting
from tests.support.store.limits import limit_sections
from tests.support.store.seeds import AGENTS, ANN, BOB, RETENTION, request
from tests.support.store.view import Record, View
from tests.support.store.walk import CONTEXTS, Move, World
from tests.tools.oracle.recorded_store import Client, RecordedStore, Views

FEATURES = (
    "refused answers",
    "blobs in Redis",
    "blobs in an object store",
)
"""Features that only some sequences use. `compare` can leave out the sequences of a feature that was removed."""

LARGE = "large " * 4000
"""Text that is stored as a blob if the store has blobs. A full store refuses it in any case."""

PLAIN = b'{"call":{"task":"plain","args":[]}}'
"""Options of a run of a plain Celery task."""

QUEUE = "oracle:queue"


SMALL_LIMITS = {
    "MAX_WAITING_TURNS": 3,
    "MAX_STORED_SIGNALS": 3,
    "MAX_DEPTH": 3,
    "MAX_CHILDREN": 3,
    "MAX_REQUESTED_POSTS": 2,
}
"""Limits during a walk, which sequences can reach."""


@dataclass(frozen=True)
class Catalog:
    """Moves of the oracle by name.

    Attributes:
        feature_of: Feature that a sequence must use to make a move, for moves of a single feature.
        states: States of the tasks for which a move is valid, for moves that are not valid in all states.
        often_full: Moves whose calls are often made on a full store, because few sequences reach these calls.
        frequent: Moves that a sequence makes more often, so that it reaches further states.
    """

    moves: Mapping[str, Move]
    feature_of: Mapping[str, str]
    states: Mapping[str, frozenset[Any]]
    often_full: Sequence[str]
    frequent: Sequence[str]


@dataclass
class Recorder(World):
    """Random walk that records each reply and a view of the store after each move.

    Attributes:
        store: Store that records the replies.
        views: What readers see.
        server_id: ``run_id`` of the Redis process.
        features: Features that the sequence uses, each with its source of random numbers, so that the removal of a
            feature does not change the other sequences.
        catalog: Moves of all sequences.
    """

    store: RecordedStore = field(kw_only=True)
    views: Views = field(kw_only=True)
    server_id: str = field(kw_only=True)
    features: dict[str, random.Random] = field(kw_only=True)
    catalog: Catalog = field(kw_only=True)

    @property
    def client(self) -> Client:
        return self.store.client

    def moves(self) -> Mapping[str, Move]:
        return self.catalog.moves

    def move_names(self) -> list[str]:
        """Return the names of the moves of this sequence. Frequent moves occur repeatedly."""
        names = [name for name in self.catalog.moves if self.catalog.feature_of.get(name, "") in ("", *self.features)]
        return [*names, *self.catalog.frequent]

    def is_possible(self, move: str) -> bool:
        """Return True if a move is valid for one of the tasks, or for all tasks."""
        return not self.catalog.moves[move][1] or bool(self.fitting(move))

    def fitting(self, move: str) -> list[str]:
        """Return the tasks for which a move is valid, or an empty list for a move that is valid for each task."""
        _, phases = self.moves()[move]
        states = self.catalog.states.get(move)
        tasks = self.view.in_phase(*phases)
        return [task for task in tasks if states is None or int(self.view.records[task]["state"]) in states]

    async def act(self, move: str) -> None:
        """Perform a move, usually on a task for which the move is valid, and record the view."""
        operation, _ = self.moves()[move]
        fitting = self.fitting(move)
        tasks = fitting if fitting and self.chance.random() < 0.9 else sorted(self.view.records)
        task_id = self.chance.choice(tasks) if tasks else ""
        self.store.full_share = 0.5 if move in self.catalog.often_full else 0.05
        if task_id:
            with suppress(StoreUnavailable, BlobsUnavailable):
                await operation(self, task_id, self.view.records[task_id])
        self.store.tokens = {claim.token for claim in [*self.claims.values(), *self.old_claims]}
        await self.look()
        self.views.read(self.details([task_id] if task_id in self.view.records else []))

    async def look(self) -> None:
        """Read the view of the store, and record what has changed."""
        self.view = await View.of(self.store, self.keys)
        for channel, content in self.client.published():
            self.store.transcript.add("  published", [self.channel_name(channel), self.without_channel(content)])
        for problem in self.view.problems():
            self.views.add("problem", problem)
        keys, tasks = self.keys, sorted(self.view.records)
        self.views.read(
            [
                *((f"task {task}", read_task(keys, None, task)) for task in tasks),
                *((f"log {task}", read_log(keys, task, 0)) for task in tasks),
                *(
                    (f"list {scope}", list_tasks(keys, scope, retention=RETENTION, page_size=50, history_length=0))
                    for scope in self.scopes()
                ),
                ("deliveries", scan_deliveries(keys)),
                ("dead deliveries", scan_deliveries(keys, dead=True)),
                ("dead letters", scan_list(keys, keys.resubmittable)),
                ("metrics", read_metrics(keys)),
            ]
        )
        self.views.add("lists", {name: sorted(members) for name, members in self.view.lists.items()})
        self.views.add("contexts", sorted(self.view.context_queues.values()))

    def channel_name(self, channel: str) -> str:
        """Return a name for a channel that does not depend on the keys of the implementation."""
        names = {
            webhook_keys.delivery_notifications(self.keys): "deliveries",
            f"{ended_parents_key(self.keys)}:notifications": "ended parents",
            self.keys.runner("runner"): "runner",
            **{self.keys.task(task).notifications: f"task {task}" for task in self.view.records},
        }
        return names.get(channel, "another task" if channel.endswith("}:notifications") else channel)

    def without_channel(self, content: bytes) -> str:
        """Return the content of a message, in which a name replaces the channel of a task."""
        first, space, rest = content.decode("latin-1").partition(" ")
        return f"{self.channel_name(first)}{space}{rest}"

    async def look_closely(self) -> None:
        """Record the complete view."""
        keys = self.keys
        self.views.read(self.details(sorted(self.view.records)))
        self.views.read(
            [
                *((f"scan {name}", scan_list(keys, name)) for name in (keys.leases, keys.dispatch, keys.suspended)),
                ("scan pauses", scan_list(keys, keys.pauses)),
                ("failures", newest_tasks(keys, [keys.failures], limit=20)),
                ("scopes", newest_scopes(keys, 20)),
                ("archive", read_archive_state(keys)),
                ("delivery metrics", delivery_metrics(keys)),
                ("secrets", secrets_in_use(keys)),
                ("waiting", list_waiting(keys, [ANN, replace(ANN, agent="other")], page_size=9)),
                *((f"ticks {number}", skipped_ticks(keys, f"schedule-{number}")) for number in range(2)),
            ]
        )

    def details(self, tasks: Sequence[str]) -> Iterator[tuple[str, Operation[Any]]]:
        """Yield the reads of what tasks and logs do not show."""
        for task in tasks:
            yield f"journal {task}", read_recorded(self.keys, task, max_content=99)
            yield f"steps {task}", read_activities(self.keys, task)
            yield f"family {task}", read_family(self.keys, None, task)
            yield f"configs {task}", list_push_configs(self.keys, None, task)
            for config in "cd":
                yield f"delivery {task} {config}", read_delivery(self.keys, task, config)

    def scopes(self) -> Iterator[Scope]:
        """Yield the scopes of the tasks."""
        for owner in (ANN, BOB):
            for agent in AGENTS:
                yield Scope(agent, owner.tenant, owner.owner)

    def refuses_answer(self) -> bool:
        chance = self.features.get("refused answers")
        return chance is not None and chance.random() < 0.5

    def token_of(self, task_id: str) -> str:
        """Return the token of the task's claim, or another token."""
        claim = self.claims.get(task_id)
        return claim.token if claim else self.new_id()

    def config(self, config_id: str, account_limit: int | None = None) -> NewPushConfig:
        """Return a config with an id."""
        return NewPushConfig(config_id, self.new_id().encode(), "f0", ANN.account, account_limit)

    def _add_config(self, options: dict[str, Any]) -> None:
        """Replace the option ``push`` by the section of the config."""
        config = options.pop("push", None)
        if config is not None:
            options["sections"] = [*options.get("sections", ()), config_section(self.keys, config)]

    async def create_with(self, scope: Scope = ANN, task_id: str = "", text: str = "hello", **options: Any) -> Any:
        """Create a task with options, and return the result."""
        task_id = task_id or self.new_id()
        context_id = self.chance.choice(CONTEXTS)
        message_request = request(text, task_id, context_id)
        self._add_config(options)
        sections = [*options.pop("sections", ()), *limit_sections(self.keys, scope, **options.pop("limits", {}))]
        operation = create_task(
            self.keys,
            scope,
            task_id,
            context_id,
            message_request,
            caller=b"{}",
            retention=RETENTION,
            sections=sections,
            **options,
        )
        return await self.run(operation)

    async def continue_with(self, task_id: str, r: Record, context_id: str = "", **options: Any) -> Any:
        """Send a message to a task, and return the result."""
        message_request = request(options.pop("text", "more"), task_id, r["context"])
        options.setdefault("sections", [AnswerSection()])
        self._add_config(options)
        scope, sections = Scope.parse(r["scope"]), options.pop("sections")
        operation = continue_task(
            self.keys,
            scope,
            task_id,
            message_request,
            context_id,
            caller=b"{}",
            nonce=self.new_id(),
            sections=[*sections, *limit_sections(self.keys, scope, **options.pop("limits", {}))],
            **options,
        )
        return await self.run(operation)
