"""Measure the latency of one owner with and without attacks of another owner on the gateway.

    pip install -e '.[benchmarks]' && python -m benchmarks.attacks [--rounds N] [attack ...]

Each round measures the quiet owner alone and beside each attack in turn, at a fixed pace. The attacker is a separate
process with a low priority, since it would share its cores with the gateway otherwise, and is ended after each round.
The exit status is 1 if the 99th percentile beside any attack is more than `LIMIT` times the one alone.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

import aiohttp

from tests.support.fleet import running_fleet

from . import load
from .cancel import at

KEYS = {"quiet": "quiet-key", "loud": "loud-key"}
LIMITS = {
    "A2A_OWNER_REQUESTS_PER_SECOND": "20",
    "A2A_OWNER_REQUEST_BURST": "50",
    "A2A_OWNER_MAX_CONCURRENT_TASKS": "2",
    "A2A_OWNER_MAX_STREAMS": "20",
}
CONNECTIONS = 64
"""Connections of an attacker. Each sends its next request as soon as it has the response."""

PACE = 0.1
"""Seconds between two requests of the quiet owner: fewer than it may send."""

LIMIT = 2.0
"""Largest ratio of the 99th percentiles."""

Attack = Callable[[str], Awaitable[None]]

responses: Counter[int | str] = Counter()
"""Statuses of the responses that this process, an attacker, got."""


def count(status: int | str) -> None:
    """Count a response. The first one tells the parent process that the attack has begun."""
    if not responses:
        print("begun", flush=True)
    responses[status] += 1


def repeated(path: str, body: bytes, key: str = KEYS["loud"], method: str = "POST") -> Attack:
    """Return an attack that sends one request over all connections, again and again."""

    async def attack(url: str) -> None:
        async def send(session: aiohttp.ClientSession) -> None:
            while True:
                try:
                    async with session.request(method, f"{url}{path}", data=body, headers=headers(key)) as response:
                        count(response.status)
                        await response.read()
                except aiohttp.ClientError as e:
                    count(type(e).__name__)

        async with load.client() as session:
            await asyncio.gather(*(send(session) for _ in range(CONNECTIONS)))

    return attack


def after_tasks(number: int, body: bytes, attack: Attack) -> Attack:
    """Return an attack that begins when its owner has created `number` tasks with `body` within the rate limit."""

    async def prepared(url: str) -> None:
        async with load.client() as session:
            created = 0
            while created < number:
                async with session.post(f"{url}{SEND}", data=body, headers=headers(KEYS["loud"])) as response:
                    created += response.status == 200
                    await asyncio.sleep(float(response.headers.get("Retry-After", 0)))
        await attack(url)

    return prepared


async def subscriptions(url: str) -> None:
    """Create a large task that works for the time of the attack, and subscribe to it over all connections, again and
    again."""
    large = json.loads(load.body("60", returnImmediately=True))
    large["message"]["metadata"] = {"values": [0] * 19_000}

    async with load.client() as session:
        created = session.post(f"{url}/agents/silent/message:send", json=large, headers=headers(KEYS["loud"]))
        async with created as response:
            task_id = (await response.json())["task"]["id"]

        async def subscribe() -> None:
            while True:
                try:
                    path = f"/agents/silent/tasks/{task_id}:subscribe"
                    async with session.get(f"{url}{path}", headers=headers(KEYS["loud"])) as response:
                        count(response.status)
                        await response.content.readline()
                except aiohttp.ClientError as e:
                    count(type(e).__name__)

        await asyncio.gather(*(subscribe() for _ in range(CONNECTIONS)))


def trickled(head: str) -> Attack:
    """Return an attack that opens connections, sends the start of a request, and then a byte every second."""

    async def attack(url: str) -> None:
        async def send() -> None:
            place = urlsplit(url)
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection(place.hostname, place.port)
                    writer.write(head.encode())
                    count("opened")
                    while not writer.is_closing():
                        await asyncio.sleep(1)
                        writer.write(b" ")
                        await writer.drain()

        await asyncio.gather(*(send() for _ in range(10 * CONNECTIONS)))

    return attack


def headers(key: str) -> dict[str, str]:
    """Return the headers of an owner's requests."""
    return {"X-API-Key": key}


def message(**metadata: object) -> bytes:
    """Return a message with this metadata."""
    return json.dumps({"message": {**json.loads(load.ECHO)["message"], "metadata": metadata}}).encode()


SEND, STREAM = "/agents/echo/message:send", "/agents/silent/message:stream"
LIST = "/agents/echo/tasks?pageSize=100"
HEAD = f"POST {SEND} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEYS['loud']}\r\nContent-Type: application/json\r\n"
ATTACKS: dict[str, Attack] = {
    "messages": repeated(SEND, load.ECHO),
    "strangers": repeated(SEND, load.ECHO, key="a wrong key"),
    "streams": repeated(STREAM, load.body("60")),
    "reads": repeated(LIST, b"", method="GET"),
    "identifiers": repeated(f"/agents/echo/tasks/{'x' * 200}", b"", method="GET"),
    "values": repeated(SEND, message(values=[0] * 19_000)),
    "reads of values": after_tasks(11, message(values=[0] * 19_000), repeated(LIST, b"", method="GET")),
    "subscriptions": subscriptions,
    "too many values": repeated(SEND, message(values=[0] * 300_000)),
    "no JSON": repeated(SEND, b"[" * 1_000_000),
    "half heads": trickled(HEAD),
    "slow bodies": trickled(f"{HEAD}Content-Length: 1000000\r\n\r\n"),
}


async def measure(url: str, seconds: float) -> list[float]:
    """Return the seconds of each echo of the quiet owner."""
    taken = []
    until = perf_counter() + seconds
    async with load.client() as session:
        while (began := perf_counter()) < until:
            async with session.post(f"{url}{SEND}", data=load.ECHO, headers=headers(KEYS["quiet"])) as response:
                answer = await response.read()
            assert b"COMPLETED" in answer, answer
            taken.append(perf_counter() - began)
            await asyncio.sleep(max(0.0, began + PACE - perf_counter()))
    return taken


@contextmanager
def attacked(url: str, name: str) -> Iterator[None]:
    """Run an attack in a separate process for the time of the block."""
    command = ["nice", "-n", "15", sys.executable, "-m", "benchmarks.attacks", "--attack", name, "--url", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it has begun
        yield
        assert process.poll() is None, f"the attack {name!r} ended"
    finally:
        process.terminate()
        print(f"{name}: {process.communicate()[0].strip()}", flush=True)


async def run_attack(name: str, url: str) -> None:
    """Attack until this process is terminated, then print the responses."""
    loop = asyncio.get_running_loop()
    attack = asyncio.ensure_future(ATTACKS[name](url))
    loop.add_signal_handler(signal.SIGTERM, attack.cancel)
    with suppress(asyncio.CancelledError):
        await attack
    print(dict(responses), flush=True)


def percentile(seconds: list[float], percent: int) -> float:
    """Return the milliseconds that `percent` of the times do not exceed."""
    return at(sorted(seconds), percent) * 1000


def main(rounds: int, seconds: float, names: list[str]) -> int:
    keys = "\n".join(f"{owner}:sha256:{hashlib.sha256(key.encode()).hexdigest()}" for owner, key in KEYS.items())
    with tempfile.TemporaryDirectory() as folder:
        settings = {"A2A_AUTH_API_KEYS": keys, **LIMITS}
        with running_fleet(Path(folder), app="benchmarks.peers.agents", **settings) as fleet:
            fleet.worker(concurrency=4)
            url = fleet.gateway(log_level="error").url
            asyncio.run(measure(url, 2))  # warms
            alone: list[float] = []
            beside: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(rounds):
                for name in names:
                    alone += asyncio.run(measure(url, seconds / 2))
                    with attacked(url, name):
                        asyncio.run(measure(url, 2))  # its burst is over
                        beside[name] += asyncio.run(measure(url, seconds))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'alone':16} p50 {percentile(alone, 50):7.1f} ms   p99 {percentile(alone, 99):7.1f} ms")
    ratios = []
    for name, taken in beside.items():
        ratios.append(percentile(taken, 99) / percentile(alone, 99))
        print(
            f"{name:16} p50 {percentile(taken, 50):7.1f} ms   p99 {percentile(taken, 99):7.1f} ms   x {ratios[-1]:.2f}"
        )
    return 0 if max(ratios) <= LIMIT else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of each measure beside an attack")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", default=[*ATTACKS])
    options = parser.parse_args()
    if options.attack:
        asyncio.run(run_attack(options.attack, options.url))
    else:
        sys.exit(main(options.rounds, options.seconds, options.names))
