"""An agent somewhere, as this process calls it.

A task outlives its connection: what is lost on the way is asked for again, see ``following``. Nothing is cancelled
unless it is asked to be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Self

import httpx
from a2a.client import ClientCallInterceptor
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import A2AError, TaskNotCancelableError

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ConfigError
from .card_cache import CardCache
from .credentials import AddsHeaders, Credentials, HeaderSource
from .failures import DeadlineExceeded, RemoteError, translated
from .following import Backoff, Events, Follower
from .result import Result
from .session import AgentSession, Session
from .transports import Connection, Transports

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0
TIMEOUT = 60.0
"""Seconds without a byte after which a connection counts as lost; streams of servers have a sign of life every 15."""

PATIENCE = 300.0
"""Seconds without any answer after which an agent that could be reached before is given up."""

CANCEL_WITHIN = 10.0
"""Seconds for the cancel that a caller who was cancelled itself still sends."""


class RemoteAgent:
    """The agent at `url`; its card is asked for when it is first needed, and kept, see `CardCache`.

    `headers`, `bearer` and `api_key` go with every request, see `Credentials`; `interceptors` are the SDK's, for what
    else a request needs. `transports` are bindings in order of preference; empty: as the card has them. `http` stays
    the caller's to close; None: an own one, with `timeout` in seconds. `card` is used as it is, in place of the one at
    `url`. `idempotent` says that the agent knows a message that comes again by its id (an agent of ours with
    `idempotency_window` does): then a message whose answer was lost is sent again. `patience` is for how many seconds
    it is tried to reach an agent that has shown its card.

    Raises:
        ConfigError: an argument can't be used as it is.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: HeaderSource | None = None,
        bearer: str | None = None,
        api_key: str | None = None,
        interceptors: Sequence[ClientCallInterceptor] = (),
        transports: Sequence[str] = (),
        http: httpx.AsyncClient | None = None,
        timeout: float = TIMEOUT,
        card: AgentCard | None = None,
        cards: CardCache | None = None,
        idempotent: bool = False,
        patience: float = PATIENCE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url {url!r}: an agent's address begins with http:// or https://")
        self.url = url.rstrip("/")
        self._idempotent = idempotent
        self._patience = patience
        self._clock = clock
        self._credentials = Credentials(headers, bearer=bearer, api_key=api_key)
        self._transports = Transports(url, transports, [*interceptors, AddsHeaders(self._credentials)])
        self._own_http = http is None
        self._http = http or httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=CONNECT_TIMEOUT))
        self._card = card
        self._cards = CardCache(clock=clock) if cards is None else cards

    async def __aenter__(self) -> Self:
        """The agent; nothing is asked yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `close`."""
        await self.close()

    async def close(self) -> None:
        """Closes what it opened itself."""
        await self._transports.close()
        if self._own_http:
            await self._http.aclose()

    async def card(self) -> AgentCard:
        """The agent's card.

        Raises:
            RemoteError: it can't be had.
        """
        if self._card is not None:
            return self._card
        return await self._cards.get(self._http, self.url, await self._credentials.headers())

    def session(self, saved: Session | Mapping[str, object] | None = None, *, context_id: str = "") -> AgentSession:
        """A conversation with the agent: a new one, or `saved`, a session or what `Session.to_dict` gave.

        Raises:
            ValueError: `saved` is no session.
        """
        if saved is None:
            saved = Session(context_id)
        elif not isinstance(saved, Session):
            saved = Session.from_dict(saved)
        return AgentSession(self, saved)

    async def submit(self, message: Message, *, push: TaskPushNotificationConfig | None = None) -> Result:
        """Hands over `message` and waits for nothing: the task as it is then, or a direct answer.

        A task that waited for `message` may not have gone on yet: then it is given as it was.

        `push` is where the task's events are posted. A message that surely did not arrive, or that may come twice
        (`idempotent`), is tried again a few times.

        Raises:
            RemoteError: it was not answered; AgentUnreachable: it may have arrived all the same.
            A2AError: the agent refuses it.
        """
        configuration = SendMessageConfiguration(return_immediately=True)
        if push is not None:
            configuration.task_push_notification_config.CopyFrom(push)
        request = SendMessageRequest(message=message, configuration=configuration)
        return Result.of(await self._follower().answer_to(request))

    def stream(
        self, message: Message, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Sends `message` and yields what becomes of it, until the task ends or pauses; see ``following``.

        `deadline` is in seconds from now, None: as long as it takes. `cancel_on_exit` cancels the task when its end
        is not waited for: the deadline is over, the generator closed, or its caller cancelled.

        Raises:
            DeadlineExceeded: the task goes on.
            RemoteError: the message was not answered, or the agent's answers can't be used.
            A2AError: the agent refuses the message.
        """
        follower = self._follower()
        events = follower.of_message(SendMessageRequest(message=message))
        return self._bounded(follower, events, deadline, cancel_on_exit)

    def follow(
        self, task_id: str, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Yields the task as it is and what becomes of it, until it ends or pauses; otherwise as `stream`."""
        follower = self._follower()
        return self._bounded(follower, follower.of_task(task_id), deadline, cancel_on_exit)

    async def get(self, task_id: str) -> Result:
        """The task as it is now.

        Raises:
            RemoteError: there is no answer.
            A2AError: TaskNotFoundError, for one.
        """
        connection = await self._connect(False)
        with translated(self.url):
            return Result.of(await connection.client.get_task(GetTaskRequest(id=task_id)))

    async def cancel(self, task_id: str) -> Result:
        """Has the task cancelled; gives it as it is then, also when it had ended before.

        An agent may take its time to stop: `stop_reason` is None until it has.

        Raises:
            RemoteError: there is no answer.
            A2AError: TaskNotFoundError, for one.
        """
        connection = await self._connect(False)
        try:
            with translated(self.url):
                return Result.of(await connection.client.cancel_task(CancelTaskRequest(id=task_id)))
        except TaskNotCancelableError:
            return await self.get(task_id)

    async def _connect(self, streaming: bool) -> Connection:
        return self._transports.connect(await self.card(), self._http, streaming=streaming)

    def _follower(self) -> Follower:
        return Follower(self._connect, self.url, Backoff(self._patience, self._clock), idempotent=self._idempotent)

    async def _bounded(
        self, follower: Follower, events: Events, deadline: float | None, cancel_on_exit: bool
    ) -> Events:
        until = None if deadline is None else asyncio.get_running_loop().time() + deadline
        async with aclosing(events):
            try:
                while True:
                    async with asyncio.timeout_at(until):
                        event = await anext(events)
                    yield event
            except StopAsyncIteration:
                return
            except DeadlineExceeded:
                raise
            except TimeoutError:
                if until is None or asyncio.get_running_loop().time() < until:
                    raise  # somebody else's: of what gives the headers, say
                result = follower.gathered.result()
                if cancel_on_exit and result.task_id:
                    await self._cancel_at_last(result.task_id)
                name = f"task {result.task_id}" if result.task_id else "message"
                raise DeadlineExceeded(f"the {name} has taken more than {deadline} s", result) from None
            except (asyncio.CancelledError, GeneratorExit):
                if cancel_on_exit and follower.gathered.task_id and not follower.over:
                    await self._cancel_at_last(follower.gathered.task_id)
                raise

    async def _cancel_at_last(self, task_id: str) -> None:
        """Cancels for a caller who is gone, and hears of no failure."""
        try:
            async with asyncio.timeout(CANCEL_WITHIN):
                await self.cancel(task_id)
        except (A2AError, RemoteError, TimeoutError) as e:
            logger.warning("task %s of %s could not be cancelled: %s", task_id, self.url, e)
