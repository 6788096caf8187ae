"""Webhook that wakes a step when its remote task is terminal or interrupted, so that the step polls the task at once.

The content of a notification is not trusted. A forged notification causes one superfluous request. A lost notification
causes a delay. Duplicates and the order do not matter.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from a2a.types import Message, TaskPushNotificationConfig
from a2a.utils.errors import PushNotificationNotSupportedError
from celery import Celery
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ...concurrency import DaemonThreads, close_old_connections
from ...errors import ConfigError
from ..notifications import MAX_BYTES, SECRET_PREFIX, TOKEN, NotificationRefused, Ping, Verifier
from ..receiver import BROKER_THREADS, BROKER_TIMEOUT, RETRY_DELAY, as_json, body_of, consent
from ..remote_agent import RemoteAgent
from ..result import Result

logger = logging.getLogger(__name__)

MIN_SECRET_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Webhook:
    """Webhook that agents notify when a step's remote task is terminal or interrupted.

    Each step has a secret derived from `secret`. A notification is accepted if it is signed with the step's secret, or
    if its A2A token is the step's secret.

    Attributes:
        url: Address at which agents reach the application that `CallTask.receiver` returns.
        secret: Secret of at least 32 characters, the same in workers and receivers.

    Raises:
        ConfigError: The URL or the secret is invalid.
    """

    url: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"webhook url {self.url!r}: must have http:// or https://, a host and a path")
        if len(self.secret) < MIN_SECRET_LENGTH:
            raise ConfigError(
                f"webhook secret: needs at least {MIN_SECRET_LENGTH} characters; create one with `openssl rand -hex 32`"
            )

    def config(self, celery_id: str) -> TaskPushNotificationConfig:
        """Return the push notification config for the remote task of a step."""
        url = f"{self.url.rstrip('/')}/{quote(celery_id, safe='')}"
        return TaskPushNotificationConfig(url=url, token=self._token(celery_id))

    def app(self, celery: Celery) -> Starlette:
        """Return the ASGI application that receives notifications. The step's id is the last segment of the path, so
        the application can be mounted under any path.
        """
        threads = DaemonThreads(BROKER_THREADS, "a2a-wake", before_call=close_old_connections)

        async def endpoint(request: Request) -> Response:
            if request.method == "OPTIONS":
                return consent(request)
            celery_id = request.path_params["celery_id"].rpartition("/")[2]
            try:
                body = await body_of(request, MAX_BYTES)
                self._require_genuine(celery_id, request, body)
            except Ping as e:
                raise HTTPException(e.status) from None
            except NotificationRefused as e:
                logger.warning("refused a notification for step %r: %s", celery_id, e)
                raise HTTPException(e.status, str(e)) from e
            except ClientDisconnect:
                raise HTTPException(400, "The sender disconnected.") from None
            if _is_final_for_caller(body):
                arguments = {"celery_id": celery_id}
                broadcast = threads.call(lambda: celery.control.broadcast("a2a_wake", arguments=arguments))
                try:
                    await asyncio.wait_for(broadcast, BROKER_TIMEOUT)
                except Exception as e:
                    logger.error("could not wake step %s", celery_id, exc_info=e)
                    wait = {"Retry-After": str(RETRY_DELAY)}
                    raise HTTPException(503, "The workers are unavailable.", headers=wait) from None
            return Response(status_code=204)

        return Starlette(
            routes=[Route("/{celery_id:path}", endpoint, methods=["POST", "OPTIONS"])],
            exception_handlers={HTTPException: as_json},
        )

    def _token(self, celery_id: str) -> str:
        digest = hmac.digest(self.secret.encode(), f"a2a.call:{celery_id}".encode(), "sha256")
        return SECRET_PREFIX + base64.b64encode(digest).decode()

    def _require_genuine(self, celery_id: str, request: Request, body: bytes) -> None:
        token = self._token(celery_id)
        if not hmac.compare_digest(request.headers.get(TOKEN, "").encode(errors="replace"), token.encode()):
            Verifier([token]).verify(request.headers, body)


async def submit_with_webhook(
    agent: RemoteAgent, message: Message, webhook: Webhook | None, celery_id: str
) -> tuple[Result, bool]:
    """Send the message of the step `celery_id` with the step's webhook. If the agent does not support push
    notifications, send the message without the webhook.

    Returns:
        The result, and True if the agent accepted a webhook.

    Raises:
        RemoteError: See `RemoteAgent.submit`.
        A2AError: See `RemoteAgent.submit`.
    """
    if webhook is not None:
        try:
            return await agent.submit(message, push=webhook.config(celery_id)), True
        except PushNotificationNotSupportedError:
            pass
    return await agent.submit(message), False


def _is_final_for_caller(body: bytes) -> bool:
    """Return True if the event ends the turn, or is unreadable."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return True
    return not isinstance(event, dict) or Result.of(event).stop_reason is not None
