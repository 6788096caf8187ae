"""Several simultaneous open questions, and tools that a cancel request stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from copy import deepcopy
from threading import Event
from typing import Any, cast

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part
from agent_framework import Agent as FrameworkAgent
from agent_framework import ChatResponseUpdate, Content, Message
from google.protobuf.json_format import MessageToDict
from strands import Agent, ToolContext, tool
from strands.types.content import Messages
from strands.types.streaming import StreamEvent

from a2a_celery import InputRequired, Turn
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.strands import strands_agent
from tests.support.agents.booking_agents import turn
from workers import with_agent_framework, with_strands

WORKS, SEEN = Event(), Event()
"""Events that the tool `hang` sets when it starts to work, and when it notices the cancellation."""


class ToolCaller(with_strands.StandIn):
    """Model that calls the named tools in one response, and then returns their results."""

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        content = messages[-1]["content"]
        results = [block["toolResult"]["content"][0]["text"] for block in content if "toolResult" in block]
        yield {"messageStart": {"role": "assistant"}}
        for name in [] if results else content[0]["text"].split():
            call = {"toolUseId": f"call-{name}", "name": name}
            yield {"contentBlockStart": {"start": {"toolUse": call}}}  # type: ignore[typeddict-item]
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
            yield {"contentBlockStop": {}}
        if results:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": ", ".join(sorted(results))}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if results else "tool_use"}}


@tool(context=True)
def bed(tool_context: ToolContext) -> str:
    """Ask for the bed."""
    return f"bed: {tool_context.interrupt('bed', reason='Which bed?')}"


@tool(context=True)
def board(tool_context: ToolContext) -> str:
    """Ask for the board."""
    return f"board: {tool_context.interrupt('board', reason='Which board?')}"


@tool(context=True)
def hang(tool_context: ToolContext) -> str:
    """Work until it is stopped."""
    WORKS.set()
    if tool_context.cancel_signal.wait(60):
        SEEN.set()
    return "stopped"


def make(turn: Turn) -> Agent:
    return Agent(model=ToolCaller(), tools=[bed, board, hang], callback_handler=None)


inn = strands_agent(make)


class DoubleBooker(with_agent_framework.StandIn):
    """Model that calls the tool twice in one response, and then returns its results."""

    def _inner_get_response(self, *, messages: Sequence[Message], **kwargs: Any) -> Any:
        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            results = [
                str(content.result) for m in messages for content in m.contents if content.type == "function_result"
            ]
            calls = [
                Content.from_function_call(f"call-{n}", "book", arguments={"what": item})
                for n, item in enumerate(("a bed", "a board"))
            ]
            contents = [Content.from_text(", ".join(results))] if results else calls
            yield ChatResponseUpdate(role="assistant", contents=contents)

        return self._build_response_stream(updates())


hotel = framework_agent(lambda turn: FrameworkAgent(DoubleBooker(), name="hotel", tools=[with_agent_framework.book]))


async def say(agent: Callable[[Turn], AsyncIterator[str]], turn: Turn) -> str | list[dict[str, Any]]:
    """Return the agent's answer, or the list of its questions."""
    try:
        return "".join([text async for text in agent(turn)])
    except InputRequired as question:
        [questions] = MessageToDict(question.parts[-1].data).values()
        return cast(list[dict[str, Any]], questions)


def response(question: dict[str, Any], text: str) -> Part:
    return new_data_part({"interruptResponse": {"interruptId": question["interruptId"], "response": text}})


async def test_strands_asks_again_what_was_left_open() -> None:
    state: dict[str, Any] = {}
    questions = await say(inn, turn(state, Part(text="bed board")))
    assert isinstance(questions, list)
    first, second = sorted(questions, key=lambda question: str(question["name"]))
    assert (first["reason"], second["reason"]) == ("Which bed?", "Which board?")

    assert await say(inn, turn(state, response(second, "full"))) == [first]
    assert await say(inn, turn(state, response(first, "a wide one"))) == "bed: a wide one, board: full"


async def test_strands_takes_no_text_for_several_questions() -> None:
    state: dict[str, Any] = {}
    questions = await say(inn, turn(state, Part(text="bed board")))
    assert isinstance(questions, list)

    assert await say(inn, turn(state, Part(text="both"))) == questions
    assert await say(inn, turn(state, new_data_part({"interruptResponse": "both"}))) == questions
    assert await say(inn, turn(state, new_data_part({"interruptResponse": {"interruptId": [1]}}))) == questions
    responses = [response(question, question["name"]) for question in questions]
    assert await say(inn, turn(state, *responses)) == "bed: bed, board: board"


async def test_agent_framework_wants_each_approval() -> None:
    state: dict[str, Any] = {}
    requests = await say(hotel, turn(state, Part(text="book two")))
    assert isinstance(requests, list)
    yes, no = (
        new_data_part({"type": "function_approval_response", "id": request["id"], "approved": is_approved})
        for request, is_approved in zip(requests, (True, False), strict=True)
    )

    assert await say(hotel, turn(state, yes)) == requests
    assert await say(hotel, turn(state, new_data_part({"type": "function_approval_response"}))) == requests
    assert await say(hotel, turn(state, Part(text="maybe"))) == requests
    saved_state = deepcopy(state)
    assert await say(hotel, turn(saved_state, Part(text="Yes"))) == "a bed is booked, a board is booked"
    assert (
        await say(hotel, turn(state, no, yes)) == "a bed is booked, Error: Tool call invocation was rejected by user."
    )


async def test_a_tool_in_a_thread_sees_the_cancel_of_its_run() -> None:
    running = asyncio.create_task(say(inn, turn({}, Part(text="hang"))))
    assert await asyncio.to_thread(WORKS.wait, 20)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running

    assert await asyncio.to_thread(SEEN.wait, 10)
