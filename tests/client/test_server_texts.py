"""Texts of servers in the errors of the client: one readable line without the tracebacks of other libraries."""

from __future__ import annotations

import json
import traceback
from typing import Any

import grpc
import httpx
import pytest
from a2a.types import AgentCard, a2a_pb2_grpc
from a2a.utils.errors import A2AError, InvalidParamsError, MethodNotFoundError, TaskNotFoundError

from a2a_celery.client import AgentUnreachable, CallRefused, InvalidResponse, RemoteAgent, RemoteError, TooManyRequests
from a2a_celery.client.errors import MAX_TEXT_LENGTH
from tests.support.agents.basic import card
from tests.support.processes.grpc_agent import grpc_agent

URL = "http://agent.example.com"
SENTENCE = "Not permitted in this tenant: use a tenant that your credentials allow"
BAD_REQUEST = {
    "@type": "type.googleapis.com/google.rpc.BadRequest",
    "fieldViolations": [{"field": "message.parts", "description": "Must have an item."}],
}
INFO = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "INVALID_PARAMS", "domain": "a2a-protocol.org"}


def agent_card(binding: str, version: str = "1.0") -> AgentCard:
    single = card("echo")
    del single.supported_interfaces[:]
    single.supported_interfaces.add(url=URL, protocol_binding=binding, protocol_version=version)
    return single


async def error_of(
    response: httpx.Response, binding: str = "JSONRPC", version: str = "1.0", *, streams: bool = False
) -> Exception:
    """Return the error of a call that a server answers with `response`."""
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(lambda request: response)) as http,
        RemoteAgent(URL, card=agent_card(binding, version), http=http, reconnect_timeout=0) as agent,
    ):
        try:
            await (agent.session().send("hello") if streams else agent.submit("hello"))
        except (A2AError, RemoteError) as e:
            return e
    raise AssertionError("the call did not fail")


BODIES: list[Any] = [
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -31403, "message": SENTENCE}},
    {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": SENTENCE}},
    {"message": SENTENCE},
    {"detail": SENTENCE},
    {"error": "access_denied", "error_description": SENTENCE},
]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize(
    ("status", "kind"), [(403, CallRefused), (401, CallRefused), (429, TooManyRequests), (503, AgentUnreachable)]
)
async def test_an_http_status_comes_with_the_server_s_sentence(
    binding: str, version: str, status: int, kind: type[Exception], streams: bool
) -> None:
    for body in BODIES:
        error = await error_of(httpx.Response(status, json=body), binding, version, streams=streams)
        while error.__cause__ is not None:  # a lost response has the failed attempt as its single cause
            error = error.__cause__  # type: ignore[assignment]
        assert isinstance(error, kind)
        assert str(error) == f"{URL} responded {status}: {SENTENCE}"


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (httpx.Response(403), "the credentials lack permission"),
        (httpx.Response(403, html="<html>no</html>"), "the credentials lack permission"),
        (httpx.Response(401, json={"detail": "Unauthorized"}), "check the credentials"),
        (httpx.Response(403, json=["no"]), "the credentials lack permission"),
        (httpx.Response(403, text="blocked\nby the proxy"), "blocked by the proxy"),
    ],
)
async def test_without_a_sentence_there_is_advice(response: httpx.Response, text: str) -> None:
    assert str(await error_of(response)) == f"{URL} responded {response.status_code}: {text}"


@pytest.mark.parametrize("status", [200, 403])
async def test_a_text_is_one_printable_line_of_limited_length(status: int) -> None:
    hostile_text = "first\nsecond \x1b[2J\u202e" + "x" * 100_000
    for code in (-32602, -32099):
        body = {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": hostile_text}}
        text = str(await error_of(httpx.Response(status, json=body)))
        assert "first second " in text
        assert text.isprintable()
        assert len(text) < MAX_TEXT_LENGTH + 100


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("details", [[INFO, BAD_REQUEST], [BAD_REQUEST], ["odd", BAD_REQUEST | {"more": 1}]])
async def test_invalid_fields_are_in_the_text_and_the_data(details: list[Any], streams: bool) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "Invalid params", "data": details}}
    error = await error_of(httpx.Response(200, json=body), streams=streams)

    assert isinstance(error, InvalidParamsError)
    assert str(error) == error.message == "Invalid params; message.parts: Must have an item."
    assert error.data == {"errors": [{"field": "message.parts", "message": "Must have an item."}]}


@pytest.mark.parametrize("streams", [True, False])
async def test_invalid_fields_of_http_json_are_too(streams: bool) -> None:
    body = {"error": {"code": 400, "message": "Invalid params", "details": [INFO, BAD_REQUEST]}}
    error = await error_of(httpx.Response(400, json=body), "HTTP+JSON", streams=streams)

    assert isinstance(error, InvalidParamsError)
    assert str(error) == "Invalid params; message.parts: Must have an item."


@pytest.mark.parametrize("fields", [7, None, "x", [7], [{"field": 7}], {}])
async def test_malformed_fields_are_left_out(fields: Any) -> None:
    details = [BAD_REQUEST | {"fieldViolations": fields}]
    body = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "Invalid params", "data": details}}
    assert str(await error_of(httpx.Response(200, json=body))).startswith("Invalid params")


async def test_an_error_event_of_http_json_has_the_server_s_sentence() -> None:
    event = json.dumps({"error": {"code": 403, "status": "PERMISSION_DENIED", "message": SENTENCE}})
    response = httpx.Response(
        200, text=f"event: error\ndata: {event}\n\n", headers={"content-type": "text/event-stream"}
    )
    assert str(await error_of(response, "HTTP+JSON", streams=True)) == f"{URL} refused the call: {SENTENCE}"


class RefusingGrpcAgent(a2a_pb2_grpc.A2AServiceServicer):
    async def GetTask(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, SENTENCE)


async def test_grpc_has_the_server_s_sentence() -> None:
    async with grpc_agent(RefusingGrpcAgent()) as agent:
        with pytest.raises(CallRefused, match=f"responded PERMISSION_DENIED: {SENTENCE}"):
            await agent.get("t")


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (httpx.Response(403, json=BODIES[0]), CallRefused),
        (httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32001}}), TaskNotFoundError),
        (httpx.Response(200, text="no JSON"), InvalidResponse),
    ],
)
async def test_a_traceback_has_no_frame_and_no_exception_of_another_library(
    response: httpx.Response, kind: type[Exception]
) -> None:
    error = await error_of(response)
    text = "".join(traceback.format_exception(error))

    assert isinstance(error, kind)
    assert "site-packages" not in text
    assert "Traceback" not in text.partition("Traceback")[2]
    assert len(text.splitlines()) < 40


async def test_a_missing_path_of_http_json_has_the_server_s_sentence() -> None:
    error = await error_of(httpx.Response(404, json={"detail": "No such agent"}), "HTTP+JSON")
    assert isinstance(error, MethodNotFoundError)
    assert str(error) == f"Resource not found: {URL}/message:send: No such agent"
