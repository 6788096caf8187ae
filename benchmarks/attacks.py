"""Measure the latency of one owner's requests with and without attacks by another owner on the gateway.

    pip install -e '.[benchmarks]' && python -m benchmarks.attacks [--rounds N] [--object-store] [attack ...]

Each round measures the quiet owners alone and during each attack in turn, at a fixed pace. The percentiles are of the
requests of all rounds. With the default options, an attack has about 1,200 requests, of which 12 are above the 99th
percentile. The attacker is a separate process that ends after each measurement. The kernel runs this process only while
a core is idle, so that it takes no CPU time from the other processes. The exit status is 1 if the 99th percentile
during any attack is more than `LIMIT` times the 99th percentile without an attack.
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
from itertools import count as numbers
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import grpc.aio
from a2a.types import Message, Part, Role, SendMessageRequest
from a2a.types.a2a_pb2_grpc import A2AServiceStub

from tests.support.processes.fleet import running_fleet

from . import load
from .cancel import at

QUIET_KEYS = [f"quiet-key-{number}" for number in range(4)]
"""API keys of the quiet owners. Several owners send more requests in a round than the rate limit of a single owner
allows."""

LOUD_KEY = os.environ.get("ATTACKER_KEY", "")
"""API key of this process if it is an attacker. Each attack has a separate owner, so that no earlier attack has used up
the owner's rate limit."""

LIMITS = {
    "A2A_OWNER_REQUESTS_PER_SECOND": "20",
    "A2A_OWNER_REQUEST_BURST": "50",
    "A2A_OWNER_MAX_CONCURRENT_TASKS": "2",
    "A2A_OWNER_MAX_STREAMS": "20",
}
CONNECTIONS = 64
"""Number of an attacker's connections. Each sends its next request as soon as the response has arrived."""

PACE = 0.1
"""Seconds between two requests of a quiet owner. The rate is below the owner's rate limit."""

LIMIT = 2.0
"""Maximum ratio of the 99th percentiles."""


class Target(NamedTuple):
    """HTTP URL and gRPC address of the gateway."""

    url: str
    grpc: str


Attack = Callable[[Target], Awaitable[None]]

responses: Counter[int | str] = Counter()
"""Number of responses by status, if this process is an attacker."""


def count(status: int | str) -> None:
    """Count a response. At the first response, print a line by which the parent process knows that the attack has
    begun."""
    if not responses:
        print("begun", flush=True)
    responses[status] += 1


def repeated(path: str, body: bytes, key: str = LOUD_KEY, method: str = "POST") -> Attack:
    """Return an attack that sends one request repeatedly over all connections.

    Each request replaces "{n}" in the path with a new number.
    """

    async def attack(target: Target) -> None:
        number = numbers()

        async def send(session: aiohttp.ClientSession) -> None:
            while True:
                url = f"{target.url}{path}".replace("{n}", str(next(number)))
                try:
                    async with session.request(method, url, data=body, headers=headers(key)) as response:
                        count(response.status)
                        await response.read()
                except aiohttp.ClientError as e:
                    count(type(e).__name__)

        async with load.client() as session:
            await asyncio.gather(*(send(session) for _ in range(CONNECTIONS)))

    return attack


def after_tasks(number: int, body: bytes, attack: Attack) -> Attack:
    """Return `attack`, preceded by the creation of `number` tasks with `body` within the rate limit."""

    async def prepared(target: Target) -> None:
        async with load.client() as session:
            created = 0
            while created < number:
                async with session.post(f"{target.url}{SEND}", data=body, headers=headers(LOUD_KEY)) as response:
                    created += response.status == 200
                    await asyncio.sleep(float(response.headers.get("Retry-After", 0)))
        await attack(target)

    return prepared


async def working_task(session: aiohttp.ClientSession, target: Target, agent: str, **metadata: object) -> str:
    """Create a task that runs longer than the attack, and return the task's id."""
    body = json.loads(load.body("60", returnImmediately=True))
    body["message"]["metadata"] = metadata
    url = f"{target.url}/agents/{agent}/message:send"
    async with session.post(url, json=body, headers=headers(LOUD_KEY)) as response:
        return str((await response.json())["task"]["id"])


async def subscriptions(target: Target) -> None:
    """Create a large task, and subscribe to it repeatedly over all connections."""
    async with load.client() as session:
        task_id = await working_task(session, target, "silent", values=[0] * 19_000)

        async def subscribe() -> None:
            while True:
                try:
                    path = f"/agents/silent/tasks/{task_id}:subscribe"
                    async with session.get(f"{target.url}{path}", headers=headers(LOUD_KEY)) as response:
                        count(response.status)
                        await response.content.readline()
                except aiohttp.ClientError as e:
                    count(type(e).__name__)

        await asyncio.gather(*(subscribe() for _ in range(CONNECTIONS)))


async def signals(target: Target) -> None:
    """Send large signals to a running task."""
    async with load.client() as session:
        task_id = await working_task(session, target, "silent")
    body = json.dumps({"name": "go", "payload": "x" * 60_000}).encode()
    await repeated(f"/agents/silent/tasks/{task_id}:signal", body)(target)


async def steering(target: Target) -> None:
    """Send messages to a running task."""
    async with load.client() as session:
        task_id = await working_task(session, target, "steered")
    body = json.loads(load.body("more", returnImmediately=True))
    body["message"]["taskId"] = task_id
    await repeated("/agents/steered/message:send", json.dumps(body).encode())(target)


def answered(agent: str, answer: object) -> Attack:
    """Return an attack that sends a wrong answer repeatedly to a question of `agent`."""

    async def attack(target: Target) -> None:
        url, body = f"{target.url}/agents/{agent}/message:send", json.loads(load.body("ask"))
        async with load.client() as session, session.post(url, json=body, headers=headers(LOUD_KEY)) as response:
            body["message"] |= {"taskId": (await response.json())["task"]["id"], "parts": [{"data": answer}]}
        await repeated(f"/agents/{agent}/message:send", json.dumps(body).encode())(target)

    return attack


def expression(levels: int) -> dict[str, object]:
    """Return a product of `levels` factors, the last of which is wrong."""
    value: dict[str, object] = {"value": "wrong"}
    for _ in range(levels):
        value = {"op": "product", "left": value, "right": {"value": 1}}
    return value


def called(message: Message, key: str = LOUD_KEY) -> Attack:
    """Return an attack that sends a message repeatedly over all gRPC connections."""
    request = SendMessageRequest(message=message, tenant="echo")
    metadata = (("a2a-version", "1.0"), ("x-api-key", key))

    async def attack(target: Target) -> None:
        async def send() -> None:
            options = [("grpc.use_local_subchannel_pool", 1)]  # a separate connection
            async with grpc.aio.insecure_channel(target.grpc, options) as channel:
                stub = A2AServiceStub(channel)  # type: ignore[no-untyped-call]
                while True:
                    try:
                        await stub.SendMessage(request, metadata=metadata)
                        count("OK")
                    except grpc.aio.AioRpcError as e:
                        count(e.code().name)

        await asyncio.gather(*(send() for _ in range(CONNECTIONS)))

    return attack


def trickled(head: str) -> Attack:
    """Return an attack that opens connections, sends `head`, and then sends a byte every second.

    If `head` is "", the attack sends nothing.
    """

    async def attack(target: Target) -> None:
        async def send() -> None:
            place = urlsplit(target.url)
            while True:
                with suppress(OSError):
                    reader, writer = await asyncio.open_connection(place.hostname, place.port)
                    writer.write(head.encode())
                    count("opened")
                    while not (writer.is_closing() or reader.at_eof()):
                        await asyncio.sleep(1)
                        writer.write(b" " if head else b"")
                        await writer.drain()

        await asyncio.gather(*(send() for _ in range(10 * CONNECTIONS)))

    return attack


async def trailers(target: Target) -> None:
    """Send requests with endless trailers."""
    place = urlsplit(target.url)
    head = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n".encode()

    async def send() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(place.hostname, place.port)
                writer.write(head)
                count("opened")
                while not (writer.is_closing() or reader.at_eof()):
                    writer.write(b"a: b\r\n" * 1_000)
                    await writer.drain()

    await asyncio.gather(*(send() for _ in range(CONNECTIONS)))


def key_of(attack: str) -> str:
    """Return the API key of the owner that performs the attack."""
    return f"{attack.replace(' ', '-')}-key"


def headers(key: str) -> dict[str, str]:
    """Return request headers with an owner's API key."""
    return {"X-API-Key": key}


def message(**metadata: object) -> bytes:
    """Return a SendMessage request with `metadata` in its message."""
    return json.dumps({"message": {**json.loads(load.ECHO)["message"], "metadata": metadata}}).encode()


SEND, STREAM = "/agents/echo/message:send", "/agents/silent/message:stream"
LIST = "/agents/echo/tasks?pageSize=100"
HEAD = f"POST {SEND} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {LOUD_KEY}\r\nContent-Type: application/json\r\n"
RPC = {"jsonrpc": "2.0", "id": "1\n2026-01-01 WARNING forged" * 20_000, "method": "Unknown"}
LONG_TEXT = "x" * 6_000_000
LARGE = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text=LONG_TEXT)])
MANY_PARTS = Message(message_id="m", role=Role.ROLE_USER, parts=[Part()] * 300_000)
SMALL = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="hello")])
ATTACKS: dict[str, Attack] = {
    "messages": repeated(SEND, load.ECHO),
    "tenants": repeated("/agents/echo/tenant-{n}/message:send", load.ECHO),
    "strangers": repeated(SEND, load.ECHO, key="a wrong key"),
    "streams": repeated(STREAM, load.body("60")),
    "reads": repeated(LIST, b"", method="GET"),
    "identifiers": repeated(f"/agents/echo/tasks/{'x' * 200}", b"", method="GET"),
    "values": repeated(SEND, message(values=[0] * 19_000)),
    "reads of values": after_tasks(11, message(values=[0] * 19_000), repeated(LIST, b"", method="GET")),
    "large messages": repeated(SEND, load.body(LONG_TEXT, returnImmediately=True, historyLength=0)),
    "reads of large tasks": after_tasks(
        3, load.body(LONG_TEXT, returnImmediately=True, historyLength=0), repeated(LIST, b"", method="GET")
    ),
    "subscriptions": subscriptions,
    "cards": repeated("/agents/echo/.well-known/agent-card.json", b"", key="", method="GET"),
    "structured answers": answered("asks-codes", [*["Region/Code 599"] * 6_000, "wrong"]),
    "structured answers of wrong codes": answered("asks-codes", ["x"] * 16_000),
    "small structured answers": answered("asks-expression", expression(12)),
    "signals": signals,
    "steering": steering,
    "operators": repeated("/operator/v1/overview", b"", method="GET"),
    "forged ids": repeated("/agents/echo/", json.dumps(RPC).encode()),
    "gRPC messages": called(SMALL),
    "gRPC strangers": called(LARGE, key="a wrong key"),
    "gRPC large messages": called(LARGE),
    "gRPC too many values": called(MANY_PARTS),
    "too many values": repeated(SEND, message(values=[0] * 300_000)),
    "no JSON": repeated(SEND, b"[" * 1_000_000),
    "idle connections": trickled(""),
    "trailers": trailers,
    "half heads": trickled(HEAD),
    "slow bodies": trickled(f"{HEAD}Content-Length: 1000000\r\n\r\n"),
}


async def measure(url: str, seconds: float) -> list[float]:
    """Send echoes as the quiet owners for `seconds`. Return the duration of each echo in seconds."""
    taken: list[float] = []
    until = perf_counter() + seconds

    async def send(session: aiohttp.ClientSession, number: int) -> None:
        await asyncio.sleep(PACE * number / len(QUIET_KEYS))
        while (began := perf_counter()) < until:
            async with session.post(f"{url}{SEND}", data=load.ECHO, headers=headers(QUIET_KEYS[number])) as response:
                answer = await response.read()
            assert b"COMPLETED" in answer, answer
            taken.append(perf_counter() - began)
            await asyncio.sleep(max(0.0, began + PACE - perf_counter()))

    async with load.client() as session:
        await asyncio.gather(*(send(session, number) for number in range(len(QUIET_KEYS))))
    return taken


@contextmanager
def attacked(target: Target, name: str) -> Iterator[None]:
    """Run an attack in a separate process while the block runs."""
    command = ["chrt", "--idle", "0", sys.executable, "-m", "benchmarks.attacks", "--attack", name]
    command += ["--url", target.url, "--grpc", target.grpc]
    environment = {**os.environ, "ATTACKER_KEY": key_of(name)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # the attack has begun
        yield
        assert process.poll() is None, f"the attack {name!r} ended"
    finally:
        process.terminate()
        print(f"{name}: {process.communicate()[0].strip()}", flush=True)


async def run_attack(name: str, target: Target) -> None:
    """Run an attack until this process receives SIGTERM, and then print the counts of the responses."""
    loop = asyncio.get_running_loop()
    attack = asyncio.ensure_future(ATTACKS[name](target))
    loop.add_signal_handler(signal.SIGTERM, attack.cancel)
    with suppress(asyncio.CancelledError):
        await attack
    print(dict(responses), flush=True)


def percentile(seconds: list[float], percent: int) -> float:
    """Return the milliseconds that `percent` of the times do not exceed."""
    return at(sorted(seconds), percent) * 1000


def line(name: str, seconds: list[float]) -> str:
    """Return the percentiles and the number of the times as a line of the report."""
    p50, p99 = percentile(seconds, 50), percentile(seconds, 99)
    return f"{name:34} p50 {p50:7.1f} ms   p99 {p99:7.1f} ms   {len(seconds):6,} requests"


def main(rounds: int, seconds: float, names: list[str], *, with_object_store: bool) -> int:
    hashes = [hashlib.sha256(key.encode()).hexdigest() for key in (*QUIET_KEYS, *map(key_of, ATTACKS))]
    keys = "\n".join(f"owner-{number}:sha256:{each}" for number, each in enumerate(hashes))
    with tempfile.TemporaryDirectory() as folder:
        settings = {"A2A_AUTH_API_KEYS": keys, **LIMITS}
        if with_object_store:
            settings["A2A_BLOB_URL"] = f"file://{folder}/blobs"
        with running_fleet(Path(folder), app="benchmarks.peers.agents", **settings) as fleet:
            fleet.worker(concurrency=4)
            gateway = fleet.gateway(log_level="error", grpc=True)
            url, target = gateway.url, Target(gateway.url, gateway.grpc)
            asyncio.run(measure(url, 2))  # warm up
            alone: list[float] = []
            beside: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(rounds):
                for name in names:
                    alone += asyncio.run(measure(url, seconds / 2))
                    with attacked(target, name):
                        asyncio.run(measure(url, 2))  # until the attack has used up its burst
                        beside[name] += asyncio.run(measure(url, seconds))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(line("alone", alone))
    ratios = []
    for name, taken in beside.items():
        ratios.append(percentile(taken, 99) / percentile(alone, 99))
        print(f"{line(name, taken)}   x {ratios[-1]:.2f}")
    return 0 if max(ratios) <= LIMIT else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of each measure beside an attack")
    parser.add_argument("--object-store", action="store_true", help="store large parts in a folder instead of Redis")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--grpc", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", default=[*ATTACKS])
    options = parser.parse_args()
    if options.attack:
        asyncio.run(run_attack(options.attack, Target(options.url, options.grpc)))
    else:
        sys.exit(main(options.rounds, options.seconds, options.names, with_object_store=options.object_store))
