"""Search for secrets in common encodings in all data that a deployment writes.

Example::

    with commands(path) as recorded:
        ... the actions of a deployment ...
    findings = finds({"redis": values(client), "commands": recorded(), "log": log}, secrets)
"""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

FORMS = {
    "plain": lambda s: [s],
    "json": lambda s: [json.dumps(s)[1:-1]],
    "json twice": lambda s: [json.dumps(json.dumps(s)[1:-1])[1:-1]],
    "python": lambda s: [repr(s)[1:-1], repr(s.encode())[2:-1]],
    "url": lambda s: [quote(s, safe="")],
    "hex": lambda s: [s.encode().hex()],
    "base64": lambda s: [*_base64_within(s, b"+/"), *_base64_within(s, b"-_")],
}
"""Encodings of a secret by name."""


def finds(places: Mapping[str, bytes], secrets: Iterable[str]) -> list[str]:
    """Return a line for each secret, place and encoding in which the secret occurs. The lines do not contain the
    secrets."""
    return [
        f"secret {number} is in {place}, as {form}"
        for place, content in places.items()
        for number, secret in enumerate(secrets, 1)
        for form, encode in FORMS.items()
        if any(text.encode() in content for text in encode(secret))
    ]


def values(client: redis.Redis) -> bytes:
    """Return all keys and values of a Redis database."""
    return b"\n".join(b"\n".join([key, *_parts(client, key)]) for key in client.scan_iter(count=1000))


def saved_database(client: redis.Redis) -> bytes:
    """Save an uncompressed RDB file of all databases and return the content."""
    client.config_set("rdbcompression", "no")
    client.save()
    file_config: dict[str, str] = {**client.config_get("dir"), **client.config_get("dbfilename")}
    return (Path(file_config["dir"]) / file_config["dbfilename"]).read_bytes()


@contextmanager
def commands(path: str) -> Iterator[Callable[[], bytes]]:
    """Record all commands that the Redis server at the Unix socket `path` receives while the block runs."""
    output = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"MONITOR\r\n")
        output += connection.recv(5)  # +OK: the server reports all later commands

        def listen() -> None:
            while data := connection.recv(1 << 20):
                output.extend(data)

        thread = threading.Thread(target=listen, name="monitor", daemon=True)
        thread.start()
        try:
            yield lambda: bytes(output) + _unescape(bytes(output))
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _parts(client: redis.Redis, key: bytes) -> list[bytes]:
    answer: Any
    match client.type(key):
        case b"string":
            answer = [client.get(key)]
        case b"hash":
            answer = [part for pair in client.hgetall(key).items() for part in pair]
        case b"list":
            answer = client.lrange(key, 0, -1)
        case b"set":
            answer = list(client.smembers(key))
        case b"zset":
            answer = client.zrange(key, 0, -1)
        case b"none":  # expired since the scan
            answer = []
        case kind:
            raise AssertionError(f"{key!r} is a {kind!r}, a type that is not searched")
    return [part or b"" for part in answer]


def _unescape(line: bytes) -> bytes:
    """Return output of MONITOR without escape sequences."""
    escape = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))")
    return escape.sub(lambda m: bytes.fromhex(m[1].decode()) if m[1] else m[2], line)


def _base64_within(secret: str, altchars: bytes) -> list[str]:
    """Return the middle of the secret's base64 encoding at each of the three offsets in a longer text."""
    middles = []
    for offset in range(3):
        text = base64.b64encode(b"\0" * offset + secret.encode(), altchars).decode().rstrip("=")
        middles.append(text[(offset * 8 + 5) // 6 : -1])
    return middles
