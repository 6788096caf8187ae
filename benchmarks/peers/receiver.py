"""A receiver of webhooks that is never what one waits for: says 200 to each post, and how many came in which time.

python -m benchmarks.peers.receiver <port>        GET answers ``{"posts": …, "seconds": …}``, and begins to count anew
"""

from __future__ import annotations

import asyncio
import json
import sys
import time


class Count:
    """Posts since somebody asked."""

    def __init__(self) -> None:
        self.posts, self.first, self.last = 0, 0.0, 0.0

    def note(self) -> None:
        """One more."""
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.posts += 1

    def said(self) -> bytes:
        """As JSON."""
        return json.dumps({"posts": self.posts, "seconds": self.last - self.first}).encode()


count = Count()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.partition(b":")[2]))
            answer = b""
            if head.startswith(b"POST"):
                count.note()
            else:
                answer = count.said()
                if head.startswith(b"GET /reset"):
                    count.__init__()  # type: ignore[misc]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(port: int) -> None:
    """Listens until it is killed."""
    server = await asyncio.start_server(talk, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
