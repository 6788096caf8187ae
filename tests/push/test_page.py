"""Numbers and names in docs/webhooks.md, which must equal those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from a2a_celery.features.webhooks.command import deliveries
from a2a_celery.features.webhooks.config_section import MAX_PUSH_CONFIGS
from a2a_celery.push import Backoff, EventFilter
from a2a_celery.push.circuit_breaker import (
    DAY,
    HOUR,
    MAX_HOSTS,
    MAX_POSTS,
    MAX_POSTS_PER_HOST,
    MAX_POSTS_PER_OWNER,
    RESERVED_DIVISOR,
)
from a2a_celery.push.network import CACHE_TTL, LOOKUP_THREADS, LOOKUP_TIMEOUT, MAX_STALE_AGE
from a2a_celery.push.poster import POST_TIMEOUT
from a2a_celery.push.request import A2A_JSON, LARGE_TASK
from a2a_celery.push.responses import MAX_RESPONSE_LENGTH
from a2a_celery.store import Keys

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_its_numbers_are_the_codes() -> None:
    backoff = Backoff()

    assert f"no status arrives within {POST_TIMEOUT:g} s" in TEXT
    assert f"begins at {backoff.first:g} s" in TEXT
    assert f"ends at {backoff.longest / HOUR:g} hours" in TEXT
    assert backoff.give_up_after == DAY
    assert f"Up to {MAX_RESPONSE_LENGTH:,} characters" in TEXT
    assert (MAX_PUSH_CONFIGS, "A task has at most ten configs" in TEXT) == (10, True)
    assert (MAX_POSTS_PER_HOST, "eight posts at a time to each host" in TEXT) == (8, True)
    assert f"at most {MAX_POSTS} posts at a time, and at most {MAX_POSTS_PER_OWNER} for each [owner]" in TEXT
    assert (RESERVED_DIVISOR, "A quarter of both numbers is reserved for hosts" in TEXT) == (4, True)
    assert f"the state of {MAX_HOSTS:,} idle hosts" in TEXT
    assert (2 * MAX_POSTS_PER_HOST, "two watchers make up to sixteen posts at a time to a host" in TEXT) == (16, True)
    assert f"addresses of a name are cached for {CACHE_TTL:g} s" in TEXT
    assert f"A lookup may take at most {LOOKUP_TIMEOUT:g} s, and occupies one of {LOOKUP_THREADS} threads" in TEXT
    assert (MAX_STALE_AGE, "addresses that it found within the last hour" in TEXT) == (HOUR, True)
    assert A2A_JSON in TEXT
    assert f"more than {LARGE_TASK // 1024} KiB (as protobuf)" in TEXT
    assert f"redis-cli del {Keys().secrets}" in TEXT


def test_the_page_has_all_filters() -> None:
    table = PAGE.partition("| `A2A-Push-Events` |")[2].partition("\n\n")[0]

    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(EventFilter)


def test_the_page_has_all_commands() -> None:
    commands = set(re.findall(r"a2a deliveries ([a-z]+)", PAGE))

    assert commands == set(deliveries.commands) - {"list"}  # the default


@pytest.mark.parametrize("page", ["webhooks.md", "webhooks-receiving.md", "architecture.md", "deployment.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / "docs" / target).exists(), target
