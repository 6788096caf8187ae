"""Clients for the tests: the SDK's client over each binding, and raw HTTP requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc.aio
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.types import (
    AgentCard,
    GetTaskRequest,
    Message,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)

from a2a_celery.lifecycle import EventId
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.waiting import LIMIT, eventually_async

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")

V1 = {"A2A-Version": "1.0", "Content-Type": "application/json"}
GRPC_V1 = (("a2a-version", "1.0"),)
KNOWN_RPC_CODES = {-32700, *range(-32603, -32599), *range(-32009, -32000)}


@dataclass
class ServedFleet:
    """Running fleet with one gateway and at most one worker."""

    fleet: Fleet
    gateway: Gateway
    worker: Process | None

    @property
    def url(self) -> str:
        return self.gateway.url


@contextmanager
def serve_fleet(
    folder: Path,
    broker: str = "redis",
    *,
    pool: str | None = "prefork",
    concurrency: int = 2,
    grpc: bool = True,
    **env: str,
) -> Iterator[ServedFleet]:
    """Run a fleet with a gateway and a worker. If `pool` is None, start no worker."""
    with running_fleet(folder, broker, **env) as fleet:
        gateway = fleet.gateway(grpc=grpc)
        worker = fleet.worker(pool=pool, concurrency=concurrency) if pool else None
        yield ServedFleet(fleet, gateway, worker)


async def card_of(gateway: Gateway, agent: str = "") -> AgentCard:
    """Fetch the card of an agent. If `agent` is "", fetch the card at the root."""
    async with httpx.AsyncClient(timeout=LIMIT) as http:
        return await A2ACardResolver(http, base_url(gateway, agent)).get_agent_card()


def base_url(gateway: Gateway, agent: str = "") -> str:
    return f"{gateway.url}/agents/{agent}" if agent else gateway.url


@asynccontextmanager
async def sdk_client(
    gateway: Gateway, agent: str = "", binding: str = "JSONRPC", *, version: str = "1.0", streaming: bool = True
) -> AsyncIterator[Client]:
    """Yield the SDK's client for an agent. The client uses an interface of protocol `version` with `binding`."""
    async with httpx.AsyncClient(timeout=LIMIT) as http:
        card = await A2ACardResolver(http, base_url(gateway, agent)).get_agent_card()
        interfaces = [i for i in card.supported_interfaces if i.protocol_version == version]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(interfaces)
        config = ClientConfig(
            streaming=streaming,
            httpx_client=http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_protocol_bindings=[binding],
        )
        async with ClientFactory(config).create(card) as client:
            yield client


def request(text: str = "hello", *, immediately: bool = False, **fields: Any) -> SendMessageRequest:
    """Return a SendMessage request. `fields` are fields of the message (task_id, context_id …)."""
    message = Message(message_id=fields.pop("message_id", uuid4().hex), role=Role.ROLE_USER, **fields)
    message.parts.add(text=text)
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(return_immediately=immediately))


def service(**parameters: str) -> ClientCallContext:
    """Return a call context with service parameters. Underscores in names are replaced by dashes."""
    return ClientCallContext(service_parameters={k.replace("_", "-"): v for k, v in parameters.items()})


async def send(client: Client, text: str = "hello", **options: Any) -> Task:
    """Send a message with a non-streaming client and return the task."""
    async for response in client.send_message(request(text, **options)):
        assert response.HasField("task"), response
        return response.task
    raise AssertionError("no answer")


async def collect(events: AsyncIterator[StreamResponse]) -> list[StreamResponse]:
    """Return all events of a stream."""
    return [event async for event in events]


async def wait_for_state(client: Client, task_id: str, *states: str, within: float = LIMIT) -> Task:
    """Wait until the task is in one of `states` ("WORKING", …) and return it."""
    wanted_states = {TaskState.Value(f"TASK_STATE_{state}") for state in states}

    async def matching_task() -> Task | None:
        task = await client.get_task(GetTaskRequest(id=task_id))
        return task if task.status.state in wanted_states else None

    task = await eventually_async(matching_task, within=within, what=f"{task_id} is {' or '.join(states)}")
    assert task is not None
    return task


def state(task: Task) -> str:
    """Return a task's state without its prefix."""
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_")


def texts(task: Task) -> list[str]:
    """Return the text of each artifact."""
    return ["".join(part.text for part in artifact.parts) for artifact in task.artifacts]


def message_json(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return the parameters of SendMessage as JSON."""
    message = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}], **fields}
    return {"message": message}


def rpc(gateway: Gateway, method: str, params: Any = None, *, agent: str = "", **headers: str) -> dict[str, Any]:
    """Make a JSON-RPC call and return the response. Fail if the response is not a JSON-RPC response."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {} if params is None else params}
    answer = httpx.post(
        f"{base_url(gateway, agent)}/", json=body, headers={**V1, **_header_names(headers)}, timeout=LIMIT
    )
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    assert response["jsonrpc"] == "2.0"
    assert response["id"] == 1
    return response


def rest(
    gateway: Gateway, method: str, path: str, body: Any = None, *, agent: str = "", **headers: str
) -> httpx.Response:
    """Send an HTTP+JSON request and return the response."""
    url = base_url(gateway, agent) + path
    return httpx.request(method, url, json=body, headers={**V1, **_header_names(headers)}, timeout=LIMIT)


def _header_names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class Frame:
    """SSE event. `id` is "" for an event without an id."""

    id: str
    event: str
    data: Any

    @property
    def version(self) -> int:
        """Version in the id.

        Raises:
            ValueError: The event has no id or an invalid id.
        """
        return EventId.parse(self.id).version


async def frames(response: httpx.Response) -> AsyncIterator[Frame]:
    """Parse an SSE response and yield the events."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = (fields[name] + "\n" if name == "data" and name in fields else "") + value.removeprefix(" ")
        elif "data" in fields:
            yield Frame(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}


@asynccontextmanager
async def stream(
    http: httpx.AsyncClient,
    gateway: Gateway,
    path: str,
    body: Any = None,
    *,
    agent: str = "",
    method: str = "POST",
    **headers: str,
) -> AsyncIterator[AsyncIterator[Frame]]:
    """Open an HTTP+JSON stream. Fail unless the response is a stream."""
    url = base_url(gateway, agent) + path
    async with http.stream(method, url, json=body, headers={**V1, **_header_names(headers)}, timeout=LIMIT) as response:
        if response.status_code != 200:
            raise AssertionError(f"{response.status_code}: {(await response.aread()).decode()}")
        yield frames(response)
