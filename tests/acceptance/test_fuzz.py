"""Whatever comes in: an answer in the protocol's words, in time, and a gateway that goes on serving."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_from_bytes

import grpc.aio
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.test_hostile import unexpected_tracebacks
from tests.support.clients import KNOWN_RPC_CODES, V1, Served, message_json, rest, serving
from tests.support.faults import REQUESTS

V03 = {"A2A-Version": "0.3"}
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,  # the machine's noise is no finding; the client's timeout is
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    database=None,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served:
        yield served


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    """A client; at the end the gateway must still do its work, and have nothing in its log to be ashamed of."""
    with httpx.Client(timeout=20) as http:
        yield http
    task = rest(served.gateway, "POST", "/message:send", message_json("well?")).json()["task"]
    assert task["artifacts"][0]["parts"] == [{"text": "well?"}]
    assert not unexpected_tracebacks(served.gateway.output())


text = st.text(st.characters(exclude_categories=[]), max_size=12)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**31, 2**70),
    st.floats(),
    text,
    st.sampled_from(["", "0", "ROLE_USER"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=8,
)

GOOD: dict[str, dict[str, Any]] = {
    "SendMessage": {
        "tenant": "",
        "message": {
            "messageId": "m",
            "contextId": "c",
            "role": "ROLE_USER",
            "parts": [{"text": "hello", "metadata": {"a": 1}}, {"data": {"b": [1, None]}}],
            "metadata": {"k": "v"},
            "extensions": ["https://example.com/x"],
            "referenceTaskIds": ["r"],
        },
        "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 3, "returnImmediately": True},
        "metadata": {"k": {"n": 1.5}},
    },
    "GetTask": {"id": "t", "historyLength": 2, "tenant": ""},
    "ListTasks": {
        "contextId": "c",
        "status": "TASK_STATE_WORKING",
        "pageSize": 10,
        "pageToken": "",
        "historyLength": 0,
        "statusTimestampAfter": "2026-01-01T00:00:00Z",
        "includeArtifacts": True,
    },
    "CancelTask": {"id": "t", "metadata": {"why": "so"}},
    "SubscribeToTask": {"id": "t"},
    "GetExtendedAgentCard": {"tenant": ""},
    "GetTaskPushNotificationConfig": {"taskId": "t", "id": "c"},
}
GOOD["SendStreamingMessage"] = GOOD["SendMessage"]
GOOD_03: dict[str, dict[str, Any]] = {
    "message/send": {
        "message": {
            "kind": "message",
            "messageId": "m",
            "role": "user",
            "parts": [
                {"kind": "text", "text": "hello"},
                {"kind": "data", "data": {"a": 1}},
                {"kind": "file", "file": {"bytes": "AAAA", "mimeType": "text/plain"}},
            ],
            "metadata": {"k": "v"},
        },
        "configuration": {"blocking": False, "acceptedOutputModes": ["text/plain"], "historyLength": 1},
    },
    "tasks/get": {"id": "t", "historyLength": 2},
    "tasks/cancel": {"id": "t"},
    "tasks/resubscribe": {"id": "t"},
}


@st.composite
def spoiled(draw: st.DrawFn, good: Any) -> Any:
    """`good` with one to three of its values, somewhere inside, replaced, removed or given a new neighbour."""
    root = {"root": copy.deepcopy(good)}
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(root))
        holder, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(["replace", "replace", "remove", "add"])):
            case "remove" if holder is not root:
                del holder[key]
            case "add" if isinstance(holder, dict) and holder is not root:
                holder[draw(text)] = draw(values)
            case _:
                holder[key] = draw(values)
    return root["root"]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def envelopes(good: dict[str, dict[str, Any]]) -> st.SearchStrategy[Any]:
    """JSON-RPC requests, spoiled."""
    made = [{"jsonrpc": "2.0", "id": 1, "method": method, "params": params} for method, params in good.items()]
    return st.sampled_from(made).flatmap(spoiled)


@FUZZ
@given(body=st.one_of(envelopes(GOOD), envelopes(GOOD_03), values))
def test_any_json_over_json_rpc(http: httpx.Client, served: Served, body: Any) -> None:
    legacy = isinstance(body, dict) and "/" in str(body.get("method"))

    answer = http.post(f"{served.url}/", content=json.dumps(body), headers=V03 if legacy else V1)

    assert answer.status_code == 200, answer.text
    for found in _answers(answer):
        if "error" in found:
            assert found["error"]["code"] in KNOWN_RPC_CODES - {-32603}, found
            assert not ours_in(json.dumps(found)), found
        else:
            assert "result" in found


@FUZZ
@given(
    body=st.one_of(spoiled(GOOD["SendMessage"]), values),
    path=st.sampled_from(
        ["/message:send", "/message:stream", "/v1/message:send", "/v1/message:stream", "/acme/message:send"]
    ),
)
def test_any_json_over_http(http: httpx.Client, served: Served, body: Any, path: str) -> None:
    if path.startswith("/v1") and isinstance(body, dict) and isinstance(body.get("message"), dict):
        message = body.pop("message")
        body["request"] = {**message, "content": message.get("parts")}
        body["configuration"] = {"blocking": False}

    answer = http.post(f"{served.url}{path}", content=json.dumps(body), headers=V03 if path.startswith("/v1") else V1)

    assert answer.status_code in (200, 400, 404), answer.text
    assert not ours_in(answer.text), answer.text
    for found in _answers(answer):
        assert ("error" in found) == (answer.status_code != 200), found


@FUZZ
@given(
    path=st.sampled_from(
        ["/tasks", "/tasks/x", "/v1/tasks/x", "/tasks/x/pushNotificationConfigs", "/extendedAgentCard"]
    ),
    query=st.dictionaries(
        st.sampled_from(
            ["pageSize", "pageToken", "historyLength", "status", "contextId", "statusTimestampAfter", "tenant"]
        ),
        st.one_of(text, st.integers().map(str), st.floats().map(str)),
        max_size=3,
    ),
)
def test_any_query_over_http(http: httpx.Client, served: Served, path: str, query: dict[str, str]) -> None:
    given = "&".join(
        f"{name}={quote_from_bytes(value.encode('utf-8', 'surrogatepass'))}" for name, value in query.items()
    )

    answer = http.get(f"{served.url}{path}?{given}", headers=V03 if "/v1" in path else V1)

    assert answer.status_code in (200, 400, 404), answer.text
    assert not ours_in(answer.text), answer.text


@FUZZ
@given(body=st.binary(max_size=200))
def test_any_bytes(http: httpx.Client, served: Served, body: bytes) -> None:
    over_rpc = http.post(f"{served.url}/", content=body, headers=V1)
    over_rest = http.post(f"{served.url}/message:send", content=body, headers=V1)

    assert over_rpc.json()["error"]["code"] in KNOWN_RPC_CODES - {-32603}
    assert over_rest.status_code == 400


@FUZZ
@given(
    method=st.sampled_from(sorted(REQUESTS)),
    version=st.sampled_from(["lf.a2a.v1", "a2a.v1"]),
    good=st.booleans(),
    tail=st.binary(max_size=60),
)
async def test_any_bytes_over_grpc(
    http: httpx.Client, served: Served, method: str, version: str, good: bool, tail: bytes
) -> None:
    body = (REQUESTS[method][0]().SerializeToString() + b"\x12\x02ab" if good else b"") + tail
    streaming = method in ("SendStreamingMessage", "SubscribeToTask")
    async with grpc.aio.insecure_channel(served.gateway.grpc) as channel:
        make = channel.unary_stream if streaming else channel.unary_unary
        call = make(f"/{version}.A2AService/{method}")(body, timeout=20)
        code, words = await call.code(), await call.details()
        assert code.name not in ("UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED", "UNAVAILABLE"), (code, words)
        assert not ours_in(words or "")


def ours_in(answer: str) -> list[str]:
    """Words of ours in an answer. (Hypothesis reads constants out of our code, and sends us some of those words.)"""
    return [word for word in ("Traceback", 'File "', "a2a_celery.", "asyncio.", "<class") if word in answer]


def _answers(answer: httpx.Response) -> list[dict[str, Any]]:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return [answer.json()]
    return [json.loads(line[5:]) for line in answer.text.split("\n") if line.startswith("data:")]
