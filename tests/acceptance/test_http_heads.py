"""Request headers that a client sends to a real gateway: endless headers, which the gateway rejects, and the headers of
Java and Kotlin clients, which offer HTTP/2."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

from tests.support.processes.fleet import Fleet, Gateway
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


def test_the_body_of_a_request_that_offers_http_2_is_read(fleet: Fleet) -> None:
    fleet.worker()
    gateway = fleet.gateway()
    parts = urlsplit(gateway.url)
    message = {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": [{"text": "hello"}],
    }
    body = json.dumps({"message": message}).encode()
    head = (
        b"POST /agents/echo/message:send HTTP/1.1\r\nHost: localhost\r\nA2A-Version: 1.0\r\n"
        b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
        b"Expect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )

    with socket.create_connection((parts.hostname, parts.port), timeout=LIMIT) as client:
        client.sendall(head)
        assert client.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        with client.makefile("rb") as responses:
            answer = responses.read()

    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"TASK_STATE_COMPLETED" in answer
