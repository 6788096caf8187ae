"""Consistency of docs/limits.md with the code: settings, names of limits, bounds and an example response."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from a2a.utils.error_handlers import build_rest_error_payload

from a2a_celery.cli.serve import h11_protocol
from a2a_celery.errors import ConfigError
from a2a_celery.features.families.section import MAX_CHILDREN
from a2a_celery.features.webhooks.deliverer import DELIVERY_LIMITS, LOG_PAGE_BYTES, LOG_PAGE_ENTRIES
from a2a_celery.features.webhooks.gateway_configs import QUEUE_FULL_WAIT
from a2a_celery.gateway.auth.grpc import OWNER_SHARE
from a2a_celery.gateway.bindings.grpc import CONNECTION_OPTIONS, MAX_CONCURRENT_CALLS, MAX_FIELDS
from a2a_celery.gateway.gate import (
    BYTES_PER_REQUEST,
    HEAVY_WAIT,
    MAX_ARRIVING_BYTES,
    MAX_READS,
    MAX_VALIDATIONS,
    MAX_WAITING,
    SMALL,
    STREAM_WAIT,
    THREADS,
    WORK_SHARE,
)
from a2a_celery.gateway.middleware import bodies
from a2a_celery.gateway.middleware.bodies import MAX_JSON_DEPTH
from a2a_celery.gateway.operations.validation import BOUNDS
from a2a_celery.gateway.protocol_errors import retry_seconds, too_many_requests
from a2a_celery.lifecycle.answers import MAX_ANSWER_BYTES
from a2a_celery.lifecycle.json_values import MAX_VALUE_DEPTH
from a2a_celery.lifecycle.questions import MAX_DEPTH, MAX_SCHEMA_BYTES
from a2a_celery.lifecycle.schema_validation import MAX_CPU_SECONDS, MAX_KEYWORDS, MAX_NESTED
from a2a_celery.operations.errors import LimitExceededError
from a2a_celery.operations.limits import LIMIT_TEXTS, MAX_WAIT
from a2a_celery.operations.requests import MAX_JSON_VALUES, MAX_REFERENCES
from a2a_celery.settings import Settings, default_of
from a2a_celery.settings.loading import load_settings
from a2a_celery.store.blobs import blob_store
from a2a_celery.store.log import pages as log
from a2a_celery.store.tasks import listing
from a2a_celery.store.tasks.commands import MAX_WAITING_TURNS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
KIB = 1024
PREFIXES = ("owner_", "agent_max_", "store_watermark")
LIMITS = [f.name for f in fields(Settings) if f.name.startswith(PREFIXES)]


def test_every_limit_is_there() -> None:
    table = PAGE.partition("| `limit` |")[2].partition("\n\n")[0]

    assert [name for name in re.findall(r"`(\w+)`", table) if "_" in name and name not in LIMIT_TEXTS] == LIMITS
    assert sorted(re.findall(r"`(\w+)` \|$", table, re.MULTILINE)) == sorted(LIMIT_TEXTS)


def test_its_commands_are_settings() -> None:
    environ = dict(re.findall(r"(A2A_\w+)=([\d.]+)", PAGE))

    settings = load_settings({"a2a_store_url": "redis://host/0"}, environ)

    assert {name: getattr(settings, name) for name in LIMITS} == {
        name: float(environ[f"A2A_{name.upper()}"]) for name in LIMITS
    }


def test_its_example_response_is_valid() -> None:
    example = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])
    text = f"{LIMIT_TEXTS['concurrent'].format(8)}. Retry in 2 s."
    error = LimitExceededError(text, data={"limit": "concurrent", "retryAfter": "2"})

    answer = too_many_requests(build_rest_error_payload(error), retry_seconds(error))

    assert json.loads(bytes(answer.body)) == example
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")


def test_its_numbers_are_the_codes() -> None:
    assert f"from 1 to {MAX_WAIT} seconds" in PAGE
    assert f"At most {MAX_WAITING_TURNS} messages can wait" in " ".join(PAGE.split())
    cells = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.partition("## Size of a request")[2], re.MULTILINE))
    values = [value for row, value in cells.items() if row.startswith(("values", "nesting of", "ids", "tasks"))]
    expected = [
        f"{MAX_JSON_VALUES:,}",
        f"{MAX_JSON_DEPTH} levels",
        f"{BOUNDS['id']} characters; {BOUNDS['page_token']:,}",
    ]
    assert values == [*expected, str(MAX_REFERENCES)]
    [nesting] = [value for row, value in cells.items() if row.startswith("nesting within")]
    levels = f"{MAX_VALUE_DEPTH // 3} levels of objects and lists, or {MAX_VALUE_DEPTH // 2} levels of lists"
    assert nesting.startswith(levels)
    assert cells["the schema of a question"] == f"{MAX_SCHEMA_BYTES // KIB} KiB, {MAX_DEPTH} levels"
    heavy = " ".join(PAGE.partition("### Large requests and results")[2].partition("\n## ")[0].split())
    assert re.findall(r"more than (\d+) KiB", heavy) == [str(SMALL // KIB)] * 3
    assert (MAX_READS, THREADS, WORK_SHARE) == (4, 2, 1 / 4)
    for text in (
        "at most four tasks or pages of tasks",
        "Two threads",
        "at most a quarter of the time",
        "three times as long",
        f"{BYTES_PER_REQUEST // KIB} KiB for each request",
    ):
        assert text in heavy


def test_its_fixed_limits_are_the_codes() -> None:
    table = PAGE.partition("| `limit` |")[2].partition("\n\n")[0]

    assert re.findall(r"^\| ([\d,]+), fixed \|.*`(\w+)` \|$", table, re.MULTILINE) == [
        (f"{MAX_CHILDREN:,}", "children"),
        (f"{MAX_CONCURRENT_CALLS * OWNER_SHARE:,.0f}", "calls"),
        (f"{MAX_VALIDATIONS}", "answers"),
        (f"{MAX_WAITING:,}", "reads"),
    ]


def test_its_retry_delays_are_the_codes() -> None:
    section = PAGE.partition("| limit | Retry-After |")[2].partition("\n\n")[0]
    delays = {
        limit: re.findall(r"\d+", delay)
        for limit, delay in re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    }

    assert delays["streams, gRPC calls"] == [str(STREAM_WAIT)]
    [of_waiting] = [delay for limit, delay in delays.items() if limit.startswith("waiting")]
    assert [of_waiting] * 2 == [[str(seconds)] for seconds in (HEAVY_WAIT, QUEUE_FULL_WAIT)]


def numbers_of_size(subject: str) -> list[int]:
    """Return the numbers in the size of a request whose subject on the page begins with `subject`."""
    section = PAGE.partition("## Size of a request")[2].partition("\n## ")[0]
    [limit] = re.findall(rf"^\| {re.escape(subject)}.*? \| (.+?) \|$", section, re.MULTILINE)
    return [int(number.replace(",", "")) for number in re.findall(r"\b\d[\d,]*\b", limit)]


def test_its_sizes_of_requests_are_the_codes() -> None:
    connection = dict(CONNECTION_OPTIONS)

    assert numbers_of_size("HTTP bodies of an owner")[:2] == [MAX_ARRIVING_BYTES // KIB**2, SMALL // KIB]
    assert numbers_of_size("a task, when") == [default_of("task_max_bytes") // KIB**2]
    assert numbers_of_size("the answer to a question") == [MAX_ANSWER_BYTES // KIB, MAX_DEPTH, MAX_KEYWORDS, MAX_NESTED]
    assert "one second of CPU time" in PAGE
    assert MAX_CPU_SECONDS == 1
    assert numbers_of_size("fields of a gRPC request") == [MAX_FIELDS]
    assert numbers_of_size("headers") == [h11_protocol.MAX_FRAMING // KIB]
    assert numbers_of_size("time from the opening") == [h11_protocol.HEAD_TIMEOUT]
    assert numbers_of_size("time for a body") == [bodies.BODY_TIMEOUT, bodies.MIN_BODY_RATE // KIB]
    assert numbers_of_size("time for a gRPC request") == [bodies.BODY_TIMEOUT]
    assert numbers_of_size("concurrent gRPC calls") == [
        connection["grpc.max_concurrent_streams"],
        MAX_CONCURRENT_CALLS * OWNER_SHARE,
        MAX_CONCURRENT_CALLS,
    ]
    assert numbers_of_size("a gRPC connection") == [connection["grpc.max_connection_idle_ms"] // 60_000]


def test_its_pages_are_the_codes() -> None:
    cells = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.partition("## Size of a read")[2], re.MULTILINE))
    of_tasks, of_log = cells["a page of ListTasks"], cells["a page of a task's log, for streams"]
    assert of_tasks.startswith(f"{listing.PAGE_BYTES // 2**20} MiB of tasks")
    assert f"{listing.PAGE_BLOB_BYTES // 2**20} MiB of large parts" in of_tasks
    of_webhooks = [LOG_PAGE_ENTRIES, LOG_PAGE_BYTES // 2**10, DELIVERY_LIMITS.max_reserved_bytes // 2**20]
    assert [int(number) for number in re.findall(r"\d+", cells["a page of a task's log, for webhooks"])] == of_webhooks
    assert of_log == f"{log.PAGE} entries; {log.PAGE_BYTES // 2**20} MiB plus one entry"
    [of_responses] = [value for row, value in cells.items() if row.startswith("large parts")]
    assert [int(number) for number in re.findall(r"\d+", of_responses)] == [
        blob_store.MAX_BYTES // 2 // KIB**2,
        blob_store.BUDGET_TIMEOUT,
        bodies.PIECE // KIB,
        bodies.SEND_TIMEOUT,
    ]


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"owner_requests_per_second": 0}, "from 0.0001 to 1000000"),
        ({"owner_requests_per_second": -1.5}, "from 0.0001 to 1000000"),
        ({"owner_max_concurrent_tasks": 0}, "from 1 to [0-9]*, or None"),
        ({"owner_max_webhooks": 0}, "from 1 to [0-9]*, or None"),
        ({"owner_max_streams": 0}, "from 1 to [0-9]*, or None"),
        ({"owner_max_stored_bytes": 0}, "from 1 to [0-9]*, or None"),
        ({"agent_max_queue": -1}, "from 1 to [0-9]*, or None"),
        ({"owner_request_burst": 5}, "needs a2a_owner_requests_per_second"),
        ({"store_watermark": 1}, "from 0 to 0.999, or None"),
        ({"store_watermark": -0.1}, "from 0 to 0.999, or None"),
        ({"owner_request_burst": 0, "owner_requests_per_second": 1}, "from 1 to [0-9]*, or None"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(limits: dict[str, float], error: str) -> None:
    with pytest.raises(ConfigError, match=f"a2a_{next(iter(limits))} = .*{error}"):
        Settings(**limits)  # type: ignore[arg-type]
