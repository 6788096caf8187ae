"""Generated requests for each operation of the OpenAPI document. Each response conforms to the document."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from a2a_celery.gateway.openapi.document import openapi_document
from tests.support import ROOT
from tests.support.clients.bindings import message_json
from tests.support.clients.credentials import API_KEYS, KEY_OF_ANN
from tests.support.processes.fleet import running_fleet
from tests.support.waiting import LIMIT

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 12
PATHS = openapi_document("", ["echo"])["paths"]
OPERATIONS = {
    item[verb]["operationId"]: (path, verb)
    for path, item in PATHS.items()
    for verb in ("get", "post", "delete")
    if verb in item
}
WITH_PARAMETERS = [name for name, (path, verb) in OPERATIONS.items() if "parameters" in PATHS[path][verb]]
"""Operations that can have an invalid request."""

HEADERS = {"A2A-Version": "1.0", **KEY_OF_ANN}
SECRET = "0123456789abcdef" * 2
PAGE = (ROOT / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")
PAGE_ADDRESS = "http://localhost:8000"


class Served(NamedTuple):
    """Gateway with a task.

    Attributes:
        url: Address of the agent.
        schema: OpenAPI document that the gateway serves.
        known: Path parameters of the task, of its webhook and of one of its events.
    """

    url: str
    schema: Any
    known: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Gateway with API keys and push notifications, and a task of the agent "echo" with a webhook."""
    env = {**API_KEYS, "A2A_SECRET_KEY": SECRET, "A2A_ALLOW_NETWORKS": "127.0.0.0/8"}
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.support.agents.few_agents", **env) as fleet:
        fleet.worker(pool="threads", concurrency=4)
        gateway = fleet.gateway()
        agent = f"{gateway.url}/agents/echo"
        with httpx.Client(base_url=agent, headers=HEADERS, timeout=LIMIT) as http:
            webhook = {"id": "hook", "url": "https://127.0.0.1:1/hook"}
            body = message_json("hello") | {"configuration": {"taskPushNotificationConfig": webhook}}
            response = http.post("/message:send", json=body)
            task = response.raise_for_status().json()["task"]["id"]
        known = {"taskId": task, "event": "1"}
        schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json", headers=KEY_OF_ANN)
        yield Served(agent, schema, known)


def operation_of(served: Served, name: str) -> APIOperation:
    path, verb = OPERATIONS[name]
    operation: APIOperation = served.schema[path][verb]
    return operation


def known_parameters(served: Served, name: str) -> dict[str, str]:
    """Return the path parameters that lead to the known task."""
    path, _ = OPERATIONS[name]
    values = served.known | {"id": "hook" if "{taskId}" in path else served.known["taskId"]}
    return {key: value for key, value in values.items() if f"{{{key}}}" in path}


def check(served: Served, name: str, mode: GenerationMode, **fixed: Any) -> None:
    """Send generated requests, and compare each response with the document."""
    is_root = "servers" in PATHS[OPERATIONS[name][0]]
    base_url = served.url.removesuffix("/agents/echo") if is_root else served.url

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation_of(served, name).as_strategy(mode, **fixed))
    def send(case: Case) -> None:
        response = case.call(base_url=base_url, headers=HEADERS, timeout=LIMIT)
        case.validate_response(response, checks=CHECKS)

    send()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_valid_request_gets_a_documented_response(served: Served, name: str) -> None:
    check(served, name, GenerationMode.POSITIVE)


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_an_invalid_request_gets_a_documented_response(served: Served, name: str) -> None:
    check(served, name, GenerationMode.NEGATIVE)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "{id}" in OPERATIONS[name][0]])
def test_a_request_about_a_stored_task_gets_a_documented_response(served: Served, name: str) -> None:
    check(served, name, GenerationMode.POSITIVE, path_parameters=known_parameters(served, name))


def test_a_request_without_credentials_gets_a_documented_response(served: Served) -> None:
    for name, (path, verb) in OPERATIONS.items():
        operation = operation_of(served, name)
        case = operation.Case(path_parameters=dict.fromkeys(re.findall(r"{(\w+)}", path), "x"), media_type=None)
        is_public = PATHS[path][verb].get("security") == []

        response = case.call(base_url=served.url, headers={"A2A-Version": "1.0"}, timeout=LIMIT)

        if not is_public:
            assert response.status_code == 401, name
            case.validate_response(response, checks=CHECKS)


def test_the_commands_of_the_page_print_the_documents(served: Served) -> None:
    commands = re.findall(r"^```sh\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    gateway = served.url.removesuffix("/agents/echo")

    documents = [
        json.loads(
            subprocess.check_output(
                [*shlex.split(command.replace(PAGE_ADDRESS, gateway)), "-H", f"X-API-Key: {KEY_OF_ANN['X-API-Key']}"],
                timeout=LIMIT,
            )
        )
        for command in commands
    ]

    assert [document.get("openapi", document.get("specVersion")) for document in documents] == ["3.1.0", "0.9"]
