"""Endless request headers. The gateway rejects them and closes the connection."""

from __future__ import annotations

import socket
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

from tests.support.fleet import Fleet, Gateway
from tests.support.waiting import LIMIT

ENOUGH = 1 << 23
"""Number of header bytes that a server must not accept. The number allows for the kernel's buffers."""

HEADERS = {"A2A-Version": "1.0"}


def endless(gateway: Gateway, filler: bytes) -> tuple[int, bytes]:
    """Send up to `ENOUGH` bytes of headers. Return the number of accepted bytes and the response."""
    parts = urlsplit(gateway.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=LIMIT) as client:
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\nX-Filler: ")
        byte_count = 0
        with suppress(ConnectionError):
            while byte_count < ENOUGH:
                client.sendall(filler)
                byte_count += len(filler)
        with suppress(ConnectionError):
            return byte_count, client.recv(4096)
    return byte_count, b""


def test_headers_without_an_end(fleet: Fleet) -> None:
    gateway = fleet.gateway()

    for filler in (b"a" * 4096, b"a\r\nX-Filler: " * 300):
        byte_count, answer = endless(gateway, filler)
        assert byte_count < ENOUGH
        assert answer.startswith(b"HTTP/1.1 400 ") or not answer  # the response may be lost if data was unread

    assert httpx.get(f"{gateway.url}/health/live", timeout=LIMIT).status_code == 200


def test_headers_in_many_pieces_and_large_bodies_are_taken(fleet: Fleet) -> None:
    fleet.worker()
    gateway = fleet.gateway()
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x" * 1_000_000}]}

    with httpx.Client(headers=HEADERS | {"X-Filler": "a" * 30_000}, timeout=LIMIT) as client:
        for _ in range(3):
            answer = client.post(f"{gateway.url}/agents/echo/message:send", json={"message": message})
            assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
