"""Store client that records replies, sets the store's clock, and repeats or alters some calls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from a2a_celery.errors import BlobsUnavailable, StoreUnavailable
from a2a_celery.store import Keys, Operation, SyncStore
from a2a_celery.store.blobs.blob_store import Blobs, read
from a2a_celery.store.client.redis_clients import translate_error
from a2a_celery.store.client.round_trips import Command, command_of, pack_commands
from a2a_celery.store.codec import LongSnapshot
from tests.support.store.seeds import ANN, BOB
from tests.tools.oracle.outcomes import outcome_of
from tests.tools.oracle.transcript import Transcript

T = TypeVar("T")

CLOCK = "oracle:now"
START_US = 1_700_000_000_000_000
STEP_US = 1_000_003
"""Time between two operations in µs. It is odd, so that no sum of delays equals another."""

FILL: Command = ("CONFIG", "SET", "maxmemory", 1)
EMPTY: Command = ("CONFIG", "SET", "maxmemory", 0)

READ_VIEW = "read_view"

NEW_TASK = ("create_task", "requeue_task", "register_blobs")
"""Scripts whose arguments name the task that they create. No call is repeated for another task."""

Outcomes = Counter[tuple[str, str]]
"""Number of calls by script and outcome; see `outcome_of`."""


class Client(SyncStore):
    """Store client without an event loop.

    Attributes:
        now_us: Time of the store in µs.
        is_full: True to run operations while the store is at its memory limit.
        before_script: Commands to send before each script, except the script that registers blobs.
        outcomes: Outcomes of all calls.
    """

    def __init__(self, url: str, blobs: Blobs | None, outcomes: Outcomes) -> None:
        super().__init__(url, blobs)
        self.now_us = START_US
        self.is_full = False
        self.before_script: list[Command] = []
        self.outcomes = outcomes
        pool: Any = self.redis.connection_pool
        self._connection, self._subscription = pool.get_connection(), pool.get_connection()
        self._subscription.send_command("PSUBSCRIBE", "*")
        self._subscription.read_response()

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip, and return the replies or errors."""
        self._connection.send_packed_command([pack_commands(commands)])
        return [self._read_reply() for _ in commands]

    def published(self) -> list[tuple[str, bytes]]:
        """Return the channel and the content of each message that was published since the last call."""
        self._subscription.send_command("PING")
        messages = []
        while (reply := self._subscription.read_response())[0] == b"pmessage":
            messages.append((reply[2].decode(), reply[3]))
        return messages

    def run(self, operation: Operation[T]) -> T:
        """Run an operation with its blobs."""
        if not self.is_full:
            return super().run(operation)
        self.send([("SET", CLOCK, self.now_us), FILL])
        try:
            return super().run(operation)
        finally:
            self.send([EMPTY])

    def run_all(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Run operations without blobs in one round trip, and return their unparsed replies."""
        commands = map(command_of, operations)
        replies = self.send([("SET", CLOCK, self.now_us), *commands])[1:]
        return [
            self._checked(operation, self._exchange(operation, with_text=True) if _is_unknown(reply) else reply)
            for operation, reply in zip(operations, replies, strict=True)
        ]

    def parsed(self, operation: Operation[T], reply: Any) -> T:
        """Parse a reply of `run_all`. If the reply is incomplete, run the operation again."""
        try:
            result, missing = read(operation, reply, {})
        except LongSnapshot:
            return self.run(operation)
        return self.run(operation) if missing else result

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._connection, self._subscription):
            connection.disconnect()
            self.redis.connection_pool.release(connection)
        super().close()

    def _ask(self, operation: Operation[Any]) -> Any:
        reply = self._exchange(operation, with_text=False)
        return self._checked(operation, self._exchange(operation, with_text=True) if _is_unknown(reply) else reply)

    def _exchange(self, operation: Operation[Any], *, with_text: bool) -> Any:
        before: list[Command] = [] if self.is_full else [("SET", CLOCK, self.now_us)]
        if operation.script.name != "register_blobs":
            before += self.before_script
        return self.send([*before, command_of(operation, with_text=with_text)])[-1]

    def _checked(self, operation: Operation[Any], reply: Any) -> Any:
        name = operation.script.name
        self.outcomes[name, outcome_of(name, reply)] += 1
        if isinstance(reply, RedisError):
            raise translate_error(reply, name) from reply
        return reply

    def _read_reply(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as e:
            return e


def _is_unknown(reply: Any) -> bool:
    return isinstance(reply, NoScriptError)


class RecordedStore:
    """Store of a sequence, with the part of the interface of `AsyncStore` that the walk uses.

    A few calls are repeated, or are first made on a full store, for a missing task, by another owner or with another
    token.

    Attributes:
        redis: Client for direct changes of the store.
        tokens: Tokens of the claims.
        full_share: Share of the calls that are first made on a full store.
    """

    def __init__(
        self, client: Client, direct: redis.asyncio.Redis, transcript: Transcript, keys: Keys, chance: random.Random
    ) -> None:
        self.client, self.transcript, self._keys, self._chance = client, transcript, keys, chance
        self.redis: Any = direct
        self.tokens: set[str] = set()
        self.full_share = 0.0

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation, record its result, and return or raise the result."""
        if operation.script.name == READ_VIEW:
            return self.client.run(operation)
        for altered in self._altered(operation):
            self._run(f"{operation.script.name} altered", altered)
        result: Any = self._run_on_full_store(operation) if self._chance.random() < self.full_share else None
        if result is None:
            result = self._run(operation.script.name, operation)
        if self._chance.random() < 0.05:
            self._run(f"{operation.script.name} again", operation)
        if isinstance(result, Exception):
            raise result
        return cast(T, result)

    def _run_on_full_store(self, operation: Operation[Any]) -> Any:
        """Run an operation on a full store. Return None if the store refuses it."""
        self.client.is_full = True
        result = self._run(f"{operation.script.name} on a full store", operation)
        self.client.is_full = False
        return None if isinstance(result, Exception) else result

    def _run(self, name: str, operation: Operation[Any]) -> Any:
        self.client.now_us += STEP_US
        try:
            result = self.client.run(operation)
        except (StoreUnavailable, BlobsUnavailable) as e:
            result = e
        self.transcript.add(name, result)
        return result

    def _altered(self, operation: Operation[T]) -> Iterator[Operation[T]]:
        """Yield calls that are refused, and do not change the store."""
        way = self._chance.random()
        name, task_keys = operation.script.name, self._keys.task("missing")
        if name in NEW_TASK or not operation.keys or not operation.keys[0].endswith("}:task"):
            return
        if way < 0.03:
            yield replace(operation, keys=[*task_keys, *operation.keys[len(task_keys) :]])
        elif way < 0.06:
            scopes: dict[Any, Any] = {str(ANN): str(BOB), str(BOB): str(ANN)}
            yield replace(operation, args=[scopes.get(argument, argument) for argument in operation.args])
        elif way < 0.1 and name != "claim_run":
            yield replace(operation, args=["x" if argument in self.tokens else argument for argument in operation.args])


class Views:
    """What readers see. A line is recorded when it changes."""

    def __init__(self, client: Client, transcript: Transcript) -> None:
        self._client, self._transcript = client, transcript
        self._replies: dict[str, Any] = {}
        self._lines: dict[str, str] = {}

    def read(self, reads: Iterable[tuple[str, Operation[Any]]]) -> None:
        """Run operations, each with a label, and record the results that have changed."""
        pairs = list(reads)
        replies = self._client.run_all([operation for _, operation in pairs])
        for (label, operation), reply in zip(pairs, replies, strict=True):
            if label not in self._replies or self._replies[label] != reply:
                self._replies[label] = reply
                self.add(label, self._client.parsed(operation, reply))

    def add(self, label: str, value: Any) -> None:
        """Record a value that has changed."""
        line = self._transcript.line(f"  {label}", value)
        if self._lines.get(label) != line:
            self._lines[label] = line
            self._transcript.lines.append(line)
