"""Commands on webhook deliveries, for deliverers and for operators.

A delivery cursor is the position of a push-notification config in the log of its task. The log itself is the queue.
Each script that writes an event schedules the cursors of the task. A deliverer leases due cursors, reads the log after
the last delivered event, and records the outcome of each post. The store ignores the outcome if the deliverer no longer
holds the lease, for example because another deliverer has leased the cursor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal
from urllib.parse import unquote
from uuid import uuid4

from ...lifecycle import EventId
from ...lifecycle.references import Scope
from ...store import Keys, SyncStore
from ...store.keys import AnyScope, Quoted
from ...store.operation import Operation
from ...store.verbs import Digits, Key, Reply, TaskId, verb
from . import keys as names

PAGE = 200

MAX_REQUESTED_POSTS = 10
"""Maximum number of waiting requested posts of a config."""

MAX_REASON_LENGTH = 200
"""Maximum length of the stored reason of an attempt, in characters."""

FailureDetails = Mapping[str, str | int]
"""Details of a failure for operators: the reason, the status and text of the response if there was one, and the address
if it is forbidden."""


def reason_of(failure: FailureDetails) -> str:
    """Return the reason of a failure, followed by the forbidden address if there is one.

    Only operators, who may read the store and the logs, may see the result.
    """
    reason, address = str(failure.get("reason", "-")), failure.get("address")
    return f"{reason} ({address})" if address else reason


@dataclass(frozen=True, slots=True)
class Attempt:
    """Attempt to post to a webhook, as the owner of the config sees it.

    An attempt contains no part of a body, an address or a secret. The store sets `at_us` and `next_us`.

    Attributes:
        post: Id of the event or of the ping (see `PING`), or "" if the log could not be read.
        outcome: "delivered", "failed", "gone" or "refused".
        status: HTTP status of the response, or None if there was no response.
        latency_ms: Duration of the post in ms, or None if no request was sent or the duration would reveal network
            details.
        reason: Sentence that describes the failure, or "".
        at_us: Time at which the attempt ended, in µs since 1970.
        next_us: Time of the next attempt, in µs since 1970, or 0 if no attempt follows.
    """

    post: str
    outcome: str
    status: int | None = None
    latency_ms: int | None = None
    reason: str = ""
    at_us: int = 0
    next_us: int = 0

    def to_json(self) -> str:
        """Return the attempt as JSON for the store, without the times."""
        fields = [self.post, self.outcome, self.status, self.latency_ms, self.reason[:MAX_REASON_LENGTH]]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, content: bytes) -> Attempt:
        """Parse an attempt that ``record_attempt`` in ``scripts/lib`` stored."""
        at_us, next_us, text = content.decode().split(" ", 2)
        post, outcome, status, latency_ms, reason = json.loads(text)
        return cls(post, outcome, status, latency_ms, reason, int(at_us), int(next_us))


AttemptText = Annotated[Attempt, Attempt.to_json]
"""Attempt that a script receives as JSON."""

PING = "ping-"
"""Prefix of the ids of pings. The ids of events begin with a digit."""


@dataclass(frozen=True, slots=True)
class DeliveryCursor:
    """Leased delivery cursor with its sealed config.

    Attributes:
        delivered: Version of the last delivered event.
        version: Newest version of the log.
        failures: Number of failures since the last delivered event.
        failing_for: Seconds since the first failure after the last delivered event, or 0.
        trace: W3C traceparent of the task's newest turn, or "".
        leased_at: Start of the lease by the store's clock, in seconds since 1970.
        largest: Size of the largest log entry in bytes.
        size: Size of the task in bytes.
        owner: Account of the task's owner; see `Scope.account`.
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

    All times are in µs by the store's clock, or 0 if there was no such event. Only `read_delivery` reads the attempts
    and the requested posts.

    Attributes:
        delivered: Version of the last delivered event.
        version: Newest version of the log.
        is_leased: True if a deliverer has leased the cursor until `due_us`.
        failures: Number of failures since the last delivered event.
        first_failed_us: Time of the first failure after the last delivered event.
        due_us: Time at which the cursor is due.
        failure: Details of the newest failure.
        failure_us: Time of the newest failure.
        died_us: Time at which the delivery was given up.
        now_us: Time at which the delivery was read.
        attempts: The most recent attempts, newest first.
        requested: Ids of the requested posts that were not sent yet.
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
        """State of the delivery that is shown to operators."""
        if self.died_us:
            return "dead"
        if self.delivered >= self.version:
            return "delivered"
        return "failing" if self.failures else "waiting"


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Page of deliveries.

    Attributes:
        deliveries: Deliveries on the page.
        cursor: Cursor of the next page, or None on the last page.
    """

    deliveries: list[Delivery]
    cursor: int | None


@dataclass(frozen=True, slots=True)
class DeliveryMetrics:
    """Number of deliveries by state, and number of posts by outcome.

    Attributes:
        waiting: Number of deliveries with undelivered events.
        dead: Number of deliveries that were given up.
        delivered, failed, given_up: Number of posts with this outcome since the store was created.
    """

    waiting: int
    dead: int
    delivered: int
    failed: int
    given_up: int

    @property
    def posts(self) -> tuple[int, int, int]:
        """Numbers of posts by outcome, in the order of `Sample.posts`."""
        return self.delivered, self.failed, self.given_up


def delivery_metrics(keys: Keys) -> Operation[DeliveryMetrics]:
    """Read the number of deliveries by state, and the number of posts by outcome."""
    return _delivery_metrics(names.deliveries(keys), names.dead_deliveries(keys), names.delivery_outcomes(keys))


@verb
def _delivery_metrics(deliveries: Key, dead_deliveries: Key, outcomes: Key) -> Reply[DeliveryMetrics]:
    def parse(reply: Sequence[Any]) -> DeliveryMetrics:
        waiting, dead, *rest = reply
        counts = {name.decode(): int(times) for name, times in zip(rest[::2], rest[1::2], strict=True)}
        posts = (counts.get(name, 0) for name in ("delivered", "failed", "given_up"))
        return DeliveryMetrics(int(waiting), int(dead), *posts)

    return Reply(parse)


def acquire_due_deliveries(keys: Keys, *, limit: int, lease_us: int) -> Operation[list[DeliveryCursor]]:
    """Lease up to `limit` due cursors, each for `lease_us`. If the reply is lost, the cursors are due again when the
    leases end.

    Args:
        keys: Keys of the deployment.
        limit: Maximum number of cursors.
        lease_us: Duration of the leases in µs.
    """
    return _acquire_due_deliveries(keys, names.deliveries(keys), limit, lease_us, uuid4().hex)


@verb
def _acquire_due_deliveries(
    keys: Keys, deliveries: Key, limit: int, lease_us: int, token: str
) -> Reply[list[DeliveryCursor]]:
    def parse(reply: Sequence[Sequence[bytes]]) -> list[DeliveryCursor]:
        return [_cursor(fields, token) for fields in reply]

    return Reply(parse)


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
        keys: Keys of the deployment.
        cursor: Leased cursor.
        event_id: Id of the last event that was delivered, or to which the config does not subscribe.
        lease_us: Duration of the renewed lease in µs.
        posted: True if the event was posted. A delivered event resets the failures.
        attempt: Attempt to record, or None.

    Returns:
        "more" if further events are undelivered and the cursor stays leased for `lease_us`. "done" if all events are
        delivered and the lease has ended. "lost" if the deliverer no longer holds the lease, the config was deleted or
        replaced, the task is missing, or the store has lost the event. If the store has lost the event, the cursor is
        due immediately, at its stored position.
    """
    return _record_delivery(keys, cursor.task_id, cursor.config_id, cursor.token, *event_id, lease_us, posted, attempt)


@verb
def _record_delivery(
    keys: Keys,
    task_id: TaskId,
    config_id: Quoted,
    token: str,
    version: int,
    recorded_us: Digits,
    lease_us: int,
    posted: bool,
    attempt: AttemptText | None,
) -> Reply[Any]:
    """`version` and `recorded_us` identify the event. `recorded_us` is 0 if its time is unknown."""
    return Reply(_word)


def postpone_delivery(
    keys: Keys,
    cursor: DeliveryCursor,
    *,
    after_us: int,
    counts: bool | Literal["age"],
    failure: FailureDetails | None = None,
    attempt: Attempt | None = None,
) -> Operation[bool]:
    """Release a leased cursor, which is due again after `after_us`.

    Args:
        keys: Keys of the deployment.
        cursor: Leased cursor.
        after_us: µs until the cursor is due, or 0 if the deliverer shuts down.
        counts: True to count a failure. "age" to start the time of `failing_for` without counting a failure.
            False to change neither the count nor the time.
        failure: Details of the failure for operators, or None.
        attempt: Attempt to record, or None.

    Returns:
        False if the deliverer no longer holds the lease.
    """
    return _postpone_delivery(
        keys,
        cursor.task_id,
        cursor.config_id,
        cursor.token,
        after_us,
        counts_failure=counts is True,
        starts_failing=bool(counts),
        failure=json.dumps(failure) if failure else None,
        attempt=attempt,
    )


@verb
def _postpone_delivery(
    keys: Keys,
    task_id: TaskId,
    config_id: Quoted,
    token: str,
    after_us: int,
    counts_failure: bool,
    starts_failing: bool,
    failure: str | None,
    attempt: AttemptText | None,
) -> Reply[bool]:
    return Reply(bool)


def abandon_delivery(
    keys: Keys, cursor: DeliveryCursor, *, failure: FailureDetails, attempt: Attempt | None = None
) -> Operation[bool]:
    """Give up a delivery until it is replayed or its config is replaced. The position of the cursor does not change.

    Args:
        keys: Keys of the deployment.
        cursor: Leased cursor.
        failure: Details of the failure for operators.
        attempt: Attempt to record and to count as a failure, or None.

    Returns:
        False if the deliverer no longer holds the lease.
    """
    return _abandon_delivery(keys, cursor.task_id, cursor.config_id, cursor.token, json.dumps(failure), attempt)


@verb
def _abandon_delivery(
    keys: Keys, task_id: TaskId, config_id: Quoted, token: str, failure: str, attempt: AttemptText | None
) -> Reply[bool]:
    return Reply(bool)


def replay_delivery(
    keys: Keys, task_id: str, config_id: str, scope: Scope | None = None
) -> Operation[Literal["missing", "replayed", "alive"]]:
    """Schedule the undelivered events of a config immediately, even if the delivery was given up.

    Args:
        keys: Keys of the deployment.
        task_id: Id of the task.
        config_id: Id of the config.
        scope: Scope of the config, or None for any scope.

    Returns:
        "replayed" if the events were scheduled. "alive" if no delivery failed, or a deliverer has leased the cursor.
        "missing" if `scope` has no such config.
    """
    return _replay_delivery(keys, task_id, config_id, scope, nonce=uuid4().hex)


@verb
def _replay_delivery(keys: Keys, task_id: TaskId, config_id: Quoted, scope: AnyScope, nonce: str) -> Reply[Any]:
    return Reply(_word)


def request_post(
    keys: Keys, scope: Scope | None, task_id: str, config_id: str, post: EventId | str
) -> Operation[Literal["missing", "gone", "full", "requested"]]:
    """Request that an event or a ping is posted to a webhook.

    An event that was not delivered yet is scheduled for delivery instead, after the events that precede it.

    Args:
        keys: Keys of the deployment.
        scope: Scope of the config, or None for any scope.
        task_id: Id of the task.
        config_id: Id of the config.
        post: Id of an event in the log, or of a ping.

    Returns:
        "requested" if the post was requested. "gone" if the log does not have the event. "full" if
        `MAX_REQUESTED_POSTS` requested posts wait. "missing" if `scope` has no such config.
    """
    event_id = post if isinstance(post, EventId) else EventId(0)
    return _request_post(keys, scope, task_id, config_id, str(post), *event_id, uuid4().hex)


@verb
def _request_post(
    keys: Keys,
    scope: AnyScope,
    task_id: TaskId,
    config_id: Quoted,
    post: str,
    version: int,
    recorded_us: Digits,
    nonce: str,
) -> Reply[Any]:
    """`version` and `recorded_us` identify the event, and are 0 for a ping."""
    return Reply(_word)


def acquire_requested_posts(
    keys: Keys, *, limit: int, lease_us: int
) -> Operation[list[tuple[DeliveryCursor, list[str]]]]:
    """Lease up to `limit` cursors with requested posts, each for `lease_us`.

    Returns:
        The cursors, each with the ids of its requested posts.
    """
    return _acquire_requested_posts(keys, names.requested_posts(keys), limit, lease_us)


@verb
def _acquire_requested_posts(
    keys: Keys, requested_posts: Key, limit: int, lease_us: int
) -> Reply[list[tuple[DeliveryCursor, list[str]]]]:
    def parse(reply: Sequence[Sequence[bytes]]) -> list[tuple[DeliveryCursor, list[str]]]:
        return [(_cursor(fields, ""), posts.decode().split()) for posts, *fields in reply]

    return Reply(parse)


def settle_requested_post(
    keys: Keys, cursor: DeliveryCursor, post: str, attempt: Attempt | None, *, after_us: int
) -> Operation[list[str]]:
    """Record the attempt of a requested post, or postpone the post.

    Nothing changes if the post is no longer requested, or if the config was deleted or replaced.

    Args:
        keys: Keys of the deployment.
        cursor: Leased cursor.
        post: Id of the requested post.
        attempt: Attempt to record, or None to postpone the post.
        after_us: µs until the remaining requested posts of the cursor are due.

    Returns:
        The ids of the remaining requested posts.
    """
    return _settle_requested_post(keys, cursor.task_id, cursor.config_id, cursor.sealed, post, attempt, after_us)


@verb
def _settle_requested_post(
    keys: Keys,
    task_id: TaskId,
    config_id: Quoted,
    sealed: bytes,
    post: str,
    attempt: AttemptText | None,
    after_us: int,
) -> Reply[list[str]]:
    return Reply(lambda reply: reply.decode().split())


@verb
def read_delivery(keys: Keys, task_id: TaskId, config_id: Quoted, scope: AnyScope = None) -> Reply[Delivery | None]:
    """Read a delivery with its attempts.

    Args:
        keys: Keys of the deployment.
        task_id: Id of the task.
        config_id: Id of the config.
        scope: Scope of the config, or None for any scope.

    Returns:
        The delivery, or None if `scope` has no such config.
    """

    def parse(reply: Sequence[Any] | None) -> Delivery | None:
        if reply is None:
            return None
        now_us, summary, requested, attempts = reply
        return replace(
            _delivery(summary, int(now_us)),
            attempts=tuple(map(Attempt.parse, attempts)),
            requested=tuple(requested.decode().split()),
        )

    return Reply(parse)


def scan_deliveries(keys: Keys, *, dead: bool = False, cursor: int = 0) -> Operation[DeliveryPage]:
    """Read a page of the deliveries with undelivered events, or of the deliveries that were given up. A
    delivery may appear on several pages."""
    return _scan_deliveries(keys, names.dead_deliveries(keys) if dead else names.deliveries(keys), dead, cursor)


@verb
def _scan_deliveries(keys: Keys, cursors: Key, dead: bool, cursor: Digits) -> Reply[DeliveryPage]:
    def parse(reply: Sequence[Any]) -> DeliveryPage:
        following, now_us, *summaries = reply
        return DeliveryPage([_delivery(summary, int(now_us)) for summary in summaries], int(following) or None)

    return Reply(parse)


def deliveries(store: SyncStore, keys: Keys, *, dead: bool = False) -> Iterator[Delivery]:
    """Yield each delivery of `scan_deliveries` once, in no particular order.

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """
    pairs: set[tuple[str, str]] = set()
    cursor: int | None = 0
    while cursor is not None:
        page = store.run(scan_deliveries(keys, dead=dead, cursor=cursor))
        for delivery in page.deliveries:
            name = delivery.task_id, delivery.config_id
            if name not in pairs:
                pairs.add(name)
                yield delivery
        cursor = page.cursor


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
