"""``celery -A … a2a requeue``: lists and requeues dead letters, in the store."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import click

from ...cli.completion import task_completer
from ...cli.operator.selection import Selection, operator_store, run_on_service, select, selecting
from ...cli.output import Column, Table, json_line, time_of, wrap_text
from ...lifecycle.refusals import Refusal
from ...operations.service import TaskService
from ...store.admin.scan import TaskSummary, list_summaries
from .requeue import RequeuedTask, requeue

complete_dead_letter = task_completer(lambda store, keys: list_summaries(store, keys, keys.resubmittable))


@click.command(name="requeue")
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
def command(
    context: click.Context,
    /,
    tasks: tuple[str, ...],
    everything: bool,
    limit: int | None,
    from_start: bool,
    as_lines: bool,
    **filters: Any,
) -> None:
    """Requeue tasks whose worker was lost, or list them.

    Without TASK or --all, list the dead letters: tasks that FAILED because their worker was lost, or because their
    agent's code did not fit the durable steps that it had recorded. Requeuing sends the message of a dead letter again,
    as a new task of the same caller in the same context. The old task stays FAILED, and the new task refers to it.
    """
    selection = Selection(**filters)
    if from_start and not (tasks or everything):
        raise click.UsageError("--from-start needs TASKs or --all")
    if tasks and (everything or limit is not None or selection != Selection()):
        raise click.UsageError("pass TASKs, or --all with filters, but not both")
    with operator_store(context, None) as (a2a, store, keys):
        if not tasks:
            stored = sorted(list_summaries(store, keys, keys.resubmittable), key=lambda summary: summary.since_us)
            summaries = select(a2a, selection, stored, limit=limit)
            if not everything:
                DEAD_LETTERS.print(summaries, as_lines, "no dead letters")
                if summaries and not as_lines:
                    click.echo("run one again: a2a requeue TASK; all of them: a2a requeue --all")
                return
            tasks = tuple(summary.ref.task_id for summary in summaries)
        if not tasks and not as_lines:
            click.echo("no dead letters")
        requeuing = partial(_requeue, tasks=tasks, from_start=from_start, as_lines=as_lines)
        is_complete = run_on_service(a2a, requeuing)
    context.exit(int(not is_complete))


async def _requeue(service: TaskService, tasks: Iterable[str], *, from_start: bool, as_lines: bool) -> bool:
    """Requeue dead letters and print the results. Return True if all of them are requeued."""
    is_complete, publishes = True, True
    for task_id in tasks:
        requeued = await requeue(service, task_id, from_start=from_start, publishes=publishes)
        if isinstance(requeued, Refusal):
            is_complete = False
            click.echo(f"Error: {requeued}", err=True)
            continue
        if not (requeued.is_published or requeued.is_blocked or requeued.was_requeued_before):
            publishes = False  # do not wait for the broker a second time
        click.echo(json_line(requeued_fields(requeued)) if as_lines else requeued_text(requeued))
    return is_complete


def requeued_fields(requeued: RequeuedTask) -> dict[str, Any]:
    """Return a requeued dead letter as a JSON object for scripts."""
    fields = {"task": requeued.task_id, "requeuedFrom": requeued.dead, "before": requeued.was_requeued_before}
    return fields if requeued.was_requeued_before else fields | {"published": requeued.is_published}


def requeued_text(requeued: RequeuedTask) -> str:
    """Return readable text with the ids of the dead letter and of the new task."""
    text = ""
    if requeued.was_requeued_before:
        text = ": requeued before"
    elif requeued.is_blocked:
        text = ": begins after the earlier runs of its context"
    elif not requeued.is_published:
        text = ": begins when a watcher publishes it, because the broker is unavailable"
    return wrap_text(f"{requeued.dead} → {requeued.task_id}{text}")


def _attempts_text(summary: TaskSummary) -> str:
    return f"{summary.attempt}" + f" of {summary.max_attempts}" * bool(summary.max_attempts)


DEAD_LETTERS = Table[TaskSummary](
    [
        Column("TASK", "task", lambda summary: summary.ref.task_id),
        Column("AGENT", "agent", lambda summary: summary.agent),
        Column("", "tenant", lambda summary: summary.scope.tenant),
        Column("", "owner", lambda summary: summary.scope.owner),
        Column("ATTEMPTS", "attempts", lambda summary: summary.attempt, _attempts_text),
        Column("", "maxAttempts", lambda summary: summary.max_attempts),
        Column("FAILED (UTC)", "", lambda summary: time_of(summary.since_us)),
        Column("", "failedAt", lambda summary: f"{time_of(summary.since_us):%Y-%m-%dT%H:%M:%SZ}"),
        Column("CONTEXT", "contextId", lambda summary: summary.context_id),
    ],
    optional=["CONTEXT"],
)
