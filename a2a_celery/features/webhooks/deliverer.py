"""At-least-once delivery of events to webhooks. The events of a config are delivered in order.

Each config has a delivery cursor in the log of its task. A watcher leases a cursor, posts the events after the cursor
one by one, and advances the cursor after each delivered event. Any number of watchers share the cursors. If a watcher
dies, its cursors are due again when their leases expire. An event that was posted but not recorded is posted again with
the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ...clock import SYSTEM_CLOCK, Clock
from ...crypto.sealing import NotSealedHere, Sealer
from ...errors import BlobsUnavailable, StoreUnavailable
from ...lifecycle import EventId, LogEntry
from ...lifecycle.client_events import client_event
from ...push import (
    Backoff,
    Deferred,
    Delivered,
    Gone,
    Poster,
    PostRefused,
    PostRequest,
    PostResult,
    Retry,
    Signer,
    Subscription,
    WebhookResponse,
    delivery_id,
)
from ...push.circuit_breaker import PERMIT_TIMEOUT
from ...push.poster import POST_TIMEOUT
from ...store import AsyncStore, Keys
from ...store.log.pages import read_log
from ...store.tasks.commands import read_task
from ...telemetry.logs import about
from ...telemetry.names import Action
from ...watcher.metrics import WatcherMetrics
from .deliveries import (
    Attempt,
    DeliveryCursor,
    FailureDetails,
    abandon_delivery,
    acquire_due_deliveries,
    postpone_delivery,
    reason_of,
    record_delivery,
)
from .instrumented_post import GONE, PostReport, make_instrumented_post

logger = logging.getLogger(__name__)

LEASE_BATCH = 100
LOG_PAGE_ENTRIES = 32
"""Maximum number of entries per read of a log. An entry that is read but not delivered is read again."""

LOG_PAGE_BYTES = 64 * 1024
"""Bytes after which a read of a log ends. A read returns at least one entry."""

LARGE_PARTS_UNAVAILABLE = "large parts of an event are unavailable"
NOT_EXPRESSIBLE = "the event is not expressible in JSON or in the protocol version of the subscriber"

UNREADABLE = Attempt("", "failed", reason="this service cannot read the event or the configuration")
"""Attempt that failed before the post, as the owner of the webhook sees it. Only operators see the cause."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Limits of the deliveries of a watcher.

    The deliveries of one owner reserve at most half of the memory, so that slow receivers of one owner do not delay the
    large deliveries of other owners. A larger delivery counts as half.

    Attributes:
        max_cursors: Maximum number of leased cursors, and therefore of posts in progress.
        max_reserved_bytes: Maximum memory, in bytes, that deliveries with large entries may reserve together.
        reservation_retry_interval: Seconds before the retry of a delivery that could not reserve memory, or that ended
            early to free its reservation.
    """

    max_cursors: int = 400
    max_reserved_bytes: int = 32 * 1024 * 1024
    reservation_retry_interval: float = 1.0


DELIVERY_LIMITS = DeliveryLimits()


def max_lease(lease_ttl: float) -> float:
    """Return the duration of a cursor's lease in seconds.

    If a watcher is killed, another watcher repeats the watcher's posts after this time. The lease covers the wait for a
    permit and the post itself, and is renewed with each event.
    """
    return PERMIT_TIMEOUT + POST_TIMEOUT + lease_ttl


class Deliverer:
    """Watcher role that leases the due cursors, and delivers the events of each cursor in a separate asyncio task.

    Attributes:
        deliveries: Deliveries in progress.
    """

    name = "deliverer"
    every = 0.2

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        sealer: Sealer,
        poster: Poster,
        secret_keys: Sequence[bytes],
        lease_ttl: float,
        backoff: Backoff | None = None,
        metrics: WatcherMetrics | None = None,
        clock: Clock = SYSTEM_CLOCK,
        private_key: Ed25519PrivateKey | None = None,
        limits: DeliveryLimits = DELIVERY_LIMITS,
    ) -> None:
        self.deliveries: set[asyncio.Task[None]] = set()
        self._limits = limits
        self._clock = clock
        self._metrics = metrics or WatcherMetrics()
        self._store = store
        self._keys = keys
        self._sealer = sealer
        self._poster = poster
        self._secret_keys = secret_keys
        self._private_keys = () if private_key is None else (private_key,)
        self._lease_us = _micros(max_lease(lease_ttl))
        self._backoff = backoff or Backoff()
        self._reserved_by_owner: Counter[str] = Counter()
        self._refused_reservations: Counter[str | None] = Counter()
        """Number of refused reservations by the owner whose share was reserved. The key is None if the whole memory was
        reserved."""
        self._leasing: asyncio.Task[int] | None = None
        self._store_clock_offset = 0.0  # seconds from this process's monotonic clock to the store's clock

    @property
    def reserved_bytes(self) -> int:
        return self._reserved_by_owner.total()

    async def tick(self) -> None:
        """Start all due deliveries. The `limits` bound the deliveries in progress.

        The cursors of a host that does not respond are deferred immediately, so a tick may lease any number of cursors.
        """
        while True:
            self._metrics.record_progress(self.name)
            while len(self.deliveries) >= self._limits.max_cursors:
                await asyncio.wait(self.deliveries, timeout=POST_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
                self._metrics.record_progress(self.name)
            limit = min(LEASE_BATCH, self._limits.max_cursors - len(self.deliveries))
            self._leasing = asyncio.create_task(self._lease(limit), name="a2a-deliveries")
            if await asyncio.shield(self._leasing) < limit:
                return

    async def _lease(self, limit: int) -> int:
        """Lease up to `limit` cursors and start their deliveries. Return the number of cursors.

        The caller shields the call from cancellation. Otherwise, the reply could be lost, and its cursors would not be
        due before their leases end.
        """
        cursors = await self._store.run(acquire_due_deliveries(self._keys, limit=limit, lease_us=self._lease_us))
        if cursors:
            self.synchronize(cursors[-1])
        for cursor in cursors:
            task = asyncio.create_task(self._deliver(cursor), name=f"a2a-delivery-{cursor.task_id}")
            self.deliveries.add(task)
            task.add_done_callback(self.deliveries.discard)
        return len(cursors)

    async def aclose(self) -> None:
        """Cancel the deliveries and release their cursors. Another watcher repeats the posts in progress."""
        if self._leasing is not None:
            await asyncio.wait({self._leasing})
        for task in self.deliveries:
            task.cancel()
        if self.deliveries:
            await asyncio.wait(self.deliveries)
        await self._poster.aclose()

    async def _deliver(self, cursor: DeliveryCursor) -> None:
        try:
            await self._deliver_if_readable(cursor)
        except asyncio.CancelledError:
            with suppress(StoreUnavailable):
                await self._store.run(postpone_delivery(self._keys, cursor, after_us=0, counts=False))
            raise
        except StoreUnavailable as e:
            logger.warning("%s: the store is unavailable, so the lease will expire: %s", _label(cursor), e)
        except Exception:
            logger.exception("%s: not delivered; the delivery is retried when its lease expires", _label(cursor))

    async def _deliver_if_readable(self, cursor: DeliveryCursor) -> None:
        try:
            config = self._sealer.open(cursor.sealed, cursor.task_id, cursor.config_id)
        except NotSealedHere as e:  # a gateway may have a newer key until this watcher restarts with it
            await self._retry(cursor, Retry(str(e)))
            return
        try:
            subscription = Subscription.from_bytes(config)
        except ValueError:
            await self._retry(cursor, Retry("this watcher cannot read the config"))
            return
        deferral = self._poster.deferral(subscription.config.url, owner=cursor.owner)
        if deferral is not None:
            await self._defer(cursor, deferral)
            return
        owner, max_bytes = cursor.owner, self._limits.max_reserved_bytes
        share = max_bytes // 2
        size = min(_bytes_to_read(cursor, subscription), share)
        is_over_share = self._reserved_by_owner[owner] + size > share
        if size and (is_over_share or self.reserved_bytes + size > max_bytes):
            self._refused_reservations[owner if is_over_share else None] += 1
            await self._postpone_for_reservation(cursor)
            return
        self._reserved_by_owner[owner] += size
        try:
            await self._deliver_entries(cursor, subscription, yields=size > 0)
        finally:
            self._reserved_by_owner[owner] -= size
            if not self._reserved_by_owner[owner]:
                del self._reserved_by_owner[owner]
                del self._refused_reservations[owner]

    def _refused_for(self, owner: str) -> int:
        """Return the number of refused reservations that a delivery of `owner` could have prevented."""
        return self._refused_reservations[owner] + self._refused_reservations[None]

    async def _deliver_entries(self, cursor: DeliveryCursor, subscription: Subscription, *, yields: bool) -> None:
        """Post the events after the cursor.

        With `yields`, the delivery ends after a post if another delivery could not reserve memory that this delivery
        has reserved.
        """
        position, refused_before = EventId(cursor.delivered), self._refused_for(cursor.owner)
        while True:
            operation = read_log(self._keys, cursor.task_id, position, limit=LOG_PAGE_ENTRIES, max_bytes=LOG_PAGE_BYTES)
            try:
                page = await self._store.run(operation)
            except BlobsUnavailable:  # the store works, so other deliveries continue
                await self._retry(cursor, Retry(LARGE_PARTS_UNAVAILABLE))
                return
            for entry in page.entries:
                try:
                    report = await self.post_event(cursor, subscription, entry)
                except BlobsUnavailable:  # of the whole task, which a subscriber of 0.3 receives
                    await self._retry(cursor, Retry(LARGE_PARTS_UNAVAILABLE))
                    return
                except ValueError:
                    failure = Attempt(str(entry.id), "failed", reason=NOT_EXPRESSIBLE)
                    await self._give_up(cursor, _failure_fields(NOT_EXPRESSIBLE, None), failure)
                    return
                if report is not None and not isinstance(report.result, Delivered):
                    await self._handle_failure(cursor, report.result, report.attempt)
                    return
                position = entry.id
                if report is None and entry is not page.entries[-1]:
                    continue
                attempt = report.attempt if report is not None else None
                recording = record_delivery(
                    self._keys, cursor, position, lease_us=self._lease_us, posted=report is not None, attempt=attempt
                )
                if await self._store.run(recording) != "more":
                    return
                if report is not None:
                    cursor = replace(cursor, delivered=position.version, failures=0, failing_for=0.0)
                    if yields and self._refused_for(cursor.owner) > refused_before:
                        await self._postpone_for_reservation(cursor)
                        return
            if not page.entries:
                return

    def synchronize(self, cursor: DeliveryCursor) -> None:
        """Update the offset of the store's clock from a cursor that was just leased."""
        self._store_clock_offset = cursor.leased_at - self._clock.monotonic()

    async def post_ping(self, cursor: DeliveryCursor, subscription: Subscription, ping_id: str) -> PostReport:
        """Post a test ping to the webhook of `cursor`."""
        config = subscription.config
        request = PostRequest.ping(
            config,
            delivery_id=delivery_id(cursor.task_id, cursor.config_id, ping_id),
            now=self._clock.monotonic() + self._store_clock_offset,
            signer=Signer.of(config, self._secret_keys, self._private_keys),
        )
        return await make_instrumented_post(self._poster, request, cursor, self._metrics, ping_id)

    async def post_event(
        self, cursor: DeliveryCursor, subscription: Subscription, entry: LogEntry
    ) -> PostReport | None:
        """Post the event of `entry`. Return None if the subscription does not include the event, or if the subscriber
        needs the whole task and the task no longer exists.

        Raises:
            BlobsUnavailable: The subscriber needs the whole task, and large parts of the task are unavailable.
            ValueError: The event is not expressible in JSON or in the protocol version of the subscriber.
        """
        event = client_event(entry, cursor.task_id, cursor.context_id)
        if event is None or not subscription.includes(event):
            return None
        if subscription.protocol != "1.0":
            snapshot = await self._store.run(read_task(self._keys, None, cursor.task_id))  # 0.3 needs the whole task
            if snapshot is None:
                return None
            event = snapshot[0]
        config = subscription.config
        request = PostRequest.build(
            event,
            config,
            delivery_id=delivery_id(cursor.task_id, cursor.config_id, entry.id),
            now=self._clock.monotonic() + self._store_clock_offset,
            signer=Signer.of(config, self._secret_keys, self._private_keys),
            protocol=subscription.protocol,
        )
        return await make_instrumented_post(self._poster, request, cursor, self._metrics, str(entry.id))

    async def _handle_failure(self, cursor: DeliveryCursor, result: PostResult, attempt: Attempt | None) -> None:
        match result:
            case Deferred():
                await self._defer(cursor, result)
            case Gone(response):
                await self._give_up(cursor, _failure_fields(GONE, response), attempt)
            case Retry():
                await self._retry(cursor, result, attempt)
            case PostRefused(reason, address):
                await self._retry(cursor, Retry(reason, address=address), attempt)

    async def _defer(self, cursor: DeliveryCursor, deferral: Deferred) -> None:
        """Release the cursor until the post may be retried.

        The time for which a cursor waits for an unavailable host counts toward the time after which its delivery is
        given up, although most cursors never probe the host. All deliveries to the host are therefore given up
        eventually.
        """
        if deferral.is_host_unavailable and cursor.failing_for >= self._backoff.give_up_after:
            await self._give_up(cursor, _failure_fields(deferral.reason, None))
            return
        logger.debug("%s: deferred for %.1f s: %s", _label(cursor), deferral.retry_in, deferral.reason)
        is_shown = deferral.is_host_unavailable and not cursor.failures
        details = _failure_fields(deferral.reason, None) if is_shown else None
        counts: Literal[False, "age"] = "age" if deferral.is_host_unavailable else False
        after_us = _micros(deferral.retry_in)
        await self._store.run(postpone_delivery(self._keys, cursor, after_us=after_us, counts=counts, failure=details))

    async def _postpone_for_reservation(self, cursor: DeliveryCursor) -> None:
        after_us = _micros(self._limits.reservation_retry_interval)
        await self._store.run(postpone_delivery(self._keys, cursor, after_us=after_us, counts=False))

    async def _retry(self, cursor: DeliveryCursor, failure: Retry, attempt: Attempt | None = None) -> None:
        attempt = attempt or UNREADABLE
        details = _failure_fields(failure.reason, failure.response, failure.address)
        failures = cursor.failures + 1
        delay = self._backoff.delay(failures, cursor.failing_for, failure.retry_after)
        if delay is None:
            await self._give_up(cursor, details, attempt)
            return
        logger.info(
            "%s: attempt %d failed: %s; retrying in %.1f s",
            *(_label(cursor), failures, reason_of(details), delay),
            extra=_log_fields(Action.DELIVERY_FAILED, cursor, failures=failures),
        )
        operation = postpone_delivery(
            self._keys, cursor, after_us=_micros(delay), counts=True, failure=details, attempt=attempt
        )
        await self._store.run(operation)

    async def _give_up(self, cursor: DeliveryCursor, details: FailureDetails, attempt: Attempt | None = None) -> None:
        if await self._store.run(abandon_delivery(self._keys, cursor, failure=details, attempt=attempt)):
            logger.warning(
                "%s: given up after event %d: %s; a2a deliveries replay %s %s posts the missed events",
                *(_label(cursor), cursor.delivered, reason_of(details)),
                *(quote(cursor.task_id), quote(cursor.config_id)),
                extra=_log_fields(Action.DELIVERY_GIVEN_UP, cursor),
            )


def _bytes_to_read(cursor: DeliveryCursor, subscription: Subscription) -> int:
    """Return the maximum memory of a delivery in bytes, or 0 if the delivery needs no reservation."""
    page = min(LOG_PAGE_ENTRIES * cursor.largest, LOG_PAGE_BYTES + cursor.largest)
    task = 0 if subscription.protocol == "1.0" else cursor.size
    return page + task if page + task > LOG_PAGE_BYTES else 0


def _failure_fields(reason: str, response: WebhookResponse | None, address: str = "") -> FailureDetails:
    """Return the details of a failure that are stored for operators."""
    details: dict[str, str | int] = {"reason": reason}
    if response is not None:
        details |= {"status": response.status, "answer": response.text}
    return details | ({"address": address} if address else {})


def _log_fields(action: Action, cursor: DeliveryCursor, failures: int | None = None) -> dict[str, Any]:
    return about(action, task=cursor.task_id, agent=cursor.agent, webhook=cursor.config_id, failures=failures)


def _label(cursor: DeliveryCursor) -> str:
    return f"webhook {cursor.config_id} of task {cursor.task_id}"


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)
