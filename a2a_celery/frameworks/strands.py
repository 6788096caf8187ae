"""Adapter for strands agents. An interrupt becomes a question to the client. Any worker can continue the agent with the
answer.

Questions and answers have the format of strands' own A2A executor, which needs a version of a2a-sdk before 0.4. The
status message has a data part ``{"interrupts": [{"interruptId", "name", "reason"}, …]}``. The answer has one data part
``{"interruptResponse": {"interruptId", "response"}}`` for each interrupt. A single open interrupt can also be answered
with text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from typing import Any, cast, get_args

from pydantic_core import to_jsonable_python
from strands import Agent, Snapshot
from strands.agent import AgentResult
from strands.middleware import (
    ExecuteToolContext,
    ExecuteToolStage,
    InvokeModelContext,
    InvokeModelStage,
    ModelStopReason,
    ToolResultEvent,
    TypedEvent,
)
from strands.types.content import ContentBlock
from strands.types.event_loop import StopReason
from strands.types.exceptions import MaxTokensReachedException
from strands.types.interrupt import InterruptResponseContent
from strands.types.session import decode_bytes_values, encode_bytes_values

from ..agents import FrameworkAgent
from ..errors import Failed, InputRequired, Rejected
from ..execution.agents.adapters import Replacement
from ..execution.agents.turn import Turn
from ..lifecycle.events import data_part
from ..lifecycle.outcomes import NEEDS_INPUT
from .conversation import Conversation, EarlyStops, OpenActivities, data_of, data_text
from .recorded_calls import MODEL, TOOL, RecordedCall
from .usage import Usage

Prompt = list[ContentBlock] | list[InterruptResponseContent]
Events = AsyncGenerator[TypedEvent, None]

EARLY = frozenset(get_args(StopReason)) - {
    "cancelled",
    "checkpoint",
    "end_turn",
    "interrupt",
    "stop_sequence",
    "tool_use",
}
"""strands stop reasons for agents that stopped early: limits on tokens and turns, and content filters."""

ANSWER = "interruptResponse"
NOTHING_WAITS = "The question is no longer open."
UNREADABLE = "This agent reads text and data parts."


def strands_agent(
    make: Callable[[Turn], Agent], *, fail_on: Collection[str] = (), durable: bool = True
) -> FrameworkAgent:
    """Return a function agent that runs a strands agent. Register it with ``session=True``.

    The model's text is streamed and redacted, and a structured output is sent as data at the end. Messages, state and
    open interrupts are stored in the session. A cancellation stops the agent at its next await. Tools in threads are
    notified through their ``cancel_signal``. If the agent stops early (`EARLY`), the turn ends in COMPLETED with
    ``stopReason`` in its metadata. For the reasons in `fail_on`, the turn ends in FAILED. If the agent was cancelled
    within strands, the turn ends in CANCELED.

    Args:
        make: Function that returns a new agent without a session manager. The function is called for every run, because
            a strands agent has only one conversation and one invocation at a time.
        fail_on: Stop reasons that fail the task.
        durable: True to record the results of model and tool calls, so that no later run of a turn repeats the calls.
            Use False if later calls depend on in-memory side effects of the tools.

    Raises:
        ConfigError: `fail_on` is a string, or contains a reason other than those in `EARLY`.
    """
    early_stops = EarlyStops(fail_on, EARLY)

    async def answer(turn: Turn) -> AsyncGenerator[Any, None]:
        conversation = Conversation(turn)
        agent = make(turn)
        if conversation.memory is not None:
            agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(conversation.memory)))
        _CallMiddleware(turn, durable, conversation.usage).add_to(agent)
        prompt = _answers(turn, conversation.questions) if conversation.questions else _prompt(turn)
        result: AgentResult | None = None
        stop_reason: str | None = None
        texts = _ResponseTexts()
        try:
            async with aclosing(cast(AsyncGenerator[dict[str, Any], None], agent.stream_async(prompt))) as events:
                async for event in events:
                    for text in texts.add(event):
                        yield text
                    result = event.get("result", result)
        except MaxTokensReachedException:
            stop_reason = "max_tokens"
        finally:
            agent.cancel()  # the thread of a tool may still be running
        turn.stop_if_asking()
        stop_reason = result.stop_reason if result is not None else stop_reason
        if stop_reason == "cancelled":
            raise asyncio.CancelledError
        memory = encode_bytes_values(agent.take_snapshot(preset="session").to_dict())
        if result is None or stop_reason != "interrupt":
            conversation.go_on(memory)
            if result is not None and result.structured_output is not None:
                yield to_jsonable_python(result.structured_output)
            early = stop_reason if stop_reason in EARLY else None
            for end in early_stops.final_status(turn, early, conversation.usage):
                yield end
            return
        raise _pause(conversation, memory, result)

    return answer


class _ResponseTexts:
    """Text of the model's responses, as chunks for the client. Text that a guardrail redacts is replaced."""

    def __init__(self) -> None:
        self._accepted_text = ""
        self._text = ""

    def add(self, event: dict[str, Any]) -> Iterator[str | Replacement]:
        """Yield the chunks that follow an event of the agent."""
        chunk = event.get("event", {})
        if "messageStart" in chunk:
            self._accepted_text, self._text = self._accepted_text + self._text, ""
        if "data" in event:
            self._text += event["data"]
            yield event["data"]
        redaction = chunk.get("redactContent", {}).get("redactAssistantContentMessage")
        if redaction is not None:
            self._text = redaction
            yield Replacement(self._accepted_text + self._text)


class _CallMiddleware:
    """Middleware that reports the agent's calls as activities, records their results, and counts tokens.

    The result of a tool call is not recorded if a later run needs a side effect of the call: a question that the tool
    asked, or a change to the agent's state, messages or tools.
    """

    def __init__(self, turn: Turn, durable: bool, usage: Usage) -> None:
        self._turn = turn
        self._durable = durable
        self._usage = usage

    def add_to(self, agent: Agent) -> None:
        """Add the middleware to an agent."""
        agent.add_middleware(InvokeModelStage, self._ask_model)
        agent.add_middleware(ExecuteToolStage, self._execute_tool)

    async def _ask_model(
        self, context: InvokeModelContext, call_next: Callable[[InvokeModelContext], Events]
    ) -> Events:
        config = context.model.get_config()
        model = str((isinstance(config, dict) and config.get("model_id")) or "")
        self._turn.stop_if_asking()  # strands drops a BaseException and would call the model without a result
        is_recorded = self._durable and not context.model.stateful
        call = RecordedCall.begin(MODEL, MODEL, _request(context)) if is_recorded else None
        if call is not None and call.result is not None:
            for recorded_event in _recorded_response(call.result):
                self._count(model, recorded_event)
                yield recorded_event
            return
        activities = OpenActivities()
        activities.model_call(self, model)
        try:
            async for event in call_next(context):
                self._count(model, event)
                if call is not None and isinstance(event, ModelStopReason) and event.stop_reason != "cancelled":
                    await call.finish(_dumped_response(event))
                yield event
        except Exception as error:
            if call is not None:
                call.fail(error)
            raise
        finally:
            activities.end(self)

    def _count(self, model: str, event: TypedEvent) -> None:
        if isinstance(event, ModelStopReason):
            tokens = event.usage
            self._usage.add(
                model,
                inputs=tokens["inputTokens"],
                outputs=tokens["outputTokens"],
                cache_reads=tokens.get("cacheReadInputTokens"),
                cache_writes=tokens.get("cacheWriteInputTokens"),
            )

    async def _execute_tool(
        self, context: ExecuteToolContext, call_next: Callable[[ExecuteToolContext], Events]
    ) -> Events:
        tool, tool_use = context.tool, context.tool_use
        # a structured output is stored in the memory of the agent
        is_recorded = self._durable and tool is not None and tool.tool_type != "structured_output"
        call = RecordedCall.begin(TOOL, tool_use["name"], tool_use["input"]) if is_recorded else None
        if call is None:
            events = call_next(context)
        elif call.result is None:
            events = self._record(call, context, call_next(context))
        else:
            yield _loaded_result(call, tool_use["toolUseId"])
            return
        activities = OpenActivities()
        activities.tool_call(self, tool_use["name"])
        try:
            async for event in events:
                yield event
        finally:
            activities.end(self)

    async def _record(self, call: RecordedCall, context: ExecuteToolContext, events: Events) -> Events:
        """Yield the events of a tool call, and record the result before yielding it."""
        state, is_finished = self._state(context), False
        try:
            while True:
                with call.executing():  # not while the consumer handles an event
                    event = await anext(events, None)
                if event is None:
                    return
                if isinstance(event, ToolResultEvent) and self._state(context) == state:
                    is_finished = True
                    await call.finish(_dumped_result(call, event))
                yield event
        finally:
            if not is_finished:
                call.abandon()

    def _state(self, context: ExecuteToolContext) -> tuple[Any, ...]:
        """Return the state that a tool may change in addition to returning a result."""
        agent = cast(Agent, context.agent)
        states = [agent.state.get(), context.invocation_state.get("request_state"), self._turn.session.state]
        tools = [*agent.tool_registry.registry, *agent.tool_registry.dynamic_tools]
        return self._turn.question_count, json.dumps(states, default=str), len(agent.messages), tools


def _request(context: InvokeModelContext) -> list[Any]:
    """Return the data that identifies one of several parallel model calls."""
    return [[message["role"], message["content"]] for message in context.messages]


def _dumped_response(event: ModelStopReason) -> dict[str, Any]:
    response = {"stop_reason": event.stop_reason, "usage": event.usage, "metrics": event.metrics}
    content: dict[str, Any] = encode_bytes_values(response | {"message": event.message})
    return content


def _recorded_response(response: dict[str, Any]) -> Iterator[TypedEvent]:
    """Yield the text of a recorded response as one chunk, and then the complete response."""
    content = decode_bytes_values(response)
    blocks = content["message"]["content"]
    citations = [
        part for block in blocks if "citationsContent" in block for part in block["citationsContent"]["content"]
    ]
    text = "".join(block["text"] for block in [*blocks, *citations] if "text" in block)
    if text:
        yield TypedEvent({"data": text})
    yield ModelStopReason(**content)


def _dumped_result(call: RecordedCall, event: ToolResultEvent) -> dict[str, Any]:
    error = event.exception
    failure = None if error is None else call.dump_failure(error)
    return {"result": encode_bytes_values(event.tool_result), "failure": failure}


def _loaded_result(call: RecordedCall, tool_use_id: str) -> ToolResultEvent:
    """Return the recorded result of a tool call, with the id that the model assigned to the call in this run."""
    record = cast(dict[str, Any], call.result)
    failure = record["failure"]
    result = decode_bytes_values(record["result"]) | {"toolUseId": tool_use_id}
    return ToolResultEvent(result, exception=None if failure is None else call.load_failure(failure))


def _question(interrupt: Any) -> dict[str, Any]:
    reason = json.loads(json.dumps(interrupt.reason, default=str))
    return {"interruptId": interrupt.id, "name": interrupt.name, "reason": reason}


def _pause(conversation: Conversation, memory: dict[str, Any], result: AgentResult) -> InputRequired:
    """Store the state of the agent, and return the question about its interrupts."""
    questions = [_question(interrupt) for interrupt in result.interrupts or []]
    conversation.pause(memory, questions)
    return _asking(questions)


def _asking(questions: list[dict[str, Any]], problem: str = "") -> InputRequired:
    lines = [problem] if problem else []
    for question in questions:
        reason = question["reason"]
        text = reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False)
        lines.append(f"{question['name']}: {text}" if reason else question["name"])
    return InputRequired("\n".join(lines) or NEEDS_INPUT, parts=[data_part({"interrupts": questions}, "")])


def _answers(turn: Turn, questions: list[dict[str, Any]]) -> list[InterruptResponseContent]:
    """Return the client's answers to `questions`. Strands repeats the questions that the message does not answer.

    Raises:
        InputRequired: The message answers no question, or answers an unknown question.
    """
    open_ids = [item["interruptId"] for item in questions]
    responses = [data[ANSWER] for data in data_of(turn.message) if isinstance(data.get(ANSWER), dict)]
    if not responses and len(open_ids) == 1 and turn.text:
        responses = [{"interruptId": open_ids[0], "response": turn.text}]
    if not responses or any(item.get("interruptId") not in open_ids or "response" not in item for item in responses):
        example = {ANSWER: {"interruptId": open_ids[0], "response": "…"}}
        raise _asking(questions, f"Answer each with a data part like {json.dumps(example, ensure_ascii=False)}.")
    return [
        {"interruptResponse": {"interruptId": item["interruptId"], "response": item["response"]}} for item in responses
    ]


def _prompt(turn: Turn) -> list[ContentBlock]:
    if any(ANSWER in data for data in data_of(turn.message)):
        raise Failed(NOTHING_WAITS)
    blocks: list[ContentBlock] = []
    for part in turn.parts:
        match part.WhichOneof("content"):
            case "text":
                blocks.append({"text": part.text})
            case "data":
                blocks.append({"text": data_text(part)})
            case _:
                raise Rejected(UNREADABLE)
    return blocks
