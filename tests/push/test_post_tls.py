"""Webhook posts over TLS, with hostname verification of the receiver's certificate."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from a2a_celery.push import Delivered, Poster, PostRequest, Retry
from tests.support.certificates import Authority
from tests.support.receivers.receiver import Receiver, receiver

from .fake_resolver import LOCAL, FakeResolver


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create_in(tmp_path)


async def post(hooks: Receiver, trust: ssl.SSLContext | None, host: str = "a.example"):  # type: ignore[no-untyped-def]
    names = FakeResolver(a_example=["127.0.0.1"], b_example=["127.0.0.1"])
    async with Poster(LOCAL, resolver=names, ssl_context=trust) as poster:
        return await poster.post(PostRequest(f"https://{host}:{hooks.port}/hook", {}, b"{}"))


async def test_the_name_of_the_certificate_is_the_hosts_and_not_the_addresses(authority: Authority) -> None:
    with receiver(authority.server("a.example")) as hooks:
        assert await post(hooks, authority.client()) == Delivered(200)
        (request_received,) = hooks.requests()

    assert request_received.headers["host"] == f"a.example:{hooks.port}"


async def test_the_server_gets_the_name(authority: Authority) -> None:
    names: list[str | None] = []
    context = authority.server("a.example")
    context.sni_callback = lambda _, name, __: names.append(name)  # type: ignore[assignment]
    with receiver(context) as hooks:
        await post(hooks, authority.client())

    assert names == ["a.example"]


async def test_a_certificate_for_another_name_is_refused(authority: Authority) -> None:
    with receiver(authority.server("a.example")) as hooks:
        result = await post(hooks, authority.client(), "b.example")
        assert hooks.requests() == []

    assert isinstance(result, Retry)
    assert result.reason.startswith("TLS: Hostname mismatch")


async def test_an_untrusted_authority_is_refused(authority: Authority) -> None:
    with receiver(authority.server("a.example")) as hooks:
        result = await post(hooks, None)
        assert hooks.requests() == []

    assert isinstance(result, Retry)
    assert result.reason.startswith("TLS: ")


async def test_a_connection_serves_the_next_post_too(authority: Authority) -> None:
    names = FakeResolver(a_example=["127.0.0.1"])
    with receiver(authority.server("a.example")) as hooks:
        async with Poster(LOCAL, resolver=names, ssl_context=authority.client()) as poster:
            request = PostRequest(f"https://a.example:{hooks.port}/hook", {}, b"{}")
            assert [await poster.post(request) for _ in range(5)] == [Delivered(200)] * 5

        assert hooks.connections == 1


async def test_a_server_that_prefers_http_2_gets_http_1_1(authority: Authority) -> None:
    context = authority.server("a.example")
    context.set_alpn_protocols(["h2", "http/1.1"])
    with receiver(context) as hooks:
        assert await post(hooks, authority.client()) == Delivered(200)


async def test_a_connection_serves_no_other_host(authority: Authority) -> None:
    """Each host has a separate connection even if both names have the same certificate and address."""
    names = FakeResolver(a_example=["127.0.0.1"], b_example=["127.0.0.1"])
    with receiver(authority.server("a.example", "b.example")) as hooks:
        async with Poster(LOCAL, resolver=names, ssl_context=authority.client()) as poster:
            for host in ("a.example", "b.example") * 3:
                request = PostRequest(f"https://{host}:{hooks.port}/hook", {}, b"{}")
                assert await poster.post(request) == Delivered(200)

        assert hooks.connections == 2


async def test_a_server_that_speaks_something_else(authority: Authority) -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Poster(LOCAL, ssl_context=authority.client()) as poster:
            result = await poster.post(PostRequest(f"https://127.0.0.1:{port}/", {}, b"{}"))

    assert result == Retry("TLS: wrong version number")


async def test_a_silent_server_times_out(authority: Authority) -> None:
    with receiver() as hooks:
        async with Poster(LOCAL, ssl_context=authority.client(), timeout=0.1) as poster:
            result = await poster.post(PostRequest(f"https://127.0.0.1:{hooks.port}/", {}, b"{}"))

    assert result == Retry("no response within 0.1 s")
