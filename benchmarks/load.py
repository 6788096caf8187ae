"""The client of every measure: one process, one event loop, a connection for each caller, its parsing in C.

A heavy client would make all sides look alike on few cores; this one takes about 0.1 ms a request.
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
PATIENCE = aiohttp.ClientTimeout(total=300)
STAMP = re.compile(rb'"text": ?"(\d+\.\d+)')


def body(text: str, **configuration: Any) -> bytes:
    """A message with one text part."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    return json.dumps({"message": message, **({"configuration": configuration} if configuration else {})}).encode()


ECHO = body("hello")
NO_TEXT = re.compile(rb'"text": ?""')


async def echo(session: aiohttp.ClientSession, url: str) -> None:
    """One blocking echo."""
    async with session.post(f"{url}/agents/echo/message:send", data=ECHO) as response:
        answer = await response.read()
    assert b"COMPLETED" in answer, answer


async def begun(
    session: aiohttp.ClientSession, url: str, agent: str, text: str, **configuration: Any
) -> dict[str, Any]:
    """A task that was sent and is not waited for."""
    data = body(text, returnImmediately=True, **configuration)
    async with session.post(f"{url}/agents/{agent}/message:send", data=data) as response:
        answer = await response.json(content_type=None)
    task: dict[str, Any] = answer["task"]
    return task


async def stream(session: aiohttp.ClientSession, url: str, chunks: int) -> None:
    """One stream of so many chunks, to its end."""
    await arrivals(session, url, chunks)


async def arrivals(session: aiohttp.ClientSession, url: str, chunks: int) -> list[float]:
    """When each chunk of a stream came, to its end; not the empty chunk that ends the artifact of some sides."""
    came = []
    async with session.post(f"{url}/agents/count/message:stream", data=body(str(chunks))) as response:
        async for line in response.content:
            if b'"artifactUpdate"' in line and not NO_TEXT.search(line):
                came.append(perf_counter())
    assert len(came) == chunks, f"{len(came)} of {chunks} chunks"
    return came


async def delays(session: aiohttp.ClientSession, url: str, chunks: int, pause: float) -> list[float]:
    """How long each chunk of a paced stream was under way, in seconds: it says when it left."""
    taken = []
    async with session.post(f"{url}/agents/pace/message:stream", data=body(f"{chunks} {pause}")) as response:
        async for line in response.content:
            if b'"artifactUpdate"' in line and (stamp := STAMP.search(line)):
                taken.append(time.monotonic() - float(stamp[1]))
    assert len(taken) == chunks, f"{len(taken)} of {chunks} chunks"
    return taken


Call = Callable[[aiohttp.ClientSession], Awaitable[object]]


async def together(call: Call, times: int, at_once: int) -> float:
    """Makes `call` so often, so many at once; seconds it took in all."""
    left = iter(range(times))

    async def caller() -> None:
        async with client() as session:
            for _ in left:
                await call(session)

    began = perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return perf_counter() - began


async def alone(call: Call, times: int) -> list[float]:
    """Makes `call` so often, one behind the other; seconds of each, sorted."""
    taken = []
    async with client() as session:
        for _ in range(times):
            began = perf_counter()
            await call(session)
            taken.append(perf_counter() - began)
    return sorted(taken)


def client() -> aiohttp.ClientSession:
    """A session with as many connections as it has calls under way."""
    return aiohttp.ClientSession(headers=HEADERS, timeout=PATIENCE, connector=aiohttp.TCPConnector(limit=0))
