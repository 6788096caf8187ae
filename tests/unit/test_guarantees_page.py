"""Numbers in docs/guarantees.md, which must be those of the code."""

from __future__ import annotations

import re

import pytest

from a2a_celery.dispatch.connection import HEALTH_CHECK_INTERVAL, SOCKET_TIMEOUT
from a2a_celery.dispatch.queues import FIRST_DELAY, LONGEST_DELAY, MAX_RETURNS
from a2a_celery.execution.process.leases import RENEWALS_PER_LEASE
from a2a_celery.execution.process.prefetched import REPORT_BATCH, REPORT_INTERVAL
from a2a_celery.settings import Settings
from a2a_celery.store.client.connection import REPLICA_TIMEOUT_MS
from a2a_celery.store.log.long_tasks import PAGE as LOG_PAGE
from a2a_celery.store.log.pubsub import POLL_INTERVAL
from a2a_celery.store.operation import SCRIPTS
from a2a_celery.store.runs.publication import MAX_REDISPATCH_WAIT_US
from a2a_celery.watcher.dispatcher import MAX_CLAIMS, MAX_FAILED_PUBLICATIONS, UNREPORTED_WAITS, Dispatcher
from a2a_celery.watcher.recoverer import RETRY_AFTER
from tests.support import ROOT

HOUR_US = 3600 * 1_000_000
PAGE = " ".join((ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("A lease lasts `lease_ttl`, 15 s by default", Settings(store_url="redis://x").lease_ttl, 15),
        ("A suspended run continues within about half a second of its due time", Dispatcher.every, 0.5),
        ("reports newly prefetched runs to the store twice a second", REPORT_INTERVAL, 0.5),
        ("all prefetched runs three times per `lease_ttl`", RENEWALS_PER_LEASE, 3),
        ("Each report is one call to the store for up to 500 runs", REPORT_BATCH, 500),
        ("continues with other runs and retries after 30 seconds", RETRY_AFTER, 30),
        ("compares the run with the 200 newest leases", MAX_CLAIMS, 200),
        ("200 newest leases, at most twice a second", Dispatcher.every, 0.5),
        ("from `redispatch_after` up to an hour", MAX_REDISPATCH_WAIT_US, HOUR_US),
        ("published again an hour after it was published, then after two hours", MAX_REDISPATCH_WAIT_US, HOUR_US),
        ("If no worker has reported the run for five times `redispatch_after`", UNREPORTED_WAITS, 5),
        (
            "with a delay of 0.1 s, then 0.2 s, and so on up to 10 s. After 100 such deliveries",
            (FIRST_DELAY.total_seconds(), LONGEST_DELAY.total_seconds(), MAX_RETURNS),
            (0.1, 10, 100),
        ),
        ("waits for up to a second until the configured number of replicas", REPLICA_TIMEOUT_MS, 1000),
        ("at the next event after the last known version, or after 15 s", POLL_INTERVAL, 15),
        ("a longer task is read from its log, 125 entries at a time", LOG_PAGE, 125),
        ("without responses after about half a minute", 2 * HEALTH_CHECK_INTERVAL + SOCKET_TIMEOUT, 25),
        ("If the broker does not respond within 5 s, publishing fails", SOCKET_TIMEOUT, 5),
        ("The watcher tries six times within a minute", MAX_FAILED_PUBLICATIONS, 6),
        ("A worker reports a new prefetched run within half a second", REPORT_INTERVAL, 0.5),
    ],
)
def test_a_number_of_the_page_is_that_of_the_code(text: str, values: object, expected: object) -> None:
    assert text.lower() in PAGE.lower()
    assert values == expected


@pytest.mark.parametrize(
    ("text", "script", "constant", "value"),
    [
        ("A task with at most 1,000 entries in its history and artifacts is read", "snapshot", "entries_left", 1000),
        ("a run with at most 8 KiB of events and session", "events", "SMALL_WRITE", 8 * 1024),
    ],
)
def test_a_number_of_the_page_is_that_of_the_script(text: str, script: str, constant: str, value: int) -> None:
    lines = (SCRIPTS / "lib" / f"{script}.lua").read_text(encoding="utf-8")

    assert text in PAGE
    assert re.findall(rf"^local {constant} = (\d+)", lines, re.MULTILINE) == [str(value)]
