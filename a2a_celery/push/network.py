"""Connections that end where they may: a name is looked up once, and what was looked at is what is connected to.

So a name server that answers differently the second time changes nothing.
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
from ..threads import DaemonThreads
from .addresses import Address, Network, is_allowed, is_within, read_address, without_mapping
from .targets import Target, TargetRefused

LOOKUP_TIMEOUT = 5.0
LOOKUPS_AT_ONCE = {"found": 16, "new": 32, "slow": 8}
"""Threads, by what became of the name's last lookup."""
SLOW = 1.0
"""Seconds that a lookup may take without its name counting as slow."""
FRESH = 5.0
"""Seconds for which what was found is the answer."""
MOST_NAMES = 10_000
"""So many names are remembered that were found, and as many slow ones."""
CONNECT_TIMEOUT = 10.0
"""Seconds for all addresses of a host together."""
MOST_ADDRESSES = 4
"""So many of a host's addresses are tried."""


class AddressRefused(Exception):
    """A host has no address that webhooks may be sent to. For operators: the text names an address."""


class Resolver(Protocol):
    """Finds the addresses of a name."""

    async def resolve(self, host: str) -> Sequence[Address]:
        """The addresses of `host`, the preferred ones first.

        Raises:
            OSError: there are none, or they can't be found now (TimeoutError among them).
        """
        ...

    async def aclose(self) -> None:
        """Ends what it has open."""
        ...


class _Lookup:
    """One name's lookup, while anybody waits for it or a thread makes it."""

    __slots__ = ("askers", "began", "claim", "found")

    def __init__(self) -> None:
        self.askers = 0
        self.began = inf
        self.claim = Lock()  # taken once: by the thread that asks the system, or by whoever gives up before that
        self.found: asyncio.Task[list[Address]]


class SystemResolver:
    """Asks the system, in threads that nobody waits for at exit: a lookup can hang, and can't be cancelled.

    Whoever asks for a name that is being looked up gets the same answer, so one that hangs takes one thread; and one
    that nobody waits for any more takes none, unless it has one. Names that were found quickly last time have threads
    of their own, and so have slow ones: silent name servers hold up new names only, until each of theirs has hung once.
    What was found is the answer for `fresh` seconds; it is judged again each time that it is used.
    """

    def __init__(self, timeout: float = LOOKUP_TIMEOUT, *, fresh: float = FRESH, clock: Clock = SYSTEM_CLOCK) -> None:
        self._timeout = timeout
        self._fresh = fresh
        self._clock = clock
        self._threads = {kind: DaemonThreads(count, f"a2a-lookup-{kind}") for kind, count in LOOKUPS_AT_ONCE.items()}
        self._under_way: dict[str, _Lookup] = {}
        self._found: OrderedDict[str, tuple[float, list[Address]]] = OrderedDict()  # when, and what
        self._slow: OrderedDict[str, None] = OrderedDict()

    async def resolve(self, host: str) -> Sequence[Address]:
        """The addresses of `host` as the system knows them. Raises OSError."""
        at, addresses = self._found.get(host, (-inf, []))
        if self._clock.monotonic() - at < self._fresh:
            return addresses
        lookup = self._under_way.get(host) or self._begin(host)
        lookup.askers += 1
        try:
            async with self._clock.timeout(self._timeout):
                return await asyncio.shield(lookup.found)
        except TimeoutError:
            if lookup.claim.locked():
                self._note_slow(host)
            raise TimeoutError(f"the name was not found within {self._timeout:g} s") from None
        finally:
            lookup.askers -= 1
            if not lookup.askers and lookup.claim.acquire(blocking=False):
                self._forget(host, lookup)
                lookup.found.cancel()

    async def aclose(self) -> None:
        """Gives up what is under way."""
        for lookup in list(self._under_way.values()):
            lookup.found.cancel()
        for threads in self._threads.values():
            threads.close()

    def _begin(self, host: str) -> _Lookup:
        lookup = self._under_way[host] = _Lookup()
        lookup.found = asyncio.create_task(self._look_up(host, lookup), name="a2a-lookup")
        lookup.found.add_done_callback(lambda _: self._end(host, lookup))
        return lookup

    async def _look_up(self, host: str, lookup: _Lookup) -> list[Address]:
        def ask() -> list[Any]:
            if not lookup.claim.acquire(blocking=False):
                return []  # nobody waits any more
            lookup.began = self._clock.monotonic()
            return socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)

        kind = "slow" if host in self._slow else "found" if host in self._found else "new"
        found = await self._threads[kind].call(ask)
        addresses = (read_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found)
        return list(dict.fromkeys(address for address in addresses if address is not None))

    def _end(self, host: str, lookup: _Lookup) -> None:
        self._forget(host, lookup)
        if lookup.found.cancelled():
            return
        now = self._clock.monotonic()
        self._found.pop(host, None)
        if lookup.found.exception() is None and lookup.found.result():
            self._found[host] = now, lookup.found.result()
            _drop_oldest(self._found)
        if now - lookup.began > SLOW:
            self._note_slow(host)
        else:
            self._slow.pop(host, None)

    def _forget(self, host: str, lookup: _Lookup) -> None:
        if self._under_way.get(host) is lookup:
            del self._under_way[host]

    def _note_slow(self, host: str) -> None:
        self._slow[host] = None
        self._slow.move_to_end(host)
        _drop_oldest(self._slow)


def _drop_oldest(names: OrderedDict[str, Any]) -> None:
    if len(names) > MOST_NAMES:
        names.popitem(last=False)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """What a connection pool opens its connections with. Connects to addresses that `is_allowed` only.

    With `only_allowed_networks` that a public address is no reason to connect: for connections without TLS.
    """

    def __init__(
        self, resolver: Resolver, allow_networks: Sequence[Network] = (), *, only_allowed_networks: bool = False
    ) -> None:
        self._resolver = resolver
        self._allow = allow_networks
        self._only_allowed_networks = only_allowed_networks
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to one of the host's addresses.

        Raises:
            AddressRefused: none of them may be connected to.
            httpcore.ConnectError, httpcore.ConnectTimeout: none could be.
        """
        until = SYSTEM_CLOCK.monotonic() + (timeout or CONNECT_TIMEOUT)
        addresses = await self._addresses(host)
        for n, address in enumerate(addresses, 1):
            share = max(until - SYSTEM_CLOCK.monotonic(), 0.1) / (len(addresses) - n + 1)
            try:
                return await self._inner.connect_tcp(str(address), port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if n == len(addresses):
                    raise
        raise httpcore.ConnectError("the host has no address")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Refused: no URL names one."""
        raise AddressRefused("webhooks are not sent to sockets of this host")

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str) -> list[Address]:
        """Those of the host that may be connected to, IPv6 and IPv4 by turns as the first one begins."""
        try:
            found = await addresses_of(host, self._resolver)
        except OSError:
            raise httpcore.ConnectError("the host's name was not found") from None
        fit = [without_mapping(address) for address in found if self._fits(address)]
        if found and not fit:
            why = "not in allow_networks" if not self._only_allowed_networks else "not in allow_networks, without TLS"
            raise AddressRefused(f"{host} is {found[0]}, which is {why}")
        first = [address for address in fit if address.version == fit[0].version]
        other = [address for address in fit if address.version != fit[0].version]
        by_turns = chain.from_iterable(zip_longest(first, other))
        return [address for address in by_turns if address is not None][:MOST_ADDRESSES]

    def _fits(self, address: Address) -> bool:
        if self._only_allowed_networks:
            return is_within(address, self._allow)
        return is_allowed(address, self._allow)


async def addresses_of(host: str, resolver: Resolver) -> Sequence[Address]:
    """The address that `host` is, or those that the resolver finds. Raises OSError."""
    address = read_address(host)
    return (address,) if address is not None else await resolver.resolve(host)


async def check_target_now(target: Target, resolver: Resolver, allow_networks: Sequence[Network] = ()) -> None:
    """Refuses a target whose name leads nowhere that a webhook may be sent to, when its config is set.

    A name that is not found now is no reason: it may be when there is something to deliver, and is judged then.

    Raises:
        TargetRefused: says nothing of the addresses.
    """
    try:
        found = await addresses_of(target.host, resolver)
    except OSError:
        return
    if found and not any(is_allowed(address, allow_networks) for address in found):
        raise TargetRefused("url", "its host is not public: webhooks are sent to public addresses only")
    if target.scheme == "http" and found and not any(is_within(address, allow_networks) for address in found):
        raise TargetRefused("url", "must begin with https://")
