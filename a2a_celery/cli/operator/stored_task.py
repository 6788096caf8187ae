"""``a2a get | tail | cancel TASK --store``: access to a single task of any caller, in the store.

A gateway with authentication shows a task only to its owner, and an operator does not have the owner's credentials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from time import sleep
from typing import Any

import click
from a2a.types import Task

from ...agents import longest_grace
from ...app import A2A
from ...dispatch import Publisher
from ...lifecycle.client_events import client_event
from ...lifecycle.events import EventId, stream_response
from ...lifecycle.states import INTERRUPTED, TERMINAL
from ...store import Keys, Scope, SyncStore
from ...store.log.pages import read_log
from ...store.runs.commands import RunRef
from ...store.runs.release import Steps, read_steps
from ...store.tasks.commands import read_task
from ...store.tasks.dead_letters import AlreadyRequeued, DeadLetter, read_dead_letter
from ..output import EventPrinter, as_json, state_name, task_lines
from .cancel_all import BEYOND_GRACE, Canceller
from .selection import missing_task, operator_store, refuse_gateway_options

LOG_POLL_INTERVAL = 0.5
"""Seconds between two reads of the log while `tail` follows a task."""


@dataclass(frozen=True, slots=True)
class OpenTask:
    """Task to cancel, with its newest run."""

    ref: RunRef
    scope: Scope
    context_id: str


StoredTaskCommand = Callable[[click.Context, str, str | None, bool], None]


def with_store_option(through_store: StoredTaskCommand) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the option --store to a command. With this option, the command calls `through_store`
    instead of a gateway."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def run(context: click.Context, /, store: bool, **rest: Any) -> Any:
            if not store:
                return command(**rest)
            refuse_gateway_options(context, "--store")
            return through_store(context, rest["task"], rest["agent"], rest["as_lines"])

        return click.option(
            "--store",
            is_flag=True,
            help="Use the task of any caller, for operators. Reads A2A_STORE_URL; needs no gateway.",
        )(click.pass_context(update_wrapper(run, command)))

    return decorate


def show_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Print a task from the store and, for a dead letter, how to run the task again."""
    with operator_store(context, agent) as (a2a, store, keys):
        task, _, steps = _read(a2a, store, keys, task_id, agent)
        _show(task, as_lines, steps.agent)
        if as_lines:
            return
        match store.run(read_dead_letter(keys, task_id, from_start=True)):
            case DeadLetter():
                click.echo(f"run it again: a2a requeue {task_id}")
            case AlreadyRequeued(new_id):
                click.echo(f"requeued as task {new_id}")


def tail_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Show a task and each new event in its log until the task ends or pauses."""
    with operator_store(context, agent) as (a2a, store, keys):
        task, newest, _ = _read(a2a, store, keys, task_id, agent)
        printer = EventPrinter(as_lines=as_lines)
        printer.show(stream_response(task))
        while True:
            page = store.run(read_log(keys, task_id, newest))
            if page.version == 0:
                raise missing_task(a2a, task_id, agent)
            if page.restored:
                printer.end_line()
                click.echo("the store lost events that were shown: the task is shown again", err=True)
                task, newest, _ = _read(a2a, store, keys, task_id, agent)
                printer = EventPrinter(as_lines=as_lines)
                printer.show(stream_response(task))
            for entry in page.entries:
                newest = entry.id
                event = client_event(entry, task_id, task.context_id)
                if event is not None:
                    printer.show(stream_response(event))
            if newest.version >= page.version:
                if page.state in TERMINAL | INTERRUPTED:
                    printer.end_line()
                    return
                sleep(LOG_POLL_INTERVAL)


def cancel_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Cancel a task as its client would, and show the task when its agent has stopped or the timeout has passed."""
    with operator_store(context, agent) as (a2a, store, keys):
        task, _, steps = _read(a2a, store, keys, task_id, agent)
        if task.status.state in TERMINAL:
            raise click.ClickException(f"task {task_id} is {state_name(task.status.state)}: it has ended")
        open_task = OpenTask(RunRef(task_id, steps.run), steps.scope, steps.context_id)
        timeout = longest_grace(a2a.agents.values(), a2a.settings) + BEYOND_GRACE
        canceller = Canceller[OpenTask](store, keys, Publisher(a2a.celery, {}), timeout)
        [(_, outcome)] = canceller.cancel([open_task])
        _show(_read(a2a, store, keys, task_id, agent)[0], as_lines)
        if outcome == "running":
            raise click.ClickException(
                f"the agent of task {task_id} did not stop in time: see a2a list --stuck, and a2a doctor"
            )


def _read(a2a: A2A, store: SyncStore, keys: Keys, task_id: str, agent: str | None) -> tuple[Task, EventId, Steps]:
    """Return a task, the id of its newest event and its steps.

    Raises:
        click.ClickException: The task does not exist, or belongs to an agent other than `agent`.
    """
    snapshot, steps = store.run(read_task(keys, None, task_id)), store.run(read_steps(keys, task_id))
    if snapshot is None or steps is None or agent not in (None, steps.agent):
        raise missing_task(a2a, task_id, agent)
    return *snapshot, steps


def _show(task: Task, as_lines: bool, agent: str = "") -> None:
    click.echo(as_json(task) if as_lines else task_lines(task, agent))
