"""Receiver of push notifications that handles each event of a task once and in order.

`receiver_app` is the complete ASGI application. `receive` and `handle_once` are its building blocks, for routes in
other applications. See docs/webhooks-receiving.md.

Source: A2A specification 4.3.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from threading import Event
from typing import Any, Protocol
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..concurrency import DaemonThreads, close_old_connections
from ..errors import ConfigError
from .deduplication import ClaimStatus, Deduplicator, MemoryDeduplicator, RedisDeduplicator
from .notifications import (
    MAX_BYTES,
    TOLERANCE,
    MalformedNotification,
    NotAuthentic,
    Notification,
    NotificationRefused,
    NotificationTooLarge,
    Ping,
    PublicKeysUnavailable,
    TimestampOutOfRange,
    Verifier,
)
from .public_keys import PublicKeys

__all__ = [
    "ClaimStatus",
    "Deduplicator",
    "MalformedNotification",
    "MemoryDeduplicator",
    "NotAuthentic",
    "Notification",
    "NotificationRefused",
    "NotificationTooLarge",
    "Ping",
    "PublicKeys",
    "PublicKeysUnavailable",
    "RedisDeduplicator",
    "TimestampOutOfRange",
    "Verifier",
    "celery_handler",
    "consent",
    "handle_once",
    "receive",
    "receiver_app",
]

logger = logging.getLogger(__name__)

Handler = Callable[[Notification], Awaitable[object]]

TIME_LIMIT = 60.0
"""Maximum duration of the handler of one event, in seconds. The sender's timeout is shorter. If the sender retries
while the handler is running, the receiver responds with 503."""

CLAIM_GRACE = 10.0
"""Seconds that a claim outlives the handler's time limit, so that no other attempt starts while the handler is being
cancelled."""

RETRY_DELAY = 5
"""Retry-After of the receiver's 503 responses, in seconds."""

BROKER_TIMEOUT = 10.0
"""Seconds within which the broker must accept a message. The limit is below the timeout of senders, about 15 s."""

BROKER_THREADS = 4
"""Number of threads that wait for the broker."""


async def receive(request: Request, verifier: Verifier) -> Notification:
    """Verify a request and return its notification. The body is read up to the verifier's limit.

    Raises:
        HTTPException: The request is not a notification (400, 401 or 413, with the reason), the sender disconnected
            (400), the request is a test ping (204), or the sender's public keys are not known yet (503, with
            Retry-After).
    """
    try:
        return await verifier.verify_async(request.headers, await body_of(request, verifier.max_bytes))
    except PublicKeysUnavailable as e:
        raise _retry_error(str(e)) from e
    except Ping as e:
        logger.info("received a test ping: this receiver and its secrets are configured correctly")
        raise HTTPException(e.status) from None
    except NotificationRefused as e:
        logger.warning("refused a request that is not a notification: %s", e)
        raise HTTPException(e.status, str(e)) from e
    except ClientDisconnect:
        raise HTTPException(400, "The sender disconnected.") from None


def consent(request: Request, origins: Sequence[str] = ("*",)) -> Response:
    """Return the response to a sender's OPTIONS request for permission to post to this receiver.

    Args:
        request: The request.
        origins: Allowed origins. ``*`` allows all origins.

    Raises:
        ConfigError: `origins` is invalid.
        HTTPException: The origin is not allowed (403).

    Source: CloudEvents, HTTP 1.1 Web Hooks for Event Delivery 1.0.2, section 4.2 (validation response).
    """
    origin = request.headers.get("webhook-request-origin", "")
    if not origin or not {"*", origin.lower()} & _checked_origins(origins):
        raise HTTPException(403, "This receiver accepts no events from that origin.")
    return Response(status_code=200, headers={"Allow": "POST", "WebHook-Allowed-Origin": origin})


def _checked_origins(origins: Sequence[str]) -> set[str]:
    """Return `origins` in lower case.

    Raises:
        ConfigError: `origins` is a string, whose characters would be the origins, or contains a pattern.
    """
    if isinstance(origins, str) or any("*" in origin and origin != "*" for origin in origins):
        raise ConfigError(f"origins = {origins!r}: must be a list of host names without wildcards, or ['*'] for all")
    return {origin.lower() for origin in origins}


@asynccontextmanager
async def handle_once(
    notification: Notification, deduplicator: Deduplicator, *, time_limit: float = TIME_LIMIT
) -> AsyncIterator[bool]:
    """Claim a notification for the block, and mark it as handled if the block ends without an error.

    If the block raises, or is cancelled after `time_limit` seconds, the claim is released. In both cases, respond with
    5xx so that the sender retries. A notification without a version, from a server that does not sign, is always
    treated as new.

    Args:
        notification: The notification.
        deduplicator: Store of handled events.
        time_limit: Maximum duration of the block, in seconds.

    Yields:
        True if the block must handle the event, or False if the event was already handled.

    Raises:
        HTTPException: An event of the same subscription is being handled, or the deduplicator is unavailable (503, with
            Retry-After).
        TimeoutError: The block exceeded the time limit.
    """
    subscription_id, event_id, holder = notification.subscription_id, notification.event_id, uuid4().hex
    if not event_id.version:
        async with asyncio.timeout(time_limit):
            yield True
        return
    try:
        status = await deduplicator.claim(subscription_id, event_id, holder, time_limit + CLAIM_GRACE)
    except Exception as e:
        raise _retry_error("The deduplicator is unavailable.", e) from e
    if status is ClaimStatus.IN_PROGRESS:
        raise _retry_error("An event of this subscription is being handled.")
    if status is ClaimStatus.DUPLICATE:
        yield False
        return
    try:
        async with asyncio.timeout(time_limit):
            yield True
    except BaseException:
        await _release_claim(deduplicator, notification, holder)
        raise
    try:
        await deduplicator.settle(subscription_id, event_id, holder, handled=True)
    except Exception as e:
        raise _retry_error("The notification could not be recorded as handled.", e) from e


def receiver_app(
    handler: Handler,
    *,
    secrets: Sequence[str | bytes] = (),
    tolerance: float = TOLERANCE,
    token: str | None = None,
    authorization: str | None = None,
    public_keys: PublicKeys | None = None,
    max_bytes: int = MAX_BYTES,
    deduplicator: Deduplicator | None = None,
    time_limit: float = TIME_LIMIT,
    origins: Sequence[str] = ("*",),
) -> Starlette:
    """Return an ASGI application that receives posts at any path and calls `handler` with each new notification, in
    order within a subscription.

    The application responds with 204 when the handler has returned, or if the notification is a duplicate. The response
    is 500 if the handler raised or exceeded `time_limit`, and 503 while an event of the subscription is being handled
    or the deduplicator is unavailable. In these cases, the sender retries. The body of an error is ``{"detail": "…"}``.
    The handler's exceptions are logged and not returned to the sender.

    Args:
        handler: Coroutine function called with each notification; see `celery_handler` for a Celery task.
        secrets: Shared secrets; see `Verifier`.
        tolerance: Maximum difference in seconds between a signature's time and the local clock; see `Verifier`.
        token: Required A2A token, or None; see `Verifier`.
        authorization: Required Authorization header, or None; see `Verifier`.
        public_keys: Keys of Ed25519 signatures, or None; see `Verifier`.
        max_bytes: Maximum size of a body; see `Verifier`.
        deduplicator: Store of handled events. The default, a `MemoryDeduplicator`, suits a single process.
        time_limit: Maximum duration of the handler, in seconds.
        origins: Origins that may post to this receiver; see `consent`.

    Raises:
        ConfigError: No secret, key, token or authorization is set, or a secret or an origin is invalid.
    """
    _checked_origins(origins)
    verifier = Verifier(
        secrets,
        tolerance=tolerance,
        token=token,
        authorization=authorization,
        public_keys=public_keys,
        max_bytes=max_bytes,
    )
    store = MemoryDeduplicator() if deduplicator is None else deduplicator

    async def endpoint(request: Request) -> Response:
        if request.method == "OPTIONS":
            return consent(request, origins)
        notification = await receive(request, verifier)
        await _handle_new(handler, notification, store, time_limit)
        return Response(status_code=204)

    return Starlette(
        routes=[Route("/{path:path}", endpoint, methods=["POST", "OPTIONS"])],
        exception_handlers={HTTPException: as_json},
    )


async def _handle_new(handler: Handler, notification: Notification, store: Deduplicator, time_limit: float) -> None:
    """Call `handler` unless the notification is a duplicate.

    Raises:
        HTTPException: The notification was not handled.
    """
    try:
        async with handle_once(notification, store, time_limit=time_limit) as new:
            if new:
                await _handle(handler, notification)
    except _HandlerFailed as e:
        raise _not_handled(notification, "the handler failed", e.__cause__) from None
    except TimeoutError as e:
        raise _not_handled(notification, f"the handler took more than {time_limit} s", e.__cause__) from None


class PublishableTask(Protocol):
    """Celery task or signature."""

    def apply_async(self, **options: Any) -> Any:
        """Publish the task."""
        ...


def celery_handler(task: PublishableTask, **options: Any) -> Handler:
    """Return a handler for `receiver_app` that publishes a Celery task for each notification.

    The task is called with the keyword argument `notification`, the dict that `Notification.from_dict` reads. The
    task's Celery id is the notification's id, so a notification that is delivered twice is published with the same
    Celery id.

    A notification is published at least once: if the broker does not accept the task within 10 s, the receiver responds
    with 500 and the sender delivers the notification again. Notifications are published in order, but workers that run
    several tasks at a time, and retries, do not preserve the order. To process notifications in order, consume the
    queue with a single worker that runs with ``--concurrency 1``, and do not retry the task. To detect repeated or late
    notifications, compare their event ids.

    Args:
        task: A Celery task, or a signature.
        options: Celery's `apply_async` options (queue, priority …).
    """

    return NotificationPublisher(task, options)


class NotificationPublisher:
    """Handler that publishes a Celery task for each notification; see `celery_handler`.

    Args:
        task: A Celery task, or a signature.
        options: Celery's `apply_async` options.
        timeout: Seconds within which the broker must accept the task.
    """

    def __init__(self, task: PublishableTask, options: Mapping[str, Any], timeout: float = BROKER_TIMEOUT) -> None:
        self._task = task
        self._options = options
        self._timeout = timeout
        self._threads = DaemonThreads(BROKER_THREADS, "a2a-notifications", before_call=close_old_connections)

    async def __call__(self, notification: Notification) -> None:
        """Publish the task.

        Raises:
            TimeoutError: The broker did not accept the task in time.
        """
        has_failed = Event()

        def apply() -> None:
            if not has_failed.is_set():  # the call may have waited for a thread longer than the sender waits
                kwargs = {"notification": notification.to_dict()}
                self._task.apply_async(kwargs=kwargs, **{"task_id": notification.id, **self._options})

        try:
            await asyncio.wait_for(self._threads.call(apply), self._timeout)
        except BaseException:
            has_failed.set()
            raise


class _HandlerFailed(Exception):
    """Error for a handler that raised an exception, which is the cause of this error. Even an HTTPException of the
    handler is not returned to the sender."""


async def _handle(handler: Handler, notification: Notification) -> None:
    try:
        await handler(notification)
    except Exception as e:
        raise _HandlerFailed from e


async def body_of(request: Request, max_bytes: int) -> bytes:
    """Return the body of `request`.

    Raises:
        NotificationTooLarge: The body has more than `max_bytes` bytes.
        ClientDisconnect: The sender disconnected before the end of the body.
    """
    declared_length = request.headers.get("content-length", "")
    if declared_length.isdecimal() and int(declared_length) > max_bytes:
        raise NotificationTooLarge(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise NotificationTooLarge(max_bytes)
    return bytes(body)


async def _release_claim(deduplicator: Deduplicator, notification: Notification, holder: str) -> None:
    """Release the claim of a failed notification. If releasing fails, the claim expires."""
    try:
        await deduplicator.settle(notification.subscription_id, notification.event_id, holder, handled=False)
    except Exception:
        logger.exception("could not release the claim of %s; the claim expires", notification.id)


def _retry_error(detail: str, cause: Exception | None = None) -> HTTPException:
    if cause is not None:
        logger.error("%s", detail, exc_info=cause)
    return HTTPException(503, detail, headers={"Retry-After": str(RETRY_DELAY)})


def _not_handled(notification: Notification, reason: str, cause: BaseException | None) -> HTTPException:
    logger.error("%s: %s of task %s", reason, notification.id, notification.task_id, exc_info=cause)
    return HTTPException(500, "The notification was not handled.")


async def as_json(request: Request, error: Exception) -> Response:
    """Convert an HTTPException to a response with the body ``{"detail": "…"}``, or without a body for status 204."""
    assert isinstance(error, HTTPException)
    if error.status_code == 204:
        return Response(status_code=204, headers=error.headers)
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)
