"""Fast seeding of a store with terminal tasks that are copies of one real task.

A real run takes milliseconds. This module copies the keys that a run has left with plain Redis commands, thousands per
round trip.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from time import time_ns
from urllib.parse import urlsplit

import redis.asyncio

from a2a_celery.store import Keys
from a2a_celery.store.client.round_trips import pack_commands

from .peers.seeded import seeded_context, seeded_id

BATCH = 500
"""Number of tasks that are sent together. Replies for as many tasks may be outstanding."""

AT = re.compile(rb"(?=(\d{16}))")
"""Pattern of sixteen digits that may be a time in µs. They are a time if they are near the time of the task (`FAR`)."""

FAR = 600_000_000

TIME_MARK, TIME_DIGITS = 4, 8
"""Index, in the log of a packed task, of the byte that represents the leading digits of times, and the number of these
digits. See ``store/scripts/lib/packed.lua``."""

OUTGROWN = (b"outgrown", b"-" * 1000)
"""Large field that makes Redis encode a hash as a hash table, even after the field is removed. The record of a real
task is encoded as a hash table, because it has contained the request."""


class TaskTemplate:
    """Commands that write the keys of a terminal task with different ids and a different time.

    The new ids must have the same length as the original ids. Keys that count all tasks are not copied.
    """

    def __init__(self, commands: Sequence[Sequence[bytes]], task_id: str, context_id: str, at: int) -> None:
        self.commands = len(commands)
        self._at = at
        self._ids = (task_id.encode(), context_id.encode())
        times = set(AT.findall(b"\n".join(word for command in commands for word in command)))
        self._times = {time: int(time) for time in times if abs(int(time) - at) < FAR}
        [log] = [words[2] for words in commands if words[0] == b"SET"]
        self._mark = log[TIME_MARK : TIME_MARK + 1]
        for time in re.findall(re.escape(self._mark) + rb"\d{%d}" % (16 - TIME_DIGITS), log):
            self._times[time] = int(str(at)[:TIME_DIGITS].encode() + time[1:])
        marks = b"|".join(map(re.escape, (*self._ids, *self._times)))
        self._pieces = re.split(b"(" + marks + b")", pack_commands(commands))

    @classmethod
    async def of(cls, client: redis.asyncio.Redis, keys: Keys, task_id: str, context_id: str) -> TaskTemplate:
        """Read the keys of a task from a store that has few other tasks."""
        retention, at, scope = await client.hmget(keys.task(task_id).record, "retention", "at", "scope")
        commands: list[list[bytes]] = [[b"ZADD", keys.scopes.encode(), b"GT", at, scope]]
        async for name in client.scan_iter(f"{keys.prefix}:*"):
            own = task_id in name.decode() or context_id in name.decode()
            match await client.type(name):
                case b"zset" if (score := await client.zscore(name, task_id)) is not None:
                    commands.append([b"ZADD", name, b"%.0f" % score, task_id.encode()])
                case b"hash" if own:
                    fields = [word for field in (await client.hgetall(name)).items() for word in field]
                    if await client.object("ENCODING", name) == b"hashtable":
                        commands += [[b"HSET", name, *OUTGROWN, *fields], [b"HDEL", name, OUTGROWN[0]]]
                    else:
                        commands.append([b"HSET", name, *fields])
                case b"string" if own:
                    commands.append([b"SET", name, await client.get(name)])
                case b"list" if own:
                    commands.append([b"RPUSH", name, *await client.lrange(name, 0, -1)])
                case kind:
                    assert not own, f"{name!r} is a {kind!r}"
                    continue
            assert await client.ttl(name) > 0, f"{name!r} stays: the task has not ended"
            commands.append([b"EXPIRE", name, retention])
        return cls(commands, task_id, context_id, int(at))

    def filled(self, task_id: str, context_id: str, at: int) -> bytes:
        """Return the commands for a task with the status time `at`, in µs."""
        shift = at - self._at
        replacements = dict(zip(self._ids, (task_id.encode(), context_id.encode()), strict=True))
        prefix = str(at)[:TIME_DIGITS]
        earliest = int(prefix.ljust(16, "0"))  # of the times that the mark can represent
        for word, original in self._times.items():
            is_marked = word.startswith(self._mark)
            time = b"%d" % (max(original + shift, earliest) if is_marked else original + shift)
            replacements[word] = self._mark + time[TIME_DIGITS:] if is_marked else time
        return b"".join([replacements.get(piece, piece) for piece in self._pieces])


async def seed(store_url: str, template: TaskTemplate, numbers: range) -> None:
    """Write the tasks `numbers` with the current time as their status time. `store_url` must name a Unix socket.

    Raises:
        RuntimeError: Redis rejected a command.
    """
    reader, writer = await asyncio.open_unix_connection(urlsplit(store_url).path)
    unanswered = 0
    try:
        for first in range(numbers.start, numbers.stop, BATCH):
            batch, now = range(first, min(first + BATCH, numbers.stop)), time_ns() // 1000
            tasks = [template.filled(seeded_id(n), seeded_context(n), now + place) for place, n in enumerate(batch)]
            writer.write(b"".join(tasks))
            await writer.drain()
            unanswered += len(batch) * template.commands
            while unanswered > (BATCH * template.commands if batch.stop < numbers.stop else 0):
                answers = await reader.read(1 << 20)
                if not answers or b"-" in answers:
                    raise RuntimeError(f"Redis replied {answers[-200:]!r}")
                unanswered -= answers.count(b"\n")
    finally:
        writer.close()
        await writer.wait_closed()
