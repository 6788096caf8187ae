"""One turn of a task, from its message to its end, over as many connections as it takes.

| what is lost | what is done |
| --- | --- |
| a stream whose events have ids (ours) | SubscribeToTask with Last-Event-ID: each event once, none left out |
| a stream without ids | SubscribeToTask: the task as it is stands for what was missed |
| the subscription too, or there is none, or it tells nothing | GetTask, at growing intervals |
| a message that never left, or that was refused with 429 | it is sent again |
| the answer of an agent that is `idempotent` | the message is sent again, with the same id |
| the answer of another | the task is looked for by the message's id; if it is not to be seen: `AnswerLost` |
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import cast

from a2a.client import ClientCallContext
from a2a.types import (
    GetTaskRequest,
    ListTasksRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import A2AError, InternalError, UnsupportedOperationError

from ..clock import SYSTEM_CLOCK, Clock
from ..lifecycle import is_interrupted
from .failures import (
    AgentUnreachable,
    AnswerLost,
    AnswerUnreadable,
    NotConnected,
    RemoteError,
    TooManyRequests,
    translated,
)
from .result import Gathered, stop_reason_of
from .transports import Connection

Events = AsyncGenerator[StreamResponse, None]

LAST_EVENT_ID = "Last-Event-ID"

FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0
"""Seconds between two tries, or two looks at a task; doubled each time nothing is new, half of it is chance."""

MOST_IDLE = 3
"""Subscriptions, one after the other, that end without an event: then GetTask says whether any is still to come."""

LOOKED_THROUGH = 20
"""Tasks of a context, the last changed first, among which a message is looked for."""


LATER = 0.1
"""Of a time that a server asked for, by chance: those whom it told the same don't come back together."""


class Backoff:
    """Waits ever longer, and not shorter than a server asks for (Retry-After); gives up when nothing has been answered
    for `patience` seconds, and at once when it is asked to wait beyond that."""

    def __init__(self, patience: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._patience = patience
        self._clock = clock
        self._tries = 0
        self._failing_since: float | None = None

    def answered(self, *, news: bool = True) -> None:
        """Somebody is there; with news, the next wait is a short one."""
        self._failing_since = None
        if news:
            self._tries = 0

    async def wait(self, error: AgentUnreachable | None = None) -> None:
        """Waits before the next try; raises `error`, for which this one failed, when patience is at its end."""
        asked = 0.0 if error is None else error.retry_after or 0.0
        if error is not None:
            now = self._clock.monotonic()
            if self._failing_since is None:
                self._failing_since = now
            if now + asked - self._failing_since >= self._patience:
                raise error
        delay = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._tries, 16))
        self._tries += 1
        await self._clock.sleep(max(delay * random.uniform(0.5, 1), asked * random.uniform(1, 1 + LATER)))


class Follower:
    """Follows one turn. `connect` gives what the next call is made with; its argument is whether events shall come as
    they happen."""

    def __init__(
        self, connect: Callable[[bool], Awaitable[Connection]], url: str, backoff: Backoff, *, idempotent: bool
    ) -> None:
        self.gathered = Gathered()
        self._connect = connect
        self._url = url
        self._backoff = backoff
        self._idempotent = idempotent
        self._last_id: str | None = None

    @property
    def over(self) -> bool:
        """Whether the turn has ended: with a terminal state, a pause, or a direct message."""
        return self.gathered.stop_reason is not None

    async def of_message(self, request: SendMessageRequest) -> Events:
        """Sends a message and yields what becomes of it, until the turn is over. Raises as `RemoteAgent.stream`."""
        is_first = True
        try:
            async with aclosing(self._sent(request)) as events:
                async for event in events:
                    yield self._noted(event)
                    # some servers begin a further turn with the task as it was before
                    is_old, is_first = is_first and _is_paused(event) and bool(request.message.task_id), False
                    if self.over and not is_old:
                        return
        except AgentUnreachable:
            if not self.gathered.task_id:
                raise
        if not self.gathered.task_id:
            return  # an answer with nothing in it that could be followed
        async with aclosing(self._to_the_end()) as events:
            async for event in events:
                yield event

    async def of_task(self, task_id: str) -> Events:
        """Yields a task as it is, then what becomes of it until it ends or pauses. Raises as `RemoteAgent.follow`."""
        await self._connect(False)  # who has no card for us now is not waited for
        while True:
            try:
                yield self._noted(StreamResponse(task=await self._read(task_id)))
                break
            except AgentUnreachable as e:
                await self._backoff.wait(e)
        async with aclosing(self._to_the_end()) as events:
            async for event in events:
                yield event

    async def answer_to(self, request: SendMessageRequest) -> StreamResponse:
        """Sends a message and gives the one answer to it. Raises as `RemoteAgent.submit`."""
        async with aclosing(self._sent(request, streaming=False)) as events:
            async for event in events:
                return event
        raise AnswerUnreadable(f"{self._url} gave an empty answer")

    async def _sent(self, request: SendMessageRequest, *, streaming: bool = True) -> Events:
        """The answer to a message, or its stream; until it has begun, it is sent again where that is safe."""
        connection = await self._connect(streaming)
        # without streams the task's id is wanted early; a task that is answered has one
        request.configuration.return_immediately |= not connection.streams and not request.message.task_id
        empty = True
        while True:
            try:
                with translated(self._url):
                    async with aclosing(_generator(connection.client.send_message(request))) as events:
                        async for event in events:
                            self._last_id, empty = connection.ids.last, False
                            yield event
                if not empty:
                    return
                raise AgentUnreachable(f"{self._url} ended its answer before it began")
            except AgentUnreachable as e:
                if self.gathered.task_id:
                    raise
                if not isinstance(e, NotConnected | TooManyRequests) and not self._idempotent:
                    yield StreamResponse(task=await self._found(request.message, e))
                    return
                await self._backoff.wait(e)

    async def _to_the_end(self) -> Events:
        may_subscribe, idle = True, 0
        while not self.over:
            error: AgentUnreachable | None = None
            try:
                if may_subscribe:
                    idle += 1
                    async with aclosing(self._subscribed()) as events:
                        async for event in events:
                            idle = 0
                            yield event
            except AgentUnreachable as e:
                error, idle = e, 0
            except InternalError as e:
                error = _failing(self._url, e)
            except (A2AError, RemoteError):
                may_subscribe = False  # the task has ended, or is gone, or there is no such thing here: GetTask says
            if self.over:
                return
            # between numbered events a snapshot would tell what they tell again; but for a server that tells nothing
            numbered = self._last_id is not None and may_subscribe
            if not numbered or idle >= MOST_IDLE:
                try:
                    event = StreamResponse(task=await self._read(self.gathered.task_id))
                    if self._is_news(event) and (not numbered or stop_reason_of(event.task.status.state)):
                        yield self._noted(event)
                    if not event.task.HasField("status"):
                        return  # it will never say that it has ended
                    error = None
                except AgentUnreachable as e:
                    error = e
            if not self.over:
                await self._backoff.wait(error)

    async def _subscribed(self) -> Events:
        """What follows the last event, or, without ids, the task as it is and what follows that."""
        connection = await self._connect(True)
        if not connection.streams:
            raise UnsupportedOperationError("no streaming")
        task_id = self.gathered.task_id
        parameters = {LAST_EVENT_ID: self._last_id} if self._last_id is not None else {}
        context = ClientCallContext(service_parameters=parameters)
        with translated(self._url):
            subscription = connection.client.subscribe(SubscribeToTaskRequest(id=task_id), context=context)
            async with aclosing(_generator(subscription)) as events:
                async for event in events:
                    self._last_id = connection.ids.last or self._last_id
                    if self._is_news(event):
                        yield self._noted(event)
                    if self.over:
                        return

    def _noted(self, event: StreamResponse) -> StreamResponse:
        self.gathered.add(event)
        self._backoff.answered(news=True)
        return event

    def _is_news(self, event: StreamResponse) -> bool:
        """Whether `event` says more than is known; the task as a whole comes with each subscription."""
        self._backoff.answered(news=False)
        if event.WhichOneof("payload") is None:
            return False
        return not (event.HasField("task") and self.gathered.knows(event.task))

    async def _read(self, task_id: str) -> Task:
        connection = await self._connect(False)
        try:
            with translated(self._url):
                return await connection.client.get_task(GetTaskRequest(id=task_id))
        except InternalError as e:
            raise _failing(self._url, e) from e

    async def _found(self, message: Message, error: AgentUnreachable) -> Task:
        """The task that `message` has begun, or continued.

        Raises:
            AnswerLost: it is not to be seen; `error` is what the message was lost by.
        """
        try:
            async for task in self._where_it_may_be(message):
                if any(one.message_id == message.message_id for one in (*task.history, task.status.message)):
                    return task if message.task_id else await self._read(task.id)  # a list leaves the artifacts out
        except (RemoteError, A2AError, NotImplementedError):
            pass  # 0.3 has no ListTasks, for one
        raise AnswerLost(
            f"the message {message.message_id} may have arrived, but its answer is lost: {error}"
        ) from error

    async def _where_it_may_be(self, message: Message) -> AsyncGenerator[Task, None]:
        if message.task_id:
            yield await self._read(message.task_id)
        elif message.context_id:
            connection = await self._connect(False)
            with translated(self._url):
                listed = await connection.client.list_tasks(
                    ListTasksRequest(context_id=message.context_id, page_size=LOOKED_THROUGH)
                )
            for task in listed.tasks:
                yield task


def _is_paused(event: StreamResponse) -> bool:
    return event.HasField("task") and is_interrupted(event.task.status.state)


def _failing(url: str, error: InternalError) -> AgentUnreachable:
    """Over JSON-RPC a server that is without its store for a while has no other word for it."""
    return AgentUnreachable(f"{url} can't say how the task is: {error.message}")


def _generator(events: AsyncIterator[StreamResponse]) -> Events:
    """The SDK's streams are generators, though they are not called so: left open, they would keep their connection."""
    return cast(Events, events)
