"""What a function agent is given, and how what it returns becomes events."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import wait
from threading import get_ident
from typing import Any, TypeVar
from uuid import uuid4

from a2a.helpers import get_message_text
from a2a.types import Artifact, Message, Part, Role, Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict

from ..caller import Caller
from ..errors import ConfigError, InputRequired
from ..lifecycle.content import parts_of
from ..lifecycle.outcomes import agent_message
from ..lifecycle.states import WORKING
from ..store.runs import Claim
from .events import RunEvents
from .session import HISTORY_MESSAGES, ContextSession
from .steps import Execution, OpenStep, current_execution

T = TypeVar("T")

LOOK_EVERY = 0.2
"""Seconds between two looks whether a call that waits for the store is still wanted."""


class Answer(str):
    """What a client answered to `Turn.ask`: its text, and the whole `message` it came in."""

    __slots__ = ("message",)
    message: Message

    @classmethod
    def of(cls, message: Message) -> Answer:
        """The answer that `message` gives."""
        answer = cls(get_message_text(message))
        answer.message = message
        return answer


class Turn:
    """One client message to a task, as a function agent sees it.

    A function that asks (`ask`) is called again for each answer, with the message that it began to ask about; its
    answers so far come back from `ask` at once.
    """

    def __init__(self, claim: Claim, events: RunEvents, caller: Caller) -> None:
        self._claim = claim
        self._events = events
        said = [message for message in claim.task.history if message.role == Role.ROLE_USER]
        self._message = said[-1 - claim.asked] if claim.asked < len(said) else claim.request.message
        self._answers = said[len(said) - claim.asked :]
        self._asked = 0
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.execution = current_execution() or Execution()
        """What the run is at: its state, its history, and listeners for both. The run and its steps move it."""
        self.caller = caller
        """Who asked: user name, whether that is authenticated, tenant, requested extensions."""
        self.related_tasks: Sequence[Task] = ()
        """The tasks that the message refers to, as they stood when the run began: the caller's own, of this agent."""

    @property
    def message(self) -> Message:
        """The client's message."""
        return self._message

    @property
    def text(self) -> str:
        """The text parts of the message, a line each; "" if it has none."""
        return get_message_text(self.message)

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of the message."""
        return list(self.message.parts)

    @property
    def task(self) -> Task:
        """The task as it stood when the run began: history with this message last, artifacts of earlier turns."""
        return self._claim.task

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self._claim.task.id

    @property
    def context_id(self) -> str:
        """The id of the context (the conversation) the task belongs to."""
        return self._claim.task.context_id

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the request; empty if it had none."""
        return dict(MessageToDict(self._claim.request.metadata))

    @property
    def number(self) -> int:
        """1 for the task's first message, 2 for the next, and so on."""
        return self._claim.turn

    @property
    def attempt(self) -> int:
        """1, or more when an earlier run of this turn was lost with its worker."""
        return self._claim.attempt

    @property
    def session(self) -> ContextSession:
        """What the agent keeps for this context.

        Raises:
            ConfigError: it keeps nothing: it needs the option `session=True`.
        """
        session = self._events.settlement.session
        if not isinstance(session, ContextSession):
            raise ConfigError(f"agent {self._claim.scope.agent!r} has no session: give it the option session=True")
        return session

    async def checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """Saves the session now, see `ContextSession.checkpoint`: a run that takes this one's place goes on from here.

        Raises:
            SessionError: the state is not a JSON object, or too large.
            SessionConflict: another run of the context has saved the session since this one began.
        """
        await self.session.checkpoint(state)

    @property
    def cancelled(self) -> bool:
        """Whether the run is to stop: its client cancelled it, its time is up, or it was given to another worker.

        An async agent is cancelled where it waits. A plain function that works for long should look now and then, and
        return; it has `cancel_grace` to do so.
        """
        return self._events.stopping

    async def say(self, text: str = "", *, parts: Sequence[Part] = (), **metadata: Any) -> None:
        """Shows progress: the task stays WORKING, with this message and metadata.

        Raises:
            InvalidAgentResponseError: the metadata is not JSON.
        """
        event = TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata=metadata or None)
        if text or parts:
            message = agent_message(text, self.task_id, self.context_id) if text else Message()
            message.parts.extend(parts)
            event.status.message.CopyFrom(message)
        await self._events.enqueue_event(event)

    def model_call(self, model: str = "") -> OpenStep:
        """The agent calls the model of that name while the block runs: ``async with turn.model_call("…"):``.

        It costs nothing to speak of, waits for nothing and may be used in any thread; see ``docs/execution.md``.
        """
        return self.execution.model_call(model)

    def tool_call(self, name: str) -> OpenStep:
        """The agent calls the tool of that name while the block runs: ``async with turn.tool_call("search"):``."""
        return self.execution.tool_call(name)

    async def ask(self, question: str = "", *, parts: Sequence[Part] = ()) -> Answer:
        """The client's answer to `question`: ends this run in INPUT_REQUIRED, and returns in the next.

        Nothing waits meanwhile. When the answer has come, on whichever worker, the function is called again from its
        beginning, and each `ask` that was answered returns at once; so it should come to the same questions in the same
        order, and do what must happen once behind its last one.

        Raises:
            InputRequired: to end the run; let it pass.
        """
        self._asked += 1
        if self._asked <= len(self._answers):
            return Answer.of(self._answers[self._asked - 1])
        self._events.settlement.asked = self._asked
        raise InputRequired(question, parts=parts)

    async def artifact(
        self,
        content: Any,
        *,
        artifact_id: str | None = None,
        name: str = "",
        append: bool = False,
        last: bool = True,
    ) -> str:
        """Adds an artifact, or with `append` the next chunk of one; returns its id.

        `content` is text, bytes, JSON-like data, a Part or a list of these.
        """
        artifact_id = artifact_id or str(uuid4())
        artifact = Artifact(artifact_id=artifact_id, name=name, parts=parts_of(content))
        await self._events.enqueue_event(TaskArtifactUpdateEvent(artifact=artifact, append=append, last_chunk=last))
        return artifact_id

    @property
    def blocking(self) -> BlockingTurn:
        """`say`, `ask`, `artifact` and the session's calls for an agent that is a plain function.

        Raises:
            RuntimeError: from an async agent, whose loop it would block for ever.
        """
        if get_ident() == self._thread:
            raise RuntimeError("turn.blocking is for plain functions: await turn.say(…), turn.ask(…) here")
        return BlockingTurn(self, self._loop)


class BlockingTurn:
    """The same calls from the thread of a sync agent: each returns when its event is taken.

    When the run is to stop (see `Turn.cancelled`), all of them raise `asyncio.CancelledError`, which is no `Exception`:
    let it pass.
    """

    def __init__(self, turn: Turn, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = turn
        self._loop = loop

    @property
    def cancelled(self) -> bool:
        """See `Turn.cancelled`."""
        return self._turn.cancelled

    def say(self, text: str = "", *, parts: Sequence[Part] = (), **metadata: Any) -> None:
        """See `Turn.say`."""
        self._wait_for(self._turn.say(text, parts=parts, **metadata))

    def model_call(self, model: str = "") -> OpenStep:
        """See `Turn.model_call`: ``with turn.blocking.model_call("…"):``."""
        self._go_on()
        return self._turn.model_call(model)

    def tool_call(self, name: str) -> OpenStep:
        """See `Turn.tool_call`: ``with turn.blocking.tool_call("search"):``."""
        self._go_on()
        return self._turn.tool_call(name)

    def ask(self, question: str = "", *, parts: Sequence[Part] = ()) -> Answer:
        """See `Turn.ask`."""
        return self._wait_for(self._turn.ask(question, parts=parts))

    def artifact(self, content: Any, **options: Any) -> str:
        """See `Turn.artifact`."""
        return self._wait_for(self._turn.artifact(content, **options))

    def _go_on(self) -> None:
        if self.cancelled:
            raise asyncio.CancelledError

    def checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """See `Turn.checkpoint`."""
        self._wait_for(self._turn.checkpoint(state))

    def history(self, limit: int = HISTORY_MESSAGES, *, artifacts: bool = True) -> list[Message]:
        """See `ContextSession.history`."""
        return self._wait_for(self._turn.session.history(limit, artifacts=artifacts))

    def _wait_for(self, call: Coroutine[Any, Any, T]) -> T:
        if self.cancelled:
            call.close()
            raise asyncio.CancelledError
        made = asyncio.run_coroutine_threadsafe(call, self._loop)
        while not wait([made], LOOK_EVERY).done:
            if self.cancelled:  # the store may be away for long
                made.cancel()
                raise asyncio.CancelledError
        return made.result()


class Reply:
    """Turns what an agent returns or yields into artifacts: pieces of text and parts are chunks of one of them."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._artifact_id: str | None = None

    async def whole(self, value: Any) -> None:
        """The agent returned `value`; None says nothing."""
        await self._say(value, last=True)

    async def piece(self, value: Any) -> None:
        """The agent yielded `value`."""
        await self._say(value, last=False)

    async def _say(self, value: Any, *, last: bool) -> None:
        if value is None:
            return
        if isinstance(value, Artifact | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent | Task):
            event = TaskArtifactUpdateEvent(artifact=value, last_chunk=True) if isinstance(value, Artifact) else value
            await self._turn._events.enqueue_event(event)
            return
        said, say = self._artifact_id, self._turn.artifact
        self._artifact_id = await say(value, artifact_id=said, name="response", append=said is not None, last=last)
