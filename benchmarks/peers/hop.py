"""A bare hop over Redis: says the time on so many channels, each paced; who subscribes sees how long that is under way.

python -m benchmarks.peers.hop <redis url> <channels> <messages> <seconds between>
"""

from __future__ import annotations

import asyncio
import sys
import time

import redis.asyncio


async def main(url: str, channels: int, messages: int, pause: float) -> None:
    """Publishes all of it."""
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
