"""A conversation with an agent: which context it is in, which task it is about, and where the next message goes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from a2a.types import Message, Part, Role, StreamResponse, Task, TaskStatusUpdateEvent
from a2a.utils.errors import InvalidAgentResponseError

from ..lifecycle import is_interrupted
from ..lifecycle.content import parts_of
from .answers import event_of
from .result import Gathered, Result

VERSION = 1
"""Of what `Session.to_dict` gives."""

Content = str | bytes | Part | Sequence[Part] | Message | dict[str, Any]
"""What can be sent: text, bytes as a file, JSON data, parts, or a message as it is."""


@dataclass(slots=True)
class Session:
    """A conversation, as far as it has come; each answer moves it on, see `update`.

    Attributes:
        context_id: "" until the first answer, or for good if the agent gives none.
        task_id: the last task of the conversation; "" if there was none yet.
        state: the number of that task's state, see `Result.state`; None if it is not known.
    """

    context_id: str = ""
    task_id: str = ""
    state: int | None = None

    @property
    def waits_for_us(self) -> bool:
        """Whether the task is in INPUT_REQUIRED or AUTH_REQUIRED: the next message is its answer."""
        return bool(self.task_id) and self.state is not None and is_interrupted(self.state)  # type: ignore[arg-type]

    def message(self, content: Content) -> Message:
        """The next message: an answer to the task that waits for one, else for a new task that refers to the last.

        A `Message` keeps what it says of itself: its id, its task, the tasks that it refers to.

        Raises:
            TypeError: `content` is nothing that a message could carry.
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
        if self.waits_for_us:
            message.task_id = self.task_id
        elif self.task_id and not message.reference_task_ids:
            message.reference_task_ids.append(self.task_id)
        return message

    def update(self, answer: object) -> None:
        """Moves on by `answer`: a task, a message, an event of a stream, the JSON of one, or a `Result`."""
        event = answer.raw if isinstance(answer, Result) else event_of(answer)
        if event is None:
            return
        self.context_id = event.context_id or self.context_id
        task_id = event.id if isinstance(event, Task) else event.task_id
        if task_id and task_id != self.task_id:
            self.task_id, self.state = task_id, None
        if isinstance(event, Task | TaskStatusUpdateEvent) and event.HasField("status"):
            self.state = int(event.status.state)

    def to_dict(self) -> dict[str, Any]:
        """The session as JSON, for a database row, say."""
        return {"version": VERSION, "context_id": self.context_id, "task_id": self.task_id, "state": self.state}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Session:
        """The session that `to_dict` wrote.

        Raises:
            ValueError: `data` is something else, or was written by a later version; says what is wrong with it.
        """
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise ValueError(f"not a session as version {VERSION} of Session.to_dict writes it")
        unknown = set(data) - {"version", "context_id", "task_id", "state"}
        if unknown:
            raise ValueError(f"a session has no {', '.join(sorted(map(str, unknown)))}")
        context_id, task_id, state = data.get("context_id"), data.get("task_id"), data.get("state")
        if not isinstance(context_id, str) or not isinstance(task_id, str):
            raise ValueError("context_id and task_id of a session are texts")
        if state is not None and (not isinstance(state, int) or isinstance(state, bool)):
            raise ValueError("the state of a session is a number, or null")
        return Session(context_id, task_id, state)


class Agent(Protocol):
    """What a session needs of an agent: see `RemoteAgent`."""

    def stream(
        self, message: Message, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Sends a message, and yields what becomes of it."""
        ...

    def follow(
        self, task_id: str, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """Yields a task, and what becomes of it."""
        ...

    async def cancel(self, task_id: str) -> Result:
        """Has a task cancelled."""
        ...


class AgentSession(Session):
    """A `Session` that is held with an agent: one turn at a time.

    Attributes:
        result: what the last turn came to, or stands at.
    """

    def __init__(self, agent: Agent, saved: Session) -> None:
        super().__init__(saved.context_id, saved.task_id, saved.state)
        self.agent = agent
        self.result = Result()

    async def send(self, content: Content, *, deadline: float | None = None, cancel_on_exit: bool = False) -> Result:
        """Sends a message, see `Session.message`, and waits until the agent has ended, or asks. Raises as `stream`."""
        async with aclosing(self.stream(content, deadline=deadline, cancel_on_exit=cancel_on_exit)) as events:
            async for _ in events:
                pass
        return self.result

    async def stream(
        self, content: Content, *, deadline: float | None = None, cancel_on_exit: bool = False
    ) -> AsyncGenerator[StreamResponse, None]:
        """The same, event by event. Takes and raises what `RemoteAgent.stream` does.

        Raises:
            TypeError: `content` is nothing that a message could carry.
        """
        events = self.agent.stream(self.message(content), deadline=deadline, cancel_on_exit=cancel_on_exit)
        async with aclosing(self._moved_on_by(events)) as noted:
            async for event in noted:
                yield event

    async def wait(self, *, deadline: float | None = None, cancel_on_exit: bool = False) -> Result:
        """Waits until the last task has ended, or asks: in a session that was saved meanwhile, or after a deadline.

        Raises:
            ValueError: there is no task to wait for.
        """
        events = self.agent.follow(self._task(), deadline=deadline, cancel_on_exit=cancel_on_exit)
        async with aclosing(self._moved_on_by(events)) as noted:
            async for _ in noted:
                pass
        return self.result

    async def cancel(self) -> Result:
        """Cancels the last task, see `RemoteAgent.cancel`.

        Raises:
            ValueError: there is no task to cancel.
        """
        self.result = await self.agent.cancel(self._task())
        self.update(self.result)
        return self.result

    def _task(self) -> str:
        if not self.task_id:
            raise ValueError("the session has no task yet")
        return self.task_id

    async def _moved_on_by(self, events: AsyncGenerator[StreamResponse, None]) -> AsyncGenerator[StreamResponse, None]:
        gathered = Gathered()
        async with aclosing(events):
            try:
                async for event in events:
                    gathered.add(event)
                    self.update(event)
                    yield event
            finally:
                self.result = gathered.result()


def _parts(content: Any) -> list[Part]:
    try:
        return parts_of(content)
    except InvalidAgentResponseError:
        kind = type(content).__name__
        raise TypeError(f"a message can't carry this {kind}: give text, bytes, JSON data, or parts") from None
