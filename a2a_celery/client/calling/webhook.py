"""Agents tell us that a task has ended: a post lets the step look at its task now, which is all that it does.

What a post says is not believed: the step asks its agent. So one that is forged costs a request, one that is lost costs
time, and repeats and order mean nothing.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from a2a.types import TaskPushNotificationConfig
from celery import Celery
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import ConfigError
from ...threads import DaemonThreads
from ..notifications import MAX_BYTES, SECRET_PREFIX, TOKEN, NotificationRefused, Verifier
from ..receiver import COME_AGAIN, as_json, body_of
from ..result import Result

logger = logging.getLogger(__name__)

LEAST_SECRET = 32
THREADS = 4
BROKER_WITHIN = 10.0
"""Seconds in which the broker takes what workers are told; senders hang up after fifteen or so."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where agents post that a step's task has ended or asks: `url` is that of `CallTask.receiver`, as they reach it.

    Each step has a secret of its own, derived from `secret`: 32 characters or more, the same in workers and receivers.
    Posts are taken that are signed with it (agents of ours do that) or have it as their token (which A2A asks of all).

    Raises:
        ConfigError: one of them can't be used.
    """

    url: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"webhook url {self.url!r}: http:// or https://, a host and a path")
        if len(self.secret) < LEAST_SECRET:
            raise ConfigError(
                f"webhook secret: {LEAST_SECRET} characters or more, such as `openssl rand -hex 32` gives"
            )

    def config(self, celery_id: str) -> TaskPushNotificationConfig:
        """What is given to the agent of a step."""
        url = f"{self.url.rstrip('/')}/{quote(celery_id, safe='')}"
        return TaskPushNotificationConfig(url=url, token=self._token(celery_id))

    def app(self, celery: Celery) -> Starlette:
        """The ASGI application; a step's id is the last part of the path, so it may be mounted anywhere."""
        threads = DaemonThreads(THREADS, "a2a-wake")

        async def endpoint(request: Request) -> Response:
            celery_id = request.path_params["celery_id"].rpartition("/")[2]
            try:
                body = await body_of(request, MAX_BYTES)
                self._require_genuine(celery_id, request, body)
            except NotificationRefused as e:
                logger.warning("a post for step %r was refused: %s", celery_id, e)
                raise HTTPException(e.status, str(e)) from e
            except ClientDisconnect:
                raise HTTPException(400, "The sender hung up.") from None
            if _says_it_is_over(body):
                arguments = {"celery_id": celery_id}
                told = threads.call(lambda: celery.control.broadcast("a2a_wake", arguments=arguments))
                try:
                    await asyncio.wait_for(told, BROKER_WITHIN)
                except Exception as e:
                    logger.error("step %s was not told that its task is over", celery_id, exc_info=e)
                    wait = {"Retry-After": str(COME_AGAIN)}
                    raise HTTPException(503, "Workers can't be told right now.", headers=wait) from None
            return Response(status_code=204)

        return Starlette(
            routes=[Route("/{celery_id:path}", endpoint, methods=["POST"])],
            exception_handlers={HTTPException: as_json},
        )

    def _token(self, celery_id: str) -> str:
        derived = hmac.digest(self.secret.encode(), f"a2a.call:{celery_id}".encode(), "sha256")
        return SECRET_PREFIX + base64.b64encode(derived).decode()

    def _require_genuine(self, celery_id: str, request: Request, body: bytes) -> None:
        token = self._token(celery_id)
        if not hmac.compare_digest(request.headers.get(TOKEN, "").encode(errors="replace"), token.encode()):
            Verifier([token]).verify(request.headers, body)


def _says_it_is_over(body: bytes) -> bool:
    """Whether the event is one that ends or pauses its task; what can't be read may be."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return True
    return not isinstance(event, dict) or Result.of(event).stop_reason is not None
