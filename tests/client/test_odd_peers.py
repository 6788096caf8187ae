"""A RemoteAgent and peers that answer oddly: every one ends in a result, or in an error that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.utils.errors import UnsupportedOperationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_celery.client import (
    AgentUnreachable,
    AnswerLost,
    AnswerUnreadable,
    DeadlineExceeded,
    RemoteAgent,
    Result,
    Session,
)
from tests.support.agents import card
from tests.support.webhooks import served


@asynccontextmanager
async def odd_peer(answers: Callable[[str], Any], *, streaming: bool = False) -> AsyncIterator[RemoteAgent]:
    """A JSON-RPC server that answers each method with what `answers` gives: a result, or a Response."""

    async def rpc(request: Request) -> Response:
        body = await request.json()
        answer = answers(body["method"])
        if isinstance(answer, Response):
            return answer
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": answer})

    async with served(Starlette(routes=[Route("/", rpc, methods=["POST"])])) as url:
        odd = card("odd", streaming=streaming)
        odd.supported_interfaces.add(url=f"{url}/", protocol_binding="JSONRPC", protocol_version="1.0")
        async with RemoteAgent(url, card=odd) as agent:
            yield agent


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"task": {}},
        {"task": {"id": "t", "status": None}},
        {"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED", "message": None}, "artifacts": None}},
        {"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [{"parts": None}]}},
        {"message": {"messageId": "m", "parts": None}},
        {"message": {}},
    ],
    ids=json.dumps,
)
async def test_a_peer_without_much_to_say_gives_an_empty_result(answer: dict[str, Any]) -> None:
    def answers(method: str) -> Any:
        return answer if method == "SendMessage" else answer.get("task")

    async with odd_peer(answers) as agent:
        if answer == {}:
            with pytest.raises(AnswerUnreadable):
                await agent.session().send("hello", deadline=30)
            return
        result = await agent.session().send("hello", deadline=30)

    assert (result.text, result.parts) == ("", [])


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        {"task": {"artifacts": [None]}},
        Response("<html>", media_type="text/html"),
        JSONResponse([1]),
        JSONResponse({"jsonrpc": "2.0", "id": 1}),
        JSONResponse({"jsonrpc": "2.0", "id": 1, "error": "no"}),
        Response('{"jsonrpc": "2.0", "id": 1, "result": {"task": {"id": "t", "status": {"state": "\\ud800"}}}}'),
        Response('{"jsonrpc": "2.0", "id": 1, "result": {"task": {"id": "t", "status": {"state": 1e400}}}}'),
        Response("[" * 5000),
    ],
    ids=lambda answer: answer.body.decode()[:80] if isinstance(answer, Response) else repr(answer),
)
async def test_what_is_no_answer_of_a2a_is_said_to_be_none(answer: Any) -> None:
    async with odd_peer(lambda method: answer) as agent:
        with pytest.raises(AnswerUnreadable, match="none of A2A's"):
            await agent.session().send("hello", deadline=30)


async def test_an_answer_that_ends_before_it_begins_is_lost() -> None:
    async with odd_peer(lambda method: Response("", media_type="text/event-stream"), streaming=True) as agent:
        with pytest.raises(AnswerLost, match="before it began"):
            await agent.session().send("hello", deadline=30)


async def test_a_further_turn_may_begin_with_the_task_as_it_was() -> None:
    old = {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}}
    new = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}}

    def answers(method: str) -> Response:
        frames = [{"jsonrpc": "2.0", "id": 1, "result": event} for event in (old, new)]
        return Response("".join(f"data: {json.dumps(one)}\n\n" for one in frames), media_type="text/event-stream")

    async with odd_peer(answers, streaming=True) as agent:
        session = agent.session(Session("c", "t", 6))
        assert (await session.send("seven", deadline=30)).state_name == "COMPLETED"

        session = agent.session()
        assert (await session.send("hello", deadline=30)).state_name == "INPUT_REQUIRED", "here it is the answer"


T_WORKS = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
T_IS_DONE = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}


def numbered(*results: Any) -> Response:
    """A stream whose events have ids."""
    frames = [{"jsonrpc": "2.0", "id": 1, "result": result} for result in results]
    body = "".join(f"id: {number}\ndata: {json.dumps(frame)}\n\n" for number, frame in enumerate(frames, start=1))
    return Response(body, media_type="text/event-stream")


@pytest.mark.parametrize("told", [[], [{}]], ids=["no event", "an empty event"])
async def test_ids_without_subscriptions_that_tell_anything_are_followed_to_the_end(told: list[Any]) -> None:
    """Some servers number their frames and keep no events; to an ended task they answer with an empty stream."""

    def answers(method: str) -> Any:
        streams = {"SendStreamingMessage": numbered({"task": T_WORKS}), "SubscribeToTask": numbered(*told)}
        return streams.get(method, T_IS_DONE)

    async with odd_peer(answers, streaming=True) as agent:
        assert (await agent.session().send("hello", deadline=30)).state_name == "COMPLETED"


async def test_a_server_that_fails_for_a_while_is_asked_again() -> None:
    """A gateway whose store is away says InternalError over JSON-RPC."""
    left = 0

    def answers(method: str) -> Any:
        nonlocal left
        if method == "SendStreamingMessage":
            return numbered({"task": T_WORKS})
        left -= 1
        if left >= 0:
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "try again later"}})
        return numbered({"task": T_IS_DONE}) if method == "SubscribeToTask" else T_IS_DONE

    async with odd_peer(answers, streaming=True) as agent:
        for begin in (lambda session: session.send("hello", deadline=30), lambda session: session.wait(deadline=30)):
            left = 4
            assert (await begin(agent.session(Session("c", "t", 2)))).state_name == "COMPLETED"
            assert left < 0


async def test_a_timeout_of_the_callers_own_is_no_deadline() -> None:
    async def headers() -> dict[str, str]:
        raise TimeoutError("of the token's server")

    async with RemoteAgent("http://127.0.0.1:1", headers=headers) as agent:
        with pytest.raises(TimeoutError, match="of the token's server"):
            await agent.session().send("hello")


async def test_the_agents_own_refusals_are_the_protocols_errors() -> None:
    error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32004, "message": "not here"}}
    async with odd_peer(lambda method: JSONResponse(error)) as agent:
        with pytest.raises(UnsupportedOperationError, match="not here"):
            await agent.session().send("hello")


async def test_a_task_whose_state_nobody_knows_is_waited_for_until_the_deadline() -> None:
    dreaming = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_DREAMING"}}
    async with odd_peer(lambda method: {"task": dreaming} if method == "SendMessage" else dreaming) as agent:
        with pytest.raises(DeadlineExceeded) as caught:
            await agent.session().send("hello", deadline=3)

    assert caught.value.result == Result.of(dreaming)


async def test_an_agent_that_nobody_has_ever_seen_is_unreachable_at_once() -> None:
    async with RemoteAgent("http://127.0.0.1:1") as agent:
        with pytest.raises(AgentUnreachable, match="can't be reached"):
            await agent.session().send("hello")
