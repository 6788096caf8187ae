"""Publish the current time on Redis channels at a fixed pace. Subscribers compute the latency of each message.

python -m benchmarks.peers.hop <redis url> <channels> <messages> <seconds between>
"""

from __future__ import annotations

import asyncio
import sys
import time

import redis.asyncio


async def main(url: str, channels: int, messages: int, pause: float) -> None:
    """Publish all messages."""
    client = redis.asyncio.Redis.from_url(url)

    async def paced(number: int) -> None:
        await asyncio.sleep(pause * number / channels)
        for _ in range(messages):
            await client.publish(f"hop:{number}", repr(time.monotonic()))
            await asyncio.sleep(pause)

    await asyncio.gather(*(paced(number) for number in range(channels)))
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
