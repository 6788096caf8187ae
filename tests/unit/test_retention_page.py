"""Names and numbers in docs/retention.md, which must equal those of the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from a2a_celery.archive.table import LONGEST, TABLE, ArchivedTask, owner_of
from a2a_celery.cli.operator.migrate import migrate
from a2a_celery.lifecycle.references import Scope
from a2a_celery.settings.urls import ARCHIVE_DRIVERS
from a2a_celery.store.admin.archiving import UNDELIVERED_RETENTION
from a2a_celery.store.admin.schema import SCHEMA, STEPS
from a2a_celery.telemetry.names import METRICS
from a2a_celery.watcher.archiver import ARCHIVE_BATCH, DELETION_BATCH, LEASE_MS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "retention.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_its_drivers_and_extras_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    assert set(re.findall(r"`(\w+\+\w+)`", PAGE)) == set(ARCHIVE_DRIVERS)
    assert set(re.findall(r"archive-\w+", PAGE)) == {name for name in extras if name.startswith("archive-")}


def test_its_numbers_are_the_codes() -> None:
    assert (ARCHIVE_BATCH, LEASE_MS, DELETION_BATCH, UNDELIVERED_RETENTION) == (50, 60_000, 500, 2 * 24 * 3600)
    assert "oldest first, fifty at a time. Only one watcher at a time moves tasks" in TEXT
    assert "another takes over within a minute" in TEXT
    assert f"rows are deleted, {DELETION_BATCH} at a time" in TEXT
    assert f"an id of more than {LONGEST} characters" in TEXT


def test_its_names_are_there() -> None:
    metrics = {metric.exposed for metric in METRICS}
    assert set(re.findall(r"`(a2a_\w+)`", PAGE)) <= metrics | {TABLE}
    assert set(re.findall(r"a2a migrate (--[\w-]+)", PAGE)) == {"--dry-run", "--without-archive"}
    assert {"--dry-run", "--without-archive"} <= {option for param in migrate.params for option in param.opts}
    table = ArchivedTask.__table__
    for column in re.findall(r"`(owner|status|artifacts|history|metadata|whole)`", PAGE):
        assert column in table.columns
    assert f"FROM {TABLE} WHERE owner = '{owner_of(Scope('echo', '', 'ann'))}'" in PAGE


def test_every_schema_is_in_the_table() -> None:
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == [str(step.to) for step in STEPS]


def test_the_change_log_has_the_current_schema() -> None:
    assert f"The schema is {SCHEMA}:" in " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
