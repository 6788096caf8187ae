"""Client of one remote A2A agent.

A task outlives its connection. If a connection breaks, the client reconnects and resumes the task; see
``connection.turn_stream``. The client cancels a task only on request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self

import httpx
from a2a.client import ClientCallInterceptor
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import A2AError, TaskNotCancelableError

from ..clock import SYSTEM_CLOCK, Clock
from ..current_run import CURRENT_RUN
from ..errors import ConfigError
from ..lifecycle import TERMINAL
from ..lifecycle.end_reasons import CANCELED_BY, EndReason
from ..lifecycle.parents import name_parent
from .connection.card_cache import CardCache
from .connection.transports import (
    MAX_RESPONSE_BYTES,
    Connection,
    Credentials,
    CredentialsInterceptor,
    HeaderSource,
    TraceInterceptor,
    Transports,
    url_error,
)
from .connection.turn_stream import Events, ReconnectBackoff, TurnStream, discard
from .errors import DeadlineExceeded, RemoteError, translate_errors
from .result import Result
from .session import AgentSession, Content, Session

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0
SILENCE_LIMIT = 60.0
"""Seconds without a byte after which a connection is treated as lost. A2A Celery gateways send keep-alive comments."""

RECONNECT_TIMEOUT = 300.0
"""Seconds without a response after which the client gives up on an agent whose card it has already read."""

CANCEL_TIMEOUT = 10.0
"""Timeout, in seconds, of a cancel request that the client sends for `cancel_on_exit` or for a child task."""

RESPONSE_TIMEOUT = 3.0
"""Seconds for which a cancelled run, or a turn with `cancel_on_exit`, waits for the first response to a message. The
response contains the id of the task to cancel."""


class RemoteAgent:
    """Remote A2A agent at a URL.

    The agent's card is fetched on first use and cached; see `CardCache`. Use the agent as an async context manager, or
    call `close`. An instance belongs to one event loop.

    A task that an A2A Celery agent starts through this class is a child of that agent's task. The message's metadata
    identifies the parent, and the request has the ``traceparent`` of the run. The child is cancelled when its parent is
    cancelled, fails, is rejected or is retried, unless `cancel_with_parent` is False.

    Args:
        url: Base address of the agent, ``http://`` or ``https://``, without a password or a query. For ``https://``,
            interfaces of the card at ``http://`` addresses are ignored.
        headers: Headers of every request. Either a mapping, or a function or coroutine function that returns the
            headers of the next request.
        bearer: Bearer token of every request, or None.
        api_key: API key of every request, or None. The key is sent in the header that the card specifies, or in
            ``X-API-Key`` if the card specifies none.
        interceptors: Interceptors of the SDK's client, or None.
        transports: Bindings in order of preference: "JSONRPC", "HTTP+JSON", "GRPC". If empty or None, the order
            of the card applies.
        http: HTTP client to use, which the caller must close. By default, a new client is created, and `close` closes
            it.
        timeout: Seconds without a byte after which a request fails, or None for no limit. For JSON-RPC and HTTP+JSON,
            the argument is ignored if `http` is set. Over gRPC, seconds after which a call fails, except streams and
            messages that wait for the end of the task.
        card: The agent's card. By default, the card is fetched from `url`.
        cards: Cache of cards. By default, a new cache is created.
        idempotent: True if the agent recognizes a repeated message by its id, as A2A Celery agents with
            `idempotency_window` do. The client then resends a message whose response was lost.
        reconnect_timeout: Seconds for which requests to an unreachable agent are retried.
        max_response_bytes: Maximum size of a response, or of one event of a stream, in bytes after decompression.
        clock: Source of time, for tests.
        cancel_with_parent: False if tasks that an agent starts must not be cancelled with the agent's own task.
        hosts: Other hosts than that of `url` at which the interfaces of the card may be, or "*" for any host, or
            None for no other host. Other interfaces are ignored.
        tenant: Tenant of every request, or None for the tenant in the card's interface, if there is one. With a tenant,
            interfaces of protocol 0.3 are ignored, because 0.3 has no tenants.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: HeaderSource | None = None,
        bearer: str | None = None,
        api_key: str | None = None,
        interceptors: Sequence[ClientCallInterceptor] | None = None,
        transports: Sequence[str] | None = None,
        http: httpx.AsyncClient | None = None,
        timeout: float | None = SILENCE_LIMIT,
        card: AgentCard | None = None,
        cards: CardCache | None = None,
        idempotent: bool = False,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        clock: Clock = SYSTEM_CLOCK,
        cancel_with_parent: bool = True,
        hosts: Collection[str] | None = None,
        tenant: str | None = None,
    ) -> None:
        if error := url_error(url):
            raise ConfigError(error)
        self.url = url.rstrip("/")
        self._tenant = "" if tenant is None else tenant
        self._idempotent = idempotent
        self._patience = reconnect_timeout
        self._clock = clock
        self._credentials = Credentials(headers, bearer=bearer, api_key=api_key)
        every_call = [*(interceptors or ()), CredentialsInterceptor(self._credentials), TraceInterceptor()]
        self._transports = Transports(url, transports, every_call, max_response_bytes, timeout, hosts, self._tenant)
        self._own_http = http is None
        self._http = http or httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=CONNECT_TIMEOUT))
        self._card = card
        self._cards = CardCache(clock=clock) if cards is None else cards
        self._cancel_with_parent = cancel_with_parent
        self._current_run = CURRENT_RUN.get if cancel_with_parent else lambda: None
        self._new_client = partial(
            RemoteAgent,
            url,
            headers=headers,
            bearer=bearer,
            api_key=api_key,
            interceptors=interceptors,
            transports=transports,
            max_response_bytes=max_response_bytes,
            cancel_with_parent=False,
            hosts=hosts,
            tenant=tenant,
        )

    def __repr__(self) -> str:
        tenant = f", tenant={self._tenant!r}" if self._tenant else ""
        return f"RemoteAgent({self.url!r}{tenant})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the gRPC channels, and the HTTP client if this object created the client."""
        await self._transports.close()
        if self._own_http:
            await self._http.aclose()

    async def card(self) -> AgentCard:
        """Return the agent's card: the argument `card` if it was set, otherwise the card from the cache or the server.

        Raises:
            RemoteError: The card cannot be fetched or read.
        """
        if self._card is not None:
            return self._card
        return await self._cards.get(self._http, self.url, await self._credentials.headers())

    def session(
        self, saved: Session | Mapping[str, object] | None = None, *, context_id: str | None = None
    ) -> AgentSession:
        """Return a conversation with the agent.

        Args:
            saved: Session to resume: a `Session`, or the dict that `Session.to_dict` returned. By default, a new
                session is created.
            context_id: Id of the context of a new session, or None to let the agent choose the context. The argument is
                ignored if `saved` is set.

        Raises:
            ValueError: `saved` is not a session.
        """
        if saved is None:
            saved = Session(context_id or "")
        elif not isinstance(saved, Session):
            saved = Session.from_dict(saved)
        return AgentSession(self, saved)

    async def submit(self, message: Content, *, push: TaskPushNotificationConfig | None = None) -> Result:
        """Send a message and return without waiting for the end of the task.

        If the message certainly did not arrive, or the agent is `idempotent`, the message is resent for up to
        `reconnect_timeout` seconds.

        Args:
            message: Text, bytes, JSON data, parts or a complete message; see `Session.message`.
            push: Webhook that receives the events of the task, or None.

        Returns:
            The task in its current state, or the agent's direct message. A task that was waiting for `message` may
            still be in INPUT_REQUIRED.

        Raises:
            TypeError: A message cannot carry `message`.
            AgentUnreachable: The agent sent no response. The agent may have received the message.
            ResponseLost: The agent may have received the message, and is not idempotent.
            RemoteError: The server refuses the call, or its response is invalid.
            A2AError: The agent refuses the message.
        """
        configuration = SendMessageConfiguration(return_immediately=True)
        if push is not None:
            configuration.task_push_notification_config.CopyFrom(push)
        request = SendMessageRequest(message=Session().message(message), configuration=configuration)
        self._name_parent(request)

        async def send() -> Result:
            result = Result.of(await self._turn_stream().submit(request))
            self._register_task(result.task_id, result.state)
            return result

        sending = asyncio.ensure_future(send())
        try:
            return await asyncio.shield(sending)
        finally:
            await self._finish(sending, needs_id=self._current_run() is not None)

    def stream(
        self, message: Content, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Send a message and yield the events of its turn, until the task is terminal or interrupted.

        Lost connections are resumed; see ``connection.turn_stream``.

        Args:
            message: Text, bytes, JSON data, parts or a complete message; see `Session.message`.
            deadline: Seconds from the start of the iteration until DeadlineExceeded is raised, or None for no limit.
            cancel_on_exit: True to cancel the task if the generator ends before the turn: at the deadline, when the
                generator is closed, or when its caller is cancelled. If the id of a new task is unknown at that time,
                the generator first waits up to `RESPONSE_TIMEOUT` seconds for the agent's first response.

        Raises:
            TypeError: A message cannot carry `message`.
            DeadlineExceeded: The turn takes longer than `deadline`. The task continues unless `cancel_on_exit` is True.
            RemoteError: The agent is unreachable, its server refuses the call, or the response is invalid.
            A2AError: The agent refuses the message.
        """
        turn = self._turn_stream()
        request = SendMessageRequest(message=Session().message(message))
        self._name_parent(request)
        events = turn.send(request)
        return self._limit_events(turn, events, deadline, cancel_on_exit, starts=True)

    def follow(
        self, task_id: str, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Yield a task, then its events until the task is terminal or interrupted.

        Args:
            task_id: Id of the task.
            deadline: See `stream`.
            cancel_on_exit: See `stream`.

        Raises:
            DeadlineExceeded: See `stream`.
            RemoteError: See `stream`.
            A2AError: The agent refuses the call, for example with TaskNotFoundError.
        """
        turn = self._turn_stream()
        return self._limit_events(turn, turn.follow(task_id), deadline, cancel_on_exit)

    async def get(self, task_id: str) -> Result:
        """Return the current state of a task.

        Raises:
            RemoteError: The agent is unreachable, its server refuses the call, or the response is invalid.
            A2AError: The agent refuses the call, for example with TaskNotFoundError.
        """
        connection = await self._connect(False)
        with translate_errors(self.url):
            result = Result.of(await connection.client.get_task(GetTaskRequest(id=task_id)))
        self._unregister_task(task_id, result.state)
        return result

    async def cancel(self, task_id: str) -> Result:
        """Cancel a task.

        Returns:
            The task after the request. The `stop_reason` of the result is None if the agent is still stopping. A task
            that had already ended is returned unchanged.

        Raises:
            RemoteError: The agent is unreachable, its server refuses the call, or the response is invalid.
            A2AError: The agent refuses the call, for example with TaskNotFoundError.
        """
        return await self._cancel(CancelTaskRequest(id=task_id))

    async def _cancel(self, request: CancelTaskRequest) -> Result:
        connection = await self._connect(False)
        try:
            with translate_errors(self.url):
                result = Result.of(await connection.client.cancel_task(request))
        except TaskNotCancelableError:
            return await self.get(request.id)
        self._unregister_task(request.id, result.state)
        return result

    def _name_parent(self, request: SendMessageRequest) -> None:
        """Declare the task of the current agent run, if there is one, as the parent of the request's task."""
        run = CURRENT_RUN.get()
        if run is not None:
            name_parent(request.message, run.task_id, cancel=self._cancel_with_parent, is_called=run.is_replayed)

    def _register_task(self, task_id: str, state: int | None) -> None:
        """Register the task with the current agent run, if there is one, so that cancelling the run cancels the
        task."""
        run = self._current_run()
        if run is None or not task_id:
            return

        http = None if self._own_http else self._http

        async def cancel() -> None:
            async with asyncio.timeout(CANCEL_TIMEOUT), self._new_client(card=self._card, http=http) as agent:
                await agent._cancel(CancelTaskRequest(id=task_id, metadata={CANCELED_BY: EndReason.WITH_RUN}))

        run.add(f"task {task_id} of {self.url}", cancel)
        self._unregister_task(task_id, state)

    def _unregister_task(self, task_id: str, state: int | None) -> None:
        run = self._current_run()
        if run is not None and state in TERMINAL:
            run.remove(f"task {task_id} of {self.url}")

    async def _finish(self, first_response: asyncio.Future[Any], *, needs_id: bool) -> None:
        """End the request for a message.

        If `needs_id` is True, first wait up to `RESPONSE_TIMEOUT` seconds for the response with the id of a new task. A
        task whose id is unknown cannot be cancelled.
        """
        try:
            if needs_id:
                await asyncio.wait({first_response}, timeout=RESPONSE_TIMEOUT)
        finally:
            await discard(first_response)

    async def _connect(self, streaming: bool) -> Connection:
        return self._transports.connect(await self.card(), self._http, streaming=streaming)

    def _turn_stream(self) -> TurnStream:
        backoff = ReconnectBackoff(self._patience, self._clock)
        return TurnStream(self._connect, self.url, backoff, idempotent=self._idempotent, clock=self._clock)

    async def _limit_events(
        self, turn: TurnStream, events: Events, deadline: float | None, cancel_on_exit: bool, *, starts: bool = False
    ) -> Events:
        clock = self._clock
        until = None if deadline is None else clock.monotonic() + deadline
        async with aclosing(events):
            first = asyncio.ensure_future(anext(events)) if starts else None
            try:
                while True:
                    async with clock.timeout(None if until is None else until - clock.monotonic()):
                        event = await (anext(events) if first is None else asyncio.shield(first))
                    first = None
                    if starts and turn.builder.task_id:
                        starts = False
                        self._register_task(turn.builder.task_id, None)
                    if turn.is_over:
                        self._unregister_task(turn.builder.task_id, turn.builder.state)
                    yield event
            except StopAsyncIteration:
                return
            except DeadlineExceeded:
                raise
            except TimeoutError:
                if until is None or clock.monotonic() < until:
                    raise  # raised by other code, for example the function that returns the headers
                await self._leave(turn, first, cancel_on_exit)
                name = f"task {turn.task_id}" if turn.task_id else "message"
                raise DeadlineExceeded(f"the {name} took longer than {deadline} s", turn.result()) from None
            except (asyncio.CancelledError, GeneratorExit):
                await self._leave(turn, first, cancel_on_exit)
                raise
            finally:
                if first is not None:
                    first.cancel()
                    await asyncio.wait({first})

    async def _leave(self, turn: TurnStream, first: asyncio.Future[Any] | None, cancel_on_exit: bool) -> None:
        """End a turn before its last event. Cancel its task if `cancel_on_exit` is True.

        Args:
            turn: Turn to end.
            first: Request for the message, or None after the first event and for a turn without a message.
            cancel_on_exit: See `stream`.
        """
        if first is not None:
            has_run = self._current_run() is not None
            await self._finish(first, needs_id=not turn.task_id and (cancel_on_exit or has_run))
            self._register_task(turn.task_id, turn.builder.state)
        if cancel_on_exit and turn.task_id and not turn.is_over:
            await self._cancel_at_last(turn.task_id)

    async def _cancel_at_last(self, task_id: str) -> None:
        """Cancel a task on behalf of a caller that no longer waits. Errors are logged."""
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                await self.cancel(task_id)
        except (A2AError, RemoteError, TimeoutError) as e:
            logger.warning("could not cancel task %s of %s: %s", task_id, self.url, e)
