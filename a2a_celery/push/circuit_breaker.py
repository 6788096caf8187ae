"""Permits for posts, and the retry schedule. Each host has a limit and a circuit breaker, and owners and networks have
fair shares of the permits.

During a cooldown, posts to a host that does not respond are deferred. After the cooldown, one post probes the host, and
all other posts are still deferred. Ten thousand deliveries to an unavailable host therefore do not delay a delivery to
another host. Any HTTP response counts as a response of the host, because a 500 for one path says nothing about other
paths.

An owner or a network (/24 or /64) receives a permit only if it holds fewer permits than are free. If `k` owners post as
much as possible, each owner has a share of 1/(k + 1). An equal share stays free for the next owner. A quarter of the
permits is reserved for hosts that responded to the last post.

Source: Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..clock import SYSTEM_CLOCK, Clock

MAX_POSTS_PER_HOST = 8
MAX_POSTS = 256
FAILURE_THRESHOLD = 5
FIRST_COOLDOWN = 5.0
MAX_COOLDOWN = 300.0
RESERVED_DIVISOR = 4
"""`max_posts` divided by this number is the number of permits reserved for hosts that responded to the last post."""
MAX_HOSTS = 10_000
BUSY_RETRY_INTERVAL = 1.0
"""Minimum delay, in seconds, before a post to a busy host is retried. The maximum delay is twice as long."""
PROBE_RETRY_INTERVAL = 5.0
"""Minimum delay, in seconds, before a post to a host that is being probed is retried. A probe may take as long as the
timeout of a post."""
PERMIT_TIMEOUT = 1.0
"""Seconds for which a post waits for a permit of a busy host, so that posts to a fast host are not deferred."""
MAX_WAITERS = 2 * MAX_POSTS_PER_HOST
"""Maximum number of posts that wait in memory for a host. Further posts are deferred."""
HOST_IS_BUSY = "the limit of concurrent posts to the host is reached"
MAX_RETRIES_PER_SECOND = 100
"""Maximum number of deferred posts per second that are retried for a host. The delay grows with the number of posts."""
MAX_SHARE_RETRIES_PER_SECOND = 2 * MAX_RETRIES_PER_SECOND
"""Maximum number of retries per second of all posts that were deferred because of their owner or network."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """Result of a post that was not sent and does not count as an attempt.

    Attributes:
        retry_in: Seconds, with jitter, after which the caller retries the post.
        reason: Reason for operators.
        is_host_unavailable: True if the host does not respond. False if the host is only busy.
        is_over_budget: True if the byte budget is exhausted. The wait does not count toward the age of the delivery.
    """

    retry_in: float
    reason: str
    is_host_unavailable: bool = False
    is_over_budget: bool = False


class _Host:
    """Circuit, posts in flight and waiters of one host."""

    __slots__ = (
        "cooldown", "cooldown_until", "failures", "has_responded", "in_flight", "is_probed", "network", "next_retry",
        "owner", "waiters",
    )  # fmt: skip

    def __init__(self) -> None:
        self.owner = ""  # owner of the last post
        self.network = ""  # "" until the name was looked up
        self.has_responded = False  # to the last post
        self.in_flight = 0
        self.failures = 0  # consecutive
        self.cooldown = 0.0  # duration of the last cooldown, or 0 if the host responds
        self.cooldown_until = 0.0
        self.is_probed = False
        self.next_retry = 0.0  # earliest time at which one more deferred post may be retried
        self.waiters: list[tuple[str, asyncio.Future[Permit | None]]] = []  # owners, and futures of permits


class _Share:
    """Posts in flight of one owner or to one network, and the time of the next retry."""

    __slots__ = ("in_flight", "next_retry")

    def __init__(self) -> None:
        self.in_flight = 0
        self.next_retry = 0.0


class CircuitBreaker:
    """Issuer of permits for posts, with one circuit for each host. Not thread-safe.

    A circuit opens after `failure_threshold` consecutive posts without a response. After a cooldown, one post probes
    the host. If the host responds, the circuit closes. Otherwise, the next cooldown starts, which is twice as long. A
    random part of each cooldown, up to half, is subtracted.

    Args:
        max_per_host: Maximum number of posts to a host in progress.
        max_posts: Maximum number of posts in progress.
        reserved: Number of permits that are reserved for hosts that responded to the last post, or None for a quarter
            of `max_posts`.
        failure_threshold: Number of consecutive posts without a response that opens a circuit.
        first_cooldown: Duration of the first cooldown in seconds.
        max_cooldown: Maximum duration of a cooldown in seconds.
        max_hosts: Maximum number of idle hosts whose state is stored. Beyond this number, the oldest idle host of the
            owner with the most idle hosts is removed.
        clock: Source of time.
        random: Function that returns a random number from 0 up to 1.
    """

    def __init__(
        self,
        *,
        max_per_host: int = MAX_POSTS_PER_HOST,
        max_posts: int = MAX_POSTS,
        reserved: int | None = None,
        failure_threshold: int = FAILURE_THRESHOLD,
        first_cooldown: float = FIRST_COOLDOWN,
        max_cooldown: float = MAX_COOLDOWN,
        max_hosts: int = MAX_HOSTS,
        clock: Clock = SYSTEM_CLOCK,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.max_posts = max_posts
        self._max_per_host = max_per_host
        self._failure_threshold = failure_threshold
        self._first_cooldown = first_cooldown
        self._max_cooldown = max_cooldown
        self._max_hosts = max_hosts
        self._clock = clock
        self._random = random
        self._reserved = max_posts // RESERVED_DIVISOR if reserved is None else reserved
        self._in_flight = 0
        self._hosts: dict[str, _Host] = {}
        self._idle: dict[str, OrderedDict[str, None]] = {}  # hosts without posts by owner, oldest first
        self._idle_count = 0
        self._owners: dict[str, _Share] = {}
        self._networks: dict[str, _Share] = {}

    @property
    def host_count(self) -> int:
        """Number of hosts whose state is stored."""
        return len(self._hosts)

    @property
    def free(self) -> int:
        """Number of free permits, including the reserved permits."""
        return self.max_posts - self._in_flight

    def deferral(self, name: str, *, owner: str = "", can_wait: bool = False) -> Deferred | None:
        """Check whether a post must be deferred. The caller must retry a deferred post.

        Args:
            name: Host and port.
            owner: Owner of the post.
            can_wait: True if the post may wait in `acquire` for a permit of a busy host.

        Returns:
            A Deferred, or None if the post need not be deferred.
        """
        host = self._hosts.get(name)
        if host is not None and host.cooldown:
            remaining = host.cooldown_until - self._clock.monotonic()
            if remaining > 0:
                # spread over one more cooldown, so that a recovering host does not receive all posts at once
                retry_in = remaining + self._random() * host.cooldown
                return self._defer(
                    host, retry_in, "the host does not respond: its cooldown has not ended", is_unavailable=True
                )
            if host.is_probed:
                retry_in = self._add_jitter(PROBE_RETRY_INTERVAL)
                return self._defer(host, retry_in, "the host did not respond and is being probed", is_unavailable=True)
        deferral = self._share_deferral(host, owner, host.network if host is not None else "")
        if deferral is not None or host is None:
            return deferral
        if host.in_flight >= self._max_per_host and not (can_wait and len(host.waiters) < MAX_WAITERS):
            return self._defer(host, self._add_jitter(BUSY_RETRY_INTERVAL), HOST_IS_BUSY)
        return None

    def try_acquire(self, name: str, *, owner: str = "") -> Permit | Deferred:
        """Return a permit for a post of `owner` to the host `name`, or a Deferred if the post must be deferred.

        The caller must release the permit.
        """
        deferral = self.deferral(name, owner=owner)
        if deferral is not None:
            return deferral
        host = self._hosts.get(name)
        is_probe = host is not None and host.cooldown > 0
        permit = self._grant(name, owner, is_probe=is_probe)
        self._hosts[name].is_probed |= is_probe
        return permit

    async def acquire(self, name: str, timeout: float, *, owner: str = "") -> Permit | Deferred:
        """Acquire a permit like `try_acquire`, but wait up to `timeout` seconds if all permits of the host are in
        use."""
        host = self._hosts.get(name)
        is_busy = host is not None and host.in_flight >= self._max_per_host and timeout > 0
        if host is None or not is_busy or self.deferral(name, owner=owner, can_wait=True) is not None:
            return self.try_acquire(name, owner=owner)
        grant: asyncio.Future[Permit | None] = asyncio.get_running_loop().create_future()
        host.waiters.append((owner, grant))
        try:
            async with self._clock.timeout(timeout):
                return await grant or self.try_acquire(name, owner=owner)
        except (TimeoutError, asyncio.CancelledError) as e:
            if (owner, grant) in host.waiters:
                host.waiters.remove((owner, grant))
            elif not grant.cancelled() and (permit := grant.result()) is not None:  # granted at the last moment
                permit.release(None)
            if isinstance(e, TimeoutError):
                return self._defer(host, self._add_jitter(BUSY_RETRY_INTERVAL), HOST_IS_BUSY)
            raise

    def _share_deferral(self, host: _Host | None, owner: str, network: str) -> Deferred | None:
        free = self._free_for(host)
        deferral = self._over_share(self._owners, owner, free, "owner")
        if deferral is None and network:
            deferral = self._over_share(self._networks, network, free, "network")
        if deferral is None and free <= 0:
            deferral = Deferred(self._add_jitter(BUSY_RETRY_INTERVAL), "too many posts are in progress")
        return deferral

    def _over_share(self, shares: dict[str, _Share], name: str, free: int, holder: str) -> Deferred | None:
        share = shares.get(name)
        if share is None or share.in_flight < free:
            return None
        reason = f"the {holder} of the webhook has reached its share of concurrent posts"
        rate = MAX_SHARE_RETRIES_PER_SECOND / len(shares)
        return self._pace(share, rate, self._add_jitter(BUSY_RETRY_INTERVAL), reason)

    def _free_for(self, host: _Host | None) -> int:
        return self.free - (0 if host is not None and host.has_responded else self._reserved)

    def _grant(self, name: str, owner: str, *, is_probe: bool) -> Permit:
        host = self._hosts.setdefault(name, _Host())
        self._forget_idle(name, host)
        host.owner = owner
        host.in_flight += 1
        self._in_flight += 1
        _count(self._owners, owner, 1)
        _count(self._networks, host.network, 1)
        return Permit(self, name, is_probe, owner, host.network)

    def _move_to_network(self, permit: Permit, network: str) -> Deferred | None:
        """Count the post toward the share of `network`, or return a Deferred if the network has used up its share."""
        if network == permit.network:
            return None
        host = self._hosts[permit.name]
        host.network = network
        deferral = self._over_share(self._networks, network, self._free_for(host), "network")
        if deferral is None:
            _count(self._networks, permit.network, -1)
            _count(self._networks, network, 1)
            permit.network = network
        return deferral

    def _release(self, permit: Permit, has_responded: bool | None) -> None:
        host = self._hosts[permit.name]
        host.in_flight -= 1
        self._in_flight -= 1
        _count(self._owners, permit.owner, -1)
        _count(self._networks, permit.network, -1)
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
        self._grant_next(permit.name, host)
        if host.in_flight:
            return
        if host.has_responded or host.failures or host.cooldown:
            self._remember_idle(permit.name, host)
        else:
            del self._hosts[permit.name]

    def _grant_next(self, name: str, host: _Host) -> None:
        """Grant the released permit to the first eligible waiter. End the waits of waiters that are not eligible."""
        while host.waiters:
            owner, grant = host.waiters.pop(0)
            if grant.done():
                continue
            if host.cooldown or self._share_deferral(host, owner, host.network) is not None:
                grant.set_result(None)
                continue
            grant.set_result(self._grant(name, owner, is_probe=False))
            return

    def _start_cooldown(self, host: _Host) -> None:
        host.cooldown = min(self._max_cooldown, host.cooldown * 2) or self._first_cooldown
        host.cooldown_until = self._clock.monotonic() + host.cooldown * (0.5 + self._random() / 2)

    def _remember_idle(self, name: str, host: _Host) -> None:
        """Store the state of an idle host. While there are more than `max_hosts` idle hosts, remove the oldest idle
        host of the owner with the most idle hosts."""
        self._idle.setdefault(host.owner, OrderedDict())[name] = None
        self._idle_count += 1
        while self._idle_count > self._max_hosts:
            largest = max(self._idle, key=lambda owner: len(self._idle[owner]))
            oldest = next(iter(self._idle[largest]))
            self._forget_idle(oldest, self._hosts[oldest])
            del self._hosts[oldest]

    def _forget_idle(self, name: str, host: _Host) -> None:
        names = self._idle.get(host.owner)
        if names is not None and name in names:
            del names[name]
            self._idle_count -= 1
            if not names:
                del self._idle[host.owner]

    def _defer(self, host: _Host, retry_in: float, reason: str, *, is_unavailable: bool = False) -> Deferred:
        return self._pace(host, MAX_RETRIES_PER_SECOND, retry_in, reason, is_unavailable=is_unavailable)

    def _pace(
        self, queue: _Host | _Share, rate: float, retry_in: float, reason: str, *, is_unavailable: bool = False
    ) -> Deferred:
        now = self._clock.monotonic()
        queue.next_retry = max(queue.next_retry, now) + 1 / rate
        return Deferred(max(retry_in, queue.next_retry - now), reason, is_unavailable)

    def _add_jitter(self, seconds: float) -> float:
        return seconds * (1 + self._random())


@dataclass(slots=True)
class Permit:
    """Permit for one post to the host `name`. `name` includes the port."""

    _circuit_breaker: CircuitBreaker
    name: str
    is_probe: bool
    """True if the post probes a host after a cooldown."""

    owner: str = ""
    network: str = ""
    """Network of the host, or "" until the network is known."""

    def set_network(self, network: str) -> Deferred | None:
        """Set the network of the host.

        Returns:
            None, or a Deferred if the network has used up its share. The caller must then release the permit without
            posting.
        """
        return self._circuit_breaker._move_to_network(self, network)

    def release(self, has_responded: bool | None) -> None:
        """Release the permit.

        Args:
            has_responded: True if the host sent an HTTP response, False if the host sent none, or None if no request
                was sent.
        """
        self._circuit_breaker._release(self, has_responded)


def _count(shares: dict[str, _Share], name: str, posts: int) -> None:
    share = shares.setdefault(name, _Share())
    share.in_flight += posts
    if not share.in_flight:
        del shares[name]


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
