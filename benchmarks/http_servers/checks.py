"""Checks of an HTTP server with `application`: what a client can do to it, and what it does for a client."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import httpx

from a2a_celery.cli.serve.gateway import GRACEFUL
from tests.support.waiting import eventually

from .. import load
from .servers import FLOOD, STALL, Server

EXIT_LIMIT = GRACEFUL + 2.0
"""Maximum seconds from SIGTERM until the server has exited."""

MEMORY_LIMIT = 1 << 21
"""Maximum growth of the server's memory, in bytes, for a connection."""

CONNECTIONS = 4
"""Number of connections that fill a server's memory."""

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = POST + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


class Verdict(NamedTuple):
    """Result of a check.

    Attributes:
        is_right: True if the server behaves as the gateway needs.
        fact: What the client observed.
    """

    is_right: bool
    fact: str


def replies(data: bytes) -> list[tuple[int, int | None]]:
    """Return the status of each response, and the size in its body or None."""
    parts = data.split(b"HTTP/1.1 ")[1:]
    sizes = [re.search(rb'"size": (\d+)', part) for part in parts]
    return [(int(part[:3]), int(size[1]) if size else None) for part, size in zip(parts, sizes, strict=True)]


def upgrade(server: Server) -> Verdict:
    """Offer an upgrade, with the body in the same segment, and in a later segment. Send another request after it."""
    same, later = server.connect(), server.connect()
    same.sendall(POST + OFFER + b"Content-Length: 5\r\n\r\nhello" + LAST)
    later.sendall(POST.replace(b"/", b"/begin-first", 1) + OFFER + b"Content-Length: 5\r\n\r\n")
    data = later.read(b"begun")
    later.sendall(b"hello" + LAST)
    observed = replies(same.read()), replies(data + later.read())
    is_right = observed == ([(200, 5), (200, 3)],) * 2
    return Verdict(is_right, "bodies read" if is_right else f"same {observed[0]}, later {observed[1]}")


def flood(server: Server, start: bytes, data: bytes) -> Verdict:
    """Send `start`, and then `data` repeatedly, on `CONNECTIONS` connections."""
    server.connect().sendall(LAST)
    before, accepted, end = server.memory(), 0, ""
    clients = [server.connect() for _ in range(CONNECTIONS)]
    for client in clients:
        client.sendall(start)
        if b" / " not in start:
            client.read(b"begun")
        count, end = client.flood(data)
        accepted += count
    growth = server.memory() - before
    for client in clients:
        client.close()
    size = f"{accepted / CONNECTIONS / 1024:,.0f} KiB"
    fact = f"{end} after {size}, memory {growth / accepted:.2f} per byte"
    return Verdict(growth < MEMORY_LIMIT * CONNECTIONS and accepted < FLOOD * CONNECTIONS, fact)


def pipelining(server: Server) -> Verdict:
    """Send pipelined requests after a request that is not answered."""
    return flood(server, GET % b"/block", (GET % b"/counts") * 1000)


def unread_bodies(server: Server) -> Verdict:
    """Send a body that the application does not read."""
    head = POST.replace(b"/", b"/ignore", 1) + b"Content-Length: 1000000000\r\n\r\n"
    return flood(server, head, b"x" * (1 << 16))


def refused_bodies(server: Server) -> Verdict:
    """Send bodies of 10 MB to an application that responds without the body. Read each response after the body, or when
    the connection breaks, as httpx and urllib3 do."""
    received, broken = 0, 0
    for _ in range(CONNECTIONS):
        client = server.connect()
        try:
            client.sendall(POST.replace(b"/", b"/counts", 1) + b"Content-Length: 10000000\r\n\r\n")
            client.sendall(b"x" * 10_000_000)
        except OSError:
            broken += 1
        received += b"}" in client.read(b"}")
    fact = f"{received} of {CONNECTIONS} responses received, {broken} connections broke"
    return Verdict(received == CONNECTIONS and not broken, fact)


def http10(server: Server) -> Verdict:
    """Read a body without a length over HTTP/1.0, with and without keep-alive."""
    bodies = []
    for keep_alive in (b"", b"Connection: keep-alive\r\n"):
        client = server.connect()
        client.settimeout(3)
        client.sendall(b"POST /stream HTTP/1.0\r\n" + keep_alive + b"Content-Length: 2\r\n\r\n{}")
        bodies.append(client.read().partition(b"\r\n\r\n")[2])
    is_right = bodies == [b"onetwo"] * 2
    return Verdict(is_right, "no chunk sizes" if is_right else f"{bodies}")


def hosts(server: Server) -> Verdict:
    """Send requests without Host, with two Hosts, and of HTTP/2.0."""
    statuses = []
    for head in (b"GET /counts HTTP/1.1\r\n", b"GET /counts HTTP/1.1\r\nHost: a\r\nHost: b\r\n", b"GET / HTTP/2.0\r\n"):
        client = server.connect()
        client.settimeout(3)
        client.sendall(head + b"\r\n")
        statuses.append(client.read(b"\r\n")[9:12].decode() or "closed")
    is_right = not any(status.startswith("2") for status in statuses)
    return Verdict(is_right, ", ".join(statuses))


def framing(server: Server) -> Verdict:
    """Send a body with Content-Length and Transfer-Encoding, and another request after it.

    Source: RFC 9112, section 6.3.
    """
    client = server.connect()
    client.sendall(CHUNKED.replace(b"Transfer", b"Content-Length: 3\r\nTransfer", 1) + b"\r\n" + LAST)
    statuses = [status for status, _ in replies(client.read())]
    return Verdict(len(statuses) == 1, f"{', '.join(map(str, statuses))}, closed")


def trailers(server: Server) -> Verdict:
    """Send a trailer, and trailers without an end."""
    client = server.connect()
    client.sendall(CHUNKED + b"X-Late: a\r\n\r\n" + LAST)
    data = client.read()
    is_right, fact = flood(server, CHUNKED, b"a: b\r\n" * 1000)
    if replies(data) != [(200, 2), (200, 3)]:
        return Verdict(False, f"{replies(data)}, {fact}")
    is_dropped = b"x-late" not in data
    return Verdict(is_right and is_dropped, f"{'dropped' if is_dropped else 'among the headers'}; {fact}")


def large_heads(server: Server) -> Verdict:
    """Send a head without an end."""
    return flood(server, POST + b"X-Filler: ", b"a\r\nX-Filler: " * 300)


def slow_heads(server: Server) -> Verdict:
    """Open connections that send nothing, half a head, a byte each second, or half of a second head."""
    clients = {kind: server.connect() for kind in ("nothing", "half", "slow", "second")}
    clients["half"].sendall(POST)
    clients["slow"].sendall(POST + b"X: ")
    clients["second"].sendall(POST + b"Content-Length: 3\r\n\r\nabc")
    clients["second"].read(b"}")
    clients["second"].sendall(POST)
    with ThreadPoolExecutor() as threads:
        futures = {kind: threads.submit(c.closing_time, slow=kind == "slow") for kind, c in clients.items()}
    times = {kind: future.result() for kind, future in futures.items()}
    facts = (f"{kind} {'open' if seconds is None else f'{seconds:.0f} s'}" for kind, seconds in times.items())
    return Verdict(None not in times.values(), ", ".join(facts))


def slow_reads(server: Server) -> Verdict:
    """Request endless responses, and read nothing of them."""
    before, clients = server.memory(), [server.connect() for _ in range(CONNECTIONS)]
    for client in clients:
        client.sendall(GET % b"/endless")
    sizes = [-1, 0]
    while sizes[-1] != sizes[-2]:
        time.sleep(STALL)
        sizes.append(server.count("sent"))
    growth = (server.memory() - before) / CONNECTIONS
    for client in clients:
        client.close()
    fact = f"application waits after {sizes[-1] / CONNECTIONS / 1024:,.0f} KiB, memory {growth / 1024:,.0f} KiB"
    return Verdict(sizes[-1] < FLOOD * CONNECTIONS and growth < MEMORY_LIMIT, fact)


def disconnects(server: Server) -> Verdict:
    """Close a connection while its request is executed, without and with a pipelined request after it."""
    informed = []
    for pipelined in (b"", GET % b"/counts"):
        client, count = server.connect(), server.count("disconnected")
        client.sendall(GET % b"/block" + pipelined)
        client.read(b"begun")
        client.close()
        try:
            eventually(lambda count=count: server.count("disconnected") > count, within=5)  # type: ignore[misc]
            informed.append("reported")
        except AssertionError:
            informed.append("not reported")
    return Verdict("not reported" not in informed, f"{informed[0]}, with a pipelined request {informed[1]}")


def failed_responses(server: Server) -> Verdict:
    """Read a response whose application fails after the first piece."""
    client = server.connect()
    client.sendall(GET % b"/fail")
    data = client.read()
    is_cut = b"one" in data and not data.endswith(b"0\r\n\r\n")
    return Verdict(is_cut, "cut" if is_cut else "ends like a complete response")


def stop(server: Server) -> Verdict:
    """Send SIGTERM during a request of one second, with an idle connection and a connection without a request."""
    idle, first, client = server.connect(), server.connect(), server.connect()
    idle.sendall(POST + b"Content-Length: 3\r\n\r\nabc")
    idle.read(b"}")
    client.sendall(GET % b"/wait")
    data = client.read(b"begun")
    server.process.signal(signal.SIGTERM)
    began = time.monotonic()
    closed = idle.closing_time()
    with suppress(OSError):
        first.sendall(LAST)
    is_answered = b"done" in data + client.read(), replies(first.read()) == [(200, 3)]
    seconds = exit_time(server, began)
    words = [["lost", "answered"][answered] for answered in is_answered]
    fact = f"request {words[0]}, idle closed after {closed or 0:.1f} s, first request {words[1]}, exit {seconds:.1f} s"
    return Verdict(all(is_answered) and closed is not None and seconds < EXIT_LIMIT, fact)


def bounded_stop(server: Server) -> Verdict:
    """Send SIGTERM during a request that does not end."""
    client = server.connect()
    client.sendall(GET % b"/block")
    client.read(b"begun")
    server.process.signal(signal.SIGTERM)
    seconds = exit_time(server, time.monotonic())
    return Verdict(seconds < EXIT_LIMIT, f"exit {seconds:.1f} s")


def exit_time(server: Server, began: float) -> float:
    """Return the seconds from `began` until the server has exited, at most ten more than `EXIT_LIMIT`."""
    with suppress(subprocess.TimeoutExpired):
        server.process.popen.wait(EXIT_LIMIT + 10)
    return time.monotonic() - began


def gateway_stop(server: Server) -> Verdict:
    """Send SIGTERM to a gateway while a client waits for the end of a task."""
    agent = f"{server.url}/agents/silent"

    def working() -> int:
        return httpx.get(f"{agent}/tasks", headers=load.HEADERS).text.count("WORKING")

    before = working()  # of the other servers' tasks in the same store
    with ThreadPoolExecutor() as threads:
        response = threads.submit(
            httpx.post, f"{agent}/message:send", content=load.body("60"), headers=load.HEADERS, timeout=30
        )
        eventually(lambda: working() > before)
        server.process.signal(signal.SIGTERM)
        began = time.monotonic()
        try:
            state = response.result().json()["task"]["status"]["state"]
        except httpx.HTTPError as e:
            return Verdict(False, f"{type(e).__name__} after {time.monotonic() - began:.1f} s")
    after, seconds = time.monotonic() - began, exit_time(server, began)
    return Verdict(seconds < EXIT_LIMIT, f"{state[11:]} after {after:.1f} s, exit {seconds:.1f} s")


CHECKS: dict[str, Callable[[Server], Verdict]] = {
    "upgrade": upgrade,
    "pipelining": pipelining,
    "http-1.0": http10,
    "hosts": hosts,
    "framing": framing,
    "trailers": trailers,
    "large-heads": large_heads,
    "slow-heads": slow_heads,
    "unread-bodies": unread_bodies,
    "refused-bodies": refused_bodies,
    "slow-reads": slow_reads,
    "disconnects": disconnects,
    "failed-responses": failed_responses,
    "stop": stop,
    "bounded-stop": bounded_stop,
}
"""Checks of a server that serves `application`."""
