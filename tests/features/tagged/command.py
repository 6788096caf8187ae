"""Command of these tests: ``celery -A … a2a count-tagged``."""

from __future__ import annotations

import click

from a2a_celery.cli.operator.selection import Selection, operator_store
from a2a_celery.store.admin.scan import state_indexes, tasks_in

from .section import tag_index


@click.command(name="count-tagged")
@click.argument("tag")
@click.pass_context
def command(context: click.Context, tag: str) -> None:
    """Print the number of tasks with TAG."""
    with operator_store(context, None) as (_, store, keys):
        click.echo(sum(1 for _ in tasks_in(store, keys, state_indexes(tag_index(keys, tag)), Selection().states)))
