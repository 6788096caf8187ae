"""Adapter for CrewAI crews. A task with ``human_input=True`` asks the client for feedback. Any worker can continue the
crew with the answer.

The status message has the output of the task as text, and as a data part ``{"taskOutput": {"task", "agent",
"output"}}``. The answer "yes" in any case, or an answer without text, accepts the output. Any other text is feedback,
and the agent continues its work.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from contextvars import copy_context
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from a2a.types import Artifact, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from crewai import Crew
from crewai.agents.parser import AgentFinish
from crewai.core.providers.human_input import AsyncExecutorContext, ExecutorContext, reset_provider, set_provider
from crewai.crews.crew_output import CrewOutput
from crewai.tasks.task_output import TaskOutput
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ..agents import FrameworkAgent
from ..concurrency import DaemonThreads
from ..errors import ConfigError, Rejected
from ..execution.agents.turn import Turn
from ..lifecycle.events import data_part, parts_of
from ..lifecycle.questions import Question
from .conversation import Conversation, EarlyStops, completed_status, data_of, data_text
from .crewai_calls import CrewCalls, CrewStopped, ModelCall

Event = TaskArtifactUpdateEvent | TaskStatusUpdateEvent

MESSAGES = "messages"
"""Key of the earlier messages in the stored conversation."""

CHAT_MESSAGES = "crew_chat_messages"
"""Input from which CrewAI adds a conversation to the description of each task."""

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_\-]*)}")
"""Placeholder that CrewAI replaces with an input. `Crew.fetch_inputs` also returns other texts in braces."""

HISTORY = 20
"""Default number of earlier messages that a crew receives."""

ACCEPTED = ("", "yes")
"""Answers that accept the output of a task, in lower case."""

DONE = frozenset({"end_turn", "stop", "stop_sequence", "tool_calls", "tool_use", "function_call", "completed"})
"""Finish reasons of a model that is done, in lower case. Providers may define further reasons."""

UNREADABLE = "This agent reads text and data parts."

THOUGHTS = ("Thought:", "Action:")
"""Prefixes of the text that a model without native tool calls writes before its answer."""

ANSWER = "Final Answer:"


def crewai_agent(
    crew: Crew | Callable[[Turn], Crew],
    *,
    history: int = HISTORY,
    fail_on: Collection[str] = (),
    durable: bool = True,
) -> FrameworkAgent:
    """Return an agent for `A2A.add_agent` that runs a CrewAI crew.

    The crew's inputs are the message text, as ``message``, and the values of the message's data parts. The client is
    asked for missing inputs. The earlier messages of the context are added to the description of each task. The text of
    each task is streamed as an artifact. A cancellation takes effect at the crew's next event, such as a text chunk or
    the start or end of a call. A call that emits no events cannot be stopped.

    If the last model call stopped early, for example with the finish reason "length" or "content_filter", the turn ends
    in COMPLETED with ``stopReason`` in its metadata. For the reasons in `fail_on`, the turn ends in FAILED.

    Args:
        crew: Crew, which is copied for each run, or a function that returns a new crew for a run.
        history: Maximum number of earlier messages that the crew receives.
        fail_on: Stop reasons that fail the task.
        durable: True to record the results of model and tool calls, so that no later run of a turn repeats the calls.
            Use False if later calls depend on in-memory side effects of the tools.

    Raises:
        ConfigError: `crew` is neither a crew nor a function, or has options that the adapter does not support, or
            `fail_on` is not a collection of strings. A crew that a function returns is checked in each run.
    """
    early_stops = EarlyStops(fail_on, None)
    if isinstance(crew, Crew):
        _require_supported(crew)
    elif not callable(crew) or isinstance(crew, type):
        raise ConfigError(f"crewai_agent({crew!r}): pass a crewai.Crew, or a function of a Turn that returns one")

    async def answer(turn: Turn) -> AsyncGenerator[Event, None]:
        run = _CrewRun(crew, turn, history, durable)
        async with aclosing(run.events()) as events:
            async for event in events:
                yield event
        turn.stop_if_asking()
        run.save_conversation()
        yield run.end(early_stops)

    return answer


class _CrewRun:
    """Execution of a crew in one run of a turn. The crew works in a thread, because CrewAI blocks."""

    def __init__(self, crew: Crew | Callable[[Turn], Crew], turn: Turn, history: int, durable: bool) -> None:
        self._crew = crew
        self._turn = turn
        self._stored = Conversation(turn)
        self._messages: list[dict[str, str]] = (self._stored.memory or {}).get(MESSAGES, [])
        self._message = {"role": "user", "content": _text(turn)}
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._artifacts = _TaskArtifacts(turn, self._send)
        artifacts = self._artifacts
        self._calls = CrewCalls(turn, durable, artifacts.add_text, artifacts.complete, artifacts.withdraw)
        self._output: CrewOutput | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the crew. If the generator is closed early, the crew is stopped."""
        thread = DaemonThreads(1, "a2a-crewai")
        running = asyncio.create_task(self._work(thread))
        try:
            while (event := await self._queue.get()) is not None:
                yield event
            self._output = await running
        finally:
            self._calls.close()
            await asyncio.wait({running})  # a thread cannot be stopped
            if not running.cancelled():
                running.exception()  # mark the exception as retrieved
            thread.close()

    def save_conversation(self) -> None:
        """Store the newest messages of the conversation, including the messages of the turn."""
        assert self._output is not None
        answer = {"role": "assistant", "content": self._output.raw}
        messages = [*self._messages, self._message, answer]
        self._stored.go_on({MESSAGES: messages[len(messages) - min(self._history, len(messages)) :]})

    def end(self, early_stops: EarlyStops) -> TaskStatusUpdateEvent:
        """Return the final status of the turn, with its stop reason and token usage."""
        turn, reason = self._turn, self._calls.finish_reason
        if reason and reason.lower() not in DONE:
            end = early_stops.event(reason, turn.task_id, turn.context_id)
        else:
            end = completed_status(turn.task_id, turn.context_id)
        return self._calls.usage.apply(end)

    async def _work(self, thread: DaemonThreads) -> CrewOutput:
        context = copy_context()
        try:
            output: CrewOutput = await thread.call(lambda: context.run(self._kick_off))
        except CrewStopped as stopped:
            raise stopped.error from None
        finally:
            self._queue.put_nowait(None)
        return output

    def _kick_off(self) -> CrewOutput:
        crew = self._crew.copy() if isinstance(self._crew, Crew) else self._crew(self._turn)
        _require_supported(crew)
        crew.stream = False  # events arrive without streaming, which would need another thread
        self._calls.record_models(crew)
        self._artifacts.begin(crew)
        crew.before_kickoff_callbacks = [
            *crew.before_kickoff_callbacks,
            lambda inputs: self._with_missing_inputs(crew, inputs),
        ]
        token = set_provider(_ClientFeedback(self._turn))
        try:
            with self._calls.recording():
                return crew.kickoff(inputs=self._inputs())
        finally:
            reset_provider(token)

    def _inputs(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {"message": self._turn.text}
        for data in data_of(self._turn.message):
            inputs |= data
        inputs[CHAT_MESSAGES] = json.dumps([*self._messages, self._message], ensure_ascii=False)
        return inputs

    def _with_missing_inputs(self, crew: Crew, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return `inputs` with the inputs that only the client can provide. Ask the client for these inputs.

        Raises:
            InputRequired: The client has not sent all inputs yet.
        """
        names = {name for text in crew.fetch_inputs() for name in PLACEHOLDER.findall(f"{{{text}}}")}
        if missing := sorted(names - inputs.keys()):
            questions = {name: Question(f"What is the {name}?") for name in missing}
            return inputs | self._turn.blocking.ask_all(questions)
        return inputs

    def _send(self, event: Event) -> None:
        """Queue an event from any thread."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)


class _TaskArtifacts:
    """Artifacts of a crew, one for each task.

    The artifact of a task shows the text of the task's last model call, and finally the task's output. The artifact ids
    are the same in each run of a turn.
    """

    def __init__(self, turn: Turn, send: Callable[[Event], None]) -> None:
        self._turn = turn
        self._send = send
        self._tasks: dict[str, tuple[str, str]] = {}
        self._structured: set[str] = set()
        self._sent: dict[str, tuple[ModelCall, str]] = {}

    def begin(self, crew: Crew) -> None:
        """Assign an artifact to each task of the crew."""
        for number, task in enumerate(crew.tasks):
            artifact_id = str(uuid5(NAMESPACE_URL, f"{self._turn.message.message_id}/{number}"))
            self._tasks[str(task.id)] = artifact_id, task.name or "response"
            if task.output_json or task.output_pydantic:
                self._structured.add(str(task.id))

    def add_text(self, call: ModelCall, chunk: str) -> None:
        """Send the next text chunk of a model call. The text of a later call replaces the text of earlier calls of the
        task."""
        call.text = call.text or chunk
        known_call, sent_text = self._sent.get(call.task_id, (None, ""))
        if known_call is not call:
            sent_text = ""
        text = _answer_in(call.text)
        if call.task_id not in self._tasks or call.task_id in self._structured or len(text) <= len(sent_text):
            return
        self._send(self._event(call.task_id, text[len(sent_text) :], append=bool(sent_text)))
        self._sent[call.task_id] = call, text

    def withdraw(self, task_id: str) -> None:
        """Empty the artifact of a task whose output a guardrail has refused."""
        if self._sent.pop(task_id, None) is not None:
            self._send(self._event(task_id, "", append=False))

    def complete(self, task_id: str, output: TaskOutput) -> None:
        """Complete the artifact of a task. The output is sent unless it has been streamed."""
        if task_id not in self._tasks:  # a task that an agent has delegated
            return
        data = output.pydantic or output.json_dict
        content = output.raw if data is None else to_jsonable_python(data)
        is_sent = task_id in self._sent and self._sent[task_id][1].strip() == content
        self._send(self._event(task_id, "" if is_sent else content, append=is_sent, last=True))

    def _event(self, task_id: str, content: Any, *, append: bool, last: bool = False) -> TaskArtifactUpdateEvent:
        artifact_id, name = self._tasks[task_id]
        artifact = Artifact(artifact_id=artifact_id, name=name, parts=parts_of(content))
        return TaskArtifactUpdateEvent(artifact=artifact, append=append, last_chunk=last)


class _ClientFeedback:
    """Human input provider for CrewAI that asks the client."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def setup_messages(self, context: ExecutorContext) -> bool:
        """Return False, so that CrewAI sets up the messages."""
        return False

    def post_setup_messages(self, context: ExecutorContext) -> None:
        """Leave the messages unchanged."""

    def handle_feedback(self, formatted_answer: AgentFinish, context: ExecutorContext) -> AgentFinish:
        """Return the output that the client has accepted. After each feedback, the agent continues its work.

        Raises:
            InputRequired: The client has not answered yet.
        """
        answer = formatted_answer
        while feedback := self._ask(answer, context):
            context.messages.append(context._format_feedback_message(feedback))
            answer = context._invoke_loop()
        context.ask_for_human_input = False
        return answer

    async def handle_feedback_async(self, formatted_answer: AgentFinish, context: AsyncExecutorContext) -> AgentFinish:
        """Call `handle_feedback` in a thread."""
        return await asyncio.to_thread(self.handle_feedback, formatted_answer, context)

    def _ask(self, answer: AgentFinish, context: ExecutorContext) -> str:
        """Return the feedback of the client, or "" if the client accepts the output."""
        output = answer.output.model_dump_json() if isinstance(answer.output, BaseModel) else str(answer.output)
        task = "" if context.task is None else context.task.name or ""
        data = {"taskOutput": {"task": task, "agent": context.agent.role, "output": output}}
        question = f'{output}\n\nReply "yes" to accept this result, or with your feedback.'
        feedback = str(self._turn.blocking.ask(question, parts=[data_part(data, "")])).strip()
        return "" if feedback.lower() in ACCEPTED else feedback


def _answer_in(text: str) -> str:
    """Return the part of a model's text that is its answer so far.

    A model without native tool calls writes its thoughts before the answer.
    """
    begin = text.lstrip("` \n")
    if not any(begin.startswith(thought) or thought.startswith(begin) for thought in THOUGHTS):
        return text
    return text.partition(ANSWER)[2].lstrip()


def _text(turn: Turn) -> str:
    """Return the message of the turn as text.

    Raises:
        Rejected: The message has files.
    """
    texts = []
    for part in turn.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(data_text(part))
            case _:
                raise Rejected(UNREADABLE)
    return "\n".join(texts)


def _require_supported(crew: Any) -> None:
    if not isinstance(crew, Crew):
        raise ConfigError(f"crewai_agent: {crew!r} is not a crewai.Crew")
    if any(_is_local(owner.memory) for owner in [crew, *crew.agents]):
        raise ConfigError(
            "memory=True: CrewAI stores this memory in files of one worker, for all callers; remove it, because the "
            "crew receives the conversation of the context, or pass a Memory whose storage is an object that all "
            "workers share"
        )
    if crew.checkpoint:
        raise ConfigError("the crew has a checkpoint: remove it, because its calls are recorded with the task")
    for task in crew.tasks:
        if task.async_execution:
            raise ConfigError(
                f"task {task.name or task.description!r} has async_execution: CrewAI executes the task in a "
                "thread that drops questions and cancellations, so the crew never ends; remove async_execution"
            )


def _is_local(memory: Any) -> bool:
    """Return True if CrewAI stores `memory` in local files: the default memory (True), or one whose storage is a
    string."""
    return memory is True or isinstance(getattr(memory, "storage", None), str)
