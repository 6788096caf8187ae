"""``celery -A … a2a requeue``: lists and requeues dead letters, in the store."""

from __future__ import annotations

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
from ...store.admin.scan import TaskSummary, list_summaries
from ...store.runs.commands import RunRef
from ...store.runs.publication import mark_published
from ...store.tasks.dead_letters import Alive, AlreadyRequeued, DeadLetter, read_dead_letter, requeue_task
from ...store.tasks.results import Ended, Missing
from ..completion import complete_dead_letter
from ..output import Progress, json_line, state_name, table, wrap_text
from .selection import Selection, operator_store, require_agent, selecting


@dataclass(frozen=True, slots=True)
class RequeueResult:
    """Result of requeuing a dead letter.

    Attributes:
        dead: Id of the dead letter's task.
        new: Id of the new task.
        published: True if the broker has accepted the run, False if a watcher publishes the run later, or None if the
            dead letter was already requeued.
        blocked: True if the run waits for earlier runs of its context.
    """

    dead: str
    new: str
    published: bool | None
    blocked: bool = False

    def line(self) -> str:
        """Return readable text with the ids of the dead letter and of the new task."""
        match self.published:
            case None:
                text = ": requeued before"
            case True:
                text = ""
            case False if self.blocked:
                text = ": begins after the earlier runs of its context"
            case False:
                text = ": begins when a watcher publishes it, because the broker is unavailable"
        return wrap_text(f"{self.dead} → {self.new}{text}")

    def as_json(self) -> str:
        """Return the result as one line of JSON."""
        fields = {"task": self.new, "requeuedFrom": self.dead, "before": self.published is None}
        return json_line(fields | ({"published": self.published} if self.published is not None else {}))


class NotRequeued(Exception):
    """Error for a task that cannot be requeued. The message is one line and includes a remedy."""


@click.command()
@click.argument("tasks", metavar="[TASK]...", nargs=-1, shell_complete=complete_dead_letter)
@click.option("--all", "everything", is_flag=True, help="Requeue all dead letters, or those that match the filters.")
@selecting("agent", "tenant", "owner", "context_id", "since", "until")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of dead letters, oldest first.")
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
    agent's code did not fit the durable steps that it had recorded. Requeuing sends the message of a dead letter again,
    as a new task of the same caller in the same context. The old task stays FAILED, and the new task refers to it.
    """
    selection = Selection.from_options(options)
    if from_start and not (tasks or everything):
        raise click.UsageError("--from-start needs TASKs or --all")
    if tasks and (everything or limit is not None or selection != Selection()):
        raise click.UsageError("pass TASKs, or --all with filters, but not both")
    with operator_store(context, None) as (a2a, store, keys):
        if not tasks:
            summaries = dead_letters(store, keys, selection)[:limit]
            require_agent(a2a, selection.agent, has_tasks=bool(summaries))
            if not everything:
                _show(summaries, as_lines)
                return
            tasks = tuple(summary.ref.task_id for summary in summaries)
        has_failures = False
        requeuer = Requeuer(a2a, store, keys, from_start=from_start)
        with Progress("Requeuing", len(tasks)) as progress:
            for task_id in tasks:
                try:
                    result = requeuer.requeue(task_id)
                    progress.echo(result.as_json() if as_lines else result.line())
                except NotRequeued as e:
                    has_failures = True
                    progress.echo(f"Error: {e}", err=True)
                progress.advance()
        if not tasks and not as_lines:
            click.echo("no dead letters")
    context.exit(int(has_failures))


class Requeuer:
    """Requeuer that resubmits dead letters, one at a time."""

    def __init__(self, a2a: A2A, store: SyncStore, keys: Keys, *, from_start: bool = False) -> None:
        self._a2a = a2a
        self._store = store
        self._keys = keys
        self._from_start = from_start
        options = {name: agent.options for name, agent in a2a.agents.items()}
        self._publisher = Publisher(a2a.celery, options, a2a.settings.key_prefix)
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
                    raise NotRequeued(f"task {task_id} has not ended ({state_name(state)}): follow it with a2a tail")
                case Ended(state):
                    raise NotRequeued(
                        f"task {task_id} is {state_name(state)}: only a task that FAILED because its worker was lost "
                        "or its steps changed can be requeued; send the message again instead"
                    )

    def _resubmit(self, dead_letter: DeadLetter) -> RequeueResult | None:
        """Return the result with the new task, or None if another operator has already requeued the dead letter.

        Raises:
            NotRequeued: This app does not have the agent of the dead letter.
        """
        dead = dead_letter.task.id
        if dead_letter.agent not in self._a2a.agents:
            names = ", ".join(self._a2a.agents) or "no agents"
            raise NotRequeued(
                f"task {dead} belongs to the agent {dead_letter.agent!r}, and this app has {names}: pass the "
                "app of the agent with -A"
            )
        options = RunOptions.from_json(dead_letter.options).resubmitted()
        new = str(uuid4())
        retention = self._a2a.settings.retention
        content = options.to_json()
        reply = self._store.run(
            requeue_task(
                self._keys, dead_letter, new, retention=retention, options=content, from_start=self._from_start
            )
        )
        if reply == "gone":
            return None
        if reply == "blocked" or self._broker_unavailable:
            return RequeueResult(dead, new, published=False, blocked=reply == "blocked")
        try:
            self._publisher.publish(dead_letter.agent, new, 1, content)
        except BrokerUnavailable:
            self._broker_unavailable = True  # do not wait for the broker a second time
            return RequeueResult(dead, new, published=False)
        delay_us = options.republish_in(datetime.now(UTC), self._a2a.settings)
        self._store.run(mark_published(self._keys, RunRef(new, 1), delay_us=delay_us))
        return RequeueResult(dead, new, published=True)


def dead_letters(store: SyncStore, keys: Keys, selection: Selection) -> list[TaskSummary]:
    """Return the dead letters that match `selection`, oldest first."""
    matching = (summary for summary in list_summaries(store, keys, keys.dead_letters) if summary in selection)
    return sorted(matching, key=lambda summary: summary.since_us)


def _show(summaries: list[TaskSummary], as_lines: bool) -> None:
    for line in map(_json_line, summaries) if as_lines else _text_lines(summaries):
        click.echo(line)


def _text_lines(summaries: list[TaskSummary]) -> Iterator[str]:
    if not summaries:
        yield "no dead letters"
        return
    lines = [(x.ref.task_id, x.agent, f"{x.attempt} of {x.max_attempts}", _time(x), x.context_id) for x in summaries]
    heading = ("TASK", "AGENT", "ATTEMPTS", "FAILED (UTC)", "CONTEXT")
    yield from table(heading, lines, ids=["TASK"], optional=["CONTEXT"], times=["FAILED (UTC)"])
    yield "run one again: a2a requeue TASK; all of them: a2a requeue --all"


def _json_line(summary: TaskSummary) -> str:
    fields: dict[str, Any] = {
        "task": summary.ref.task_id,
        "agent": summary.agent,
        "tenant": summary.scope.tenant,
        "owner": summary.scope.owner,
        "attempts": summary.attempt,
        "maxAttempts": summary.max_attempts,
        "failedAt": _time(summary).replace(" ", "T") + "Z",
        "contextId": summary.context_id,
    }
    return json_line(fields)


def _time(summary: TaskSummary) -> str:
    return datetime.fromtimestamp(summary.since_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
