"""Stores with a different schema version. Processes refuse to start, and ``a2a migrate`` describes and runs the
migration."""

from __future__ import annotations

import pytest
import redis

from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.tasks.commands import create_task
from tests.support.clients.bindings import rest
from tests.support.processes.fleet import Fleet
from tests.support.store.seeds import ANN, CONTEXT, request
from tests.support.waiting import eventually

KEYS = Keys("a2a")
OPTIONS = b'{"not_before_us":7,"trace":{"traceparent":"00-ab-cd-01"},"options":{}}'


@pytest.fixture
def old_store(fleet: Fleet) -> redis.Redis:
    """Client of the fleet's store. The store contains a task of a release that did not write the schema."""
    store = SyncStore(fleet.redis.store_url)
    message_request = request(task_id="t", context_id=CONTEXT)
    store.run(create_task(KEYS, ANN, "t", CONTEXT, message_request, caller=b"{}", retention=60, options=OPTIONS))
    store.redis.hdel(KEYS.task("t").record, "begins_at", "trace")
    store.close()
    return SyncStore(fleet.redis.store_url).redis


def test_an_older_store_is_refused_by_all_until_it_is_migrated(fleet: Fleet, old_store: redis.Redis) -> None:
    start_commands = {
        "gateway": fleet.gateway(wait=False),
        "watcher": fleet.start("watcher-refused", "a2a", "watcher"),
        "worker": fleet.start("worker-refused", "worker", "-P", "solo"),
    }
    for name, process in start_commands.items():
        eventually(lambda process=process: not process.is_running, what=f"the {name} refuses")
        assert process.popen.returncode == 1, name
        assert "no schema yet" in process.output(), name
        change = "The migration copies the start time and the trace of each open"
        assert f"`celery -A … a2a migrate` once. {change}" in process.output(), name
        assert "Traceback" not in process.output(), name

    dry = fleet.command("a2a", "migrate", "--dry-run")
    assert (dry.returncode, dry.stdout.count("1 records would be changed")) == (0, 1)
    assert old_store.hget(KEYS.task("t").record, "trace") is None

    older = SyncStore(fleet.redis.store_url)
    seconds, micros = older.redis.time()
    older.redis.zadd(KEYS.watchers, {'{"settings": {}, "watcher": "old:1"}': seconds * 1_000_000 + micros})
    refused_result = fleet.command("a2a", "migrate")
    assert refused_result.returncode == 1
    assert "an older release are running: watcher old:1. Stop them" in refused_result.stderr
    older.redis.delete(KEYS.watchers)
    older.close()

    result = fleet.command("a2a", "migrate")
    assert (result.returncode, result.stdout.count("1 records were changed")) == (0, 1)
    assert old_store.hget(KEYS.task("t").record, "trace") == b"00-ab-cd-01"
    assert rest(fleet.gateway(), "GET", "/tasks").status_code == 200


def test_a_newer_store_is_refused(fleet: Fleet) -> None:
    client = SyncStore(fleet.redis.store_url).redis
    client.hset(KEYS.installation, "schema", SCHEMA + 1)

    result = fleet.command("a2a", "migrate")

    assert result.returncode == 1
    assert f"has schema {SCHEMA + 1} of a newer release" in result.stderr


def test_an_archive_is_given_up_by_a_command(fleet: Fleet) -> None:
    client = SyncStore(fleet.redis.store_url).redis
    client.hset(KEYS.installation, mapping={"schema": SCHEMA, "archive": "1"})

    refused_result = fleet.command("a2a", "watcher")
    assert (refused_result.returncode, "set A2A_ARCHIVE_URL to" in refused_result.stderr) == (1, True)
    result = fleet.command("a2a", "migrate", "--without-archive")

    assert result.returncode == 0
    output = result.stdout.splitlines()
    assert "nothing to do" in output[-2]
    assert output[-1] == "No archive: no ended task waits for it."
    assert client.hget(KEYS.installation, "archive") == b""
