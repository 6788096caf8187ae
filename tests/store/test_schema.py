"""Schema version of a store. The first process writes the version, a process with a different version fails to start,
and migrations convert the records."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from struct import pack

import pytest
from a2a.types import TaskState
from redis import Redis, RedisError

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import ConfigError, StoreUnavailable
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED, SUBMITTED
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin import schema
from a2a_celery.store.admin.archiving import read_archive_state
from a2a_celery.store.admin.schema import SCHEMA, Opened, migrate, open_store, pending, require_schema
from a2a_celery.store.codec import encode_request
from a2a_celery.store.tasks.commands import continue_task, create_task, delete_task, read_task, request_cancel
from tests.support.processes.fleet import free_port
from tests.support.processes.restarts import installed_servers
from tests.support.store.leaks import leaks
from tests.support.store.limits import limit_sections
from tests.support.store.replies import is_limited
from tests.support.store.seeds import ANN, BOB, CONTEXT, Seeds, request, run_concurrently, status
from tests.support.waiting import eventually
from tests.tools.store_dump import load

DUMP = Path(__file__).parent / "data" / "store-0208328a.json.gz"

OPTIONS = b'{"not_before_us":7,"trace":{"traceparent":"00-ab-cd-01"},"options":{}}'


@pytest.fixture
def sync_store(redis_server: EmbeddedRedis) -> Iterator[SyncStore]:
    store = SyncStore(redis_server.store_url)
    yield store
    store.close()


async def of_a_release_without_schemas(store: AsyncStore, keys: Keys, seeds: Seeds) -> list[str]:
    """Write two waiting runs and a completed task, as a release without schemas did. Return the ids of the waiting
    tasks."""
    await seeds.create_task_in(COMPLETED)
    for task_id in ("one", "other"):
        message_request = request(task_id=task_id, context_id=CONTEXT)
        create = create_task(keys, ANN, task_id, CONTEXT, message_request, caller=b"{}", retention=60, options=OPTIONS)
        await store.run(create)
        await store.redis.hdel(keys.task(task_id).record, "begins_at", "trace")
    return ["one", "other"]


def carried_out(store: SyncStore, keys: Keys, *, dry_run: bool = False, page_size: int = 1) -> int:
    return sum(migrate(store, keys, step, step.to - 1, dry_run=dry_run, page_size=page_size) for step in pending(0))


async def test_the_first_process_writes_the_schema_to_an_empty_store(
    store: AsyncStore, sync_store: SyncStore, keys: Keys
) -> None:
    await store.redis.set("other:key", 1)
    await store.redis.set(f"{keys.prefix}-too:metrics", 1)
    assert await asyncio.to_thread(open_store, sync_store, keys, stamp=False) == Opened(SCHEMA, False)
    assert not await store.redis.exists(keys.installation)

    await require_schema(store, keys)

    assert await store.redis.hmget(keys.installation, "schema", "archive") == [str(SCHEMA).encode(), None]
    await store.redis.delete("other:key", f"{keys.prefix}-too:metrics")


async def test_concurrent_starts_on_an_empty_store_succeed(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    async def begin() -> None:
        await require_schema(store, keys)
        await seeds.create_task()  # other processes may check for keys only now

    for _ in range(5):
        await store.redis.flushall()
        await run_concurrently(*(begin() for _ in range(8)))


async def test_the_schema_check_costs_one_call_and_writes_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    await require_schema(store, keys)
    data_before = await seeds.all_values()
    calls: list[str] = []
    run_raw = store.run_raw
    monkeypatch.setattr(
        store, "run_raw", lambda operation: (calls.append(operation.script.name), run_raw(operation))[1]
    )

    await require_schema(store, keys)

    assert calls == ["open_store"]
    assert await seeds.all_values() == data_before


async def test_an_older_store_is_refused_with_a_hint_and_unchanged(
    store: AsyncStore, sync_store: SyncStore, keys: Keys, seeds: Seeds
) -> None:
    await of_a_release_without_schemas(store, keys, seeds)
    data_before = await seeds.all_values()

    with pytest.raises(ConfigError, match=r"no schema yet.*`celery -A … a2a migrate`.*the start time and the trace"):
        await require_schema(store, keys, archive=True)
    assert await asyncio.to_thread(open_store, sync_store, keys) == Opened(0, False)

    assert await seeds.all_values() == data_before


async def test_a_newer_store_is_refused(store: AsyncStore, keys: Keys) -> None:
    await store.redis.hset(keys.installation, "schema", SCHEMA + 1)

    with pytest.raises(ConfigError, match=f"has schema {SCHEMA + 1} of a newer release"):
        await require_schema(store, keys)


async def test_a_migration_converts_records_to_the_current_format(
    store: AsyncStore, sync_store: SyncStore, keys: Keys, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = await of_a_release_without_schemas(store, keys, seeds)
    data_before = await seeds.all_values()

    assert await asyncio.to_thread(carried_out, sync_store, keys, dry_run=True, page_size=2) == 2
    assert await seeds.all_values() == data_before
    assert await asyncio.to_thread(carried_out, sync_store, keys, page_size=2) == 2

    for task_id in waiting:
        record_values = await store.redis.hmget(keys.task(task_id).record, "begins_at", "trace")
        assert record_values == [b"7", b"00-ab-cd-01"]
    await require_schema(store, keys)
    data_after = await seeds.all_values()
    assert await asyncio.to_thread(carried_out, sync_store, keys) == 0
    assert await seeds.all_values() == data_after


async def test_a_migration_that_is_cut_off_or_run_twice_at_once_does_no_harm(
    store: AsyncStore, redis_server: EmbeddedRedis, sync_store: SyncStore, keys: Keys, seeds: Seeds,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    await of_a_release_without_schemas(store, keys, seeds)
    run, calls = sync_store.run, []

    def cut_off(operation):  # type: ignore[no-untyped-def]
        calls.append(operation)
        if len(calls) == 3:
            raise StoreUnavailable("cut off")
        return run(operation)

    with monkeypatch.context() as patch:
        patch.setattr(sync_store, "run", cut_off)
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(carried_out, sync_store, keys)
    assert not await store.redis.hget(keys.installation, "schema")

    stores = [SyncStore(redis_server.store_url) for _ in range(3)]
    await run_concurrently(*(asyncio.to_thread(carried_out, client, keys) for client in stores))
    for client in stores:
        client.close()

    assert await store.redis.hget(keys.installation, "schema") == str(SCHEMA).encode()
    assert await store.redis.hmget(keys.task("one").record, "begins_at", "trace") == [b"7", b"00-ab-cd-01"]


async def of_schema_1(store: AsyncStore, keys: Keys, seeds: Seeds) -> tuple[str, str]:
    """Write a store of schema 1. Return the ids of a live and a terminal task of Ann in two tenants."""
    live, terminal = "live", "ended"
    sums: Counter[str] = Counter()
    for task_id, tenant in ((live, "one"), (terminal, "two"), ("other", "")):
        message_request = request(task_id=task_id, context_id=CONTEXT)
        scope = replace(ANN, tenant=tenant)
        await store.run(
            create_task(
                keys,
                scope,
                task_id,
                CONTEXT,
                message_request,
                caller=b"{}",
                retention=60,
                sections=limit_sections(keys, scope, owner_bytes=10**9),
            )
        )
    await seeds.settle_run(await seeds.claim_run(terminal), status(COMPLETED))
    for task_id, tenant in ((live, "one"), (terminal, "two"), ("other", "")):
        size = int(await store.redis.hget(keys.task(task_id).record, "size"))
        sums[f"{tenant}/ann"] = size
        await store.redis.hset(keys.task(task_id).record, "quota_account", "1")
    [(entry, expires_at)] = await store.redis.zrange(keys.stored_expiring, 0, -1, withscores=True)
    old_entry = entry.decode().replace(" /ann", " two/ann")
    await store.redis.delete(keys.stored, keys.stored_expiring, *await store.redis.keys(keys.owner_index("ann") + "*"))
    await store.redis.hset(keys.stored, mapping=dict(sums))
    await store.redis.zadd(keys.stored_expiring, {old_entry: expires_at})
    await store.redis.hset(keys.installation, "schema", 1)
    return live, terminal


async def test_schema_2_counts_an_owners_tasks_in_all_tenants_together(
    store: AsyncStore, sync_store: SyncStore, keys: Keys, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, terminal = await of_schema_1(store, keys, seeds)
    step = pending(1)[0]
    data_before = await seeds.all_values()
    with pytest.raises(ConfigError, match=rf"has schema 1, but this release needs schema {SCHEMA}.*across all tenants"):
        await require_schema(store, keys)

    assert await asyncio.to_thread(migrate, sync_store, keys, step, 1, dry_run=True, page_size=1) == 3
    assert await seeds.all_values() == data_before
    await run_concurrently(*(asyncio.to_thread(migrate, sync_store, keys, step, 1, page_size=1) for _ in range(2)))

    sizes = [int(await store.redis.hget(keys.task(name).record, "size")) for name in (live, terminal, "other")]
    assert await store.redis.hgetall(keys.stored) == {b"/ann": str(sum(sizes)).encode()}
    assert await store.redis.zrange(keys.owner_index("ann") + str(int(SUBMITTED)), 0, -1) == [live.encode()]
    assert await leaks(store, keys) == []
    sections, message_request = limit_sections(keys, concurrent=2), request()
    one_more = create_task(keys, ANN, "more", CONTEXT, message_request, caller=b"{}", retention=60, sections=sections)
    assert is_limited(await store.run(one_more))
    for task_id, tenant in ((live, "one"), ("other", "")):
        await store.run(request_cancel(keys, replace(ANN, tenant=tenant), task_id, CONTEXT))
    for name in (live, terminal, "other"):
        tenant = {live: "one", terminal: "two"}.get(name, "")
        await store.run(delete_task(keys, replace(ANN, tenant=tenant), name))
    assert not await store.redis.exists(keys.stored, keys.stored_expiring), "nothing was counted twice, or lost"


async def test_schema_3_records_the_scopes_of_tasks(
    store: AsyncStore, sync_store: SyncStore, keys: Keys, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = [ANN, BOB, replace(ANN, agent="other", tenant="acme")]
    for scope in scopes:
        await seeds.create_task(scope)
        await seeds.create_task_in(COMPLETED, scope=scope)
    data_before = await seeds.all_values()
    await store.redis.delete(keys.scopes)
    await store.redis.hset(keys.installation, "schema", 2)
    step = pending(2)[0]

    assert await asyncio.to_thread(migrate, sync_store, keys, step, 2, dry_run=True, page_size=1) == 6
    assert not await store.redis.exists(keys.scopes)
    await run_concurrently(*(asyncio.to_thread(migrate, sync_store, keys, step, 2, page_size=1) for _ in range(2)))

    assert await store.redis.zrange(keys.scopes, 0, -1) == [str(scope).encode() for scope in scopes]
    await store.redis.delete(keys.installation)
    assert await seeds.all_values() == data_before


async def test_schema_4_rewrites_the_packed_tasks_of_an_older_store(
    store: AsyncStore, sync_store: SyncStore, redis_server: EmbeddedRedis
) -> None:
    keys = Keys("a2a")
    with Redis.from_url(redis_server.store_url) as client:
        dump = load(DUMP, client)
    first, second, *later = pending(2)
    await asyncio.to_thread(migrate, sync_store, keys, first, 2)
    logs = [key.decode() async for key in store.redis.scan_iter("a2a:*:log", _type="string")]
    waiting = (entry["task"]["id"] for entry in dump["tasks"] if "INPUT" in entry["task"]["status"]["state"])
    live = keys.task(next(waiting))
    records = [keys.task(entry["task"]["id"]).record for entry in dump["tasks"]]
    questions = [record for record in records if await store.redis.hexists(record, "answer_schema")]
    assert questions
    await store.redis.hset(live.record, "schedule_index", "a2a:schedule:weekly:")
    run_step = partial(asyncio.to_thread, migrate, sync_store, keys, second, 3)
    changed = {live.record, *questions, *(f"{log.removesuffix('log')}task" for log in logs)}

    assert await run_step(dry_run=True, page_size=7) == len(changed) > 10
    await run_concurrently(*(run_step(page_size=1) for _ in range(2)))

    assert await run_step(page_size=7) == 0
    for step in later:
        await asyncio.to_thread(migrate, sync_store, keys, step, step.to - 1)
    await require_schema(store, keys)
    for entry in dump["tasks"]:
        task_keys = keys.task(entry["task"]["id"])
        snapshot = await store.run(read_task(keys, None, entry["task"]["id"], resolve_blobs=False))
        assert snapshot is not None
        assert TaskState.Name(snapshot[0].status.state) == entry["task"]["status"]["state"]
        assert not await store.redis.hexists(task_keys.record, "schedule_index")
        if await store.redis.type(task_keys.log) == b"string":
            assert int(await store.redis.hget(task_keys.record, "size")) == await store.redis.strlen(task_keys.log)
            assert await store.redis.ttl(task_keys.log) == await store.redis.ttl(task_keys.record)
    [scheduled] = await store.redis.zrange(f"a2a:schedule:nightly:{int(COMPLETED)}", 0, -1)
    for record, name in ((keys.task(scheduled.decode()).record, b"nightly"), (live.record, b"weekly")):
        assert await store.redis.hget(record, "joined_indexes") == b"a2a:schedule:%b:" % name
    assert {await store.redis.hget(record, "pause_data") for record in questions} == {b"answer_schema "}
    assert await leaks(store, keys) == []
    await store.redis.flushall()  # the keys have the prefix of the dump


async def test_schema_5_removes_what_can_be_derived_and_converts_children(
    store: AsyncStore, sync_store: SyncStore, redis_server: EmbeddedRedis
) -> None:
    keys = Keys("a2a")
    with Redis.from_url(redis_server.store_url) as client:
        load(DUMP, client)
    *earlier_steps, step, last = pending(2)
    for earlier in earlier_steps:
        await asyncio.to_thread(migrate, sync_store, keys, earlier, earlier.to - 1)
    run_step = partial(asyncio.to_thread, migrate, sync_store, keys, step, 4)
    records = [key async for key in store.redis.scan_iter("a2a:*:task")]
    derived = ("leases", "dispatch", "scope_index", "context_index")
    with_keys = [record for record in records if await store.redis.hexists(record, "leases")]
    parents = [record for record in records if await store.redis.hexists(record, "children")]
    assert parents

    assert await run_step(dry_run=True, page_size=7) == len({*with_keys, *parents}) > 1
    await run_concurrently(*(run_step(page_size=1) for _ in range(2)))

    assert await run_step(page_size=7) == 0
    for record in records:
        assert await store.redis.hmget(record, *derived) == [None] * 4
    assert {await store.redis.hget(record, "cleanup") for record in parents} == {b"ended_parents"}
    await asyncio.to_thread(migrate, sync_store, keys, last, 5)
    await require_schema(store, keys)
    for record in with_keys:
        task_id, context, scope = await store.redis.hmget(record, "task_id", "context", "scope")
        await store.run(request_cancel(keys, Scope.parse(scope.decode()), task_id.decode(), context.decode()))
    assert await leaks(store, keys) == []
    await store.redis.flushall()  # the keys have the prefix of the dump


async def test_schema_6_removes_the_messages_from_requests(
    store: AsyncStore, sync_store: SyncStore, keys: Keys, seeds: Seeds
) -> None:
    call, sections = request(task_id="t", context_id=CONTEXT), limit_sections(keys, owner_bytes=10**9)
    call.metadata["kept"] = "yes"
    await store.run(
        create_task(keys, ANN, "t", CONTEXT, call, caller=b"{}", retention=60, options=OPTIONS, sections=sections)
    )
    await seeds.claim_run("t")
    await store.run(continue_task(keys, ANN, "t", call, "", caller=b"{}", nonce="n"))
    await seeds.create_task_in(COMPLETED)
    data_before, task_keys = await seeds.all_values(), keys.task("t")
    # write the requests as schema 5 did
    stored, whole = encode_request(call), call.SerializeToString()
    with_references = b"\0" + pack(">I", 2) + b"[]" + whole
    [waiting] = await store.redis.lrange(task_keys.turns, 0, -1)
    old_waiting = waiting.replace(pack(">I", len(stored)) + stored, pack(">I", len(whole)) + whole)
    growth = len(with_references) - len(stored) + len(old_waiting) - len(waiting)
    await store.redis.hset(task_keys.record, "request", with_references)
    await store.redis.lset(task_keys.turns, 0, old_waiting)
    await store.redis.hincrby(task_keys.record, "size", growth)
    await store.redis.hincrby(keys.stored, "/ann", growth)
    [step] = pending(5)
    run_step = partial(asyncio.to_thread, migrate, sync_store, keys, step, 5)

    assert await run_step(dry_run=True, page_size=7) == 1
    assert await store.redis.hget(task_keys.record, "request") == with_references
    await run_concurrently(*(run_step(page_size=1) for _ in range(2)))

    assert await run_step(page_size=7) == 0
    assert await seeds.all_values() == data_before
    await store.redis.delete(keys.installation)


async def test_processes_of_a_store_with_an_archive_need_its_url(store: AsyncStore, keys: Keys) -> None:
    await require_schema(store, keys, archive=False)
    await require_schema(store, keys, archive=True)

    with pytest.raises(ConfigError, match=r"set A2A_ARCHIVE_URL to the value of.*a2a migrate --without-archive"):
        await require_schema(store, keys, archive=False)
    await require_schema(store, keys)  # a worker needs no archive

    await store.run(read_archive_state(keys, give_up=True))
    await require_schema(store, keys, archive=False)


async def test_an_unavailable_store_does_not_prevent_a_start(keys: Keys) -> None:
    unreachable = AsyncStore("redis://127.0.0.1:1/0")

    await require_schema(unreachable, keys, archive=True)

    assert unreachable.first is not None, "its schema is looked at before the first operation"
    await unreachable.aclose()


async def started_during_outage(server: EmbeddedRedis, keys: Keys, *, archive: bool | None) -> AsyncStore:
    """Return the store client of a process that started while the store was unavailable."""
    store = AsyncStore(server.store_url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "run_raw", raise_unavailable)
        await require_schema(store, keys, archive=archive)
    return store


async def raise_unavailable(_: object) -> None:
    raise StoreUnavailable("down")


async def test_a_process_started_without_the_store_checks_the_schema_before_its_first_write(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    late_store = await started_during_outage(redis_server, keys, archive=True)

    await run_concurrently(*(Seeds(late_store, keys).create_task() for _ in range(3)))

    assert await store.redis.hmget(keys.installation, "schema", "archive") == [str(SCHEMA).encode(), b"1"]
    assert late_store.first is None
    await require_schema(store, keys)  # the next process starts
    await late_store.aclose()


async def test_a_process_started_without_the_store_does_not_write_to_another_schema(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    late_store = await started_during_outage(redis_server, keys, archive=None)
    await store.redis.hset(keys.installation, "schema", SCHEMA + 1)
    data_before = await seeds.all_values()

    for _ in range(2):
        with pytest.raises(ConfigError, match="of a newer release"):
            await Seeds(late_store, keys).create_task()

    assert await seeds.all_values() == data_before
    await late_store.aclose()


def test_the_steps_are_in_order_and_lead_to_this_release() -> None:
    assert [step.to for step in schema.STEPS] == list(range(1, SCHEMA + 1))
    assert pending(SCHEMA) == []


@pytest.fixture(params=installed_servers(), ids=str)
def other_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Function that starts a Redis server with options and returns its URL, for each installed version."""
    processes = []

    def start(*options: str) -> str:
        (tmp_path / "redis.conf").touch()
        while True:  # a cluster node exits if the port 10,000 above its own is in use
            port = str(free_port())
            command = [request.param, tmp_path / "redis.conf", "--port", port, "--dir", tmp_path, *options]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            processes.append(process)
            with Redis(port=int(port)) as redis:
                eventually(lambda r=redis, p=process: answers(r) or p.poll() is not None, what="the server answers")
            if process.poll() is None:
                return f"redis://127.0.0.1:{port}"

    yield start
    for process in processes:
        process.kill()
        process.wait()


def answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisError:
        return False


@pytest.mark.parametrize(
    ("options", "database", "rule"),
    [
        (["--sentinel"], "", "is the address of a Sentinel: use the form sentinel://host"),
        (["--sentinel"], "/1", "is the address of a Sentinel: use the form sentinel://host"),
        (
            ["--cluster-enabled", "yes"],
            "",
            "is the address of a cluster node. Redis Cluster is not supported: set the URL of a single",
        ),
        (
            ["--cluster-enabled", "yes"],
            "/1",
            "(is the address of a cluster node|selects a database that the Redis server does not)",
        ),
        ([], "/16", "selects a database that the Redis server does not have"),
    ],
)
async def test_a_server_of_another_kind_is_refused_with_one_sentence(
    other_server: Callable[..., str], keys: Keys, options: list[str], rule: str, database: str
) -> None:
    url = other_server(*options) + database
    store, sync_store = AsyncStore(url), SyncStore(url)

    with pytest.raises(ConfigError, match=rf"^a2a_store_url {rule}"):
        await require_schema(store, keys)
    with pytest.raises(ConfigError, match=rf"^a2a_store_url {rule}"):
        await asyncio.to_thread(open_store, sync_store, keys)

    await store.aclose()
    sync_store.close()
