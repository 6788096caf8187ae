"""Adapter for agents of strands-agents. An interrupt becomes a question to the client, which can be answered on any
worker.

Questions and answers have the format of strands' own A2A executor, which needs a version of a2a-sdk before 0.4. The
status message has a data part ``{"interrupts": [{"interruptId", "name", "reason"}, …]}``. The answer has one data part
``{"interruptResponse": {"interruptId", "response"}}`` for each. A single open interrupt can also be answered with a
text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from typing import Any, cast, get_args

from a2a.helpers import new_data_part
from a2a.types import TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict
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

from ..errors import Failed, InputRequired, Rejected
from ..execution.agents.turn import Turn
from ..lifecycle.outcomes import NEEDS_INPUT
from .conversation import Conversation, EarlyStops, OpenSteps, data_of
from .recorded_calls import MODEL, TOOL, RecordedCall

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
"""Stop reasons of strands for agents that stopped early: limits on tokens and turns, and content filters."""

ANSWER = "interruptResponse"
NOTHING_WAITS = "The question is no longer open."
UNREADABLE = "This agent reads text and data parts."


def strands_agent(
    make: Callable[[Turn], Agent], *, fail_on: Collection[str] = (), durable: bool = True
) -> Callable[[Turn], AsyncGenerator[str | TaskStatusUpdateEvent, None]]:
    """Return a function agent that runs a strands agent. Register it with ``session=True``.

    The model's text is streamed. Messages, state and open interrupts are stored in the session. A cancel stops the
    agent at its next await. Tools in threads are notified through their ``cancel_signal``.

    If the agent stops early (`EARLY`), the turn ends in COMPLETED with ``stopReason`` in its metadata. For the reasons
    in `fail_on`, it ends in FAILED. If the agent was cancelled within strands, the turn ends in CANCELED.

    Args:
        make: Function that returns a new agent without a session manager. The function is called for every run, because
            a strands agent has only one conversation and one invocation at a time.
        fail_on: Stop reasons that fail the task.
        durable: Record the results of model and tool calls, so that no later run of a turn repeats the calls. False if
            the tools have effects in the memory of the process that later calls need.

    Raises:
        ConfigError: `fail_on` contains a reason that strands does not define.
    """
    early_stops = EarlyStops(fail_on, EARLY)

    async def answer(turn: Turn) -> AsyncGenerator[str | TaskStatusUpdateEvent, None]:
        conversation = Conversation(turn)
        agent = make(turn)
        if conversation.memory is not None:
            agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(conversation.memory)))
        _Calls(turn, durable).add_to(agent)
        prompt = _answers(turn, conversation.questions) if conversation.questions else _prompt(turn)
        result: AgentResult | None = None
        stop_reason: str | None = None
        try:
            async with aclosing(cast(AsyncGenerator[dict[str, Any], None], agent.stream_async(prompt))) as events:
                async for event in events:
                    if "data" in event:
                        yield event["data"]
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
            if stop_reason is not None and stop_reason in EARLY:
                yield early_stops.event(stop_reason, turn.task_id, turn.context_id)
            return
        questions = [
            {"interruptId": one.id, "name": one.name, "reason": json.loads(json.dumps(one.reason, default=str))}
            for one in result.interrupts or []
        ]
        conversation.pause(memory, questions)
        raise _asking(questions)

    return answer


class _Calls:
    """Middleware that reports the agent's calls as execution steps, and records their results.

    The results of some tools are not recorded, because a later run needs the effect of the call: the tool has asked a
    question, or has changed the state, the messages or the tools of the agent.
    """

    def __init__(self, turn: Turn, durable: bool) -> None:
        self._turn = turn
        self._durable = durable

    def add_to(self, agent: Agent) -> None:
        """Add the middleware to an agent."""
        agent.add_middleware(InvokeModelStage, self._ask_model)
        agent.add_middleware(ExecuteToolStage, self._execute_tool)

    async def _ask_model(
        self, context: InvokeModelContext, call_next: Callable[[InvokeModelContext], Events]
    ) -> Events:
        self._turn.stop_if_asking()  # strands drops a BaseException and would call the model without a result
        is_recorded = self._durable and not context.model.stateful
        call = RecordedCall.begin(MODEL, MODEL, _request(context)) if is_recorded else None
        if call is not None and call.result is not None:
            for recorded in _recorded_response(call.result):
                yield recorded
            return
        steps, config = OpenSteps(), context.model.get_config()
        steps.model_call(self, str((isinstance(config, dict) and config.get("model_id")) or ""))
        try:
            async for event in call_next(context):
                if call is not None and isinstance(event, ModelStopReason) and event.stop_reason != "cancelled":
                    await call.finish(_dumped_response(event))
                yield event
        except Exception as error:
            if call is not None:
                call.fail(error)
            raise
        finally:
            steps.end(self)

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
        steps = OpenSteps()
        steps.tool_call(self, tool_use["name"])
        try:
            async for event in events:
                yield event
        finally:
            steps.end(self)

    async def _record(self, call: RecordedCall, context: ExecuteToolContext, events: Events) -> Events:
        """Yield the events of a tool, and record its result before it is yielded."""
        state, is_finished = self._state(context), False
        try:
            while True:
                with call.executing():  # not while the consumer has an event
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
        """Return what a tool may change other than by its result."""
        agent = cast(Agent, context.agent)
        states = [agent.state.get(), context.invocation_state.get("request_state"), self._turn.session.state]
        tools = [*agent.tool_registry.registry, *agent.tool_registry.dynamic_tools]
        return self._turn.question_count, json.dumps(states, default=str), len(agent.messages), tools


def _request(context: InvokeModelContext) -> list[Any]:
    """Return the data by which parallel model calls are recognized."""
    return [[message["role"], message["content"]] for message in context.messages]


def _dumped_response(event: ModelStopReason) -> dict[str, Any]:
    response = {"stop_reason": event.stop_reason, "usage": event.usage, "metrics": event.metrics}
    dumped: dict[str, Any] = encode_bytes_values(response | {"message": event.message})
    return dumped


def _recorded_response(response: dict[str, Any]) -> Iterator[TypedEvent]:
    """Yield the text of a recorded response in one chunk, and the response."""
    loaded = decode_bytes_values(response)
    blocks = loaded["message"]["content"]
    cited = [part for block in blocks if "citationsContent" in block for part in block["citationsContent"]["content"]]
    text = "".join(block["text"] for block in [*blocks, *cited] if "text" in block)
    if text:
        yield TypedEvent({"data": text})
    yield ModelStopReason(**loaded)


def _dumped_result(call: RecordedCall, event: ToolResultEvent) -> dict[str, Any]:
    error = event.exception
    failure = None if error is None else call.dump_failure(error)
    return {"result": encode_bytes_values(event.tool_result), "failure": failure}


def _loaded_result(call: RecordedCall, tool_use_id: str) -> ToolResultEvent:
    """Return the recorded result of a tool, with the id that the model has given to the call in this run."""
    recorded = cast(dict[str, Any], call.result)
    failure = recorded["failure"]
    result = decode_bytes_values(recorded["result"]) | {"toolUseId": tool_use_id}
    return ToolResultEvent(result, exception=None if failure is None else call.load_failure(failure))


def _asking(questions: list[dict[str, Any]], why: str = "") -> InputRequired:
    lines = [why] if why else []
    for one in questions:
        reason = one["reason"]
        text = reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False)
        lines.append(f"{one['name']}: {text}" if reason else one["name"])
    return InputRequired("\n".join(lines) or NEEDS_INPUT, parts=[new_data_part({"interrupts": questions})])


def _answers(turn: Turn, questions: list[dict[str, Any]]) -> list[InterruptResponseContent]:
    """Return the client's answers to `questions`. Strands asks the questions that remain open again.

    Raises:
        InputRequired: The message answers no question, or answers an unknown question.
    """
    open_ones = [one["interruptId"] for one in questions]
    given = [data[ANSWER] for data in data_of(turn.message) if isinstance(data.get(ANSWER), dict)]
    if not given and len(open_ones) == 1 and turn.text:
        given = [{"interruptId": open_ones[0], "response": turn.text}]
    if not given or any(one.get("interruptId") not in open_ones or "response" not in one for one in given):
        example = {ANSWER: {"interruptId": open_ones[0], "response": "…"}}
        raise _asking(questions, f"Answer each with a data part like {json.dumps(example, ensure_ascii=False)}.")
    return [{"interruptResponse": {"interruptId": one["interruptId"], "response": one["response"]}} for one in given]


def _prompt(turn: Turn) -> list[ContentBlock]:
    if any(ANSWER in data for data in data_of(turn.message)):
        raise Failed(NOTHING_WAITS)
    blocks: list[ContentBlock] = []
    for part in turn.parts:
        match part.WhichOneof("content"):
            case "text":
                blocks.append({"text": part.text})
            case "data":
                blocks.append({"text": json.dumps(MessageToDict(part.data), ensure_ascii=False)})
            case _:
                raise Rejected(UNREADABLE)
    return blocks
