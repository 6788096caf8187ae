"""Fast webhook receiver, which responds with 200 to each post and counts the posts.

python -m benchmarks.peers.receiver <port>        GET returns ``{"posts": …, "seconds": …}``; GET /reset also clears it
"""

from __future__ import annotations

import asyncio
import json
import sys
import time


class Count:
    """Number of posts, and the time of the first and the last."""

    def __init__(self) -> None:
        self.posts, self.first, self.last = 0, 0.0, 0.0

    def add(self) -> None:
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.posts += 1

    def as_json(self) -> bytes:
        return json.dumps({"posts": self.posts, "seconds": self.last - self.first}).encode()


count = Count()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.partition(b":")[2]))
            answer = b""
            if head.startswith(b"POST"):
                count.add()
            else:
                answer = count.as_json()
                if head.startswith(b"GET /reset"):
                    count.__init__()  # type: ignore[misc]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(port: int) -> None:
    """Listen until the process is killed."""
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
