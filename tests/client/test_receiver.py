"""Webhook receiver over HTTP. The receiver handles each event at least once, and in order for each subscription."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import redis.asyncio
from a2a.types import TaskState
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Message

from a2a_celery import ConfigError
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.client.receiver import (
    MemoryDeduplicator,
    Notification,
    RedisDeduplicator,
    Verifier,
    handle_once,
    receive,
    receiver_app,
)
from tests.support.processes.serving import serve_app
from tests.support.receivers.webhooks import OTHER_SECRET, SECRET, Post, post, status_event
from tests.support.waiting import LIMIT


class Handler:
    """Handler that records its notifications, and raises or waits on request."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.error: Exception | None = None

    async def __call__(self, notification: Notification) -> None:
        self.begun.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        self.handled.append(notification.id.rpartition("_")[2])


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client of a sender, which does not follow redirects."""
    async with httpx.AsyncClient(timeout=LIMIT) as client:
        yield client


async def send_post(http: httpx.AsyncClient, url: str, signed_post: Post) -> httpx.Response:
    return await http.post(url, headers=signed_post.headers, content=signed_post.body)


async def test_a_line_is_handled_in_order_and_each_event_once(handler: Handler, http: httpx.AsyncClient) -> None:
    async with serve_app(receiver_app(handler, secrets=[SECRET])) as url:
        answers = [await send_post(http, url, post(version)) for version in (1, 1, 2, 4, 2, 4, 5)]

    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b"")] * 7
    assert handler.handled == ["1", "2", "4", "5"]


async def test_the_handler_gets_the_event(http: httpx.AsyncClient) -> None:
    notifications: list[Notification] = []

    async def note(notification: Notification) -> None:
        notifications.append(notification)

    event = status_event("t9", TaskState.TASK_STATE_COMPLETED)
    async with serve_app(receiver_app(note, secrets=[SECRET])) as url:
        await send_post(http, url, post(event=event))

    assert [(item.task_id, item.event) for item in notifications] == [("t9", event.status_update)]


async def test_a_refused_post_gets_the_reason_and_is_not_handled(handler: Handler, http: httpx.AsyncClient) -> None:
    unsigned_post = post()
    del unsigned_post.headers["webhook-signature"]
    posts = [unsigned_post, post(secrets=(OTHER_SECRET,)), post(at=1_000), post(body="{}"), post(body=" " * 600)]
    async with serve_app(receiver_app(handler, secrets=[SECRET], max_bytes=500)) as url:
        answers = [await send_post(http, url, signed_post) for signed_post in posts]
        response = await http.get(url)

    assert [answer.status_code for answer in answers] == [400, 401, 401, 400, 413]
    assert [answer.json()["detail"].split()[0] for answer in answers] == ["The", "No", "Signed", "The", "A"]
    assert (response.status_code, response.json()) == (405, {"detail": "Method Not Allowed"})
    assert handler.handled == []


async def test_a_body_of_unsaid_size_is_read_no_further_than_allowed(handler: Handler, http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 200

    async with serve_app(receiver_app(handler, secrets=[SECRET], max_bytes=500)) as url:
        answer = await http.post(url, headers=post().headers, content=chunks())
    assert answer.status_code == 413

    read_count = 0

    async def endless() -> Message:
        nonlocal read_count
        read_count += 200
        return {"type": "http.request", "body": b" " * 200, "more_body": True}

    request = Request({"type": "http", "method": "POST", "headers": []}, endless)
    with pytest.raises(HTTPException, match="at most 500 bytes"):
        await receive(request, Verifier([SECRET], max_bytes=500))
    assert read_count == 600

    request = Request({"type": "http", "method": "POST", "headers": [(b"content-length", b"501")]}, endless)
    with pytest.raises(HTTPException, match="at most 500 bytes"):
        await receive(request, Verifier([SECRET], max_bytes=500))
    assert read_count == 600, "one that says its size is not read at all"


async def test_a_sender_that_hangs_up_before_its_body_is_no_error_of_ours() -> None:
    async def disconnect() -> Message:
        return {"type": "http.disconnect"}

    request = Request({"type": "http", "method": "POST", "headers": []}, disconnect)
    with pytest.raises(HTTPException, match="400: The sender disconnected"):
        await receive(request, Verifier([SECRET]))


async def test_what_the_handler_raises_is_logged_here_and_sent_again(
    handler: Handler, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [ZeroDivisionError("hunter2"), HTTPException(204), TimeoutError("hunter2")]
    async with serve_app(receiver_app(handler, secrets=[SECRET])) as url:
        answers = []
        for handler.error in errors:
            answers.append(await send_post(http, url, post()))
        handler.error = None
        last = [await send_post(http, url, post()) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [500, 500, 500]
    assert {answer.text for answer in answers} == {'{"detail":"The notification was not handled."}'}
    assert [answer.status_code for answer in last] == [204, 204]
    assert handler.handled == ["1"]
    log_records = [record for record in caplog.records if record.name.startswith("a2a_celery")]
    assert [record.exc_info and record.exc_info[1] for record in log_records] == errors
    assert all("of task t1" in record.getMessage() for record in log_records)


async def test_a_handler_that_takes_too_long_is_stopped_and_the_event_comes_again(
    handler: Handler, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_app(receiver_app(handler, secrets=[SECRET], time_limit=0.05)) as url:
        handler.go_on.clear()
        late_response = await send_post(http, url, post())
        handler.go_on.set()
        second_response = await send_post(http, url, post())

    assert (late_response.status_code, second_response.status_code) == (500, 204)
    assert handler.handled == ["1"]
    assert "took more than 0.05 s" in caplog.text


async def test_two_copies_at_once_are_handled_once(handler: Handler, http: httpx.AsyncClient) -> None:
    async with serve_app(receiver_app(handler, secrets=[SECRET])) as url:
        handler.go_on.clear()
        first = asyncio.create_task(send_post(http, url, post()))
        await handler.begun.wait()
        second = await send_post(http, url, post())
        other_line = asyncio.create_task(send_post(http, url, post(8, delivery_id="another")))
        handler.go_on.set()
        answers = [await first, await other_line, await send_post(http, url, post())]

    assert (second.status_code, second.headers["retry-after"]) == (503, "5")
    assert second.json() == {"detail": "An event of this subscription is being handled."}
    assert [answer.status_code for answer in answers] == [204, 204, 204]
    assert sorted(handler.handled) == ["1", "8"]


async def test_a_sender_that_hangs_up_finds_its_event_handled(handler: Handler, http: httpx.AsyncClient) -> None:
    """The receiver runs a handler only once, even if the handler is slower than the sender's timeout."""
    async with serve_app(receiver_app(handler, secrets=[SECRET])) as url:
        handler.go_on.clear()
        impatient = asyncio.create_task(send_post(http, url, post()))
        await handler.begun.wait()
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        second_response = await send_post(http, url, post())
        handler.go_on.set()
        statuses = [second_response.status_code]
        while statuses[-1] == 503:
            statuses.append((await send_post(http, url, post())).status_code)

    assert (statuses[0], statuses[-1]) == (503, 204)
    assert handler.handled == ["1"]


async def test_receivers_in_several_processes_share_a_redis(
    handler: Handler, http: httpx.AsyncClient, redis_server: EmbeddedRedis
) -> None:
    def replica(client: redis.asyncio.Redis) -> Starlette:
        return receiver_app(handler, secrets=[SECRET], deduplicator=RedisDeduplicator(client))

    address = redis_server.store_url
    async with (
        redis.asyncio.Redis.from_url(address) as first_client,
        redis.asyncio.Redis.from_url(address) as second_client,
    ):
        await first_client.flushall()
        async with serve_app(replica(first_client)) as first_url, serve_app(replica(second_client)) as second_url:
            handler.go_on.clear()
            first = asyncio.create_task(send_post(http, first_url, post()))
            await handler.begun.wait()
            second_response = await send_post(http, second_url, post())
            handler.go_on.set()
            answers = [
                await first,
                await send_post(http, second_url, post()),
                await send_post(http, second_url, post(2)),
            ]

    assert second_response.status_code == 503
    assert [answer.status_code for answer in answers] == [204, 204, 204]
    assert handler.handled == ["1", "2"]


async def test_events_in_the_place_of_lost_ones_are_handled(handler: Handler, http: httpx.AsyncClient) -> None:
    """The sender's store has lost events 2 and 3, and has recorded a different event 2."""
    posts = [post(1, recorded_us=10), post(2, recorded_us=20), post(3, recorded_us=30), post(2, recorded_us=200)]
    async with serve_app(receiver_app(handler, secrets=[SECRET])) as url:
        answers = [await send_post(http, url, signed_post) for signed_post in (*posts, posts[1], posts[3])]

    assert [answer.status_code for answer in answers] == [204] * 6
    assert handler.handled == ["1-10", "2-20", "3-30", "2-200"]


class Forgetful(MemoryDeduplicator):
    """Deduplicator that fails in the operation that `fails` names."""

    fails = ""

    async def claim(self, *args: object) -> object:  # type: ignore[override]
        if self.fails == "claim":
            raise ConnectionError("10.1.2.3 is away")
        return await super().claim(*args)  # type: ignore[arg-type]

    async def settle(self, *args: object, handled: bool) -> None:  # type: ignore[override]
        if self.fails == f"settle {handled}":
            raise ConnectionError("10.1.2.3 is away")
        await super().settle(*args, handled=handled)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", ["claim", "settle True", "settle False"])
async def test_without_its_memory_a_receiver_lets_the_sender_come_again(
    handler: Handler, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    deduplicator = Forgetful()
    deduplicator.fails = fails
    handler.error = ZeroDivisionError() if fails == "settle False" else None
    async with serve_app(receiver_app(handler, secrets=[SECRET], deduplicator=deduplicator)) as url:
        answer = await send_post(http, url, post())

    assert answer.status_code == (500 if fails == "settle False" else 503)
    assert "10.1.2.3" not in answer.text
    assert "10.1.2.3 is away" in caplog.text
    assert handler.handled == (["1"] if fails == "settle True" else [])


async def test_the_app_answers_wherever_it_is_put(handler: Handler, http: httpx.AsyncClient) -> None:
    app = receiver_app(handler, secrets=[SECRET])
    site = Starlette(routes=[Route("/exact", app), Mount("/mounted", app)])
    async with serve_app(site) as url:
        paths = ["/exact", "/mounted/", "/mounted/deeper"]
        statuses = [(await send_post(http, url + path, post(n))).status_code for n, path in enumerate(paths, start=1)]

    assert statuses == [204, 204, 204]
    assert handler.handled == ["1", "2", "3"]


async def test_a_route_of_ones_own_has_the_same_rules(http: httpx.AsyncClient) -> None:
    verifier, deduplicator, outcomes = Verifier([SECRET]), MemoryDeduplicator(), []

    async def events(request: Request) -> Response:
        notification = await receive(request, verifier)
        async with handle_once(notification, deduplicator) as new:
            outcomes.append((notification.version, new))
        return Response(status_code=202)

    async with serve_app(Starlette(routes=[Route("/events", events, methods=["POST"])])) as url:
        posts = [post(1), post(1), post(2), post(3, secrets=(OTHER_SECRET,))]
        answers = [await send_post(http, f"{url}/events", signed_post) for signed_post in posts]

    assert [answer.status_code for answer in answers] == [202, 202, 202, 401]
    assert answers[-1].text == "No signature of this id, time and body was made with a known secret."
    assert outcomes == [(1, True), (1, False), (2, True)]


async def test_a_handler_that_is_cancelled_has_not_handled_anything() -> None:
    signed_post, deduplicator, has_begun = post(), MemoryDeduplicator(), asyncio.Event()
    notification = Verifier([SECRET]).verify(signed_post.headers, signed_post.body)

    async def handle_and_wait() -> None:
        async with handle_once(notification, deduplicator):
            has_begun.set()
            await asyncio.Event().wait()

    handling_task = asyncio.create_task(handle_and_wait())
    await has_begun.wait()
    handling_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling_task

    async with handle_once(notification, deduplicator) as new:
        assert new


async def test_secrets_and_credentials_are_in_no_log(
    http: httpx.AsyncClient, handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    handler.error = ZeroDivisionError()
    app = receiver_app(handler, secrets=[SECRET], token="a-good-token", authorization="Bearer a-good-key")
    good = {"X-A2A-Notification-Token": "a-good-token", "Authorization": "Bearer a-good-key"}
    bad = [{**good, "Authorization": "Bearer a-bad-key"}, {**good, "X-A2A-Notification-Token": "a-bad-token"}]
    posts = [post(**good), *(post(**headers) for headers in bad), post(secrets=(OTHER_SECRET,), **good)]
    async with serve_app(app) as url:
        answers = [await send_post(http, url, signed_post) for signed_post in posts]

    assert [answer.status_code for answer in answers] == [500, 401, 401, 401]
    text = caplog.text + "".join(answer.text for answer in answers)
    hidden = ["a-good-", "a-bad-", SECRET.removeprefix("whsec_"), "secret of twenty", "v1,"]
    assert [word for word in hidden if word in text] == []


@pytest.mark.parametrize(
    ("origins", "origin", "allowed_origin"),
    [
        (("*",), "agents.example.com", "agents.example.com"),
        (("agents.example.com",), "Agents.example.com", "Agents.example.com"),
        (("agents.example.com",), "other.example.com", None),
        ((), "agents.example.com", None),
        (("*",), None, None),
    ],
)
async def test_it_consents_to_the_origins_that_it_is_for(
    handler: Handler, http: httpx.AsyncClient, origins: tuple[str, ...], origin: str | None, allowed_origin: str | None
) -> None:
    async with serve_app(receiver_app(handler, secrets=[SECRET], origins=origins)) as url:
        answer = await http.options(url, headers={"WebHook-Request-Origin": origin} if origin else {})

    assert answer.headers.get("WebHook-Allowed-Origin") == allowed_origin
    assert answer.status_code == (403 if allowed_origin is None else 200)
    assert handler.handled == []


@pytest.mark.parametrize("origins", ["agents.example.com", "*.example.com", ["a.example", "*.example.com"]])
def test_origins_that_would_not_be_compared_are_refused(handler: Handler, origins: Any) -> None:
    """The characters of a string would be the origins, so "*.example.com" would allow all origins."""
    with pytest.raises(ConfigError, match="a list of host names"):
        receiver_app(handler, secrets=[SECRET], origins=origins)


def test_it_is_imported_without_any_configuration() -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("A2A_", "CELERY_", "REDIS_"))
    }
    subprocess.run(
        [sys.executable, "-c", "import a2a_celery.client.receiver"],
        env={**environment, "A2A_STORE_URL": "no address at all"},
        check=True,
        timeout=60,
    )
