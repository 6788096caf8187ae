"""The verbs about delivery lines: what is owed to push-notification configs, for deliverers and for operators.

A line is a task's log on its way to one of the task's configs: the log is the queue, and the line a place in it. Every
script that writes an event makes the lines of its task due. A deliverer takes lines, reads on in each one's log
(`read_log` behind `delivered`), and says after each event what became of it. It has a line in hand until it gives it
back, or another takes it when its lease is over; whatever it says later is not believed.
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
"""Requested posts of one config that may wait. One more is refused."""

LONGEST_REASON = 200
"""Characters of an attempt's reason that are kept."""

FailureDetails = Mapping[str, str | int]
"""What an operator is told of a failure: reason, and status and answer of the receiver, if there was one."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to post to a webhook, as the owner of its config reads it.

    It holds nothing of a body, an address or a secret. The store sets the two times.

    Attributes:
        post: id of what was posted: an event's id, or a ping's (`PING`). "" if nothing could be read.
        outcome: "delivered", "failed", "gone" or "refused".
        status: HTTP status of the receiver, or None if it gave none.
        latency_ms: duration of the post, or None if there was none, or if it says too much of the network.
        reason: a sentence on the failure; "" for none.
        at_us: end of the attempt, in µs since 1970.
        next_us: time of the next try, in µs since 1970; 0 if none follows.
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
        fields = [self.post, self.outcome, self.status, self.latency_ms, self.reason[:LONGEST_REASON]]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, stored: bytes) -> Attempt:
        """Return the attempt that ``record_attempt`` in scripts/lib wrote."""
        at_us, next_us, text = stored.decode().split(" ", 2)
        post, outcome, status, latency_ms, reason = json.loads(text)
        return cls(post, outcome, status, latency_ms, reason, int(at_us), int(next_us))


PING = "ping-"
"""Beginning of the id of a ping. The ids of events begin with a digit."""


@dataclass(frozen=True, slots=True)
class DeliveryCursor:
    """A line in hand, with its config as it was sealed. Events behind version `delivered` are owed to it; `version` was
    the log's last. Since one was delivered it failed `failures` times, the first time `failing_for` seconds ago."""

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
    """W3C traceparent of the task's newest turn, "" for none."""

    leased_at: float = field(default=0.0, compare=False)
    """Time of the store when the line was leased, in seconds since 1970."""

    largest: int = 0
    """Bytes of the largest entry of the task's log."""

    size: int = 0
    """Bytes of the task."""

    owner: str = ""
    """The owner of the task, as its limits are counted: see `Scope.account`."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a line stands. Times are the store's, in µs; 0: there is none. `now_us` is when this was read."""

    task_id: str
    config_id: str
    agent: str
    context_id: str
    delivered: int
    version: int
    """The log's last."""

    is_leased: bool
    """A deliverer has it, until `due_us`."""

    failures: int
    """Since an event was delivered."""

    first_failed_us: int
    due_us: int
    failure: FailureDetails
    """Of the newest failure since an event was delivered; empty for none."""

    failure_us: int
    died_us: int
    """When it was given up."""

    now_us: int = field(compare=False)
    attempts: tuple[Attempt, ...] = ()
    """The newest attempts, the newest first; only where one delivery is read."""

    requested: tuple[str, ...] = ()
    """Ids of the posts that the owner requested and that are not made yet; only where one delivery is read."""

    @property
    def state(self) -> Literal["dead", "failing", "waiting", "delivered"]:
        """What a list of deliveries calls it."""
        if self.died_us:
            return "dead"
        if self.delivered >= self.version:
            return "delivered"
        return "failing" if self.failures else "waiting"


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Some of a list, and the cursor of what follows; None: that was all."""

    rows: list[Delivery]
    cursor: int | None


@dataclass(frozen=True, slots=True)
class DeliveryMetrics:
    """How many lines there are: `waiting` for an event or for its next post, `dead`: given up. And how often a post was
    `delivered`, has `failed`, and ended its line (`given_up`), since there is a store."""

    waiting: int
    dead: int
    delivered: int
    failed: int
    given_up: int


def delivery_metrics(keys: Keys) -> Operation[DeliveryMetrics]:
    """The metrics of all deliveries."""

    def parse(answer: Sequence[Any]) -> DeliveryMetrics:
        waiting, dead, *rest = answer
        counts = {name.decode(): int(times) for name, times in zip(rest[::2], rest[1::2], strict=True)}
        posts = (counts.get(name, 0) for name in ("delivered", "failed", "given_up"))
        return DeliveryMetrics(int(waiting), int(dead), *posts)

    return Operation(script("delivery_metrics"), [keys.deliveries, keys.dead_deliveries], [], parse)


def acquire_due_deliveries(keys: Keys, *, limit: int, lease_us: int) -> Operation[list[DeliveryCursor]]:
    """Up to `limit` lines that are due, in hand for `lease_us` each; nobody else gets them meanwhile.

    Those of an answer that is lost are due again after the lease.
    """
    token = uuid4().hex

    def parse(answer: Sequence[Sequence[bytes]]) -> list[DeliveryCursor]:
        return [_line(row, token) for row in answer]

    return Operation(script("acquire_due_deliveries"), [keys.deliveries], [keys.prefix, limit, lease_us, token], parse)


def acquire_bytes(keys: Keys, owner: str, host: str, size: int, *, per_hour: int) -> Operation[float]:
    """Take `size` bytes of what may be posted for `owner` to `host`; gives 0, or the seconds until there are some.

    A post is not refused for its own size, so the last one may take more than was left; the next waits longer then. A
    call that is repeated because its connection broke takes twice.
    """
    return Operation(
        script("acquire_bytes"),
        [keys.posted(owner, host)],
        [HOUR_US, per_hour, size],
        lambda answer: int(answer) / 1e6,
    )


def record_delivery(
    keys: Keys,
    line: DeliveryCursor,
    event_id: EventId,
    *,
    lease_us: int,
    posted: bool = True,
    attempt: Attempt | None = None,
) -> Operation[Literal["more", "done", "lost"]]:
    """The line's events up to `event_id` were delivered; its failures are forgotten. Not `posted`: nobody wants them.

    "more": it stays in hand for another `lease_us`, for more is owed to it; "done": nothing is, so it was given back;
    "lost": it is another's, or its config was deleted or replaced, or its task is gone, or the store has lost the
    event: then the line is due at once, from the place that the store knows. With the event that it is at already, and
    not `posted`, this prolongs the lease, and tells whether the line is still ours.
    """
    version, recorded_us = event_id
    arguments: list[Argument] = [version, lease_us, int(posted), recorded_us or "", _stored(attempt)]
    return _settle("record_delivery", keys, line, arguments, _word)


def postpone_delivery(
    keys: Keys,
    line: DeliveryCursor,
    *,
    after_us: int,
    counts: bool | Literal["age"],
    failure: FailureDetails | None = None,
    attempt: Attempt | None = None,
) -> Operation[bool]:
    """Gives the line back, due in `after_us`; `counts`: as a failure. A deliverer that stops gives it back with 0.

    "age": nothing was posted, so nothing has failed, but `failing_for` counts from now on, if it does not yet. `said`
    is kept for operators. False: the line was not ours any more.
    """
    as_failure = counts if counts == "age" else int(counts)
    arguments: list[Argument] = [after_us, as_failure, json.dumps(failure) if failure else "", _stored(attempt)]
    return _settle("postpone_delivery", keys, line, arguments, bool)


def abandon_delivery(
    keys: Keys, line: DeliveryCursor, *, failure: FailureDetails, attempt: Attempt | None = None
) -> Operation[bool]:
    """Gives the line up: nothing is delivered to it until it is replayed or its config replaced. It keeps its place.

    `said` is kept for operators. False: the line was not ours any more.
    """
    return _settle("abandon_delivery", keys, line, [json.dumps(failure), _stored(attempt)], bool)


def replay_delivery(
    keys: Keys, task_id: str, config_id: str, scope: Scope | None = None
) -> Operation[Literal["missing", "replayed", "alive"]]:
    """Make the events that a line failed to deliver due at once, from its place, also after it was given up.

    "alive": nothing failed, or a deliverer posts to it now. "missing": no such config in `scope` (None: in any).
    """
    arguments = [_scope(scope), quoted(config_id), uuid4().hex]
    return Operation(script("replay_delivery"), keys.task(task_id), arguments, _word)


def request_post(
    keys: Keys, scope: Scope | None, task_id: str, config_id: str, post: EventId | str
) -> Operation[Literal["missing", "gone", "full", "requested"]]:
    """Request a post to a webhook: of an event that it got before, or of the ping with the id `post`.

    An event that is still owed to the webhook is due at once instead, after those before it. "gone": the log does not
    have the event. "full": `MAX_REQUESTED_POSTS` wait. "missing": no such config in `scope` (None: in any).
    """
    version, recorded_us = post if isinstance(post, EventId) else EventId(0)
    arguments: list[Argument] = [_scope(scope), quoted(config_id), str(post), MAX_REQUESTED_POSTS]
    arguments += [version, recorded_us, uuid4().hex]
    return Operation(script("request_post"), keys.task(task_id), arguments, _word)


def acquire_requested_posts(
    keys: Keys, *, limit: int, lease_us: int
) -> Operation[list[tuple[DeliveryCursor, list[str]]]]:
    """Take up to `limit` lines with requested posts, for `lease_us` each; return them with the ids of their posts."""

    def parse(answer: Sequence[Sequence[bytes]]) -> list[tuple[DeliveryCursor, list[str]]]:
        return [(_line(row[1:], ""), row[0].decode().split()) for row in answer]

    return Operation(script("acquire_requested_posts"), [keys.requested_posts], [keys.prefix, limit, lease_us], parse)


def settle_requested_post(
    keys: Keys, line: DeliveryCursor, post: str, attempt: Attempt | None, *, after_us: int
) -> Operation[None]:
    """Record the attempt of a requested post, which is not made again. Without an attempt it waits for `after_us`.

    If further posts wait, the line is due in `after_us`. Nothing changes if the post was made already.
    """
    arguments: list[Argument] = [quoted(line.config_id), post, _stored(attempt), after_us]
    return Operation(script("settle_requested_post"), keys.task(line.task_id), arguments, lambda _: None)


def read_delivery(keys: Keys, task_id: str, config_id: str, scope: Scope | None = None) -> Operation[Delivery | None]:
    """Return how the line of that config stands, with its attempts; None if there is none in `scope` (None: in any)."""

    def parse(answer: Sequence[Any] | None) -> Delivery | None:
        if answer is None:
            return None
        now_us, row, requested, attempts = answer
        found = _delivery(row, int(now_us))
        return replace(found, attempts=tuple(map(Attempt.parse, attempts)), requested=tuple(requested.decode().split()))

    return Operation(script("read_delivery"), keys.task(task_id), [_scope(scope), quoted(config_id)], parse)


def scan_deliveries(keys: Keys, *, dead: bool = False, cursor: int = 0) -> Operation[DeliveryPage]:
    """A page of the lines to which something is owed; of those that were given up if `dead`. A row may come twice."""

    def parse(answer: Sequence[Any]) -> DeliveryPage:
        following, now_us, *rows = answer
        return DeliveryPage([_delivery(row, int(now_us)) for row in rows], int(following) or None)

    name = keys.dead_deliveries if dead else keys.deliveries
    return Operation(script("scan_deliveries"), [name], [keys.prefix, cursor, PAGE, int(not dead)], parse)


def deliveries(store: SyncStore, keys: Keys, *, dead: bool = False) -> Iterator[Delivery]:
    """All lines that `scan_deliveries` gives, each once, in no order.

    Raises:
        StoreUnavailable: Redis can't be reached, or refuses.
    """
    seen: set[tuple[str, str]] = set()
    cursor: int | None = 0
    while cursor is not None:
        page = store.run(scan_deliveries(keys, dead=dead, cursor=cursor))
        for row in page.rows:
            if (row.task_id, row.config_id) not in seen:
                seen.add((row.task_id, row.config_id))
                yield row
        cursor = page.cursor


def _settle(name: str, keys: Keys, line: DeliveryCursor, rest: list[Argument], parse: Any) -> Operation[Any]:
    arguments = [quoted(line.config_id), line.token, *rest]
    return Operation(script(name), keys.task(line.task_id), arguments, parse)


def _stored(attempt: Attempt | None) -> str:
    return attempt.to_json() if attempt is not None else ""


def _scope(scope: Scope | None) -> str:
    return "*" if scope is None else str(scope)


def _word(answer: bytes) -> Any:
    return answer.decode()


def _line(row: Sequence[bytes], token: str) -> DeliveryCursor:
    task_id, context_id, agent, config, sealed, delivered, version, failures, failing_us, trace, *numbers, owner = row
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


def _delivery(row: Sequence[bytes], now_us: int) -> Delivery:
    task_id, config, agent, context, delivered, version, held, failures, failed, due, failure, failure_at, died = (
        value.decode() for value in row
    )
    return Delivery(
        task_id,
        unquote(config),
        agent,
        context,
        int(delivered),
        int(version),
        held == "1",
        int(failures),
        int(failed or 0),
        int(float(due or 0)),
        json.loads(failure or "{}"),
        int(failure_at or 0),
        int(died or 0),
        now_us,
    )
