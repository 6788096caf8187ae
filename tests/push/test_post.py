"""Webhook posts to real receivers that respond or misbehave in each known way."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpcore
import pytest

from a2a_celery.push import (
    CircuitBreaker,
    Deferred,
    Delivered,
    Gone,
    Poster,
    PostRefused,
    PostRequest,
    PostResult,
    Retry,
)
from a2a_celery.push.poster import POST_TIMEOUT
from a2a_celery.push.responses import BODY_TIMEOUT, read_response
from tests.support.clocks import ManualClock
from tests.support.receivers import receiver as behaviour
from tests.support.receivers.receiver import Receiver, Reply, receiver
from tests.support.waiting import eventually

from .fake_resolver import LOCAL, FakeResolver

SECRETS = ("s3cret-credentials", 't0ken "quoted"')


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture
async def poster() -> AsyncIterator[Poster]:
    async with Poster(LOCAL) as poster:
        yield poster


def request(url: str, body: bytes = b"{}", **headers: str) -> PostRequest:
    extra_headers = {"Content-Type": "application/a2a+json", "Authorization": f"Bearer {SECRETS[0]}", **headers}
    return PostRequest(url, {"X-A2A-Notification-Token": SECRETS[1], **extra_headers}, body, SECRETS)


async def result_of(poster: Poster, hooks: Receiver, step: behaviour.Step) -> PostResult:
    """Return the result of a post to which the receiver responds with `step`. Assert that the next post succeeds."""
    hooks.plan("/hook", [step])
    result = await poster.post(request(hooks.url()))
    assert await poster.post(request(hooks.url("/after"))) == Delivered(200)
    return result


async def test_a_post_arrives_as_it_was_made(poster: Poster, hooks: Receiver) -> None:
    assert await poster.post(request(hooks.url("/hook?a=b"), b'{"x":"\xc3\xbc"}', X_Y="z")) == Delivered(200)

    (post,) = hooks.requests("/hook")
    assert (post.method, post.path, post.body) == ("POST", "/hook?a=b", b'{"x":"\xc3\xbc"}')
    assert post.headers["authorization"] == "Bearer s3cret-credentials"
    assert post.headers["host"] == f"127.0.0.1:{hooks.port}"
    assert post.headers["content-length"] == "10"
    assert "cookie" not in post.headers
    assert "accept-encoding" not in post.headers  # a compressed response would have to be decompressed


async def test_an_ipv6_host_is_named_in_brackets(poster: Poster, hooks: Receiver) -> None:
    assert await poster.post(request(hooks.url(host="[::ffff:127.0.0.1]"))) == Delivered(200)

    host = hooks.requests()[0].headers["host"]
    assert host in (f"[::ffff:7f00:1]:{hooks.port}", f"[::ffff:127.0.0.1]:{hooks.port}")  # Python 3.13 has the second


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_2xx_is_success(poster: Poster, hooks: Receiver, status: int) -> None:
    assert await result_of(poster, hooks, status) == Delivered(status)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 418, 500, 501, 502, 504, 599])
async def test_anything_else_is_tried_again(poster: Poster, hooks: Receiver, status: int) -> None:
    result = await result_of(poster, hooks, Reply(status, (("Retry-After", "5"),), b"no"))

    assert isinstance(result, Retry)
    assert (result.reason, result.retry_after) == (f"answered {status}", None)
    assert result.response is not None
    assert (result.response.status, result.response.text) == (status, "no")


async def test_410_ends_it(poster: Poster, hooks: Receiver) -> None:
    result = await result_of(poster, hooks, Reply(410, body=b"unsubscribed"))

    assert isinstance(result, Gone)
    assert result.response.text == "unsubscribed"


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
async def test_no_redirect_is_followed(poster: Poster, hooks: Receiver, status: int) -> None:
    result = await result_of(poster, hooks, behaviour.redirect(hooks.url("/elsewhere"), status))

    assert isinstance(result, Retry)
    assert "not followed" in result.reason
    assert hooks.requests("/elsewhere") == []


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_sets_the_time_of_the_retry(poster: Poster, hooks: Receiver, status: int) -> None:
    result = await result_of(poster, hooks, behaviour.retry_after(7, status))

    assert isinstance(result, Retry)
    assert result.retry_after == 7


NAME_NOT_FOUND = Retry("no connection: the host's name was not found", is_host_not_found=True)
SILENCE = "no response within 15 s"
NO_ANSWER = {
    "silent": (behaviour.silent(), SILENCE),
    "slow": (behaviour.slow(30), SILENCE),
    "hangs up": (behaviour.HANG_UP, "the connection was closed without a response"),
    "garbage": (behaviour.GARBAGE, "the response is not HTTP"),
    "endless headers": (behaviour.ENDLESS_HEADERS, "the response is not HTTP"),
    "half a head": (behaviour.writes(b"HTTP/1.1 200 OK\r\nContent-"), "the connection was closed without a response"),
    "no status": (behaviour.writes(b"HTTP/1.1 OK\r\n\r\n"), "the response is not HTTP"),
    "another protocol": (behaviour.writes(b"-ERR unknown command\r\n"), "the connection was closed without a response"),
    "two lengths": (
        behaviour.writes(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
        "the response is not HTTP",
    ),
}


@pytest.mark.parametrize("way", NO_ANSWER)
async def test_no_answer_is_tried_again(hooks: Receiver, way: str) -> None:
    step, reason = NO_ANSWER[way]

    clock = ManualClock()
    async with Poster(LOCAL, clock=clock) as poster:
        posting = asyncio.create_task(result_of(poster, hooks, step))
        if reason == SILENCE:
            await asyncio.to_thread(hooks.wait_for, "/hook")
            clock.advance(POST_TIMEOUT)
        assert await posting == Retry(reason)


async def test_early_hints_do_not_extend_the_timeout(hooks: Receiver) -> None:
    """Data arrives in real time before and after the clock moves."""
    hints: list[bytes] = []

    async def send_hints(writer: asyncio.StreamWriter, _: behaviour.ReceivedPost) -> None:
        while True:
            hints.append(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            writer.write(hints[-1])
            await writer.drain()
            await asyncio.sleep(0.01)

    async def wait_for_more_hints() -> None:
        enough = len(hints) + 10
        await asyncio.to_thread(eventually, lambda: len(hints) >= enough, what="more early hints")

    clock = ManualClock()
    async with Poster(LOCAL, clock=clock) as poster:
        posting = asyncio.create_task(result_of(poster, hooks, send_hints))
        await wait_for_more_hints()
        clock.advance(POST_TIMEOUT - 1)
        await wait_for_more_hints()
        await clock.until_waiting(1)
        clock.advance(1)

        assert await posting == Retry(SILENCE)


async def test_a_refused_connection_is_retried(poster: Poster) -> None:
    with socket.socket() as listener:  # otherwise a different process might listen on the port
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"

        assert await poster.post(request(url)) == Retry("the connection was refused")


async def test_an_unknown_name_is_reported(hooks: Receiver) -> None:
    async with Poster(LOCAL, resolver=FakeResolver()) as poster:
        assert await poster.post(request("https://a.example/")) == NAME_NOT_FOUND


BODIES = {
    "huge": behaviour.huge_body,
    "dripping": behaviour.dripping_body,
    "broken off": lambda status: behaviour.writes(b"HTTP/1.1 %d X\r\nContent-Length: 9999\r\n\r\nhalf" % status),
    "bad chunks": lambda status: behaviour.writes(
        b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhalf\r\n" % status
    ),
    "packed": lambda status: Reply(status, (("Content-Encoding", "gzip"),), b"\x1f\x8b\x08\x00" + b"\x00" * 100),
}


@pytest.mark.parametrize("way", BODIES)
async def test_a_status_counts_whatever_its_body_is(hooks: Receiver, way: str) -> None:
    clock, results = ManualClock(), []
    async with Poster(LOCAL, clock=clock) as poster:
        for status in (200, 500):
            posting = asyncio.create_task(result_of(poster, hooks, BODIES[way](status)))
            if way == "dripping":
                await clock.until_waiting(BODY_TIMEOUT, POST_TIMEOUT)
                clock.advance(BODY_TIMEOUT)
            results.append(await posting)
        eventually(lambda: hooks.open <= 1)

    first, second = results
    assert first == Delivered(200)
    assert isinstance(second, Retry)
    assert second.reason == "answered 500"
    assert second.response is not None
    assert len(second.response.text) <= 4096


async def test_a_status_that_came_in_time_counts_though_its_body_does_not(hooks: Receiver) -> None:
    hooks.plan("/hook", [behaviour.dripping_body(200)])
    async with Poster(LOCAL, timeout=BODY_TIMEOUT * 0.75) as poster:
        assert await poster.post(request(hooks.url())) == Delivered(200)


async def test_only_the_stored_part_of_a_response_is_read() -> None:
    sizes: list[int] = []

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            sizes.append(1000)
            yield b"x" * 1000

    answer = await read_response(httpcore.Response(500, content=chunks()), SECRETS)

    assert len(answer.text) == 4096
    assert sum(sizes) < 6000


async def test_a_response_is_stored_as_readable_text(poster: Poster, hooks: Receiver) -> None:
    result = await result_of(poster, hooks, Reply(500, body="bö\x1b[31mse\n\x00".encode() + b"\xff"))

    assert isinstance(result, Retry)
    assert result.response is not None
    assert result.response.text == "bö�[31mse\n��"


@pytest.mark.parametrize("status", [500, 410])
async def test_a_response_that_quotes_the_request_is_stored_without_its_secrets(
    poster: Poster, hooks: Receiver, status: int
) -> None:
    result = await result_of(poster, hooks, behaviour.echo(status))

    assert isinstance(result, Retry | Gone)
    assert result.response is not None
    assert "Bearer […]" in result.response.text
    assert "s3cret" not in result.response.text
    assert "t0ken" not in result.response.text


@pytest.mark.parametrize("padding", range(4070, 4100, 3))
async def test_no_part_of_a_secret_is_stored_at_the_end_of_a_response(
    poster: Poster, hooks: Receiver, padding: int
) -> None:
    result = await result_of(poster, hooks, Reply(500, body=b"x" * padding + SECRETS[0].encode() + b"y" * 9000))

    assert isinstance(result, Retry)
    assert result.response is not None
    assert "s3" not in result.response.text


async def test_a_connection_serves_the_next_post_too(poster: Poster, hooks: Receiver) -> None:
    hooks.plan("/hook", [200, 500, 410, Reply(200, body=b"x" * 4000)])
    for _ in range(20):
        await poster.post(request(hooks.url()))

    assert hooks.connections == 1


async def test_a_connection_closed_by_the_server_is_no_failed_post(poster: Poster, hooks: Receiver) -> None:
    """A server may close an idle connection at any time, also while the next post is being sent."""
    hooks.plan("/hook", [200, behaviour.HANG_UP, 200])

    assert [await poster.post(request(hooks.url())) for _ in range(2)] == [Delivered(200)] * 2
    assert len(hooks.requests()) == 3
    assert hooks.connections == 2


async def test_connections_that_the_server_closed_while_idle_fail_no_post(poster: Poster, hooks: Receiver) -> None:
    """A server that restarts closes all its connections."""
    hooks.plan("/hook", [], then=behaviour.together(8))  # the receiver closes each connection after its response
    first = await asyncio.gather(*(poster.post(request(hooks.url())) for _ in range(8)))
    eventually(lambda: hooks.open == 0)
    second = await asyncio.gather(*(poster.post(request(hooks.url())) for _ in range(8)))

    assert first + second == [Delivered(200)] * 16
    assert len(hooks.requests()) == 16


async def test_a_path_that_never_answers_takes_no_other_posts_with_it(hooks: Receiver) -> None:
    hooks.plan("/never", [], then=behaviour.silent())
    clock = ManualClock()
    async with Poster(
        LOCAL, circuit_breaker=CircuitBreaker(max_per_host=16, failure_threshold=1000), clock=clock
    ) as poster:
        hanging = [asyncio.create_task(poster.post(request(hooks.url("/never")))) for _ in range(8)]
        fine = await asyncio.gather(*(poster.post(request(hooks.url())) for _ in range(8)))
        await asyncio.to_thread(hooks.wait_for, "/never", 8)
        clock.advance(POST_TIMEOUT)
        results = await asyncio.gather(*hanging)
        more = [await poster.post(request(hooks.url())) for _ in range(50)]

    assert results == [Retry("no response within 15 s")] * 8
    assert fine == [Delivered(200)] * 8
    assert more == [Delivered(200)] * 50


async def test_connections_that_could_not_be_opened_hold_no_permit(hooks: Receiver) -> None:
    with socket.socket() as listener:  # otherwise a different process might listen on the port
        listener.bind(("127.0.0.1", 0))
        refused_request = request(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        async with Poster(LOCAL, circuit_breaker=CircuitBreaker(max_posts=2)) as poster:
            for _ in range(4):
                assert await poster.post(refused_request) == Retry("the connection was refused")

            assert await poster.post(request(hooks.url())) == Delivered(200)


async def test_a_cookie_is_never_sent_back(poster: Poster, hooks: Receiver) -> None:
    hooks.plan("/hook", [], then=Reply(200, (("Set-Cookie", "a=b; Path=/"),)))
    for _ in range(2):
        await poster.post(request(hooks.url()))

    assert not any("cookie" in post.headers for post in hooks.requests())


async def test_no_proxy_is_taken_from_the_environment(hooks: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    async with Poster(LOCAL) as poster:
        assert await poster.post(request(hooks.url())) == Delivered(200)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{}/", "https://localhost:{}/", "https://169.254.169.254/", "http://2130706433:{}/", "x"]
)
async def test_a_target_that_is_no_longer_allowed_is_refused(hooks: Receiver, url: str) -> None:
    async with Poster() as poster:
        assert isinstance(await poster.post(request(url.format(hooks.port))), PostRefused)

    assert hooks.connections == 0


async def test_a_name_that_leads_inside_is_refused_at_the_connection(hooks: Receiver) -> None:
    names = FakeResolver(a_example=["127.0.0.1"])
    async with Poster(resolver=names) as poster:
        result = await poster.post(request(f"https://a.example:{hooks.port}/"))

    assert result == PostRefused(
        "the host's address is neither public nor in a2a_allow_networks", address="a.example is 127.0.0.1"
    )
    assert hooks.connections == 0


async def test_a_name_that_rebinds_is_refused_as_soon_as_it_does(hooks: Receiver) -> None:
    names = FakeResolver(a_example=["127.0.0.1", "10.0.0.1"])
    async with Poster(LOCAL, resolver=names) as poster:
        hooks.plan("/hook", [Reply(200, (("Connection", "close"),))])
        url = hooks.url(host="a.example")

        assert await poster.post(request(url)) == Delivered(200)
        assert isinstance(await poster.post(request(url)), PostRefused)
    assert len(hooks.requests()) == 1


async def test_public_addresses_are_not_posted_to_without_tls() -> None:
    async with Poster(LOCAL, resolver=FakeResolver(a_example=["8.8.8.8"])) as poster:
        result = await poster.post(request("http://a.example/"))

    assert isinstance(result, PostRefused)
    assert "without TLS" in result.reason


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "ü", "a\x00b"])
async def test_a_header_that_was_never_checked_smuggles_nothing(poster: Poster, hooks: Receiver, value: str) -> None:
    assert isinstance(await poster.post(request(hooks.url(), Authorization=value)), PostRefused)

    assert hooks.requests() == []


async def test_a_host_gets_so_many_posts_at_once(hooks: Receiver) -> None:
    hooks.plan("/hook", [], then=behaviour.together(4))
    async with Poster(LOCAL, circuit_breaker=CircuitBreaker(max_per_host=4)) as poster:
        results = await asyncio.gather(*(poster.post(request(hooks.url())) for _ in range(40)))

    assert results.count(Delivered(200)) == 4
    assert sum(isinstance(result, Deferred) for result in results) == 36
    assert hooks.most_at_once("/hook") == 4


async def test_a_dead_host_beside_a_live_one() -> None:
    with receiver() as dead, receiver() as live:
        dead.plan("/hook", [], then=behaviour.silent())
        clock = ManualClock()
        hosts = CircuitBreaker(max_per_host=5, failure_threshold=5, first_cooldown=300, clock=clock)
        async with Poster(LOCAL, circuit_breaker=hosts, clock=clock) as poster:
            posting = [asyncio.create_task(poster.post(request(dead.url()))) for _ in range(5)]
            await asyncio.to_thread(dead.wait_for, "/hook", 5)
            clock.advance(POST_TIMEOUT)
            first = await asyncio.gather(*posting)
            waiting = [await poster.post(request(dead.url())) for _ in range(10_000)]
            results = [await poster.post(request(live.url())) for _ in range(20)]

            assert poster.deferral(dead.url()) is not None
            assert poster.deferral(live.url()) is None

    assert all(isinstance(result, Retry) for result in first)
    assert all(isinstance(result, Deferred) for result in waiting)
    assert results == [Delivered(200)] * 20
    assert len(dead.requests()) == 5


async def test_error_responses_do_not_start_a_cooldown(poster: Poster, hooks: Receiver) -> None:
    hooks.plan("/hook", [], then=500)
    results = [await poster.post(request(hooks.url())) for _ in range(20)]

    assert all(isinstance(result, Retry) for result in results)


async def test_a_cancelled_post_releases_its_permit_and_connection(hooks: Receiver) -> None:
    hooks.plan("/hook", [behaviour.silent()] * 3)
    async with Poster(LOCAL, circuit_breaker=CircuitBreaker(max_per_host=3)) as poster:
        posts = [asyncio.create_task(poster.post(request(hooks.url()))) for _ in range(3)]
        await asyncio.to_thread(hooks.wait_for, "/hook", 3)
        for post in posts:
            post.cancel()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*posts, return_exceptions=True))

        assert await poster.post(request(hooks.url())) == Delivered(200)
        eventually(lambda: hooks.open == 1)


async def test_secrets_are_in_no_log(poster: Poster, hooks: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hooks.plan("/hook", [200, 500, behaviour.HANG_UP, behaviour.GARBAGE, behaviour.echo()])
    for _ in range(5):
        await poster.post(request(hooks.url("/hook?key=in-url")))

    assert "in-url" not in caplog.text
    assert "s3cret" not in caplog.text
    assert "t0ken" not in caplog.text


async def test_closing_closes_everything() -> None:
    names = FakeResolver(a_example=["127.0.0.1"])
    with receiver() as hooks:
        async with Poster(LOCAL, resolver=names) as poster:
            await poster.post(request(hooks.url(host="a.example")))
            assert hooks.open == 1
        eventually(lambda: hooks.open == 0)

    assert names.closed


def test_a_result_does_not_show_the_request() -> None:
    text: Any = repr(request("https://a.example/"))

    assert "s3cret" not in text
