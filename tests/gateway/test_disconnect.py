"""Cancellation of a call when its client disconnects, and only then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from a2a_celery.gateway.bindings.endpoints import CLIENT_CLOSED_REQUEST, Endpoint, cancel_on_disconnect
from a2a_celery.gateway.shutdown import GatewayShutdown


async def respond(endpoint: Endpoint, request: Request) -> Response:
    """Return the response of `endpoint`, with frequent checks of the client's connection."""
    return await cancel_on_disconnect(endpoint, request, poll_interval=0.01)


class Client:
    """Client that stays connected until the test disconnects it."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.looked_for = asyncio.Event()
        self.request = Request({"type": "http"}, self._receive)

    async def _receive(self) -> Any:
        self.looked_for.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_a_response_is_returned_unchanged() -> None:
    answer = Response("fine")

    async def endpoint(_: Request) -> Response:
        return answer

    assert await respond(endpoint, Client().request) is answer


async def test_a_call_ends_with_its_client() -> None:
    client, has_ended = Client(), asyncio.Event()

    async def endpoint(_: Request) -> Response:
        client.gone.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()
        raise AssertionError

    answer = await respond(endpoint, client.request)
    assert answer.status_code == CLIENT_CLOSED_REQUEST
    assert has_ended.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling(), "whoever sends the answer is cancelled for nothing"


async def test_a_client_that_stays_has_its_answer() -> None:
    client = Client()

    async def endpoint(_: Request) -> Response:
        await client.looked_for.wait()
        return Response("late")

    assert (await respond(endpoint, client.request)).status_code == 200
    assert len(asyncio.all_tasks()) <= 2, "nobody looks any more"


async def test_a_cancellation_by_the_server_ends_the_call() -> None:
    client, is_waiting = Client(), asyncio.Event()

    async def endpoint(_: Request) -> Response:
        is_waiting.set()
        await asyncio.Event().wait()
        raise AssertionError

    call = asyncio.ensure_future(respond(endpoint, client.request))
    await is_waiting.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_an_interrupted_wait_continues_to_the_response() -> None:
    client, shutdown, is_waiting = Client(), GatewayShutdown(), asyncio.Event()

    async def endpoint(_: Request) -> Response:
        with shutdown.waiting():
            is_waiting.set()
            await asyncio.Event().wait()
        return Response("as it is")

    call = asyncio.ensure_future(respond(endpoint, client.request))
    await is_waiting.wait()
    shutdown.cancel_waiting()
    assert (await call).status_code == 200


async def test_an_interrupted_wait_of_a_disconnected_client_is_cancelled_once() -> None:
    shutdown = GatewayShutdown()

    async def receive() -> Any:
        shutdown.cancel_waiting()  # in the step that detects the disconnect
        return {"type": "http.disconnect"}

    async def endpoint(_: Request) -> Response:
        with shutdown.waiting():
            await asyncio.Event().wait()
        raise AssertionError

    answer = await respond(endpoint, Request({"type": "http"}, receive))
    assert answer.status_code == CLIENT_CLOSED_REQUEST
    await asyncio.sleep(0)
