"""The client of every measure: one process, one event loop, a connection for each caller, its parsing in C.

A heavy client would make all sides look alike on few cores; this one takes about 0.1 ms a request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from time import perf_counter

import aiohttp

HEADERS = {"A2A-Version": "1.0", "Content-Type": "application/json"}
PATIENCE = aiohttp.ClientTimeout(total=300)


def body(text: str) -> bytes:
    """A message with one text part."""
    return json.dumps({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}}).encode()


ECHO = body("hello")


async def echo(session: aiohttp.ClientSession, url: str) -> None:
    """One blocking echo."""
    async with session.post(f"{url}/agents/echo/message:send", data=ECHO) as response:
        answer = await response.read()
    assert b"COMPLETED" in answer, answer


async def stream(session: aiohttp.ClientSession, url: str, chunks: int) -> None:
    """One stream of so many chunks, to its end."""
    arrived = 0
    async with session.post(f"{url}/agents/count/message:stream", data=body(str(chunks))) as response:
        async for line in response.content:
            arrived += b'"artifactUpdate"' in line
    assert arrived == chunks, f"{arrived} of {chunks} chunks"


Call = Callable[[aiohttp.ClientSession], Awaitable[None]]


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
    return aiohttp.ClientSession(headers=HEADERS, timeout=PATIENCE)
