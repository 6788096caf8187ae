"""Watcher process. Its roles get their times from the settings."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from a2a_celery import A2A
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.watcher.plain_tasks.results import Results

LEASE_TTL = 24.0
LEASE_US = 24_000_000


@pytest.fixture
def roles(store: AsyncStore, keys: Keys) -> dict[str, Any]:
    """Roles that recover and publish runs, by name."""
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.update(a2a_store_url="redis://x", a2a_lease_ttl=LEASE_TTL, a2a_redispatch_after=600)
    a2a = A2A(app)
    watcher = a2a.watcher()
    results = Results(store, keys, app)
    return {role.name: role for role in watcher.task_roles(store, keys, results)}


def test_runs_are_recovered_after_the_lease_of_the_settings(roles: dict[str, Any]) -> None:
    assert roles["recoverer"].lease_ttl == LEASE_TTL


def test_a_claim_overtakes_runs_that_were_published_a_third_of_the_lease_earlier(roles: dict[str, Any]) -> None:
    assert roles["dispatcher"].backlog.overtaken_us == LEASE_US / 3


def test_a_run_is_published_again_after_the_time_of_the_settings(roles: dict[str, Any]) -> None:
    assert roles["dispatcher"].redispatch_after_us == 600_000_000
