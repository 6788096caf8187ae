"""Adapter for Microsoft agent-framework agents. A tool approval becomes a question to the client. Any worker can
continue the agent with the answer.

The status message has a data part ``{"userInputRequests": […]}`` with each request in agent-framework's format. The
answer has one data part ``{"type": "function_approval_response", "id": …, "approved": true}`` for each approval. The
text "yes" or "no" is the same decision on all approvals.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from typing import Any
from uuid import uuid4

from a2a.types import TaskStatusUpdateEvent
from agent_framework import (
    Agent,
    AgentSession,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
    ResponseStream,
    UserInputRequiredException,
)

from ..errors import Failed, InputRequired
from ..execution.agents.adapters import Replacement
from ..execution.agents.turn import Turn
from ..lifecycle.events import data_part
from ..lifecycle.files import normalized_file
from ..lifecycle.outcomes import NEEDS_INPUT
from .approvals import WORDS, call_text, decision_lines
from .conversation import Conversation, EarlyStops, OpenActivities, data_of, data_text
from .recorded_calls import MODEL, TOOL, RecordedCall
from .usage import Usage

Updates = ResponseStream[ChatResponseUpdate, ChatResponse[Any]]

REQUEST = "function_approval_request"
ANSWER = "function_approval_response"
DONE = ("stop", "tool_calls")
"""Finish reasons of a model that is done. Providers may define further reasons."""

NOTHING_WAITS = "The question is no longer open."

CONTROL_FLOW = (MiddlewareFailure, MiddlewareTermination, UserInputRequiredException)
"""Exceptions of the framework that end a run or ask a question, as opposed to failures of tools."""


def framework_agent(
    make: Callable[[Turn], Agent[Any]], *, fail_on: Collection[str] = (), durable: bool = True
) -> Callable[[Turn], AsyncGenerator[str | Replacement | TaskStatusUpdateEvent, None]]:
    """Return a function agent that runs an agent-framework agent. Register it with ``session=True``.

    The agent's text is streamed, and replaced if middleware changes the response. The agent's AgentSession and open
    requests are stored in the session. A cancellation takes effect at the agent's next await.

    If the model stops early, for example with the finish reason "length" or "content_filter", the turn ends in
    COMPLETED with ``stopReason`` in its metadata. For the reasons in `fail_on`, the turn ends in FAILED.

    Args:
        make: Function that returns the agent of a run. The function may return the same agent for all runs.
        fail_on: Stop reasons that fail the task.
        durable: True to record the results of model and tool calls, so that no later run of a turn repeats the calls.
            Use False if later calls depend on in-memory side effects of the tools.

    Raises:
        ConfigError: `fail_on` is not a collection of strings.
    """
    early_stops = EarlyStops(fail_on, None)

    async def answer(turn: Turn) -> AsyncGenerator[str | Replacement | TaskStatusUpdateEvent, None]:
        conversation = Conversation(turn)
        agent = make(turn)
        memory = conversation.memory
        session = AgentSession.from_dict(memory) if memory else agent.create_session(session_id=turn.context_id)
        contents = _answers(turn, conversation.questions)
        # without an id, the framework drops a message that equals the previous one
        message = Message("user", contents, message_id=str(uuid4()))
        middleware: list[ChatMiddleware | FunctionMiddleware] = [
            _ModelCalls(durable, conversation.usage),
            _ToolCalls(turn, durable),
        ]
        streamed_text = ""
        async with agent.run(message, session=session, stream=True, middleware=middleware) as updates:
            async for update in updates:
                if update.text:
                    streamed_text += update.text
                    yield update.text
            response = await updates.get_final_response()
        turn.stop_if_asking()
        if response.text.split() != streamed_text.split():  # middleware has changed the response
            yield Replacement(response.text)
        if not response.user_input_requests:
            conversation.go_on(session.to_dict())
            reason = None if response.finish_reason in DONE else response.finish_reason
            for end in early_stops.final_status(turn, reason, conversation.usage):
                yield end
            return
        requests = [request.to_dict() for request in response.user_input_requests]
        conversation.pause(session.to_dict(), requests)
        raise _asking(requests)

    return answer


class _ModelCalls(ChatMiddleware):
    """Middleware that reports the agent's model calls as activities, records their responses, and counts
    tokens."""

    def __init__(self, durable: bool, usage: Usage) -> None:
        self._durable = durable
        self._usage = usage

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        call = RecordedCall.begin(MODEL, MODEL, _request(context)) if self._durable and context.stream else None
        if call is not None and call.result is not None:
            response: ChatResponse[Any] = ChatResponse.from_dict(call.result)
            self._count(response)
            context.result = _recorded_stream(response)
            return
        context.stream_result_hooks.append(self._count)
        activities = OpenActivities()
        activities.model_call(self, str((context.options or {}).get("model") or ""))
        context.stream_cleanup_hooks.append(lambda: activities.end(self))
        try:
            await call_next()
        except Exception as error:
            if call is not None:
                call.fail(error)
            raise
        finally:
            if not context.stream:
                activities.end(self)
        if call is not None and isinstance(context.result, ResponseStream):
            context.result = _recording_stream(context.result, call)

    def _count(self, response: ChatResponse[Any]) -> None:
        tokens = response.usage_details or {}
        self._usage.add(
            response.model,
            inputs=tokens.get("input_token_count"),
            outputs=tokens.get("output_token_count"),
            cache_reads=tokens.get("cache_read_input_token_count"),
            cache_writes=tokens.get("cache_creation_input_token_count"),
            reasoning=tokens.get("reasoning_output_token_count"),
        )


def _request(context: ChatContext) -> list[Any]:
    """Return the data that identifies one of several parallel model calls. Message ids differ in each run."""
    return [[message.role, [content.to_dict() for content in message.contents]] for message in context.messages]


def _recording_stream(updates: Updates, call: RecordedCall) -> Updates:
    """Wrap the stream `updates` so that the response is recorded before the stream ends."""

    async def record_updates() -> AsyncGenerator[ChatResponseUpdate, None]:
        try:
            async for update in updates:
                yield update
            response = await updates.get_final_response()
        except Exception as error:
            call.fail(error)
            raise
        additional = {"additional_properties": response.additional_properties}  # not in to_dict
        await call.finish(response.to_dict() | additional)

    return ResponseStream(record_updates(), finalizer=lambda _: updates.get_final_response())


def _recorded_stream(response: ChatResponse[Any]) -> Updates:
    async def updates() -> AsyncGenerator[ChatResponseUpdate, None]:
        for update in response.to_updates():
            yield update

    return ResponseStream(updates(), finalizer=lambda _: response)


class _ToolCalls(FunctionMiddleware):
    """Middleware that reports the agent's tool calls as activities, and records their results.

    The result of a tool call is not recorded if a later run needs a side effect of the call: a question that the tool
    asked, or a change to the session or to the list of tools.
    """

    def __init__(self, turn: Turn, durable: bool) -> None:
        self._turn = turn
        self._durable = durable

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        name = context.function.name
        call = RecordedCall.begin(TOOL, name, context.arguments) if self._durable else None
        if call is None:
            await self._execute(name, call_next)
            return
        if call.result is not None:
            context.result = _loaded_result(call.result)
            return
        state = self._state(context)
        try:
            with call.executing():
                await self._execute(name, call_next)
        except CONTROL_FLOW:
            call.abandon()
            raise
        except Exception as error:
            call.fail(error)
            raise
        except BaseException:
            call.abandon()
            raise
        result = _dumped_result(context.result)
        if result is None or self._state(context) != state:
            call.abandon()
        else:
            await call.finish(result)

    async def _execute(self, name: str, call_next: Callable[[], Awaitable[None]]) -> None:
        activities = OpenActivities()
        activities.tool_call(self, name)
        try:
            await call_next()
        finally:
            activities.end(self)

    def _state(self, context: FunctionInvocationContext) -> tuple[Any, ...]:
        """Return the state that a tool may change in addition to returning a result."""
        session = None if context.session is None else context.session.to_dict()
        sessions = json.dumps([session, self._turn.session.state], default=str)
        return self._turn.question_count, sessions, list(map(id, context.tools or ()))


def _dumped_result(result: Any) -> dict[str, Any] | None:
    """Return a tool's result as a JSON object, or None if its type is not the return type of `FunctionTool.invoke`."""
    if isinstance(result, str):
        return {"text": result}
    if isinstance(result, list) and all(isinstance(content, Content) for content in result):
        return {"contents": [content.to_dict() for content in result]}
    return None


def _loaded_result(result: dict[str, Any]) -> str | list[Content]:
    if "text" in result:
        return str(result["text"])
    return [Content.from_dict(content) for content in result["contents"]]


def _asking(requests: list[dict[str, Any]], problem: str = "") -> InputRequired:
    calls = [request.get("function_call") or {} for request in requests]
    lines = [request["type"] for request in requests]
    if lines and all(calls):
        lines = decision_lines([f"Approve {call_text(call.get('name', ''), call.get('arguments'))}?" for call in calls])
    lines = [problem, *lines] if problem else lines
    return InputRequired("\n".join(lines) or NEEDS_INPUT, parts=[data_part({"userInputRequests": requests}, "")])


def _answers(turn: Turn, requests: list[dict[str, Any]]) -> list[Content]:
    """Return the client's decisions on the open approvals. If no approval is open, return the complete message.

    Raises:
        InputRequired: The message does not answer every open approval.
        Failed: The message answers an approval that is not open.
    """
    decisions = {
        str(item.get("id")): item.get("approved") for item in data_of(turn.message) if item.get("type") == ANSWER
    }
    approvals = {request["id"]: Content.from_dict(request) for request in requests if request["type"] == REQUEST}
    if not approvals:
        if decisions:
            raise Failed(NOTHING_WAITS)
        return _contents(turn)
    if not decisions and turn.text.strip().lower() in WORDS:
        decisions = dict.fromkeys(approvals, WORDS[turn.text.strip().lower()])
    if decisions.keys() != approvals.keys() or not all(approval in (True, False) for approval in decisions.values()):
        example = {"type": ANSWER, "id": next(iter(approvals)), "approved": True}
        raise _asking(requests, f"Answer each with a data part like {json.dumps(example)}.")
    return [approvals[request].to_function_approval_response(bool(approval)) for request, approval in decisions.items()]


def _contents(turn: Turn) -> list[Content]:
    contents = []
    for part in map(normalized_file, turn.parts):
        name = part.filename or None
        match part.WhichOneof("content"):
            case "text":
                contents.append(Content.from_text(part.text))
            case "raw":
                contents.append(Content.from_data(part.raw, part.media_type, name=name))
            case "url":
                contents.append(Content.from_uri(part.url, media_type=part.media_type or None, name=name))
            case "data":
                contents.append(Content.from_text(data_text(part)))
    return contents
