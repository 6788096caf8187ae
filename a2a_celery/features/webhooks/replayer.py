"""Posts that owners of webhooks request: replays of an event, and test pings.

Requested posts and due deliveries do not wait for each other. Each request causes one signed post, whose result is
recorded as an attempt. The request stays in the store until the result is recorded. If a watcher dies, another watcher
sends the requested posts with the same ids.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ...crypto.sealing import NotSealedHere, Sealer
from ...errors import BlobsUnavailable, StoreUnavailable
from ...lifecycle import EventId
from ...push import Deferred, Subscription
from ...store import AsyncStore, Keys
from ...store.log.pages import read_next_entry
from .deliverer import LOG_PAGE_BYTES, NOT_EXPRESSIBLE, UNREADABLE, Deliverer, max_lease
from .deliveries import PING, Attempt, DeliveryCursor, acquire_requested_posts, settle_requested_post
from .instrumented_post import PostReport

logger = logging.getLogger(__name__)

MAX_CURSORS = 16
"""Maximum number of leased cursors, each with one post in progress. Logs with large events are read one at a time.

At most half of the cursors belong to one owner, so that slow receivers of one owner do not delay other owners.
"""

SHARE_RETRY_INTERVAL = 1.0
"""Seconds after which the posts of an owner with too many leased cursors are due again."""

MAX_BATCHES = 8
"""Maximum number of batches of cursors in a tick. A further batch is acquired if posts were postponed."""


class Replayer:
    """Watcher role that leases cursors with requested posts, and sends the posts of each cursor in a separate asyncio
    task.

    Attributes:
        posts: Asyncio tasks that send posts, with the owners of their cursors.
    """

    name = "replayer"
    every = 1.0

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        sealer: Sealer,
        deliverer: Deliverer,
        lease_ttl: float,
        max_cursors: int = MAX_CURSORS,
    ) -> None:
        self.posts: dict[asyncio.Task[None], str] = {}
        self._max_cursors = max_cursors
        self._store = store
        self._keys = keys
        self._sealer = sealer
        self._deliverer = deliverer
        self._lease_us = int(max_lease(lease_ttl) * 1_000_000)
        self._large_log_lock = asyncio.Lock()

    async def tick(self) -> None:
        """Start the requested posts that are due, for at most `max_cursors` cursors at a time."""
        for _ in range(MAX_BATCHES):
            if not await self._start_batch():
                return

    async def _start_batch(self) -> bool:
        """Start a batch of the posts that are due. Return True if posts of an owner with too many leased cursors were
        postponed, so that posts of other owners may be due."""
        limit = self._max_cursors - len(self.posts)
        if not limit:
            return False
        has_postponed = False
        cursors = await self._store.run(acquire_requested_posts(self._keys, limit=limit, lease_us=self._lease_us))
        for cursor, post_ids in cursors:
            if list(self.posts.values()).count(cursor.owner) >= self._max_cursors // 2:
                has_postponed = True
                after_us = int(SHARE_RETRY_INTERVAL * 1_000_000)
                await self._store.run(settle_requested_post(self._keys, cursor, post_ids[0], None, after_us=after_us))
                continue
            self._deliverer.synchronize(cursor)
            task = asyncio.create_task(self._make_posts(cursor, post_ids), name=f"a2a-replay-{cursor.task_id}")
            self.posts[task] = cursor.owner
            task.add_done_callback(self.posts.pop)
        return has_postponed

    async def aclose(self) -> None:
        """Cancel the posts in progress. Another watcher sends them again."""
        for task in self.posts:
            task.cancel()
        if self.posts:
            await asyncio.wait(self.posts)

    async def _make_posts(self, cursor: DeliveryCursor, post_ids: list[str]) -> None:
        """Send the requested posts of a cursor in order, until a post is deferred or no requested post is left."""
        try:
            while post_ids:
                attempt, retry_in = await self._attempt(cursor, post_ids[0])
                after_us = int(retry_in * 1_000_000) if attempt is None else self._lease_us
                settlement = settle_requested_post(self._keys, cursor, post_ids[0], attempt, after_us=after_us)
                post_ids = await self._store.run(settlement)
                if attempt is None:
                    return
        except asyncio.CancelledError:
            with suppress(StoreUnavailable):
                await self._store.run(settle_requested_post(self._keys, cursor, post_ids[0], None, after_us=0))
            raise
        except StoreUnavailable as e:
            logger.warning("task %s: requested posts wait for the store: %s", cursor.task_id, e)
        except Exception:
            logger.exception("task %s: a requested post failed; it is retried when its lease expires", cursor.task_id)

    async def _attempt(self, cursor: DeliveryCursor, post_id: str) -> tuple[Attempt | None, float]:
        """Send a post. Return the attempt, or None and the seconds until the post may be retried."""
        try:
            config = self._sealer.open(cursor.sealed, cursor.task_id, cursor.config_id)
            report = await self._post(cursor, Subscription.from_bytes(config), post_id)
        except (NotSealedHere, BlobsUnavailable):
            return Attempt(post_id, UNREADABLE.outcome, reason=UNREADABLE.reason), 0
        except ValueError:
            return Attempt(post_id, "failed", reason=NOT_EXPRESSIBLE), 0
        if report is None:
            return Attempt(post_id, "failed", reason="the event is gone, or this webhook does not subscribe to it"), 0
        result = report.result
        if not isinstance(result, Deferred):
            return report.attempt, 0
        if result.is_host_unavailable:
            return Attempt(post_id, "failed", reason=result.reason), 0
        return None, result.retry_in

    async def _post(self, cursor: DeliveryCursor, subscription: Subscription, post_id: str) -> PostReport | None:
        """Send a post and return its report. Return None if the log does not have the event or the subscription does
        not include the event."""
        if post_id.startswith(PING):
            return await self._deliverer.post_ping(cursor, subscription, post_id)
        event_id = EventId.parse(post_id)
        if cursor.largest <= LOG_PAGE_BYTES:
            return await self._replay(cursor, subscription, event_id)
        async with self._large_log_lock:
            return await self._replay(cursor, subscription, event_id)

    async def _replay(self, cursor: DeliveryCursor, subscription: Subscription, event_id: EventId) -> PostReport | None:
        entry = await self._store.run(read_next_entry(self._keys, cursor.task_id, EventId(event_id.version - 1)))
        if entry is None or entry.id != event_id:
            return None
        return await self._deliverer.post_event(cursor, subscription, entry)
