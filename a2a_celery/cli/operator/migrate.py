"""``celery -A … a2a migrate``: migrates the store to the schema of this release, and can detach the archive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import click

from ...app import A2A
from ...dispatch import worker_reports
from ...errors import ConfigError, StoreUnavailable
from ...store import Keys, SyncStore
from ...store.admin.archiving import read_archive_state, update_archive_backlog
from ...store.admin.schema import SCHEMA, count_pages, open_store, pending, require_compatible
from ...store.admin.schema import migrate as carry_out
from ...store.admin.start_check import watchers
from ..app_loader import load_configured_a2a
from ..doctor.broker_server import require_broker
from ..output import duration, progress_bar
from .selection import unavailable_store


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the changes, and make none.")
@click.option(
    "--without-archive",
    is_flag=True,
    help="Stop using the archive: ended tasks in the store expire, now and in future.",
)
@click.option("--timeout", default=2.0, show_default=True, help="Seconds to wait for workers' replies.")
@click.pass_context
def migrate(context: click.Context, dry_run: bool, without_archive: bool, timeout: float) -> None:
    """Migrate the store to the schema of this release.

    First stop the gateways, workers and watchers of the older release. Start the new release afterwards. An interrupted
    migration can be run again, and concurrent migrations are harmless.
    """
    a2a = load_configured_a2a(context)
    keys = Keys(a2a.settings.key_prefix)
    try:
        with closing(SyncStore(a2a.settings.store_url)) as store:
            _to_this_release(a2a, store, keys, dry_run, timeout)
            if without_archive:
                _without_archive(a2a, store, keys, dry_run)
    except StoreUnavailable as e:
        text = unavailable_store(a2a.settings.store_url, e)
        advice = "" if dry_run else " Completed steps are kept: run the command again"
        raise click.ClickException(text + advice) from e


def _to_this_release(a2a: A2A, store: SyncStore, keys: Keys, dry_run: bool, timeout: float) -> None:
    schema = open_store(store, keys, stamp=not dry_run).schema
    steps = pending(schema)
    if schema > SCHEMA:
        require_compatible(open_store(store, keys), None)
    if not steps:
        click.echo(f"The store has schema {schema}, which this release needs: nothing to do.")
        return
    if not dry_run:
        require_broker(a2a.celery)  # which carries the replies of older workers
    older = [] if dry_run else list(_older(a2a, store, keys, timeout))
    if older:
        raise click.ClickException(
            f"processes of an older release are running: {', '.join(older)}. Stop them, and all gateways, which this "
            "command cannot detect. A stopped watcher is listed for another 20 seconds"
        )
    for step in steps:
        with progress_bar(f"Schema {step.to}", count_pages(store)) as advance:
            change_count = carry_out(store, keys, step, schema, dry_run=dry_run, on_page=partial(advance, 1))
        schema = step.to
        click.echo(f"Schema {step.to} {step.does}: {change_count} records {'would be' if dry_run else 'were'} changed.")


def _older(a2a: A2A, store: SyncStore, keys: Keys, timeout: float) -> Iterator[str]:
    """Yield the running processes of other releases, which report a different schema or no schema."""
    for watcher in (json.loads(content) for content in store.run(watchers(keys))):
        if watcher.get("schema") != SCHEMA:
            yield f"watcher {watcher['watcher']}"
    for node, report in sorted(worker_reports(a2a.celery, timeout).items()):
        if "pool" in report and report.get("schema") != SCHEMA:
            yield f"worker {node}"


def _without_archive(a2a: A2A, store: SyncStore, keys: Keys, dry_run: bool) -> None:
    if a2a.settings.archive_url is not None:
        raise ConfigError(
            "a2a_archive_url is set here, so processes would turn the archive on again: unset it everywhere"
        )
    state = store.run(read_archive_state(keys, give_up=not dry_run))
    cursor, change_count = "0", state.waiting + state.refused if dry_run else 0
    with progress_bar("Archive", state.waiting + state.refused) as advance:
        while not dry_run:
            cursor, more = store.run(update_archive_backlog(keys, cursor))
            change_count += more
            advance(more)
            if cursor == "0":
                break
    if not change_count:
        click.echo("No archive: no ended task waits for it.")
        return
    effect = "would expire" if dry_run else "expire"
    after = duration(a2a.settings.retention).removesuffix(" 0 h")
    click.echo(f"No archive: {change_count} ended task{'s' * (change_count > 1)} {effect} {after} from now.")
