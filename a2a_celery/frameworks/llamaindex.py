"""Adapter for LlamaIndex workflows and agents. A workflow continues after its last finished step on any worker.

An `InputRequiredEvent` becomes a question to the client. The workflow receives the answer as the event that it waits
for, which is a `HumanResponseEvent` or an instance of a subclass. The fields of a subclass define the JSON Schema of
the answer.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from a2a.types import Artifact, Part, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict
from llama_index.core.agent.workflow import AgentInput, AgentOutput, AgentStream, ToolCall, ToolCallResult
from llama_index.core.agent.workflow.workflow_events import (
    AgentSetup,
    AgentStreamStructuredOutput,
    AgentWorkflowStartEvent,
)
from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    VideoBlock,
)
from pydantic import ValidationError
from pydantic_core import to_jsonable_python
from workflows import Workflow
from workflows.errors import WorkflowRuntimeError, WorkflowValidationError
from workflows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    InternalDispatchEvent,
    StartEvent,
    StopEvent,
    WorkflowIdleEvent,
)
from workflows.handler import WorkflowHandler

from ..agents import FrameworkAgent
from ..errors import ConfigError, Rejected
from ..execution.agents.turn import Turn
from ..features.steps.journal import current_journal
from ..lifecycle.events import data_part, parts_of
from ..lifecycle.files import file_name, normalized_file
from ..lifecycle.json_values import ends_with_half
from ..lifecycle.outcomes import NEEDS_INPUT
from ..lifecycle.questions import Question, whole_numbers
from .conversation import EarlyStops, completed_status, data_of, data_text
from .llamaindex_runs import RunRecorder, record_runs
from .usage import Usage

A2AEvent = TaskArtifactUpdateEvent | TaskStatusUpdateEvent

MEMORY = "memory"
"""Key of the workflow's state in the session."""

DONE = frozenset({"end_turn", "stop", "stop_sequence", "tool_calls", "tool_use", "function_call", "completed"})
"""Finish reasons of a model that is done, in lower case. Providers may define further reasons."""

QUESTION_FIELDS = ("question", "prefix", "message", "msg", "prompt")
"""Fields of an `InputRequiredEvent` that may contain the text of the question."""

OF_AGENTS = (AgentInput, AgentOutput, AgentSetup, AgentStreamStructuredOutput, ToolCall, ToolCallResult)
"""Events of LlamaIndex's agents that are not sent to clients."""

UNREADABLE = "This agent reads text and data parts."

THOUGHT, ANSWER = "Thought:", "Answer:"
"""Prefixes of a `ReActAgent`'s text, and of the answer in the text."""

BLOCKS: dict[str, type[ImageBlock | AudioBlock | VideoBlock]] = {
    "image": ImageBlock,
    "audio": AudioBlock,
    "video": VideoBlock,
}
"""Block classes for files, by the first part of the media type. Any other file becomes a `DocumentBlock`."""


def llamaindex_agent(
    workflow: Workflow | Callable[[Turn], Workflow],
    *,
    start_event: Callable[[Turn], StartEvent] | None = None,
    fail_on: Collection[str] = (),
) -> FrameworkAgent:
    """Return an agent for `A2A.add_agent` that runs a LlamaIndex workflow or agent.

    The text of each model response is streamed as an artifact. Other events of the workflow's stream become status
    messages. The state of the workflow (``ctx.store``) is stored in the session when a turn completes. Within a turn,
    each finished step is recorded, so that no later run of the turn executes the step again. A cancellation takes
    effect at the next await of a step.

    If the last model response stopped early, for example with the finish reason "length" or "content_filter", the turn
    ends in COMPLETED with ``stopReason`` in its metadata. For the reasons in `fail_on`, the turn ends in FAILED.

    Args:
        workflow: `Workflow`, `AgentWorkflow` or agent, which all runs of a worker process share, or a function that
            returns a new one for a run.
        start_event: Function that returns the start event of a turn. By default, an agent's start event has the
            client's message, and any other workflow's start event has the text and the values of the data parts.
        fail_on: Stop reasons that fail the task.

    Raises:
        ConfigError: `workflow` is invalid, has already run, has a different runtime, or has events that no other worker
            can load, or `fail_on` is not a collection of strings. A workflow that a function returns is checked in each
            run.
    """
    early_stops = EarlyStops(fail_on, None)
    if isinstance(workflow, Workflow):
        _require_supported(workflow)
    elif not callable(workflow) or isinstance(workflow, type):
        raise ConfigError(f"llamaindex_agent({workflow!r}): pass a Workflow, or a function of a Turn that returns one")

    async def answer(turn: Turn) -> AsyncGenerator[A2AEvent, None]:
        if isinstance(workflow, Workflow):
            current = workflow
        else:
            current = workflow(turn)
            _require_supported(current)
        run = _WorkflowRun(current, turn, start_event)
        async with aclosing(run.events()) as events:
            async for event in events:
                yield event
        turn.stop_if_asking()
        turn.session.state[MEMORY] = run.recorder.state()
        yield run.end(early_stops)

    return answer


class _WorkflowRun:
    """Execution of a workflow in one run of a turn."""

    def __init__(self, workflow: Workflow, turn: Turn, start_event: Callable[[Turn], StartEvent] | None) -> None:
        self._workflow = workflow
        self._turn = turn
        self._start_event = start_event
        self._queue: asyncio.Queue[A2AEvent | Event | None] = asyncio.Queue()
        self._artifacts = _ResponseArtifacts(turn)
        self.recorder = RunRecorder(
            current_journal(),
            turn,
            workflow,
            turn.session.state.get(MEMORY),
            publish=self._publish,
            end_step=self._end_step,
            output_of=_output,
        )
        if self.recorder.continues_turn:
            turn.replay_questions(self.recorder.progress.answer_count)

    async def events(self) -> AsyncGenerator[A2AEvent, None]:
        """Yield the workflow's events until the turn is complete. Exceptions of the workflow and of `Turn.ask`
        propagate."""
        if not self.recorder.progress.is_done:
            start = None if self.recorder.continues_turn else await self._start()
            with self.recorder.running(start) as handler:
                async with aclosing(self._events_of(handler)) as events:
                    async for event in events:
                        yield event
        if (output := self._artifacts.output(self.recorder.progress.output)) is not None:
            yield output

    def end(self, early_stops: EarlyStops) -> TaskStatusUpdateEvent:
        """Return the final status of the turn, with its stop reason and token usage."""
        turn, progress = self._turn, self.recorder.progress
        if progress.finish_reason and progress.finish_reason.lower() not in DONE:
            end = early_stops.event(progress.finish_reason, turn.task_id, turn.context_id)
        else:
            end = completed_status(turn.task_id, turn.context_id)
        return Usage(progress.usage).apply(end)

    async def _events_of(self, handler: WorkflowHandler) -> AsyncGenerator[A2AEvent, None]:
        """Yield the events of a running workflow. If the generator is closed early, the workflow is stopped."""
        running = asyncio.create_task(self._wait(handler))
        try:
            while (item := await self._queue.get()) is not None:
                if isinstance(item, WorkflowIdleEvent):
                    await self._answer(handler)
                elif isinstance(item, Event):
                    await _send(self._turn, item)
                else:
                    yield item
            await running
        finally:
            await self.recorder.stop(handler)
            await asyncio.wait({running})
            if not running.cancelled():
                running.exception()  # mark the exception as retrieved

    async def _wait(self, handler: WorkflowHandler) -> None:
        try:
            await handler.stop_event_result()
        finally:
            self._queue.put_nowait(None)

    def _publish(self, event: Event, step: str) -> None:
        match event:
            case AgentStream():
                if (chunk := self._artifacts.add(event, step)) is not None:
                    self._queue.put_nowait(chunk)
            case WorkflowIdleEvent():
                self._queue.put_nowait(event)
            case InternalDispatchEvent() | InputRequiredEvent() | StopEvent():
                pass
            case _ if not isinstance(event, OF_AGENTS):
                self._queue.put_nowait(event)

    def _end_step(self, step: str) -> None:
        for event in self._artifacts.complete(step):
            self._queue.put_nowait(event)

    async def _start(self) -> StartEvent:
        """Return the start event of the turn. Ask the client for missing values.

        Raises:
            InputRequired: The client has not sent all values yet.
            Rejected: The message has files, but the workflow is not an agent.
        """
        turn, event_type = self._turn, self._workflow.start_event_class
        if self._start_event is not None:
            return _complete(self._start_event(turn))
        if issubclass(event_type, AgentWorkflowStartEvent):
            return _complete(event_type(user_msg=_user_message(turn)))
        values = _start_values(turn, event_type)
        try:
            return event_type(**values)
        except ValidationError as invalid:
            names = sorted({str(error["loc"][0]) for error in invalid.errors() if error["loc"]})
            start_event: StartEvent = await turn.ask(f"Please send: {', '.join(names)}.", schema=event_type)
            return start_event

    async def _answer(self, handler: WorkflowHandler) -> None:
        """Ask the open questions of a waiting workflow, and send the answers to the workflow.

        Raises:
            InputRequired: The client has not answered yet.
            WorkflowRuntimeError: The workflow waits, but has not asked the client a question.
        """
        recorder, keys = self.recorder, list(self.recorder.progress.questions)
        if not keys:
            raise WorkflowRuntimeError(
                "the workflow waits, and has asked the client nothing: return an InputRequiredEvent, or wait for a "
                "HumanResponseEvent; wait for other systems with turn.wait_for"
            )
        for key, response in (await self._ask(keys)).items():
            recorder.deliver(handler, key, response)

    async def _ask(self, keys: list[str]) -> dict[str, Event]:
        """Return the response events with the client's answers, keyed like the questions."""
        types = {key: self._response_types(key) for key in keys}
        texts = {key: _text_of(self.recorder.progress.questions[key]["event"]) for key in keys}
        schemas = {key: reduce(or_, types[key]) if _has_schema(types[key]) else None for key in keys}
        if len(keys) > 1:
            answers = await self._turn.ask_all({key: Question(texts[key], schemas[key]) for key in keys})
            return {key: self._response(key, types[key][0], answers[key]) for key in keys}
        [key] = keys
        details = _details_of(self.recorder.progress.questions[key]["event"])
        parts = [data_part({"inputRequired": details}, "")] if details else []
        answer: Any = await self._turn.ask(texts[key], parts=parts, schema=schemas[key])
        if schemas[key] is None:
            answer = _value_of(answer.message.parts, str(answer))
        return {key: self._response(key, types[key][0], answer)}

    def _response_types(self, key: str) -> list[Any]:
        """Return the event classes that can answer a question. A class without fields takes precedence over others."""
        response_type = self.recorder.response_type(key)
        if response_type is not None:
            return [response_type]
        types = [event_type for event_type in self._workflow.events if issubclass(event_type, HumanResponseEvent)] or [
            HumanResponseEvent
        ]
        plain = [event_type for event_type in types if not event_type.model_fields]
        return plain[:1] or sorted(types, key=lambda event_type: event_type.__name__)

    def _response(self, key: str, response_type: type[Event], answer: Any) -> Event:
        response = answer if isinstance(answer, Event) else response_type(response=answer)
        for name, value in self.recorder.requirements(key).items():
            setattr(response, name, value)
        return response


@dataclass
class _Response:
    """Streamed model response.

    Attributes:
        text: Text that the model has sent so far.
        sent: Part of the text that the artifact contains.
    """

    artifact_id: str
    text: str = ""
    sent: str = ""


class _ResponseArtifacts:
    """Artifacts of model responses, one for each step and input.

    The artifact id is derived from the step and its input. A repeated execution of a step replaces the artifact.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._open: dict[str, _Response] = {}
        self._texts = ["".join(part.text for part in artifact.parts) for artifact in turn.task.artifacts]

    def add(self, event: AgentStream, step: str) -> TaskArtifactUpdateEvent | None:
        """Return the event for the next chunk of a response, or None if the chunk is not part of the answer."""
        response = self._open.setdefault(step, _Response(self._id(step)))
        response.text += event.delta
        new = _answer_in(response.text)[len(response.sent) :]
        if ends_with_half(new):
            new = new[:-1]  # until the other half of the character arrives
        if not new:
            return None
        is_first, response.sent = not response.sent, response.sent + new
        artifact = Artifact(artifact_id=response.artifact_id, name=event.current_agent_name, parts=parts_of(new))
        return TaskArtifactUpdateEvent(artifact=artifact, append=not is_first)

    def complete(self, step: str) -> list[TaskArtifactUpdateEvent]:
        """Return the event that completes the artifact of a step, if there is one."""
        response = self._open.pop(step, None)
        if response is None or not response.sent:
            return []
        self._texts.append(response.sent)
        artifact = Artifact(artifact_id=response.artifact_id, parts=[Part(text="")])
        return [TaskArtifactUpdateEvent(artifact=artifact, append=True, last_chunk=True)]

    def output(self, output: Any) -> TaskArtifactUpdateEvent | None:
        """Return the event for the workflow's output, or None if the output is empty or has been streamed."""
        if output in (None, "") or (isinstance(output, str) and output.strip() in map(str.strip, self._texts)):
            return None
        artifact = Artifact(artifact_id=self._id("output"), name="response", parts=parts_of(output))
        return TaskArtifactUpdateEvent(artifact=artifact, last_chunk=True)

    def _id(self, name: str) -> str:
        return str(uuid5(NAMESPACE_URL, f"{self._turn.message.message_id}/{name}"))


def _output(stop: StopEvent) -> Any:
    """Convert the output of a workflow to a JSON value."""
    result = stop.result if type(stop) is StopEvent else stop
    if isinstance(result, AgentOutput):
        return result.response.content if result.structured_response is None else result.structured_response
    return to_jsonable_python(result)


async def _send(turn: Turn, event: Event) -> None:
    """Send an event of the workflow's stream as a status message. An event with a single text becomes text, and any
    other event becomes data."""
    fields = {**{name: getattr(event, name) for name in type(event).model_fields}, **dict(event.items())}
    values = list(fields.values())
    if len(values) == 1 and isinstance(values[0], str):
        await turn.say(values[0])
    else:
        data = json.loads(json.dumps(to_jsonable_python(fields, fallback=str)))
        await turn.say(parts=[data_part({"event": type(event).__name__, **data}, "")])


def _answer_in(text: str) -> str:
    """Return the part of a response that is the answer so far. A `ReActAgent` writes its thoughts before the answer."""
    begin = text.lstrip("` \n")
    if not (begin.startswith(THOUGHT) or THOUGHT.startswith(begin)):
        return text
    return text.partition(ANSWER)[2].lstrip()


def _text_of(fields: dict[str, Any]) -> str:
    """Return the text of a question whose event has `fields`."""
    for name in QUESTION_FIELDS:
        if isinstance(fields.get(name), str) and fields[name]:
            return str(fields[name])
    return json.dumps(fields, ensure_ascii=False) if fields else NEEDS_INPUT


def _details_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a question, except for the text."""
    text = _text_of(fields)
    return {name: value for name, value in fields.items() if value != text}


def _has_schema(types: list[Any]) -> bool:
    return all(event_type.model_fields for event_type in types)


def _value_of(parts: Any, text: str) -> Any:
    """Return the value of the data part if a message has one data part and no text. Otherwise, return the text."""
    data = [whole_numbers(MessageToDict(part.data)) for part in parts if part.HasField("data")]
    return data[0] if len(data) == 1 and not text else text


def _start_values(turn: Turn, event_type: type[StartEvent]) -> dict[str, Any]:
    """Return the values of the client's data parts, and the text under the name of a field.

    If exactly one required field has no value, and this field is a string, the text becomes the value of this field.
    Otherwise, the text becomes the value of ``user_msg``.

    Raises:
        Rejected: The message has files.
    """
    if any(part.WhichOneof("content") not in ("text", "data") for part in turn.parts):
        raise Rejected(UNREADABLE)
    values: dict[str, Any] = {}
    for data in data_of(turn.message):
        values |= data
    fields = event_type.model_fields
    required_names = [name for name, field in fields.items() if field.is_required() and name not in values]
    is_text = len(required_names) == 1 and fields[required_names[0]].annotation is str
    if turn.text:
        values.setdefault(required_names[0] if is_text else "user_msg", turn.text)
    return values


def _complete(event: StartEvent) -> StartEvent:
    """Set the fields of an agent's event that LlamaIndex needs to serialize the event."""
    if isinstance(event, AgentWorkflowStartEvent):
        for name in ("user_msg", "chat_history", "max_iterations"):
            if name not in event:
                event[name] = None
    return event


def _user_message(turn: Turn) -> str | ChatMessage:
    """Convert the client's message to the input of an agent."""
    blocks = [_block(normalized_file(part)) for part in turn.parts]
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock):
        return blocks[0].text
    return ChatMessage(role="user", blocks=blocks)


def _block(part: Part) -> ContentBlock:
    match part.WhichOneof("content"):
        case "text":
            return TextBlock(text=part.text)
        case "data":
            return TextBlock(text=data_text(part))
    raw = b64encode(part.raw) if part.raw else None
    url = part.url or None
    media_type = part.media_type or None
    match media_type and media_type.partition("/")[0]:
        case "image":
            return ImageBlock(image=raw, url=url, image_mimetype=media_type)
        case "audio":
            return AudioBlock(audio=raw, url=url, format=str(media_type).partition("/")[2])
        case "video":
            return VideoBlock(video=raw, url=url, video_mimetype=media_type)
        case _:
            return DocumentBlock(data=raw, url=url, title=file_name(part), document_mimetype=media_type)


def _require_supported(workflow: Any) -> None:
    if not isinstance(workflow, Workflow):
        raise ConfigError(f"llamaindex_agent: {workflow!r} is not a Workflow")
    try:
        workflow.validate()
    except WorkflowValidationError as problem:
        raise ConfigError(f"the workflow is invalid: {problem}") from problem
    record_runs(workflow)
