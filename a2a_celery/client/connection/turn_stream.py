"""Events of one turn, received over as many connections as needed.

| lost | recovery |
| --- | --- |
| a stream with event ids (A2A Celery gateways) | SubscribeToTask with Last-Event-ID: every event exactly once |
| a stream without ids | SubscribeToTask: the current task replaces the missed events |
| a subscription without ids; or subscriptions are unsupported or empty | GetTask, at growing intervals |
| a stream that ends with an internal error | as for a lost stream, because the task may continue or have failed |
| all events of an open stream, for `SILENCE_TIMEOUT` seconds | GetTask during the stream, at growing intervals |
| a message that was not sent, or was rejected with 429 | the message is resent |
| the response of an `idempotent` agent | the message is resent with the same id |
| the response of any other agent | the task is looked up by the message's id; if no task is found: `ResponseLost` |
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from a2a.client import ClientCallContext
from a2a.types import (
    GetTaskRequest,
    ListTasksRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskStatus,
)
from a2a.utils.errors import A2AError, InternalError, UnsupportedOperationError

from ...clock import SYSTEM_CLOCK, Clock
from ...lifecycle import is_interrupted
from ..errors import (
    AgentUnreachable,
    InvalidResponse,
    NotConnected,
    RemoteError,
    ResponseLost,
    TooManyRequests,
    translate_errors,
)
from ..result import Result, ResultBuilder, stop_reason_of
from .transports import Connection

Events = AsyncGenerator[StreamResponse, None]

LAST_EVENT_ID = "Last-Event-ID"

MIN_BACKOFF = 0.1
MAX_BACKOFF = 5.0
"""Seconds between two attempts or polls. The delay doubles while nothing changes, and half of it is random."""

MAX_EMPTY_SUBSCRIPTIONS = 3
"""Consecutive subscriptions without an event after which GetTask determines whether more events follow."""

SILENCE_TIMEOUT = 15.0
MAX_SILENCE_TIMEOUT = 300.0
"""Seconds without an event after which the task of a stream is polled. The interval doubles with each poll, up to the
maximum."""

REFERENCE = "reference"
"""Key in the data of an InternalError of this package that was caused by a bug, so that a retry does not help."""

MAX_TASKS_SEARCHED = 20
"""Number of the most recently changed tasks of a context that are searched for a message."""


RETRY_AFTER_JITTER = 0.1
"""Random addition to the Retry-After delay, as a fraction of the delay, so that clients do not retry at the same
moment."""


class ReconnectBackoff:
    """Exponential backoff with jitter that honors Retry-After.

    The backoff gives up after `reconnect_timeout` seconds without a response, or at once if Retry-After exceeds the
    remaining time.
    """

    def __init__(self, reconnect_timeout: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._patience = reconnect_timeout
        self._clock = clock
        self._tries = 0
        self._failing_since: float | None = None

    def answered(self, *, has_changes: bool = True) -> None:
        """Record a response. If `has_changes` is True, the next delay is the minimum delay."""
        self._failing_since = None
        if has_changes:
            self._tries = 0

    async def wait(self, error: AgentUnreachable | None = None) -> None:
        """Wait before the next attempt.

        Args:
            error: Error of the failed attempt, or None if the attempt succeeded but returned nothing new.

        Raises:
            AgentUnreachable: The reconnect timeout has passed, or would pass before a retry is accepted. The raised
                exception is `error`.
        """
        pause = 0.0 if error is None else error.retry_after or 0.0
        if error is not None:
            now = self._clock.monotonic()
            if self._failing_since is None:
                self._failing_since = now
            if now + pause - self._failing_since >= self._patience:
                raise error
        delay = min(MAX_BACKOFF, MIN_BACKOFF * 2 ** min(self._tries, 16))
        self._tries += 1
        await self._clock.sleep(max(delay * random.uniform(0.5, 1), pause * random.uniform(1, 1 + RETRY_AFTER_JITTER)))


class TurnStream:
    """Resumable stream of one turn.

    Args:
        connect: Function that returns the connection of the next call. Its argument is True if the call streams.
        url: Base address of the agent, for error texts.
        backoff: Backoff between attempts.
        idempotent: True if a message may be resent after the response to it was lost.
        clock: Source of time, for tests.
    """

    def __init__(
        self,
        connect: Callable[[bool], Awaitable[Connection]],
        url: str,
        backoff: ReconnectBackoff,
        *,
        idempotent: bool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.builder = ResultBuilder()
        self._known_task = Task()
        self._clock = clock
        self._answered_status: TaskStatus | None = None  # interrupted status that the message answers
        self._connect = connect
        self._url = url
        self._backoff = backoff
        self._idempotent = idempotent
        self._last_id: str | None = None

    @property
    def is_over(self) -> bool:
        """True if the turn has ended: the task is terminal or interrupted, or the agent sent a direct message."""
        return self._answered_status is None and self.builder.stop_reason is not None

    @property
    def task_id(self) -> str:
        """Id of the task: from the agent's responses, or from the request. "" if the id of a new task is unknown."""
        return self.builder.task_id or self._known_task.id

    def result(self) -> Result:
        """Return the result so far. Before the first event, the result contains only the ids in the request."""
        result = self.builder.result()
        return Result(self._known_task) if result.raw is None and self._known_task.id else result

    async def send(self, request: SendMessageRequest) -> Events:
        """Send a message and yield the events of its turn.

        Raises:
            RemoteError: See `RemoteAgent.stream`.
            A2AError: See `RemoteAgent.stream`.
        """
        is_first = True
        self._known_task = Task(id=request.message.task_id, context_id=request.message.context_id)
        try:
            async with aclosing(self._watch_events(self._send(request), request.message.task_id)) as events:
                async for event in events:
                    if is_first and _is_paused(event) and request.message.task_id:
                        # some servers start the stream of a follow-up message with the task's previous status
                        self._answered_status = TaskStatus()
                        self._answered_status.CopyFrom(event.task.status)
                    is_first = False
                    yield self._record(event)
                    if self.is_over:
                        return
            self._answered_status = None  # a question that is still the status when the stream ends is a new question
        except (AgentUnreachable, InternalError):
            if not self.builder.task_id:
                raise
        if not self.builder.task_id or self.is_over:
            return  # the turn has ended, or the response contains no task to follow
        async with aclosing(self._to_the_end()) as events:
            async for event in events:
                yield event

    async def follow(self, task_id: str) -> Events:
        """Yield a task, then its events until the task is terminal or interrupted.

        Raises:
            RemoteError: See `RemoteAgent.follow`.
            A2AError: See `RemoteAgent.follow`.
        """
        self._known_task = Task(id=task_id)
        await self._connect(False)  # fail now, without retries, if the agent's card is unavailable
        while True:
            try:
                yield self._record(StreamResponse(task=await self._read(task_id)))
                break
            except AgentUnreachable as e:
                await self._backoff.wait(e)
        async with aclosing(self._to_the_end()) as events:
            async for event in events:
                yield event

    async def submit(self, request: SendMessageRequest) -> StreamResponse:
        """Send a message and return its single response.

        Raises:
            RemoteError: See `RemoteAgent.submit`.
            A2AError: See `RemoteAgent.submit`.
        """
        async with aclosing(self._send(request, streaming=False)) as events:
            async for event in events:
                return event
        raise InvalidResponse(f"{self._url} sent an empty response")

    async def _send(self, request: SendMessageRequest, *, streaming: bool = True) -> Events:
        """Send a message and yield the events of its response.

        If the connection fails before the first event, the message is resent if a repeat is safe. Otherwise, the task
        that the message started or continued is the only event.

        Raises:
            ResponseLost: The response was lost, and no such task is visible.
            AgentUnreachable: The connection failed and is not retried.
        """
        connection = await self._connect(streaming)
        # Without streams, the client needs the id of a new task early. A message to an existing task already has the
        # id.
        request.configuration.return_immediately |= not connection.streams and not request.message.task_id
        empty = True
        while True:
            try:
                with translate_errors(self._url):
                    async with aclosing(_generator(connection.client.send_message(request))) as events:
                        async for event in events:
                            self._last_id, empty = connection.ids.last, False
                            yield event
                if not empty:
                    return
                raise AgentUnreachable(f"{self._url} closed the response before its first event")
            except InternalError as e:
                is_bug = bool(e.data and e.data.get(REFERENCE))
                if self.builder.task_id or is_bug or not self._idempotent:
                    raise
                await self._backoff.wait(_failing(self._url, e))
            except AgentUnreachable as e:
                if self.builder.task_id:
                    raise
                if not isinstance(e, NotConnected | TooManyRequests) and not self._idempotent:
                    yield StreamResponse(task=await self._find_task(request.message, e))
                    return
                await self._backoff.wait(e)

    async def _to_the_end(self) -> Events:
        may_subscribe, idle = True, 0
        while not self.is_over:
            error: AgentUnreachable | None = None
            try:
                if may_subscribe:
                    idle += 1
                    async with aclosing(self._subscribe()) as events:
                        async for event in events:
                            idle = 0
                            yield event
            except AgentUnreachable as e:
                error, idle = e, 0
            except InternalError as e:
                error = _failing(self._url, e)
            except (A2AError, RemoteError):
                may_subscribe = (
                    False  # the task has ended or does not exist, or the method is missing: GetTask shows which
                )
            if self.is_over:
                return
            # A snapshot among numbered events would repeat events, so GetTask is used only if events have no numbers or
            # none arrive.
            has_event_ids = self._last_id is not None and may_subscribe
            if not has_event_ids or idle >= MAX_EMPTY_SUBSCRIPTIONS:
                try:
                    event = StreamResponse(task=await self._read(self.builder.task_id))
                    if self._is_new(event) and (not has_event_ids or stop_reason_of(event.task.status.state)):
                        yield self._record(event)
                    if not event.task.HasField("status"):
                        return  # without a status, the end of the task cannot be recognized
                    error = None
                except AgentUnreachable as e:
                    error = e
            if not self.is_over:
                await self._backoff.wait(error)

    async def _subscribe(self) -> Events:
        """Yield the events after the last event that was received. If the server sends no event ids, yield the current
        task and the events after it."""
        connection = await self._connect(True)
        if not connection.streams:
            raise UnsupportedOperationError("no streaming")
        task_id = self.builder.task_id
        parameters = {LAST_EVENT_ID: self._last_id} if self._last_id is not None else {}
        context = ClientCallContext(service_parameters=parameters)
        with translate_errors(self._url):
            subscription = connection.client.subscribe(SubscribeToTaskRequest(id=task_id), context=context)
            async with aclosing(self._watch_events(_generator(subscription), task_id)) as events:
                async for event in events:
                    self._last_id = connection.ids.last or self._last_id
                    if self._is_new(event):
                        yield self._record(event)
                    if self.is_over:
                        return

    async def _watch_events(self, events: Events, task_id: str) -> Events:
        """Yield `events`. While the stream is silent, poll the task, and yield it once it is terminal or interrupted.

        The stream stays open during the poll, because some servers stop an agent whose client disconnects.

        Args:
            events: Events of the stream.
            task_id: Id of the task if it is known before the first event, or "".
        """
        silence = SILENCE_TIMEOUT
        pending = asyncio.ensure_future(anext(events))
        poll: asyncio.Future[StreamResponse | None] | None = None
        try:
            while True:
                try:
                    async with self._clock.timeout(silence if poll is None else None):
                        await asyncio.wait({pending, poll or pending}, return_when=asyncio.FIRST_COMPLETED)
                except TimeoutError:
                    silence = min(2 * silence, MAX_SILENCE_TIMEOUT)
                    poll = asyncio.ensure_future(self._poll(self.builder.task_id or task_id))
                    continue
                finished_poll, poll = poll, None
                if pending.done():
                    await discard(finished_poll)
                    try:
                        event = pending.result()
                    except StopAsyncIteration:
                        return
                    yield event
                    silence = SILENCE_TIMEOUT
                    pending = asyncio.ensure_future(anext(events))
                elif finished_poll is not None and (polled_event := finished_poll.result()) is not None:
                    yield polled_event
        finally:
            await discard(poll)
            await discard(pending)
            await events.aclose()

    async def _poll(self, task_id: str) -> StreamResponse | None:
        """Return the current task as an event if its turn is over. Return None if more events may follow."""
        if not task_id:
            return None
        try:
            task = await self._read(task_id)
        except (A2AError, RemoteError):
            return None
        stop_reason = stop_reason_of(task.status.state)
        if stop_reason is None or (stop_reason == "interrupt" and not self.builder.task_id):
            return None  # a question before any event may be the question that the message answers
        if task.status == self._answered_status:
            return None
        return StreamResponse(task=task)

    def _record(self, event: StreamResponse) -> StreamResponse:
        self.builder.add(event)
        if self._answered_status is not None and not self.builder.has_status(self._answered_status):
            self._answered_status = None
        self._backoff.answered(has_changes=True)
        return event

    def _is_new(self, event: StreamResponse) -> bool:
        """Return True if `event` adds information. The first event of each subscription is the complete task, which may
        already be known."""
        self._backoff.answered(has_changes=False)
        if event.WhichOneof("payload") is None:
            return False
        return not (event.HasField("task") and self.builder.includes(event.task))

    async def _read(self, task_id: str) -> Task:
        connection = await self._connect(False)
        try:
            with translate_errors(self._url):
                return await connection.client.get_task(GetTaskRequest(id=task_id))
        except InternalError as e:
            raise _failing(self._url, e) from e

    async def _find_task(self, message: Message, error: AgentUnreachable) -> Task:
        """Return the task that `message` has started or continued.

        Raises:
            ResponseLost: No such task is visible. The exception has the `retry_after` of its cause `error`.
        """
        try:
            async for task in self._candidates(message):
                if any(
                    task_message.message_id == message.message_id
                    for task_message in (*task.history, task.status.message)
                ):
                    return task if message.task_id else await self._read(task.id)  # a list omits the artifacts
        except (RemoteError, A2AError, NotImplementedError):
            pass  # for example, 0.3 has no ListTasks
        text = f"the message {message.message_id} may have arrived, but its response is lost: {error}"
        raise ResponseLost(text, error.retry_after) from error

    async def _candidates(self, message: Message) -> AsyncGenerator[Task, None]:
        if message.task_id:
            yield await self._read(message.task_id)
        elif message.context_id:
            connection = await self._connect(False)
            with translate_errors(self._url):
                page = await connection.client.list_tasks(
                    ListTasksRequest(context_id=message.context_id, page_size=MAX_TASKS_SEARCHED)
                )
            for task in page.tasks:
                yield task


async def discard(future: asyncio.Future[Any] | None) -> None:
    """Cancel `future` and mark its exception as retrieved."""
    if future is not None:
        future.cancel()
        await asyncio.wait({future})
        if not future.cancelled():
            future.exception()


def _is_paused(event: StreamResponse) -> bool:
    return event.HasField("task") and is_interrupted(event.task.status.state)


def _failing(url: str, error: InternalError) -> AgentUnreachable:
    """Return the error for a server whose store is unavailable. Over JSON-RPC, such a server can send only an internal
    error."""
    return AgentUnreachable(f"{url} cannot process the request: {error.message}")


def _generator(events: AsyncIterator[StreamResponse]) -> Events:
    """Cast the SDK's stream to a generator, which can be closed. A generator that stays open would keep its
    connection."""
    return cast(Events, events)
