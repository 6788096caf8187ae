"""Authentication at a gateway over each binding. Credentials are checked first, and errors reveal no details."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import (
    AgentCard,
    AgentInterface,
    GetTaskRequest,
    SendMessageRequest,
    TaskPushNotificationConfig,
    a2a_pb2_grpc,
)
from a2a.utils.errors import A2AError, InternalError, TaskNotFoundError
from click.testing import CliRunner
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_celery.cli.commands import a2a
from a2a_celery.cli.main import main
from a2a_celery.client import CallRefused, RemoteAgent, Result
from tests.acceptance.test_callers import fields_of, stored_content
from tests.support.agents.basic import app
from tests.support.clients.bindings import V1, ServedFleet, base_url, card_of, message_json, rest, rpc, serve_fleet
from tests.support.clients.credentials import WITH_TOKENS, api_key_entry, bearer, shared_secret_token
from tests.support.clients.faults import CODES, fault, from_grpc, from_rest, from_rpc
from tests.support.waiting import LIMIT

OLD, NEW, ACME = "the-old-key-of-bob", "the-new-key-of-bob", "a-key-of-carol-for-acme"
IDENTITY = "X-Client-Subject"
CLIENT_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    keys = folder / "api_keys"
    entries = [api_key_entry("bob", OLD), api_key_entry("bob", NEW), api_key_entry("carol", ACME, "acme,beta")]
    keys.write_text("\n".join(entries) + "\n")
    proxies = {"A2A_AUTH_IDENTITY_HEADER": IDENTITY, "A2A_AUTH_PROXY_NETWORKS": "127.0.0.0/8"}
    secret = {"A2A_SECRET_KEY": "0" * 32, "A2A_AUTH_API_KEYS_FILE": str(keys)}
    with serve_fleet(folder, pool="threads", concurrency=4, **WITH_TOKENS, **secret, **proxies) as served_fleet:
        yield served_fleet


def alice() -> dict[str, str]:
    return bearer(shared_secret_token("alice", tenants=["", "acme"]))


GOOD = [
    (alice, "alice"),
    (lambda: {"X-API-Key": OLD}, "bob"),
    (lambda: {"X-API-Key": NEW}, "bob"),
    (lambda: {IDENTITY: "CN=dora,O=Example"}, "CN=dora,O=Example"),
    (lambda: {IDENTITY: "CN=sidecar", **alice()}, "alice"),
]


@pytest.mark.parametrize(("headers", "owner"), GOOD)
async def test_each_scheme_identifies_the_owner_over_every_binding(
    served_fleet: ServedFleet, headers: Any, owner: str
) -> None:
    credentials = headers()
    answers = [
        rpc(served_fleet.gateway, "SendMessage", message_json(), agent="data", **credentials)["result"],
        rest(served_fleet.gateway, "POST", "/message:send", message_json(), agent="data", **credentials).json(),
        await over_grpc(served_fleet, message_json() | {"tenant": "data"}, credentials),
    ]

    for answer in answers:
        assert fields_of(answer)["user"] == owner
        assert fields_of(answer)["authenticated"] is True
        assert not {name.lower() for name in credentials} & set(fields_of(answer)["headers"])
    [mine] = {answer["task"]["id"] for answer in answers} & {
        task["id"]
        for task in rest(served_fleet.gateway, "GET", "/tasks?pageSize=1", agent="data", **credentials).json()["tasks"]
    }
    assert mine == answers[-1]["task"]["id"]


def get(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, timeout=LIMIT, **options)


def post(url: str, **options: Any) -> httpx.Response:
    return httpx.post(url, timeout=LIMIT, **options)


async def over_grpc(served_fleet: ServedFleet, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    metadata = [(name.lower(), value) for name, value in {**V1, **headers}.items()]
    async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)
        answer = await stub.SendMessage(ParseDict(body, SendMessageRequest()), metadata=metadata, timeout=LIMIT)
    return MessageToDict(answer)


BAD: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("", {"Authorization": "Basic YWxpY2U6c2VjcmV0"}),
    ("", {"X-API-Key": "nobody's"}),
    ("", {"X-API-Key": ""}),
    ("token", {"Authorization": "Bearer"}),
    ("token", bearer("not.a.token")),
    ("token", {**bearer("no"), "X-API-Key": NEW}),
]


@pytest.mark.parametrize(("what", "headers"), BAD)
async def test_anonymous_callers_are_refused(served_fleet: ServedFleet, what: str, headers: dict[str, str]) -> None:
    url = base_url(served_fleet.gateway, "data")
    hostile = {"content": b"{" * 100, "headers": {**V1, **headers}}
    answers = [
        post(f"{url}/", **hostile),
        post(url, **hostile),
        post(f"{url}/message:send", **hostile),
        post(f"{url}/v1/message:send", **hostile),
        get(f"{url}/tasks/some", headers=headers),
        get(f"{url}/nothing/here", headers=headers),
        get(f"{served_fleet.url}/metrics", headers=headers),
        post(f"{url}/.well-known/agent-card.json", **hostile),
    ]

    for answer in answers:
        assert answer.status_code == 401
        challenge = 'Bearer realm="a2a"' + (', error="invalid_token"' if what else "")
        assert answer.headers["www-authenticate"] == f'{challenge}, ApiKey realm="a2a", ClientCertificate realm="a2a"'
        received_fault = from_rpc(answer.json()) if "jsonrpc" in answer.json() else from_rest(answer)
        assert received_fault.reason == "UNAUTHENTICATED"
        assert received_fault.message == "Authentication is required: use one of the schemes in the agent's card"
    assert ["jsonrpc" in answer.json() for answer in answers] == [True, True, *[False] * 6]
    refused_fault = await fault(served_fleet.gateway, "GRPC", "GetTask", {"id": "some"}, agent="data", **headers)
    assert (refused_fault.status, refused_fault.message) == ("UNAUTHENTICATED", received_fault.message)


async def test_anonymous_callers_are_refused_over_grpc_of_protocol_03(served_fleet: ServedFleet) -> None:
    async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
        stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)
        bob_metadata = (("x-api-key", NEW),)
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await stub.GetTask(a2a_v0_3_pb2.GetTaskRequest(name="tasks/some"), timeout=LIMIT)
        assert from_grpc(exc_info.value).reason == "UNAUTHENTICATED"
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.GetTask(a2a_v0_3_pb2.GetTaskRequest(name="tasks/some"), metadata=bob_metadata, timeout=LIMIT)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_invalid_request_is_not_read_over_grpc(served_fleet: ServedFleet) -> None:
    async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
        call = channel.unary_unary("/lf.a2a.v1.A2AService/GetTask")
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await call(b"\xff\xff", timeout=LIMIT)
    assert exc_info.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_headers_that_come_twice_are_refused(served_fleet: ServedFleet) -> None:
    for duplicate_headers in (
        [("X-API-Key", NEW), ("X-API-Key", OLD)],
        [("Authorization", "Bearer a"), *alice().items()],
    ):
        answer = get(f"{served_fleet.url}/tasks", headers=[*V1.items(), *duplicate_headers])
        assert answer.status_code == 401
        async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
            metadata = [(name.lower(), value) for name, value in duplicate_headers]
            with pytest.raises(grpc.aio.AioRpcError) as exc_info:
                await a2a_pb2_grpc.A2AServiceStub(channel).GetTask(
                    GetTaskRequest(id="some"), metadata=metadata, timeout=LIMIT
                )
        assert exc_info.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_cards_and_probes_need_no_credentials(served_fleet: ServedFleet) -> None:
    for path in ("/.well-known/agent-card.json", "/agents/data/.well-known/agent-card.json", "/health/live"):
        assert get(f"{served_fleet.url}{path}").status_code == 200, path
    assert get(f"{served_fleet.url}/health/ready").status_code in (200, 503)
    assert get(f"{served_fleet.url}/metrics", headers={"X-API-Key": NEW}).status_code == 200


async def test_the_card_declares_the_schemes(served_fleet: ServedFleet) -> None:
    card = MessageToDict(await card_of(served_fleet.gateway, "full"))
    assert card["securitySchemes"] == {
        "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}},
        "apiKey": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
        "mutualTls": {"mtlsSecurityScheme": {}},
    }
    alternatives = [list(item["schemes"]) for item in card["securityRequirements"]]
    assert alternatives == [["bearer"], ["apiKey"], ["mutualTls"]]
    extended_card = rpc(served_fleet.gateway, "GetExtendedAgentCard", agent="full", **alice())["result"]
    assert extended_card["securityRequirements"] == card["securityRequirements"]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
@pytest.mark.parametrize("tenant", ["", "gamma"])
async def test_a_tenant_of_others_is_not_permitted(served_fleet: ServedFleet, binding: str, tenant: str) -> None:
    for method, params in (("GetTask", {"id": "some"}), ("SendMessage", message_json()), ("ListTasks", {})):
        headers = {**V1, "X-API-Key": ACME}
        match binding:
            case "JSONRPC":
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "tenant": tenant}}
                answer = post(f"{base_url(served_fleet.gateway, 'data')}/", json=body, headers=headers)
                received_fault = from_rpc(answer.json())
                assert answer.status_code == 403
            case "HTTP+JSON":
                path = f"/{tenant}" if tenant else ""
                url = base_url(served_fleet.gateway, "data") + path
                answer = (
                    post(f"{url}/message:send", json=params, headers=headers)
                    if method == "SendMessage"
                    else get(f"{url}/tasks" + ("/some" if method == "GetTask" else ""), headers=headers)
                )
                received_fault = from_rest(answer)
            case _:
                agent = f"data/{tenant}" if tenant else "data"
                received_fault = await fault(served_fleet.gateway, "GRPC", method, params, agent=agent, X_API_Key=ACME)
        assert received_fault.reason == "PERMISSION_DENIED"
        assert received_fault.status == CODES["PERMISSION_DENIED"][("JSONRPC", "HTTP+JSON", "GRPC").index(binding)]


def test_a_tenant_of_ones_own_is(served_fleet: ServedFleet) -> None:
    body = message_json() | {"tenant": "beta"}
    answer = fields_of(rpc(served_fleet.gateway, "SendMessage", body, agent="data", X_API_Key=ACME)["result"])
    assert (answer["user"], answer["tenant"]) == ("carol", "beta")


def command(served_fleet: ServedFleet, *arguments: str, code: int = 0, **environ: str) -> str:
    """Run ``a2a <arguments>`` against the gateway, require the exit code, and return the output."""
    output = CliRunner().invoke(
        a2a,
        [*arguments, "--url", served_fleet.url],
        obj=SimpleNamespace(app=app),
        env=dict.fromkeys(VARIABLES) | environ,
    )
    assert output.exit_code == code, output.output
    return output.output


VARIABLES = ("A2A_BEARER", "A2A_BEARER_FILE", "A2A_API_KEY", "A2A_API_KEY_FILE")


def test_the_commands_identify_themselves(served_fleet: ServedFleet, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(shared_secret_token("alice", tenants=[""]) + "\n")
    (tmp_path / "key").write_text("\ufeff" + NEW)  # Windows editors write a byte order mark
    ways: list[tuple[list[str], dict[str, str]]] = [
        (["--bearer-file", str(tmp_path / "token")], {}),
        (["--api-key-file", str(tmp_path / "key")], {"A2A_API_KEY": "another"}),
        ([], {"A2A_BEARER_FILE": str(tmp_path / "token")}),
        ([], {"A2A_API_KEY_FILE": str(tmp_path / "key")}),
        ([], {"A2A_BEARER": shared_secret_token("alice", tenants=[""])}),
        ([], {"A2A_API_KEY": NEW}),
        (["--header", f"X-API-Key: {NEW}"], {}),
    ]
    for arguments, environ in ways:
        assert "COMPLETED" in command(served_fleet, "send", "echo", "hi", *arguments, **environ)
        url = base_url(served_fleet.gateway, "echo")
        env = dict.fromkeys(VARIABLES) | environ
        result = CliRunner().invoke(main, ["call", url, "hi", *arguments], env=env)
        assert result.exit_code == 0, result.output


def test_the_commands_say_what_is_missing(served_fleet: ServedFleet, tmp_path: Path) -> None:
    refused_result = command(served_fleet, "send", "echo", "hi", code=1)
    assert "requires authentication: pass --bearer-file or A2A_BEARER" in refused_result
    malformed_result = command(served_fleet, "send", "echo", "hi", code=1, A2A_BEARER="s\u00e9cret")
    assert malformed_result.startswith("Error: bearer: must consist of printable ASCII characters")
    (tmp_path / "two").write_text("a secret")
    for arguments in (["--bearer-file", str(tmp_path / "two")], ["--api-key-file", str(tmp_path / "none")]):
        assert "secret" not in command(served_fleet, "send", "echo", "hi", *arguments, code=2)
    result = CliRunner().invoke(
        main,
        ["call", base_url(served_fleet.gateway, "echo"), "hi"],
        env=dict.fromkeys(VARIABLES) | {"A2A_API_KEY": "no"},
    )
    assert result.exit_code == 1
    assert "responded 401: Authentication is required: use one of the schemes in the agent's card" in result.output


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_remote_agent_sends_its_credentials(served_fleet: ServedFleet, binding: str) -> None:
    for credentials in ({"bearer": shared_secret_token("alice", tenants=[""])}, {"api_key": NEW}):
        url = base_url(served_fleet.gateway, "echo")
        async with RemoteAgent(url, transports=[binding], **credentials) as agent:
            assert (await agent.session().send("hi")).state_name == "COMPLETED"


def test_a_gateway_of_several_processes_asks_too_and_a_bad_setting_is_one_line(served_fleet: ServedFleet) -> None:
    proxies = {"A2A_AUTH_PROXY_NETWORKS": "10.0.0.0/8"}
    several = served_fleet.fleet.gateway(workers=2, wait=False, log_level="debug", **proxies)  # three processes
    several.wait_for_output("Application startup complete")
    for _ in range(4):
        assert httpx.get(f"{several.url}/tasks", timeout=LIMIT).status_code == 401
    forwarded_headers = {IDENTITY: "CN=mallory", "X-Forwarded-For": "10.0.0.1"}
    assert httpx.get(f"{several.url}/tasks", headers=V1 | forwarded_headers, timeout=LIMIT).status_code == 401
    for good in ({"X-API-Key": NEW}, alice()):
        assert httpx.get(f"{several.url}/tasks", headers={**V1, **good}, timeout=LIMIT).status_code == 200
    bad = served_fleet.fleet.command("a2a", "gateway", "--workers", "2", A2A_AUTH_JWT_ALGORITHMS="none")
    assert bad.returncode == 1
    assert "Error: a2a_auth_jwt_algorithms = none" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_the_address_of_the_connection_counts_not_that_of_a_header(served_fleet: ServedFleet) -> None:
    forwarded_headers = {IDENTITY: "CN=dora", "X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
    answer = httpx.get(f"{served_fleet.url}/agents/data/tasks", headers={**V1, **forwarded_headers}, timeout=LIMIT)
    assert answer.status_code == 200, "the proxy is on this machine, whatever the client's address is"
    card = httpx.get(f"{served_fleet.url}/.well-known/agent-card.json", headers=forwarded_headers, timeout=LIMIT).json()
    assert card["supportedInterfaces"][0]["url"].startswith("https://"), "and the rest of its word is taken"


def test_nothing_of_a_credential_is_written_down(served_fleet: ServedFleet) -> None:
    token = shared_secret_token("eve", tenants=[""])
    spoilt = token[:-6] + "AAAAAA"
    rest(served_fleet.gateway, "POST", "/message:send", message_json(), agent="data", **bearer(token))
    rest(served_fleet.gateway, "GET", "/tasks", **bearer(spoilt))
    rest(served_fleet.gateway, "GET", "/tasks", X_API_Key="a-key-that-nobody-has")

    written_text = stored_content(served_fleet.fleet) + "".join(
        process.output() for process in served_fleet.fleet.processes
    )

    assert "eve" in written_text
    assert "a request was refused: a wrong signature" in written_text
    assert "a request was refused: an unknown API key" in written_text
    secrets = (OLD, NEW, ACME, "a-key-that-nobody-has", *token.split("."), spoilt, WITH_TOKENS["A2A_AUTH_JWT_KEY"])
    assert not [secret for secret in secrets if secret in written_text]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_remote_agent_works_in_its_tenant(served_fleet: ServedFleet, binding: str) -> None:
    url = base_url(served_fleet.gateway, "ask")
    async with RemoteAgent(url, transports=[binding], api_key=ACME, tenant="acme") as agent:
        session = agent.session()
        question = await session.send("some")
        assert (await session.send("7")).text == "7 it is"
        assert (await agent.get(question.task_id)).state_name == "COMPLETED"
        events = [event async for event in agent.follow(question.task_id)]
        assert [Result.of(event).state_name for event in events] == ["COMPLETED"]
        waiting = await agent.session().send("some")
        assert (await agent.cancel(waiting.task_id)).state_name == "CANCELED"
        hook = TaskPushNotificationConfig(url="https://127.0.0.1:9/hook", token="0" * 32)
        with pytest.raises(A2AError, match="webhook"):  # of this tenant, not of a tenant that carol may not use
            await agent.submit("some", push=hook)
    async with RemoteAgent(url, transports=[binding], api_key=ACME, tenant="beta") as elsewhere:
        with pytest.raises(TaskNotFoundError):
            await elsewhere.get(question.task_id)


def test_the_commands_work_in_a_tenant(served_fleet: ServedFleet) -> None:
    key = {"A2A_API_KEY": ACME}
    output = command(served_fleet, "send", "ask", "some", "--tenant", "acme", "--json", "--no-stream", **key)
    task_id = json.loads(output)["task"]["id"]
    assert task_id in command(served_fleet, "get", task_id, "--tenant", "acme", **key)
    assert task_id in command(served_fleet, "tail", task_id, "--tenant", "acme", **key)
    assert task_id in command(served_fleet, "list", "--tenant", "acme", **key)
    assert task_id not in command(served_fleet, "list", "--tenant", "beta", **key)
    assert "no task" in command(served_fleet, "cancel", task_id, "--tenant", "beta", code=1, **key)
    assert "CANCELED" in command(served_fleet, "cancel", task_id, "--tenant", "acme", **key)
    url = base_url(served_fleet.gateway, "echo")
    env = dict.fromkeys(VARIABLES) | key
    assert CliRunner().invoke(main, ["call", url, "hi", "--tenant", "acme"], env=env).exit_code == 0


async def test_the_client_page_s_program_books_in_a_tenant(served_fleet: ServedFleet) -> None:
    [program] = re.findall(r"<!-- tenants: .*?```python\n(.*?)```", CLIENT_PAGE, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(program, "client.md", "exec"), namespace)
    assert await namespace["book"](base_url(served_fleet.gateway, "echo"), ACME) == "A table for tonight"


@pytest.mark.parametrize(
    ("binding", "version"), [(b, v) for b in ("JSONRPC", "HTTP+JSON", "GRPC") for v in ("1.0", "0.3")]
)
async def test_a_remote_agent_s_errors_have_the_gateway_s_sentence(
    served_fleet: ServedFleet, binding: str, version: str
) -> None:
    url = base_url(served_fleet.gateway, "echo")
    async with RemoteAgent(url) as agent:
        card = AgentCard()
        card.CopyFrom(await agent.card())
    interface = AgentInterface(protocol_binding=binding, protocol_version=version, url=served_fleet.gateway.grpc)
    if binding != "GRPC":
        url_of_binding = {i.protocol_binding: i.url for i in card.supported_interfaces}
        interface.url = url_of_binding[binding]
    del card.supported_interfaces[:]
    card.supported_interfaces.append(interface)
    refusals = {
        ACME: "Not permitted in this tenant: use a tenant that your credentials allow",
        "unknown": "Authentication is required: use one of the schemes in the agent's card",
    }
    # streams of protocol 0.3 over JSON-RPC have only the codes that 0.3 defines
    kinds = (CallRefused, InternalError) if (binding, version) == ("JSONRPC", "0.3") else CallRefused
    for key, sentence in refusals.items():
        async with RemoteAgent(url, card=card, transports=[binding], api_key=key) as agent:
            for call in (agent.submit, agent.session().send, agent.get, agent.cancel):
                with pytest.raises(kinds, match=re.escape(sentence)) as refusal:
                    await call("hi")
                assert refusal.value.__suppress_context__
