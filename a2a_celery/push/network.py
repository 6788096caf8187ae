"""Name resolution and connections to allowed addresses.

A name is resolved once for each connection, and the connection goes to the addresses that were checked. A name server
that answers differently the second time therefore changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from math import inf
from threading import Lock
from typing import Any, Protocol

import httpcore

from ..clock import SYSTEM_CLOCK, Clock
from ..concurrency import DaemonThreads
from .addresses import Address, Network, is_allowed, is_within, parse_address, unmap_address

LOOKUP_TIMEOUT = 5.0
LOOKUP_THREADS = {"known": 16, "new": 32, "slow": 8}
"""Threads by the result of a name's last lookup."""
SLOW_LOOKUP = 1.0
"""Seconds after which a lookup makes its name a slow one."""
CACHE_TTL = 5.0
"""Seconds for which the addresses of a name are cached."""
MAX_NAMES = 10_000
"""Maximum number of cached names, and of slow names that are remembered."""
CONNECT_TIMEOUT = 10.0
"""Seconds for all addresses of a host together."""
MAX_ADDRESSES = 4
"""Maximum number of a host's addresses that are tried."""


class AddressRefused(Exception):
    """A host has no allowed address. The text contains an address and is for operators only."""


class HostNotFound(httpcore.ConnectError):
    """The name of a host was not found."""

    def __init__(self) -> None:
        super().__init__("the host's name was not found")


class Resolver(Protocol):
    """Resolver of host names."""

    async def resolve(self, host: str) -> Sequence[Address]:
        """Return the addresses of `host`, the preferred ones first.

        Raises:
            OSError: The name was not found, or not within the timeout (TimeoutError).
        """
        ...

    async def aclose(self) -> None:
        """Release the resources of the resolver."""
        ...


class _Lookup:
    """Lookup of one name, shared by all callers that need the name."""

    __slots__ = ("claim", "result", "started_at", "waiters")

    def __init__(self) -> None:
        self.waiters = 0
        self.started_at = inf
        self.claim = Lock()  # acquired once: by the thread that makes the lookup, or by the last waiter that leaves
        self.result: asyncio.Task[list[Address]]


class SystemResolver:
    """Resolver that calls ``getaddrinfo`` in daemon threads, because a call can hang and cannot be cancelled.

    Concurrent calls for one name share a lookup, so a name that hangs occupies one thread. A lookup without waiters is
    dropped unless a thread has started it. Names that were found quickly last time have threads of their own, and so
    have slow names: silent name servers delay new names only, until each of their names has hung once.

    Addresses are cached for `cache_ttl` seconds, and checked again for each connection.
    """

    def __init__(
        self, timeout: float = LOOKUP_TIMEOUT, *, cache_ttl: float = CACHE_TTL, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._timeout = timeout
        self._cache_ttl = cache_ttl
        self._clock = clock
        self._threads = {kind: DaemonThreads(count, f"a2a-lookup-{kind}") for kind, count in LOOKUP_THREADS.items()}
        self._lookups: dict[str, _Lookup] = {}
        self._cache: OrderedDict[str, tuple[float, list[Address]]] = OrderedDict()  # time of the lookup, addresses
        self._slow: OrderedDict[str, None] = OrderedDict()

    async def resolve(self, host: str) -> Sequence[Address]:
        """Return the addresses of `host` that the system knows.

        Raises:
            OSError: The name was not found, or not within the timeout (TimeoutError).
        """
        cached_at, addresses = self._cache.get(host, (-inf, []))
        if self._clock.monotonic() - cached_at < self._cache_ttl:
            return addresses
        lookup = self._lookups.get(host) or self._start_lookup(host)
        lookup.waiters += 1
        try:
            async with self._clock.timeout(self._timeout):
                return await asyncio.shield(lookup.result)
        except TimeoutError:
            if lookup.claim.locked():
                self._mark_slow(host)
            raise TimeoutError(f"the name was not found within {self._timeout:g} s") from None
        finally:
            lookup.waiters -= 1
            if not lookup.waiters and lookup.claim.acquire(blocking=False):
                self._forget(host, lookup)
                lookup.result.cancel()

    async def aclose(self) -> None:
        """Cancel all lookups."""
        for lookup in list(self._lookups.values()):
            lookup.result.cancel()
        for threads in self._threads.values():
            threads.close()

    def _start_lookup(self, host: str) -> _Lookup:
        lookup = self._lookups[host] = _Lookup()
        lookup.result = asyncio.create_task(self._look_up(host, lookup), name="a2a-lookup")
        lookup.result.add_done_callback(lambda _: self._finish_lookup(host, lookup))
        return lookup

    async def _look_up(self, host: str, lookup: _Lookup) -> list[Address]:
        def get_address_info() -> list[Any]:
            if not lookup.claim.acquire(blocking=False):
                return []  # no waiter is left
            lookup.started_at = self._clock.monotonic()
            return socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)

        kind = "slow" if host in self._slow else "known" if host in self._cache else "new"
        entries = await self._threads[kind].call(get_address_info)
        addresses = (parse_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in entries)
        return list(dict.fromkeys(address for address in addresses if address is not None))

    def _finish_lookup(self, host: str, lookup: _Lookup) -> None:
        self._forget(host, lookup)
        if lookup.result.cancelled():
            return
        now = self._clock.monotonic()
        self._cache.pop(host, None)
        if lookup.result.exception() is None and lookup.result.result():
            self._cache[host] = now, lookup.result.result()
            _drop_oldest(self._cache)
        if now - lookup.started_at > SLOW_LOOKUP:
            self._mark_slow(host)
        else:
            self._slow.pop(host, None)

    def _forget(self, host: str, lookup: _Lookup) -> None:
        if self._lookups.get(host) is lookup:
            del self._lookups[host]

    def _mark_slow(self, host: str) -> None:
        self._slow[host] = None
        self._slow.move_to_end(host)
        _drop_oldest(self._slow)


def _drop_oldest(names: OrderedDict[str, Any]) -> None:
    if len(names) > MAX_NAMES:
        names.popitem(last=False)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Network backend that connects to allowed addresses only.

    With `only_allowed_networks`, public addresses are refused too: for connections without TLS.
    """

    def __init__(
        self, resolver: Resolver, allow_networks: Sequence[Network] = (), *, only_allowed_networks: bool = False
    ) -> None:
        self._resolver = resolver
        self._allow_networks = allow_networks
        self._only_allowed_networks = only_allowed_networks
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to one of the host's addresses.

        Raises:
            AddressRefused: No address of the host is allowed.
            HostNotFound: The host's name was not found.
            httpcore.ConnectError, httpcore.ConnectTimeout: The connection failed.
        """
        deadline = SYSTEM_CLOCK.monotonic() + (timeout or CONNECT_TIMEOUT)
        addresses = await self._allowed_addresses(host)
        for n, address in enumerate(addresses, 1):
            share = max(deadline - SYSTEM_CLOCK.monotonic(), 0.1) / (len(addresses) - n + 1)
            try:
                return await self._backend.connect_tcp(str(address), port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if n == len(addresses):
                    raise
        raise httpcore.ConnectError("the host has no address")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: no URL of a webhook names a socket of this machine."""
        raise AddressRefused("webhooks are not sent to sockets of this host")

    async def sleep(self, seconds: float) -> None:
        """Sleep, as the backend's interface requires."""
        await asyncio.sleep(seconds)

    async def _allowed_addresses(self, host: str) -> list[Address]:
        """Return the allowed addresses of the host, alternating between the families of IP."""
        try:
            addresses = await addresses_of(host, self._resolver)
        except OSError:
            raise HostNotFound from None
        allowed = [unmap_address(address) for address in addresses if self._is_allowed(address)]
        if addresses and not allowed:
            rule = "not in allow_networks" if not self._only_allowed_networks else "not in allow_networks, without TLS"
            raise AddressRefused(f"{host} is {addresses[0]}, which is {rule}")
        preferred = [address for address in allowed if address.version == allowed[0].version]
        others = [address for address in allowed if address.version != allowed[0].version]
        alternating = chain.from_iterable(zip_longest(preferred, others))
        return [address for address in alternating if address is not None][:MAX_ADDRESSES]

    def _is_allowed(self, address: Address) -> bool:
        if self._only_allowed_networks:
            return is_within(address, self._allow_networks)
        return is_allowed(address, self._allow_networks)


async def addresses_of(host: str, resolver: Resolver) -> Sequence[Address]:
    """Return the address that `host` is, or the addresses that the resolver finds.

    Raises:
        OSError: The name was not found.
    """
    address = parse_address(host)
    return (address,) if address is not None else await resolver.resolve(host)
