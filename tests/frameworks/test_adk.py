"""ADK session of a context. ADK finds the data that it stored, and state beyond the context is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from celery import Celery
from google.adk.agents.remote_a2a_agent import AgentCardResolutionError, RemoteA2aAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from a2a_celery import A2A, Turn
from a2a_celery.features.sessions.session import CURRENT, ContextSession
from a2a_celery.frameworks.adk import ContextSessionService

ME = {"app_name": "clerk", "user_id": "me"}
HERE = {**ME, "session_id": "c1"}


@pytest.fixture
def state() -> Iterator[dict[str, Any]]:
    """Session state of the current run."""
    session = SimpleNamespace(state={})
    token = CURRENT.set(cast(ContextSession, session))
    yield session.state
    CURRENT.reset(token)


@pytest.fixture
def service(state: dict[str, Any]) -> ContextSessionService:
    return ContextSessionService()


def user_event(text: str, at: float = 1.0, **changes: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(author="user", content=content, timestamp=at, actions=EventActions(state_delta=changes))


def texts(events: list[Event]) -> list[str | None]:
    return [part.text for event in events for part in (event.content and event.content.parts) or []]


async def test_what_was_appended_is_found_by_the_next_worker(
    service: ContextSessionService, state: dict[str, Any]
) -> None:
    session = await service.create_session(**HERE, state={"colour": None})
    await service.append_event(session, user_event("one", number=1))
    await service.append_event(session, user_event("two", at=2.0, number=2, **{"temp:secret": "x"}))
    state.update(json.loads(json.dumps(state)))  # the store keeps the state as JSON

    stored_session = await ContextSessionService().get_session(**HERE)

    assert stored_session is not None
    assert stored_session.events == session.events
    assert texts(stored_session.events) == ["one", "two"]
    assert stored_session.state == {"colour": None, "number": 2}
    assert stored_session.last_update_time == session.last_update_time == 2.0
    assert session.state["temp:secret"] == "x"


async def test_bytes_and_calls_come_back_as_they_were(service: ContextSessionService, state: dict[str, Any]) -> None:
    session = await service.create_session(**HERE)
    parts = [
        types.Part(inline_data=types.Blob(data=b"\x00\xff", mime_type="image/png")),
        types.Part(function_call=types.FunctionCall(id="f", name="book", args={"n": 1})),
    ]
    event = Event(author="clerk", content=types.Content(role="model", parts=parts), long_running_tool_ids={"f"})
    await service.append_event(session, event)
    json.dumps(state)

    stored_session = await service.get_session(**HERE)

    assert stored_session is not None
    assert stored_session.events == [event]


async def test_partial_events_of_a_stream_are_not_stored(service: ContextSessionService) -> None:
    session = await service.create_session(**HERE)
    event = user_event("a piece")
    event.partial = True
    await service.append_event(session, event)

    stored_session = await service.get_session(**HERE)

    assert stored_session is not None
    assert stored_session.events == []


@pytest.mark.parametrize(
    ("config", "texts_left"),
    [
        (GetSessionConfig(num_recent_events=2), ["two", "three"]),
        (GetSessionConfig(num_recent_events=9), ["one", "two", "three"]),
        (GetSessionConfig(num_recent_events=0), []),
        (GetSessionConfig(after_timestamp=3.0), ["three"]),
    ],
)
async def test_fewer_events_may_be_asked_for(
    service: ContextSessionService, config: GetSessionConfig, texts_left: list[str]
) -> None:
    session = await service.create_session(**HERE)
    for at, text in enumerate(("one", "two", "three"), 1):
        await service.append_event(session, user_event(text, at=float(at)))

    stored_session = await service.get_session(**HERE, config=config)

    assert stored_session is not None
    assert texts(stored_session.events) == texts_left


@pytest.mark.parametrize("name", ["app:motd", "user:name"])
async def test_state_of_more_than_the_context_is_refused(service: ContextSessionService, name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*remove the prefix"):
        await service.create_session(**HERE, state={name: "x"})
    session = await service.create_session(**HERE)
    with pytest.raises(ValueError, match=f"'{name}'.*remove the prefix"):
        await service.append_event(session, user_event("one", **{name: "x"}))

    stored_session = await service.get_session(**HERE)
    assert stored_session is not None
    assert (stored_session.events, stored_session.state) == ([], {})


async def test_a_context_has_one_session(service: ContextSessionService) -> None:
    session = await service.create_session(**HERE)

    with pytest.raises(AlreadyExistsError, match="already has the ADK session 'c1'"):
        await service.create_session(**ME, session_id="c2")
    assert await service.get_session(**ME, session_id="c2") is None
    assert await service.get_session(app_name="clerk", user_id="you", session_id="c1") is None
    assert [stored_session.id for stored_session in (await service.list_sessions(**ME)).sessions] == ["c1"]
    assert (await service.list_sessions(app_name="other")).sessions == []

    await service.delete_session(**HERE)

    assert (await service.list_sessions(**ME)).sessions == []
    with pytest.raises(SessionNotFoundError, match="'c1'"):
        await service.append_event(session, user_event("late"))


async def test_outside_of_a_run_the_error_names_the_cause() -> None:
    with pytest.raises(RuntimeError, match="session=True"):
        await ContextSessionService().get_session(**HERE)


async def adk_client(grpc_address: str | None) -> Any:
    """Return the A2A client that ADK creates from the card of a gateway with gRPC.

    Raises:
        AgentCardResolutionError: ADK refuses the card.
    """
    app = Celery("adk", broker="memory://", set_as_current=False)
    app.conf.update(a2a_store_url="redis://127.0.0.1:1/0", a2a_grpc_port=50051, a2a_grpc_public_address=grpc_address)
    a2a = A2A(app)

    async def echo(turn: Turn) -> str:
        return turn.text

    a2a.agent("echo")(echo)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(a2a.asgi(standalone=True))) as http:
        card = "http://localhost:8000/.well-known/agent-card.json"
        return await RemoteA2aAgent("echo", card, httpx_client=http)._ensure_resolved()


async def test_the_client_of_adk_takes_the_card_of_a_gateway_with_grpc() -> None:
    assert await adk_client(None) is not None


@pytest.mark.parametrize("address", ["localhost:50051", "dns:///localhost:50051", "https://localhost:50051"])
async def test_the_client_of_adk_takes_no_address_of_another_port(address: str) -> None:
    """If this test fails because ADK accepts an address with a different port, `grpc_public_address` can have a default
    again."""
    with pytest.raises(AgentCardResolutionError):
        await adk_client(address)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("ConnectionError", "The agent failed."),
        (None, "The agent failed."),
        ("SAFETY", "a text"),
        ("JAILBREAK", "a text"),
    ],
)
async def test_an_event_about_an_exception_has_no_text_of_it(
    service: ContextSessionService, code: str | None, text: str
) -> None:
    session = await service.create_session(**HERE)

    event = await service.append_event(session, Event(author="clerk", error_code=code, error_message="a text"))

    assert event.error_message == text
