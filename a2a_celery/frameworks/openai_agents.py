"""Adapter for OpenAI Agents SDK agents. Tool approvals become a question to the client. Any worker can continue the
agent with the answer.

The answer is one JSON object, which maps the id of each call to true or false.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

from agents import (
    Agent,
    AgentUpdatedStreamEvent,
    FunctionTool,
    Handoff,
    InputGuardrailResult,
    InputGuardrailTripwireTriggered,
    ItemHelpers,
    Model,
    OutputGuardrailTripwireTriggered,
    RawResponsesStreamEvent,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunResultStreaming,
    RunState,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    TResponseInputItem,
)
from agents.items import TResponseStreamEvent
from agents.run import DEFAULT_MAX_TURNS
from agents.tool_context import ToolContext
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent
from pydantic_core import to_jsonable_python

from ..agents import FrameworkAgent
from ..errors import ConfigError, InputRequired, StepError
from ..execution.agents.turn import Turn
from ..features.steps.step_results import decode_result, encode_result
from ..integrations.openai_agents import DelegatingModel, WrappingProvider, is_agent_tool, with_copied_target
from ..lifecycle.files import file_name, normalized_file
from .approvals import APPROVAL, asking, decisions, pending_call, refuse_late_answer
from .conversation import Conversation, EarlyStops, OpenActivities, data_text
from .recorded_calls import MODEL, TOOL, RecordedCall
from .usage import Usage

ContextT = TypeVar("ContextT")

ITEMS, STATE = "items", "state"
"""Keys of the stored conversation: its items, or the state of a run that waits for approvals."""

TRIPWIRES: dict[type[Exception], str] = {
    InputGuardrailTripwireTriggered: "input_guardrail",
    OutputGuardrailTripwireTriggered: "output_guardrail",
    ToolInputGuardrailTripwireTriggered: "tool_input_guardrail",
    ToolOutputGuardrailTripwireTriggered: "tool_output_guardrail",
}
"""Stop reasons of turns that a guardrail has ended."""

DECLINED = "A guardrail has declined the request."


def openai_agent(
    agent: Agent[ContextT],
    *,
    context: Callable[[Turn], ContextT] | None = None,
    run_config: RunConfig | None = None,
    max_turns: int | None = DEFAULT_MAX_TURNS,
    fail_on: Collection[str] = (),
    guardrail_text: str = DECLINED,
    durable: bool = True,
) -> FrameworkAgent:
    """Return an agent for `A2A.add_agent` that runs an OpenAI Agents SDK agent.

    The text of agents without an `output_type` is streamed. A final output that has not been streamed, such as the
    result of a tool, is sent at the end. The items of the conversation are stored in the session. A cancellation takes
    effect at the agent's next await.

    Text is not sent before the guardrails have accepted it. If a guardrail trips, the turn ends in REJECTED with
    ``stopReason`` in its metadata (`TRIPWIRES`). For the reasons in `fail_on`, the turn ends in FAILED.

    Args:
        agent: Agent that each turn starts with, shared by all runs of a worker process.
        context: Function that returns the context object of a run, or None for no context object.
        run_config: Configuration of each run, or None for the SDK's defaults.
        max_turns: Maximum number of model calls in a run, or None for no limit.
        fail_on: Stop reasons that fail the task.
        guardrail_text: Text that the client receives if a guardrail trips.
        durable: True to record the results of model and tool calls, so that no later run of a turn repeats the calls.
            Use False if later calls depend on in-memory side effects of the tools.

    Raises:
        ConfigError: `agent` is not an `Agent`, `run_config` has options for sessions, or `fail_on` is invalid.
    """
    early_stops = EarlyStops(fail_on, frozenset(TRIPWIRES.values()))
    config = run_config or RunConfig()
    _require_supported(agent, config)

    async def answer(turn: Turn) -> AsyncGenerator[Any, None]:
        conversation = Conversation(turn)
        copies = _RecordedAgents(turn, durable, conversation.usage)
        result = await _start(turn, conversation, copies, agent, context, config, max_turns)
        streamed_text = ""
        input_guardrails = [] if conversation.questions else [*agent.input_guardrails, *(config.input_guardrails or [])]
        try:
            async with aclosing(_texts(result, config, len(input_guardrails))) as texts:
                async for text in texts:
                    streamed_text += text
                    yield text
        except tuple(TRIPWIRES) as tripwire:
            yield early_stops.refusal(turn, TRIPWIRES[type(tripwire)], guardrail_text, conversation.usage)
            return
        turn.stop_if_asking()
        if result.interruptions:
            raise _pause(conversation, result)
        conversation.go_on({ITEMS: to_jsonable_python(result.to_input_list())})
        if not _is_streamed(result, streamed_text):
            yield to_jsonable_python(result.final_output)
        for end in early_stops.final_status(turn, None, conversation.usage):
            yield end

    return answer


class _RecordedAgents:
    """Copies of agents for one run, whose model and tool calls are activities with recorded results.

    The result of a tool call is not recorded if the tool has asked a question, has changed the session, or is an agent
    that waits for an approval, because a later run needs these side effects.
    """

    def __init__(self, turn: Turn, durable: bool, usage: Usage) -> None:
        self._turn = turn
        self._durable = durable
        self._usage = usage
        self._copies: dict[int, Agent[Any]] = {}

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the copy of an agent. The copy hands off only to other copies."""
        if id(agent) not in self._copies:
            model = self.model(agent.model) if isinstance(agent.model, Model) else agent.model
            tools = [self._tool(tool) if isinstance(tool, FunctionTool) else tool for tool in agent.tools]
            agent_copy = agent.clone(model=model, model_settings=agent.model_settings, tools=tools)
            self._copies[id(agent)] = self._copies[id(agent_copy)] = (
                agent_copy  # before the handoffs, which may be circular
            )
            agent_copy.handoffs = [
                with_copied_target(handoff, self.agent) if isinstance(handoff, Handoff) else self.agent(handoff)
                for handoff in agent.handoffs
            ]
        return self._copies[id(agent)]

    def model(self, model: Model) -> Model:
        """Return a model that records the responses of `model`."""
        return _RecordedModel(model, self._turn, self._durable, self._usage)

    def recording_config(self, config: RunConfig) -> RunConfig:
        """Return a copy of `config` whose models record their responses."""
        model = self.model(config.model) if isinstance(config.model, Model) else config.model
        return replace(config, model=model, model_provider=WrappingProvider(config.model_provider, self.model))

    def _tool(self, tool: FunctionTool) -> FunctionTool:
        tool_copy = copy(tool)
        invoke = tool_copy.on_invoke_tool

        @wraps(invoke)
        async def invoke_recorded(context: ToolContext[Any], arguments: str) -> Any:
            return await self._call(tool, arguments, lambda: invoke(context, arguments))

        tool_copy.on_invoke_tool = invoke_recorded
        return tool_copy

    async def _call(self, tool: FunctionTool, arguments: str, invoke: Callable[[], Any]) -> Any:
        self._turn.stop_if_asking()
        call = RecordedCall.begin(TOOL, tool.name, arguments) if self._durable else None
        if call is None:
            return await self._execute(tool.name, invoke)
        if call.result is not None:
            return _loaded_result(call.result)
        state = self._state()
        with call.executing():
            result = await self._execute(tool.name, invoke)
        is_waiting = result is None and is_agent_tool(tool)
        if self._state() == state and not is_waiting:
            await _record_result(call, tool.name, result)
        return result

    async def _execute(self, name: str, invoke: Callable[[], Any]) -> Any:
        activities = OpenActivities()
        activities.tool_call(TOOL, name)
        try:
            return await invoke()
        finally:
            activities.end(TOOL)

    def _state(self) -> tuple[int, str]:
        """Return the state that a tool may change in addition to returning a result."""
        return self._turn.question_count, json.dumps(self._turn.session.state, default=str)


class _RecordedModel(DelegatingModel):
    """Model whose complete streamed responses are recorded and counted. A recorded response is sent as one chunk."""

    def __init__(self, model: Model, turn: Turn, durable: bool, usage: Usage) -> None:
        super().__init__(model)
        self._turn = turn
        self._durable = durable
        self._usage = usage

    async def stream_response(
        self, system_instructions: str | None, input: str | list[TResponseInputItem], *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the events of the response."""
        self._turn.stop_if_asking()
        call = RecordedCall.begin(MODEL, MODEL, input) if self._durable else None
        if call is not None and call.result is not None:
            response = Response.model_validate(call.result)
            self._count(response)
            for event in _recorded_events(response):
                yield event
            return
        activities = OpenActivities()
        activities.model_call(MODEL, str(getattr(self.model, "model", "") or ""))
        try:
            async for event in self.model.stream_response(system_instructions, input, *args, **kwargs):
                if isinstance(event, ResponseCompletedEvent):
                    self._count(event.response)
                    if call is not None:
                        await call.finish(event.response.model_dump(mode="json", exclude_unset=True, warnings=False))
                yield event
        finally:
            activities.end(MODEL)

    def _count(self, response: Response) -> None:
        tokens = response.usage
        if tokens is not None:
            self._usage.add(
                response.model,
                inputs=tokens.input_tokens,
                outputs=tokens.output_tokens,
                cache_reads=tokens.input_tokens_details.cached_tokens,
                reasoning=tokens.output_tokens_details.reasoning_tokens,
            )


def _recorded_events(response: Response) -> Iterator[TResponseStreamEvent]:
    """Yield the text of a recorded response as one chunk, and then the complete response."""
    if response.output_text:
        yield ResponseTextDeltaEvent(
            content_index=0,
            delta=response.output_text,
            item_id=response.output[0].id or "",
            logprobs=[],
            output_index=0,
            sequence_number=0,
            type="response.output_text.delta",
        )
    yield ResponseCompletedEvent(response=response, sequence_number=1, type="response.completed")


async def _record_result(call: RecordedCall, name: str, result: Any) -> None:
    try:
        form, content = encode_result(name, result)
    except StepError as problem:
        call.skip(problem)
        return
    await call.finish({"form": form, "content": b64encode(content).decode() if form == "bytes" else content.decode()})


def _loaded_result(record: dict[str, str]) -> Any:
    form, content = record["form"], record["content"]
    return decode_result(form, b64decode(content) if form == "bytes" else content.encode())


async def _start(
    turn: Turn,
    conversation: Conversation,
    copies: _RecordedAgents,
    agent: Agent[ContextT],
    context: Callable[[Turn], ContextT] | None,
    config: RunConfig,
    max_turns: int | None,
) -> RunResultStreaming:
    """Start a run with a copy of the agent."""
    starting = cast(Agent[ContextT], copies.agent(agent))
    run_context = None if context is None else context(turn)
    return Runner.run_streamed(
        starting,
        await _begin(turn, conversation, starting, run_context),
        context=run_context,
        run_config=copies.recording_config(config),
        max_turns=max_turns,
    )


async def _begin(
    turn: Turn, conversation: Conversation, agent: Agent[ContextT], context: ContextT | None
) -> list[TResponseInputItem] | RunState[ContextT]:
    """Return the input of the run: the conversation with the new message, or the paused state with the client's
    decisions."""
    memory = conversation.memory or {}
    if not conversation.questions:
        refuse_late_answer(turn)
        message = {"role": "user", "content": _contents(turn)}
        return [*memory.get(ITEMS, []), message]
    choices = decisions(turn, conversation.questions)
    state = await RunState.from_json(agent, memory[STATE], context_override=RunContextWrapper(context=context))
    for interruption in state.get_interruptions():
        if choices[str(interruption.call_id)]:
            state.approve(interruption)
        else:
            state.reject(interruption)
    return cast(RunState[ContextT], state)


def _pause(conversation: Conversation, result: RunResultStreaming) -> InputRequired:
    """Store the state of the run, and return the question about its interruptions."""
    state = result.to_state().to_json(context_serializer=lambda _: {})
    pending = [
        pending_call(APPROVAL, str(item.call_id), item.name or "", item.arguments or "")
        for item in result.interruptions
    ]
    conversation.pause({STATE: to_jsonable_python(state)}, pending)
    return asking(pending)


async def _texts(
    result: RunResultStreaming, config: RunConfig, input_guardrail_count: int
) -> AsyncGenerator[str, None]:
    """Yield the chunks of text of agents whose output is text and has no output guardrails.

    Text is buffered until the input guardrails, which run beside the model, have accepted the message. If the
    generator is closed early, the run is cancelled.
    """
    streams_text = False
    buffered_text = ""
    async with aclosing(cast(Any, result.stream_events())) as events:
        try:
            async for event in events:
                match event:
                    case AgentUpdatedStreamEvent(new_agent=agent):
                        is_checked = agent.output_guardrails or config.output_guardrails
                        streams_text = agent.output_type in (None, str) and not is_checked
                    case RawResponsesStreamEvent(data=ResponseTextDeltaEvent(delta=text)) if streams_text:
                        buffered_text += text
                checks = result.input_guardrail_results
                if buffered_text and len(checks) >= input_guardrail_count and not any(map(_is_tripped, checks)):
                    yield buffered_text
                    buffered_text = ""
        except BaseException:
            result.cancel()  # otherwise the SDK waits for the end of the run
            raise
    if buffered_text:
        yield buffered_text


def _is_tripped(result: InputGuardrailResult) -> bool:
    return result.output.tripwire_triggered


def _is_streamed(result: RunResultStreaming, streamed_text: str) -> bool:
    """Return True if the final output is the text of the last response, and `streamed_text` ends with this text."""
    output = result.final_output
    if not isinstance(output, str) or not streamed_text.strip().endswith(output.strip()):
        return False
    items = [item for response in result.raw_responses[-1:] for item in response.output]
    return output in [ItemHelpers.extract_text(cast(Any, item)) or "" for item in items]


def _contents(turn: Turn) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    for part in map(normalized_file, turn.parts):
        is_image = part.media_type.startswith("image/")
        match part.WhichOneof("content"):
            case "text":
                contents.append({"type": "input_text", "text": part.text})
            case "raw":
                url = f"data:{part.media_type};base64,{b64encode(part.raw).decode()}"
                file = {"type": "input_file", "file_data": url, "filename": file_name(part)}
                contents.append(_image(url) if is_image else file)
            case "url":
                contents.append(_image(part.url) if is_image else {"type": "input_file", "file_url": part.url})
            case "data":
                text = data_text(part)
                contents.append({"type": "input_text", "text": text})
    return contents


def _image(url: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _require_supported(agent: Any, config: RunConfig) -> None:
    if not isinstance(agent, Agent):
        raise ConfigError(f"openai_agent({agent!r}): pass an agents.Agent")
    for name in ("session_input_callback", "session_settings"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"run_config.{name}: the conversation is stored in the session of the A2A context; use "
                "call_model_input_filter to change the input of the model"
            )
