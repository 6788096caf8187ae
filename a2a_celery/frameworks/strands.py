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
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from typing import Any, cast, get_args

from a2a.helpers import new_data_part
from a2a.types import TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict
from strands import Agent, Snapshot
from strands.agent import AgentResult
from strands.hooks import (
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    HookProvider,
    HookRegistry,
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

Prompt = list[ContentBlock] | list[InterruptResponseContent]

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
    make: Callable[[Turn], Agent], *, fail_on: Collection[str] = ()
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

    Raises:
        ConfigError: `fail_on` contains a reason that strands does not define.
    """
    early_stops = EarlyStops(fail_on, EARLY)

    async def answer(turn: Turn) -> AsyncGenerator[str | TaskStatusUpdateEvent, None]:
        conversation = Conversation(turn)
        agent = make(turn)
        if conversation.memory is not None:
            agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(conversation.memory)))
        agent.hooks.add_hook(_Steps(turn))
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


class _Steps(HookProvider):
    """Hooks that report the agent's calls, and that end the run when a tool has asked the client a question."""

    def __init__(self, turn: Turn) -> None:
        self._steps = OpenSteps()
        self._turn = turn

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(BeforeModelCallEvent, self._model)
        registry.add_callback(AfterModelCallEvent, lambda event: self._steps.end("model"))
        registry.add_callback(BeforeToolCallEvent, self._tool)
        registry.add_callback(AfterToolCallEvent, lambda event: self._steps.end(event.tool_use["toolUseId"]))

    def _model(self, event: BeforeModelCallEvent) -> None:
        self._turn.stop_if_asking()  # strands drops a BaseException and would call the model without a result
        config = event.agent.model.get_config()
        self._steps.model_call("model", str((isinstance(config, dict) and config.get("model_id")) or ""))

    def _tool(self, event: BeforeToolCallEvent) -> None:
        self._steps.tool_call(event.tool_use["toolUseId"], event.tool_use["name"])


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
