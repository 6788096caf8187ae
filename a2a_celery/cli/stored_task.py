"""``a2a get | tail | cancel TASK --store``: one task of any caller, for an operator, through no gateway.

An operator has no credentials of the task's owner, so a gateway with authentication shows the task to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from time import sleep
from typing import Any

import click
from a2a.types import Task

from ..dispatch import Publisher
from ..lifecycle.events import stream_response
from ..lifecycle.shown import shown_event
from ..lifecycle.states import INTERRUPTED, TERMINAL
from ..store import Keys, SyncStore
from ..store.log import read_log
from ..store.scan import open_tasks
from ..store.steps import read_steps
from ..store.tasks import read_task
from .cancel_all import BEYOND_GRACE, Canceller
from .everybody import refuse_gateway
from .operating import operated_store
from .show import as_json, event_line, state_name, task_lines

POLL_INTERVAL = 0.5
"""Seconds between two reads of the log of a task that `tail` follows."""

StoredTaskCommand = Callable[[click.Context, str, str | None, bool], None]


def or_store(through_store: StoredTaskCommand) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command about one task the option --store, with which `through_store` answers instead of a gateway."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def run(context: click.Context, /, store: bool, **rest: Any) -> Any:
            if not store:
                return command(**rest)
            refuse_gateway("--store", rest)
            return through_store(context, rest["task"], rest["agent"], rest["as_lines"])

        return click.option(
            "--store",
            is_flag=True,
            help="Whosever task it is, for operators. Asks A2A_STORE_URL, needs no gateway.",
        )(click.pass_context(update_wrapper(run, command)))

    return decorate


def show_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Show a task as it is in the store."""
    with operated_store(context, agent) as (_, store, keys):
        _show(_read(store, keys, task_id, agent)[0], as_lines)


def tail_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Show a task, and each event of its log as it is written, until the task ends or pauses."""
    with operated_store(context, agent) as (_, store, keys):
        task, version = _read(store, keys, task_id, agent)
        _show(task, as_lines)
        while True:
            page = store.run(read_log(keys, task_id, version))
            if page.version == 0:
                raise _missing(task_id)
            for entry in page.entries:
                version = entry.version
                event = shown_event(entry, task_id, task.context_id)
                if event is not None:
                    response = stream_response(event)
                    click.echo(as_json(response) if as_lines else event_line(response))
            if version >= page.version:
                if page.state in TERMINAL | INTERRUPTED:
                    return
                sleep(POLL_INTERVAL)


def cancel_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Cancel a task as its client would, and show it when its agent has stopped."""
    with operated_store(context, agent) as (found, store, keys):
        task, _ = _read(store, keys, task_id, agent)
        listed = next((row for row in open_tasks(store, keys) if row.ref.task_id == task_id), None)
        if listed is None:
            raise click.ClickException(f"task {task_id} is {state_name(task.status.state)}: it has ended")
        canceller = Canceller(store, keys, Publisher(found.celery, {}), found.settings.cancel_grace + BEYOND_GRACE)
        [(_, outcome)] = canceller.cancel([listed])
        _show(_read(store, keys, task_id, agent)[0], as_lines)
        if outcome == "running":
            raise click.ClickException(f"the agent of task {task_id} was asked to stop, and did not in time")


def _read(store: SyncStore, keys: Keys, task_id: str, agent: str | None) -> tuple[Task, int]:
    """Return a task and its version.

    Raises:
        click.ClickException: There is no such task, or `agent` does not have it.
    """
    found, steps = store.run(read_task(keys, None, task_id)), store.run(read_steps(keys, task_id))
    if found is None or steps is None or agent not in (None, steps.agent):
        raise _missing(task_id)
    return found


def _missing(task_id: str) -> click.ClickException:
    return click.ClickException(
        f"no task {task_id} in the store: it never was, or was kept no longer than a2a_retention"
    )


def _show(task: Task, as_lines: bool) -> None:
    click.echo(as_json(task) if as_lines else task_lines(task))
