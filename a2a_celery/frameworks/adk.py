"""Sessions of google-adk that go with their A2A context, so that its own A2A executor runs unmodified on any worker."""

from __future__ import annotations

from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic_core import to_jsonable_python

from ..execution.session import current_session
from .steps import OpenSteps

KEY = "adk"
"""Where it is in the state of the run's session."""

OF_MORE = (State.APP_PREFIX, State.USER_PREFIX)
"""How the names begin of what ADK keeps for more than one conversation."""


class ContextSessionService(BaseSessionService):
    """Keeps the ADK session of the context that the run at hand belongs to, in the session of the run.

    For agents with ``session=True``. What a turn adds is kept when it pauses or completes: one that fails, is cancelled
    or lost leaves the ADK session as it was. A context has one, and no state named ``app:…`` or ``user:…``, which would
    be that of other contexts too.
    """

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """See BaseSessionService.

        Raises:
            AlreadyExistsError: the context has one.
            ValueError: `state` is not of this context alone.
        """
        memory = _memory()
        if KEY in memory:
            raise AlreadyExistsError(f"this context has the ADK session {memory[KEY]['id']!r} already")
        kept = _own(state or {})
        session = Session(
            id=session_id or platform_uuid.new_uuid(),
            app_name=app_name,
            user_id=user_id,
            state=kept,
            last_update_time=platform_time.get_time(),
        )
        memory[KEY] = session.model_dump(mode="json")
        return session

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """See BaseSessionService."""
        kept = _memory().get(KEY)
        if kept is None or (kept["app_name"], kept["user_id"], kept["id"]) != (app_name, user_id, session_id):
            return None
        session = Session.model_validate(kept)
        if config and config.after_timestamp is not None:
            session.events = [event for event in session.events if event.timestamp >= config.after_timestamp]
        if config and config.num_recent_events is not None:
            session.events = session.events[max(0, len(session.events) - config.num_recent_events) :]
        return session

    async def append_event(self, session: Session, event: Event) -> Event:
        """See BaseSessionService.

        Raises:
            SessionNotFoundError: the context has no such session.
            ValueError: the event changes what is not of this context alone.
        """
        kept = _memory().get(KEY)
        if kept is None or kept["id"] != session.id:
            raise SessionNotFoundError(f"this context has no ADK session {session.id!r}")
        if event.partial:
            return event
        delta = _own(event.actions.state_delta) if event.actions else {}
        event = await super().append_event(session, event)
        session.last_update_time = kept["last_update_time"] = event.timestamp
        kept["state"].update(delta)
        kept["events"].append(event.model_dump(mode="json", exclude_none=True))
        return event

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The session of this context: the others are not for it to see."""
        kept = _memory().get(KEY)
        if kept is None or kept["app_name"] != app_name or user_id not in (None, kept["user_id"]):
            return ListSessionsResponse()
        return ListSessionsResponse(sessions=[Session.model_validate({**kept, "events": []})])

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """See BaseSessionService."""
        if await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id):
            del _memory()[KEY]


class ExecutionSteps(BasePlugin):
    """Tells each run which models and tools its agent calls; see `Turn.model_call`. Changes nothing of the calls."""

    def __init__(self) -> None:
        super().__init__(name="a2a_celery_steps")
        self._steps = OpenSteps()

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """See BasePlugin."""
        self._steps.model_call(_model_key(callback_context), llm_request.model or "")

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """See BasePlugin."""
        if not llm_response.partial:
            self._steps.end(_model_key(callback_context))

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> None:
        """See BasePlugin."""
        self._steps.end(_model_key(callback_context))

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        """See BasePlugin."""
        self._steps.tool_call(_tool_key(tool_context), tool.name)

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: dict[str, Any]
    ) -> None:
        """See BasePlugin."""
        self._steps.end(_tool_key(tool_context))

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> None:
        """See BasePlugin."""
        self._steps.end(_tool_key(tool_context))


def _model_key(context: CallbackContext) -> tuple[str, str]:
    return context.invocation_id, context.agent_name


def _tool_key(context: ToolContext) -> tuple[str, str | None]:
    return context.invocation_id, context.function_call_id


def _memory() -> dict[str, Any]:
    session = current_session()
    if session is None:
        raise RuntimeError("ContextSessionService works in the runs of agents that were added with session=True")
    return session.state


def _own(state: dict[str, Any]) -> dict[str, Any]:
    """What of `state` is kept, as JSON: all but what is of one invocation."""
    foreign = [name for name in state if name.startswith(OF_MORE)]
    if foreign:
        raise ValueError(
            f"state {foreign[0]!r}: only a context's own is kept; leave the prefix out, or keep it elsewhere"
        )
    kept = {name: value for name, value in state.items() if not name.startswith(State.TEMP_PREFIX)}
    made: dict[str, Any] = to_jsonable_python(kept)
    return made
