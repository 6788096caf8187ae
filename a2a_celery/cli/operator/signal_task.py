"""``celery -A … a2a signal``: send a signal to a task of any caller, in the store."""

from __future__ import annotations

import json

import click

from ...errors import SignalRefused
from .selection import operator_store


@click.command(name="signal")
@click.argument("task")
@click.argument("name")
@click.argument("payload", metavar="[JSON]", required=False)
@click.option("--id", "signal_id", metavar="ID", help="The id of the signal. A second signal with it has no effect.")
@click.pass_context
def signal_task(context: click.Context, task: str, name: str, payload: str | None, signal_id: str | None) -> None:
    """Send the signal NAME, with a payload as JSON, to TASK.

    An agent receives it with turn.wait_for(NAME): at once if it waits for the signal, otherwise when it does. Reads
    A2A_STORE_URL; needs no gateway.
    """
    try:
        value = None if payload is None else json.loads(payload)
    except ValueError as e:
        raise click.UsageError(f"the payload is not JSON: {e}. Text needs quotes: '\"text\"'") from e
    with operator_store(context, None) as (found, _, _):
        try:
            resumed = found.signal(task, name, value, signal_id=signal_id)
        except ValueError as e:
            raise click.UsageError(str(e)) from e
        except SignalRefused as e:
            raise click.ClickException(str(e)) from e
    click.echo(f"task {task} continues" if resumed else f"stored until task {task} waits for {name}")
