"""Many ended tasks in a store, quickly: one that was really run is the mould of all.

What a run writes, step by step and by the store's scripts, takes its processes milliseconds. Here the keys are written
as it left them, by Redis' own commands, thousands in a round trip.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from time import time_ns
from urllib.parse import urlsplit

import redis.asyncio

from a2a_celery.store import Keys
from a2a_celery.store.client.round_trips import packed

from .peers.seeded import seeded_context, seeded_id

BATCH = 500
"""Tasks that are sent together; as many may be unanswered."""

AT = re.compile(rb"(?<!\d)\d{16}(?!\d)")
"""A time, in µs; what is too far from its task's is none."""

FAR = 600_000_000

OUTGROWN = (b"outgrown", b"-" * 1000)
"""Makes Redis keep a hash as it keeps large ones, also when it is gone: as a record that once had a request."""


class Mould:
    """What one ended task has left in a store, as commands that write it again with other ids, at another time.

    Ids are as long as its own. What counts all tasks (`Keys.figures`) is left alone.
    """

    def __init__(self, commands: Sequence[Sequence[bytes]], task_id: str, context_id: str, at: int) -> None:
        self.commands = len(commands)
        self._at = at
        self._ids = (task_id.encode(), context_id.encode())
        found = set(AT.findall(b"\n".join(word for command in commands for word in command)))
        self._times = {time: int(time) for time in found if abs(int(time) - at) < FAR}
        marks = b"|".join(map(re.escape, (*self._ids, *self._times)))
        self._pieces = re.split(b"(" + marks + b")", packed(commands))

    @classmethod
    async def of(cls, client: redis.asyncio.Redis, keys: Keys, task_id: str, context_id: str) -> Mould:
        """That of a task in a store which holds few others."""
        retention, at = await client.hmget(keys.task(task_id).record, "retention", "at")
        commands: list[list[bytes]] = []
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
                case b"list" if own:
                    commands.append([b"RPUSH", name, *await client.lrange(name, 0, -1)])
                case kind:
                    assert not own, f"{name!r} is a {kind!r}"
                    continue
            assert await client.ttl(name) > 0, f"{name!r} stays: the task has not ended"
            commands.append([b"EXPIRE", name, retention])
        return cls(commands, task_id, context_id, int(at))

    def filled(self, task_id: str, context_id: str, at: int) -> bytes:
        """The commands for that task, whose status is of `at`, in µs."""
        shift = at - self._at
        told = dict(zip(self._ids, (task_id.encode(), context_id.encode()), strict=True))
        told.update((time, b"%d" % (was + shift)) for time, was in self._times.items())
        return b"".join([told.get(piece, piece) for piece in self._pieces])


async def seed(store_url: str, mould: Mould, numbers: range) -> None:
    """Writes the tasks with these numbers, as if each had ended just now. `store_url` names a unix socket.

    Raises:
        RuntimeError: Redis has refused a command.
    """
    reader, writer = await asyncio.open_unix_connection(urlsplit(store_url).path)
    unanswered = 0
    try:
        for first in range(numbers.start, numbers.stop, BATCH):
            batch, now = range(first, min(first + BATCH, numbers.stop)), time_ns() // 1000
            tasks = [mould.filled(seeded_id(n), seeded_context(n), now + place) for place, n in enumerate(batch)]
            writer.write(b"".join(tasks))
            await writer.drain()
            unanswered += len(batch) * mould.commands
            while unanswered > (BATCH * mould.commands if batch.stop < numbers.stop else 0):
                answers = await reader.read(1 << 20)
                if not answers or b"-" in answers:
                    raise RuntimeError(f"Redis said {answers[-200:]!r}")
                unanswered -= answers.count(b"\n")
    finally:
        writer.close()
        await writer.wait_closed()
