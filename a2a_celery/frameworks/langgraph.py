"""Adapter for LangGraph graphs. A graph continues at its last super-step on any worker.

`interrupt(value)` becomes a question to the client. A string becomes the text of the status message. Any other value is
sent in a data part ``{"interrupts": [{"id", "value"}]}``. The answer's text or data becomes the result of `interrupt`.
Several interrupts at once are answered with one JSON object, which maps the id of each interrupt to a value.

The messages of the graph become artifacts; see ``langgraph_messages``.
"""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from inspect import iscoroutinefunction
from itertools import takewhile
from typing import Any, cast
from uuid import UUID

from a2a.types import Part, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import add_usage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
from langgraph.config import get_config
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphRecursionError, is_invalid_resume
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt

from ..errors import ConfigError
from ..execution.agents.turn import Turn
from ..features.steps.journal import current_journal
from ..lifecycle.events import data_part
from ..lifecycle.files import file_name, normalized_file
from .conversation import EarlyStops, OpenActivities, completed_status, data_text
from .langgraph_checkpoints import TurnCheckpointSaver, TurnProgress
from .langgraph_interrupts import InterruptQuestion
from .langgraph_messages import STRUCTURED_RESPONSE, MessageArtifacts, NodeAttempts, task_of, unsendable_blocks
from .usage import Usage

logger = logging.getLogger(__name__)

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
    graph: Graph | Builder, *, context: Callable[[Turn], Any] | None = None, fail_on: Collection[str] = ()
) -> Callable[[Turn], AsyncGenerator[Event, None]]:
    """Return a function agent that runs a LangGraph graph whose state has ``messages``.

    The text of each model message is streamed as an artifact. If a later node replaces or removes the message, so is
    the content of the artifact. A ``structured_response`` in the state becomes a data part. Values that nodes pass to
    the stream writer become status messages. The graph's last checkpoint is stored in the session when a turn
    completes. Within a turn, each super-step is recorded, so that no later run of the turn executes a finished node
    again. A cancellation takes effect at the next await of a node.

    If the last model message stopped early, for example with the finish reason "length" or "content_filter", the turn
    ends in COMPLETED with ``stopReason`` in its metadata. For the reasons in `fail_on`, the turn ends in FAILED.

    Args:
        graph: `StateGraph`, or the result of its ``compile()`` without a checkpointer.
        context: Function that returns the context of a run, that is, ``runtime.context`` in the graph's nodes. Required
            if the graph or a subgraph has a ``context_schema``.
        fail_on: Stop reasons that fail the task.

    Raises:
        ConfigError: The graph cannot run as an agent, `context` is missing, or `fail_on` is not a collection of
            strings.
    """
    early_stops = EarlyStops(fail_on, None)
    compiled_graph = _compile(graph, context)

    async def answer(turn: Turn) -> AsyncGenerator[Event, None]:
        run = _GraphRun(compiled_graph, turn, None if context is None else context(turn))
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

    def __init__(self, graph: Graph, turn: Turn, context: Any) -> None:
        journal = current_journal()
        self._turn = turn
        self._context = context
        self.saver = TurnCheckpointSaver(journal, turn.context_id, count_answers=lambda: turn.question_count)
        if journal is not None:
            journal.scope = _current_task
        if self.saver.continues_turn:
            turn.replay_questions(self.saver.progress.answer_count)
        else:
            self.saver.restore(turn.session.state.get(MEMORY, {}))
            self.saver.progress.response_version = self._response_version()
        self._graph = graph.copy({"checkpointer": self.saver})
        callbacks = _CallCallbacks(self.saver.progress)
        self._config = RunnableConfig(configurable={"thread_id": turn.context_id}, callbacks=[callbacks])
        earlier_artifacts = turn.task.artifacts if self.saver.continues_turn else ()
        self._artifacts = MessageArtifacts(self.saver.progress, earlier_artifacts, callbacks.attempts)
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
            except GraphRecursionError:
                raise
            except Exception as error:
                if not is_invalid_resume(error):
                    for event in self._artifacts.withdraw_refused():
                        yield event
                    raise
                reason = f"The answer was not accepted. {error}"
            self._turn.stop_if_asking()
            command = None
            if not await self._interrupts():
                break
        for event in await self._finish():
            yield event

    async def _stream_once(self, command: Any) -> AsyncGenerator[Event, None]:
        parts = self._graph.astream(
            command,
            self._config,
            context=self._context,
            stream_mode=["messages", "values", "custom"],
            output_keys=self._graph.stream_channels_asis,
            subgraphs=True,
            durability="sync",
        )
        async with aclosing(cast(AsyncGenerator[Any, None], parts)) as chunks:
            async for namespace, mode, chunk in chunks:
                events: Sequence[Event] = ()
                if mode == "custom":
                    await _send_custom(self._turn, chunk)
                elif mode == "values":
                    if isinstance(chunk, dict) and isinstance(messages := chunk.get(MESSAGES), list):
                        events = self._artifacts.update(namespace, messages)
                elif isinstance(chunk[0], AIMessage):
                    events = self._artifacts.add(*chunk)
                for event in events:
                    yield event
        for event in self._artifacts.complete():
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
        questions = [InterruptQuestion(interrupt) for interrupt in interrupts]
        if len(questions) > 1:
            answers = await turn.ask_all({question.id: question.with_others() for question in questions}, reason)
            return {question.id: question.result(answers[question.id]) for question in questions}
        [question] = questions
        text = "\n".join(line for line in (reason, question.text) if line)
        answer = await turn.ask(text, parts=question.parts, schema=question.schema)
        return {question.id: question.result(answer)}

    async def _finish(self) -> Sequence[Event]:
        """Set `last_message`, and return the artifacts that no node has sent."""
        values = (await self._graph.aget_state(self._config)).values
        messages, version = values.get(MESSAGES, []), self._response_version()
        is_set = version != self.saver.progress.response_version
        response = values.get(STRUCTURED_RESPONSE) if is_set else None
        events = self._artifacts.finish(messages, response, version)
        if messages and isinstance(messages[-1], AIMessage):
            self.last_message = messages[-1]
        for message in takewhile(lambda message: not isinstance(message, HumanMessage), reversed(messages)):
            if isinstance(message, AIMessage) and (blocks := unsendable_blocks(message)):
                text = "task %s: content of message %s is not sent: %s"
                logger.warning(text, self._turn.task_id, message.id, ", ".join(blocks))
        if not self._artifacts.has_content:
            logger.warning("task %s: the graph ended without a message for the client", self._turn.task_id)
        return events

    def _response_version(self) -> str:
        """Return the version of the structured response in the newest checkpoint, or "" if there is none."""
        return self.saver.channel_version(self._turn.context_id, STRUCTURED_RESPONSE)


class _CallCallbacks(BaseCallbackHandler):
    """Callbacks that report the graph's model and tool calls as activities, and count their tokens."""

    run_inline = True

    def __init__(self, progress: TurnProgress) -> None:
        self._progress = progress
        self._activities = OpenActivities()
        self._tasks: dict[UUID, str] = {}
        """Tasks of the nodes and model calls that are executed."""
        self._hidden_calls: set[UUID] = set()
        self.attempts = NodeAttempts()
        """Attempts of the nodes."""

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, metadata: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if metadata and kwargs.get("name") == metadata.get("langgraph_node"):
            self._tasks[run_id] = task = task_of(metadata)
            self.attempts.tasks.add(task)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._tasks.pop(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if task := self._tasks.pop(run_id, ""):
            self.attempts.add_failure(task)

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        metadata = kwargs.get("metadata") or {}
        self._activities.model_call(run_id, str(metadata.get("ls_model_name") or ""))
        self._tasks[run_id] = task_of(metadata)
        if TAG_NOSTREAM in (kwargs.get("tags") or ()):
            self._hidden_calls.add(run_id)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.on_chat_model_start(serialized, prompts, run_id=run_id, **kwargs)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        if isinstance(chunk, ChatGenerationChunk) and chunk.message.id and run_id in self._tasks:
            self.attempts.add_message(chunk.message.id, self._tasks[run_id])

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        is_hidden = run_id in self._hidden_calls
        for generation in response.generations[0] if response.generations else []:
            message = generation.message if isinstance(generation, ChatGeneration) else None
            if not isinstance(message, AIMessage):
                continue
            if message.id and run_id in self._tasks:
                self.attempts.add_message(message.id, self._tasks[run_id])
                self._progress.hidden += [message.id] if is_hidden else []
            if message.usage_metadata is not None:
                model, usage = str(message.response_metadata.get("model_name", "")), self._progress.usage
                usage[model] = add_usage(usage.get(model), message.usage_metadata)
        self._end_call(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end_call(run_id)

    def _end_call(self, run_id: UUID) -> None:
        self._activities.end(run_id)
        self._tasks.pop(run_id, None)
        self._hidden_calls.discard(run_id)

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        self._activities.tool_call(run_id, str(kwargs.get("name") or (serialized or {}).get("name") or "tool"))

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._activities.end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._activities.end(run_id)


def _compile(graph: Graph | Builder, context: Callable[[Turn], Any] | None) -> Graph:
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
    if context is not None and (not callable(context) or iscoroutinefunction(context)):
        raise ConfigError(f"context = {context!r}: a plain function that returns the context of a turn")
    for name, member in graphs.items():
        if member.context_schema is not None and context is None:
            schema = getattr(member.context_schema, "__qualname__", member.context_schema)
            raise ConfigError(
                f"{name} has context_schema = {schema}: pass context, a function that returns the context of a turn: "
                "langgraph_agent(graph, context=lambda turn: …)"
            )
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
        await turn.say(parts=[data_part(json.loads(json.dumps(value, default=str)), media_type="")])


def _current_task() -> str:
    """Return the namespace of the node's task that makes the current call, or "" outside nodes. The namespace is the
    same in each run."""
    try:
        return str(get_config().get("configurable", {}).get("checkpoint_ns") or "")
    except RuntimeError:  # not in a node
        return ""


def _human_message(turn: Turn) -> HumanMessage:
    """Convert the client's message to a LangChain message."""
    blocks: list[str | dict[str, Any]] = []
    for part in map(normalized_file, turn.parts):
        kind = part.media_type.partition("/")[0]
        block: dict[str, Any] = {"type": kind if kind in ("image", "audio", "video") else "file"}
        if part.media_type:
            block["mime_type"] = part.media_type
        if part.filename:
            block["filename"] = part.filename
        match part.WhichOneof("content"):
            case "text":
                blocks.append({"type": "text", "text": part.text})
            case "raw":
                blocks.append({"filename": file_name(part), **block, "base64": b64encode(part.raw).decode()})
            case "url":
                blocks.append({**block, "url": part.url})
            case "data":
                text = data_text(part)
                blocks.append({"type": "text", "text": text})
    if len(blocks) == 1 and isinstance(blocks[0], dict) and blocks[0]["type"] == "text":
        return HumanMessage(blocks[0]["text"])
    return HumanMessage(blocks)
