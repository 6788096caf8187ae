"""Gateway with limits in the test process, and requests over every binding and protocol version."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import grpc.aio
import httpx
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from celery import Celery
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import error_details_pb2, status_pb2
from starlette.applications import Starlette

from a2a_celery import A2A, Turn
from a2a_celery.clock import Clock
from a2a_celery.gateway.asgi import build_asgi
from a2a_celery.gateway.shutdown import GatewayShutdown
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from tests.support.clients.bindings import GRPC_V1, message_json
from tests.support.clocks import ShortSleepClock
from tests.support.processes.fleet import free_port
from tests.support.processes.serving import serve_app
from tests.support.waiting import LIMIT

AGENTS = ("echo", "other")
SHORT_SLEEP_CLOCK = ShortSleepClock()
STREAMS = {"SendStreamingMessage", "message/stream"}

WAYS = [
    (binding, version, method)
    for binding in ("JSONRPC", "HTTP+JSON", "GRPC")
    for version in ("1.0", "0.3")
    for method in ("SendMessage", "SendStreamingMessage")
]


@dataclass(frozen=True)
class Refusal:
    """Error response to a request.

    Attributes:
        status: HTTP status code or name of the gRPC status code.
        retry_after: Value of Retry-After, or "" if missing.
        code: Code in the body, or None for gRPC.
        details: Details of the error.
    """

    status: int | str
    retry_after: str
    code: int | None
    details: list[dict[str, Any]] = field(default_factory=list)


class LocalGateway:
    """Gateway on the store of the test, with an HTTP client."""

    def __init__(
        self, http: httpx.AsyncClient, grpc_address: str, store: AsyncStore, keys: Keys, asgi: Starlette
    ) -> None:
        self.asgi = asgi
        self.routes = asgi.routes
        self.shutdown: GatewayShutdown = asgi.state.shutdown
        self.http = http
        self.grpc = grpc_address
        self.store = store
        self.keys = keys

    async def send_message(self, agent: str = "echo", tenant: str = "", **fields: Any) -> dict[str, Any]:
        """Send a message, and return the task without waiting for a terminal state."""
        answer = await self.try_to_send(agent, tenant, **fields)
        assert answer.status_code == 200, answer.text
        task: dict[str, Any] = answer.json()["task"]
        return task

    async def ids(self) -> list[str]:
        """Return the ids of all tasks of the first agent without a tenant."""
        answer = await self.http.get("/tasks", headers={"A2A-Version": "1.0"})
        return [task["id"] for task in answer.json()["tasks"]]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[httpx.AsyncClient]:
        """Serve over real connections and yield a client. Streams then arrive while the gateway writes them."""
        async with serve_app(self.asgi, lifespan="off") as url, httpx.AsyncClient(base_url=url, timeout=LIMIT) as http:
            yield http

    async def try_to_send(self, agent: str = "echo", tenant: str = "", **fields: Any) -> httpx.Response:
        """Send a message over HTTP+JSON and return the response."""
        path = f"/agents/{agent}/{tenant}/message:send" if tenant else f"/agents/{agent}/message:send"
        body = message_json(**fields) | {"configuration": {"returnImmediately": True}}
        return await self.http.post(path, json=body, headers={"A2A-Version": "1.0"})

    async def refusal(
        self,
        binding: str,
        version: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        is_compressed: bool = False,
    ) -> Refusal:
        """Send a request and return the error response. Fail if the gateway accepts the request.

        Args:
            binding: "JSONRPC", "HTTP+JSON" or "GRPC".
            version: "1.0" or "0.3".
            method: "SendMessage" or "SendStreamingMessage".
            params: Parameters of the method, or None for a valid message.
            is_compressed: Compress gRPC requests with gzip.
        """
        message_params = dict(params or message_json())
        match binding:
            case "JSONRPC":
                return await self._over_rpc(version, method, message_params)
            case "HTTP+JSON":
                return await self._over_rest(version, method, message_params)
            case _:
                return await self._over_grpc(version, method, message_params, is_compressed)

    async def _over_rpc(self, version: str, method: str, params: dict[str, Any]) -> Refusal:
        if version == "0.3":
            method = {"SendMessage": "message/send", "SendStreamingMessage": "message/stream"}[method]
            params = _legacy(params)
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self.http.post("/", json=body, headers={"A2A-Version": version})
        response = answer.json()
        assert response["id"] == 1
        error = response["error"]
        details = error["data"] if isinstance(error["data"], list) else [error["data"]]
        return Refusal(answer.status_code, answer.headers.get("retry-after", ""), error["code"], details)

    async def _over_rest(self, version: str, method: str, params: dict[str, Any]) -> Refusal:
        path = {"SendMessage": "/message:send", "SendStreamingMessage": "/message:stream"}[method]
        if version == "0.3":
            path, params = f"/v1{path}", MessageToDict(_legacy_request(params))
        answer = await self.http.post(path, json=params, headers={"A2A-Version": version})
        error = answer.json()["error"]
        assert error["status"] == "RESOURCE_EXHAUSTED"
        return Refusal(answer.status_code, answer.headers.get("retry-after", ""), error["code"], error["details"])

    async def _over_grpc(self, version: str, method: str, params: dict[str, Any], is_compressed: bool) -> Refusal:
        compression = grpc.Compression.Gzip if is_compressed else None
        async with grpc.aio.insecure_channel(self.grpc, compression=compression) as channel:
            call: Any
            if version == "0.3":
                stub: Any = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
                call = getattr(stub, method)(_legacy_request(params), timeout=LIMIT)
            else:
                stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
                call = getattr(stub, method)(ParseDict(params, SendMessageRequest()), metadata=GRPC_V1, timeout=LIMIT)
            try:
                answer = [event async for event in call] if method in STREAMS else await call
            except grpc.aio.AioRpcError as e:
                return _grpc_refusal(e)
        raise AssertionError(f"not refused: {answer}")


@asynccontextmanager
async def local_gateway(
    store: AsyncStore, store_url: str, keys: Keys, clock: Clock = SHORT_SLEEP_CLOCK, **settings: Any
) -> AsyncIterator[LocalGateway]:
    """Run a gateway without workers. The names of `settings` have no prefix ``a2a_``. By default, refusals are not
    delayed."""
    app, port = Celery("limited", broker="memory://", set_as_current=False), free_port()
    conf = {f"a2a_{name}": value for name, value in settings.items()}
    app.conf.update(a2a_store_url=store_url, a2a_key_prefix=keys.prefix, a2a_grpc_port=port, **conf)
    app.conf.a2a_grpc_public_address = f"127.0.0.1:{port}"
    a2a = A2A(app)

    async def agent(turn: Turn) -> str:
        return turn.text

    a2a.agent("echo", idempotency_window=600, signals=("approval", "go"))(agent)
    a2a.agent("other", signals=("go",))(agent)
    asgi = build_asgi(app, a2a.agents, a2a.settings, clock)
    await store.redis.hset(keys.installation, "schema", SCHEMA)  # a test may have created tasks before
    async with (
        asgi.router.lifespan_context(asgi),
        httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://test", timeout=LIMIT) as http,
    ):
        yield LocalGateway(http, f"127.0.0.1:{port}", store, keys, asgi)


async def over_rpc(gateway: LocalGateway, method: str, params: Any, **headers: str) -> dict[str, Any]:
    """Call a method of protocol 1.0 over JSON-RPC, and return the response. `headers` replace the version."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer: dict[str, Any] = (await gateway.http.post("/", json=body, headers={"A2A-Version": "1.0"} | headers)).json()
    return answer


def _legacy(params: dict[str, Any]) -> dict[str, Any]:
    parts = [{"kind": "text", "text": part["text"]} for part in params["message"]["parts"]]
    return {"message": {"kind": "message", "messageId": uuid4().hex, "role": "user", "parts": parts}}


def _legacy_request(params: dict[str, Any]) -> Any:
    content = [{"text": part["text"]} for part in params["message"]["parts"]]
    body = {"message": {"messageId": uuid4().hex, "role": "ROLE_USER", "content": content}}
    return ParseDict(json.loads(json.dumps(body)), a2a_v0_3_pb2.SendMessageRequest())


def _grpc_refusal(error: grpc.aio.AioRpcError) -> Refusal:
    metadata = {str(key): value for key, value in error.trailing_metadata() or ()}
    details: list[dict[str, Any]] = []
    if "grpc-status-details-bin" in metadata:
        status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])  # type: ignore[arg-type]
        for any_detail in status.details:
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
                if any_detail.Is(kind.DESCRIPTOR):
                    details.append({"@type": any_detail.type_url, **MessageToDict(kind.FromString(any_detail.value))})
    return Refusal(error.code().name, str(metadata.get("retry-after", "")), None, details)
