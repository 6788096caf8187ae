"""Endless responses, and redirects from HTTPS to HTTP. The client limits its memory and protects its credentials."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pytest
from a2a.helpers import new_text_message
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, Role
from google.protobuf.json_format import MessageToDict

from a2a_celery.client import InvalidResponse, NoTransport, RemoteAgent
from a2a_celery.client.connection.transports import MAX_CARD_BYTES

URL = "https://agent.example.com"
MOST = 100_000
EVENTS = {"Content-Type": "text/event-stream"}


def card(url: str = URL, *bindings: str) -> AgentCard:
    interfaces = [
        AgentInterface(url=url, protocol_binding=binding, protocol_version="1.0")
        for binding in bindings or ("JSONRPC",)
    ]
    return AgentCard(name="odd", supported_interfaces=interfaces, capabilities=AgentCapabilities(streaming=True))


class Odd:
    """Server that sends `piece` repeatedly, and counts the sent bytes."""

    def __init__(self, piece: bytes, first: bytes = b"", **headers: str) -> None:
        self.taken = 0
        self._piece, self._first = piece, first
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.asked: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return httpx.Response(200, content=self._body(), headers=self._headers)

    async def _body(self) -> AsyncGenerator[bytes, None]:
        yield self._first
        while self._piece and self.taken < 50 * MOST:
            self.taken += len(self._piece)
            yield self._piece


def agent(server: Callable[..., Any], **options: Any) -> RemoteAgent:
    http = httpx.AsyncClient(transport=httpx.MockTransport(server))
    return RemoteAgent(URL, http=http, max_response_bytes=MOST, bearer="secret", reconnect_timeout=0, **options)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("is_compressed", [False, True])
async def test_an_answer_without_end_is_not_read_to_its_end(binding: str, is_compressed: bool) -> None:
    compressed_body = gzip.compress(b'{"a": "' + b" " * 10 * MOST)
    server = (
        Odd(b"", first=compressed_body, Content_Encoding="gzip")
        if is_compressed
        else Odd(b" " * 40_000, first=b'{"a": "')
    )
    async with agent(server, card=card(URL, binding)) as client:
        with pytest.raises(InvalidResponse, match=f"more than {MOST} bytes"):
            await client.get("t")

    assert server.taken <= 2 * MOST


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("piece", [b"x" * 40_000, b"data: " + b"x" * 40_000 + b"\n"], ids=["a line", "many lines"])
async def test_an_event_without_end_ends_its_stream(binding: str, piece: bytes) -> None:
    server = Odd(piece, first=b"data: ", **EVENTS)
    async with agent(server, card=card(URL, binding)) as client:
        with pytest.raises(InvalidResponse, match=f"more than {MOST} bytes"):
            async for _ in client.follow("t"):
                pass

    assert server.taken <= 2 * MOST


async def test_a_stream_of_many_events_may_be_longer() -> None:
    status = {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
    event = json.dumps({"statusUpdate": status, "padding": "x" * 20_000}).encode()
    server = Odd(b"data: " + event + b"\n\n", **EVENTS)
    async with agent(server, card=card(URL, "HTTP+JSON")) as client:
        events = client.stream(new_text_message("hello", role=Role.ROLE_USER))
        received_events = [await anext(events) for _ in range(20)]
        await events.aclose()

    assert len(received_events) == 20
    assert server.taken > 3 * MOST


async def test_a_card_without_end_is_not_read_to_its_end() -> None:
    server = Odd(b" " * 40_000, first=json.dumps(MessageToDict(card())).encode())
    async with agent(server) as client:
        with pytest.raises(InvalidResponse, match=f"more than {MAX_CARD_BYTES} bytes"):
            await client.card()

    assert server.taken <= 2 * MAX_CARD_BYTES


async def test_an_agent_at_https_leads_to_no_http() -> None:
    server = Odd(b"")
    async with agent(server, card=card("http://agent.example.com")) as client:
        with pytest.raises(NoTransport, match="the address is http://, but the agent's is https://"):
            await client.get("t")

    assert server.asked == []


async def test_another_interface_is_used_instead_of_one_in_clear() -> None:
    mixed_card = card("http://agent.example.com")
    mixed_card.supported_interfaces.extend(card(URL, "HTTP+JSON").supported_interfaces)
    server = Odd(b"x")
    async with agent(server, card=mixed_card) as client:
        with pytest.raises(InvalidResponse):
            await client.get("t")

    assert {request.url.scheme for request in server.asked} == {"https"}


async def test_a_client_without_a_tenant_has_a_short_text_without_credentials() -> None:
    async with RemoteAgent("http://127.0.0.1:1", bearer="secret", tenant=None) as plain:
        assert repr(plain) == "RemoteAgent('http://127.0.0.1:1')"
    async with RemoteAgent("http://127.0.0.1:1", api_key="secret", tenant="acme") as limited:
        assert repr(limited) == "RemoteAgent('http://127.0.0.1:1', tenant='acme')"
