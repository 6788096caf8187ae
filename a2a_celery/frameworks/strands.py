"""Agents of strands-agents: an interrupt is a question to the client, answered on any worker.

Questions and answers look as they do with strands' own A2A executor, which needs an a2a-sdk before 0.4: the status
message has a data part ``{"interrupts": [{"interruptId", "name", "reason"}, …]}``, and the answer one data part
``{"interruptResponse": {"interruptId", "response"}}`` for each. If just one is open, a text answers it as well.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

from a2a.helpers import new_data_part
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
from strands.types.interrupt import InterruptResponseContent
from strands.types.session import decode_bytes_values, encode_bytes_values

from ..errors import Failed, InputRequired, Rejected
from ..execution.turn import Turn
from .conversation import Conversation, data_of
from .steps import OpenSteps

Prompt = list[ContentBlock] | list[InterruptResponseContent]

ANSWER = "interruptResponse"
NOTHING_WAITS = "Nothing waits for that answer any more."
UNREADABLE = "This agent reads text and data parts."


def strands_agent(make: Callable[[Turn], Agent]) -> Callable[[Turn], AsyncGenerator[str, None]]:
    """The function agent, for an agent with ``session=True``, that lets the strands agent answer that `make` makes.

    `make` is called in every run, since an agent of strands' has one conversation and one invocation at a time; what it
    makes is without a session manager. The text of the model is streamed; messages, state and open interrupts stay in
    the session. A cancel stops the agent where it awaits; tools in threads see it by their ``cancel_signal``.
    """

    async def answer(turn: Turn) -> AsyncGenerator[str, None]:
        conversation = Conversation(turn)
        agent = make(turn)
        if conversation.memory is not None:
            agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(conversation.memory)))
        agent.hooks.add_hook(_Steps())
        prompt = _answers(turn, conversation.questions) if conversation.questions else _prompt(turn)
        result: AgentResult | None = None
        try:
            async with aclosing(cast(AsyncGenerator[dict[str, Any], None], agent.stream_async(prompt))) as events:
                async for event in events:
                    if "data" in event:
                        yield event["data"]
                    result = event.get("result", result)
        finally:
            agent.cancel()  # whatever ended it, a tool's thread may go on
        memory = encode_bytes_values(agent.take_snapshot(preset="session").to_dict())
        if result is None or result.stop_reason != "interrupt":
            conversation.go_on(memory)
            return
        questions = [
            {"interruptId": one.id, "name": one.name, "reason": json.loads(json.dumps(one.reason, default=str))}
            for one in result.interrupts or []
        ]
        conversation.pause(memory, questions)
        raise _asking(questions)

    return answer


class _Steps(HookProvider):
    """Tells the run what the agent calls."""

    def __init__(self) -> None:
        self._steps = OpenSteps()

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(BeforeModelCallEvent, self._model)
        registry.add_callback(AfterModelCallEvent, lambda event: self._steps.end("model"))
        registry.add_callback(BeforeToolCallEvent, self._tool)
        registry.add_callback(AfterToolCallEvent, lambda event: self._steps.end(event.tool_use["toolUseId"]))

    def _model(self, event: BeforeModelCallEvent) -> None:
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
    return InputRequired("\n".join(lines), parts=[new_data_part({"interrupts": questions})])


def _answers(turn: Turn, questions: list[dict[str, Any]]) -> list[InterruptResponseContent]:
    """What the client answers to `questions`; those it leaves open strands asks again.

    Raises:
        InputRequired: the message answers none of them, or others.
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
