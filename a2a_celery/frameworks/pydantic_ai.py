"""Adapter for pydantic-ai agents. Deferred tool calls become a question to the client. Any worker can continue the
agent with the answer.

The answer is one JSON object, which maps the id of each call to a value. The value is true or false for a call that
needs an approval, and the result for a call that is executed outside the agent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, overload

from a2a.types import Part
from pydantic import TypeAdapter
from pydantic_ai import AbstractToolset, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.agent import AbstractAgent, AgentRunResult
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.conversation import Conversation as ModelConversation
from pydantic_ai.conversation import ConversationTypeAdapter
from pydantic_ai.exceptions import ModelRetry, ToolFailed, ToolFailedError, ToolRetryError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FinishReason,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    PartDeltaEvent,
    PartStartEvent,
    RetryFeedbackPart,
    TextPart,
    TextPartDelta,
    ToolCallEvent,
    ToolCallPart,
    ToolReturn,
    UserContent,
    VideoUrl,
)
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ApprovalRequiredToolset, ExternalToolset, FunctionToolset
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import to_jsonable_python

from ..agents import FrameworkAgent
from ..errors import ConfigError, InputRequired
from ..execution.agents.adapters import Replacement
from ..execution.agents.turn import Turn
from ..integrations.pydantic_ai import has_output_validators
from ..lifecycle.files import normalized_file
from .approvals import APPROVAL, RESULT, asking, decisions, pending_call, refuse_late_answer
from .conversation import Conversation, EarlyStops, OpenActivities, data_text
from .recorded_calls import MODEL, TOOL, RecordedCall
from .usage import Usage

DepsT = TypeVar("DepsT")

EARLY = frozenset(get_args(FinishReason)) - {"stop", "tool_call"}
"""Finish reasons of models that stopped early."""

VOLATILE = frozenset({"timestamp", "run_id", "conversation_id", "instructions"})
"""Fields of messages that may differ between the runs of a turn."""

URLS = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
"""URL classes by the first part of the media type."""


@overload
def pydantic_ai_agent(
    agent: AbstractAgent[None, Any],
    *,
    usage_limits: UsageLimits | None = None,
    fail_on: Collection[str] = (),
    durable: bool = True,
) -> FrameworkAgent: ...


@overload
def pydantic_ai_agent(
    agent: AbstractAgent[DepsT, Any],
    *,
    deps: Callable[[Turn], DepsT],
    usage_limits: UsageLimits | None = None,
    fail_on: Collection[str] = (),
    durable: bool = True,
) -> FrameworkAgent: ...


def pydantic_ai_agent(
    agent: AbstractAgent[Any, Any],
    *,
    deps: Callable[[Turn], Any] | None = None,
    usage_limits: UsageLimits | None = None,
    fail_on: Collection[str] = (),
    durable: bool = True,
) -> FrameworkAgent:
    """Return an agent for `A2A.add_agent` that runs a pydantic-ai agent.

    Text is streamed after its validation, and any other output is sent at the end. Messages and deferred tool calls are
    stored in the session. A cancellation takes effect at the agent's next await. If the model stops early (`EARLY`),
    the turn ends in COMPLETED with ``stopReason`` in its metadata. For the reasons in `fail_on`, the turn ends in
    FAILED.

    Args:
        agent: Agent that all runs of a worker process share.
        deps: Function that returns the dependencies of a run, or None. Required if the agent has a `deps_type`.
        usage_limits: Limits of each turn, without the usage of earlier turns. None for pydantic-ai's default limits.
        fail_on: Finish reasons that fail the task.
        durable: True to record the results of model and tool calls, so that no later run of a turn repeats the calls.
            Use False if later calls depend on in-memory side effects of the tools.

    Raises:
        ConfigError: `fail_on` has an unknown reason or is a string, `deps` is missing, the model cannot stream, or the
            agent has deferred tools but no output type for their requests.
    """
    early_stops = EarlyStops(fail_on, EARLY)
    _require_supported(agent, deps)
    streams_text = any(item is str for item in _output_types(agent.output_type))

    async def answer(turn: Turn) -> AsyncGenerator[Any, None]:
        stored_conversation = Conversation(turn)
        conversation, prompt, results = _begin(turn, stored_conversation)
        texts = _ResponseTexts(streams=streams_text, is_buffered=has_output_validators(agent))
        run = agent.run_stream_events(
            prompt,
            conversation=conversation,
            deferred_tool_results=results,
            deps=None if deps is None else deps(turn),
            usage_limits=usage_limits,
            capabilities=[_CallCapability(turn, durable, stored_conversation.usage, texts)],
        )
        async with aclosing(texts.chunks(run)) as chunks:
            async for chunk in chunks:
                yield chunk
        turn.stop_if_asking()
        result = texts.result
        assert result is not None
        if isinstance(result.output, DeferredToolRequests):
            raise _pause(stored_conversation, result.conversation, result.output)
        stored_conversation.go_on(_dumped_conversation(replace(result.conversation, usage=RunUsage())))
        for chunk in texts.output(_content(result.output), result.response):
            yield chunk
        reason = result.response.finish_reason
        for end in early_stops.final_status(turn, reason if reason in EARLY else None, stored_conversation.usage):
            yield end

    return answer


class _ResponseTexts:
    """Text of the model's responses, as chunks for the client.

    Text that was sent is replaced if the framework rejects its response, or if the output has another text.

    Args:
        streams: True to send text. False if the output of the run is not text.
        is_buffered: True to send the text of a response when the framework has accepted the response.
    """

    def __init__(self, *, streams: bool, is_buffered: bool) -> None:
        self.result: AgentRunResult[Any] | None = None
        """Result of the run, or None before its end."""
        self.is_rejected = False
        """True if the framework has rejected the last response, and has requested another one."""
        self._streams = streams
        self._is_buffered = is_buffered
        self._accepted_text = ""
        self._text = ""

    async def chunks(self, run: Any) -> AsyncGenerator[str | Replacement, None]:
        """Yield the chunks of a run, which ``Agent.run_stream_events`` has returned."""
        try:
            async with run as events:
                async for event in events:
                    for chunk in self._add(event) if self._streams else ():
                        yield chunk
        except UnexpectedModelBehavior:  # for example, every response was rejected
            for replacement in self._withdraw():
                yield replacement
            raise
        self.result = events.result
        if self.result is not None and isinstance(self.result.output, DeferredToolRequests):
            for text in self._accept():
                yield text

    def _add(self, event: Any) -> Iterator[str | Replacement]:
        if isinstance(event, PartStartEvent) and self.is_rejected:
            self.is_rejected = False
            yield from self._withdraw()
        if isinstance(event, ToolCallEvent):
            yield from self._accept()
        text = _text_of(event)
        self._text += text
        if text and not self._is_buffered:
            yield text

    def _accept(self) -> Iterator[str]:
        if self._text and self._is_buffered:
            yield self._text
        self._accepted_text += self._text
        self._text = ""

    def _withdraw(self) -> Iterator[Replacement]:
        if self._text and not self._is_buffered:
            yield Replacement(self._accepted_text)
        self._text = ""

    def output(self, output: Any, response: ModelResponse) -> Iterator[Any]:
        """Yield the output of the run, unless it is the text that was sent."""
        if self._is_buffered or not self._text or not isinstance(output, str):
            yield output
        elif not _is_text_of_model(output, response):
            yield Replacement(self._accepted_text + output)


@dataclass
class _CallCapability(AbstractCapability[Any]):
    """Capability that reports the agent's calls as activities, records their results, and counts tokens.

    The result of a tool call is not recorded if a later run needs a side effect of the call: a question that the tool
    asked, or a change to the session, the messages to send or the available tools.
    """

    turn: Turn
    durable: bool
    usage: Usage
    texts: _ResponseTexts

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="innermost")

    def get_wrapper_model(self, model: Model) -> Model:
        return _RecordedResponses(model, self.turn, self.durable, self.usage, self.texts)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Any],
    ) -> Any:
        self.turn.stop_if_asking()
        recorded_call = RecordedCall.begin(TOOL, call.tool_name, args) if self.durable else None
        if recorded_call is None:
            return await self._execute(call.tool_name, args, handler)
        if recorded_call.result is not None:
            return _loaded_result(recorded_call.result)
        state = self._state(ctx)
        try:
            with recorded_call.executing():
                result = await self._execute(call.tool_name, args, handler)
        except (ToolRetryError, ToolFailedError) as error:
            failure = _dumped_failure(error)
            if failure is not None and self._state(ctx) == state:
                await recorded_call.finish(failure)
            raise
        if self._state(ctx) == state:
            await _record_result(recorded_call, result)
        return result

    async def _execute(self, name: str, args: dict[str, Any], handler: Callable[[dict[str, Any]], Any]) -> Any:
        activities = OpenActivities()
        activities.tool_call(TOOL, name)
        try:
            return await handler(args)
        finally:
            activities.end(TOOL)

    def _state(self, ctx: RunContext[Any]) -> tuple[Any, ...]:
        """Return the state that a tool may change in addition to returning a result."""
        changing = (ctx.pending_messages, ctx.loaded_capability_ids, ctx.discovered_tool_names)
        session = json.dumps(self.turn.session.state, default=str)
        return self.turn.question_count, session, [len(values or ()) for values in changing]


class _RecordedResponses(WrapperModel):
    """Model whose complete responses are recorded. A recorded response is sent as one chunk."""

    def __init__(self, model: Model, turn: Turn, durable: bool, usage: Usage, texts: _ResponseTexts) -> None:
        super().__init__(model)
        self._texts = texts
        self._turn = turn
        self._durable = durable
        self._usage = usage

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        call = self._begin(messages)
        if call is not None and call.result is not None:
            return self._count_tokens(_loaded_response(call.result))
        activities = OpenActivities()
        activities.model_call(MODEL, self.model_name)
        try:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
        finally:
            activities.end(MODEL)
        await _record_response(call, response)
        return self._count_tokens(response)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        call = self._begin(messages)
        if call is not None and call.result is not None:
            yield CompletedStreamedResponse(
                self._count_tokens(_loaded_response(call.result)),
                model_request_parameters=model_request_parameters,
                replay_events=True,
            )
            return
        activities = OpenActivities()
        activities.model_call(MODEL, self.model_name)
        try:
            async with self.wrapped.request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
        finally:
            activities.end(MODEL)
        await _record_response(call, self._count_tokens(stream.get()))

    def _count_tokens(self, response: ModelResponse) -> ModelResponse:
        """Add the tokens of `response` to the turn's usage, and return the response."""
        tokens = response.usage
        self._usage.add(
            response.model_name,
            inputs=tokens.input_tokens,
            outputs=tokens.output_tokens,
            cache_reads=tokens.cache_read_tokens,
            cache_writes=tokens.cache_write_tokens,
            reasoning=tokens.details.get("reasoning_tokens"),
        )
        return response

    def _begin(self, messages: list[ModelMessage]) -> RecordedCall | None:
        self._turn.stop_if_asking()
        self._texts.is_rejected = _is_retry(messages[-1])
        if not self._durable:
            return None
        request = _without_volatile(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
        return RecordedCall.begin(MODEL, MODEL, (self.model_id, request))


async def _record_response(call: RecordedCall | None, response: ModelResponse) -> None:
    """Record a response if it is complete."""
    if call is not None and response.state == "complete":
        await call.finish(ModelMessagesTypeAdapter.dump_python([response], mode="json"))


def _loaded_response(record: Any) -> ModelResponse:
    [response] = ModelMessagesTypeAdapter.validate_python(record)
    assert isinstance(response, ModelResponse)
    return response


def _without_volatile(data: Any) -> Any:
    """Return `data` without system prompts and `VOLATILE` fields, to identify a model call."""
    match data:
        case dict():
            return {name: _without_volatile(value) for name, value in data.items() if name not in VOLATILE}
        case list():
            return [_without_volatile(value) for value in data if not _is_system_prompt(value)]
        case _:
            return data


def _is_system_prompt(part: Any) -> bool:
    return isinstance(part, dict) and part.get("part_kind") == "system-prompt"


_TOOL_RETURN: TypeAdapter[ToolReturn[Any]] = TypeAdapter(ToolReturn[Any])


async def _record_result(call: RecordedCall, result: Any) -> None:
    is_plain = not isinstance(result, ToolReturn)
    try:
        content = _TOOL_RETURN.dump_python(ToolReturn(result) if is_plain else result, mode="json")
    except ValueError as problem:
        call.skip(problem)
    else:
        await call.finish({"result": content, "is_plain": is_plain})


def _dumped_failure(error: ToolRetryError | ToolFailedError) -> dict[str, Any] | None:
    """Serialize the failure that the model receives. Return None if the tool did not raise the failure, for example
    because the framework refused the arguments."""
    match error.__cause__:
        case ModelRetry(message=message):
            return {"retry": message}
        case ToolFailed(message=message):
            return {"failed": message}
        case _:
            return None


def _loaded_result(record: dict[str, Any]) -> Any:
    if "retry" in record:
        raise ModelRetry(record["retry"])
    if "failed" in record:
        raise ToolFailed(record["failed"])
    result = _TOOL_RETURN.validate_python(record["result"])
    return result.return_value if record["is_plain"] else result


def _begin(
    turn: Turn, stored_conversation: Conversation
) -> tuple[ModelConversation, Sequence[UserContent] | None, DeferredToolResults | None]:
    """Return the conversation so far, and the message of the turn as a prompt or as the results of deferred calls."""
    conversation = ModelConversation(conversation_id=turn.context_id)
    if stored_conversation.memory is not None:
        conversation = ConversationTypeAdapter.validate_python(stored_conversation.memory)
    requests = conversation.deferred_tool_requests
    if requests is None or not stored_conversation.questions:
        refuse_late_answer(turn)
        return conversation, _prompt(turn), None
    choices = decisions(turn, stored_conversation.questions)
    approvals = {call.tool_call_id: choices[call.tool_call_id] for call in requests.approvals}
    calls = {call.tool_call_id: choices[call.tool_call_id] for call in requests.calls}
    return conversation, None, requests.build_results(approvals=approvals, calls=calls)


def _pause(
    stored_conversation: Conversation, conversation: ModelConversation, requests: DeferredToolRequests
) -> InputRequired:
    """Store the conversation with its deferred calls, and return the question about these calls."""
    pending = [
        pending_call(kind, call.tool_call_id, call.tool_name, call.args, requests.metadata.get(call.tool_call_id))
        for kind, calls in ((APPROVAL, requests.approvals), (RESULT, requests.calls))
        for call in calls
    ]
    stored_conversation.pause(_dumped_conversation(conversation), pending)
    return asking(pending)


def _dumped_conversation(conversation: ModelConversation) -> dict[str, Any]:
    content: dict[str, Any] = ConversationTypeAdapter.dump_python(conversation, mode="json")
    return content


def _is_retry(message: ModelMessage) -> bool:
    """Return True if a message rejects the text of the last response."""
    return isinstance(message, ModelRequest) and any(isinstance(part, RetryFeedbackPart) for part in message.parts)


def _text_of(event: Any) -> str:
    match event:
        case PartStartEvent(part=TextPart(content=text)):
            return text
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
        case _:
            return ""


def _is_text_of_model(output: Any, response: ModelResponse) -> bool:
    """Return True if `output` is a text of `response`: the text before, between or after calls of native tools."""
    texts = [""]
    for part in response.parts:
        match part:
            case TextPart(content=text):
                texts[-1] += text
            case NativeToolCallPart():
                texts.append("")
    return isinstance(output, str) and output in texts


def _content(output: Any) -> Any:
    if isinstance(output, BinaryContent):
        return Part(raw=output.data, media_type=output.media_type)
    return to_jsonable_python(output)


def _prompt(turn: Turn) -> Sequence[UserContent]:
    contents: list[UserContent] = []
    for part in map(normalized_file, turn.parts):
        if part.filename:  # pydantic-ai does not send the identifier of a file to the model
            contents.append(f"This is file {part.filename}:")
        match part.WhichOneof("content"):
            case "text":
                contents.append(part.text)
            case "raw":
                contents.append(BinaryContent(part.raw, media_type=part.media_type, identifier=part.filename or None))
            case "url":
                kind = URLS.get(part.media_type.partition("/")[0], DocumentUrl)
                contents.append(kind(part.url, media_type=part.media_type or None, identifier=part.filename or None))
            case "data":
                contents.append(data_text(part))
    return contents


def _require_supported(agent: AbstractAgent[Any, Any], deps: Callable[[Turn], Any] | None) -> None:
    if deps is None and agent.deps_type not in (NoneType, object):
        raise ConfigError(
            f"the agent has deps_type = {agent.deps_type.__qualname__}: pass deps, a function that returns the "
            "dependencies of a turn: pydantic_ai_agent(agent, deps=lambda turn: …)"
        )
    model = agent.model
    if isinstance(model, Model) and type(model).request_stream is Model.request_stream:
        raise ConfigError(f"the model {type(model).__qualname__} cannot stream: implement its request_stream")
    _require_deferred_output(agent)


def _require_deferred_output(agent: AbstractAgent[Any, Any]) -> None:
    """Check that a run with deferred tools can end with their calls, unless a capability of the agent handles them."""
    if any(item is DeferredToolRequests for item in _output_types(agent.output_type)):
        return
    capabilities: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(capabilities.append)
    default_handler = AbstractCapability.handle_deferred_tool_calls
    if any(type(capability).handle_deferred_tool_calls is not default_handler for capability in capabilities):
        return
    toolsets: list[AbstractToolset[Any]] = list(agent.toolsets)
    for toolset in agent.toolsets:
        toolset.apply(toolsets.append)
    tool = next((name for toolset in toolsets for name in _deferred_tools(toolset)), None)
    if tool is not None:
        raise ConfigError(
            f"tool {tool!r} needs an approval or an external result, and the agent has no output type for it: add "
            "DeferredToolRequests to its output_type: Agent(…, output_type=[str, DeferredToolRequests])"
        )


def _deferred_tools(toolset: AbstractToolset[Any]) -> Iterator[str]:
    match toolset:
        case ApprovalRequiredToolset():
            yield toolset.label
        case ExternalToolset():
            yield from (tool.name for tool in toolset.tool_defs)
        case FunctionToolset():
            yield from (name for name, tool in toolset.tools.items() if tool.requires_approval)


def _output_types(output: Any) -> Iterator[Any]:
    """Yield the types in an output specification, which is a type, a union, or a sequence of types and unions."""
    if isinstance(output, Sequence) and not isinstance(output, str):
        for item in output:
            yield from _output_types(item)
    elif get_origin(output) in (Union, UnionType):
        yield from get_args(output)
    else:
        yield output
