"""Posts over HTTP/2, where it is offered: they promise what those over HTTP/1.1 do, and share no connection."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator

import httpcore
import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import WindowUpdateFrame

from a2a_celery.push import Delivered, Gone, Held, Hosts, Poster, PostRequest, Refused, Retry
from a2a_celery.push.connections import MOST_PLAIN, PLAIN_FOR, Connections
from a2a_celery.push.network import CheckedBackend
from a2a_celery.push.post import TIMEOUT
from tests.support import http2_receiver as behaviour
from tests.support.certificates import Authority
from tests.support.clocks import ManualClock
from tests.support.http2_receiver import PING, Http2Receiver, away, both, http2_receiver, ok, says
from tests.support.receiver import Reply
from tests.support.receiver import slow as slowly
from tests.support.waiting import eventually

from .names import LOCAL, Names
from .posting import HUNG_UP, SECRET, poster_of, request


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.in_folder(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def hooks(authority: Authority) -> Iterator[Http2Receiver]:
    with http2_receiver(authority.server("a.example")) as hooks:
        yield hooks


@pytest.fixture
async def poster(authority: Authority) -> AsyncIterator[Poster]:
    async with poster_of(authority) as poster:
        yield poster


async def test_a_post_arrives_as_it_was_made(poster: Poster, hooks: Http2Receiver) -> None:
    assert await poster.post(request(hooks, "/hook?a=b", b'{"x":"\xc3\xbc"}', X_Y="z")) == Delivered(200)

    (got,) = hooks.received("/hook")
    assert hooks.spoken == ["h2"]
    assert (got.method, got.path, got.body) == ("POST", "/hook?a=b", b'{"x":"\xc3\xbc"}')
    assert got.headers == {
        ":method": "POST",
        ":scheme": "https",
        ":authority": f"a.example:{hooks.port}",
        ":path": "/hook?a=b",
        "authorization": f"Bearer {SECRET}",
        "content-type": "application/a2a+json",
        "x_y": "z",
        "content-length": "10",
    }


@pytest.mark.parametrize("window", [1, 1000, None])
async def test_a_large_body_arrives_a_window_at_a_time(authority: Authority, window: int | None) -> None:
    body = b"x" * (200 if window == 1 else 300_000)
    with http2_receiver(authority.server("a.example"), window=window) as hooks:
        async with poster_of(authority) as poster:
            assert [await poster.post(request(hooks, body=body)) for _ in range(2)] == [Delivered(200)] * 2

        assert [got.body == body for got in hooks.received()] == [True, True]
        assert hooks.connections == 1


async def test_a_connection_serves_the_next_post_too(poster: Poster, hooks: Http2Receiver) -> None:
    hooks.plan("/hook", [200, 500, 410, Reply(200, body=b"x" * 4000)], then=Reply(200, body=b"x" * 1000))
    for _ in range(300):
        await poster.post(request(hooks))

    assert len(hooks.received()) == 300
    assert hooks.connections == 1
    assert hooks.spoken == ["h2"]


async def test_a_host_gets_so_many_posts_at_once_each_on_its_connection(authority: Authority) -> None:
    with http2_receiver(authority.server("a.example")) as hooks:
        hooks.plan("/hook", [], then=behaviour.together(4))
        async with poster_of(authority, hosts=Hosts(per_host=4)) as poster:
            for _ in range(5):
                results = await asyncio.gather(*(poster.post(request(hooks)) for _ in range(20)))
                assert results.count(Delivered(200)) == 4
                assert sum(isinstance(result, Held) for result in results) == 16

        assert hooks.most_at_once("/hook") == 4
        assert hooks.connections == 4


@pytest.mark.parametrize("status", [201, 204, 299, 300, 302, 400, 404, 410, 429, 500, 503, 599])
async def test_answers_are_judged_as_those_of_http_1_1(poster: Poster, hooks: Http2Receiver, status: int) -> None:
    headers = (("Retry-After", "7"), ("Location", hooks.url("/elsewhere", "a.example")))
    hooks.plan("/hook", [Reply(status, headers, b"" if status == 204 else b"no " + SECRET.encode())])
    result = await poster.post(request(hooks))

    match result:
        case Delivered():
            assert result.status == status < 300
        case Gone(answer):
            assert (status, answer.text) == (410, "no […]")
        case Retry(reason, asked, answer):
            assert reason.startswith(f"answered {status}")
            assert asked == (7 if status in (429, 503) else None)
            assert answer is not None
            assert answer.text == "no […]"
        case _:
            pytest.fail(str(result))
    assert hooks.received("/elsewhere") == []
    assert await poster.post(request(hooks, "/after")) == Delivered(200)
    assert hooks.spoken == ["h2"]


async def test_a_body_that_is_not_wanted_any_more_is_not_sent(authority: Authority) -> None:
    with http2_receiver(authority.server("a.example"), window=1000) as hooks:
        hooks.plan(behaviour.EARLY, [], then=413)
        async with poster_of(authority) as poster:
            for _ in range(2):
                result = await poster.post(request(hooks, behaviour.EARLY, b"x" * 300_000))
                assert isinstance(result, Retry)
                assert result.reason == "answered 413"

        assert hooks.spoken == ["h2", "h2"]


@pytest.mark.parametrize("most", [0, 1])
async def test_a_server_that_takes_few_streams(authority: Authority, most: int) -> None:
    with http2_receiver(
        authority.server("a.example"), begins=[behaviour.settings(MAX_CONCURRENT_STREAMS=most)]
    ) as hooks:
        async with poster_of(authority) as poster:
            results = [await poster.post(request(hooks)) for _ in range(10)]

        failed = 0 if most else 1  # one that takes none at all has not offered HTTP/2, only said so
        assert results.count(Delivered(200)) == 10 - failed
        assert hooks.spoken == (["h2"] if most else ["h2", "http/1.1"])


async def test_a_server_that_lets_its_client_speak_first(authority: Authority) -> None:
    """Its connection is readable all the same: there is something of TLS in it."""
    with http2_receiver(authority.server("a.example"), patient=True) as hooks:
        async with poster_of(authority) as poster:
            assert [await poster.post(request(hooks)) for _ in range(3)] == [Delivered(200)] * 3

        assert hooks.spoken == ["h2"]


async def test_who_failed_over_http_2_is_not_asked_on_its_other_connections(authority: Authority) -> None:
    with http2_receiver(authority.server("a.example")) as hooks:
        hooks.plan("/slow", [], then=slowly(0.3))
        hooks.plan("/hook", [behaviour.reset(ErrorCodes.CANCEL)])
        async with poster_of(authority) as poster:
            first = await asyncio.gather(*(poster.post(request(hooks, path)) for path in ("/slow", "/slow", "/hook")))
            more = [await poster.post(request(hooks)) for _ in range(3)]

            eventually(lambda: hooks.open == 1)
        assert first == [Delivered(200), Delivered(200), Retry(HUNG_UP)]
        assert more == [Delivered(200)] * 3
        assert hooks.spoken == ["h2", "h2", "h2", "http/1.1"]


async def test_a_path_that_never_answers_takes_no_other_posts_with_it(authority: Authority) -> None:
    with http2_receiver(authority.server("a.example")) as hooks:
        hooks.plan("/never", [], then=behaviour.stays_silent)
        clock = ManualClock()
        async with poster_of(authority, hosts=Hosts(per_host=16, open_after=1000), clock=clock) as poster:
            hanging = [asyncio.create_task(poster.post(request(hooks, "/never"))) for _ in range(8)]
            fine = await asyncio.gather(*(poster.post(request(hooks)) for _ in range(8)))
            await asyncio.to_thread(hooks.wait_for, "/never", 8)
            clock.advance(TIMEOUT)
            unanswered = await asyncio.gather(*hanging)
            more = [await poster.post(request(hooks)) for _ in range(50)]

    assert unanswered == [Retry("no answer within 15 s")] * 8
    assert fine == [Delivered(200)] * 8
    assert more == [Delivered(200)] * 50


async def test_connections_that_fall_silent_cost_a_post_at_most(authority: Authority) -> None:
    with http2_receiver(authority.server("a.example")) as hooks:
        clock = ManualClock()
        async with poster_of(authority, clock=clock) as poster:
            before = [await poster.post(request(hooks)) for _ in range(20)]
            hooks.plan("/hook", [behaviour.falls_silent])
            unanswered = asyncio.create_task(poster.post(request(hooks)))
            await asyncio.to_thread(hooks.wait_for, "/hook", 21)
            clock.advance(TIMEOUT)
            assert await unanswered == Retry("no answer within 15 s")
            after = [await poster.post(request(hooks)) for _ in range(39)]

    assert [*before, *after] == [Delivered(200)] * 59


async def test_connections_that_were_closed_meanwhile_are_no_failed_posts(authority: Authority) -> None:
    """A server that is restarted closes all that it kept, with a GOAWAY or without."""
    for close in (away(last=2**31 - 1), lambda _: []):
        with http2_receiver(authority.server("a.example")) as hooks:
            hooks.plan("/hook", [], then=slowly(0.1))
            async with poster_of(authority) as poster:
                first = await asyncio.gather(*(poster.post(request(hooks)) for _ in range(8)))
                hooks.hang_up(close)
                second = await asyncio.gather(*(poster.post(request(hooks)) for _ in range(8)))

            assert first + second == [Delivered(200)] * 16
            assert len(hooks.received()) == 16
            assert set(hooks.spoken) == {"h2"}


async def test_one_that_is_closed_while_the_post_is_on_its_way_neither(poster: Poster, hooks: Http2Receiver) -> None:
    hooks.plan("/hook", [200, behaviour.then_hangs_up(away(last=0)), 200])

    assert [await poster.post(request(hooks)) for _ in range(2)] == [Delivered(200)] * 2
    assert hooks.spoken == ["h2", "h2"]


async def test_what_is_said_to_an_idle_connection_does_not_end_it(poster: Poster, hooks: Http2Receiver) -> None:
    await poster.post(request(hooks))
    hooks.say([PING, behaviour.settings(MAX_CONCURRENT_STREAMS=3), WindowUpdateFrame(0, 1000)])

    assert await poster.post(request(hooks)) == Delivered(200)
    assert hooks.connections == 1


def test_http_2_is_offered_again_after_a_while() -> None:
    clock, origin = ManualClock(), httpcore.Origin(b"https", b"a.example", 443)
    pool = Connections(CheckedBackend(Names()), None, clock=clock)
    pool.no_http2_to(origin)
    clock.advance(PLAIN_FOR - 1)
    assert not pool.speaks_http2_to(origin)
    assert pool.speaks_http2_to(httpcore.Origin(b"https", b"a.example", 8443))

    clock.advance(1)
    assert pool.speaks_http2_to(origin)


def test_so_many_hosts_are_remembered() -> None:
    pool = Connections(CheckedBackend(Names()), None)
    origins = [httpcore.Origin(b"https", b"a.example", port) for port in range(MOST_PLAIN + 1)]
    for origin in origins:
        pool.no_http2_to(origin)

    assert [pool.speaks_http2_to(origin) for origin in origins] == [True] + [False] * MOST_PLAIN


@pytest.mark.parametrize("offered", [None, ["http/1.1"], ["spdy/1"]])
async def test_http_1_1_is_spoken_to_who_does_not_offer_http_2(authority: Authority, offered: list[str] | None) -> None:
    tls = authority.server("a.example")
    with http2_receiver(tls) as hooks:
        tls.set_alpn_protocols(offered or ["x"])
        async with poster_of(authority) as poster:
            assert [await poster.post(request(hooks)) for _ in range(3)] == [Delivered(200)] * 3

        assert hooks.spoken in (["http/1.1"], [None])
        assert hooks.connections == 1


async def test_a_name_that_rebinds_is_refused_as_soon_as_it_does(authority: Authority, hooks: Http2Receiver) -> None:
    names = Names(a_example=["127.0.0.1", "10.0.0.1"])
    async with Poster(LOCAL, resolver=names, ssl_context=authority.client()) as poster:
        hooks.plan("/hook", [says(both(ok(), away()))])

        assert await poster.post(request(hooks)) == Delivered(200)
        assert isinstance(await poster.post(request(hooks)), Refused)
    assert len(hooks.received()) == 1


async def test_nobody_is_asked_on_another_hosts_connection(authority: Authority) -> None:
    """HTTP/2 would allow it, where one certificate has both names (RFC 9113, section 9.1.1)."""
    with http2_receiver(authority.server("a.example", "b.example")) as hooks:
        names = Names(a_example=["127.0.0.1"], b_example=["127.0.0.1"])
        async with Poster(LOCAL, resolver=names, ssl_context=authority.client()) as poster:
            for host in ("a.example", "b.example") * 3:
                assert await poster.post(PostRequest(hooks.url("/hook", host), {}, b"{}")) == Delivered(200)

        assert hooks.spoken == ["h2", "h2"]


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "ü", "a\x00b", "a\x1bb"])
async def test_a_header_that_was_never_checked_smuggles_nothing(
    poster: Poster, hooks: Http2Receiver, value: str
) -> None:
    assert isinstance(await poster.post(request(hooks, Authorization=value)), Refused)
    assert await poster.post(request(hooks)) == Delivered(200)

    assert len(hooks.received()) == 1
    assert set(hooks.spoken) == {"h2"}


async def test_a_post_that_is_cancelled_leaves_its_place_and_no_connection(authority: Authority) -> None:
    with http2_receiver(authority.server("a.example")) as hooks:
        hooks.plan("/hook", [behaviour.stays_silent] * 3)
        async with poster_of(authority, hosts=Hosts(per_host=3)) as poster:
            posts = [asyncio.create_task(poster.post(request(hooks))) for _ in range(3)]
            await asyncio.to_thread(hooks.wait_for, "/hook", 3)
            for post in posts:
                post.cancel()
            await asyncio.gather(*posts, return_exceptions=True)

            assert await poster.post(request(hooks)) == Delivered(200)
            eventually(lambda: hooks.open == 1)


async def test_what_is_secret_is_in_no_log(
    poster: Poster, hooks: Http2Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    again = says(lambda talk: talk.whole(500, [("x-echo", SECRET)], SECRET.encode()))
    hooks.plan("/hook", [200, again, behaviour.reset(ErrorCodes.CANCEL), again])
    for _ in range(4):
        await poster.post(request(hooks, "/hook?key=in-url"))

    assert "in-url" not in caplog.text
    assert "s3cret" not in caplog.text


async def test_connections_that_could_not_be_made_take_no_place(authority: Authority, hooks: Http2Receiver) -> None:
    with socket.socket() as taken:  # or another process might listen there meanwhile
        taken.bind(("127.0.0.1", 0))
        nowhere = PostRequest(f"https://a.example:{taken.getsockname()[1]}/", {}, b"{}")
        async with poster_of(authority, hosts=Hosts(in_all=2)) as poster:
            for _ in range(4):
                assert await poster.post(nowhere) == Retry("the connection was refused")

            assert await poster.post(request(hooks)) == Delivered(200)


async def test_closing_closes_everything(authority: Authority, hooks: Http2Receiver) -> None:
    async with poster_of(authority) as poster:
        await poster.post(request(hooks))
        assert hooks.open == 1
    eventually(lambda: hooks.open == 0)
