"""Connections of webhook posts. They reach only allowed addresses, whatever a name server responds."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from ipaddress import ip_network
from typing import Any

import httpcore
import pytest

from a2a_celery.push import SystemResolver
from a2a_celery.push.network import (
    CACHE_TTL,
    CONNECT_TIMEOUT,
    LOOKUP_THREADS,
    MAX_STALE_AGE,
    AddressRefused,
    CheckedBackend,
)
from tests.support.clocks import ManualClock
from tests.support.receivers.receiver import Receiver, receiver
from tests.support.waiting import LIMIT, eventually

from .fake_resolver import LOCAL, FakeResolver


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


async def connect(backend: CheckedBackend, host: str, port: int) -> str:
    """Return the address that a connection to `host` reached."""
    stream = await backend.connect_tcp(host, port, timeout=5)
    address: str = stream.get_extra_info("server_addr")[0]
    await stream.aclose()
    return address


async def test_the_checked_address_is_the_connected_one(hooks: Receiver) -> None:
    """The backend never asks a name server twice for a connection, so DNS rebinding has no effect."""
    names = FakeResolver(a_example=["127.0.0.1", "127.0.0.2"])

    assert await connect(CheckedBackend(names, LOCAL), "a.example", hooks.port) == "127.0.0.1"
    assert names.asked == ["a.example"]


async def test_a_name_that_changes_its_mind_is_judged_anew(hooks: Receiver) -> None:
    names = FakeResolver(a_example=["127.0.0.1", "10.0.0.1"])
    backend = CheckedBackend(names, LOCAL)
    await connect(backend, "a.example", hooks.port)

    with pytest.raises(AddressRefused) as exc_info:
        await connect(backend, "a.example", hooks.port)
    assert exc_info.value.address == "a.example is 10.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.1", "a.example"])
async def test_by_default_nothing_of_this_host_or_network_is_reached(hooks: Receiver, host: str) -> None:
    with pytest.raises(AddressRefused):
        await connect(CheckedBackend(FakeResolver(a_example=["127.0.0.1 ::1 10.1.1.1"])), host, hooks.port)

    assert hooks.connections == 0


async def test_of_several_addresses_only_the_allowed_ones_are_tried(hooks: Receiver) -> None:
    names = FakeResolver(a_example=["127.0.0.9 10.0.0.1 127.0.0.1"])

    assert await connect(CheckedBackend(names, [ip_network("127.0.0.1")]), "a.example", hooks.port) == "127.0.0.1"


async def test_the_next_address_is_tried_when_one_does_not_answer(hooks: Receiver) -> None:
    names = FakeResolver(a_example=["127.0.0.9 127.0.0.1"])  # the receiver listens only at the second address

    assert await connect(CheckedBackend(names, LOCAL), "a.example", hooks.port) == "127.0.0.1"


class SilentHosts(httpcore.AsyncNetworkBackend):
    """Backend whose connections all fail. `timeouts` are those of the attempts, in order."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, *rest: Any, **options: Any) -> Any:
        self.timeouts.append(timeout)
        raise httpcore.ConnectTimeout


@pytest.mark.parametrize(("timeout", "seconds"), [(6.0, 6.0), (None, CONNECT_TIMEOUT)])
async def test_the_addresses_of_a_host_share_its_timeout(timeout: float | None, seconds: float) -> None:
    hosts, names = SilentHosts(), FakeResolver(a_example=["127.0.0.7 127.0.0.8 127.0.0.9"])

    with pytest.raises(httpcore.ConnectTimeout):
        await CheckedBackend(names, LOCAL, backend=hosts).connect_tcp("a.example", 80, timeout)

    shares = [share or 0 for share in hosts.timeouts]
    assert shares == pytest.approx([seconds / 3, seconds / 2, seconds], rel=0.3)
    assert shares == sorted(shares)


async def test_no_address_answers(hooks: Receiver) -> None:
    names = FakeResolver(a_example=["127.0.0.8 127.0.0.9"], b_example=[""])
    backend = CheckedBackend(names, LOCAL)

    with pytest.raises(httpcore.ConnectError):
        await connect(backend, "a.example", hooks.port)
    with pytest.raises(httpcore.ConnectError, match="no address"):
        await connect(backend, "b.example", hooks.port)
    with pytest.raises(httpcore.ConnectError, match="not found"):
        await connect(backend, "unknown.example", hooks.port)


async def test_without_tls_only_what_is_allowed_is_reached() -> None:
    """The backend refuses a public address before it sends any data."""
    backend = CheckedBackend(FakeResolver(a_example=["8.8.8.8"]), LOCAL, only_allowed_networks=True)

    with pytest.raises(AddressRefused, match="without TLS"):
        await connect(backend, "a.example", 80)


async def test_no_socket_of_this_host_is_reached() -> None:
    with pytest.raises(AddressRefused):
        await CheckedBackend(FakeResolver(), LOCAL).connect_unix_socket("/var/run/docker.sock")


async def test_the_system_finds_names() -> None:
    async with aclosing(SystemResolver()) as resolver:
        addresses = await resolver.resolve("localhost")

    assert {str(address) for address in addresses} <= {"127.0.0.1", "::1"}
    assert addresses


async def test_a_name_that_the_system_does_not_know() -> None:
    def unknown(_: str) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with aclosing(SystemResolver(look_up=unknown)) as resolver:
        with pytest.raises(socket.gaierror):
            await resolver.resolve("a.example")


async def test_a_hanging_lookup_times_out_and_delays_no_other(system: System) -> None:
    clock = ManualClock()
    async with aclosing(SystemResolver(timeout=3, clock=clock, look_up=system.look_up)) as resolver:
        slow = [asyncio.create_task(resolver.resolve("slow.example")) for _ in range(100)]
        assert [str(a) for a in await resolver.resolve("quick.example")] == ["8.8.8.8"]
        await asyncio.to_thread(eventually, lambda: "slow.example" in system.asked)
        clock.advance(3)
        results = await asyncio.gather(*slow, return_exceptions=True)
        assert all(isinstance(error, TimeoutError) for error in results)
        assert system.asked.count("slow.example") == 1


async def test_a_cancelled_caller_does_not_cancel_the_lookup_of_others(system: System) -> None:
    async with aclosing(SystemResolver(timeout=60, look_up=system.look_up)) as resolver:
        leaves, stays = [asyncio.create_task(resolver.resolve("slow.example")) for _ in range(2)]
        await asyncio.to_thread(eventually, lambda: system.asked)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        system.go_on.set()

        assert [str(address) for address in await stays] == ["8.8.8.8"]


class System:
    """Stand-in for the system's name lookup. A lookup of a name that begins with `slow` blocks until the test releases
    it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked: list[str] = []

    def look_up(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.go_on.wait(60)
        return ["8.8.8.8"]


@pytest.fixture
def system() -> Iterator[System]:
    system = System()
    yield system
    system.go_on.set()


SLOW_NAMES = [f"slow{n}.example" for n in range(LOOKUP_THREADS + 32)]


async def require_timeouts(resolver: SystemResolver, names: list[str]) -> None:
    """Resolve all of `names` concurrently, and assert that each lookup times out."""
    results = await asyncio.gather(*map(resolver.resolve, names), return_exceptions=True)
    assert all(isinstance(error, TimeoutError) for error in results)


async def test_silent_name_servers_take_no_address_that_was_found(system: System) -> None:
    clock = ManualClock()
    async with aclosing(SystemResolver(timeout=2, clock=clock, look_up=system.look_up)) as resolver:
        await resolver.resolve("good.example")
        clock.advance(CACHE_TTL)
        asking = asyncio.create_task(require_timeouts(resolver, SLOW_NAMES))
        await asyncio.to_thread(eventually, lambda: len(system.asked) == 1 + LOOKUP_THREADS)
        waiting = asyncio.create_task(resolver.resolve("good.example"))
        await clock.until_waiting(*[2] * (len(SLOW_NAMES) + 1))
        clock.advance(2)
        await asking

        assert [str(address) for address in await waiting] == ["8.8.8.8"]
        clock.advance(MAX_STALE_AGE - CACHE_TTL - 2)
        asking = asyncio.create_task(require_timeouts(resolver, ["good.example"]))
        await clock.until_waiting(2)
        clock.advance(2)
        await asking


async def test_names_are_found_again_when_the_name_servers_answer(system: System) -> None:
    clock = ManualClock()
    async with aclosing(SystemResolver(timeout=2, clock=clock, look_up=system.look_up)) as resolver:
        asking = asyncio.create_task(require_timeouts(resolver, SLOW_NAMES))
        await asyncio.to_thread(eventually, lambda: len(system.asked) == LOOKUP_THREADS)
        clock.advance(2)
        await asking
        system.go_on.set()

        assert await resolver.resolve("new.example")
        assert await resolver.resolve(SLOW_NAMES[0])


async def test_a_lookup_without_waiting_callers_is_not_made(system: System) -> None:
    clock = ManualClock()
    async with aclosing(SystemResolver(timeout=2, clock=clock, look_up=system.look_up)) as resolver:
        asking = asyncio.create_task(require_timeouts(resolver, SLOW_NAMES))
        await asyncio.to_thread(eventually, lambda: len(system.asked) == LOOKUP_THREADS)
        clock.advance(2)
        await asking
        system.go_on.set()

        assert await resolver.resolve("new.example")  # queued after all other lookups
        assert len(system.asked) == LOOKUP_THREADS + 1


async def test_a_name_that_hangs_takes_one_thread_however_often_it_is_asked_for(system: System) -> None:
    clock = ManualClock()
    async with aclosing(SystemResolver(timeout=3, clock=clock, look_up=system.look_up)) as resolver:
        for _ in range(3):
            asking = asyncio.create_task(require_timeouts(resolver, ["slow.example"]))
            await clock.until_waiting(3)
            await asyncio.to_thread(eventually, lambda: system.asked)
            clock.advance(3)
            await asking
        assert system.asked == ["slow.example"]


async def test_a_found_address_is_cached_for_some_seconds(system: System) -> None:
    clock = ManualClock()
    async with aclosing(SystemResolver(clock=clock, look_up=system.look_up)) as resolver:
        for seconds in (0, CACHE_TTL - 0.1, 0.1, 1):
            clock.advance(seconds)
            assert [str(address) for address in await resolver.resolve("a.example")] == ["8.8.8.8"]

    assert system.asked == ["a.example"] * 2


async def test_a_cached_address_is_checked_at_each_connection(system: System) -> None:
    async with aclosing(SystemResolver(look_up=system.look_up)) as resolver:
        for _ in range(2):
            with pytest.raises(AddressRefused):
                await connect(CheckedBackend(resolver, only_allowed_networks=True), "a.example", 80)

    assert system.asked == ["a.example"]


async def test_closing_ends_waiting_lookups_with_and_without_a_thread(system: System) -> None:
    resolver = SystemResolver(timeout=60, look_up=system.look_up)
    asking = [asyncio.create_task(resolver.resolve(name)) for name in SLOW_NAMES]
    await asyncio.to_thread(eventually, lambda: len(system.asked) == LOOKUP_THREADS)
    await resolver.aclose()

    results = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(error) for error in results} == {asyncio.CancelledError}


HANGS = """
import asyncio, threading
from a2a_celery.push import SystemResolver
async def main():
    try:
        await SystemResolver(timeout=0.1, look_up=lambda _: threading.Event().wait()).resolve("a.example")
    except TimeoutError:
        print("gave up")
asyncio.run(main())
"""


def test_a_lookup_that_hangs_holds_no_process() -> None:
    process = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=LIMIT, check=True)

    assert process.stdout == "gave up\n"
