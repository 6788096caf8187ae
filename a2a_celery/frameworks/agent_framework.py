"""Agents of Microsoft's agent-framework: an approval that a tool needs is a question to the client, for any worker.

The status message has a data part ``{"userInputRequests": […]}``, each request as agent-framework writes it. The answer
has one data part ``{"type": "function_approval_response", "id": …, "approved": true}`` for each approval; "yes" or "no"
as text does for a single one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from a2a.helpers import new_data_part
from agent_framework import (
    Agent,
    AgentSession,
    ChatContext,
    ChatMiddleware,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    Message,
)
from google.protobuf.json_format import MessageToDict

from ..errors import Failed, InputRequired
from ..execution.turn import Turn
from .conversation import Conversation, data_of
from .steps import OpenSteps

REQUEST = "function_approval_request"
ANSWER = "function_approval_response"
WORDS = {"yes": True, "no": False}
NOTHING_WAITS = "Nothing waits for that answer any more."


def framework_agent(make: Callable[[Turn], Agent[Any]]) -> Callable[[Turn], AsyncGenerator[str, None]]:
    """The function agent, for an agent with ``session=True``, that lets the agent answer that `make` gives.

    `make` is called in every run, and may give the same agent each time. Its text is streamed; its AgentSession, with
    the history that the framework keeps there, and open requests stay in the session. A cancel stops it where it
    awaits.
    """

    async def answer(turn: Turn) -> AsyncGenerator[str, None]:
        conversation = Conversation(turn)
        agent = make(turn)
        memory = conversation.memory
        session = AgentSession.from_dict(memory) if memory else agent.create_session(session_id=turn.context_id)
        contents = _answers(turn, conversation.questions)
        said = Message("user", contents)
        async with agent.run(said, session=session, stream=True, middleware=[_ModelSteps(), _ToolSteps()]) as updates:
            async for update in updates:
                if update.text:
                    yield update.text
            response = await updates.get_final_response()
        if not response.user_input_requests:
            conversation.go_on(session.to_dict())
            return
        requests = [request.to_dict() for request in response.user_input_requests]
        conversation.pause(session.to_dict(), requests)
        raise _asking(requests)

    return answer


class _ModelSteps(ChatMiddleware):
    """Tells the run which models the agent calls."""

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        steps = OpenSteps()
        steps.model_call(self, str((context.options or {}).get("model") or ""))
        context.stream_cleanup_hooks.append(lambda: steps.end(self))
        try:
            await call_next()
        finally:
            if not context.stream:
                steps.end(self)


class _ToolSteps(FunctionMiddleware):
    """Tells the run which tools the agent calls."""

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        steps = OpenSteps()
        steps.tool_call(self, context.function.name)
        try:
            await call_next()
        finally:
            steps.end(self)


def _asking(requests: list[dict[str, Any]], why: str = "") -> InputRequired:
    lines = [why] if why else []
    for one in requests:
        call = one.get("function_call") or {}
        lines.append(f"Approve {call.get('name')}({json.dumps(call.get('arguments'))})?" if call else one["type"])
    return InputRequired("\n".join(lines), parts=[new_data_part({"userInputRequests": requests})])


def _answers(turn: Turn, requests: list[dict[str, Any]]) -> list[Content]:
    """The message as agent-framework reads it: its answers, if approvals are open, else all of it.

    Raises:
        InputRequired: approvals are open, and it does not answer each.
        Failed: it answers what nobody waits for.
    """
    given = {str(data.get("id")): data.get("approved") for data in data_of(turn.message) if data.get("type") == ANSWER}
    approvals = {one["id"]: Content.from_dict(one) for one in requests if one["type"] == REQUEST}
    if not approvals:
        if given:
            raise Failed(NOTHING_WAITS)
        return _contents(turn)
    if not given and len(approvals) == 1 and turn.text.strip().lower() in WORDS:
        given = dict.fromkeys(approvals, WORDS[turn.text.strip().lower()])
    if given.keys() != approvals.keys() or not all(approved in (True, False) for approved in given.values()):
        example = {"type": ANSWER, "id": next(iter(approvals)), "approved": True}
        raise _asking(requests, f"Answer each with a data part like {json.dumps(example)}.")
    return [approvals[one].to_function_approval_response(bool(approved)) for one, approved in given.items()]


def _contents(turn: Turn) -> list[Content]:
    contents = []
    for part in turn.parts:
        match part.WhichOneof("content"):
            case "text":
                contents.append(Content.from_text(part.text))
            case "raw":
                contents.append(Content.from_data(part.raw, part.media_type or "application/octet-stream"))
            case "url":
                contents.append(Content.from_uri(part.url, media_type=part.media_type or None))
            case "data":
                contents.append(Content.from_text(json.dumps(MessageToDict(part.data), ensure_ascii=False)))
    return contents
