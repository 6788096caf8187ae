"""Settings, commands, numbers and responses of docs/authentication.md, which must be those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import grpc.aio
import pytest
from a2a.types import GetTaskRequest, a2a_pb2, a2a_pb2_grpc

from a2a_celery.caller import API_KEY_HEADER
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.auth import keys as jwks
from a2a_celery.gateway.auth import tokens
from a2a_celery.gateway.auth.authenticator import Authenticator
from a2a_celery.gateway.auth.from_settings import authenticator_from_settings
from a2a_celery.gateway.auth.keys import KEY_TYPES
from a2a_celery.gateway.auth.schemes import PresentedCredentials
from a2a_celery.gateway.protocol_errors import EXTRA_RPC_CODES
from a2a_celery.lifecycle.references import Scope
from a2a_celery.settings import Settings
from a2a_celery.settings.loading import load_settings
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import GRPC_V1
from tests.support.clients.credentials import AUDIENCE, ISSUER, api_key_entry, bearer, rsa_key, token
from tests.support.clients.faults import from_grpc, from_rest, from_rpc
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.store.seeds import Seeds
from tests.support.waiting import LIMIT

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "authentication.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """Return the code block under the comment `name`."""
    match = re.search(rf"<!-- {name}: .*? -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None, name
    return match[1]


def environment_after(*names: str) -> dict[str, str]:
    """Run documented shell blocks, and return the environment after them."""
    script = "\n".join(block(name) for name in names) + "\nenv"
    result = subprocess.run(["sh", "-euc", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
    lines = [line.partition("=") for line in result.stdout.decode().splitlines()]
    return {name: value for name, _, value in lines if name.startswith("A2A_")}


def output_of(script: str) -> str:
    return subprocess.run(["sh", "-euc", script], capture_output=True, check=True, text=True).stdout


def set_up(environ: dict[str, str]) -> Authenticator:
    authenticator = authenticator_from_settings(load_settings({"a2a_store_url": "redis://host"}, environ))
    assert authenticator is not None
    return authenticator


def test_the_settings_for_a_jwks_are_valid() -> None:
    assert [scheme.name for scheme in set_up(environment_after("jwks")).schemes] == ["bearer"]


def test_the_settings_for_a_key_are_valid(tmp_path: Path) -> None:
    (tmp_path / "jwt_key").write_text("a-secret-that-has-32-characters-or-more\n")
    environ = environment_after("key")
    environ["A2A_AUTH_JWT_KEY_FILE"] = environ["A2A_AUTH_JWT_KEY_FILE"].replace("/run/secrets", str(tmp_path))
    assert [scheme.name for scheme in set_up(environ).schemes] == ["bearer"]


async def test_an_api_key_is_made_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    alice_key, bob_key = output_of(block("api-key")).split()

    monkeypatch.setenv("A2A_AUTH_API_KEYS_FILE", str(tmp_path / "api_keys"))
    authenticator = set_up(dict(os.environ))
    identities = [await authenticator.identify(with_api_key(key)) for key in (alice_key, bob_key)]
    assert [(identity.owner, identity.tenants) for identity in identities] == [("alice", None), ("bob", {"acme"})]


def with_api_key(key: str) -> PresentedCredentials:
    return PresentedCredentials(lambda name: [key] if name == "x-api-key" else [], None)


def test_the_proxy_sets_the_header_that_is_believed() -> None:
    environ = environment_after("proxy")
    header = environ["A2A_AUTH_IDENTITY_HEADER"]
    nginx = block("nginx")

    assert [scheme.name for scheme in set_up(environ).schemes] == ["mutualTls"]
    assert f"proxy_set_header {header} $ssl_client_s_dn;" in nginx
    assert f"grpc_set_header {header} $ssl_client_s_dn;" in nginx
    assert re.search(r"ssl_verify_client +on;", nginx)
    [service] = a2a_pb2.DESCRIPTOR.services_by_name.values()
    assert f"location /{service.full_name}/ {{" in nginx
    assert nginx.count("{") == nginx.count("}")


def test_prometheus_sends_the_header_of_api_keys() -> None:
    assert f"\n      {API_KEY_HEADER}:\n" in block("prometheus")


def test_its_numbers_are_the_codes() -> None:
    text = " ".join(PAGE.split())
    assert f"Clocks may differ by {tokens.LEEWAY} seconds" in text
    assert f"when it starts and every {jwks.REFRESH_EVERY:.0f} seconds" in text
    assert f"at most once every {jwks.ASK_AGAIN_AFTER:.0f} seconds" in text
    for code in EXTRA_RPC_CODES.values():
        assert f"| {code} |" in PAGE
    rule_names = set(re.findall(r"`([A-Z]{2}\d{3})` to `[A-Z]{2}\d{3}`", PAGE))
    assert rule_names == {name for name in KEY_TYPES if name.endswith("256")}


def test_every_setting_of_it_is_named() -> None:
    for name in (name for name in Settings.__slots__ if name.startswith("auth_")):
        assert f"A2A_{name.upper()}" in PAGE, name


KEY = {"X-API-Key": "key"}
UNREACHABLE_JWKS = {
    "auth_jwks_url": "http://127.0.0.1:9/jwks",
    "auth_jwt_algorithms": ("RS256",),
    "auth_jwt_issuer": ISSUER,
    "auth_jwt_audience": (AUDIENCE,),
}
SITUATIONS: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "the caller is not authenticated": ({}, "acme", ("task of bob",)),
    "the owner may not use the tenant, whether or not the object exists": (KEY, "beta", ("task of bob", "missing")),
    "the object belongs to another owner or does not exist": (KEY, "acme", ("task of bob", "missing")),
    "the issuer's keys cannot be loaded, and none are cached": (
        bearer(token(rsa_key(), "RS256")),
        "acme",
        ("task of bob",),
    ),
}
"""Credentials, tenant and task ids of requests in each situation of the page."""


def responses_of_the_page() -> dict[str, tuple[int, str, int, int]]:
    """Return the HTTP status, the gRPC status, the JSON-RPC code and the HTTP status of JSON-RPC by situation."""
    table = PAGE.partition("\n## Responses\n")[2].partition("\n\nThe gateway")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {
        situation: (
            int(http[:3]),
            grpc_status.strip("`"),
            int(rpc.partition(",")[0]),
            200 if rpc.endswith("with HTTP status 200") else int(http[:3]),
        )
        for situation, http, grpc_status, rpc in rows
    }


async def response_to_a_read(
    gateway: LocalGateway, task_id: str, tenant: str, credentials: dict[str, str]
) -> tuple[int | str, ...]:
    """Read a task over each binding. Return the statuses in the order of `responses_of_the_page`."""
    headers = {"A2A-Version": "1.0", **credentials}
    rest = await gateway.http.get(f"/agents/echo/{tenant}/tasks/{task_id}", headers=headers)
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task_id, "tenant": tenant}}
    rpc = await gateway.http.post("/agents/echo/", json=body, headers=headers)
    for response in (rest, rpc):
        assert ("www-authenticate" in response.headers) == (response.status_code == 401)
    metadata = (*GRPC_V1, *((name.lower(), value) for name, value in credentials.items()))
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        request = GetTaskRequest(id=task_id, tenant=f"echo/{tenant}")
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await a2a_pb2_grpc.A2AServiceStub(channel).GetTask(request, metadata=metadata, timeout=LIMIT)
    return from_rest(rest).status, from_grpc(exc_info.value).status, from_rpc(rpc.json()).status, rpc.status_code


async def test_each_situation_has_the_responses_of_the_page(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    settings = {"auth_api_keys": (api_key_entry("ann", "key", "acme"),), **UNREACHABLE_JWKS}
    task_of_bob = await Seeds(store, keys).create_task(Scope("echo", "acme", "bob"))
    async with local_gateway(store, redis_server.store_url, keys, **settings) as gateway:
        responses = {
            situation: {
                await response_to_a_read(gateway, task_of_bob if name == "task of bob" else name, tenant, credentials)
                for name in names
            }
            for situation, (credentials, tenant, names) in SITUATIONS.items()
        }

    assert responses == {situation: {expected} for situation, expected in responses_of_the_page().items()}
