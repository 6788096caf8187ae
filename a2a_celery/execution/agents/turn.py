"""`Turn`, the argument of a function agent: the client's message, its task, and the methods for the response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any
from uuid import uuid4

from a2a.helpers import get_message_text
from a2a.types import Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict

from ...caller import Caller
from ...errors import InputRequired, SuspendRun
from ...features.turn import TurnMethods
from ...lifecycle.events import parts_of, portable_metadata
from ...lifecycle.json_values import portable_text
from ...lifecycle.outcomes import agent_message
from ...lifecycle.states import WORKING
from ..events.activities import Execution, OpenActivity, current_execution
from ..events.queue import RunEventQueue
from ..open_run import OpenRun
from .blocking_turn import BlockingTurn
from .running_agent import CURRENT as RUNNING_AGENT
from .running_agent import loop_method


class Turn(TurnMethods):
    """Message of a client to a task, with methods for the response.

    A function agent receives a `Turn` as its argument. Properties describe the message and its task. `say` and
    `artifact` send events. `ask` requests input from the client. `retry` ends the run and schedules another attempt.

    A function that calls `ask` is called again after each answer. The new call has the same `message`, and `ask`
    returns the earlier answers immediately.

    Attributes:
        execution: State machine of the run, with its state, history and listeners. The run's activities change the
            state.
        caller: Identity of the client: user name, authentication, tenant and requested extensions.
        related_tasks: Tasks that the message refers to, as of the start of the run. Only tasks of the same caller and
            agent are included.
    """

    def __init__(self, run: OpenRun, events: RunEventQueue, caller: Caller) -> None:
        self._run = run
        self._events = events
        self._message = run.claim.task.history[run.claim.turn.messages[0]]
        self._agent = RUNNING_AGENT.get()
        self.execution = current_execution() or Execution()
        self.caller = caller
        self.related_tasks: Sequence[Task] = ()

    @property
    def message(self) -> Message:
        """Message of the client."""
        return self._message

    @property
    def text(self) -> str:
        """Text parts of the message, joined by newlines, or "" if the message has no text."""
        return get_message_text(self.message)

    @property
    def parts(self) -> Sequence[Part]:
        """Parts of the message."""
        return list(self.message.parts)

    @property
    def task(self) -> Task:
        """Task at the start of the run. The task's history includes the message that began the run."""
        return self._run.claim.task

    @property
    def task_id(self) -> str:
        """Id of the task."""
        return self._run.claim.task.id

    @property
    def context_id(self) -> str:
        """Id of the context (the conversation) of the task."""
        return self._run.claim.task.context_id

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the request that began the run, or an empty mapping. After an answer to `ask`, this is the
        metadata of the request with the answer."""
        return dict(MessageToDict(self._run.claim.turn.request.metadata))

    @property
    def number(self) -> int:
        """Number of the turn: 1 for the first message of the task, 2 for the second. An answer to `ask` is also a
        message."""
        return self._run.claim.turn.number

    @property
    def attempt(self) -> int:
        """Number of the attempt: 1 plus the number of earlier runs of this turn whose workers were lost or shut
        down."""
        return self._run.claim.turn.attempt

    @property
    def cancelled(self) -> bool:
        """True if the run must stop, for example because a client cancels the task, the run reached a time limit or
        lost its lease, or the worker shuts down.

        An async agent is cancelled at its next await. A synchronous agent that works for a long time should check this
        property regularly and return within `cancel_grace` seconds.
        """
        return self._run.is_stopping

    @loop_method
    async def say(self, text: str = "", *, parts: Sequence[Part] | None = (), **metadata: Any) -> None:
        """Report progress to the client. The task stays WORKING.

        Args:
            text: Text of the status message.
            parts: Further parts of the status message. None means none.
            **metadata: Metadata of the status update, as JSON values.

        Raises:
            ValueError: A value in the metadata cannot be serialized as JSON.
            InvalidAgentResponseError: A number in the metadata is NaN or infinite.
        """
        event = TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata=portable_metadata(metadata) or None)
        if text or parts:
            message = agent_message(text, self.task_id, self.context_id) if text else Message()
            message.parts.extend(parts or ())
            event.status.message.CopyFrom(message)
        await self._events.enqueue_event(event)

    def model_call(self, model: str = "") -> OpenActivity:
        """Record a model call that lasts for the block ``async with turn.model_call("…"):``.

        This method does not block and is thread-safe; see ``docs/execution.md``.
        """
        return self.execution.model_call(model)

    def tool_call(self, name: str) -> OpenActivity:
        """Record a tool call that lasts for the block ``async with turn.tool_call("search"):``."""
        return self.execution.tool_call(name)

    def stop_if_asking(self) -> None:
        """Raise again the exception of the run's question or wait, if other code has caught the exception. Thread-safe.

        Raises:
            InputRequired: `ask` has asked a question that the client has not answered yet.
            SuspendRun: `sleep`, `wait_for` or `call` ends the run.
        """
        if self._run.wait is not None:
            raise SuspendRun
        if self._run.question is not None:
            raise InputRequired(parts=self._run.question.parts)

    @loop_method
    async def artifact(
        self, content: Any, *, artifact_id: str | None = None, name: str = "", append: bool = False, last: bool = True
    ) -> str:
        """Add an artifact, or append a chunk to one.

        Args:
            content: Text, bytes, JSON data, a `Part`, or a list of `Part` objects.
            artifact_id: Id of the artifact, or None for a new id.
            name: Name of the artifact.
            append: True to append a chunk to the artifact `artifact_id`.
            last: True to mark the artifact as complete.

        Returns:
            The id of the artifact.

        Raises:
            InvalidAgentResponseError: `content` has any other type, or cannot be serialized as JSON.
        """
        artifact_id = artifact_id or str(uuid4())
        portable_name = name if name.isascii() else portable_text(name)
        artifact = Artifact(artifact_id=artifact_id, name=portable_name, parts=parts_of(content))
        await self._events.enqueue_event(TaskArtifactUpdateEvent(artifact=artifact, append=append, last_chunk=last))
        return artifact_id

    @property
    def blocking(self) -> BlockingTurn:
        """Blocking variants of the methods that wait, for a synchronous agent.

        Raises:
            RuntimeError: An async agent reads this property. A blocking call would deadlock the event loop.
        """
        if get_ident() == self._agent.loop_thread:
            raise RuntimeError("turn.blocking is for plain functions: await turn.say(…), turn.ask(…) here")
        return BlockingTurn(self, self._agent.loop)
