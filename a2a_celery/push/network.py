"""Name resolution, and connections to allowed addresses: public addresses and the networks that the deployment allows.

A connection uses only addresses that were checked, and does not resolve the name again, which prevents DNS rebinding.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import chain, zip_longest
from math import inf
from threading import Lock
from typing import Any, Protocol

import httpcore

from ..clock import SYSTEM_CLOCK, Clock
from ..concurrency import DaemonThreads

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PUBLIC_IPV6 = IPv6Network("2000::/3")
"""The only IPv6 block from which public (global unicast) addresses are allocated. The block excludes unique local,
link-local, site-local and multicast addresses."""

NAT64 = IPv6Network("64:ff9b::/96")
"""Prefix of IPv6 addresses whose last 32 bits are an IPv4 address (RFC 6052)."""

_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; metadata of Alibaba Cloud, 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure platform, in public address space
        "169.254.0.0/16",  # link-local; cloud metadata, 169.254.169.254 and 169.254.170.2
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud, 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved and broadcast
        "2001::/23",  # protocol assignments; Teredo, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address that an unknown relay serves
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def parse_address(text: str) -> Address | None:
    """Parse an IP address. Return None if `text` is not an address or has a zone."""
    try:
        return None if "%" in text else ip_address(text)
    except ValueError:
        return None


def is_within(address: Address, networks: Sequence[Network]) -> bool:
    """Return True if `address`, or its embedded IPv4 address, is in one of the `networks`."""
    return any(form in network for form in (address, _embedded_ipv4(address)) for network in networks)


def is_allowed(address: Address, allow_networks: Sequence[Network] = ()) -> bool:
    """Return True if `address` is public or in one of `allow_networks`."""
    return is_within(address, allow_networks) or _is_public(_embedded_ipv4(address))


def unmap_address(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 address, so that a host without IPv6 can connect to it.

    Any other address is returned unchanged.
    """
    ipv4_address = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if ipv4_address is None else ipv4_address


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in PUBLIC_IPV6:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address in a NAT64 or IPv4-mapped address, and any other address unchanged."""
    if isinstance(address, IPv6Address) and address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return unmap_address(address)


LOOKUP_TIMEOUT = 5.0
LOOKUP_THREADS = 64
"""Maximum number of concurrent lookups."""
CACHE_TTL = 5.0
"""Seconds for which the addresses of a name are cached."""
MAX_STALE_AGE = 3600.0
"""Seconds for which the addresses of a name are used if a new lookup times out."""
MAX_NAMES = 10_000
"""Maximum number of cached names."""
CONNECT_TIMEOUT = 10.0
"""Seconds that the connection attempts to all addresses of a host may take in total."""
MAX_ADDRESSES = 4
"""Maximum number of addresses of a host to which a connection is attempted."""


class AddressRefused(Exception):
    """Error for a host that has no allowed address. The message contains no address.

    Attributes:
        address: Host and forbidden address, for operators with access to the logs, or "".
    """

    def __init__(self, reason: str, address: str = "") -> None:
        super().__init__(reason)
        self.address = address


class HostNotFound(httpcore.ConnectError):
    """Error for a host whose name was not found."""

    def __init__(self) -> None:
        super().__init__("the host's name was not found")


class Resolver(Protocol):
    """Interface for the resolution of host names."""

    async def resolve(self, host: str) -> Sequence[Address]:
        """Return the addresses of `host`, the preferred address first.

        Raises:
            OSError: The name was not found, or the lookup timed out (TimeoutError).
        """
        ...

    async def aclose(self) -> None:
        """Release the resources of the resolver."""
        ...


class _Lookup:
    """Lookup of one name, which concurrent callers share."""

    __slots__ = ("claim", "result", "waiters")

    def __init__(self) -> None:
        self.waiters = 0
        self.claim = Lock()  # acquired once, by the thread that executes the lookup or by the last waiter
        self.result: asyncio.Task[list[Address]]


def system_addresses(host: str) -> list[str]:
    """Return the addresses of `host` according to the system. The call may block.

    Raises:
        OSError: The name was not found.
    """
    return [str(address[0]) for *_, address in socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)]


class SystemResolver:
    """Resolver that calls ``getaddrinfo`` in daemon threads, because a call can hang and cannot be cancelled.

    Concurrent calls for a name share one lookup, so a lookup that hangs occupies only one thread. A lookup without
    waiters is dropped unless a thread has started it. If many lookups hang, the lookups of other names time out until
    ``getaddrinfo`` gives up. Names that were found within the last hour keep their addresses.

    Each connection checks its address, even if the address is cached.

    Args:
        timeout: Seconds for which a caller waits.
        cache_ttl: Seconds for which the addresses of a name are cached.
        clock: Source of time.
        look_up: Function that returns the addresses of a name, called in a thread.
    """

    def __init__(
        self,
        timeout: float = LOOKUP_TIMEOUT,
        *,
        cache_ttl: float = CACHE_TTL,
        clock: Clock = SYSTEM_CLOCK,
        look_up: Callable[[str], Sequence[str]] = system_addresses,
    ) -> None:
        self._timeout = timeout
        self._cache_ttl = cache_ttl
        self._clock = clock
        self._look_up = look_up
        self._threads = DaemonThreads(LOOKUP_THREADS, "a2a-lookup")
        self._lookups: dict[str, _Lookup] = {}
        self._cache: OrderedDict[str, tuple[float, list[Address]]] = OrderedDict()  # time of the lookup, addresses

    async def resolve(self, host: str) -> Sequence[Address]:
        """Return the addresses of `host` from the cache or from ``getaddrinfo``.

        Raises:
            OSError: The name was not found, or the lookup timed out (TimeoutError).
        """
        cached_at, addresses = self._cache.get(host, (-inf, []))
        age = self._clock.monotonic() - cached_at
        if age < self._cache_ttl:
            return addresses
        lookup = self._lookups.get(host) or self._start_lookup(host)
        lookup.waiters += 1
        try:
            async with self._clock.timeout(self._timeout):
                return await asyncio.shield(lookup.result)
        except TimeoutError:
            if age < MAX_STALE_AGE:
                return addresses
            raise TimeoutError(f"the name was not found within {self._timeout:g} s") from None
        finally:
            lookup.waiters -= 1
            if not lookup.waiters and lookup.claim.acquire(blocking=False):
                self._forget(host, lookup)
                lookup.result.cancel()

    async def aclose(self) -> None:
        """Cancel all lookups and close the threads."""
        for lookup in list(self._lookups.values()):
            lookup.result.cancel()
        self._threads.close()

    def _start_lookup(self, host: str) -> _Lookup:
        lookup = self._lookups[host] = _Lookup()
        lookup.result = asyncio.create_task(self._find(host, lookup), name="a2a-lookup")
        lookup.result.add_done_callback(lambda _: self._finish_lookup(host, lookup))
        return lookup

    async def _find(self, host: str, lookup: _Lookup) -> list[Address]:
        def look_up() -> Sequence[str]:
            return self._look_up(host) if lookup.claim.acquire(blocking=False) else ()  # no waiter is left

        addresses = (parse_address(text.partition("%")[0]) for text in await self._threads.call(look_up))
        return list(dict.fromkeys(address for address in addresses if address is not None))

    def _finish_lookup(self, host: str, lookup: _Lookup) -> None:
        self._forget(host, lookup)
        if lookup.result.cancelled() or lookup.result.exception() is not None:
            return
        if addresses := lookup.result.result():
            self._cache[host] = self._clock.monotonic(), addresses
            self._cache.move_to_end(host)
            if len(self._cache) > MAX_NAMES:
                self._cache.popitem(last=False)

    def _forget(self, host: str, lookup: _Lookup) -> None:
        if self._lookups.get(host) is lookup:
            del self._lookups[host]


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Network backend that connects to allowed addresses only.

    Args:
        resolver: Name resolver.
        allow_networks: Networks that are allowed in addition to public addresses.
        only_allowed_networks: True to refuse public addresses, which is used for connections without TLS.
        backend: Backend that opens the connections, or None for httpcore's.
    """

    def __init__(
        self,
        resolver: Resolver,
        allow_networks: Sequence[Network] = (),
        *,
        only_allowed_networks: bool = False,
        backend: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._resolver = resolver
        self._allow_networks = allow_networks
        self._only_allowed_networks = only_allowed_networks
        self._backend = backend or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to an allowed address of the host.

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
        """Raise AddressRefused, because webhooks are not sent to Unix sockets."""
        raise AddressRefused("webhooks are not sent to Unix sockets")

    async def sleep(self, seconds: float) -> None:
        """Sleep, as httpcore's interface requires."""
        await asyncio.sleep(seconds)

    async def _allowed_addresses(self, host: str) -> list[Address]:
        """Return the allowed addresses of the host, alternating between IPv4 and IPv6."""
        try:
            addresses = await addresses_of(host, self._resolver)
        except OSError:
            raise HostNotFound from None
        allowed_addresses = [unmap_address(address) for address in addresses if self._is_allowed(address)]
        if addresses and not allowed_addresses:
            reason = "the host's address is neither public nor in a2a_allow_networks"
            if self._only_allowed_networks:
                reason = "the host's address is not in a2a_allow_networks, which webhooks without TLS require"
            raise AddressRefused(reason, f"{host} is {addresses[0]}")
        first_family = [address for address in allowed_addresses if address.version == allowed_addresses[0].version]
        others = [address for address in allowed_addresses if address.version != allowed_addresses[0].version]
        alternating = chain.from_iterable(zip_longest(first_family, others))
        return [address for address in alternating if address is not None][:MAX_ADDRESSES]

    def _is_allowed(self, address: Address) -> bool:
        if self._only_allowed_networks:
            return is_within(address, self._allow_networks)
        return is_allowed(address, self._allow_networks)


async def addresses_of(host: str, resolver: Resolver) -> Sequence[Address]:
    """Return the addresses of `host`, which is an address or a name for `resolver`.

    Raises:
        OSError: The name was not found.
    """
    address = parse_address(host)
    return (address,) if address is not None else await resolver.resolve(host)
