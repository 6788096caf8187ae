"""The leak checker: the keys that a store may contain by the rules in ``store/keys.py``."""

from __future__ import annotations

import re

from a2a.types import TaskState

from a2a_celery.lifecycle import TERMINAL
from a2a_celery.lifecycle.states import CANCELED, FAILED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.keys import quoted

Index = tuple[str, TaskState]
METRIC = re.compile(rb"(ended|archived|lost|retried|queue|first|run|cancel) [^ ]+ [a-z0-9_]+")

KEPT_BY_LIVE_TASKS = (
    *(b"request", b"caller", b"working_event", b"options", b"canvas"),
    *(b"suspended", b"wait_signal", b"wait_key", b"wait_header", b"wait_timeout", b"signal_ids", b"resumed_by"),
)
"""Fields of the record that a task loses at its end, unless it is a dead letter."""


async def leaks(store: AsyncStore, keys: Keys) -> list[str]:  # noqa: PLR0915
    """Return a line for each key that breaks its rule.

    Keys of an ended task expire within its retention, or wait for the archive; those of a live one stay, no key
    outlives its task's record; lists hold tasks in the state they are for; leases and dispatches belong to open runs;
    dead letters, and no other ended task, keep what it takes to run them again; lines in lists have a config, and are
    dead where listed so; no other kind of key exists.
    """
    redis, prefix = store.redis, re.escape(keys.prefix)
    own = re.compile(
        rf"{prefix}:\{{(?P<id>[^}}]*)\}}:(task|log|history|artifacts|artifact:.*|metadata|turns|push|execution|journal|signals)",
        re.DOTALL,
    )
    listed = re.compile(rf"{prefix}:(tasks|context|owner):.*:(?P<state>\d)")
    dead = {tag.decode() for tag in await redis.zrange(keys.dead_letters, 0, -1)}
    found: list[str] = []

    waiting = {tag for name in (keys.archive, keys.archive_refused) for tag in await redis.zrange(name, 0, -1)}
    names = [name async for name in redis.scan_iter()]
    async with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.ttl(name)
        expiries: list[int] = await pipe.execute()
    tags = {match["id"] for name in names if (match := own.fullmatch(name.decode()))}
    async with redis.pipeline(transaction=False) as pipe:
        for tag in tags:
            pipe.hgetall(f"{keys.prefix}:{{{tag}}}:task")
        records = dict(zip(tags, await pipe.execute(), strict=True))

    async def record_of(tag: str) -> dict[bytes, bytes]:
        if tag not in records:
            records[tag] = await redis.hgetall(f"{keys.prefix}:{{{tag}}}:task")
        return records[tag]

    for raw, expires in zip(names, expiries, strict=True):
        key = raw.decode()
        if expires == -2:
            continue  # gone since the scan named it
        if match := own.fullmatch(key):
            tag = match["id"]
            found += _of_a_task(key, expires, await record_of(tag), tag in dead, tag.encode() in waiting)
        elif match := listed.fullmatch(key):
            state = int(match["state"])
            for member in await redis.zrange(raw, 0, -1):
                record = await record_of(member.decode())
                if state in TERMINAL and (expires < 0) != (member in waiting):
                    found.append(f"{key}: a list of ended tasks without an expiry")
                if record and int(record[b"state"]) != state:
                    found.append(f"{key}: lists {member!r}, which is in state {record[b'state']!r}")
                if not record and state not in TERMINAL:
                    found.append(f"{key}: lists {member!r}, which does not exist")
        elif key.startswith(f"{keys.prefix}:message:"):
            if expires < 0:
                found.append(f"{key}: a message id that is remembered for ever")
        elif key in (keys.archive, keys.archive_refused):
            for member in await redis.zrange(raw, 0, -1):
                record = await record_of(member.decode())
                if record and int(record[b"state"]) not in TERMINAL:
                    found.append(f"{key}: {member!r} has not ended")
        elif key == keys.archiver:
            if expires < 0:
                found.append(f"{key}: an archiver for ever")
        elif key == keys.installation:
            fields = {name.decode() for name in await redis.hkeys(key)}
            found += [
                f"{key}: {name}"
                for name in fields - {"schema", "archive", "border", "adopted", "clock", "clock_set_at"}
            ]
        elif key in (keys.watchers, keys.workers):
            if expires < 0:
                found.append(f"{key}: watchers or workers that are remembered for ever")
        elif key.startswith(keys.sessions):
            if expires < 0:
                found.append(f"{key}: a session that is kept for ever")
        elif key.startswith(f"{keys.prefix}:byte_bucket:"):
            if expires < 0:
                found.append(f"{key}: posted bytes that are counted for ever")
        elif key.startswith(f"{keys.prefix}:requests:"):
            if expires < 0:
                found.append(f"{key}: requests that are counted for ever")
        elif key == keys.stored:
            sums = {owner: int(size) for owner, size in (await redis.hgetall(key)).items()}
            if sums.pop(b"*", 0) != sum(sums.values()) or not all(size > 0 for size in sums.values()):
                found.append(f"{key}: {sums} is not the sum of all")
        elif key == keys.stored_expiring:
            seconds, _ = await redis.time()
            for member, at in await redis.zrange(key, 0, -1, withscores=True):
                record = await record_of(member.decode().split()[0])
                if at > (seconds + 1) * 1e6 and (not record or int(record[b"state"]) not in TERMINAL):
                    found.append(f"{key}: {member!r} does not expire then")
        elif key.startswith(f"{keys.prefix}:queue:"):
            for member in await redis.zrange(raw, 0, -1):
                record = await record_of(member.decode())
                if (record.get(b"phase"), record.get(b"queue")) != (b"queued", raw):
                    found.append(f"{key}: {member!r} does not wait for a worker")
        elif key.startswith(f"{keys.prefix}:context_queue:"):
            for member in await redis.lrange(raw, 0, -1):
                record = await record_of(member.decode())
                if record.get(b"phase", b"") == b"" or record.get(b"context_queue") != raw:
                    found.append(f"{key}: {member!r} has no run")
        elif key in (keys.leases, keys.dispatch, keys.blocked, keys.canvases, keys.suspended):
            phases = {
                keys.leases: b"running",
                keys.dispatch: b"queued",
                keys.blocked: b"queued",
                keys.canvases: b"delegated",
                keys.suspended: b"suspended",
            }
            phase = phases[key]
            for member in await redis.zrange(raw, 0, -1):
                task_id, _, run = member.decode().rpartition(".")
                record = await record_of(quoted(task_id))
                first = await redis.lindex(record.get(b"context_queue", b""), 0)
                if (record.get(b"phase"), record.get(b"run")) != (phase, run.encode()):
                    found.append(f"{key}: {member!r} is not {phase.decode()}")
                elif (key == keys.blocked) != (first not in (None, quoted(task_id).encode())):
                    found.append(f"{key}: {member!r} is not in its place")
        elif key == keys.pauses:
            for member in await redis.zrange(raw, 0, -1):
                record = await record_of(member.decode())
                if record.get(b"phase") != b"" or int(record[b"state"]) in TERMINAL:
                    found.append(f"{key}: {member!r} does not wait for its client")
        elif key == keys.requested_posts:
            for member in await redis.zrange(key, 0, -1):
                tag, _, config = member.decode().partition(" ")
                line = await redis.hgetall(f"{keys.prefix}:{{{tag}}}:push")
                if await record_of(tag) and f"{config}:requested".encode() not in line:
                    found.append(f"{key}: {member!r} has no requested posts")
        elif key in (keys.deliveries, keys.dead_deliveries) or key.startswith(
            (f"{keys.prefix}:sealed:", f"{keys.prefix}:webhooks:")
        ):
            found += await _of_lines(store, keys, key, expires)
        elif key == keys.delivery_outcomes:
            counted = {name.decode() for name in await redis.hkeys(key)}
            found += [f"{key}: {name}" for name in counted - {"delivered", "failed", "given_up"}]
        elif key == keys.metrics:
            found += [f"{key}: {name!r}" for name in await redis.hkeys(raw) if not METRIC.fullmatch(name)]
        elif key == keys.secrets:
            lists = await redis.hgetall(key)
            found += [f"{key}: {f!r}" for f in lists if lists[f].decode() != keys.sealed_with(f.decode())]
        elif key == keys.canceled_parents:
            for member in await redis.zrange(key, 0, -1):
                record = await record_of(member.decode())
                if record and (int(record[b"state"]) != CANCELED or b"children" not in record):
                    found.append(f"{key}: {member!r} is no canceled parent")
        elif key == keys.blobs:
            pass  # of tasks that are gone, or not there yet, too: a watcher looks at each
        elif key == keys.orphaned_blobs:
            tags = [tag.decode() for tag in await redis.zrange(key, 0, -1)]
            found += [f"{key}: {tag!r} is not gone" for tag in tags if await record_of(tag)]
        elif key == keys.dead_letters:
            if expires < 0:
                found.append(f"{key}: dead letters without an expiry")
            for tag in dead:
                record = await record_of(tag)
                if record and (record[b"state"], b"request" in record) != (str(int(FAILED)).encode(), True):
                    found.append(f"{key}: {tag!r} can't be requeued")
        else:
            found.append(f"{key}: no such kind of key in store/keys.py")
    return found


async def _of_lines(store: AsyncStore, keys: Keys, key: str, expires: int) -> list[str]:
    found = []
    alive = False
    for member in await store.redis.zrange(key, 0, -1):
        if member.startswith(keys.sessions.encode()):
            continue  # it goes by its score
        tag, _, config = member.decode().partition(" ")
        record = await store.redis.hgetall(f"{keys.prefix}:{{{tag}}}:task")
        line = await store.redis.hgetall(f"{keys.prefix}:{{{tag}}}:push")
        if not record:
            continue  # what is due is forgotten when it is taken, what is dead goes by its score
        alive |= int(record[b"state"]) not in TERMINAL
        dead = f"{config}:abandoned_at".encode() in line
        owed = config in record.get(b"enabled_configs", b"").decode().split()
        if f"{config}:sealed".encode() not in line:
            found.append(f"{key}: {member!r} has no config")
        elif (key == keys.deliveries and dead) or (key == keys.dead_deliveries and not dead) or dead == owed:
            found.append(f"{key}: {member!r} is {'dead' if dead else 'not dead'}")
    if key != keys.deliveries and not alive and expires < 0:
        found.append(f"{key}: lines of ended tasks without an expiry")
    return found


def _of_a_task(key: str, expires: int, record: dict[bytes, bytes], dead: bool, waits: bool) -> list[str]:
    if not record:
        return [f"{key}: its task has no record"]
    if int(record[b"state"]) not in TERMINAL:
        return [f"{key}: expires although its task is live"] if expires >= 0 else []
    if waits and expires >= 0:
        return [f"{key}: expires although its task waits for the archive"]
    if not waits and not 0 <= expires <= int(record[b"retention"]):
        return [f"{key}: its task has ended, it expires in {expires} s"]
    if dead:
        return []
    if key.endswith(":journal"):
        return [f"{key}: a journal of an ended task"]
    if key.endswith(":signals"):
        return [f"{key}: signals of an ended task"]
    kept = [field for field in KEPT_BY_LIVE_TASKS if record.get(field)]
    return [f"{key}: keeps {kept} of an ended task"] if kept and key.endswith(":task") else []
