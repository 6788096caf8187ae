"""``celery -A … a2a signal``: sends a signal to a task of any caller, through the store."""

from __future__ import annotations

import json

import click

from ...errors import SignalRefused
from ..completion import complete_open_task
from .selection import operator_store


@click.command(name="signal")
@click.argument("task", shell_complete=complete_open_task)
@click.argument("name")
@click.argument("payload", metavar="[JSON]", required=False)
@click.option("--id", "signal_id", metavar="ID", help="The signal's id. A second signal with this id has no effect.")
@click.pass_context
def signal_task(context: click.Context, task: str, name: str, payload: str | None, signal_id: str | None) -> None:
    """Send the signal NAME, with a payload as JSON, to TASK.

    An agent receives the signal with turn.wait_for(NAME), either immediately if the agent is waiting for the signal, or
    at the next wait. Reads A2A_STORE_URL, and needs no gateway.
    """
    try:
        value = None if payload is None else json.loads(payload)
    except ValueError as e:
        raise click.UsageError(f"the payload is not JSON: {e}. Text needs quotes: '\"text\"'") from e
    with operator_store(context, None) as (a2a, _, _):
        try:
            has_resumed = a2a.signal(task, name, value, signal_id=signal_id, sender="operator")
        except ValueError as e:
            raise click.UsageError(str(e)) from e
        except SignalRefused as e:
            raise click.ClickException(str(e)) from e
    click.echo(f"task {task} continues" if has_resumed else f"stored until task {task} waits for {name}")
