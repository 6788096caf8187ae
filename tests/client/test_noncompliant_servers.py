"""`RemoteAgent` with non-compliant servers. Each response leads to a result, or to an error that names the problem."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from a2a.types import GetTaskRequest, Task, TaskState, a2a_pb2_grpc
from a2a.utils.errors import (
    A2AError,
    InternalError,
    MethodNotFoundError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.json_format import MessageToDict
from google.rpc import code_pb2, error_details_pb2, status_pb2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from a2a_celery.caller import Caller
from a2a_celery.cli.output import error_line
from a2a_celery.client import (
    AgentUnreachable,
    CallRefused,
    DeadlineExceeded,
    InvalidResponse,
    RemoteAgent,
    RemoteError,
    ResponseLost,
    Result,
    Session,
)
from a2a_celery.client.connection.turn_stream import MAX_BACKOFF, MAX_SILENCE_TIMEOUT, SILENCE_TIMEOUT
from a2a_celery.client.session import DEADLINE
from a2a_celery.clock import SYSTEM_CLOCK, Clock
from a2a_celery.features.families.agent_calls import AgentCalls, ChildCall
from tests.support.agents.basic import card
from tests.support.clocks import ManualClock, ShortSleepClock
from tests.support.processes.grpc_agent import grpc_agent
from tests.support.processes.serving import serve_app


@asynccontextmanager
async def odd_peer(
    answers: Callable[[str], Any],
    *,
    streaming: bool = False,
    version: str = "1.0",
    clock: Clock = SYSTEM_CLOCK,
    idempotent: bool = False,
) -> AsyncIterator[RemoteAgent]:
    """Yield a client of a JSON-RPC server. `answers` returns the result or the Response for each method."""

    async def rpc(request: Request) -> Response:
        body = await request.json()
        answer = answers(body["method"])
        if isinstance(answer, Response):
            return answer
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": answer})

    async with serve_app(Starlette(routes=[Route("/", rpc, methods=["POST"])])) as url:
        peer_card = card("odd", streaming=streaming)
        peer_card.supported_interfaces.add(url=f"{url}/", protocol_binding="JSONRPC", protocol_version=version)
        async with RemoteAgent(url, card=peer_card, clock=clock, idempotent=idempotent) as agent:
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
async def test_a_minimal_response_of_a_peer_is_an_empty_result(answer: dict[str, Any]) -> None:
    def answers(method: str) -> Any:
        return answer if method == "SendMessage" else answer.get("task")

    async with odd_peer(answers) as agent:
        if answer == {}:
            with pytest.raises(InvalidResponse):
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
async def test_an_invalid_response_is_an_error(answer: Any) -> None:
    async with odd_peer(lambda method: answer) as agent:
        with pytest.raises(InvalidResponse, match="an invalid A2A response"):
            await agent.session().send("hello", deadline=30)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_wrong_field_of_version_0_3_is_an_error(streaming: bool) -> None:
    """The SDK's client of 0.3 reads an event completely or not at all."""
    task = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "completed"}, "metadata": 5}

    def answers(method: str) -> Any:
        return Response(frames_of(task), media_type="text/event-stream") if streaming else task

    async with odd_peer(answers, streaming=streaming, version="0.3") as agent:
        with pytest.raises(InvalidResponse, match="metadata"):
            await agent.session().send("hello", deadline=30)


@pytest.mark.parametrize("task", [{}, {"id": "t"}], ids=json.dumps)
async def test_a_called_task_without_an_id_or_a_status_is_not_completed(task: dict[str, Any]) -> None:
    """A task without a state must not be confused with a direct message, which has no state either."""
    calls = AgentCalls(cast(Any, SimpleNamespace(run=SimpleNamespace(tasks=()))))
    async with odd_peer(lambda method: {"task": task} if method == "SendMessage" else task) as agent:
        call = ChildCall(agent, "hello", "", key="k", caller=Caller(), parent_id="p")
        with pytest.raises(InvalidResponse, match=r"without a status|neither a task"):
            await calls.result(call, (await calls.start(call)).task_id)


async def test_an_answer_that_ends_before_it_begins_is_lost() -> None:
    async with odd_peer(lambda method: Response("", media_type="text/event-stream"), streaming=True) as agent:
        with pytest.raises(ResponseLost, match="before its first event"):
            await agent.session().send("hello", deadline=30)


async def test_a_further_turn_may_begin_with_the_task_as_it_was() -> None:
    old = {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}}
    new = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}}

    def answers(method: str) -> Response:
        frames = [{"jsonrpc": "2.0", "id": 1, "result": event} for event in (old, new)]
        return Response("".join(f"data: {json.dumps(frame)}\n\n" for frame in frames), media_type="text/event-stream")

    async with odd_peer(answers, streaming=True) as agent:
        session = agent.session(Session("c", "t", 6))
        assert (await session.send("seven", deadline=30)).state_name == "COMPLETED"

        session = agent.session()
        assert (await session.send("hello", deadline=30)).state_name == "INPUT_REQUIRED", "here it is the answer"


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_a_line_of_a_stream_may_contain_line_separators_of_unicode(line_end: str) -> None:
    """JavaScript's JSON.stringify does not escape these characters, and server-sent events only end lines at CR and
    LF."""
    text = "one\x85two\u2028three\u2029four"
    chunk = {"artifactId": "a", "parts": [{"text": text}]}
    events = (
        {"task": T_WORKS},
        {"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": chunk}},
        {"task": T_IS_DONE | {"artifacts": [chunk]}},
    )
    frames = [json.dumps({"jsonrpc": "2.0", "id": 1, "result": event}, ensure_ascii=False) for event in events]
    body = "".join(f"data: {frame}{2 * line_end}" for frame in frames)

    async with odd_peer(lambda method: Response(body, media_type="text/event-stream"), streaming=True) as agent:
        assert (await agent.session().send("hello", deadline=30)).text == text


T_WORKS = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
T_IS_DONE = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}


def numbered_events(*results: Any) -> Response:
    """Return an SSE response whose events have ids."""
    frames = [{"jsonrpc": "2.0", "id": 1, "result": result} for result in results]
    body = "".join(f"id: {number}\ndata: {json.dumps(frame)}\n\n" for number, frame in enumerate(frames, start=1))
    return Response(body, media_type="text/event-stream")


@pytest.mark.parametrize("events", [[], [{}]], ids=["no event", "an empty event"])
async def test_streams_with_ids_but_without_stored_events_are_followed_to_the_end(events: list[Any]) -> None:
    """Some servers number their SSE events but store no events. For a terminal task, such a server sends an empty
    stream."""

    def answers(method: str) -> Any:
        streams = {
            "SendStreamingMessage": numbered_events({"task": T_WORKS}),
            "SubscribeToTask": numbered_events(*events),
        }
        return streams.get(method, T_IS_DONE)

    async with odd_peer(answers, streaming=True, clock=ShortSleepClock()) as agent:
        assert (await agent.session().send("hello", deadline=30)).state_name == "COMPLETED"


async def test_a_server_that_fails_for_a_while_is_asked_again() -> None:
    """A gateway whose store is unavailable responds with InternalError over JSON-RPC."""
    failure_count = 0

    def answers(method: str) -> Any:
        nonlocal failure_count
        if method == "SendStreamingMessage":
            return numbered_events({"task": T_WORKS})
        failure_count -= 1
        if failure_count >= 0:
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "try again later"}})
        return numbered_events({"task": T_IS_DONE}) if method == "SubscribeToTask" else T_IS_DONE

    async with odd_peer(answers, streaming=True, clock=ShortSleepClock()) as agent:
        for begin in (lambda session: session.send("hello", deadline=30), lambda session: session.wait(deadline=30)):
            failure_count = 4
            assert (await begin(agent.session(Session("c", "t", 2)))).state_name == "COMPLETED"
            assert failure_count < 0


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_task_whose_stream_ends_with_an_internal_error_is_followed(binding: str) -> None:
    """A gateway that cannot reach its store ends the stream with an error, and so does the SDK's server if the executor
    raises an exception. The task of the first continues, and the task of the second is FAILED."""
    failed = T_WORKS | {"status": {"state": "TASK_STATE_FAILED"}}

    async def respond(request: Request) -> Response:
        body = await request.body()
        if b"SendStreamingMessage" in body or request.url.path.endswith(":stream"):
            error = {"code": -32603 if binding == "JSONRPC" else 503, "message": "try again later"}
            events = [frame(result={"task": T_WORKS}), frame(error=error)]
            return Response("event: message\n{}event: error\n{}".format(*events), media_type="text/event-stream")
        return JSONResponse({"jsonrpc": "2.0", "id": 1, "result": failed} if binding == "JSONRPC" else failed)

    def frame(**fields: Any) -> str:
        value = {"jsonrpc": "2.0", "id": 1, **fields} if binding == "JSONRPC" else fields.get("result", fields)
        return f"data: {json.dumps(value)}\n\n"

    async with serve_app(Starlette(routes=[Route("/{path:path}", respond, methods=["GET", "POST"])])) as url:
        peer_card = card("odd")
        peer_card.supported_interfaces.add(url=f"{url}/", protocol_binding=binding, protocol_version="1.0")
        async with RemoteAgent(url, card=peer_card, clock=ShortSleepClock()) as agent:
            assert (await agent.session().send("hello", deadline=30)).state_name == "FAILED"


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_server_that_fails_for_a_while_is_sent_a_message_again_if_it_is_idempotent(streaming: bool) -> None:
    """Over JSON-RPC, a gateway whose store is unavailable responds with InternalError, without a reference."""
    errors: list[dict[str, Any]] = []

    def answers(method: str) -> Any:
        return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": errors.pop()}) if errors else {"task": T_IS_DONE}

    unavailable = {"code": -32603, "message": "try again later"}
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "metadata": {"reference": "r"}}
    for idempotent in (True, False):
        options: dict[str, Any] = {"streaming": streaming, "idempotent": idempotent, "clock": ShortSleepClock()}
        async with odd_peer(answers, **options) as agent:
            for call in (agent.submit, agent.session().send):
                errors += [unavailable] * 2
                if idempotent:
                    assert (await call("hello")).state_name == "COMPLETED"
                    errors.append(unavailable | {"data": [info]})
                with pytest.raises(InternalError):
                    await call("hello")
                errors.clear()


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


async def test_a_task_in_an_unknown_state_is_polled_until_the_deadline() -> None:
    clock, methods = ManualClock(), list[str]()
    unknown_task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_DREAMING"}}

    def answers(method: str) -> Any:
        methods.append(method)
        return {"task": unknown_task} if method == "SendMessage" else unknown_task

    async with odd_peer(answers, clock=clock) as agent:
        pending_send = asyncio.create_task(agent.session().send("hello", deadline=DEADLINE))
        for _ in range(3):
            clock.advance(await clock.next_wait(MAX_BACKOFF))
        await clock.next_wait(MAX_BACKOFF)
        clock.advance(DEADLINE)
        with pytest.raises(DeadlineExceeded) as exc_info:
            await pending_send

    assert exc_info.value.result == Result.of(unknown_task)
    assert methods == ["SendMessage", *["GetTask"] * 4]


async def test_an_agent_that_never_responded_is_unreachable_at_once() -> None:
    async with RemoteAgent("http://127.0.0.1:1") as agent:
        with pytest.raises(AgentUnreachable, match="is unreachable"):
            await agent.session().send("hello")


def frames_of(*results: Any) -> str:
    return "".join(f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': result})}\n\n" for result in results)


def endless(*results: Any) -> Response:
    """Return an SSE response that sends nothing after `results`, and never ends."""

    async def frames() -> AsyncIterator[str]:
        yield ": begin\n\n" + frames_of(*results)
        await asyncio.Event().wait()

    return StreamingResponse(frames(), media_type="text/event-stream")


def cut_off(*results: Any) -> Response:
    """Return an SSE response whose connection is lost after `results`."""

    async def frames() -> AsyncIterator[str]:
        yield frames_of(*results)
        raise ConnectionError

    return StreamingResponse(frames(), media_type="text/event-stream")


def paused_task(question: str) -> dict[str, Any]:
    message = {"messageId": question, "role": "ROLE_AGENT", "parts": [{"text": question}]}
    return {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": message}}


async def test_the_task_of_a_silent_stream_is_looked_at() -> None:
    """An SDK 0.3.26 server leaves the stream of a task open if the task is cancelled or its executor raises an
    exception."""
    clock, looks = ManualClock(), 0

    def answers(method: str) -> Any:
        nonlocal looks
        if method == "SendStreamingMessage":
            return endless({"task": T_WORKS})
        looks += 1
        return T_WORKS if looks < 3 else T_IS_DONE

    async with odd_peer(answers, streaming=True, clock=clock) as agent, asyncio.TaskGroup() as calls:
        events = agent.session().stream("hello")
        assert (await anext(events)).task.status.state == TaskState.TASK_STATE_WORKING
        end = calls.create_task(anext(events))
        for silence in (SILENCE_TIMEOUT, 2 * SILENCE_TIMEOUT, 4 * SILENCE_TIMEOUT):
            await clock.until_waiting(silence)
            clock.advance(silence)

    assert end.result().task.status.state == TaskState.TASK_STATE_COMPLETED
    assert looks == 3
    assert MAX_SILENCE_TIMEOUT > 4 * SILENCE_TIMEOUT


async def test_a_stream_that_never_begins_is_waited_for_until_the_deadline() -> None:
    clock = ManualClock()
    async with odd_peer(lambda method: endless(), streaming=True, clock=clock) as agent:
        pending_send = asyncio.create_task(agent.session().send("hello"))
        await clock.until_waiting(SILENCE_TIMEOUT, DEADLINE)
        clock.advance(DEADLINE)

        with pytest.raises(DeadlineExceeded, match="the message took longer than 3600"):
            await pending_send


async def test_the_task_that_a_message_answers_is_looked_at_also_before_the_stream_begins() -> None:
    clock = ManualClock()

    def answers(method: str) -> Any:
        return endless() if method == "SendStreamingMessage" else T_IS_DONE

    async with odd_peer(answers, streaming=True, clock=clock) as agent, asyncio.TaskGroup() as calls:
        pending_send = calls.create_task(agent.session(Session("c", "t", 6)).send("seven", deadline=None))
        await clock.until_waiting(SILENCE_TIMEOUT)
        clock.advance(SILENCE_TIMEOUT)

    assert pending_send.result().state_name == "COMPLETED"


async def test_a_question_that_was_asked_before_is_no_answer_when_the_stream_is_lost() -> None:
    """a2a-js starts the stream that follows an answer with the stored task."""
    tasks = [paused_task("How many?"), paused_task("How many?"), paused_task("Which colour?")]

    def answers(method: str) -> Any:
        if method == "SendStreamingMessage":
            return cut_off({"task": paused_task("How many?")})
        if method == "SubscribeToTask":
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": {"code": -32004, "message": "not here"}})
        return tasks.pop(0)

    async with odd_peer(answers, streaming=True, clock=ShortSleepClock()) as agent:
        assert (await agent.session(Session("c", "t", 6)).send("seven", deadline=30)).text == "Which colour?"

    assert tasks == []


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_a_time_without_a_zone_is_utc(version: str, streaming: bool) -> None:
    """fasta2a servers write times without a time zone."""
    naive = "2030-01-02T03:04:05.678901"
    data = {"timestamp": naive, "status": {"timestamp": naive}}
    if version == "0.3":
        artifact = {"artifactId": "a", "parts": [{"kind": "data", "data": data}]}
        status = {"state": "completed", "timestamp": naive}
        task: Any = {"kind": "task", "id": "t", "contextId": "c", "status": status, "artifacts": [artifact]}
    else:
        artifact = {"artifactId": "a", "parts": [{"data": data}]}
        status = {"state": "TASK_STATE_COMPLETED", "timestamp": naive}
        task = {"task": {"id": "t", "contextId": "c", "status": status, "artifacts": [artifact]}}

    def answers(method: str) -> Any:
        return Response(frames_of(task), media_type="text/event-stream") if streaming else task

    async with odd_peer(answers, streaming=streaming, version=version) as agent:
        result = await agent.session().send("hello", deadline=30)

    assert isinstance(result.raw, Task)
    assert result.raw.status.timestamp.ToJsonString() == f"{naive}Z"
    assert MessageToDict(result.parts[0].data) == data, "what an agent made is left as it is"
    assert Result.of(task) == result, "as the JSON of a webhook"


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_a_whole_number_that_protobuf_would_round_is_read_as_text(
    version: str, streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = {"id": 2**60 + 1, "at": 1.5e300, "small": 2**53 - 1}
    place = f"{version} {streaming}"  # each place is logged once
    if version == "0.3":
        artifact = {"artifactId": "a", "parts": [{"kind": "data", "data": {place: data}}]}
        status = {"state": "completed"}
        task: Any = {"kind": "task", "id": "t", "contextId": "c", "status": status, "artifacts": [artifact]}
    else:
        artifact = {"artifactId": "a", "parts": [{"data": {place: data}}]}
        task = {
            "task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [artifact]}
        }

    def answers(method: str) -> Any:
        return Response(frames_of(task), media_type="text/event-stream") if streaming else task

    async with odd_peer(answers, streaming=streaming, version=version) as agent:
        result = await agent.session().send("hello", deadline=30)

    assert MessageToDict(result.parts[0].data) == {place: data | {"id": "1152921504606846977"}}
    assert Result.of(task) == result, "as the JSON of a webhook"
    assert caplog.text.count(f"a whole number at the response, data.{place}.id is sent as a text") == 1


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"message": "Task not found"}, 404, TaskNotFoundError),
        ({"code": -32001, "message": "Task not found: t"}, 404, TaskNotFoundError),
        ({"code": -32002, "message": "Task cannot be canceled"}, 400, TaskNotCancelableError),
        ({"message": "Task cannot be canceled"}, 409, TaskNotCancelableError),
        ({"detail": "Not Found"}, 404, MethodNotFoundError),
        ("no agent here", 404, MethodNotFoundError),
        ({"message": "forbidden"}, 403, CallRefused),
        ({"code": "odd", "message": None}, 409, CallRefused),
    ],
    ids=str,
)
async def test_errors_of_version_03_over_http_are_read(body: Any, status: int, error: type[Exception]) -> None:
    """SDK 0.3.26 servers send only an error message. a2a-js 0.3 servers also send a code."""

    async def rest(request: Request) -> Response:
        return JSONResponse(body, status)

    async with serve_app(Starlette(routes=[Route("/v1/tasks/{path:path}", rest, methods=["GET", "POST"])])) as url:
        peer_card = card("odd")
        peer_card.supported_interfaces.add(url=url, protocol_binding="HTTP+JSON", protocol_version="0.3")
        async with RemoteAgent(url, card=peer_card) as agent:
            with pytest.raises(error):
                await agent.get("t")


NO_TEXTS = [None, 5, ["wrong"], {"text": "wrong"}]

NO_METADATA = [
    *(None, 5, "text", [1], {"errors": None}, {"errors": 5}, {"errors": "text"}, {"errors": {"field": "id"}}),
    *({"errors": [1, None, [], {}]}, {"errors": [{"field": 1, "message": {}}]}, {"reference": [1]}),
]


def error_bodies() -> list[dict[str, Any]]:
    """Return malformed errors that are valid at first sight, for JSON-RPC and HTTP+JSON."""
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "INVALID_PARAMS"}
    errors = [{"code": code, "message": "wrong"} for code in (None, "odd", [1], {}, -32602)]
    errors += [{"code": -32602, "message": message, "details": [info], "data": [info]} for message in NO_TEXTS]
    for details in (None, 5, "text", {}, [1, None, "text", []], *([info | {"metadata": m}] for m in NO_METADATA)):
        errors.append({"code": -32602, "message": "wrong", "details": details, "data": details})
    return errors


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_malformed_error_is_an_error_with_a_text(binding: str, version: str) -> None:
    bodies = error_bodies()

    async def respond(request: Request) -> Response:
        if binding == "JSONRPC":
            return JSONResponse({"jsonrpc": "2.0", "id": (await request.json())["id"], "error": bodies[0]})
        legacy = {"type": "InvalidParamsError", "message": bodies[0]["message"]}
        return JSONResponse({"error": bodies[0], **legacy}, 400)

    async with serve_app(Starlette(routes=[Route("/{path:path}", respond, methods=["GET", "POST"])])) as url:
        peer_card = card("odd", streaming=True)
        peer_card.supported_interfaces.add(url=f"{url}/", protocol_binding=binding, protocol_version=version)
        async with RemoteAgent(url, card=peer_card) as agent:
            while bodies:
                for call in (agent.get("t"), agent.submit("hello"), agent.session().send("hello", deadline=30)):
                    require_readable(await failure_of(call))
                del bodies[0]


async def failure_of(call: Awaitable[object]) -> A2AError | RemoteError:
    """Return the error that `call` raises."""
    with pytest.raises((A2AError, RemoteError)) as error:
        await call
    return error.value


def require_readable(error: A2AError | RemoteError) -> None:
    """Require that the fields of `error` have their types, and that commands can show the error."""
    if isinstance(error, A2AError):
        assert isinstance(error.message, str)
        assert error.data is None or isinstance(error.data, dict)
    assert error_line(error)


def packed(kind: Any, content: bytes) -> AnyMessage:
    return AnyMessage(type_url=f"type.googleapis.com/{kind.DESCRIPTOR.full_name}", value=content)


def grpc_status(*details: AnyMessage, code: int = code_pb2.RESOURCE_EXHAUSTED, message: str = "no") -> bytes:
    return status_pb2.Status(code=code, message=message, details=details).SerializeToString()


ENDLESS = error_details_pb2.RetryInfo()
ENDLESS.retry_delay.seconds = 2**62


@pytest.mark.parametrize(
    "status",
    [
        b"\xff",
        grpc_status(code=99),
        grpc_status(message="other"),
        *(
            grpc_status(packed(kind, b"\xff"))
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo)
        ),
        grpc_status(packed(error_details_pb2.RetryInfo, ENDLESS.SerializeToString())),
    ],
    ids=["no-status", "other-code", "other-message", "no-info", "no-request", "no-delay", "endless-delay"],
)
async def test_a_malformed_error_over_grpc_is_an_error_with_a_text(status: bytes) -> None:
    class Servicer(a2a_pb2_grpc.A2AServiceServicer):
        async def GetTask(self, request: GetTaskRequest, context: Any) -> None:
            context.set_trailing_metadata((("grpc-status-details-bin", status),))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")

    async with grpc_agent(Servicer()) as agent:
        require_readable(await failure_of(agent.get("t")))
