"""Leak checker that reports keys that violate the rules in ``store/keys.py``."""

from __future__ import annotations

import re

from a2a.types import TaskState

from a2a_celery.features.families.child_canceller import ended_parents_key
from a2a_celery.features.questions.reminder_poster import reminder_index
from a2a_celery.features.sessions.section import session_prefix
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.lifecycle import TERMINAL
from a2a_celery.lifecycle.references import quote_key_part
from a2a_celery.lifecycle.states import CANCELED, FAILED, REJECTED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.blobs.redis_blobs import EXPIRY

Index = tuple[str, TaskState]
METRIC = re.compile(rb"(ended|archived|lost|retried|queue|first|run|cancel) [^ ]+ [a-z0-9_]+|version [^ ]+ [\w.+-]+")

FIELDS_OF_LIVE_TASKS = (
    *(b"request", b"caller", b"working_event", b"options", b"canvas"),
    *(b"suspended", b"wait_signal", b"wait_key", b"wait_header", b"wait_timeout", b"resumed_by"),
    *(b"code_version", b"claimed_version", b"answer_schema", b"reminders", b"pause_data", b"journal_blobs"),
)
"""Record fields that are deleted when a task becomes terminal, unless the task becomes a dead letter."""


async def leaks(store: AsyncStore, keys: Keys) -> list[str]:  # noqa: PLR0915
    """Return a line for each key that violates a rule.

    Rules:
        - Keys of a terminal task expire within the retention period, or wait for the archive.
        - Keys of a live task do not expire.
        - No key outlives the record of its task.
        - Each task in a list has the state of the list.
        - Leases and dispatches belong to open runs.
        - A terminal task only has the fields for a further run if the task is a dead letter.
        - Each delivery cursor in a list has a config. Dead cursors are in the list of dead cursors.
        - The scope of each listed task is recorded.
        - The store has no other kind of key.
    """
    redis, prefix = store.redis, re.escape(keys.prefix)
    own = re.compile(
        rf"{prefix}:\{{(?P<id>[^}}]*)\}}:(task|log|history|artifacts|artifact:.*|metadata|turns|push|execution|journal|signals"
        r"|blobs|blob:.*)",
        re.DOTALL,
    )
    index_pattern = re.compile(rf"{prefix}:(tasks|context|owner|schedule|tag):.*:(?P<state>\d)")
    dead = {tag.decode() for tag in await redis.zrange(keys.resubmittable, 0, -1)}
    problems: list[str] = []

    waiting_tags = {tag for name in (keys.archive, keys.archive_refused) for tag in await redis.zrange(name, 0, -1)}
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
            continue  # expired or deleted since the scan
        if match := own.fullmatch(key):
            tag = match["id"]
            problems += _task_key_leaks(key, expires, await record_of(tag), tag in dead, tag.encode() in waiting_tags)
        elif match := index_pattern.fullmatch(key):
            state = int(match["state"])
            for member in await redis.zrange(raw, 0, -1):
                record = await record_of(member.decode())
                if state in TERMINAL and (expires < 0) != (member in waiting_tags):
                    problems.append(f"{key}: a list of ended tasks without an expiry")
                if record and int(record[b"state"]) != state:
                    problems.append(f"{key}: lists {member!r}, which is in state {record[b'state']!r}")
                if not record and state not in TERMINAL:
                    problems.append(f"{key}: lists {member!r}, which does not exist")
        elif key == keys.scopes:
            newest_times = dict(await redis.zrange(key, 0, -1, withscores=True))
            times = [(record[b"scope"], float(record[b"at"])) for record in records.values() if b"scope" in record]
            if missing := {scope for scope, at in times if newest_times.get(scope, 0) < at}:
                problems.append(f"{key}: {missing} have newer tasks")
        elif key.startswith(f"{keys.prefix}:schedule:") and key.endswith(":ticks"):
            if expires < 0:
                problems.append(f"{key}: ticks without an expiry")
        elif key.startswith(f"{keys.prefix}:message:"):
            if expires < 0:
                problems.append(f"{key}: a message id without an expiry")
        elif key in (keys.archive, keys.archive_refused):
            for member in await redis.zrange(raw, 0, -1):
                record = await record_of(member.decode())
                if record and int(record[b"state"]) not in TERMINAL:
                    problems.append(f"{key}: {member!r} has not ended")
        elif key == keys.archiver:
            if expires < 0:
                problems.append(f"{key}: an archiver's lease without an expiry")
        elif key == keys.installation:
            fields = {name.decode() for name in await redis.hkeys(key)}
            problems += [f"{key}: {name}" for name in fields - {"schema", "archive", "border", "adopted"}]
        elif key in (keys.watchers, keys.workers, keys.version_workers):
            if expires < 0:
                problems.append(f"{key}: watchers or workers without an expiry")
        elif key.startswith(session_prefix(keys)):
            if expires < 0:
                problems.append(f"{key}: a session without an expiry")
        elif key.startswith(f"{keys.prefix}:requests:"):
            if expires < 0:
                problems.append(f"{key}: requests without an expiry")
        elif key == keys.stored:
            sums = {owner: int(size) for owner, size in (await redis.hgetall(key)).items()}
            if not all(size > 0 for size in sums.values()):
                problems.append(f"{key}: {sums} has a sum of 0")
        elif key == keys.stored_expiring:
            seconds, _ = await redis.time()
            for member, at in await redis.zrange(key, 0, -1, withscores=True):
                record = await record_of(member.decode().split()[0])
                if at > (seconds + 1) * 1e6 and (not record or int(record[b"state"]) not in TERMINAL):
                    problems.append(f"{key}: {member!r} does not expire then")
        elif key.startswith(f"{keys.prefix}:queue:"):
            for member in await redis.zrange(raw, 0, -1):
                record = await record_of(member.decode())
                if (record.get(b"phase"), record.get(b"queue")) != (b"queued", raw):
                    problems.append(f"{key}: {member!r} does not wait for a worker")
        elif key.startswith(f"{keys.prefix}:context_queue:"):
            for member in await redis.lrange(raw, 0, -1):
                record = await record_of(member.decode())
                if record.get(b"phase", b"") == b"" or record.get(b"context_queue") != raw:
                    problems.append(f"{key}: {member!r} has no run")
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
                record = await record_of(quote_key_part(task_id))
                first = await redis.lindex(record.get(b"context_queue", b""), 0)
                if (record.get(b"phase"), record.get(b"run")) != (phase, run.encode()):
                    problems.append(f"{key}: {member!r} is not {phase.decode()}")
                elif (key == keys.blocked) != (first not in (None, quote_key_part(task_id).encode())):
                    problems.append(f"{key}: {member!r} is in the wrong list")
        elif key in (keys.pauses, reminder_index(keys)):
            for member in await redis.zrange(raw, 0, -1):
                record = await record_of(member.decode())
                if record.get(b"phase") != b"" or int(record[b"state"]) in TERMINAL:
                    problems.append(f"{key}: {member!r} does not wait for its client")
        elif key == webhook_keys.requested_posts(keys):
            for member in await redis.zrange(key, 0, -1):
                tag, _, config = member.decode().partition(" ")
                line = await redis.hgetall(f"{keys.prefix}:{{{tag}}}:push")
                if await record_of(tag) and f"{config}:requested".encode() not in line:
                    problems.append(f"{key}: {member!r} has no requested posts")
        elif key in (webhook_keys.deliveries(keys), webhook_keys.dead_deliveries(keys)) or key.startswith(
            (f"{keys.prefix}:sealed:", f"{keys.prefix}:webhooks:")
        ):
            problems += await _delivery_leaks(store, keys, key, expires, waiting_tags)
        elif key == webhook_keys.delivery_outcomes(keys):
            counted_fields = {name.decode() for name in await redis.hkeys(key)}
            problems += [f"{key}: {name}" for name in counted_fields - {"delivered", "failed", "given_up"}]
        elif key.startswith(f"{keys.metrics}:samples:"):
            if expires < 0:
                problems.append(f"{key}: samples without an expiry")
        elif key == keys.metrics:
            problems += [f"{key}: {name!r}" for name in await redis.hkeys(raw) if not METRIC.fullmatch(name)]
        elif key == keys.secrets:
            lists = await redis.hgetall(key)
            problems += [f"{key}: {f!r}" for f in lists if lists[f].decode() != keys.sealed_with(f.decode())]
        elif key == ended_parents_key(keys):
            for member in await redis.zrange(key, 0, -1):
                record = await record_of(member.decode())
                if not record or b"interrupted_turn" in record:
                    continue
                if int(record[b"state"]) not in (CANCELED, FAILED, REJECTED) or b"children" not in record:
                    problems.append(f"{key}: {member!r} is no parent that ended without a result")
        elif key == keys.blobs:
            pass  # a task may be deleted or not yet created, and a watcher checks each task
        elif key == keys.orphaned_blobs:
            tags = [tag.decode() for tag in await redis.zrange(key, 0, -1)]
            problems += [f"{key}: {tag!r} has a task" for tag in tags if await record_of(tag)]
        elif key == keys.failures:
            if expires < 0:
                problems.append(f"{key}: failed tasks without an expiry")
            for member in await redis.zrange(key, 0, -1):
                record = await record_of(member.decode())
                if record and int(record[b"state"]) != FAILED:
                    problems.append(f"{key}: {member!r} has not failed")
        elif key == keys.resubmittable:
            if expires < 0:
                problems.append(f"{key}: dead letters without an expiry")
            for tag in dead:
                record = await record_of(tag)
                if record and (record[b"state"], b"request" in record) != (str(int(FAILED)).encode(), True):
                    problems.append(f"{key}: {tag!r} cannot be requeued")
        else:
            problems.append(f"{key}: no such kind of key in store/keys.py")
    return problems


async def _delivery_leaks(store: AsyncStore, keys: Keys, key: str, expires: int, waiting_tags: set[bytes]) -> list[str]:
    problems = []
    alive = False
    for member in await store.redis.zrange(key, 0, -1):
        if member.startswith(session_prefix(keys).encode()):
            continue  # members of this kind are removed by their score
        tag, _, config = member.decode().partition(" ")
        record = await store.redis.hgetall(f"{keys.prefix}:{{{tag}}}:task")
        cursor = await store.redis.hgetall(f"{keys.prefix}:{{{tag}}}:push")
        if not record:
            continue  # due members are removed when they are leased, and dead members by their score
        alive |= int(record[b"state"]) not in TERMINAL or tag.encode() in waiting_tags
        dead = f"{config}:abandoned_at".encode() in cursor
        is_enabled = config in record.get(b"enabled_configs", b"").decode().split()
        if f"{config}:sealed".encode() not in cursor:
            problems.append(f"{key}: {member!r} has no config")
        elif (
            (key == webhook_keys.deliveries(keys) and dead)
            or (key == webhook_keys.dead_deliveries(keys) and not dead)
            or dead == is_enabled
        ):
            problems.append(f"{key}: {member!r} is {'dead' if dead else 'not dead'}")
    if key != webhook_keys.deliveries(keys) and not alive and expires < 0:
        problems.append(f"{key}: deliveries of ended tasks without an expiry")
    return problems


def _task_key_leaks(key: str, expires: int, record: dict[bytes, bytes], dead: bool, waits: bool) -> list[str]:
    if "}:blob:" in key and 0 <= expires <= EXPIRY:  # a writer was killed before its script
        return []
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
    retained_fields = [field for field in FIELDS_OF_LIVE_TASKS if record.get(field)]
    return [f"{key}: has {retained_fields} of an ended task"] if retained_fields and key.endswith(":task") else []
