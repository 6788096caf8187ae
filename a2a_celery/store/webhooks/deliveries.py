"""Commands on webhook deliveries, for deliverers and for operators.

A delivery cursor is the position of a push-notification config in the log of its task; the log itself is the queue.
Each script that writes an event schedules the cursors of the task. A deliverer leases due cursors, reads the log after
`delivered` and records the outcome of each post. The store ignores what a deliverer records after its lease has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import unquote
from uuid import uuid4

from ...lifecycle import EventId
from ..client.connection import SyncStore
from ..keys import Keys, Scope, quoted
from ..operation import Argument, Operation, script

PAGE = 200
HOUR_US = 3_600_000_000

MAX_REQUESTED_POSTS = 10
"""Largest number of requested posts of one config that wait."""

MAX_REASON_LENGTH = 200
"""Characters of an attempt's reason that are stored."""

FailureDetails = Mapping[str, str | int]
"""Details of a failure for operators: the reason, and the receiver's status and response if there was one."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Attempt to post to a webhook, as shown to the owner of the config.

    It contains no part of a body, an address or a secret. The store sets the two times.

    Attributes:
        post: Id of the event or of the ping (`PING`); "" if the log could not be read.
        outcome: "delivered", "failed", "gone" or "refused".
        status: HTTP status of the response, or None if there was none.
        latency_ms: Duration of the post, or None if nothing was posted or if the duration would reveal network details.
        reason: Sentence that describes the failure, or "".
        at_us: End of the attempt, in µs since 1970.
        next_us: Time of the next attempt, in µs since 1970, or 0 if none follows.
    """

    post: str
    outcome: str
    status: int | None = None
    latency_ms: int | None = None
    reason: str = ""
    at_us: int = 0
    next_us: int = 0

    def to_json(self) -> str:
        """Return the stored form, without the times."""
        fields = [self.post, self.outcome, self.status, self.latency_ms, self.reason[:MAX_REASON_LENGTH]]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, stored: bytes) -> Attempt:
        """Return the attempt that ``record_attempt`` in scripts/lib wrote."""
        at_us, next_us, text = stored.decode().split(" ", 2)
        post, outcome, status, latency_ms, reason = json.loads(text)
        return cls(post, outcome, status, latency_ms, reason, int(at_us), int(next_us))


PING = "ping-"
"""Prefix of the ids of pings. The ids of events begin with a digit."""


@dataclass(frozen=True, slots=True)
class DeliveryCursor:
    """Leased delivery cursor with its sealed config.

    Attributes:
        delivered: version of the last delivered event.
        version: newest version of the log.
        failures: number of failures since the last delivered event.
        failing_for: seconds since the first of these failures.
        trace: W3C traceparent of the task's newest turn, or "".
        leased_at: time of the store at the start of the lease, in seconds since 1970.
        largest: bytes of the largest entry of the log.
        size: bytes of the task.
        owner: account of the task's owner, see `Scope.account`.
    """

    task_id: str
    context_id: str
    agent: str
    config_id: str
    sealed: bytes = field(repr=False)
    delivered: int
    version: int
    failures: int
    failing_for: float
    token: str = field(repr=False)
    trace: str = ""
    leased_at: float = field(default=0.0, compare=False)
    largest: int = 0
    size: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """State of a delivery.

    Times are times of the store, in µs; 0 for none. The attempts and the requested posts are read by `read_delivery`
    only.

    Attributes:
        delivered: version of the last delivered event.
        version: newest version of the log.
        is_leased: True if a deliverer has leased the cursor, until `due_us`.
        failures: number of failures since the last delivered event.
        failure: newest of these failures.
        failure_us: time of that failure.
        died_us: time at which the delivery was given up.
        now_us: time at which the delivery was read.
        attempts: newest attempts, newest first.
        requested: ids of the posts that the owner requested and that are not made yet.
    """

    task_id: str
    config_id: str
    agent: str
    context_id: str
    delivered: int
    version: int
    is_leased: bool
    failures: int
    first_failed_us: int
    due_us: int
    failure: FailureDetails
    failure_us: int
    died_us: int
    now_us: int = field(compare=False)
    attempts: tuple[Attempt, ...] = ()
    requested: tuple[str, ...] = ()

    @property
    def state(self) -> Literal["dead", "failing", "waiting", "delivered"]:
        """State of the delivery as operators see it."""
        if self.died_us:
            return "dead"
        if self.delivered >= self.version:
            return "delivered"
        return "failing" if self.failures else "waiting"


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Page of deliveries, with the cursor of the next page, or None after the last one."""

    deliveries: list[Delivery]
    cursor: int | None


@dataclass(frozen=True, slots=True)
class DeliveryMetrics:
    """Numbers of deliveries and of posts.

    Attributes:
        waiting: deliveries with undelivered events.
        dead: deliveries that were given up.
        delivered, failed, given_up: posts with that outcome since the store was created.
    """

    waiting: int
    dead: int
    delivered: int
    failed: int
    given_up: int


def delivery_metrics(keys: Keys) -> Operation[DeliveryMetrics]:
    """Count all deliveries and posts."""

    def parse(reply: Sequence[Any]) -> DeliveryMetrics:
        waiting, dead, *rest = reply
        counts = {name.decode(): int(times) for name, times in zip(rest[::2], rest[1::2], strict=True)}
        posts = (counts.get(name, 0) for name in ("delivered", "failed", "given_up"))
        return DeliveryMetrics(int(waiting), int(dead), *posts)

    return Operation(script("delivery_metrics"), [keys.deliveries, keys.dead_deliveries], [], parse)


def acquire_due_deliveries(keys: Keys, *, limit: int, lease_us: int) -> Operation[list[DeliveryCursor]]:
    """Lease up to `limit` due cursors for `lease_us` each.

    If the reply is lost, the cursors are due again after the lease.
    """
    token = uuid4().hex

    def parse(reply: Sequence[Sequence[bytes]]) -> list[DeliveryCursor]:
        return [_cursor(fields, token) for fields in reply]

    return Operation(script("acquire_due_deliveries"), [keys.deliveries], [keys.prefix, limit, lease_us, token], parse)


def acquire_bytes(keys: Keys, owner: str, host: str, size: int, *, per_hour: int) -> Operation[float]:
    """Take `size` bytes for a post to `host` from the byte budget of `owner`.

    The last post may exceed the budget; the next post then waits longer. A call that is repeated after a broken
    connection takes the bytes twice.

    Returns:
        0, or the seconds until the budget has bytes again.
    """
    return Operation(
        script("acquire_bytes"),
        [keys.posted(owner, host)],
        [HOUR_US, per_hour, size],
        lambda reply: int(reply) / 1e6,
    )


def record_delivery(
    keys: Keys,
    cursor: DeliveryCursor,
    event_id: EventId,
    *,
    lease_us: int,
    posted: bool = True,
    attempt: Attempt | None = None,
) -> Operation[Literal["more", "done", "lost"]]:
    """Move a leased cursor to the event `event_id`, and renew its lease.

    If the cursor is already at `event_id` and `posted` is False, the call only renews the lease.

    Args:
        event_id: last event that was delivered, or that the config does not subscribe to.
        posted: True if the event was posted. A delivered event resets the failures.

    Returns:
        "more" if events are undelivered and the cursor stays leased for `lease_us`. "done" if all events are delivered
        and the lease has ended. "lost" if the lease had ended before, the config was deleted or replaced, the task is
        missing, or the store has lost the event; a cursor whose event was lost is due at once, from its stored
        position.
    """
    version, recorded_us = event_id
    arguments: list[Argument] = [version, lease_us, int(posted), recorded_us or "", _stored(attempt)]
    return _settle("record_delivery", keys, cursor, arguments, _word)


def postpone_delivery(
    keys: Keys,
    cursor: DeliveryCursor,
    *,
    after_us: int,
    counts: bool | Literal["age"],
    failure: FailureDetails | None = None,
    attempt: Attempt | None = None,
) -> Operation[bool]:
    """Release a leased cursor, which is due again in `after_us`.

    Args:
        after_us: 0 for a deliverer that shuts down.
        counts: True for a failure. "age" if nothing was posted, but `failing_for` starts now unless it has started.
        failure: details for operators.

    Returns:
        False if the lease had ended.
    """
    as_failure = counts if counts == "age" else int(counts)
    arguments: list[Argument] = [after_us, as_failure, json.dumps(failure) if failure else "", _stored(attempt)]
    return _settle("postpone_delivery", keys, cursor, arguments, bool)


def abandon_delivery(
    keys: Keys, cursor: DeliveryCursor, *, failure: FailureDetails, attempt: Attempt | None = None
) -> Operation[bool]:
    """Give up a delivery until it is replayed or its config is replaced. The cursor keeps its position.

    Returns:
        False if the lease had ended.
    """
    return _settle("abandon_delivery", keys, cursor, [json.dumps(failure), _stored(attempt)], bool)


def replay_delivery(
    keys: Keys, task_id: str, config_id: str, scope: Scope | None = None
) -> Operation[Literal["missing", "replayed", "alive"]]:
    """Schedule undelivered events at once, also after the delivery was given up.

    Returns:
        "alive" if no delivery failed or a deliverer has leased the cursor. "missing" if `scope` has no such config;
        a scope of None has all configs.
    """
    arguments = [_scope(scope), quoted(config_id), uuid4().hex]
    return Operation(script("replay_delivery"), keys.task(task_id), arguments, _word)


def request_post(
    keys: Keys, scope: Scope | None, task_id: str, config_id: str, post: EventId | str
) -> Operation[Literal["missing", "gone", "full", "requested"]]:
    """Request a post to a webhook: of an event that was delivered before, or of the ping with the id `post`.

    An undelivered event is scheduled at once instead, after the events before it.

    Returns:
        "gone" if the log does not have the event. "full" if `MAX_REQUESTED_POSTS` wait. "missing" if `scope` has no
        such config; a scope of None has all configs.
    """
    version, recorded_us = post if isinstance(post, EventId) else EventId(0)
    arguments: list[Argument] = [_scope(scope), quoted(config_id), str(post), MAX_REQUESTED_POSTS]
    arguments += [version, recorded_us, uuid4().hex]
    return Operation(script("request_post"), keys.task(task_id), arguments, _word)


def acquire_requested_posts(
    keys: Keys, *, limit: int, lease_us: int
) -> Operation[list[tuple[DeliveryCursor, list[str]]]]:
    """Lease up to `limit` cursors with requested posts for `lease_us` each. Return them with the ids of the posts."""

    def parse(reply: Sequence[Sequence[bytes]]) -> list[tuple[DeliveryCursor, list[str]]]:
        return [(_cursor(fields, ""), posts.decode().split()) for posts, *fields in reply]

    return Operation(script("acquire_requested_posts"), [keys.requested_posts], [keys.prefix, limit, lease_us], parse)


def settle_requested_post(
    keys: Keys, cursor: DeliveryCursor, post: str, attempt: Attempt | None, *, after_us: int
) -> Operation[None]:
    """Record the attempt of a requested post, or postpone the post by `after_us` without an attempt.

    Further requested posts are due in `after_us`. Nothing changes if the post was made already.
    """
    arguments: list[Argument] = [quoted(cursor.config_id), post, _stored(attempt), after_us]
    return Operation(script("settle_requested_post"), keys.task(cursor.task_id), arguments, lambda _: None)


def read_delivery(keys: Keys, task_id: str, config_id: str, scope: Scope | None = None) -> Operation[Delivery | None]:
    """Read a delivery with its attempts. The result is None if `scope` has no such config; None has all configs."""

    def parse(reply: Sequence[Any] | None) -> Delivery | None:
        if reply is None:
            return None
        now_us, summary, requested, attempts = reply
        return replace(
            _delivery(summary, int(now_us)),
            attempts=tuple(map(Attempt.parse, attempts)),
            requested=tuple(requested.decode().split()),
        )

    return Operation(script("read_delivery"), keys.task(task_id), [_scope(scope), quoted(config_id)], parse)


def scan_deliveries(keys: Keys, *, dead: bool = False, cursor: int = 0) -> Operation[DeliveryPage]:
    """Read a page of the deliveries with undelivered events, or of the `dead` ones. A delivery may appear twice."""

    def parse(reply: Sequence[Any]) -> DeliveryPage:
        following, now_us, *summaries = reply
        return DeliveryPage([_delivery(summary, int(now_us)) for summary in summaries], int(following) or None)

    name = keys.dead_deliveries if dead else keys.deliveries
    return Operation(script("scan_deliveries"), [name], [keys.prefix, cursor, PAGE, int(not dead)], parse)


def deliveries(store: SyncStore, keys: Keys, *, dead: bool = False) -> Iterator[Delivery]:
    """Yield each delivery of `scan_deliveries` once, in no particular order.

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """
    seen: set[tuple[str, str]] = set()
    cursor: int | None = 0
    while cursor is not None:
        page = store.run(scan_deliveries(keys, dead=dead, cursor=cursor))
        for delivery in page.deliveries:
            name = delivery.task_id, delivery.config_id
            if name not in seen:
                seen.add(name)
                yield delivery
        cursor = page.cursor


def _settle(name: str, keys: Keys, cursor: DeliveryCursor, rest: list[Argument], parse: Any) -> Operation[Any]:
    arguments = [quoted(cursor.config_id), cursor.token, *rest]
    return Operation(script(name), keys.task(cursor.task_id), arguments, parse)


def _stored(attempt: Attempt | None) -> str:
    return attempt.to_json() if attempt is not None else ""


def _scope(scope: Scope | None) -> str:
    return "*" if scope is None else str(scope)


def _word(reply: bytes) -> Any:
    return reply.decode()


def _cursor(fields: Sequence[bytes], token: str) -> DeliveryCursor:
    task_id, context_id, agent, config, sealed, delivered, version, failures, failing_us, trace, *numbers, owner = (
        fields
    )
    now_us, largest, size = map(int, numbers)
    return DeliveryCursor(
        task_id.decode(),
        context_id.decode(),
        agent.decode(),
        unquote(config.decode()),
        sealed,
        int(delivered),
        int(version),
        int(failures),
        int(failing_us) / 1e6,
        token,
        trace.decode(),
        now_us / 1e6,
        largest,
        size,
        owner.decode(),
    )


def _delivery(summary: Sequence[bytes], now_us: int) -> Delivery:
    task_id, config, agent, context, delivered, version, leased, failures, failed, due, failure, failure_at, died = (
        value.decode() for value in summary
    )
    return Delivery(
        task_id,
        unquote(config),
        agent,
        context,
        int(delivered),
        int(version),
        leased == "1",
        int(failures),
        int(failed or 0),
        int(float(due or 0)),
        json.loads(failure or "{}"),
        int(failure_at or 0),
        int(died or 0),
        now_us,
    )
