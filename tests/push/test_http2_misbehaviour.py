"""Receivers that misbehave in the ways that HTTP/2 has: what becomes of posts is what does over HTTP/1.1."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import RstStreamFrame, SettingsFrame

from a2a_celery.push import Delivered, Poster, Retry
from a2a_celery.push.post import TIMEOUT
from tests.support import http2_receiver as behaviour
from tests.support.certificates import Authority
from tests.support.clocks import ManualClock
from tests.support.http2_receiver import PING, Http2Receiver, away, both, http2_receiver, ok, says
from tests.support.waiting import eventually

from .posting import HUNG_UP, NOT_HTTP, poster_of, request


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


SILENCE = "no answer within 15 s"
NO_END = "no answer within 2 s"
"""In real time: of one that goes on to send what is no answer."""
NO_ANSWER = {
    "never answers": (behaviour.stays_silent, SILENCE),
    "falls silent": (behaviour.falls_silent, SILENCE),
    "no status": (says(lambda talk: [talk.head([("x", "y")], "END_STREAM")]), NOT_HTTP),
    "two statuses": (says(lambda talk: [talk.head([(":status", "200"), (":status", "500")], "END_STREAM")]), NOT_HTTP),
    "a status of letters": (says(lambda talk: [talk.head([(":status", "abc")], "END_STREAM")]), NOT_HTTP),
    "a status of four digits": (says(lambda talk: [talk.head([(":status", "2000")], "END_STREAM")]), NOT_HTTP),
    "a body before its status": (says(lambda talk: [talk.data(b"x", "END_STREAM")]), NOT_HTTP),
    "only hints": (says(lambda talk: [talk.head([(":status", "103")])]), NO_END),
    "hints without an end": (behaviour.goes_on(lambda talk: [talk.head([(":status", "103")])] * 500), NOT_HTTP),
    "sent away, unanswered": (says(away(last=0)), HUNG_UP),
    "sent away, and closed": (behaviour.then_hangs_up(away()), HUNG_UP),
    "sent away in anger": (says(away(code=ErrorCodes.ENHANCE_YOUR_CALM)), HUNG_UP),
    "HTTP/1.1 wanted": (says(away(code=ErrorCodes.HTTP_1_1_REQUIRED)), HUNG_UP),
    **{f"reset {code.name}": (behaviour.reset(code), HUNG_UP) for code in (ErrorCodes.CANCEL, ErrorCodes.NO_ERROR)},
    "refused": (behaviour.reset(ErrorCodes.REFUSED_STREAM), HUNG_UP),
    "hangs up": (behaviour.then_hangs_up(lambda _: []), HUNG_UP),
    "half a head": (behaviour.then_hangs_up(behaviour.endless_head), HUNG_UP),
    "endless head": (behaviour.goes_on(behaviour.more_head, after=behaviour.endless_head), NOT_HTTP),
    "a head that is large unpacked": (says(behaviour.packed_bomb), NOT_HTTP),
    "pings without an end": (behaviour.goes_on(lambda _: [PING] * 500), NOT_HTTP),
    "settings without an end": (
        behaviour.goes_on(lambda _: [behaviour.settings(MAX_CONCURRENT_STREAMS=7)] * 500), NOT_HTTP,
    ),
    "another protocol": (behaviour.writes(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), NOT_HTTP),
    "a frame that is too long": (behaviour.writes(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"), NOT_HTTP),
    "frames of garbage": (behaviour.writes(b"\x00\x00\x08\x04\x00\x00\x00\x00\x00" + b"garbage!" * 99), NOT_HTTP),
}  # fmt: skip


@pytest.mark.parametrize("way", NO_ANSWER)
async def test_no_answer_is_tried_again_and_over_http_1_1(authority: Authority, hooks: Http2Receiver, way: str) -> None:
    step, reason = NO_ANSWER[way]
    hooks.plan("/hook", [step])
    clock = ManualClock()
    async with poster_of(authority, **({"timeout": 2} if reason == NO_END else {"clock": clock})) as poster:
        posting = asyncio.create_task(poster.post(request(hooks)))
        if reason == SILENCE:
            await asyncio.to_thread(hooks.wait_for, "/hook")
            clock.advance(TIMEOUT)
        assert await posting == Retry(reason)
        assert [await poster.post(request(hooks)) for _ in range(3)] == [Delivered(200)] * 3

        assert hooks.spoken == ["h2", "http/1.1"]
        eventually(lambda: hooks.open == 1)


STATUS_COUNTS = {
    "without a body": says(lambda talk: [talk.head([(":status", "200")], "END_STREAM")]),
    "behind hints": says(both(lambda talk: [talk.head([(":status", "103"), ("link", "x")])] * 3, ok())),
    "with trailers": says(
        lambda talk: [*talk.whole(body=b"x")[:1], talk.data(b"x"), talk.head([("x", "y")], "END_STREAM")]
    ),
    "behind pings and settings": says(both(lambda _: [PING, behaviour.settings(INITIAL_WINDOW_SIZE=9)] * 20, ok())),
    "of a stream that is reset behind it": says(
        both(ok(), lambda talk: [RstStreamFrame(talk.stream_id, error_code=0)])
    ),
}
BUT_NOT_THE_CONNECTION = {
    "of a server that stops": behaviour.then_hangs_up(both(away(), ok())),
    "of one that stops in two steps": behaviour.then_hangs_up(both(away(2**31 - 1), away(), ok())),
    "of one that stays, and stops": says(both(away(), ok(body=b"x"))),
    "behind which it stops": says(both(ok(), away())),
    "behind which it stops in anger": says(both(ok(), away(0, ErrorCodes.PROTOCOL_ERROR))),
    "behind which it hangs up": behaviour.then_hangs_up(ok()),
    "whose body is reset": says(
        lambda talk: [talk.whole()[0], RstStreamFrame(talk.stream_id, error_code=ErrorCodes.CANCEL)]
    ),
    "whose body is broken off": behaviour.then_hangs_up(lambda talk: [talk.whole()[0], talk.data(b"half")]),
    "whose body is garbage": says(lambda talk: [talk.whole()[0], SettingsFrame(0, {4: 2**31})]),
    "whose body is huge": behaviour.goes_on(
        lambda talk: [talk.data(b"x" * 16384)], after=lambda talk: talk.whole()[:1]
    ),
    "whose body is nothing, often": behaviour.goes_on(
        lambda talk: [talk.data(b"")] * 500, after=lambda talk: talk.whole()[:1]
    ),
    "whose body drips": behaviour.goes_on(
        lambda talk: [talk.data(b"x")], after=lambda talk: talk.whole()[:1], every=0.05
    ),
}


@pytest.mark.parametrize("way", [*STATUS_COUNTS, *BUT_NOT_THE_CONNECTION])
async def test_a_status_counts_whatever_else_is_said(poster: Poster, hooks: Http2Receiver, way: str) -> None:
    hooks.plan("/hook", [(STATUS_COUNTS | BUT_NOT_THE_CONNECTION)[way]])
    began = time.monotonic()

    assert [await poster.post(request(hooks)) for _ in range(4)] == [Delivered(200)] * 4

    assert set(hooks.spoken) == {"h2"}
    assert hooks.connections == (1 if way in STATUS_COUNTS else 2)
    assert len(hooks.received()) == 4
    assert time.monotonic() - began < 8
    eventually(lambda: hooks.open == 1)


@pytest.mark.parametrize("seed", range(20))
async def test_garbage_is_no_answer(
    authority: Authority, hooks: Http2Receiver, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Frames of random kinds and flags, whose lengths are true: they get further than other garbage."""
    dice = random.Random(seed)
    garbage = b""
    for _ in range(8):
        payload = dice.randbytes(dice.choice([0, 1, 4, 5, 8, 9, 30]))
        stream_id = dice.choice([0, 0, 1, 1, 2, 3])
        head = len(payload).to_bytes(3, "big") + bytes([dice.randrange(11), dice.randrange(256)])
        garbage += head + stream_id.to_bytes(4, "big") + payload
    hooks.plan("/hook", [behaviour.writes(garbage, closes=True)])
    async with poster_of(authority) as poster:
        result = await poster.post(request(hooks))
        assert await poster.post(request(hooks)) == Delivered(200)

    assert isinstance(result, Retry)
    assert result.answer is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
