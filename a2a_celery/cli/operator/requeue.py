"""``celery -A … a2a requeue``: lists and requeues dead letters, in the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import click

from ...app import A2A
from ...dispatch import Publisher, RunOptions
from ...errors import BrokerUnavailable
from ...store import Keys, SyncStore
from ...store.admin.scan import TaskSummary, listed
from ...store.runs.commands import RunRef, mark_published
from ...store.tasks.dead_letters import Alive, AlreadyRequeued, DeadLetter, read_dead_letter, requeue_task
from ...store.tasks.results import Ended, Missing
from ..output import state_name, table
from .selection import Selection, operator_store, selecting


@dataclass(frozen=True, slots=True)
class RequeueResult:
    """Result of requeuing a dead letter as the task `new`.

    `published` is True if the broker has accepted the run, and None if the dead letter was already requeued. A
    `blocked` run waits for earlier runs of its context.
    """

    dead: str
    new: str
    published: bool | None
    blocked: bool = False

    def line(self) -> str:
        """Return one readable line."""
        match self.published:
            case None:
                return f"{self.dead} was requeued before, as task {self.new}"
            case True:
                return f"{self.dead} runs again as task {self.new}"
            case False if self.blocked:
                return f"{self.dead} runs again as task {self.new}, after the earlier runs of its context"
            case False:
                return (
                    f"{self.dead} runs again as task {self.new}, once a watcher publishes it: the broker is unavailable"
                )

    def as_json(self) -> str:
        """Return one line of JSON."""
        fields = {"task": self.new, "requeuedFrom": self.dead, "before": self.published is None}
        return json.dumps(fields | ({"published": self.published} if self.published is not None else {}))


class NotRequeued(Exception):
    """A task cannot be requeued. The message is one line and includes a remedy."""


@click.command()
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Requeue all dead letters, or those that match the filters.")
@selecting("agent", "tenant", "owner", "context_id", "since", "until")
@click.option("--limit", type=click.IntRange(min=1), help="The largest number, the oldest first.")
@click.option(
    "--from-start",
    is_flag=True,
    help="Forget the results of durable steps and execute all of them again. By default, recorded results are used.",
)
@click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON per dead letter, or per new task.")
@click.pass_context
def requeue(
    context: click.Context,
    /,
    tasks: tuple[str, ...],
    everything: bool,
    limit: int | None,
    from_start: bool,
    as_lines: bool,
    **options: Any,
) -> None:
    """Requeue tasks whose worker was lost, or list them.

    Without TASK or --all, list the dead letters: tasks that FAILED because their worker was lost, or because their
    agent's code did not fit the durable steps that it had recorded. Requeuing sends the
    message of a dead letter again, as a new task of the same caller in the same context. The old task stays FAILED; the
    new task refers to it.
    """
    wanted = Selection.from_options(options)
    if from_start and not (tasks or everything):
        raise click.UsageError("--from-start needs TASKs or --all")
    if tasks and (everything or limit is not None or wanted != Selection()):
        raise click.UsageError("pass TASKs, or --all with filters, but not both")
    with operator_store(context, wanted.agent) as (found, store, keys):
        if not tasks:
            summaries = dead_letters(store, keys, wanted)[:limit]
            if not everything:
                _show(summaries, as_lines)
                return
            tasks = tuple(dead_letter.ref.task_id for dead_letter in summaries)
        failed = False
        requeuer = Requeuer(found, store, keys, from_start=from_start)
        for task_id in tasks:
            try:
                done = requeuer.requeue(task_id)
                click.echo(done.as_json() if as_lines else done.line())
            except NotRequeued as e:
                failed = True
                click.echo(f"Error: {e}", err=True)
        if not tasks and not as_lines:
            click.echo("no dead letters")
    context.exit(int(failed))


class Requeuer:
    """Requeuer of dead letters, one at a time."""

    def __init__(self, found: A2A, store: SyncStore, keys: Keys, *, from_start: bool = False) -> None:
        self._found = found
        self._store = store
        self._keys = keys
        self._from_start = from_start
        options = {name: agent.options for name, agent in found.agents.items()}
        self._publisher = Publisher(found.celery, options, found.settings.key_prefix)
        self._broker_unavailable = False

    def requeue(self, task_id: str) -> RequeueResult:
        """Create a new task from the dead letter `task_id` and publish its run. Concurrent calls create only one task.

        Raises:
            NotRequeued: The task is not a dead letter, or this app does not have its agent.
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        while True:
            match self._store.run(read_dead_letter(self._keys, task_id, from_start=self._from_start)):
                case DeadLetter() as dead_letter:
                    new = self._resubmit(dead_letter)
                    if new is not None:
                        return new
                    # another operator was faster, so read the dead letter again
                case AlreadyRequeued(new_id):
                    return RequeueResult(task_id, new_id, None)
                case Missing():
                    raise NotRequeued(f"no task {task_id}: its id is wrong, or a2a_retention has passed")
                case Alive(state):
                    raise NotRequeued(
                        f"task {task_id} is {state_name(state)}: it has not ended; follow it with a2a tail"
                    )
                case Ended(state):
                    raise NotRequeued(
                        f"task {task_id} is {state_name(state)}, and not because its worker was lost or its "
                        "steps changed: only such a task can be requeued; send its message once more instead"
                    )

    def _resubmit(self, dead_letter: DeadLetter) -> RequeueResult | None:
        """Return the new task, or None if another operator has already created it."""
        dead = dead_letter.task.id
        if dead_letter.agent not in self._found.agents:
            here = ", ".join(self._found.agents)
            raise NotRequeued(
                f"task {dead} is of the agent {dead_letter.agent!r}, this app has {here}: name its app with -A"
            )
        options = RunOptions.from_json(dead_letter.options).resubmitted()
        new = str(uuid4())
        retention = self._found.settings.retention
        stored = options.to_json()
        made = self._store.run(
            requeue_task(self._keys, dead_letter, new, retention=retention, options=stored, from_start=self._from_start)
        )
        if made == "gone":
            return None
        if made == "blocked" or self._broker_unavailable:
            return RequeueResult(dead, new, published=False, blocked=made == "blocked")
        try:
            self._publisher.publish(dead_letter.agent, new, 1, stored)
        except BrokerUnavailable:
            self._broker_unavailable = True  # do not wait for the broker a second time
            return RequeueResult(dead, new, published=False)
        again_us = options.republish_in(datetime.now(UTC), self._found.settings)
        self._store.run(mark_published(self._keys, RunRef(new, 1), again_us=again_us))
        return RequeueResult(dead, new, published=True)


def dead_letters(store: SyncStore, keys: Keys, wanted: Selection) -> list[TaskSummary]:
    """Return the dead letters that match `wanted`, oldest first."""
    found = (dead_letter for dead_letter in listed(store, keys, keys.dead_letters) if dead_letter in wanted)
    return sorted(found, key=lambda dead_letter: dead_letter.since_us)


def _show(summaries: list[TaskSummary], as_lines: bool) -> None:
    for line in map(_json_line, summaries) if as_lines else _text_lines(summaries):
        click.echo(line)


def _text_lines(summaries: list[TaskSummary]) -> Iterator[str]:
    if not summaries:
        yield "no dead letters"
        return
    lines = [(x.ref.task_id, x.agent, f"{x.attempt} of {x.max_attempts}", _time(x), x.context_id) for x in summaries]
    yield from table(("TASK", "AGENT", "ATTEMPTS", "FAILED (UTC)", "CONTEXT"), lines)
    yield "run one again: a2a requeue TASK; all of them: a2a requeue --all"


def _json_line(dead_letter: TaskSummary) -> str:
    fields: dict[str, Any] = {
        "task": dead_letter.ref.task_id,
        "agent": dead_letter.agent,
        "tenant": dead_letter.scope.tenant,
        "owner": dead_letter.scope.owner,
        "attempts": dead_letter.attempt,
        "maxAttempts": dead_letter.max_attempts,
        "failedAt": _time(dead_letter).replace(" ", "T") + "Z",
        "contextId": dead_letter.context_id,
    }
    return json.dumps(fields, ensure_ascii=False)


def _time(dead_letter: TaskSummary) -> str:
    return datetime.fromtimestamp(dead_letter.since_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
