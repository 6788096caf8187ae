"""Conversation with an agent: its context, its latest task, and the target of the next message."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from a2a.types import Message, Part, Role, StreamResponse, Task, TaskStatusUpdateEvent
from a2a.utils.errors import (
    A2AError,
    InvalidAgentResponseError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from ..lifecycle import is_interrupted
from ..lifecycle.events import parts_of
from ..lifecycle.states import CANCELED, COMPLETED, FAILED, REJECTED
from .errors import RemoteError, TaskNotCompleted
from .event_parser import parse_event
from .result import Result, ResultBuilder, state_name
from .text_stream import TextPiece, TextStream

VERSION = 1
"""Format version of `Session.to_dict`."""

DEADLINE = 3600.0
"""Default deadline of `AgentSession.send` and `AgentSession.wait`, in seconds."""

Content = str | bytes | Part | Sequence[Part] | Message | dict[str, Any]
"""Content of a message: text, bytes as a file, JSON data, parts, or a complete message."""


@dataclass(slots=True, repr=False)
class Session:
    """State of a conversation. A session can be saved with `to_dict` between turns.

    Attributes:
        context_id: Id of the A2A context, or "" before the first response or if the agent assigns none.
        task_id: Id of the latest task, or "" before the first task.
        state: `TaskState` number of the latest task, or None if unknown.
    """

    context_id: str = ""
    task_id: str = ""
    state: int | None = None

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(context_id={self.context_id!r}, task_id={self.task_id!r}, state={state_name(self.state)!r})"

    @property
    def is_interrupted(self) -> bool:
        """True if the latest task is in INPUT_REQUIRED or AUTH_REQUIRED, so that the next message answers its
        question."""
        return bool(self.task_id) and self.state is not None and is_interrupted(self.state)  # type: ignore[arg-type]

    def message(self, content: Content) -> Message:
        """Return the next message of the conversation.

        If the latest task is interrupted, the message answers the task's question. Otherwise, the message starts a new
        task that refers to the latest task.

        Args:
            content: Content of the message. Fields that a `Message` already has are kept: id, role, context, task and
                references.

        Raises:
            TypeError: A message cannot carry `content`.
        """
        message = Message()
        if isinstance(content, Message):
            message.CopyFrom(content)
        else:
            message.parts.extend(_parts(content))
        message.message_id = message.message_id or uuid4().hex
        message.role = message.role or Role.ROLE_USER
        message.context_id = message.context_id or self.context_id
        if message.task_id:
            return message
        if self.is_interrupted:
            message.task_id = self.task_id
        elif self.task_id and not message.reference_task_ids:
            message.reference_task_ids.append(self.task_id)
        return message

    def update(self, answer: object) -> None:
        """Update the session from a response.

        Args:
            answer: A task, a message, an event of a stream, the JSON of one of them, or a `Result`. Anything else is
                ignored.
        """
        event = answer.raw if isinstance(answer, Result) else parse_event(answer)
        if event is None:
            return
        self.context_id = event.context_id or self.context_id
        task_id = event.id if isinstance(event, Task) else event.task_id
        if task_id and task_id != self.task_id:
            self.task_id, self.state = task_id, None
        if isinstance(event, Task | TaskStatusUpdateEvent) and event.HasField("status"):
            self.state = int(event.status.state)

    def to_dict(self) -> dict[str, Any]:
        """Serialize the session to a JSON object, for example to save it in a database."""
        return {"version": VERSION, "context_id": self.context_id, "task_id": self.task_id, "state": self.state}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Session:
        """Deserialize the output of `to_dict`.

        Raises:
            ValueError: `data` is not a session, or was written by a later version of this package.
        """
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise ValueError(f"not a session of version {VERSION} of Session.to_dict")
        unknown = set(data) - {"version", "context_id", "task_id", "state"}
        if unknown:
            raise ValueError(f"a session has no {', '.join(sorted(map(str, unknown)))}")
        context_id, task_id, state = data.get("context_id"), data.get("task_id"), data.get("state")
        if not isinstance(context_id, str) or not isinstance(task_id, str):
            raise ValueError("the context_id and task_id of a session must be strings")
        if state is not None and (not isinstance(state, int) or isinstance(state, bool)):
            raise ValueError("the state of a session must be a number or null")
        return Session(context_id, task_id, state)


class SessionAgent(Protocol):
    """Interface that `AgentSession` requires of an agent, implemented by `RemoteAgent`."""

    def stream(
        self, message: Message, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Send a message and yield the events of its turn; see `RemoteAgent.stream`."""
        ...

    def follow(
        self, task_id: str, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Yield a task and its events; see `RemoteAgent.follow`."""
        ...

    async def get(self, task_id: str) -> Result:
        """Return the current state of a task; see `RemoteAgent.get`."""
        ...

    async def cancel(self, task_id: str) -> Result:
        """Cancel a task; see `RemoteAgent.cancel`."""
        ...


class AgentSession(Session):
    """`Session` with a connected agent. Only one turn may run at a time.

    Attributes:
        agent: Agent that receives the messages.
        result: Result of the latest turn, set at the end of each turn even if the turn ends with an error.
    """

    def __init__(self, agent: SessionAgent, saved_session: Session) -> None:
        super().__init__(saved_session.context_id, saved_session.task_id, saved_session.state)
        self.agent = agent
        self.result = Result()

    async def send(
        self, content: Content, *, deadline: float | None = DEADLINE, cancel_on_exit: bool = False
    ) -> Result:
        """Send a message and wait until its task is terminal or interrupted.

        Args:
            content: Content of the message; see `Session.message`.
            deadline: Seconds until DeadlineExceeded is raised, or None for no limit.
            cancel_on_exit: True to cancel the task at the deadline, or when the caller is cancelled.

        Returns:
            The result of the turn.

        Raises:
            TypeError: A message cannot carry `content`.
            DeadlineExceeded: The turn takes longer than `deadline`.
            RemoteError: The agent is unreachable, its server refuses the call, or the response is invalid.
            A2AError: The agent refuses the message.
        """
        async with aclosing(self.stream(content, deadline=deadline, cancel_on_exit=cancel_on_exit)) as events:
            async for _ in events:
                pass
        return self.result

    async def stream(
        self, content: Content, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Send a message and yield the events of its turn.

        If the agent refuses the message because the latest task has ended or no longer exists, `state` is updated, so
        that the next message starts a new task.

        Args:
            content: Content of the message; see `Session.message`.
            deadline: See `RemoteAgent.stream`.
            cancel_on_exit: See `RemoteAgent.stream`.

        Raises:
            TypeError: A message cannot carry `content`.
            DeadlineExceeded: See `RemoteAgent.stream`.
            RemoteError: See `RemoteAgent.stream`.
            A2AError: The agent refuses the message.
        """
        message = self.message(content)
        events = self.agent.stream(message, deadline=deadline, cancel_on_exit=cancel_on_exit)
        try:
            async with aclosing(self._record(events)) as recorded_events:
                async for event in recorded_events:
                    yield event
        except (InvalidParamsError, TaskNotFoundError, UnsupportedOperationError):
            if message.task_id and message.task_id == self.task_id:
                await self._refresh_state()
            raise

    async def texts(
        self, content: Content, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[TextPiece, None]:
        """Send a message and yield the text of its turn, in pieces, as the text arrives.

        The text is that of the artifacts and of a direct message. If there is none, the text is that of the last status
        message of a completed task. A newline precedes the text of each further artifact. Text is yielded once, even
        if the connection is lost. If the agent withdraws the text of an artifact, the next piece `replaces` it.

        The question of an interrupted task is not yielded; see `is_interrupted` and `InputRequest`.

        Args:
            content: Content of the message; see `Session.message`.
            deadline: See `RemoteAgent.stream`.
            cancel_on_exit: See `RemoteAgent.stream`.

        Raises:
            TaskNotCompleted: The task ended in FAILED, REJECTED or CANCELED.
            TypeError: A message cannot carry `content`.
            DeadlineExceeded: See `RemoteAgent.stream`.
            RemoteError: See `RemoteAgent.stream`.
            A2AError: The agent refuses the message.
        """
        message = self.message(content)
        earlier = self.result
        if message.task_id and earlier.task_id != message.task_id:
            earlier = await self.agent.get(message.task_id)
        texts = TextStream(earlier if message.task_id else Result())
        async with aclosing(self.stream(message, deadline=deadline, cancel_on_exit=cancel_on_exit)) as events:
            async for event in events:
                for piece in texts.pieces(event):
                    yield piece
        if self.result.state in (FAILED, REJECTED, CANCELED):
            raise TaskNotCompleted(self.result)
        if texts.is_empty and self.result.state == COMPLETED:
            for piece in texts.message_pieces(self.result):
                yield piece

    async def wait(self, *, deadline: float | None = DEADLINE, cancel_on_exit: bool = False) -> Result:
        """Wait until the latest task is terminal or interrupted, for example in a restored session or after a deadline.

        Args:
            deadline: Seconds until DeadlineExceeded is raised, or None for no limit.
            cancel_on_exit: True to cancel the task at the deadline, or when the caller is cancelled.

        Returns:
            The result of the turn.

        Raises:
            ValueError: The session has no task.
            DeadlineExceeded: The task takes longer than `deadline`.
            RemoteError: The agent is unreachable, its server refuses the call, or the response is invalid.
            A2AError: The agent refuses the call, for example with TaskNotFoundError.
        """
        events = self.agent.follow(self._task(), deadline=deadline, cancel_on_exit=cancel_on_exit)
        async with aclosing(self._record(events)) as recorded_events:
            async for _ in recorded_events:
                pass
        return self.result

    async def cancel(self) -> Result:
        """Cancel the latest task; see `RemoteAgent.cancel`.

        Raises:
            ValueError: The session has no task.
        """
        self.result = await self.agent.cancel(self._task())
        self.update(self.result)
        return self.result

    async def _refresh_state(self) -> None:
        """Read the state of the latest task. If the task cannot be read, the state is unchanged."""
        try:
            self.update(await self.agent.get(self.task_id))
        except TaskNotFoundError:
            self.state = None
        except (A2AError, RemoteError):
            return

    def _task(self) -> str:
        if not self.task_id:
            raise ValueError("the session has no task yet")
        return self.task_id

    async def _record(self, events: AsyncGenerator[StreamResponse, None]) -> AsyncGenerator[StreamResponse, None]:
        builder = ResultBuilder()
        async with aclosing(events):
            try:
                async for event in events:
                    builder.add(event)
                    self.update(event)
                    yield event
            finally:
                self.result = builder.result()


def _parts(content: Any) -> list[Part]:
    try:
        return parts_of(content)
    except InvalidAgentResponseError:
        kind = type(content).__name__
        raise TypeError(f"a message cannot carry this {kind}: pass text, bytes, JSON data, or parts") from None
