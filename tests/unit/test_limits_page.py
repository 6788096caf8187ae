"""Consistency of docs/limits.md with the code: settings, names of limits, bounds and an example response."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from a2a.utils.error_handlers import build_rest_error_payload

from a2a_celery.acceptance.errors import LimitExceededError
from a2a_celery.acceptance.limits import LIMIT_TEXTS, MAX_WAIT
from a2a_celery.acceptance.validation import MAX_JSON_VALUES, MAX_REFERENCES
from a2a_celery.errors import ConfigError
from a2a_celery.gateway.middleware.bodies import MAX_JSON_DEPTH
from a2a_celery.gateway.operations.limits import BYTES_PER_TOKEN, LARGE_RESULT, VALUES_PER_TOKEN
from a2a_celery.gateway.operations.validation import BOUNDS
from a2a_celery.gateway.protocol_errors import retry_seconds, too_many_requests
from a2a_celery.lifecycle.events import MAX_VALUE_DEPTH
from a2a_celery.lifecycle.questions import MAX_DEPTH
from a2a_celery.settings import Settings
from a2a_celery.settings.loading import load_settings
from a2a_celery.store.log import pages as log
from a2a_celery.store.tasks import listing
from a2a_celery.store.tasks.commands import MAX_DEBT, MAX_WAITING_TURNS
from a2a_celery.watcher.webhooks import deliverer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
PREFIXES = ("owner_", "agent_max_", "store_max_", "store_watermark")
LIMITS = [f.name for f in fields(Settings) if f.name.startswith(PREFIXES)]


def test_every_limit_is_there() -> None:
    table = PAGE.partition("| `limit` |")[2].partition("\n\n")[0]

    assert [name for name in re.findall(r"`(\w+)`", table) if "_" in name and name not in LIMIT_TEXTS] == LIMITS
    assert re.findall(r"`(\w+)` \|$", table, re.MULTILINE) == list(LIMIT_TEXTS)


def test_its_commands_are_settings() -> None:
    environ = dict(re.findall(r"(A2A_\w+)=([\d.]+)", PAGE))

    settings = load_settings({"a2a_store_url": "redis://host/0"}, environ)

    assert {name: getattr(settings, name) for name in LIMITS} == {
        name: float(environ[f"A2A_{name.upper()}"]) for name in LIMITS
    }


def test_its_example_response_is_valid() -> None:
    example = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])
    text = f"{LIMIT_TEXTS['waiting'].format(8)}. Retry in 2 s."
    error = LimitExceededError(text, data={"limit": "waiting", "retryAfter": "2"})

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
    assert cells["the schema of a question"] == f"64 KiB, {MAX_DEPTH} levels"
    cost = " ".join(PAGE.partition("## Cost of large bodies and responses")[2].partition("\n## ")[0].split())
    assert f"one additional token per {BYTES_PER_TOKEN // 1024} KiB and one per {VALUES_PER_TOKEN} JSON values" in cost
    assert f"A result of at most {LARGE_RESULT // 1024} KiB" in cost
    assert f"tokens that the owner receives in {MAX_DEBT} seconds." in cost


def test_its_pages_are_the_codes() -> None:
    cells = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.partition("## Size of a read")[2], re.MULTILINE))
    of_tasks, of_log = cells["a page of ListTasks"], cells["a page of a task's log, for streams"]
    assert of_tasks.startswith(f"{listing.PAGE_BYTES // 2**20} MiB of tasks")
    assert f"{listing.PAGE_BLOB_BYTES // 2**20} MiB of large parts" in of_tasks
    of_webhooks = [deliverer.LOG_PAGE_ENTRIES, deliverer.LOG_PAGE_BYTES // 2**10, deliverer.MAX_RESERVED_BYTES // 2**20]
    assert [int(number) for number in re.findall(r"\d+", cells["a page of a task's log, for webhooks"])] == of_webhooks
    assert of_log == f"{log.PAGE} entries; {log.PAGE_BYTES // 2**20} MiB plus one entry"


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"owner_requests_per_second": 0}, "from 0.000001 to 1000000"),
        ({"owner_requests_per_second": -1.5}, "from 0.000001 to 1000000"),
        ({"owner_max_concurrent_tasks": 0}, "at least 1"),
        ({"owner_max_waiting_tasks": 0}, "at least 1"),
        ({"owner_max_paused_tasks": 0}, "at least 1"),
        ({"owner_max_webhooks": 0}, "at least 1"),
        ({"owner_max_streams": 0}, "at least 1"),
        ({"owner_max_stored_bytes": 0}, "at least 1"),
        ({"store_max_bytes": 0}, "at least 1"),
        ({"agent_max_queue": -1}, "at least 1"),
        ({"owner_request_burst": 5}, "needs a2a_owner_requests_per_second"),
        ({"store_watermark": 1}, "less than 1"),
        ({"store_watermark": -0.1}, "0 or more"),
        ({"owner_request_burst": 0, "owner_requests_per_second": 1}, "at least 1"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(limits: dict[str, float], error: str) -> None:
    with pytest.raises(ConfigError, match=f"a2a_{next(iter(limits))} = .*{error}"):
        Settings(**limits)  # type: ignore[arg-type]
