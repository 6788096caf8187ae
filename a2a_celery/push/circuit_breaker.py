"""Permits for posts, and the retry schedule. Each host has a circuit breaker, and hosts, owners and the watcher have
limits of concurrent posts.

During a cooldown, posts to a host that does not respond are deferred. After the cooldown, one post probes the host, and
all other posts are still deferred. Ten thousand deliveries to an unavailable host therefore do not delay a delivery to
another host. Any HTTP response counts as a response of the host, because a 500 for one path says nothing about other
paths.

A quarter of the permits of the watcher, and of each owner, is reserved for hosts that responded to the last post.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..clock import SYSTEM_CLOCK, Clock

MAX_POSTS_PER_HOST = 8
MAX_POSTS_PER_OWNER = 64
MAX_POSTS = 256
FAILURE_THRESHOLD = 5
FIRST_COOLDOWN = 5.0
MAX_COOLDOWN = 300.0
RESERVED_DIVISOR = 4
"""A limit divided by this number is the number of permits reserved for hosts that responded to the last post."""
MAX_HOSTS = 10_000
BUSY_RETRY_INTERVAL = 1.0
"""Minimum delay, in seconds, before a post that exceeds a limit is retried. The maximum delay is twice as long."""
PROBE_RETRY_INTERVAL = 5.0
"""Minimum delay, in seconds, before a post to a host that is being probed is retried. A probe may take as long as the
timeout of a post."""
PERMIT_TIMEOUT = 1.0
"""Seconds for which a post waits for a permit of a busy host, so that posts to a fast host are not deferred."""
MAX_WAITERS = 2 * MAX_POSTS_PER_HOST
"""Maximum number of posts that wait in memory for a host. Further posts are deferred."""
HOST_IS_BUSY = "the limit of concurrent posts to the host is reached"
MAX_RETRIES_PER_SECOND = 100
"""Maximum number of deferred posts of a host, and of an owner, that are retried per second. The delay grows with the
number of posts, so that deferred posts do not occupy the store."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """Result of a post that was not sent and does not count as an attempt.

    Attributes:
        retry_in: Seconds, with jitter, after which the caller retries the post.
        reason: Reason for operators.
        is_host_unavailable: True if the host does not respond. False if a limit is reached.
    """

    retry_in: float
    reason: str
    is_host_unavailable: bool = False


class _Posts:
    """Posts of one owner or to one host.

    Attributes:
        count: Number of posts in progress. For a host, including posts that wait for a permit.
        next_retry: Earliest time at which one more deferred post may be retried.
    """

    __slots__ = ("count", "next_retry")

    def __init__(self) -> None:
        self.count = 0
        self.next_retry = 0.0


class _Host(_Posts):
    """Posts to one host, and its circuit."""

    __slots__ = ("cooldown", "cooldown_until", "failures", "has_responded", "is_probed", "permits")

    def __init__(self, permits: int) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(permits)
        self.has_responded = False  # to the last post
        self.failures = 0  # consecutive
        self.cooldown = 0.0  # duration of the last cooldown, or 0 if the host responds
        self.cooldown_until = 0.0
        self.is_probed = False


class CircuitBreaker:
    """Issuer of permits for posts, with one circuit for each host. Not thread-safe.

    A circuit opens after `failure_threshold` consecutive posts without a response. After a cooldown, one post probes
    the host. If the host responds, the circuit closes. Otherwise, the next cooldown starts, which is twice as long. A
    random part of each cooldown, up to half, is subtracted.

    Args:
        max_per_host: Maximum number of posts to a host in progress.
        max_per_owner: Maximum number of posts of an owner in progress.
        max_posts: Maximum number of posts in progress.
        failure_threshold: Number of consecutive posts without a response that opens a circuit.
        first_cooldown: Duration of the first cooldown in seconds.
        max_cooldown: Maximum duration of a cooldown in seconds.
        max_hosts: Maximum number of idle hosts whose state is stored. Beyond this number, the host that has been idle
            for longest is forgotten.
        clock: Source of time.
        random: Function that returns a random number from 0 up to 1.
    """

    def __init__(
        self,
        *,
        max_per_host: int = MAX_POSTS_PER_HOST,
        max_per_owner: int = MAX_POSTS_PER_OWNER,
        max_posts: int = MAX_POSTS,
        failure_threshold: int = FAILURE_THRESHOLD,
        first_cooldown: float = FIRST_COOLDOWN,
        max_cooldown: float = MAX_COOLDOWN,
        max_hosts: int = MAX_HOSTS,
        clock: Clock = SYSTEM_CLOCK,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._max_per_host = max_per_host
        self._max_per_owner = max_per_owner
        self._max_posts = max_posts
        self._failure_threshold = failure_threshold
        self._first_cooldown = first_cooldown
        self._max_cooldown = max_cooldown
        self._max_hosts = max_hosts
        self._clock = clock
        self._random = random
        self.in_flight = 0
        """Number of posts in progress."""
        self._hosts: dict[str, _Host] = {}  # hosts with posts
        self._idle_hosts: OrderedDict[str, _Host] = OrderedDict()  # known hosts without posts, oldest first
        self._owners: dict[str, _Posts] = {}  # owners with posts

    @property
    def host_count(self) -> int:
        """Number of hosts whose state is stored."""
        return len(self._hosts) + len(self._idle_hosts)

    def deferral(self, name: str, *, owner: str = "", can_wait: bool = True) -> Deferred | None:
        """Check whether `acquire` would defer a post immediately. The caller must retry a deferred post.

        Args:
            name: Host and port.
            owner: Owner of the post.
            can_wait: True if the post may wait for a permit of a busy host.
        """
        host = self._find(name)
        deferral = self._deferral(host, owner)
        if deferral is None and host.count >= self._max_per_host + (MAX_WAITERS if can_wait else 0):
            deferral = self._defer_busy(host, HOST_IS_BUSY)
        return deferral

    async def acquire(self, name: str, timeout: float = 0.0, *, owner: str = "") -> Permit | Deferred:
        """Return a permit for a post of `owner` to the host `name`, or a Deferred if the post must be deferred.

        The caller must release the permit. If all permits of the host are in use, the call waits up to `timeout`
        seconds.
        """
        deferral = self.deferral(name, owner=owner, can_wait=timeout > 0)
        if deferral is not None:
            return deferral
        host = self._enter(name)
        try:
            async with self._clock.timeout(timeout):
                await host.permits.acquire()
        except TimeoutError:
            self._leave(name, host)
            return self._defer_busy(host, HOST_IS_BUSY)
        except asyncio.CancelledError:
            self._leave(name, host)
            raise
        deferral = self._deferral(host, owner)  # the state may have changed during the wait
        if deferral is not None:
            host.permits.release()
            self._leave(name, host)
            return deferral
        self.in_flight += 1
        self._owners.setdefault(owner, _Posts()).count += 1
        host.is_probed = is_probe = host.cooldown > 0
        return Permit(self, host, name, owner, is_probe)

    def _deferral(self, host: _Host, owner: str) -> Deferred | None:
        """Return a Deferred if the circuit of `host` is open, or if a limit of the owner or the watcher is reached."""
        if host.cooldown:
            remaining = host.cooldown_until - self._clock.monotonic()
            if remaining > 0:
                # spread over one more cooldown, so that a recovering host does not receive all posts at once
                retry_in = remaining + self._random() * host.cooldown
                reason = "the host does not respond: its cooldown has not ended"
                return self._defer(host, retry_in, reason, is_unavailable=True)
            if host.is_probed:
                retry_in = self._add_jitter(PROBE_RETRY_INTERVAL)
                return self._defer(host, retry_in, "the host did not respond and is being probed", is_unavailable=True)
        posts = self._owners.get(owner)
        if posts is not None and posts.count >= _available(self._max_per_owner, host):
            return self._defer_busy(posts, "the owner of the webhook has reached its limit of concurrent posts")
        if self.in_flight >= _available(self._max_posts, host):
            return Deferred(self._add_jitter(BUSY_RETRY_INTERVAL), "too many posts are in progress")
        return None

    def _release(self, permit: Permit, has_responded: bool | None) -> None:
        host, posts = permit.host, self._owners[permit.owner]
        self.in_flight -= 1
        posts.count -= 1
        if not posts.count:
            del self._owners[permit.owner]
        if permit.is_probe:
            host.is_probed = False
        if has_responded is not None:
            host.has_responded = has_responded
        if has_responded:
            host.failures, host.cooldown = 0, 0.0
        elif has_responded is False:
            host.failures += 1
            # during a cooldown, ignore the failures of posts that were already in flight
            if permit.is_probe if host.cooldown else host.failures >= self._failure_threshold:
                self._start_cooldown(host)
        host.permits.release()
        self._leave(permit.name, host)

    def _start_cooldown(self, host: _Host) -> None:
        host.cooldown = min(self._max_cooldown, host.cooldown * 2) or self._first_cooldown
        host.cooldown_until = self._clock.monotonic() + host.cooldown * (0.5 + self._random() / 2)

    def _find(self, name: str) -> _Host:
        return self._hosts.get(name) or self._idle_hosts.get(name) or _Host(self._max_per_host)

    def _enter(self, name: str) -> _Host:
        """Count a post to the host `name`, which waits for a permit or has one."""
        host = self._hosts[name] = self._find(name)
        self._idle_hosts.pop(name, None)
        host.count += 1
        return host

    def _leave(self, name: str, host: _Host) -> None:
        """End the count of a post. Store the state of a host without posts, unless nothing is known about the host."""
        host.count -= 1
        if host.count:
            return
        del self._hosts[name]
        if host.has_responded or host.failures or host.cooldown:
            self._idle_hosts[name] = host
            if len(self._idle_hosts) > self._max_hosts:
                self._idle_hosts.popitem(last=False)

    def _defer_busy(self, posts: _Posts, reason: str) -> Deferred:
        return self._defer(posts, self._add_jitter(BUSY_RETRY_INTERVAL), reason)

    def _defer(self, posts: _Posts, retry_in: float, reason: str, *, is_unavailable: bool = False) -> Deferred:
        now = self._clock.monotonic()
        posts.next_retry = max(posts.next_retry, now) + 1 / MAX_RETRIES_PER_SECOND
        return Deferred(max(retry_in, posts.next_retry - now), reason, is_unavailable)

    def _add_jitter(self, seconds: float) -> float:
        return seconds * (1 + self._random())


@dataclass(frozen=True, slots=True, eq=False)
class Permit:
    """Permit for one post to the host `name`. `name` includes the port."""

    _circuit_breaker: CircuitBreaker
    host: _Host
    name: str
    owner: str
    is_probe: bool
    """True if the post probes a host after a cooldown."""

    def release(self, has_responded: bool | None) -> None:
        """Release the permit.

        Args:
            has_responded: True if the host sent an HTTP response, False if the host sent none, or None if no request
                was sent.
        """
        self._circuit_breaker._release(self, has_responded)


def _available(limit: int, host: _Host) -> int:
    """Return the part of `limit` that posts to `host` may use."""
    return limit if host.has_responded else limit - limit // RESERVED_DIVISOR


HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: a random delay, below a limit that doubles with each failure.

    All times are in seconds. With the default values, a delivery that always fails is posted about 28 times in a day.
    """

    first: float = 1.0
    """Limit after the first failure."""

    longest: float = 3 * HOUR
    """Maximum of the limit, and of the Retry-After values that are honored."""

    give_up_after: float = DAY
    """Maximum age of a delivery. The last post is sent at this age."""

    random: Callable[[], float] = random.random
    """Function that returns a number from 0 up to 1."""

    def delay(self, failures: int, age: float, retry_after: float | None = None) -> float | None:
        """Return the seconds until the next post of a failed delivery, or None to give up.

        Args:
            failures: Consecutive failures, at least 1.
            age: Seconds since the delivery was first due.
            retry_after: Retry-After of the receiver in seconds, or None. The delay exceeds Retry-After, because other
                deliveries may have received the same value.
        """
        remaining = self.give_up_after - age
        if remaining <= 0:
            return None
        limit = min(self.longest, self.first * 2.0 ** min(max(failures, 1) - 1, 60))
        delay = self.random() * limit
        if retry_after is not None and retry_after > 0:
            minimum = min(retry_after, self.longest)
            delay = max(delay, minimum + self.random() * min(minimum / 10, 60.0))
        return min(delay, remaining)
