"""Model and tool calls of a crew as durable steps and as activities.

CrewAI makes each call in one of several threads, which inherit the context of the run. Models are wrapped, because
CrewAI's hooks cannot replace a model call. Tool calls are recorded by hooks, which apply to every tool of an agent,
including the tools that CrewAI adds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any

from crewai import BaseLLM, Crew
from crewai.events import (
    LLMCallCompletedEvent,
    LLMGuardrailCompletedEvent,
    LLMStreamChunkEvent,
    TaskCompletedEvent,
    ToolUsageErrorEvent,
)
from crewai.events.stream_context import add_stream_sink, reset_stream_sinks
from crewai.hooks import InterceptionPoint, ToolCallHookContext
from crewai.hooks.dispatch import scoped_hooks
from crewai.tasks.task_output import TaskOutput
from crewai.types.usage_metrics import UsageMetrics
from crewai.utilities.agent_utils import extract_tool_call_info
from crewai.utilities.llm_utils import create_llm
from pydantic import BaseModel

from ..execution.agents.turn import Turn
from ..features.steps.journal import current_journal
from .conversation import OpenActivities
from .recorded_calls import MODEL, TOOL, RecordedCall
from .usage import Usage

BLOCKED = False
"""Result of a hook that prevents the execution of a tool."""


class CrewStopped(BaseException):
    """Wrapper for an exception in a hook. The wrapper is a BaseException, because CrewAI ignores every `Exception` of a
    hook.

    Attributes:
        error: The wrapped exception.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(eq=False)
class ModelCall:
    """Model call in progress.

    Attributes:
        task_id: Id of the crew's task, or "".
        text: Text that the model has streamed.
        usage: Token counts by the names of CrewAI's `UsageMetrics`.
        finish_reason: Finish reason that the provider reports, or "".
    """

    task_id: str
    text: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    finish_reason: str = ""


@dataclass(eq=False)
class ToolCall:
    """Tool call in progress, from the hook before the call to the hook after it.

    Attributes:
        call: Call in the journal, or None if the result is not recorded.
        executing: Context manager of the call; see `RecordedCall.executing`.
        state: State of the run before the call; see `CrewCalls._state`. None if the result is not recorded.
        activities: Registry with the activity of the call.
    """

    call: RecordedCall | None
    executing: AbstractContextManager[None]
    state: Any
    activities: OpenActivities = field(default_factory=OpenActivities)


MODEL_CALL: ContextVar[ModelCall] = ContextVar("a2a_celery_crewai_model_call")
"""Model call in progress in the current context."""


class CrewCalls:
    """Calls of a crew in one run.

    Args:
        turn: Turn of the run.
        durable: True to record the results of the calls.
        on_text: Function that receives the model call and the next chunk of its text.
        on_output: Function that receives the output of each task of the crew, with the id of the task.
        on_refusal: Function that receives the id of a task whose output a guardrail has refused.

    Attributes:
        usage: Tokens of all model calls of the turn, including recorded calls.
        finish_reason: Finish reason of the last model call, or "".
    """

    def __init__(
        self,
        turn: Turn,
        durable: bool,
        on_text: Callable[[ModelCall, str], None],
        on_output: Callable[[str, TaskOutput], None],
        on_refusal: Callable[[str], None],
    ) -> None:
        self._turn = turn
        self._durable = durable
        self._on_text = on_text
        self._on_output = on_output
        self._on_refusal = on_refusal
        self._journal = current_journal()
        self._is_closed = False
        self._tool_calls: dict[int, ToolCall] = {}
        self._failed_threads: set[int] = set()
        self._failures: list[tuple[RecordedCall, str]] = []
        self._lock = Lock()
        self.usage = Usage()
        self.finish_reason = ""

    def close(self) -> None:
        """Stop the crew at its next event, model call or tool call."""
        self._is_closed = True

    def record_models(self, crew: Crew) -> None:
        """Replace the crew's models with copies that stream and record their responses."""
        for agent in {id(agent): agent for agent in [*crew.agents, *(task.agent for task in crew.tasks)]}.values():
            if agent is not None:
                self._replace_models(agent, "llm", "function_calling_llm")
        self._replace_models(crew, "manager_llm", "function_calling_llm", "planning_llm")
        if crew.manager_agent is not None:
            self._replace_models(crew.manager_agent, "llm", "function_calling_llm")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the tool calls and events of a crew as part of this run inside the ``with`` block."""
        hooks = {
            InterceptionPoint.PRE_TOOL_CALL: [self._before_tool],
            InterceptionPoint.POST_TOOL_CALL: [self._after_tool],
        }
        token = add_stream_sink(self._on_event)
        try:
            with scoped_hooks(hooks):
                yield
        finally:
            reset_stream_sinks(token)

    def _raise_if_stopping(self) -> None:
        if self._is_closed or (self._journal is not None and self._journal.is_stopping):
            raise asyncio.CancelledError
        self._turn.stop_if_asking()

    def _replace_models(self, owner: Any, *names: str) -> None:
        for name in names:
            llm = vars(owner).get(name)  # a property of the class would warn of a deprecated name
            if llm is not None:
                setattr(owner, name, self._recorded_model(create_llm(llm)))

    def _recorded_model(self, llm: BaseLLM) -> BaseLLM:
        """Return a copy of a model whose `call` records the response.

        The copy has the class of its model, because CrewAI recognizes providers by their classes.
        """
        model_copy = copy(llm)
        if model_copy.stream is None:
            model_copy.stream = True
        call = model_copy.call

        def call_recorded(messages: Any, *args: Any, **kwargs: Any) -> Any:
            return self._call_model(model_copy, messages, kwargs, lambda: call(messages, *args, **kwargs))

        async def call_recorded_in_thread(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(call_recorded, *args, **kwargs)

        model_copy.call = call_recorded
        model_copy.acall = call_recorded_in_thread
        return model_copy

    def _call_model(self, llm: BaseLLM, messages: Any, options: dict[str, Any], call: Callable[[], Any]) -> Any:
        self._raise_if_stopping()
        self._record_failures()
        task = options.get("from_task")
        model_call = ModelCall("" if task is None else str(task.id))
        request = (llm.model, messages)
        recorded_call = RecordedCall.begin_blocking(MODEL, MODEL, request) if self._durable else None
        if recorded_call is not None and recorded_call.result is not None:
            return self._replay(llm.model, model_call, recorded_call.result, options)
        activities, usage_before = OpenActivities(), llm.get_token_usage_summary()
        token = MODEL_CALL.set(model_call)
        activities.model_call(MODEL, llm.model)
        try:
            response = call()
        except BaseException:
            if recorded_call is not None:
                recorded_call.abandon()
            raise
        finally:
            activities.end(MODEL)
            MODEL_CALL.reset(token)
        usage = model_call.usage or _counts(llm.get_token_usage_summary().delta_since(usage_before))
        self._count(llm.model, usage, model_call.finish_reason)
        content = None if recorded_call is None else _dumped_response(response)
        if recorded_call is None:
            return response
        if content is None:
            recorded_call.skip(TypeError(f"a response of the type {type(response).__qualname__}"))
            return response
        recorded_call.finish_blocking({"response": content, "usage": usage, "finish_reason": model_call.finish_reason})
        return _loaded_response(content, options)

    def _replay(self, model: str, model_call: ModelCall, record: dict[str, Any], options: dict[str, Any]) -> Any:
        response = _loaded_response(record["response"], options)
        self._count(model, record["usage"], record["finish_reason"])
        if isinstance(response, str) and response:
            self._on_text(model_call, response)
        return response

    def _count(self, model: str, tokens: dict[str, int], finish_reason: str) -> None:
        with self._lock:
            self.finish_reason = finish_reason
            self.usage.add(
                model,
                inputs=tokens.get("prompt_tokens"),
                outputs=tokens.get("completion_tokens"),
                cache_reads=tokens.get("cached_prompt_tokens"),
                cache_writes=tokens.get("cache_creation_tokens"),
                reasoning=tokens.get("reasoning_tokens"),
            )

    def _on_event(self, source: Any, event: Any) -> None:
        """Handle a CrewAI event synchronously, in the thread that emits the event."""
        self._raise_if_stopping()
        model_call = MODEL_CALL.get(None)
        match event:
            case LLMStreamChunkEvent() if model_call is not None:
                if event.chunk and event.tool_call is None:
                    model_call.text += event.chunk
                    self._on_text(model_call, event.chunk)
            case LLMCallCompletedEvent() if model_call is not None:
                usage = None if event.usage is None else UsageMetrics.from_provider_dict(event.usage)
                model_call.usage = {} if usage is None else _counts(usage)
                model_call.finish_reason = event.finish_reason or ""
            case ToolUsageErrorEvent():
                self._failed_threads.add(get_ident())
            case LLMGuardrailCompletedEvent(success=False):
                self._on_refusal(str(getattr(source, "id", "")))
            case TaskCompletedEvent():
                self._on_output(str(source.id), event.output)

    def _before_tool(self, context: ToolCallHookContext) -> bool | None:
        self._raise_if_stopping()
        try:
            call = self._begin_tool(context)
        except Exception as error:
            raise CrewStopped(error) from error
        is_recorded = call is not None and call.result is not None
        executing = nullcontext() if call is None or is_recorded else call.executing()
        tool_call = ToolCall(call, executing, None if call is None else self._state())
        self._tool_calls[id(context.tool_input)] = tool_call
        if is_recorded:
            return BLOCKED
        self._failed_threads.discard(get_ident())
        tool_call.activities.tool_call(TOOL, context.tool_name)
        tool_call.executing.__enter__()
        return None

    def _begin_tool(self, context: ToolCallHookContext) -> RecordedCall | None:
        """Return the next tool call, or None if the call is not recorded.

        A model without native tool calls receives a recorded result as text. For such a model, calls to a tool with
        `result_as_answer` are not recorded, because the tool's result must end the task.
        """
        is_native = context.agent is None or context.agent.llm.supports_function_calling()
        if not self._durable or (getattr(context.tool, "result_as_answer", False) and not is_native):
            return None
        return RecordedCall.begin_blocking(TOOL, context.tool_name, context.tool_input)

    def _after_tool(self, context: ToolCallHookContext) -> str | None:
        tool_call = self._tool_calls.pop(id(context.tool_input), None)
        if tool_call is None:  # another hook has prevented the execution
            return None
        call = tool_call.call
        if call is not None and call.result is not None:
            return str(call.result)
        tool_call.executing.__exit__(None, None, None)
        tool_call.activities.end(TOOL)
        has_failed = get_ident() in self._failed_threads
        self._failed_threads.discard(get_ident())
        self._raise_if_stopping()
        if call is None or self._state() != tool_call.state:
            return None
        if has_failed:
            with self._lock:
                self._failures.append((call, str(context.tool_result)))
        else:
            call.finish_blocking(str(context.tool_result))
        return None

    def _record_failures(self) -> None:
        """Record the failed tool calls after which the crew has continued with a model call."""
        with self._lock:
            failures, self._failures = self._failures, []
        for call, text in failures:
            call.finish_blocking(text)

    def _state(self) -> tuple[int, str]:
        """Return the state that a tool may change in addition to returning a result."""
        return self._turn.question_count, json.dumps(self._turn.session.state, default=str)


def _counts(usage: UsageMetrics) -> dict[str, int]:
    return {name: count for name, count in usage.model_dump().items() if count}


def _dumped_response(response: Any) -> dict[str, Any] | None:
    """Return a model response as a JSON object, or None if CrewAI needs the response in the provider's format."""
    match response:
        case str():
            return {"text": response}
        case BaseModel():
            return {"model": response.model_dump(mode="json")}
        case list() if response and not any(hasattr(item, "function_call") for item in response):
            calls = [extract_tool_call_info(item) for item in response]
            if all(calls):
                return {"calls": [_dumped_call(*call) for call in calls if call]}
    return None


def _dumped_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _loaded_response(content: dict[str, Any], options: dict[str, Any]) -> Any:
    if "model" in content:
        return options["response_model"].model_validate(content["model"])
    return content["text"] if "text" in content else content["calls"]
