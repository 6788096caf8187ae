"""Adapter for LangGraph graphs. A graph continues at its last super-step on any worker.

`interrupt(value)` becomes a question to the client. A string becomes the text of the status message. Any other value is
sent in a data part ``{"interrupts": [{"id", "value"}]}``. The answer's text or data becomes the result of `interrupt`.
Several interrupts at once are answered with one JSON object, which maps the id of each interrupt to a value.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any, cast
from uuid import NAMESPACE_URL, UUID, uuid5

from a2a.helpers import new_data_part
from a2a.types import Artifact, Part, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import add_usage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
from langgraph.config import get_config
from langgraph.errors import GraphRecursionError, is_invalid_resume
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt

from ..errors import ConfigError
from ..execution.agents.journal import CURRENT as JOURNAL
from ..execution.agents.turn import Turn
from ..lifecycle.outcomes import NEEDS_INPUT
from ..lifecycle.questions import Question, whole_numbers
from .conversation import EarlyStops, OpenSteps, completed_status, data_text
from .langgraph_checkpoints import TurnCheckpointSaver, TurnProgress
from .usage import Usage

Graph = CompiledStateGraph[Any, Any, Any, Any]
Builder = StateGraph[Any, Any, Any, Any]
Event = TaskArtifactUpdateEvent | TaskStatusUpdateEvent

MESSAGES = "messages"
"""Channel with the conversation in a graph's state."""

MEMORY = "memory"
"""Key of the last checkpoint in the session."""

DONE = frozenset({"end_turn", "stop", "stop_sequence", "tool_calls", "tool_use", "function_call", "pause_turn"})
"""Finish reasons of a model that is done, in lower case. Providers may define further reasons."""

RECURSION_LIMIT = "recursion_limit"
"""Stop reason of a graph that reached its limit of super-steps. This stop reason always fails the task."""


def langgraph_agent(
    graph: Graph | Builder, *, fail_on: Collection[str] = ()
) -> Callable[[Turn], AsyncGenerator[Event, None]]:
    """Return a function agent that runs a LangGraph graph whose state has ``messages``.

    The text of each model message is streamed as an artifact. Values that nodes pass to the stream writer become status
    messages. The graph's last checkpoint is stored in the session when a turn completes. Within a turn, each super-step
    is recorded, so that no later run of the turn executes a finished node again. A cancellation takes effect at the
    next await of a node.

    If the last model message stopped early, for example with the finish reason "length" or "content_filter", the turn
    ends in COMPLETED with ``stopReason`` in its metadata. For the reasons in `fail_on`, the turn ends in FAILED.

    Args:
        graph: `StateGraph`, or the result of its ``compile()`` without a checkpointer.
        fail_on: Stop reasons that fail the task.

    Raises:
        ConfigError: The graph cannot run as an agent, or `fail_on` is not a collection of strings.
    """
    early_stops = EarlyStops(fail_on, None)
    compiled_graph = _compile(graph)

    async def answer(turn: Turn) -> AsyncGenerator[Event, None]:
        run = _GraphRun(compiled_graph, turn)
        try:
            async with aclosing(run.stream()) as events:
                async for event in events:
                    yield event
        except GraphRecursionError:
            yield EarlyStops([RECURSION_LIMIT], None).event(RECURSION_LIMIT, turn.task_id, turn.context_id)
            return
        turn.stop_if_asking()
        turn.session.state[MEMORY] = run.saver.snapshot()
        yield _end(turn, early_stops, run.last_message, run.saver.progress)

    return answer


class _GraphRun:
    """Execution of a graph in one run of a turn."""

    def __init__(self, graph: Graph, turn: Turn) -> None:
        journal = JOURNAL.get(None)
        self._turn = turn
        self.saver = TurnCheckpointSaver(journal, turn.context_id, count_answers=lambda: turn.question_count)
        if journal is not None:
            journal.scope = _current_task
        if self.saver.continues_turn:
            turn.replay_questions(self.saver.progress.answer_count)
        else:
            self.saver.restore(turn.session.state.get(MEMORY, {}))
        self._graph = graph.copy({"checkpointer": self.saver})
        self._config = RunnableConfig(
            configurable={"thread_id": turn.context_id}, callbacks=[_CallCallbacks(self.saver.progress)]
        )
        self._artifacts = _MessageArtifacts()
        self.last_message: AIMessage | None = None

    async def stream(self) -> AsyncGenerator[Event, None]:
        """Yield the graph's events until the turn is complete. Exceptions of the graph and of `Turn.ask` propagate."""
        command: Any = None
        if not self.saver.continues_turn:
            command = {MESSAGES: [_human_message(self._turn)]}
        reason = ""
        while True:
            if command is None and (interrupts := await self._interrupts()):
                command = Command(resume=await self._ask(interrupts, reason))
            reason = ""
            try:
                async with aclosing(self._stream_once(command)) as events:
                    async for event in events:
                        yield event
            except Exception as error:
                if not is_invalid_resume(error):
                    raise
                reason = f"The answer was not accepted. {error}"
            self._turn.stop_if_asking()
            command = None
            if not await self._interrupts():
                break
        for event in self._artifacts.complete():
            yield event
        async for event in self._send_last_message():
            yield event

    async def _stream_once(self, command: Any) -> AsyncGenerator[Event, None]:
        parts = self._graph.astream(
            command, self._config, stream_mode=["messages", "custom"], subgraphs=True, durability="sync"
        )
        async with aclosing(cast(AsyncGenerator[Any, None], parts)) as chunks:
            async for _, mode, chunk in chunks:
                if mode == "custom":
                    await _send_custom(self._turn, chunk)
                    continue
                message, metadata = chunk
                if isinstance(message, AIMessage):
                    for event in self._artifacts.add(message, metadata):
                        yield event

    async def _interrupts(self) -> Sequence[Interrupt[Any]]:
        return (await self._graph.aget_state(self._config)).interrupts

    async def _ask(self, interrupts: Sequence[Interrupt[Any]], reason: str) -> dict[str, Any]:
        """Return the client's answers by the ids of the interrupts.

        If a run is lost after the answer, the next run asks at the same position and receives the same answer.

        Raises:
            InputRequired: The client has not answered yet.
        """
        turn, question_counts = self._turn, self.saver.progress.asked
        key = ",".join(sorted(interrupt.id for interrupt in interrupts))
        if reason:
            del question_counts[key]
        turn.replay_questions(question_counts.setdefault(key, turn.question_count))
        await self.saver.save()
        if len(interrupts) > 1:
            questions = {
                interrupt.id: Question(_text_of(interrupt.value), interrupt.response_schema) for interrupt in interrupts
            }
            return await turn.ask_all(questions, reason)
        [interrupt] = interrupts
        text, schema = _text_of(interrupt.value), interrupt.response_schema
        parts = [] if isinstance(interrupt.value, str | None) else [_interrupt_part(interrupt)]
        text = "\n".join(line for line in (reason, text) if line)
        if schema is not None:
            return {interrupt.id: await turn.ask(text, parts=parts, schema=schema)}
        answer = await turn.ask(text, parts=parts)
        return {interrupt.id: _value_of(answer.message.parts, str(answer))}

    async def _send_last_message(self) -> AsyncGenerator[Event, None]:
        """Set `last_message`, and send the message unless a run of the turn has already sent it."""
        messages = (await self._graph.aget_state(self._config)).values.get(MESSAGES, [])
        last = messages[-1] if messages else None
        if not isinstance(last, AIMessage):
            return
        self.last_message = last
        texts = ["".join(part.text for part in artifact.parts) for artifact in self._turn.task.artifacts]
        if last.text and not self._artifacts.has(last) and last.text not in texts:
            artifact = Artifact(
                artifact_id=_id_of("last", last.id or ""), name="response", parts=[Part(text=last.text)]
            )
            yield TaskArtifactUpdateEvent(artifact=artifact, last_chunk=True)


class _MessageArtifacts:
    """Artifacts of model messages, one for each message.

    The artifact id is derived from the node's task and the position of the message. A repeated execution of a node
    replaces the node's artifacts.
    """

    def __init__(self) -> None:
        self._ids: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, int] = {}
        self._open: dict[str, str] = {}

    def has(self, message: BaseMessage) -> bool:
        """Return True if the message has an artifact."""
        return message.id in self._ids

    def add(self, message: AIMessage, metadata: dict[str, Any]) -> list[TaskArtifactUpdateEvent]:
        """Return the events for a message or the next chunk of a message."""
        key = message.id or ""
        is_last = not isinstance(message, AIMessageChunk) or message.chunk_position == "last"
        is_new = key not in self._ids
        if not message.text and (is_new or not is_last):
            return []
        if is_new:
            task = str(metadata.get("checkpoint_ns") or metadata.get("langgraph_checkpoint_ns"))
            self._counts[task] = number = self._counts.get(task, 0) + 1
            self._ids[key] = _id_of(task, str(number)), str(metadata.get("langgraph_node", "response"))
        artifact_id, name = self._ids[key]
        if is_last:
            self._open.pop(key, None)
        else:
            self._open[key] = artifact_id
        artifact = Artifact(artifact_id=artifact_id, name=name, parts=[Part(text=message.text)])
        return [TaskArtifactUpdateEvent(artifact=artifact, append=not is_new, last_chunk=is_last)]

    def complete(self) -> list[TaskArtifactUpdateEvent]:
        """Return the events that complete the artifacts of messages without a last chunk."""
        events = [
            TaskArtifactUpdateEvent(
                artifact=Artifact(artifact_id=artifact_id, parts=[Part(text="")]), append=True, last_chunk=True
            )
            for artifact_id in self._open.values()
        ]
        self._open.clear()
        return events


class _CallCallbacks(BaseCallbackHandler):
    """Callbacks that report the graph's model and tool calls as execution steps, and count their tokens."""

    run_inline = True

    def __init__(self, progress: TurnProgress) -> None:
        self._progress = progress
        self._steps = OpenSteps()

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        metadata = kwargs.get("metadata") or {}
        self._steps.model_call(run_id, str(metadata.get("ls_model_name") or ""))

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.on_chat_model_start(serialized, prompts, run_id=run_id, **kwargs)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        self._steps.end(run_id)
        for generation in response.generations[0] if response.generations else []:
            message = generation.message if isinstance(generation, ChatGeneration) else None
            if isinstance(message, AIMessage) and message.usage_metadata is not None:
                model, usage = str(message.response_metadata.get("model_name", "")), self._progress.usage
                usage[model] = add_usage(usage.get(model), message.usage_metadata)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._steps.end(run_id)

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        self._steps.tool_call(run_id, str(kwargs.get("name") or (serialized or {}).get("name") or "tool"))

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._steps.end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._steps.end(run_id)


def _compile(graph: Graph | Builder) -> Graph:
    """Compile the graph if necessary, and check that it can run as an agent.

    Raises:
        ConfigError: The graph cannot run as an agent.
    """
    compiled_graph = graph.compile() if isinstance(graph, StateGraph) else graph
    if not isinstance(compiled_graph, CompiledStateGraph):
        raise ConfigError(f"graph = {graph!r}: a StateGraph, or the result of its compile()")
    graphs: dict[str, Pregel[Any, Any, Any, Any]] = {"the graph": compiled_graph}
    for name, subgraph in compiled_graph.get_subgraphs(recurse=True):
        if isinstance(subgraph, Pregel):
            graphs[f"the subgraph {name!r}"] = subgraph
    for name, member in graphs.items():
        if member.checkpointer is not None and (member is compiled_graph or not isinstance(member.checkpointer, bool)):
            raise ConfigError(
                f"{name} has a checkpointer: compile it without one, because its checkpoints are stored with the task "
                "and its context"
            )
        if member.interrupt_before_nodes or member.interrupt_after_nodes:
            raise ConfigError(
                f"{name} has interrupt_before or interrupt_after, which ask no question: call interrupt(value) in the "
                "node"
            )
        for channel, spec in member.channels.items():
            if isinstance(spec, DeltaChannel):
                raise ConfigError(
                    f"{name}: {channel!r} is a DeltaChannel, which needs all checkpoints of a conversation: annotate "
                    "it with a reducer function instead"
                )
    _require_messages(compiled_graph)
    return compiled_graph


def _require_messages(graph: Graph) -> None:
    inputs = graph.builder.schemas[graph.builder.input_schema]
    if not isinstance(inputs.get(MESSAGES), BinaryOperatorAggregate) or MESSAGES not in graph.channels:
        raise ConfigError(
            "the graph's state has no messages: derive the state from langgraph.graph.MessagesState, or annotate "
            "messages: Annotated[list[AnyMessage], add_messages] in the state and in the input schema"
        )


def _end(
    turn: Turn, early_stops: EarlyStops, last_message: AIMessage | None, progress: TurnProgress
) -> TaskStatusUpdateEvent:
    """Return the final status of a turn, with its stop reason and token usage."""
    metadata = last_message.response_metadata if last_message is not None else {}
    reason = str(metadata.get("finish_reason") or metadata.get("stop_reason") or "")
    if reason and reason.lower() not in DONE:
        end = early_stops.event(reason, turn.task_id, turn.context_id)
    else:
        end = completed_status(turn.task_id, turn.context_id)
    usage = Usage()
    for model, tokens in progress.usage.items():
        inputs, outputs = tokens.get("input_token_details", {}), tokens.get("output_token_details", {})
        usage.add(
            model,
            inputs=tokens["input_tokens"],
            outputs=tokens["output_tokens"],
            cache_reads=inputs.get("cache_read"),
            cache_writes=inputs.get("cache_creation"),
            reasoning=outputs.get("reasoning"),
        )
    return usage.apply(end)


async def _send_custom(turn: Turn, value: Any) -> None:
    """Send a value from the stream writer as a status message: a string as text, and any other value as data."""
    if isinstance(value, str):
        await turn.say(value)
    elif isinstance(value, Part):
        await turn.say(parts=[value])
    else:
        await turn.say(parts=[new_data_part(json.loads(json.dumps(value, default=str)))])


def _current_task() -> str:
    """Return the namespace of the node's task that makes the current call, or "" outside nodes. The namespace is the
    same in each run."""
    try:
        return str(get_config().get("configurable", {}).get("checkpoint_ns") or "")
    except RuntimeError:  # not in a node
        return ""


def _id_of(*names: str) -> str:
    return str(uuid5(NAMESPACE_URL, "/".join(names)))


def _text_of(value: Any) -> str:
    """Return the value of an interrupt as the text of a question."""
    if isinstance(value, dict):
        texts = [value[key] for key in ("question", "message", "description") if isinstance(value.get(key), str)]
        value = texts[0] if texts else value
    if isinstance(value, str):
        return value or NEEDS_INPUT
    return json.dumps(value, ensure_ascii=False, default=str) if value else NEEDS_INPUT


def _interrupt_part(interrupt: Interrupt[Any]) -> Part:
    value = json.loads(json.dumps(interrupt.value, default=str))
    return new_data_part({"interrupts": [{"id": interrupt.id, "value": value}]})


def _value_of(parts: Sequence[Part], text: str) -> Any:
    """Return the value of the data part if a message has one data part and no text. Otherwise, return the text."""
    data = [whole_numbers(MessageToDict(part.data)) for part in parts if part.HasField("data")]
    return data[0] if len(data) == 1 and not text else text


def _human_message(turn: Turn) -> HumanMessage:
    """Convert the client's message to a LangChain message."""
    blocks: list[str | dict[str, Any]] = []
    for part in turn.parts:
        kind = part.media_type.partition("/")[0]
        block: dict[str, Any] = {"type": kind if kind in ("image", "audio", "video") else "file"}
        if part.media_type:
            block["mime_type"] = part.media_type
        match part.WhichOneof("content"):
            case "text":
                blocks.append({"type": "text", "text": part.text})
            case "raw":
                block.setdefault("mime_type", "application/octet-stream")
                blocks.append({**block, "base64": b64encode(part.raw).decode()})
            case "url":
                blocks.append({**block, "url": part.url})
            case "data":
                text = data_text(part)
                blocks.append({"type": "text", "text": text})
    if len(blocks) == 1 and isinstance(blocks[0], dict) and blocks[0]["type"] == "text":
        return HumanMessage(blocks[0]["text"])
    return HumanMessage(blocks)
