"""For a service that agents push notifications to: each event of a task is handled once, in order.

`receiver_app` is all of it as an ASGI application; `receive` and `once` are its two halves, for a route of one's own.
See docs/webhooks-receiving.md.

Source: A2A specification 4.3.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .notifications import (
    MAX_BYTES,
    TOLERANCE,
    Malformed,
    NotAuthentic,
    Notification,
    NotificationRefused,
    OutOfTime,
    TooLarge,
    Verifier,
)
from .seen import MemorySeen, RedisSeen, Seen, Standing

__all__ = [
    "Malformed",
    "MemorySeen",
    "NotAuthentic",
    "Notification",
    "NotificationRefused",
    "OutOfTime",
    "RedisSeen",
    "Seen",
    "Standing",
    "TooLarge",
    "Verifier",
    "once",
    "receive",
    "receiver_app",
]

logger = logging.getLogger(__name__)

Handler = Callable[[Notification], Awaitable[object]]

TIME_LIMIT = 60.0
"""Seconds for one event. The sender hangs up earlier, and comes again: it is told to wait until the first is done."""

LETTING_GO = 10.0
"""Seconds beyond its time limit for which an event is held, so that no other is begun while it is being stopped."""

COME_AGAIN = 5
"""Seconds after which the sender may try again, when somebody else has the event in hand or our memory is away."""


async def receive(request: Request, verifier: Verifier) -> Notification:
    """The notification that `request` is; its body is read only as far as the verifier allows.

    Raises:
        HTTPException: it is none (400, 401, 413, with a text that says why).
    """
    try:
        return verifier.verify(request.headers, await body_of(request, verifier.max_bytes))
    except NotificationRefused as e:
        logger.warning("a request that is no notification was refused: %s", e)
        raise HTTPException(e.status, str(e)) from e
    except ClientDisconnect:
        raise HTTPException(400, "The sender hung up.") from None


@asynccontextmanager
async def once(notification: Notification, seen: Seen, *, time_limit: float = TIME_LIMIT) -> AsyncIterator[bool]:
    """Whether the event is yours to handle, inside the block; False if it was handled before.

    It counts as handled when the block ends without an error. When it raises, or takes more than `time_limit` seconds
    (it is cancelled then), the event is as if it had never come: answer with 5xx, and it comes again.

    Raises:
        HTTPException: another event of this line, most likely this very one, is being handled, or `seen` can't be
            asked (503, with Retry-After).
        TimeoutError: the block took too long.
    """
    line, version, holder = notification.line, notification.version, uuid4().hex
    try:
        standing = await seen.claim(line, version, holder, time_limit + LETTING_GO)
    except Exception as e:
        raise _later("What was handled is not known right now.", e) from e
    if standing is Standing.IN_HAND:
        raise _later("An event of this line is being handled.")
    if standing is Standing.REPEAT:
        yield False
        return
    try:
        async with asyncio.timeout(time_limit):
            yield True
    except BaseException:
        await _let_go(seen, notification, holder)
        raise
    try:
        await seen.settle(line, version, holder, handled=True)
    except Exception as e:
        raise _later("What was handled could not be noted.", e) from e


def receiver_app(
    handler: Handler,
    *,
    secrets: Sequence[str | bytes],
    tolerance: float = TOLERANCE,
    token: str | None = None,
    authorization: str | None = None,
    max_bytes: int = MAX_BYTES,
    seen: Seen | None = None,
    time_limit: float = TIME_LIMIT,
) -> Starlette:
    """An ASGI application that calls `handler` with each notification, once, in order per line; at any path.

    It answers 204 when the handler is done, and to repeats; 500 when the handler raised or took more than `time_limit`
    seconds, 503 when the event is in hand elsewhere: then the sender comes again. Errors are ``{"detail": "…"}``; what
    a handler raised is in the log alone. `secrets` to `max_bytes` are the `Verifier`'s. `seen` None: a `MemorySeen`,
    which is right for a single process.

    Raises:
        ConfigError: no secret, or one that can't be read.
    """
    verifier = Verifier(secrets, tolerance=tolerance, token=token, authorization=authorization, max_bytes=max_bytes)
    memory = MemorySeen() if seen is None else seen

    async def endpoint(request: Request) -> Response:
        notification = await receive(request, verifier)
        try:
            async with once(notification, memory, time_limit=time_limit) as new:
                if new:
                    await _handle(handler, notification)
        except _HandlerFailed as e:
            raise _not_handled(notification, "the handler failed", e.__cause__) from None
        except TimeoutError as e:
            raise _not_handled(notification, f"the handler took more than {time_limit} s", e.__cause__) from None
        return Response(status_code=204)

    return Starlette(
        routes=[Route("/{path:path}", endpoint, methods=["POST"])], exception_handlers={HTTPException: as_json}
    )


class _HandlerFailed(Exception):
    """What a handler raised is its cause: an HTTPException of its own is no answer of ours."""


async def _handle(handler: Handler, notification: Notification) -> None:
    try:
        await handler(notification)
    except Exception as e:
        raise _HandlerFailed from e


async def body_of(request: Request, max_bytes: int) -> bytes:
    """The body of `request`, as far as it has no more than `max_bytes`.

    Raises:
        TooLarge: it has more.
        ClientDisconnect: it did not come to its end.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise TooLarge(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise TooLarge(max_bytes)
    return bytes(body)


async def _let_go(seen: Seen, notification: Notification, holder: str) -> None:
    """The event is nobody's again; if that can't be said, its hold ends by itself."""
    try:
        await seen.settle(notification.line, notification.version, holder, handled=False)
    except Exception:
        logger.exception("%s could not be let go: it stays in hand for a while", notification.id)


def _later(detail: str, cause: Exception | None = None) -> HTTPException:
    if cause is not None:
        logger.error("%s", detail, exc_info=cause)
    return HTTPException(503, detail, headers={"Retry-After": str(COME_AGAIN)})


def _not_handled(notification: Notification, what: str, cause: BaseException | None) -> HTTPException:
    logger.error("%s: %s of task %s", what, notification.id, notification.task_id, exc_info=cause)
    return HTTPException(500, "The notification was not handled.")


async def as_json(request: Request, error: Exception) -> Response:
    """An HTTPException as ``{"detail": "…"}``."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)
