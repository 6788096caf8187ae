"""HTTP client of all benchmarks: one process, one event loop, a connection for each caller, and a parser in C.

On few cores, a slow client would make all servers look alike. This client takes about 0.1 ms per request.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import aiohttp

HEADERS = {"A2A-Version": "1.0", "Content-Type": "application/json"}
TIMEOUT = aiohttp.ClientTimeout(total=300)
STAMP = re.compile(rb'"text": ?"(\d+\.\d+)')


def body(text: str, **configuration: Any) -> bytes:
    """Return the body of a SendMessage request with one text part."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    return json.dumps({"message": message, **({"configuration": configuration} if configuration else {})}).encode()


ECHO = body("hello")
NO_TEXT = re.compile(rb'"text": ?""')


async def echo(session: aiohttp.ClientSession, url: str) -> None:
    """Send a blocking echo."""
    async with session.post(f"{url}/agents/echo/message:send", data=ECHO) as response:
        answer = await response.read()
    assert b"COMPLETED" in answer, answer


async def begin_task(
    session: aiohttp.ClientSession, url: str, agent: str, text: str, **configuration: Any
) -> dict[str, Any]:
    """Send a message without waiting for the end of its task, and return the task."""
    data = body(text, returnImmediately=True, **configuration)
    async with session.post(f"{url}/agents/{agent}/message:send", data=data) as response:
        answer = await response.json(content_type=None)
    task: dict[str, Any] = answer["task"]
    return task


async def stream(session: aiohttp.ClientSession, url: str, chunks: int) -> None:
    """Read a stream of `chunks` chunks to its end."""
    await arrivals(session, url, chunks)


async def arrivals(session: aiohttp.ClientSession, url: str, chunks: int) -> list[float]:
    """Stream `chunks` chunks and return their arrival times, without the empty chunk with which some servers end the
    artifact."""
    times = []
    async with session.post(f"{url}/agents/count/message:stream", data=body(str(chunks))) as response:
        async for line in response.content:
            if b'"artifactUpdate"' in line and not NO_TEXT.search(line):
                times.append(perf_counter())
    assert len(times) == chunks, f"{len(times)} of {chunks} chunks"
    return times


async def delays(session: aiohttp.ClientSession, url: str, chunks: int, pause: float) -> list[float]:
    """Return the latency of each chunk of a paced stream in seconds. A chunk contains the time at which it was sent."""
    latencies = []
    async with session.post(f"{url}/agents/pace/message:stream", data=body(f"{chunks} {pause}")) as response:
        async for line in response.content:
            if b'"artifactUpdate"' in line and (stamp := STAMP.search(line)):
                latencies.append(time.monotonic() - float(stamp[1]))
    assert len(latencies) == chunks, f"{len(latencies)} of {chunks} chunks"
    return latencies


Call = Callable[[aiohttp.ClientSession], Awaitable[object]]


async def together(call: Call, times: int, at_once: int) -> float:
    """Run `call` `times` times, `at_once` at a time. Return the total duration in seconds."""
    left = iter(range(times))

    async def caller() -> None:
        async with client() as session:
            for _ in left:
                await call(session)

    began = perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return perf_counter() - began


async def alone(call: Call, times: int) -> list[float]:
    """Run `call` `times` times, one after the other. Return the sorted durations in seconds."""
    durations = []
    async with client() as session:
        for _ in range(times):
            began = perf_counter()
            await call(session)
            durations.append(perf_counter() - began)
    return sorted(durations)


def client() -> aiohttp.ClientSession:
    """Return a session without a limit on connections."""
    return aiohttp.ClientSession(headers=HEADERS, timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0))
