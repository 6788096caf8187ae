"""`AgentSession.texts`: each text of a turn once, in pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from a2a.types import StreamResponse, Task
from google.protobuf.json_format import ParseDict

from a2a_celery.client import InputRequest, RemoteAgent, Result, Session, TaskNotCompleted
from a2a_celery.client.session import AgentSession
from a2a_celery.lifecycle.states import INPUT_REQUIRED
from tests.support.agents.states import States
from tests.support.processes.plain_server import plain_server

TASK = {"taskId": "t", "contextId": "c"}


def chunk(text: str, artifact: str = "a", *, append: bool = True) -> dict[str, Any]:
    update = {**TASK, "artifact": {"artifactId": artifact, "parts": [{"text": text}]}, "append": append}
    return {"artifactUpdate": update}


def status(state: str, text: str = "") -> dict[str, Any]:
    message = {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": text}]}} if text else {}
    return {"statusUpdate": {**TASK, "status": {"state": f"TASK_STATE_{state}", **message}}}


def snapshot(state: str, **artifacts: str) -> dict[str, Any]:
    listed = [{"artifactId": name, "parts": [{"text": text}]} for name, text in artifacts.items()]
    return {"task": {"id": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}, "artifacts": listed}}


class FakeAgent:
    """Agent that sends prepared events."""

    def __init__(self, events: Sequence[dict[str, Any]], stored: dict[str, Any] | None = None) -> None:
        self._events = events
        self._stored = stored

    async def stream(self, message: Any, **options: Any) -> AsyncGenerator[StreamResponse, None]:
        for event in self._events:
            yield ParseDict(event, StreamResponse())

    async def get(self, task_id: str) -> Result:
        return Result.of(self._stored)


async def pieces_of(
    *events: dict[str, Any], stored: dict[str, Any] | None = None
) -> tuple[list[tuple[str, str, bool]], AgentSession]:
    """Return the text, the artifact and `replaces` of each piece, and the session. A `stored` task waits for the
    message."""
    agent: Any = FakeAgent(events, stored)
    session = AgentSession(agent, Session("c", "t", INPUT_REQUIRED) if stored else Session())
    return [(str(piece), piece.artifact_id, piece.replaces) async for piece in session.texts("hello")], session


DONE = status("COMPLETED")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([chunk("one ", append=False), chunk("two"), DONE], ["one ", "two"]),
        ([chunk("one ", append=False), chunk("two", "b", append=False), DONE], ["one ", "\ntwo"]),
        ([chunk("one "), snapshot("WORKING", a="one two "), chunk("three"), DONE], ["one ", "two ", "three"]),
        ([chunk("one"), snapshot("COMPLETED", a="one", b="two")], ["one", "\ntwo"]),
        ([chunk("one"), chunk("one", append=False), DONE], ["one"]),
        ([status("WORKING", "Let me think"), chunk("one"), status("COMPLETED", "Bye.")], ["one"]),
        ([status("COMPLETED", "All in the status.")], ["All in the status."]),
        ([{"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}], ["hi"]),
        ([chunk("one"), status("INPUT_REQUIRED", "How many?")], ["one"]),
        ([DONE], []),
    ],
)
async def test_each_text_is_yielded_once(events: list[dict[str, Any]], expected: list[str]) -> None:
    pieces, session = await pieces_of(*events)

    assert [text for text, _, _ in pieces] == expected
    if session.result.stop_reason == "end_turn":
        assert "".join(expected) == session.result.text


@pytest.mark.parametrize("replacing", [chunk("No.", append=False), snapshot("WORKING", a="No.")])
async def test_a_piece_replaces_withdrawn_text(replacing: dict[str, Any]) -> None:
    pieces, _ = await pieces_of(chunk("Yes", append=False), replacing, chunk(" Sorry."), DONE)
    assert pieces == [("Yes", "a", False), ("No.", "a", True), (" Sorry.", "a", False)]


async def test_text_that_is_withdrawn_without_a_replacement_is_an_empty_piece() -> None:
    pieces, _ = await pieces_of(chunk("secret", append=False), chunk("", append=False), DONE)
    assert pieces == [("secret", "a", False), ("", "a", True)]


async def test_the_text_of_an_earlier_turn_is_not_repeated() -> None:
    stored = snapshot("INPUT_REQUIRED", a="first", b="kept")["task"]
    events = [snapshot("WORKING", a="first", b="kept"), chunk(" more"), chunk("first again", "b", append=False), DONE]
    pieces, _ = await pieces_of(*events, stored=stored)
    assert pieces == [(" more", "a", False), ("\nfirst again", "b", False)]


@pytest.mark.parametrize("state", ["FAILED", "REJECTED", "CANCELED"])
async def test_a_task_that_does_not_complete_raises_after_its_text(state: str) -> None:
    agent: Any = FakeAgent([chunk("one"), status(state, "Not today.\x1b[2J")])
    session, texts = AgentSession(agent, Session()), list[str]()

    async def read() -> None:
        async for piece in session.texts("hello"):
            texts.append(piece)

    with pytest.raises(TaskNotCompleted, match=f"task t is {state}: Not today") as failure:
        await read()
    assert texts == ["one"]
    assert failure.value.result.state_name == state
    assert str(failure.value).isprintable()


async def test_a_question_ends_the_text_and_its_answer_continues_it() -> None:
    async with plain_server(States()) as url, RemoteAgent(url) as agent:
        session = agent.session()
        assert [piece async for piece in session.texts("INPUT_REQUIRED")] == []
        request = InputRequest.of(session.result)
        assert request is not None
        assert request.text == "INPUT_REQUIRED it is"
        assert [piece async for piece in session.texts("seven")] == ["after seven"]


class TestRepr:
    def test_a_result_is_one_line(self) -> None:
        result = Result.of(snapshot("COMPLETED", a="x" * 1000 + "\n"), chunk("y", "b"))
        assert repr(result) == f"Result(state_name='COMPLETED', task_id='t', context_id='c', text='{'x' * 199}…')"
        assert repr(Result()) == "Result()"
        task = ParseDict(snapshot("COMPLETED")["task"], Task())
        task.artifacts.add(artifact_id="f").parts.add(url="https://e.com/f")
        assert repr(Result(task)) == "Result(state_name='COMPLETED', task_id='t', context_id='c', other_parts=1)"

    def test_a_session_names_its_state(self) -> None:
        session = Session("c", "t", INPUT_REQUIRED)
        assert repr(session) == "Session(context_id='c', task_id='t', state='INPUT_REQUIRED')"
        agent: Any = FakeAgent([])
        assert repr(AgentSession(agent, session)).startswith("AgentSession(context_id='c'")

    def test_a_question_is_one_line(self) -> None:
        request = InputRequest.of(Result.of({"id": "t"}, status("INPUT_REQUIRED", "How\nmany?")))
        assert repr(request) == "InputRequest(text='How\\nmany?', fields=[], task_id='t')"
