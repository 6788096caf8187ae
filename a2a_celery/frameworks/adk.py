"""Session service that stores google-adk sessions with their A2A contexts. ADK's unmodified A2A executor can then run
on any worker."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

from a2a.server.agent_execution import RequestContext
from a2a.server.events import Event as A2AEvent
from a2a.types import Message, Part, Role, TaskStatusUpdateEvent
from google.adk.a2a.converters.part_converter import convert_a2a_part_to_genai_part
from google.adk.a2a.executor.config import ExecuteInterceptor
from google.adk.a2a.executor.executor_context import ExecutorContext
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai.types import BlockedReason, Content, FinishReason
from google.genai.types import Part as GenAIPart
from google.protobuf.json_format import MessageToDict, ParseDict
from pydantic_core import to_jsonable_python

from ..execution.events.activities import Execution, current_execution
from ..features.sessions.session import current_session
from ..lifecycle.files import normalized_file
from ..lifecycle.outcomes import AGENT_FAILED
from ..lifecycle.questions import whole_numbers
from ..lifecycle.states import COMPLETED, is_interrupted
from .approvals import WORDS, call_text, decision_lines
from .conversation import MAX_PAUSED, EarlyStops, OpenActivities
from .recorded_calls import MODEL, TOOL, OpenCalls, RecordedCall
from .usage import Usage

KEY = "adk"
"""Key of the ADK session in the run's session state."""

PAUSED_USAGE = "adk_usage"
"""Key, in the run's session state, of the token counts of interrupted tasks by task id."""

EARLY = frozenset(reason.name.lower() for reason in FinishReason) - {"finish_reason_unspecified", "stop"}
"""ADK finish reasons of models that stopped early."""

MODEL_ERRORS = frozenset(reason.value for reason in (*FinishReason, *BlockedReason))
"""Error codes of responses that a model has ended early. ADK's other error codes name an exception."""

CONFIRMATION = "adk_request_confirmation"
"""Name of the function that ADK calls to request the confirmation of a tool call."""

OF_MORE = (State.APP_PREFIX, State.USER_PREFIX)
"""Prefixes of the state keys that ADK shares among conversations."""


class ContextSessionService(BaseSessionService):
    """ADK session service that stores the session of an A2A context in the session of the run.

    The service requires an agent with ``session=True``. Changes that a turn makes are stored when the turn pauses or
    completes. A turn that fails, is cancelled or is lost leaves the ADK session unchanged. A context has one ADK
    session. State with a key ``app:…`` or ``user:…`` is refused, because other contexts would share it.
    """

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create the session of the context; see BaseSessionService.

        Raises:
            AlreadyExistsError: The context already has a session.
            ValueError: `state` has a key that is shared with other contexts.
        """
        memory = _memory()
        if KEY in memory:
            raise AlreadyExistsError(f"this context already has the ADK session {memory[KEY]['id']!r}")
        saved_state = _own(state or {})
        session = Session(
            id=session_id or platform_uuid.new_uuid(),
            app_name=app_name,
            user_id=user_id,
            state=saved_state,
            last_update_time=platform_time.get_time(),
        )
        memory[KEY] = session.model_dump(mode="json")
        return session

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return the session of the context, or None if it does not exist; see BaseSessionService."""
        saved_state = _memory().get(KEY)
        if saved_state is None or (saved_state["app_name"], saved_state["user_id"], saved_state["id"]) != (
            app_name,
            user_id,
            session_id,
        ):
            return None
        session = Session.model_validate(saved_state)
        if config and config.after_timestamp is not None:
            session.events = [event for event in session.events if event.timestamp >= config.after_timestamp]
        if config and config.num_recent_events is not None:
            session.events = session.events[max(0, len(session.events) - config.num_recent_events) :]
        return session

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event; see BaseSessionService.

        The text of an exception in the event is replaced, because ADK's executor sends the appended event to the
        client.

        Raises:
            SessionNotFoundError: The context has no such session.
            ValueError: The event changes state that is shared with other contexts.
        """
        saved_state = _memory().get(KEY)
        if saved_state is None or saved_state["id"] != session.id:
            raise SessionNotFoundError(f"this context has no ADK session {session.id!r}")
        if event.partial:
            return event
        if event.error_message and event.error_code not in MODEL_ERRORS:
            event.error_message = AGENT_FAILED
        delta = _own(event.actions.state_delta) if event.actions else {}
        event = await super().append_event(session, event)
        session.last_update_time = saved_state["last_update_time"] = event.timestamp
        saved_state["state"].update(delta)
        saved_state["events"].append(event.model_dump(mode="json", exclude_none=True))
        return event

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the session of this context, without its events. Sessions of other contexts are not visible."""
        saved_state = _memory().get(KEY)
        if saved_state is None or saved_state["app_name"] != app_name or user_id not in (None, saved_state["user_id"]):
            return ListSessionsResponse()
        return ListSessionsResponse(sessions=[Session.model_validate({**saved_state, "events": []})])

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete the session of the context; see BaseSessionService."""
        if await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id):
            del _memory()[KEY]


class ExecutionSteps(BasePlugin):
    """ADK plugin that reports model and tool calls as activities and records their results.

    A later run of the turn receives the recorded results; see `Turn.model_call` and ``docs/frameworks/adk.md``.
    `token_usage` returns an interceptor that reports tokens.

    Args:
        durable: True to record the results. Use False if later calls depend on in-memory side effects of the tools.
    """

    def __init__(self, *, durable: bool = True) -> None:
        super().__init__(name="a2a_celery_steps")
        self._durable = durable
        self._activities = OpenActivities()
        self._calls = OpenCalls()
        self._usages: WeakKeyDictionary[Execution, Usage] = WeakKeyDictionary()

    def token_usage(self) -> ExecuteInterceptor:
        """Return an interceptor for ADK's `A2aAgentExecutorConfig` that reports the tokens of a turn.

        The metadata of the final status contains the sums for each model, as ``a2a_celery/usage``. If the agent has a
        session, the sums include tokens that the turn used before a question.
        """
        return ExecuteInterceptor(after_agent=self._report_usage)

    async def _report_usage(self, context: ExecutorContext, last: TaskStatusUpdateEvent) -> TaskStatusUpdateEvent:
        execution, session = current_execution(), current_session()
        paused_usage = {} if session is None else session.state.get(PAUSED_USAGE, {})
        usage = Usage(paused_usage.pop(last.task_id, None))
        if execution is not None:
            usage.add_all(self._usages.pop(execution, Usage()))
        if not is_interrupted(last.status.state):
            return usage.apply(last)
        if session is not None:
            newest = list(paused_usage.items())[1 - MAX_PAUSED :]
            session.state[PAUSED_USAGE] = {**dict(newest), last.task_id: usage.by_model}
        return last

    def _count(self, event: Event) -> None:
        tokens, execution = event.usage_metadata, current_execution()
        if tokens is not None and execution is not None:
            self._usages.setdefault(execution, Usage()).add(
                event.model_version,
                inputs=tokens.prompt_token_count,
                outputs=(tokens.candidates_token_count or 0) + (tokens.thoughts_token_count or 0),
                cache_reads=tokens.cached_content_token_count,
                reasoning=tokens.thoughts_token_count,
            )

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        key = _model_key(callback_context)
        if self._durable and not _is_streaming(callback_context):
            request = (callback_context.agent_name, _without_ids(llm_request.contents))
            record = self._calls.begin(key, MODEL, MODEL, request)
            if record is not None:
                _apply(EventActions.model_validate(record["actions"]), callback_context)
                return LlmResponse.model_validate(record["response"])
        self._activities.model_call(key, llm_request.model or "")
        return None

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        if not llm_response.partial:
            self._activities.end(_model_key(callback_context))

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> None:
        self._activities.end(_model_key(callback_context))
        self._calls.drop(_model_key(callback_context))

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        """Record a complete model response, with the changes of all callbacks, before the tools are called."""
        if not event.partial:
            self._count(event)
        call = None if event.partial else self._calls.drop((event.invocation_id, event.author))
        if call is not None and event.content is not None and event.error_code is None:
            response = event.model_dump(mode="json", exclude_none=True, include=set(LlmResponse.model_fields))
            await _finish(call, {"response": response}, event.actions)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        key = _tool_key(tool_context)
        if self._durable and not tool.is_long_running:
            record = self._calls.begin(key, TOOL, tool.name, (tool_context.agent_name, tool_args))
            if record is not None:
                _apply(EventActions.model_validate(record["actions"]), tool_context)
                result: dict[str, Any] = record["result"]
                return result
        self._activities.tool_call(key, tool.name)
        return None

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: dict[str, Any]
    ) -> None:
        self._activities.end(_tool_key(tool_context))
        call, actions = self._calls.drop(_tool_key(tool_context)), tool_context.actions
        if call is not None and not actions.requested_tool_confirmations and not actions.requested_auth_configs:
            await _finish(call, {"result": {"result": None} if result is None else result}, actions)

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> None:
        self._activities.end(_tool_key(tool_context))
        self._calls.drop(_tool_key(tool_context))


def stop_reasons(*, fail_on: Collection[str] = ()) -> ExecuteInterceptor:
    """Return an interceptor for ADK's `A2aAgentExecutorConfig` that reports the reason why a model stopped early.

    The task ends in COMPLETED with ADK's finish reason in lower case ("max_tokens", "safety") as ``stopReason`` in its
    metadata. For the reasons in `fail_on`, the task ends in FAILED.

    Raises:
        ConfigError: `fail_on` is a string, or contains a reason other than those in `EARLY`.
    """
    early_stops = EarlyStops(fail_on, EARLY)
    finish_reasons: WeakKeyDictionary[ExecutorContext, FinishReason | None] = WeakKeyDictionary()

    async def after_event(context: ExecutorContext, a2a_event: A2AEvent, event: Event) -> A2AEvent:
        finish_reasons[context] = event.finish_reason or finish_reasons.get(context)
        return a2a_event

    async def after_agent(context: ExecutorContext, last: TaskStatusUpdateEvent) -> TaskStatusUpdateEvent:
        reason = finish_reasons.pop(context, None)
        if reason is not None and reason.name.lower() in EARLY and last.status.state == COMPLETED:
            early_stops.apply(last, reason.name.lower())
        return last

    return ExecuteInterceptor(after_event=after_event, after_agent=after_agent)


def confirmations() -> ExecuteInterceptor:
    """Return an interceptor for ADK's `A2aAgentExecutorConfig` that asks for confirmations in words.

    The question has a text besides ADK's data parts, such as "Approve book(what='a table')? (yes or no)". The texts of
    `approvals.WORDS` are the same decision on all calls. ADK's own answers are still accepted.
    """

    async def after_agent(context: ExecutorContext, last: TaskStatusUpdateEvent) -> TaskStatusUpdateEvent:
        if calls := _confirmation_calls(last.status.message):
            lines = decision_lines([_question(call) for call in calls])
            last.status.message.parts.insert(0, Part(text="\n".join(lines)))
        return last

    async def before_agent(context: RequestContext) -> RequestContext:
        decision = WORDS.get(context.get_user_input().strip().lower())
        task, message = context.current_task, context.message
        if decision is None or task is None or message is None:
            return context
        earlier_messages = [earlier for earlier in task.history if earlier.role == Role.ROLE_AGENT]
        questions = [task.status.message, *earlier_messages[-1:]]
        calls = next((calls for question in questions if (calls := _confirmation_calls(question))), [])
        if calls:
            del message.parts[:]
            message.parts.extend(_confirmed(call, decision) for call in calls)
        return context

    return ExecuteInterceptor(before_agent=before_agent, after_agent=after_agent)


def _confirmation_calls(message: Message) -> list[dict[str, Any]]:
    """Return the confirmations that `message` requests, or an empty list if it also requests anything else."""
    calls = [MessageToDict(part.data) for part in message.parts if part.HasField("data")]
    are_confirmations = all(isinstance(call, dict) and call.get("name") == CONFIRMATION for call in calls)
    return calls if are_confirmations else []


def _question(call: dict[str, Any]) -> str:
    """Return the question about a call, with the hint of its tool. ADK's own hint is for programs."""
    original, hint = call["args"]["originalFunctionCall"], call["args"]["toolConfirmation"].get("hint", "")
    text = f"Approve {call_text(original['name'], whole_numbers(original.get('args', {})))}?"
    return f"{text} {hint}" if hint and "FunctionResponse" not in hint else text


def _confirmed(call: dict[str, Any], decision: bool) -> Part:
    response = {"id": call["id"], "name": CONFIRMATION, "response": {"confirmed": decision}}
    part: Part = ParseDict({"data": response, "metadata": {"adk_type": "function_response"}}, Part())
    return part


def convert_part(part: Part) -> GenAIPart | list[GenAIPart] | None:
    """Convert a part of a message as ADK does, but with the media type of a file and the content of a ``data:`` URI.

    The function is an `a2a_part_converter` for ADK's `A2aAgentExecutorConfig`.
    """
    return convert_a2a_part_to_genai_part(normalized_file(part))


def _model_key(context: CallbackContext) -> tuple[str, str]:
    return context.invocation_id, context.agent_name


def _tool_key(context: ToolContext) -> tuple[str, str | None]:
    return context.invocation_id, context.function_call_id


def _is_streaming(context: CallbackContext) -> bool:
    """Return True if the model streams its response. A streamed response may consist of several complete parts."""
    return context.run_config is not None and context.run_config.streaming_mode.value is not None


def _without_ids(contents: list[Content]) -> list[Any]:
    """Return the data that identifies a model call. ADK's ids for function calls differ in each run."""
    ids = {"parts": {"__all__": {"function_call": {"id"}, "function_response": {"id"}}}}
    return [content.model_dump(mode="json", exclude_none=True, exclude=ids) for content in contents]


async def _finish(call: RecordedCall, result: dict[str, Any], actions: EventActions) -> None:
    """Record the result of a call with its actions, unless the actions cannot be restored from JSON."""
    changes = actions.model_dump(mode="json", exclude_defaults=True)
    if EventActions.model_validate(changes) == actions:
        await call.finish({**result, "actions": changes})


def _apply(actions: EventActions, context: CallbackContext) -> None:
    """Repeat the state changes and other actions of a recorded call."""
    context.state.update(actions.state_delta)
    for name in actions.model_fields_set - {"state_delta"}:
        setattr(context.actions, name, getattr(actions, name))


def _memory() -> dict[str, Any]:
    session = current_session()
    if session is None:
        raise RuntimeError("ContextSessionService requires an agent that was added with session=True")
    return session.state


def _own(state: dict[str, Any]) -> dict[str, Any]:
    """Return `state` as a JSON object, without keys that belong to a single invocation.

    Raises:
        ValueError: `state` has a key that is shared with other contexts.
    """
    foreign = [name for name in state if name.startswith(OF_MORE)]
    if foreign:
        raise ValueError(
            f"state {foreign[0]!r}: only state of one context can be stored; remove the prefix, or store it elsewhere"
        )
    own_state = {name: value for name, value in state.items() if not name.startswith(State.TEMP_PREFIX)}
    json_state: dict[str, Any] = to_jsonable_python(own_state)
    return json_state
