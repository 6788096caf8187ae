"""Authentication at a gateway over each binding. Credentials are checked first, and errors reveal no details."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import GetTaskRequest, SendMessageRequest, a2a_pb2_grpc
from click.testing import CliRunner
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_celery.cli.commands import a2a
from a2a_celery.cli.main import main
from a2a_celery.client import RemoteAgent
from tests.acceptance.test_callers import fields_of, stored
from tests.support.agents import app
from tests.support.clients import V1, Served, base_url, card_of, message_json, rest, rpc, serving
from tests.support.credentials import WITH_TOKENS, api_key_entry, bearer, shared
from tests.support.faults import CODES, fault, from_grpc, from_rest, from_rpc

OLD, NEW, ACME = "the-old-key-of-bob", "the-new-key-of-bob", "a-key-of-carol-for-acme"
IDENTITY = "X-Client-Subject"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fleet")
    keys = folder / "api_keys"
    entries = [api_key_entry("bob", OLD), api_key_entry("bob", NEW), api_key_entry("carol", ACME, "acme,beta")]
    keys.write_text("\n".join(entries) + "\n")
    proxies = {"A2A_AUTH_IDENTITY_HEADER": IDENTITY, "A2A_AUTH_PROXY_NETWORKS": "127.0.0.0/8"}
    secret = {"A2A_SECRET_KEY": "0" * 32, "A2A_AUTH_API_KEYS_FILE": str(keys)}
    with serving(folder, pool="threads", concurrency=4, **WITH_TOKENS, **secret, **proxies) as served:
        yield served


def alice() -> dict[str, str]:
    return bearer(shared("alice", tenants=["", "acme"]))


GOOD = [
    (alice, "alice"),
    (lambda: {"X-API-Key": OLD}, "bob"),
    (lambda: {"X-API-Key": NEW}, "bob"),
    (lambda: {IDENTITY: "CN=dora,O=Example"}, "CN=dora,O=Example"),
    (lambda: {IDENTITY: "CN=sidecar", **alice()}, "alice"),
]


@pytest.mark.parametrize(("headers", "owner"), GOOD)
async def test_each_scheme_identifies_the_owner_over_every_binding(served: Served, headers: Any, owner: str) -> None:
    given = headers()
    answers = [
        rpc(served.gateway, "SendMessage", message_json(), agent="data", **given)["result"],
        rest(served.gateway, "POST", "/message:send", message_json(), agent="data", **given).json(),
        await over_grpc(served, message_json() | {"tenant": "data"}, given),
    ]

    for answer in answers:
        assert fields_of(answer)["user"] == owner
        assert fields_of(answer)["authenticated"] is True
        assert not {name.lower() for name in given} & set(fields_of(answer)["headers"])
    [mine] = {answer["task"]["id"] for answer in answers} & {
        task["id"] for task in rest(served.gateway, "GET", "/tasks?pageSize=1", agent="data", **given).json()["tasks"]
    }
    assert mine == answers[-1]["task"]["id"]


def get(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, timeout=60, **options)


def post(url: str, **options: Any) -> httpx.Response:
    return httpx.post(url, timeout=60, **options)


async def over_grpc(served: Served, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    metadata = [(name.lower(), value) for name, value in {**V1, **headers}.items()]
    async with grpc.aio.insecure_channel(served.gateway.grpc) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)
        answer = await stub.SendMessage(ParseDict(body, SendMessageRequest()), metadata=metadata, timeout=60)
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
async def test_anonymous_callers_are_refused(served: Served, what: str, headers: dict[str, str]) -> None:
    url = base_url(served.gateway, "data")
    hostile = {"content": b"{" * 100, "headers": {**V1, **headers}}
    answers = [
        post(f"{url}/", **hostile),
        post(url, **hostile),
        post(f"{url}/message:send", **hostile),
        post(f"{url}/v1/message:send", **hostile),
        get(f"{url}/tasks/some", headers=headers),
        get(f"{url}/nothing/here", headers=headers),
        get(f"{served.url}/metrics", headers=headers),
        post(f"{url}/.well-known/agent-card.json", **hostile),
    ]

    for answer in answers:
        assert answer.status_code == 401
        challenge = 'Bearer realm="a2a"' + (', error="invalid_token"' if what else "")
        assert answer.headers["www-authenticate"] == f'{challenge}, ApiKey realm="a2a", ClientCertificate realm="a2a"'
        found = from_rpc(answer.json()) if "jsonrpc" in answer.json() else from_rest(answer)
        assert found.reason == "UNAUTHENTICATED"
        assert found.message == "Authentication is required: use one of the schemes in the agent's card"
    assert ["jsonrpc" in answer.json() for answer in answers] == [True, True, *[False] * 6]
    refused = await fault(served.gateway, "GRPC", "GetTask", {"id": "some"}, agent="data", **headers)
    assert (refused.status, refused.message) == ("UNAUTHENTICATED", found.message)


async def test_anonymous_callers_are_refused_over_grpc_of_protocol_03(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.gateway.grpc) as channel:
        stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)
        as_bob = (("x-api-key", NEW),)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetTask(a2a_v0_3_pb2.GetTaskRequest(name="tasks/some"), timeout=60)
        assert from_grpc(refused.value).reason == "UNAUTHENTICATED"
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.GetTask(a2a_v0_3_pb2.GetTaskRequest(name="tasks/some"), metadata=as_bob, timeout=60)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_what_is_no_request_is_not_looked_at_over_grpc(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.gateway.grpc) as channel:
        call = channel.unary_unary("/lf.a2a.v1.A2AService/GetTask")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"\xff\xff", timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_headers_that_come_twice_are_refused(served: Served) -> None:
    for twice in ([("X-API-Key", NEW), ("X-API-Key", OLD)], [("Authorization", "Bearer a"), *alice().items()]):
        answer = get(f"{served.url}/tasks", headers=[*V1.items(), *twice])
        assert answer.status_code == 401
        async with grpc.aio.insecure_channel(served.gateway.grpc) as channel:
            metadata = [(name.lower(), value) for name, value in twice]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await a2a_pb2_grpc.A2AServiceStub(channel).GetTask(
                    GetTaskRequest(id="some"), metadata=metadata, timeout=60
                )
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_cards_and_probes_need_no_credentials(served: Served) -> None:
    for path in ("/.well-known/agent-card.json", "/agents/data/.well-known/agent-card.json", "/health/live"):
        assert get(f"{served.url}{path}").status_code == 200, path
    assert get(f"{served.url}/health/ready").status_code in (200, 503)
    assert get(f"{served.url}/metrics", headers={"X-API-Key": NEW}).status_code == 200


async def test_the_card_declares_the_schemes(served: Served) -> None:
    card = MessageToDict(await card_of(served.gateway, "full"))
    assert card["securitySchemes"] == {
        "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}},
        "apiKey": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
        "mutualTls": {"mtlsSecurityScheme": {}},
    }
    alternatives = [list(one["schemes"]) for one in card["securityRequirements"]]
    assert alternatives == [["bearer"], ["apiKey"], ["mutualTls"]]
    extended = rpc(served.gateway, "GetExtendedAgentCard", agent="full", **alice())["result"]
    assert extended["securityRequirements"] == card["securityRequirements"]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
@pytest.mark.parametrize("tenant", ["", "gamma"])
async def test_a_tenant_of_others_is_not_permitted(served: Served, binding: str, tenant: str) -> None:
    for method, params in (("GetTask", {"id": "some"}), ("SendMessage", message_json()), ("ListTasks", {})):
        headers = {**V1, "X-API-Key": ACME}
        match binding:
            case "JSONRPC":
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "tenant": tenant}}
                answer = post(f"{base_url(served.gateway, 'data')}/", json=body, headers=headers)
                found = from_rpc(answer.json())
                assert answer.status_code == 403
            case "HTTP+JSON":
                path = f"/{tenant}" if tenant else ""
                url = base_url(served.gateway, "data") + path
                answer = (
                    post(f"{url}/message:send", json=params, headers=headers)
                    if method == "SendMessage"
                    else get(f"{url}/tasks" + ("/some" if method == "GetTask" else ""), headers=headers)
                )
                found = from_rest(answer)
            case _:
                agent = f"data/{tenant}" if tenant else "data"
                found = await fault(served.gateway, "GRPC", method, params, agent=agent, X_API_Key=ACME)
        assert found.reason == "PERMISSION_DENIED"
        assert found.status == CODES["PERMISSION_DENIED"][("JSONRPC", "HTTP+JSON", "GRPC").index(binding)]


def test_a_tenant_of_ones_own_is(served: Served) -> None:
    body = message_json() | {"tenant": "beta"}
    answer = fields_of(rpc(served.gateway, "SendMessage", body, agent="data", X_API_Key=ACME)["result"])
    assert (answer["user"], answer["tenant"]) == ("carol", "beta")


def command(served: Served, *arguments: str, code: int = 0, **environ: str) -> str:
    """Run ``a2a <arguments>`` against the gateway, require the exit code, and return the output."""
    output = CliRunner().invoke(
        a2a, [*arguments, "--url", served.url], obj=SimpleNamespace(app=app), env=dict.fromkeys(VARIABLES) | environ
    )
    assert output.exit_code == code, output.output
    return output.output


VARIABLES = ("A2A_BEARER", "A2A_BEARER_FILE", "A2A_API_KEY", "A2A_API_KEY_FILE")


def test_the_commands_say_who_they_are(served: Served, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(shared("alice", tenants=[""]) + "\n")
    (tmp_path / "key").write_text(NEW)
    ways: list[tuple[list[str], dict[str, str]]] = [
        (["--bearer-file", str(tmp_path / "token")], {}),
        (["--api-key-file", str(tmp_path / "key")], {"A2A_API_KEY": "another"}),
        ([], {"A2A_BEARER_FILE": str(tmp_path / "token")}),
        ([], {"A2A_API_KEY_FILE": str(tmp_path / "key")}),
        ([], {"A2A_BEARER": shared("alice", tenants=[""])}),
        ([], {"A2A_API_KEY": NEW}),
        (["--header", f"X-API-Key: {NEW}"], {}),
    ]
    for arguments, environ in ways:
        assert "COMPLETED" in command(served, "send", "echo", "hi", *arguments, **environ)
        url = base_url(served.gateway, "echo")
        env = dict.fromkeys(VARIABLES) | environ
        called = CliRunner().invoke(main, ["call", url, "hi", *arguments], env=env)
        assert called.exit_code == 0, called.output


def test_the_commands_say_what_is_missing(served: Served, tmp_path: Path) -> None:
    refused = command(served, "send", "echo", "hi", code=1)
    assert "requires authentication: pass --bearer-file or A2A_BEARER" in refused
    (tmp_path / "two").write_text("a secret")
    for arguments in (["--bearer-file", str(tmp_path / "two")], ["--api-key-file", str(tmp_path / "none")]):
        assert "secret" not in command(served, "send", "echo", "hi", *arguments, code=2)
    called = CliRunner().invoke(
        main, ["call", base_url(served.gateway, "echo"), "hi"], env=dict.fromkeys(VARIABLES) | {"A2A_API_KEY": "no"}
    )
    assert called.exit_code == 1
    assert "responded 401: check the credentials" in called.output


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_remote_agent_sends_its_credentials(served: Served, binding: str) -> None:
    for given in ({"bearer": shared("alice", tenants=[""])}, {"api_key": NEW}):
        url = base_url(served.gateway, "echo")
        async with RemoteAgent(url, transports=[binding], **given) as agent:
            assert (await agent.session().send("hi")).state_name == "COMPLETED"


def test_a_gateway_of_several_processes_asks_too_and_a_bad_setting_is_one_line(served: Served) -> None:
    proxies = {"A2A_AUTH_PROXY_NETWORKS": "10.0.0.0/8"}
    several = served.fleet.gateway(workers=2, wait=False, log_level="debug", **proxies)  # three processes
    several.wait_for_output("Application startup complete")
    for _ in range(4):
        assert httpx.get(f"{several.url}/tasks", timeout=60).status_code == 401
    forwarded = {IDENTITY: "CN=mallory", "X-Forwarded-For": "10.0.0.1"}
    assert httpx.get(f"{several.url}/tasks", headers=V1 | forwarded, timeout=60).status_code == 401
    for good in ({"X-API-Key": NEW}, alice()):
        assert httpx.get(f"{several.url}/tasks", headers={**V1, **good}, timeout=60).status_code == 200
    bad = served.fleet.command("a2a", "gateway", "--workers", "2", A2A_AUTH_JWT_ALGORITHMS="none")
    assert bad.returncode == 1
    assert "Error: a2a_auth_jwt_algorithms = none" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_the_address_of_the_connection_counts_not_that_of_a_header(served: Served) -> None:
    forwarded = {IDENTITY: "CN=dora", "X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
    answer = httpx.get(f"{served.url}/agents/data/tasks", headers={**V1, **forwarded}, timeout=60)
    assert answer.status_code == 200, "the proxy is on this machine, whatever the client's address is"
    card = httpx.get(f"{served.url}/.well-known/agent-card.json", headers=forwarded, timeout=60).json()
    assert card["supportedInterfaces"][0]["url"].startswith("https://"), "and the rest of its word is taken"


def test_nothing_of_a_credential_is_written_down(served: Served) -> None:
    given = shared("eve", tenants=[""])
    spoilt = given[:-6] + "AAAAAA"
    rest(served.gateway, "POST", "/message:send", message_json(), agent="data", **bearer(given))
    rest(served.gateway, "GET", "/tasks", **bearer(spoilt))
    rest(served.gateway, "GET", "/tasks", X_API_Key="a-key-that-nobody-has")

    written = stored(served.fleet) + "".join(process.output() for process in served.fleet.processes)

    assert "eve" in written
    assert "a request was refused: a wrong signature" in written
    assert "a request was refused: an unknown API key" in written
    secrets = (OLD, NEW, ACME, "a-key-that-nobody-has", *given.split("."), spoilt, WITH_TOKENS["A2A_AUTH_JWT_KEY"])
    assert not [secret for secret in secrets if secret in written]
