"""``celery -A … a2a migrate``: brings a store to the schema of this release, and lets go of an archive."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from ..app import A2A
from ..errors import ConfigError, StoreUnavailable
from ..store import Keys, SyncStore
from ..store.archiving import archive_state, keep_ended
from ..store.installation import watchers
from ..store.schema import SCHEMA, judge, open_store, pending
from ..store.schema import migrate as carry_out
from .location import prepared
from .survey import reports


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be changed, and change nothing.")
@click.option(
    "--without-archive", is_flag=True, help="Give the archive up: ended tasks in the store expire, and later ones too."
)
@click.option("--timeout", default=2.0, show_default=True, help="Seconds that workers have to answer.")
@click.pass_context
def migrate(context: click.Context, dry_run: bool, without_archive: bool, timeout: float) -> None:
    """Bring the store to what this release reads and writes.

    Stop gateways, workers and watchers of the older release first, and start the new ones behind it. It
    may be cut off and begun again; twice at once does no harm; with nothing to do it says so.
    """
    found = prepared(context)
    store, keys = SyncStore(found.settings.store_url), Keys(found.settings.key_prefix)
    try:
        _to_this_release(found, store, keys, dry_run, timeout)
        if without_archive:
            _without_archive(found, store, keys, dry_run)
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    except StoreUnavailable as e:
        raise click.ClickException(f"{e}; what was done stays done: run it again") from e
    finally:
        store.close()


def _to_this_release(found: A2A, store: SyncStore, keys: Keys, dry_run: bool, timeout: float) -> None:
    schema = open_store(store, keys, stamp=not dry_run).schema
    steps = pending(schema)
    if schema > SCHEMA:
        judge(open_store(store, keys), None)
    if not steps:
        click.echo(f"The store has schema {schema}, as this release needs it: nothing to do.")
        return
    older = [] if dry_run else list(_older(found, store, keys, timeout))
    if older:
        raise click.ClickException(
            f"processes of an older release are at work: {', '.join(older)}. Stop them, and the gateways, which can't "
            "be seen from here. A watcher is forgotten 20 seconds after it has stopped"
        )
    for step in steps:
        changed = carry_out(store, keys, step, schema, dry_run=dry_run)
        schema = step.to
        click.echo(f"Schema {step.to} {step.does}: {changed} records {'would be' if dry_run else 'were'} changed.")


def _older(found: A2A, store: SyncStore, keys: Keys, timeout: float) -> Iterator[str]:
    """Who is at work and says no schema, or another: nobody of this release begins before it is there."""
    for said in store.run(watchers(keys)):
        watcher = json.loads(said)
        if watcher.get("schema") != SCHEMA:
            yield f"watcher {watcher['watcher']}"
    for node, report in sorted(reports(found.celery, timeout).items()):
        if "pool" in report and report.get("schema") != SCHEMA:
            yield f"worker {node}"


def _without_archive(found: A2A, store: SyncStore, keys: Keys, dry_run: bool) -> None:
    if found.settings.archive_url is not None:
        raise ConfigError(
            "a2a_archive_url is set here, so processes would turn the archive on again: unset it everywhere"
        )
    state = store.run(archive_state(keys, give_up=not dry_run))
    cursor, changed = "0", state.waiting + state.refused if dry_run else 0
    while not dry_run:
        cursor, more = store.run(keep_ended(keys, cursor))
        changed += more
        if cursor == "0":
            break
    how = "would expire" if dry_run else "expire"
    click.echo(f"No archive: {changed} ended tasks {how} {found.settings.retention} seconds from now.")
