"""View of the stored tasks and of the lists that continue them, with the rules that hold after each operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Protocol, TypeVar

from a2a_celery.lifecycle.states import INTERRUPTED, TERMINAL
from a2a_celery.store import Keys, Operation
from a2a_celery.store.operation import Script

T = TypeVar("T")

FIELDS = [
    *("task_id", "scope", "context", "state", "phase", "run", "token", "size", "queue", "context_queue", "parent"),
    *("children", "resumes", "wait_signal", "code_version", "retry_state"),
]
Record = dict[str, str]

READ_VIEW = """
local prefix, fields = ARGV[1], {unpack(ARGV, 2)}
local lists, tasks, queues = {}, {}, {}
for i, list in ipairs(KEYS) do lists[i] = redis.call('ZRANGE', list, 0, -1) end
for i, record in ipairs(redis.call('KEYS', prefix .. ':*:task')) do
  local stem = string.sub(record, 1, -5)
  tasks[i] = {string.match(record, '{(.*)}'), redis.call('HMGET', record, unpack(fields)),
    redis.call('LLEN', stem .. 'turns'), redis.call('LRANGE', stem .. 'signals', 0, -1)}
end
for i, queue in ipairs(redis.call('KEYS', prefix .. ':context_queue:*')) do
  queues[i] = {queue, redis.call('LRANGE', queue, 0, -1)}
end
return {lists, tasks, queues}
"""
"""Script that reads a view in one round trip."""


class ViewStore(Protocol):
    """Store client that runs operations."""

    async def run(self, operation: Operation[T]) -> T: ...


@dataclass
class View:
    """Stored tasks and the lists that continue them.

    Attributes:
        records: Fields of the records by task id.
        lists: Members of the lists by the name of the list.
        context_queues: Tags in the queues of contexts by the key of the queue.
        waiting: Number of waiting messages by task id.
        signals: Names of the stored signals by task id.
    """

    records: dict[str, Record]
    lists: dict[str, list[str]]
    context_queues: dict[str, list[str]]
    waiting: dict[str, int]
    signals: dict[str, list[str]]

    @classmethod
    async def of(cls, store: ViewStore, keys: Keys) -> View:
        return await store.run(read_view(keys))

    def problems(self) -> Iterator[str]:
        """Yield a line for each task that is not in exactly the list that continues the task, for each stale entry, and
        for each suspended run whose wait is over.

        A child that waits for its client ends the wait of its parent when its run has ended.
        """
        expected: dict[str, set[str]] = {name: set() for name in self.lists}
        for tag, record in self.records.items():
            phase, state = record["phase"], int(record["state"])
            if phase == "" and state not in TERMINAL | INTERRUPTED:
                yield f"{tag}: in state {state} without a run"
            if phase and state in TERMINAL:
                yield f"{tag}: in state {state} with a run in phase {phase}"
            if place := self.place(tag, record):
                expected[place].add(tag if place == "pauses" else f"{tag}.{record['run']}")
            if phase == "queued" and record["queue"]:
                expected["queue" if record["queue"].endswith(":agent") else "other queue"].add(tag)
            is_serialized = record["context_queue"] != "" and phase != ""
            if is_serialized != (tag in self.context_queues.get(record["context_queue"], [])):
                yield f"{tag}: in phase {phase!r}, and its context queue is {self.context_queues}"
            if phase == "" and self.waiting[tag]:
                yield f"{tag}: {self.waiting[tag]} messages wait for a run that has ended"
            if phase == "suspended" and record["wait_signal"] in self.signals[tag]:
                yield f"{tag}: waits for a stored signal"
            child = self.records.get(record["wait_signal"].removeprefix("child/"))
            if phase == "suspended" and child and child["phase"] == "":
                yield f"{tag}: waits for {child['task_id']}, which is in state {child['state']}"
        for name, members in self.lists.items():
            if set(members) != expected[name]:
                yield f"{name}: {members} instead of {expected[name]}"
        for key, tags in self.context_queues.items():
            stale = [tag for tag in tags if self.records.get(tag, {}).get("context_queue") != key]
            if stale or len(set(tags)) < len(tags):
                yield f"{key}: {tags}"

    def place(self, tag: str, record: Record) -> str | None:
        """Return the name of the list that continues the task, or None if the task has ended."""
        if record["phase"] == "queued":
            return "blocked" if self.context_queues.get(record["context_queue"], [tag])[0] != tag else "dispatch"
        if record["phase"] == "":
            return "pauses" if int(record["state"]) in INTERRUPTED else None
        return {"running": "leases", "delegated": "canvases", "suspended": "suspended"}[record["phase"]]

    def in_phase(self, *phases: str) -> list[str]:
        return sorted(tag for tag, record in self.records.items() if record["phase"] in phases)

    def open_children(self, tag: str) -> list[str]:
        """Return the children for which the task may wait."""
        children = [child.rstrip("!") for child in self.records[tag]["children"].split()]
        return [child for child in children if self.records.get(child, {}).get("resumes")]


def read_view(keys: Keys) -> Operation[View]:
    """Read the records and the lists of all tasks."""
    lists = {
        "leases": keys.leases, "dispatch": keys.dispatch, "blocked": keys.blocked, "canvases": keys.canvases,
        "suspended": keys.suspended, "pauses": keys.pauses, "queue": keys.queue("agent"),
        "other queue": keys.queue("other"),
    }  # fmt: skip

    def parse(reply: Sequence[Any]) -> View:
        members, tasks, queues = reply
        by_tag = {tag.decode(): (fields, waiting, signals) for tag, fields, waiting, signals in sorted(tasks)}
        return View(
            {tag: _record(fields) for tag, (fields, _, _) in by_tag.items()},
            {name: _texts(values) for name, values in zip(lists, members, strict=True)},
            {key.decode(): _texts(values) for key, values in sorted(queues)},
            {tag: waiting for tag, (_, waiting, _) in by_tag.items()},
            {tag: [entry[4 : 4 + entry[3]].decode() for entry in signals] for tag, (_, _, signals) in by_tag.items()},
        )

    read = Script("read_view", READ_VIEW, sha1(READ_VIEW.encode(), usedforsecurity=False).hexdigest())
    return Operation(read, list(lists.values()), [keys.prefix, *FIELDS], parse)


def _texts(values: Sequence[bytes]) -> list[str]:
    return [value.decode() for value in values]


def _record(values: Sequence[bytes | None]) -> Record:
    return {name: (value or b"").decode() for name, value in zip(FIELDS, values, strict=True)}
