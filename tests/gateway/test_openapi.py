"""OpenAPI document of the HTTP+JSON binding. tests/acceptance/test_openapi.py compares responses with the document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard, Message, Part, Task, TaskState, TaskStatus, a2a_pb2
from celery import Celery
from google.api import annotations_pb2
from google.protobuf.json_format import MessageToDict
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from a2a_celery import A2A
from tests.support.agents.basic import card
from tests.support.clients.credentials import AUDIENCE, ISSUER, SHARED, api_key_entry, token

KEYS = {"a2a_auth_api_keys": api_key_entry("ann", "one")}
TOKENS = {
    "a2a_auth_jwt_key": "a-secret-that-issuer-and-gateway-share",
    "a2a_auth_jwt_algorithms": ["HS256"],
    "a2a_auth_jwt_issuer": ISSUER,
    "a2a_auth_jwt_audience": [AUDIENCE],
}
CERTIFICATES = {"a2a_auth_identity_header": "X-Subject", "a2a_auth_proxy_networks": ["10.0.0.0/8"]}
VERBS = ("get", "post", "delete")


def gateway(**conf: Any) -> Starlette:
    app = Celery("acme", set_as_current=False)
    app.conf.update({"a2a_store_url": "redis://127.0.0.1:1/0"} | conf)
    a2a = A2A(app)
    for name in ("echo", "other"):
        a2a.add_agent(card(name), "nowhere:Echo")
    return a2a.asgi()


async def document(**conf: Any) -> dict[str, Any]:
    transport = httpx.ASGITransport(gateway(**conf), client=("10.0.0.1", 1))
    headers = {}
    if "a2a_auth_api_keys" in conf:
        headers = {"X-API-Key": "one"}
    elif "a2a_auth_jwt_key" in conf:
        headers = {"Authorization": f"Bearer {token(SHARED, 'HS256')}"}
    elif "a2a_auth_identity_header" in conf:
        headers = {"X-Subject": "CN=ann"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000", headers=headers) as http:
        found: dict[str, Any] = (await http.get("/openapi.json")).raise_for_status().json()
        return found


def operations(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the HTTP method, the path without names of parameters, and the operation."""
    for path, item in found["paths"].items():
        yield from ((verb, re.sub(r"{\w+}", "{}", path), item[verb]) for verb in VERBS if verb in item)


@pytest.mark.parametrize("conf", [{}, KEYS, TOKENS, CERTIFICATES, KEYS | TOKENS])
async def test_the_document_is_valid(conf: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(await document(**conf)).validate()


async def test_the_document_has_every_path_of_the_protocols_http_rules() -> None:
    paths = {(verb, path) for verb, path, _ in operations(await document())}

    for method in a2a_pb2.DESCRIPTOR.services_by_name["A2AService"].methods:
        rule = method.GetOptions().Extensions[annotations_pb2.http]
        for binding in (rule, *rule.additional_bindings):
            verb = binding.WhichOneof("pattern")
            assert (verb, re.sub(r"{[^}]+}", "{}", getattr(binding, verb))) in paths, method.name


async def test_the_document_has_the_routes_of_an_agent() -> None:
    [mount] = [route for route in gateway().routes if isinstance(route, Mount) and route.path == "/agents/echo"]
    routes = {
        (method.lower(), re.sub(r"{[^}]+}", "{}", route.path))
        for route in mount.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    of_other_bindings = {(verb, path) for verb, path in routes if path == "/" or path.startswith("/v1")}
    found = await document()

    paths = {(verb, path) for verb, path, _ in operations(found) if "servers" not in found["paths"].get(path, {})}

    assert of_other_bindings
    assert paths == routes - of_other_bindings


async def test_each_operation_has_its_own_id() -> None:
    ids = [operation["operationId"] for _, _, operation in operations(await document())]

    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("conf", "schemes"),
    [
        (KEYS, {"apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}),
        (TOKENS, {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}),
        (CERTIFICATES, {"mutualTls": {"type": "mutualTLS"}}),
    ],
)
async def test_the_security_schemes_are_those_of_the_settings(conf: dict[str, Any], schemes: dict[str, Any]) -> None:
    found = await document(**conf)

    assert found["components"]["securitySchemes"] == schemes
    assert found["security"] == [{name: []} for name in schemes]
    for _, path, operation in operations(found):
        assert ("401" in operation["responses"]) == (operation.get("security") != []), path
    public = {path for _, path, operation in operations(found) if operation.get("security") == []}
    assert public == {"/.well-known/agent-card.json"}


async def test_without_authentication_the_document_has_no_security() -> None:
    found = await document()

    assert "security" not in found
    assert "securitySchemes" not in found["components"]
    assert not any("401" in operation["responses"] for _, _, operation in operations(found))


async def test_the_servers_are_the_agents() -> None:
    found = await document(a2a_public_url="https://agents.example.com/a2a/")

    agent, root = found["servers"]
    assert agent["url"] == "https://agents.example.com/a2a/agents/{agent}"
    assert agent["variables"]["agent"] == {"enum": ["echo", "other"], "default": "echo"}
    assert root["url"] == "https://agents.example.com/a2a"


async def test_the_schemas_accept_messages_of_the_sdk_and_nothing_else() -> None:
    found = await document()

    def is_valid(name: str, value: Any) -> bool:
        schema = {"$ref": f"#/components/schemas/{name}", "components": found["components"]}
        return Draft202012Validator(schema).is_valid(value)

    message = Message(message_id="m", role="ROLE_USER", parts=[Part(raw=b"\x00\xff"), Part(text="")])
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_WORKING, message=message))
    task.status.timestamp.GetCurrentTime()
    task.metadata.update({"n": 1.5, "list": [None, {}]})
    content = MessageToDict(task)
    assert is_valid("Task", content)
    assert is_valid("AgentCard", MessageToDict(card("echo")))
    assert is_valid("StreamResponse", {"task": content})
    assert not is_valid("StreamResponse", {"task": content, "message": MessageToDict(message)})
    assert not is_valid("Task", content | {"status": {"state": "WORKING"}})
    assert not is_valid("Message", {"messageId": "m", "role": "ROLE_USER"})
    assert not is_valid("Message", {"messageId": "m", "role": "ROLE_USER", "parts": []})
    assert not is_valid("Message", {"messageId": "", "role": "ROLE_USER", "parts": [{"text": "a"}]})
    assert is_valid("TaskPushNotificationConfig", {"url": "https://x.example"})
    assert not is_valid("TaskPushNotificationConfig", {"url": ""})
    assert not is_valid("AuthenticationInfo", {"scheme": ""})
    assert not is_valid("Part", {"text": "a", "url": "b"})
    assert not is_valid("Part", {"mediaType": "text/plain"})
    assert not is_valid("AgentCard", MessageToDict(AgentCard(name="only a name")))
