"""Numbers and names in docs/blobs.md, which must equal those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from a2a_celery.execution.open_run import BLOB_TIMEOUT
from a2a_celery.lifecycle.outcomes import OUT_OF_REACH
from a2a_celery.settings import default_of
from a2a_celery.store.blobs.blob_store import BUDGET_TIMEOUT, MAX_BYTES, ORPHAN_AFTER_US, THRESHOLD
from a2a_celery.store.blobs.object_store import CALLS_AT_ONCE as OBJECT_CALLS_AT_ONCE
from a2a_celery.store.blobs.redis_blobs import CALLS_AT_ONCE, EXPIRY
from a2a_celery.store.codec import LOG_BLOB_BYTES
from a2a_celery.store.tasks.listing import PAGE_BLOB_BYTES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "blobs.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
MIB = 1024 * 1024


def test_its_numbers_are_the_codes() -> None:
    assert f"event is larger than {THRESHOLD // 1024} KiB," in TEXT
    assert f"each part above {THRESHOLD // 1024} KiB becomes a blob" in TEXT
    assert f"event waits for up to {BLOB_TIMEOUT:g} s" in TEXT
    assert ORPHAN_AFTER_US == 600_000_000
    assert "ten minutes" in TEXT
    assert f"with an expiry of {EXPIRY} s" in TEXT
    assert f"At most {CALLS_AT_ONCE} blobs are read from Redis" in TEXT
    assert f"holds at most {MAX_BYTES // MIB} MiB of blobs" in TEXT
    assert f"Other readers wait for at most {BUDGET_TIMEOUT:g} s" in TEXT
    assert f"ends after {LOG_BLOB_BYTES // MIB} MiB of blobs" in TEXT
    assert f"ListTasks after {PAGE_BLOB_BYTES // MIB} MiB" in TEXT
    assert f"At most {OBJECT_CALLS_AT_ONCE} calls" in TEXT
    assert f"`max_request_bytes` ({default_of('max_request_bytes') // MIB} MiB)" in TEXT


def test_its_sentence_is_the_codes() -> None:
    assert f'"{OUT_OF_REACH}"' in TEXT


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
